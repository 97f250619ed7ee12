"""tools/lived-in finds each way in which a command can leave something behind or touch what is others'."""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

TOOL = Path(__file__).parents[2] / "tools" / "lived-in"
#: Changes, and the report of them.
DEEDS = {
    "sleep 600 &": "left running: sleep 600",
    "touch /tmp/a-file": "left: /tmp/a-file",
    "mkdir -p /etc/a/b": "left: /etc/a",
    "touch /dev/shm/a-file": "left: /dev/shm/a-file",
    "touch /run/a-file && rm /run/a-file": "changed: /run, where something was made and removed",
    "echo x >>/etc/passwd": "changed: /etc/passwd",
    "chmod 644 /etc/munge/munge.key": "changed: /etc/munge/munge.key",
    "rm /usr/local/lib/healer/prolog": "removed: /usr/local/lib/healer/prolog",
    "rm /etc/hosts": "removed: /etc/hosts",
    "echo '* * * * * true' >>/var/spool/cron/crontabs/root": "changed: /var/spool/cron/crontabs/root",
    "pkill -x slurmd": "their slurmd was ended",
    "logger -u /dev/log hello": "their rsyslogd was called at /dev/log with",
    "munge -s x": "their munged was called at /run/munge/munge.socket.2 by munge -s x",
    "exec 3<>/dev/tcp/127.0.0.1/6817; sleep 1; exec 3<&-": "their slurmctld was called at port 6817 by",
    "exec 3<>/dev/tcp/127.0.0.1/5432; exec 3<&-": "their PostgreSQL was called",
    "exec 3<>/dev/tcp/127.0.0.1/6379; echo SET kept ours >&3; read -r _ <&3": "their Redis was called",
    "ipcmk -M 100": "left of System V: shm",
    "mkdir /tmp/m && mount -t tmpfs m /tmp/m": "mounted: /tmp/m",
    "echo 10 >/proc/sys/vm/swappiness": "",  # refused at once
    "touch /var/tmp/used && rm /var/tmp/used": "",  # what the folder is there for
    "touch /run/postgresql/.s.PGSQL.5432.lock": "",  # as PostgreSQL itself does each hour
}


def lived_in(*command: str, before: tuple[str, ...] = ()) -> tuple[int, str]:
    """Its exit status, and all that it printed."""
    done = subprocess.run(
        [*before, str(TOOL), *command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_a_command_inherits_the_settings_of_others_and_keeps_its_exit_status() -> None:
    shown = 'echo "$SLURM_CONF $PGPASSWORD $HEALER_DATA_DIR $(umask)"; exit 7'
    said = "/etc/slurm/slurm.conf theirs /var/lib/healer 0077\nlived-in: clean\n"
    assert lived_in("sh", "-c", shown) == (7, said)


def test_each_deed_is_found_and_none_reaches_the_machine() -> None:
    status, output = lived_in("bash", "-c", "\n".join(DEEDS))
    found = [line.removeprefix("lived-in: ") for line in output.splitlines() if line.startswith("lived-in: ")]
    missing = {deed: line for deed, line in DEEDS.items() if not any(one.startswith(line) for one in found)}
    assert not missing, output
    assert "/proc/sys/vm/swappiness: Read-only file system" in output
    assert not any("/var/tmp" in line or "PGSQL.5432.lock" in line for line in found)
    assert status == 1 and found[-1].startswith("NOT CLEAN: ")
    touched = ("/tmp/a-file", "/etc/a", "/dev/shm/a-file", "/tmp/m")
    assert not [path for path in touched if Path(path).exists()] and Path("/etc/hosts").exists()


def test_lived_in_run_fails_with_a_message_without_namespaces() -> None:
    status, output = lived_in("true", before=("setpriv", "--bounding-set=-sys_admin"))
    assert status and "lived-in: NOT RUN: " in output
