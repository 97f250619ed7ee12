"""tools/lived-in COMMAND…: runs a command on this machine as if others lived on it too.

The command runs in namespaces of its own (mounts, processes, network, IPC), as root. An overlay covers every
file system: the machine itself stays as it is, and whatever is written lies in the overlay's upper layer and
can be read off afterwards. /tmp and /dev/shm are empty, this checkout is the real one, and the network is a
loopback. Others (tests/support/others.py) have servers on the usual ports, files at the usual places, and
settings in the environment that the command inherits.

After the command: none of its processes may live, none of its files may lie outside this checkout, and
nothing of the others may be changed, ended or even called. What is found is printed. The exit status is the
command's own, or 1 where something was found.
"""

import fcntl
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from tests.support.others import ENVIRON, PLACE, Others, describe
from tests.support.processes import descendants

ROOT = Path(__file__).parents[2]
#: Longer than guardians may take to end what a killed process has left.
ENDING_S = 10.0
#: So much of what is found is printed.
SHOWN = 60
#: Files that the command may leave or change, and whose they are.
ALLOWED = (
    "/tmp/pytest-of-*",  # pytest keeps the folders of its last three runs
    "/run/netns",  # iproute2 keeps its empty folder; a namespace that is left in it is a mount
    "/usr/lib/chromium/extensions",  # Chromium sometimes makes this empty folder of its own
)
#: Of these the new root has its own, or the real one.
_NOT_COVERED = ("/proc", "/sys", "/tmp", "/dev/pts", "/dev/shm", "/dev/mqueue")

#: Of each path mode, owner, group, device, size and time of the last change.
Seen = dict[str, tuple[int, ...]]


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        print("usage: tools/lived-in COMMAND…", file=sys.stderr)
        return 2
    work = Path(tempfile.mkdtemp(prefix="lived-in-", dir="/tmp"))
    command = [
        "setpriv", "--pdeathsig=KILL",
        "unshare", "--mount", "--pid", "--net", "--ipc", "--propagation=private", "--fork", "--kill-child",
        sys.executable, "-m", "tests.support.lived_in", "--inside", str(work), *arguments,
    ]  # fmt: skip
    try:
        with subprocess.Popen(command) as inside:
            # Ctrl-C goes to the command too, which ends as it likes; when this is ended, all of it ends.
            signal.signal(signal.SIGINT, lambda *_: None)
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, lambda *_: inside.kill())
            status = inside.wait()
        if not (work / "moved-in").exists():
            print("lived-in: NOT RUN: it needs root, and namespaces and overlays of its own", file=sys.stderr)
            return status or 1
        return status
    finally:
        shutil.rmtree(work, ignore_errors=True)


def inside(work: Path, command: Sequence[str]) -> int:
    """The first process of the new namespaces: builds the machine, runs the command, looks round."""
    signal.signal(signal.SIGINT, lambda *_: None)
    machine = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    layers = build(work)
    network()
    others = Others(Path.home())
    before, mounts, shared = written(layers), mount_points(), system_v()
    status = run(command)
    found = [*left_running(others), *others.complaints()]
    found += changes(before, written(layers), lambda path: os.path.lexists(f"/proc/self/fd/{machine}{path}"))
    found += [f"mounted: {point}" for point in sorted(mount_points() - mounts)]
    found += [f"left of System V: {one}" for one in sorted(system_v() - shared)]
    for line in found[:SHOWN]:
        print(f"lived-in: {line}", flush=True)
    if len(found) > SHOWN:
        print(f"lived-in: and {len(found) - SHOWN} more", flush=True)
    how = f"NOT CLEAN: {len(found)} found" if found else "clean"
    print(f"lived-in: {how}", flush=True)
    return status or int(bool(found))


# --- the machine ---


def build(work: Path) -> int:
    """Makes the covered machine the root; returns a descriptor of the layers that are written to."""
    layers, root = work / "layers", work / "root"
    for each in (layers, root, work / "tmp"):
        each.mkdir()
    (work / "tmp").chmod(0o1777)
    mount("-t", "tmpfs", "-o", "mode=755", "layers", layers)
    points = [
        point for point in mount_points() if not _is_below(point, (*_NOT_COVERED, str(PLACE), str(work)))
    ]
    for number, point in enumerate(sorted(points)):
        cover(point, root, layers / str(number))
    mount("-t", "proc", "proc", root / "proc")
    for point in sorted(point for point in mount_points() if _is_below(point, ("/sys",))):
        mount("--bind", point, f"{root}{point}")
        mount("-o", "remount,bind,ro", f"{root}{point}")
    mount("--rbind", "/dev/pts", root / "dev/pts")
    mount("-t", "tmpfs", "-o", "mode=1777", "shm", root / "dev/shm")
    mount("--bind", work / "tmp", root / "tmp")
    mount("--bind", root / "proc/sys", root / "proc/sys")
    mount("-o", "remount,bind,ro", root / "proc/sys")
    checkout = Path(f"{root}{ROOT}")
    checkout.mkdir(parents=True, exist_ok=True)
    mount("--bind", ROOT, checkout)
    place = Path(f"{root}{PLACE}")
    place.mkdir(parents=True, exist_ok=True)
    mount("-t", "tmpfs", "-o", "mode=755", "others", place)
    (work / "moved-in").touch()
    kept = os.open(layers, os.O_RDONLY | os.O_DIRECTORY)
    old = root / "mnt"
    os.chdir(root)
    subprocess.run(["pivot_root", ".", old.relative_to(root)], check=True)
    os.chdir("/")
    subprocess.run(["umount", "--lazy", "/mnt"], check=True)
    return kept


def cover(point: str, root: Path, layer: Path) -> None:
    for part in ("upper", "work"):
        (layer / part).mkdir(parents=True)
    (layer / "point").symlink_to(point)
    shutil.copystat(point, layer / "upper")
    options = f"lowerdir={point},upperdir={layer / 'upper'},workdir={layer / 'work'}"
    try:
        if Path(point).is_dir():
            mount("-t", "overlay", "-o", options, "covered", f"{root}{point}")
        else:
            mount("--bind", "-o", "ro", point, f"{root}{point}")
    except subprocess.CalledProcessError:
        if point == "/":
            raise
        # Not every file system can be covered, such as what FUSE shows: there the command finds nothing.


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True)


def mount_points() -> set[str]:
    found = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return {point.encode().decode("unicode_escape") for point in found}


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == one or path.startswith(f"{one}/") for one in folders)


def network() -> None:
    """A loopback, with an address beside 127.0.0.1: without it nothing is resolved, and Slurm ends."""
    with socket.socket() as any_socket:
        up = struct.pack("16sH14s", b"lo", 0x1 | 0x40, b"")  # IFF_UP, IFF_RUNNING
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS
        # SIOCSIFADDR, SIOCSIFNETMASK: of that address alone, or its whole network would be this machine's.
        for request, value in ((0x8916, "192.0.2.17"), (0x891C, "255.255.255.255")):
            address = struct.pack("16sHH4s8s", b"lo:0", socket.AF_INET, 0, socket.inet_aton(value), b"")
            fcntl.ioctl(any_socket, request, address)


def run(command: Sequence[str]) -> int:
    """Its exit status. Whatever loses its parent meanwhile becomes a child of ours."""
    child = subprocess.Popen(command, cwd=ROOT, env=os.environ | ENVIRON, umask=0o077)
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode if child.returncode >= 0 else 128 - child.returncode


# --- looking round afterwards ---


def left_running(others: Others) -> Iterator[str]:
    theirs = set[int]().union(*(descendants(pid) for pid in others.processes.values()))
    deadline = time.monotonic() + ENDING_S
    while True:
        reap()
        left = descendants(1) - theirs - {1}
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    for pid in sorted(left):
        yield f"left running: {describe(pid)}"


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def written(layers: int) -> Seen:
    """All that was written anywhere, by the path that it has on the machine."""
    found: Seen = {}
    for layer in Path(f"/proc/self/fd/{layers}").glob("[0-9]*"):
        point = os.readlink(layer / "point").rstrip("/")
        found |= below(layer / "upper", point)
    for folder in ("/tmp", "/dev/shm"):
        found |= below(Path(folder), folder)
    return found


#: PostgreSQL touches its socket and the lock of it every 58 minutes, so that no cleaner of /tmp removes them.
_TOUCHED = ".s.PGSQL."


def below(folder: Path, point: str) -> Seen:
    found: Seen = {}
    for top, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(top, name)
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            at = f"{point}/{path.relative_to(folder)}"
            if at == str(ROOT):
                folders.remove(name)  # the checkout is the real one
                continue
            found[at] = (
                status.st_mode,
                status.st_uid,
                status.st_gid,
                status.st_rdev,
                status.st_size,
                0 if name.startswith(_TOUCHED) else status.st_mtime_ns,
            )
    return found


def changes(before: Seen, after: Seen, known: Callable[[str], bool]) -> Iterator[str]:
    """What was done, by path; of a new folder not what lies in it. `known`: whether the machine has it.

    Folders for temporary files of all users (sticky, like /var/tmp) are there to be used: what is left
    counts.
    """
    other = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    new = {path for path in after if path not in before and not known(path)}
    for path in other:
        if any(fnmatchcase(path, one) or fnmatchcase(path, f"{one}/*") for one in ALLOWED):
            continue
        mode, device = (after[path][0], after[path][3]) if path in after else (0, 0)
        if path in new:
            if str(Path(path).parent) not in new:
                held = [one.removeprefix(f"{path}/") for one in other if one.startswith(f"{path}/")]
                yield f"left: {path}" + (f", with {', '.join(held[:5])}" if held else "")
        elif path not in after or (stat.S_ISCHR(mode) and device == 0):  # so an overlay notes it
            yield f"removed: {path}"
        elif not stat.S_ISDIR(mode):
            yield f"changed: {path}"
        elif not mode & stat.S_ISVTX and not any(one.startswith(f"{path}/") for one in other):
            yield f"changed: {path}, where something was made and removed"


def system_v() -> set[str]:
    """Shared memory, semaphores and queues outlive the processes that made them: kind, key and number."""
    return {
        f"{kind} {' '.join(line.split()[:2])}"
        for kind in ("shm", "sem", "msg")
        for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        sys.exit(inside(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(main(sys.argv[1:]))
