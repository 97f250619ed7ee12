#!/bin/sh
# Makes the secrets of docker-compose.yml in secrets/, each once; what is there stays.
set -eu
cd "$(dirname "$0")/../.."
mkdir -p secrets
chmod 0700 secrets # a container sees single files of it; their users differ from yours
random() { [ -s "secrets/$1" ] || openssl rand -hex 32 >"secrets/$1"; }

for part in postgres owner api detector scheduler scraper worker; do
    random password_$part
    [ $part != owner ] && login=healer_$part || login=healer
    [ $part = postgres ] || [ -s secrets/database_url_$part ] ||
        printf 'postgresql://%s:%s@postgres/healer\n' $login "$(cat secrets/password_$part)" >secrets/database_url_$part
done
random token_key
random webhook_secret
chmod 0444 secrets/*
