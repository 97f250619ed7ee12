"""A machine of a distribution: its own files, its own systemd as first process, and no network at all.

The files are a root made once by mmdebstrap, outside of the repository; what a test writes lies in memory
and goes with it. The test's folder is `/srv/site`. Needs root.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.packages.shared import CACHE, shared
from tests.support.systemd_machine import BOOT, DEVICES, SystemdMachine
from tests.support.wait import wait_until

ROOTS = CACHE / "roots"
_DEBIAN = ("deb http://deb.debian.org/debian {0} main",)
#: Debian has no keys of Ubuntu's, so these roots are for tests alone. Python 3.11 came to 22.04 as an update.
_UBUNTU = tuple(
    f"deb [trusted=yes] http://archive.ubuntu.com/ubuntu {{0}}{part} main universe"
    for part in ("", "-updates")
)


@dataclass(frozen=True)
class Distro:
    """A release, where it is fetched from, what is in its root beside the smallest system, and mmdebstrap's
    options."""

    release: str
    sources: tuple[str, ...]
    packages: str
    options: tuple[str, ...] = ("--variant=minbase",)


#: Few roots serve all tests: what a server's package needs is tried where nothing more is installed.
DISTROS = {
    "debian12": Distro("bookworm", _DEBIAN, "python3.11,systemd,procps,tzdata"),
    "debian13": Distro("trixie", _DEBIAN, "python3.13,systemd,procps,tzdata"),
    "ubuntu22.04": Distro("jammy", _UBUNTU, "python3.11,python3,systemd,procps,tzdata"),
    "ubuntu24.04": Distro("noble", _UBUNTU, "python3.12,systemd,procps,tzdata,libstdc++6"),
    # With rpm, openssl, and what Ansible asks of a machine.
    "debian12-tools": Distro("bookworm", _DEBIAN, "python3.11,python3-apt,systemd,procps,tzdata,rpm,openssl"),
    # rpm and Python of the age of EL 8 (4.14, 3.6) and EL 9 (4.16, 3.9).
    "ubuntu18.04": Distro("bionic", _UBUNTU, "python3,systemd,procps,rpm"),
    "debian11": Distro("bullseye", _DEBIAN, "python3,systemd,procps,rpm"),
    "compose": Distro("trixie", _DEBIAN, "docker-compose"),
    # Its programs are of another machine: they are only unpacked, and none is started while it is made.
    "arm64": Distro(
        "bookworm", _DEBIAN, "python3.11,libstdc++6,tzdata", ("--variant=extract", "--architectures=arm64")
    ),
}
#: A mirror that is busy for a moment ends no root; what is made again after a crash need not be safe on disk.
_OPTIONS = ("--quiet", '--aptopt=Acquire::Retries "5"', "--dpkgopt=force-unsafe-io")


def root_of(name: str) -> Path:
    """The root's folder, made when it is not there: 1 to 4 minutes, 200 to 400 MB."""
    place = ROOTS / name
    with shared(place):
        if not place.exists():
            _make_root(DISTROS[name], place)
    return place


def _make_root(distro: Distro, place: Path) -> None:
    archive, half = place.with_suffix(".tar"), place.with_name(f"{place.name}.half")
    sources = [source.format(distro.release) for source in distro.sources]
    options = [*_OPTIONS, *distro.options, f"--include={distro.packages}"]
    subprocess.run(["mmdebstrap", *options, distro.release, archive, *sources], check=True)
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", half, "--exclude=./dev/*"], check=True)
    archive.unlink()
    half.replace(place)


#: As root with mounts and a network of its own. $1: the root, $2: the test's folder, $3: the control group.
_BUILD = (
    """
set -e
lower=$1 folder=$2 group=$3
ip link set lo up
mkdir -p "$folder/machine"
mount -t tmpfs -o mode=755,size=6g layers "$folder/machine"
cd "$folder/machine"
mkdir upper work root groups
mount -t overlay -o "lowerdir=$lower,upperdir=$PWD/upper,workdir=$PWD/work" machine root
mount -t cgroup2 groups groups
mkdir "groups/$group"
echo $$ >"groups/$group/cgroup.procs"
cd root
mkdir -p srv/site run tmp dev proc sys old
mount --bind "$folder" srv/site
"""
    + DEVICES
    + """for each in systemd-sysctl.service systemd-remount-fs.service systemd-tmpfiles-setup-dev.service \
    systemd-tmpfiles-setup-dev-early.service systemd-update-utmp.service systemd-journal-flush.service \
    systemd-random-seed.service systemd-firstboot.service dev-hugepages.mount dev-mqueue.mount \
    sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount sys-fs-fuse-connections.mount; do
    ln -s /dev/null "etc/systemd/system/$each"
done
echo machine >etc/hostname
tr -d - </proc/sys/kernel/random/uuid >etc/machine-id
exec unshare --pid --ipc --uts --cgroup --fork --kill-child sh -ec "$BOOT"
"""
)


class DistroMachine(SystemdMachine):
    """Nothing of healer is in it before a test puts it there."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self._group = f"healer-{folder.name}"
        build = ["sh", "-c", _BUILD, "sh", root_of(name), folder, self._group]
        command = [
            "setpriv",
            "--pdeathsig=KILL",
            "unshare",
            "--mount",
            "--net",
            "--propagation=private",
            *build,
        ]
        with (folder / "boot.log").open("wb") as said:
            self._first = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=os.environ | {"BOOT": BOOT}
            )
        wait_until(self._is_up, 90, what="systemd is up")

    @property
    def _within(self) -> list[str]:
        return ["nsenter", "-t", str(self.init), "-m", "-p", "-i", "-u", "-n", "-C", "-r", "-w"]

    def listing(self) -> set[str]:
        """Every file and folder, without what the kernel or a running system makes."""
        left_out = " -o ".join(f"-path {each}" for each in ("/proc", "/sys", "/dev", "/run", "/tmp", "/srv"))
        return set(self.run("sh", "-c", rf"find / -xdev \( {left_out} \) -prune -o -print").splitlines())


@contextmanager
def distro_machine(name: str, folder: Path) -> Iterator[DistroMachine]:
    machine = DistroMachine(name, folder)
    try:
        yield machine
    finally:
        machine.stop()
