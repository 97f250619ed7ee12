"""Of each host in tests/support/ha.py a disk that can be full or slow, and a clock that can be stepped."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SOURCE = Path(__file__).with_name("stepped_clock.c")
#: Of each disk; its file takes only what is written.
_SIZE = 3 << 30


def _output(*words: str | Path) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


class Disk:
    """A file system in a file at `root`. It can be slow for the programs that were started by `slowed`."""

    def __init__(self, root: Path, groups: Path) -> None:
        self.root, self._group, self._filler = root, groups / root.name, root / "filler"
        image = root.with_suffix(".img")
        with image.open("wb") as file:
            file.truncate(_SIZE)
        _output("mkfs.ext4", "-q", "-m", "0", image)
        self._device = _output("losetup", "--find", "--show", image)
        root.mkdir()
        _output("mount", self._device, root)
        root.chmod(0o755)
        self._group.mkdir()

    def slowed(self, *command: str | Path) -> list[str]:
        """The command, as one of those whose writes `slow` limits."""
        join = f'echo $$ >"{self._group}/cgroup.procs" && exec "$0" "$@"'
        return ["sh", "-c", join, *map(str, command)]

    def slow(self, writes_per_s: int) -> None:
        """0: without limit."""
        number = os.stat(self._device).st_rdev
        limit = f"{os.major(number)}:{os.minor(number)} {writes_per_s}"
        (self._group / "blkio.throttle.write_iops_device").write_text(limit)

    def fill(self) -> None:
        """Not a byte is left; programs compete for what remains meanwhile."""
        with self._filler.open("wb", buffering=0) as file:
            for size in (16 << 20, 1 << 20, 4096, 1):
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)

    def empty(self) -> None:
        self._filler.unlink(missing_ok=True)

    def remove(self) -> None:
        self.slow(0)
        _output("umount", "--lazy", self.root)
        _output("losetup", "--detach", self._device)
        for _ in range(100):  # a process that was killed is in its group for a moment more
            with suppress(OSError):
                self._group.rmdir()
                return
            time.sleep(0.1)


@contextmanager
def disks(folder: Path, names: tuple[str, ...]) -> Iterator[list[Disk]]:
    """A disk for each name, mounted in `folder`."""
    groups = folder / "blkio"
    groups.mkdir()
    _output("mount", "-t", "cgroup", "-o", "blkio", "blkio", groups)
    ours = groups / folder.name
    ours.mkdir()
    made: list[Disk] = []
    try:
        for name in names:
            made.append(Disk(folder / name, ours))
        yield made
    finally:
        for disk in made:
            disk.remove()
        ours.rmdir()
        _output("umount", groups)


class Clock:
    """The wall clock of the programs started with `environ`, but not of those in Go: they ask the kernel."""

    def __init__(self, root: Path, library: Path) -> None:
        self._file = root / "clock"
        self.step(0)
        self._file.chmod(0o644)
        self.environ = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(self._file)}

    def step(self, ahead_s: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT  # in place: the programs have it mapped
        with open(os.open(self._file, flags), "wb") as file:
            file.write(ahead_s.to_bytes(8, "little", signed=True))


def build_clock(folder: Path) -> Path:
    library = folder / "stepped_clock.so"
    _output("cc", "-O2", "-shared", "-fPIC", "-o", library, _SOURCE)
    library.chmod(0o755)
    return library
