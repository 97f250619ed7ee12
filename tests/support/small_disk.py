"""A small file system of its own, and how to fill it. Needs the right to mount, as root has it."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1024 * 1024


@contextmanager
def mounted(folder: Path, size_mib: int) -> Iterator[Path]:
    """A tmpfs of that size on `folder`, which is made."""
    folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    options = f"size={size_mib}m,mode=711"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "healer-test", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def free_bytes(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


@contextmanager
def filled(folder: Path, *, left_bytes: int = 0) -> Iterator[Path]:
    """All room of the file system but `left_bytes` is taken; less is left where others write meanwhile."""
    filler = folder / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            while (rest := free_bytes(folder) - left_bytes) > 0:
                try:
                    file.write(bytes(min(MIB, rest)))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    break  # a server on it took the rest between the two calls
        yield filler
    finally:
        filler.unlink(missing_ok=True)
