# What happens around the files of the package healer. deb and rpm call these functions, each at its own time.
set -e
PYTHON=/opt/healer/.venv/bin/python
# Which units ran before an upgrade, until they run again. One that was cut off is followed by another, which
# finds them stopped.
RAN=/run/healer-package.units

systemd_runs() { [ -d /run/systemd/system ]; }

# A process loads parts of its program late: old and new files must not meet in one.
stop_for_upgrade() {
    systemd_runs || return 0
    systemctl list-units --plain --no-legend --full --state=active,activating,reloading \
        healer.service healer.target 'healer-*.service' |
        awk '$1 !~ /^healer-(follow|nvhcd|upgrade)\.service$/ {print $1}' >>"$RAN"
    # shellcheck disable=SC2046 # one word per unit
    [ ! -s "$RAN" ] || systemctl stop $(cat "$RAN")
}

set_up() {
    # Before systemd 250 or in an image these may be missing or have nothing to say: users are what counts.
    systemd-sysusers healer.conf
    systemd-tmpfiles --create healer.conf
    drop_bytecode
    # Each part may write nothing there, and would compile the same modules at every start.
    "$PYTHON" -m compileall -q -q -j 0 /opt/healer/.venv/lib || true
    ! systemd_runs || systemctl daemon-reload
}

start_again() {
    [ -s "$RAN" ] && systemd_runs || { rm -f "$RAN"; return 0; }
    # `healer up` brings its own database to the new tables; the parts have a unit for that, where its login lies.
    if grep -q '^healer-' "$RAN" && [ -e /etc/healer/credentials/upgrade/database-url ] &&
        ! systemctl start healer-upgrade.service; then
        echo "healer: the database was not upgraded, so the parts stay stopped: journalctl -u healer-upgrade;" \
            "then systemctl start healer-upgrade $(tr '\n' ' ' <"$RAN")" >&2
    else
        # shellcheck disable=SC2046 # one word per unit
        systemctl start $(cat "$RAN") || echo "healer: not all parts started: systemctl status 'healer*'" >&2
    fi
    rm -f "$RAN"
}

stop_for_good() {
    systemd_runs || return 0
    units=$(systemctl list-unit-files --plain --no-legend healer.service healer.target 'healer-*.service' 'healer-*.timer' |
        awk '$1 !~ /^healer-(follow|nvhcd)\.service$/ {print $1}')
    # shellcheck disable=SC2086 # one word per unit
    systemctl disable --now $units >/dev/null 2>&1 || true
}

drop_bytecode() {
    find /opt/healer -depth -name __pycache__ -type d -exec rm -rf {} + 2>/dev/null || true
}

gone() {
    rmdir /opt/healer 2>/dev/null || true
    ! systemd_runs || systemctl daemon-reload
}

# Settings go with dpkg. Data and secrets of the site never go by themselves: a fleet's audit is proof.
purged() {
    rmdir /etc/healer/credentials /etc/healer 2>/dev/null || true
    # The folder of a unit whose user systemd makes up, and the link to it.
    ! rmdir /var/lib/private/healer/upgrade /var/lib/private/healer 2>/dev/null || rm -f /var/lib/healer/upgrade
    rm -f /var/lib/systemd/timers/stamp-healer-backup.timer
    for each in /audit /recordings /api /detector /scheduler /scraper /worker ""; do
        rmdir "/var/lib/healer$each" 2>/dev/null || true
    done
    rmdir /var/backups/healer 2>/dev/null || true
    for each in /var/lib/healer /var/backups/healer /etc/healer/credentials; do
        [ ! -e "$each" ] || echo "healer: kept $each; remove it by hand if it is not needed"
    done
}
