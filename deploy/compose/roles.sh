#!/bin/sh
# Makes the owner of healer's tables and a login for each part, once, where PostgreSQL makes its database.
# What each login may do with each table is granted by `healer db upgrade`.
set -eu
secrets=${SECRETS:-/run/secrets}
quoted() { printf "'%s'" "$(tr -d '\n' <"$secrets/password_$1")"; } # hex digits: nothing to escape

psql --set=ON_ERROR_STOP=1 --quiet --username "${POSTGRES_USER:-postgres}" --dbname "$POSTGRES_DB" <<SQL
CREATE ROLE healer LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD $(quoted owner);
CREATE ROLE healer_api LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD $(quoted api);
CREATE ROLE healer_detector LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD $(quoted detector);
CREATE ROLE healer_scheduler LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD $(quoted scheduler);
CREATE ROLE healer_scraper LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD $(quoted scraper);
CREATE ROLE healer_worker LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOINHERIT PASSWORD $(quoted worker);
CREATE ROLE healer_auditor NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
CREATE ROLE healer_broker NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
GRANT healer_auditor TO healer_worker;
ALTER DATABASE "$POSTGRES_DB" OWNER TO healer;
ALTER SCHEMA public OWNER TO healer;
SQL
