#!/bin/sh
# Makes the secrets of docker-compose.yml in secrets/, each once; what is there stays as it is.
#   SECRETS    another folder
#   DATABASE   where the parts reach PostgreSQL: HOST or HOST:PORT (postgres)
set -eu
folder=${SECRETS:-$(dirname "$0")/../../secrets}
mkdir -p "$folder"
chmod 0700 "$folder" # a container sees single files of it; their users differ from yours

# $1: name, $2: text. An interrupted script leaves no partial secret.
keep() { printf '%s\n' "$2" | install -m 0444 /dev/stdin "$folder/$1"; }
random() {
    [ -s "$folder/$1" ] && return
    text=$(openssl rand -hex 32)
    keep "$1" "$text"
}

for part in postgres owner api detector scheduler scraper worker; do
    random password_$part
    [ $part != owner ] && login=healer_$part || login=healer
    [ $part = postgres ] || [ -s "$folder/database_url_$part" ] ||
        keep database_url_$part "postgresql://$login:$(cat "$folder/password_$part")@${DATABASE:-postgres}/healer"
done
random token_key
random webhook_secret
