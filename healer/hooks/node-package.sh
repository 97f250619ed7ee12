#!/bin/sh
# healer on a node: healer-hook with what slurm.conf calls of it, healer-follow with its unit, their settings;
# and healer-node, which does nothing until a line of authorized_keys names it.
#
#     sh healer-node.sh install   [--dry-run] [--root DIR] [--replace-conf]
#     sh healer-node.sh uninstall [--dry-run] [--root DIR] [--purge]
#
# Prints each file it changes; a second time changes nothing. --root prepares a node's image instead of this
# machine, and looks at nothing outside it. Settings that are there already stay, unless --replace-conf. --purge takes settings, token and spool
# too. Slurm's own configuration is not touched: `healer hook install` does that, where slurm.conf lies, once all
# nodes have this. What it names stays on the node for good: a Prolog that is missing drains it, and these do
# nothing without healer-hook.
#
# A node that has /etc/healer/package.pub installs only what that key has signed. That guards against a package of
# somebody else; one that was changed would leave the check out: check FILE.sig before it runs (docs/install.md).
#
# All of it is functions up to the last line: half a script does nothing.
set -eu
umask 022
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH LC_ALL=C

LIB=/usr/local/lib/healer
CONF=/etc/healer
UNIT=/etc/systemd/system/healer-follow.service
LINK=/etc/systemd/system/multi-user.target.wants/healer-follow.service
ROOT= DRY= REPLACE= PURGE= CHANGED=0

fail() {
    echo "healer-node: $*" >&2
    exit 1
}

report() { # WHAT PATH: one line for each change
    CHANGED=$((CHANGED + 1))
    echo "$1 $ROOT$2"
}

within() { # PATH: where a link in the image leads out of it, this machine would be changed instead
    [ -n "$ROOT" ] || return 0
    case $(readlink -m "$ROOT${1%/*}") in
    "$(readlink -m "$ROOT")" | "$(readlink -m "$ROOT")"/*) ;;
    *) fail "$ROOT${1%/*} leads out of $ROOT through a link: run this in the image, with chroot" ;;
    esac
}

put() { # MODE PATH [keep]: the file that is read from standard input
    within "$2"
    new=$WORK/new
    cat >"$new"
    chmod "$1" "$new"
    what=new
    if [ -f "$ROOT$2" ]; then
        if cmp -s "$new" "$ROOT$2" && [ "$(stat -c %a "$ROOT$2")" = "$(stat -c %a "$new")" ]; then
            return 0
        fi
        if [ "${3-}" = keep ] && [ -z "$REPLACE" ]; then
            cmp -s "$new" "$ROOT$2" || echo "kept $ROOT$2: it differs from the package (--replace-conf)"
            return 0
        fi
        what=changed
    fi
    report $what "$2"
    [ -z "$DRY" ] || return 0
    mkdir -p "$(dirname "$ROOT$2")"
    cp -p "$new" "$ROOT$2.healer-new"
    mv -f "$ROOT$2.healer-new" "$ROOT$2"
}

gone() { # PATH…: files or folders to remove
    for path in "$@"; do
        within "$path"
        if [ -e "$ROOT$path" ] || [ -L "$ROOT$path" ]; then
            report removed "$path"
            [ -n "$DRY" ] || rm -rf "$ROOT$path"
        fi
    done
}

kept() { # PATH: what slurm.conf may still name
    within "$1"
    [ ! -e "$ROOT$1" ] || echo "kept $ROOT$1: slurm.conf may name it, and without healer-hook it does nothing"
}

proven() { # the key that an earlier package brought has signed this file up to its last line
    key=$ROOT$CONF/package.pub
    [ -e "$key" ] || return 0
    [ -f "$0" ] || fail "$key exists, so only packages that it has signed are installed: run this as a file"
    command -v openssl >/dev/null || fail "openssl is missing: the signature cannot be checked with $key"
    sed '$d' "$0" >"$WORK/signed"
    sed -n '$s/^# signature: //p' "$0" | openssl base64 -d -A >"$WORK/signature"
    openssl dgst -sha256 -verify "$key" -signature "$WORK/signature" "$WORK/signed" >/dev/null 2>&1 ||
        fail "$key has not signed this package: nothing was done"
}

systemd() { # whether this machine's own systemd runs, and is meant
    [ -z "$ROOT" ] && [ -z "$DRY" ] && [ -d /run/systemd/system ]
}

install_all() {
    python=
    for path in /usr/bin/python3 /usr/libexec/platform-python /usr/local/bin/python3; do
        [ ! -e "$ROOT$path" ] && [ ! -L "$ROOT$path" ] || python=$path
    done
    [ -n "$python" ] || echo "note: Python 3 is not installed; the hook and the follower do nothing without it"
    files
    within "$LINK"
    if [ ! -L "$ROOT$LINK" ]; then
        report new "$LINK"
        if [ -z "$DRY" ]; then
            mkdir -p "$(dirname "$ROOT$LINK")"
            ln -s "$UNIT" "$ROOT$LINK"
        fi
    fi
    if systemd; then
        if [ "$CHANGED" -gt 0 ]; then
            systemctl daemon-reload </dev/null
            systemctl restart healer-follow.service </dev/null
        else
            systemctl start healer-follow.service </dev/null
        fi
    elif [ -z "$ROOT" ] && [ -z "$DRY" ]; then
        echo "systemd is not running: let your supervisor keep $LIB/healer-follow running as root"
    fi
}

uninstall_all() {
    if systemd; then
        systemctl disable --now healer-follow.service </dev/null 2>/dev/null || true
    fi
    gone "$LINK" "$UNIT" "$LIB/healer-follow" "$LIB/healer-hook" "$LIB/healer-node"
    called
    if [ -n "$PURGE" ]; then
        gone "$CONF/hook.conf" "$CONF/ca.pem" "$CONF/requests.pub" "$CONF/package.pub" "$CONF/token" /var/spool/healer
        [ -n "$DRY" ] || rmdir "$ROOT$CONF" 2>/dev/null || true
    fi
    if systemd; then
        systemctl daemon-reload </dev/null
    fi
}

main() {
    verb=${1-}
    [ $# -eq 0 ] || shift
    while [ $# -gt 0 ]; do
        case $1 in
        --dry-run) DRY=yes ;;
        --replace-conf) REPLACE=yes ;;
        --purge) PURGE=yes ;;
        --root)
            [ $# -gt 1 ] && [ -d "$2" ] || fail "--root needs a folder"
            ROOT=${2%/}
            shift
            ;;
        *) fail "$1 is not an option" ;;
        esac
        shift
    done
    [ -n "$ROOT" ] || [ "$(id -u)" = 0 ] || fail "only root can change a node"
    WORK=$(mktemp -d)
    trap 'rm -rf "$WORK"' EXIT
    case $verb in
    install)
        proven
        install_all
        ;;
    uninstall) uninstall_all ;;
    *) fail "expected install or uninstall" ;;
    esac
    echo "healer-node: $CHANGED changed${DRY:+ (dry run: nothing was done)}"
}

files() {
    : @FILES@
}

called() {
    : @KEPT@
}

main "$@"
