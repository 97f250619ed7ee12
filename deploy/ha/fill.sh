#!/bin/sh
# Writes one host's files of docs/backup.md into a folder, from those beside this script.
#   deploy/ha/fill.sh NAME ADDRESS "HOST1 HOST2 HOST3" FOLDER
# ADDRESS is this host's, HOST1 to HOST3 the addresses of all three in the same order on each host. Passwords are
# read from files of SECRETS (/etc/healer/secrets): password_superuser, password_replication.
# SITE is the name by which people and nodes reach either host. POSTGRES_BIN names the folder of PostgreSQL's
# programs, ROOT one to put before every path.
set -eu
[ $# = 4 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
name=$1 address=$2 folder=$4
# shellcheck disable=SC2086 # three words
set -- $3
[ $# = 3 ] || { echo "fill.sh: give three hosts, not '$*'" >&2 && exit 2; }
secrets=${SECRETS:-/etc/healer/secrets}
bin=${POSTGRES_BIN:-$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)}
# Other characters may be special to sed or YAML.
password() {
    text=$(cat "$secrets/password_$1")
    case $text in
    '' | *[!0-9A-Za-z._~-]*)
        echo "fill.sh: $secrets/password_$1 has no password of letters, digits and . _ ~ -" >&2 && exit 1
        ;;
    esac
    echo "$text"
}
superuser=$(password superuser)
replication=$(password replication)
umask 077
mkdir -p "$folder"
for file in etcd.env patroni.yml haproxy.cfg redis.conf healer.env restart.conf; do
    sed -e "s|@NAME@|$name|g; s|@ADDRESS@|$address|g; s|@HOST1@|$1|g; s|@HOST2@|$2|g; s|@HOST3@|$3|g" \
        -e "s|@SITE@|${SITE:?is the name of healer for people and nodes}|g; s|@ROOT@|${ROOT:-}|g; s|@BIN@|$bin|g" \
        -e "s|@SUPERUSER@|$superuser|g; s|@REPLICATION@|$replication|g" "$(dirname "$0")/$file" >"$folder/$file"
done
