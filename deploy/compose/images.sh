#!/bin/sh
# Pins the images that docker-compose.yml takes from elsewhere: asks a registry for their digests, and writes
# them into .env. Run it again to move to newer ones.
#   deploy/compose/images.sh REGISTRY   https://HOST[/FOLDER], the registry that the site pulls from
# A login is read from ~/.netrc. Needs curl.
set -eu
registry=${1:-}
die() { echo "images.sh: $*" >&2 && exit 1; }
case $registry in
http://?* | https://?*) ;;
*) die "give the registry to pull from, such as https://registry.example/library, not '$registry'" ;;
esac
cd "$(dirname "$0")/../.."
scheme=${registry%%://*}
place=${registry#*://}
host=${place%%/*}
folder=${place#"$host"}
folder=${folder#/}
folder=${folder%/}
umask 077
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# $1: repository, $2: tag. The document that names the image, in $work/manifest; what came is the status.
fetch() {
    curl --silent --show-error --location --proto "=$scheme" --netrc-optional --max-time 60 --output "$work/manifest" \
        --dump-header "$work/headers" --write-out '%{http_code}' --header "@$work/asked" \
        "$scheme://$host/v2/$1/manifests/$2" || die "$host does not answer"
}

# The value of a name in the challenge of a registry that wants a token.
challenge() { sed -n "s/^www-authenticate: *bearer .*$1=\"\([^\"]*\)\".*/\1/ip" "$work/headers" | tail -n 1; }

# $1: repository. Asks for a token to read it where the registry said.
log_in() {
    realm=$(challenge realm)
    case $realm in
    "$scheme"://*) ;;
    *) die "$host wants a login of a kind that this script does not know" ;;
    esac
    curl --silent --show-error --fail --netrc-optional --max-time 60 --get --output "$work/token" \
        --data-urlencode "service=$(challenge service)" --data-urlencode "scope=repository:$1:pull" "$realm" ||
        die "$realm gives no token to read $1"
    token=$(grep -oE '"(token|access_token)" *: *"[^"]+"' "$work/token" | head -n 1 | cut -d '"' -f 4)
    echo "Authorization: Bearer $token" >>"$work/asked"
}

# $1: repository, $2: tag. Prints the digest: the sum of what came, which is what Docker will check.
digest_of() {
    # The index of all architectures where there is one.
    printf 'Accept: application/vnd.%s\n' oci.image.index.v1+json docker.distribution.manifest.list.v2+json \
        oci.image.manifest.v1+json docker.distribution.manifest.v2+json >"$work/asked"
    status=$(fetch "$1" "$2")
    if [ "$status" = 401 ]; then
        log_in "$1"
        status=$(fetch "$1" "$2")
    fi
    [ "$status" = 200 ] || die "$host has no $1:$2 (HTTP status $status)"
    grep -q '"schemaVersion"' "$work/manifest" || die "$host answers for $1:$2 with something that is no image"
    digest=sha256:$(sha256sum "$work/manifest" | cut -d ' ' -f 1)
    named=$(tr -d '\r' <"$work/headers" | sed -n 's/^docker-content-digest: *//ip' | tail -n 1)
    [ "${named:-$digest}" = "$digest" ] || die "$host names $named for $1:$2, and what came is $digest"
    echo "$digest"
}

# Lines of NAME image:tag, as docker-compose.yml has them.
sed -n 's/.*\${HEALER_\([A-Z]*\)_IMAGE:-\([^}]*\)}@.*/\1 \2/p' docker-compose.yml | sort -u >"$work/images"
while read -r name image; do
    digest=$(digest_of "${folder:+$folder/}${image%%:*}" "${image##*:}")
    echo "HEALER_${name}_IMAGE=$host/${folder:+$folder/}$image"
    echo "HEALER_${name}_DIGEST=$digest"
done <"$work/images" >"$work/lines"

# Only now, and in one go: .env names all of them, or those of before.
fresh=$(mktemp .env.XXXXXX)
trap 'rm -rf "$work" "$fresh"' EXIT
[ ! -e .env ] || { cp -p .env "$fresh" && sed -E '/^HEALER_[A-Z]+_(IMAGE|DIGEST)=/d' .env >"$fresh"; }
cat "$work/lines" >>"$fresh"
mv "$fresh" .env
cat "$work/lines"
