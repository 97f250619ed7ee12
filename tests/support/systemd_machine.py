"""A machine with systemd as its first process, in namespaces: this one's programs, with files of its own.

What is written there lies in memory and goes with it. It shares the network, so that a test reaches what
listens there. `/opt/healer` is this checkout with an environment of its own, as the packages have it; the
folder of the test is `/srv/site`. Needs root.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import living
from tests.support.units import ROOT, UNITS, drop_ins
from tests.support.wait import wait_until

#: Where the folder of the test is within the machine.
SITE = "/srv/site"
_PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Units of a whole system that would change the kernel or devices, which are not the machine's own.
_NOT_HERE = (
    "systemd-sysctl.service", "systemd-modules-load.service", "systemd-remount-fs.service",
    "systemd-tmpfiles-setup.service", "systemd-tmpfiles-setup-dev.service", "systemd-binfmt.service",
    "systemd-random-seed.service", "systemd-update-utmp.service", "systemd-udevd.service",
    "systemd-udev-trigger.service",
    "proc-sys-fs-binfmt_misc.automount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount",
    "sys-kernel-config.mount", "sys-fs-fuse-connections.mount", "dev-hugepages.mount", "dev-mqueue.mount",
    "systemd-networkd-wait-online.service", "network-online.target", "systemd-journal-flush.service",
    "munge.service", "postgresql.service", "redis-server.service", "systemd-firstboot.service",
)  # fmt: skip
#: As root with mounts of its own. $1: the test's folder, $2: the checkout, $3: Python's own folder, $4: the
#: environment's packages, $5: the control group of the machine, rest: units that are not there.
#: What a machine has of its own: what runs, temporary files and devices.
DEVICES = """mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=1777 tmp tmp
mount -t tmpfs -o mode=755 dev dev
mkdir -p dev/pts dev/shm dev/mqueue
mount -t devpts -o newinstance,ptmxmode=666 pts dev/pts
mount -t tmpfs -o mode=1777 shm dev/shm
for each in null zero full random urandom tty; do
    touch dev/$each
    mount --bind /dev/$each dev/$each
done
ln -s /proc/self/fd dev/fd
ln -s pts/ptmx dev/ptmx
"""
_BUILD = (
    """
set -e
folder=$1 checkout=$2 python=$3 packages=$4 group=$5
shift 5
mkdir -p "$folder/machine"
mount -t tmpfs -o mode=755 layers "$folder/machine"
cd "$folder/machine"
mkdir upper work root groups
mount -t overlay -o "lowerdir=/,upperdir=$PWD/upper,workdir=$PWD/work" machine root
mount -t cgroup2 groups groups
mkdir "groups/$group"
echo $$ >"groups/$group/cgroup.procs"
cd root
mkdir -p opt/healer opt/python opt/packages srv/site
mount --bind "$checkout" opt/healer
mount --bind "$python" opt/python
mount --bind "$packages" opt/packages
mount --bind "$folder" srv/site
mount -t tmpfs -o mode=755 environment opt/healer/.venv
for each in etc/systemd/system usr/local/lib/systemd var/lib/healer etc/healer; do
    mkdir -p $each
    mount -t tmpfs -o mode=755 own $each
done
"""
    + DEVICES
    + """for each in "$@"; do ln -s /dev/null "etc/systemd/system/$each"; done
echo machine >etc/hostname
tr -d - </proc/sys/kernel/random/uuid >etc/machine-id
exec unshare --pid --ipc --uts --cgroup --fork --kill-child sh -ec "$BOOT"
"""
)
#: The last steps into the machine, with systemd as its first process.
BOOT = """
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 groups sys/fs/cgroup
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mkdir -p old
pivot_root . old
umount -l /old
mount --make-rshared /
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=basic.target --show-status=no --log-target=journal
"""
#: The program of the packages. Packages are found by a file of paths, so that no other checkout is.
_ENTRY = """#!/opt/healer/.venv/bin/python
import sys

from healer.commands.cli import main

sys.exit(main())
"""


class SystemdMachine:
    """Started and laid out when it is made. `run` executes a command within it as root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._group = f"healer-{folder.name}"
        packages = Path(sys.prefix, "lib", _PYTHON, "site-packages")
        build = ["sh", "-c", _BUILD, "sh", folder, ROOT, sys.base_prefix, packages, self._group, *_NOT_HERE]
        command = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--propagation=private", *build]
        with (folder / "boot.log").open("wb") as said:
            self._first = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=os.environ | {"BOOT": BOOT}
            )
        wait_until(self._is_up, 30, what="systemd is up")
        self._lay()

    def _is_up(self) -> bool:
        assert self._first.poll() is None, (self.folder / "boot.log").read_text()
        self.init = next(iter(self._children(self._first.pid)), 0)
        if not self.init:
            return False
        said = self.run("systemctl", "is-system-running", check=False).strip()
        return said in ("running", "degraded")

    @staticmethod
    def _children(pid: int) -> list[int]:
        said = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(word) for word in said.split()]

    def _lay(self) -> None:
        """What a package of healer would install, and docs/install.md says."""
        # Python's library before another of the same name: where it was built is hidden from units.
        self.write("/etc/ld.so.conf.d/000-python.conf", "/opt/python/lib\n")
        self.run("ldconfig")
        self.run(f"/opt/python/bin/{_PYTHON}", "-m", "venv", "--without-pip", "/opt/healer/.venv")
        self.write(
            f"/opt/healer/.venv/lib/{_PYTHON}/site-packages/healer.pth", "/opt/healer\n/opt/packages\n"
        )
        self.write("/opt/healer/.venv/bin/healer", _ENTRY, mode=0o755)
        units = "/opt/healer/deploy/systemd"
        self.run("sh", "-c", f"cp {units}/healer-*.service {units}/healer.target /etc/systemd/system/")
        self.run("install", "-m", "644", f"{units}/sysusers.conf", "/usr/lib/sysusers.d/healer.conf")
        self.run("install", "-m", "644", f"{units}/tmpfiles.conf", "/usr/lib/tmpfiles.d/healer.conf")
        self.run("systemd-sysusers", "healer.conf")
        self.run("systemd-tmpfiles", "--create", "healer.conf")
        self.run("systemctl", "daemon-reload")

    def add(self, part: str, *names: str) -> None:
        """Drop-ins of `optional/`."""
        assert set(names) <= set(drop_ins(part))
        target = f"/etc/systemd/system/healer-{part}.service.d"
        for name in names:
            source = UNITS / "optional" / f"healer-{part}.service.d" / f"{name}.conf"
            self.write(f"{target}/{name}.conf", source.read_text())

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        done = 'mkdir -p "${1%/*}" && touch "$1" && chmod "$2" "$1" && cat >"$1"'
        self.run("sh", "-c", done, "sh", path, f"{mode:o}", said=text)

    @property
    def _within(self) -> list[str]:
        return ["nsenter", "-t", str(self.init), "-m", "-p", "-i", "-u", "-C", "-r", "-w"]

    def execute(self, *command: str, said: str = "") -> "subprocess.CompletedProcess[str]":
        """Within it as root; it may fail."""
        return subprocess.run(
            [*self._within, *command],
            input=said,
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": _PATH, "LANG": "C.UTF-8"},
        )

    def run(self, *command: str, check: bool = True, said: str = "") -> str:
        """What it prints. Raises AssertionError where it fails."""
        done = self.execute(*command, said=said)
        if check and done.returncode:
            shown = self.run("journalctl", "--no-pager", "-o", "cat", "-n", "60", check=False)
            raise AssertionError(f"{command} failed: {done.stdout}{done.stderr}\n{shown}")
        return done.stdout + (done.stderr if not check else "")

    def main_pid(self, part: str) -> int:
        """The process of a unit, by its number outside. Without a part it is `healer up`."""
        unit = unit_of(part)
        inside = self.run("systemctl", "show", "--property=MainPID", "--value", unit).strip()
        for entry in Path("/proc").glob("[0-9]*/status"):
            try:
                text = entry.read_text()
            except OSError:
                continue
            numbers = next((line.split()[1:] for line in text.splitlines() if line.startswith("NSpid:")), [])
            if numbers[-1:] == [inside] and self._is_within(int(entry.parent.name)):
                return int(entry.parent.name)
        raise AssertionError(f"{unit} does not run: {self.journal(part)}")

    def _is_within(self, pid: int) -> bool:
        mine = os.readlink(f"/proc/{self.init}/ns/pid")
        return os.readlink(f"/proc/{pid}/ns/pid") == mine

    def journal(self, part: str, lines: int = 40) -> str:
        words = ["journalctl", "--no-pager", "-o", "cat", "-n", str(lines), "-u", unit_of(part)]
        return self.run(*words, check=False)

    def stop(self) -> None:
        if self.init:
            os.kill(self.init, signal.SIGKILL)
        self._first.kill()
        self._first.wait()
        wait_until(lambda: not living({self.init}), 20, what="the machine is off")
        remove_group(self._group)


def unit_of(part: str) -> str:
    return f"healer-{part}.service" if part else "healer.service"


#: Groups may be busy for a moment after their last process.
_REMOVE = """
mount -t cgroup2 groups /mnt
for try in $(seq 50); do
    find "/mnt/$1" -depth -type d -exec rmdir {} + 2>/dev/null
    [ -d "/mnt/$1" ] || exit 0
    sleep 0.1
done
echo "the control group $1 is not empty" >&2
exit 1
"""


def remove_group(name: str) -> None:
    """With all that systemd made in it for its units."""
    subprocess.run(["unshare", "--mount", "sh", "-c", _REMOVE, "sh", name], check=True)


@contextmanager
def systemd_machine(folder: Path) -> Iterator[SystemdMachine]:
    machine = SystemdMachine(folder)
    try:
        yield machine
    finally:
        machine.stop()


def as_part(
    machine: SystemdMachine, part: str, program: str, arguments: Sequence[str]
) -> "subprocess.CompletedProcess[str]":
    """A program of Python's with the user and all walls of a part: its namespaces, no rights."""
    pid = machine.main_pid(part)
    uid, gid = (os.stat(f"/proc/{pid}").st_uid, os.stat(f"/proc/{pid}").st_gid)
    within = ["nsenter", "-t", str(pid), "-m", "-p", "-i", "-u", "-U", "-S", str(uid), "-G", str(gid)]
    dropped = ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    command = [*within, *dropped, "/opt/healer/.venv/bin/python", "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": _PATH})
