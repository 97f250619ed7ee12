# What happens around the files of the package healer-node. deb and rpm call these functions.
set -e
LIB=/usr/lib/healer
SHARE=/usr/share/healer-node
CONF=/etc/healer/hook.conf
UNIT=healer-follow.service
# Off until the site enables it.
EXTRA=healer-nvhcd.service
WANTS=/etc/systemd/system/multi-user.target.wants

systemd_runs() { [ -d /run/systemd/system ]; }

first() { # the same as systemctl enable, in an image too
    mkdir -p "$WANTS"
    ln -sf "/usr/lib/systemd/system/$UNIT" "$WANTS/$UNIT"
}

set_up() {
    mkdir -p /etc/healer
    # Settings of the site, often there first.
    [ -e "$CONF" ] || install -m 644 "$SHARE/hook.conf" "$CONF"
    # What slurm.conf may name belongs to no package: a Prolog that is missing drains the node. A site's own stay.
    for name in prolog epilog health-check; do
        [ -e "$LIB/$name" ] || install -m 755 "$SHARE/$name" "$LIB/$name"
    done
    systemd_runs || return 0
    systemctl daemon-reload
    systemctl try-restart "$EXTRA" || true
    if grep -q '^HEALER_URL=.' "$CONF"; then
        [ ! -L "$WANTS/$UNIT" ] || systemctl restart "$UNIT" || true
    else
        echo "healer-node: set HEALER_URL in $CONF, then: systemctl start healer-follow"
    fi
}

stop_for_good() {
    ! systemd_runs || systemctl disable --now "$UNIT" "$EXTRA" >/dev/null 2>&1 || true
    rm -f "$WANTS/$UNIT" "$WANTS/$EXTRA"
}

gone() {
    ! systemd_runs || systemctl daemon-reload
}

named() { # whether a slurm.conf of this node names the programs, or slurmd is here and its slurm.conf is not
    found=
    for conf in /etc/slurm /etc/slurm-llnl /run/slurm/conf /var/spool/slurmd/conf-cache; do
        for file in "$conf"/*.conf; do
            [ -e "$file" ] || continue
            [ "${file##*/}" != slurm.conf ] || found=yes
            ! grep -qsF "$LIB/" "$file" || return 0
        done
    done
    [ -z "$found" ] || return 1
    # Built from source it is in no PATH, and in an image it does not run.
    for unit in /etc/systemd /usr/lib/systemd /usr/local/lib/systemd /lib/systemd; do
        [ ! -e "$unit/system/slurmd.service" ] || return 0
    done
    command -v slurmd >/dev/null || pidof slurmd >/dev/null 2>&1
}

purged() {
    rm -rf /etc/healer/hook.conf /etc/healer/ca.pem /etc/healer/token /etc/healer/requests.pub /etc/healer/package.pub /var/spool/healer /var/lib/healer-node
    if named; then
        echo "healer-node: kept $LIB: slurm.conf may name it, and without healer-hook it does nothing"
    else
        rm -f "$LIB/prolog" "$LIB/epilog" "$LIB/health-check"
    fi
    rmdir "$LIB" /etc/healer 2>/dev/null || true
}
