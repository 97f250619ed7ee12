"""Sorts more than memory holds: sorted runs on disk, merged at the end.

A line is a key of fixed width and one line of JSON, so bytes compare as times do.
"""

import heapq
import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

#: Held in memory before a run is written, and runs that are open at once.
BUFFER_BYTES, OPEN_RUNS = 16 << 20, 64
#: What Python needs for one line on top of its bytes.
_OBJECT_BYTES = 64
#: Width of a key: the time in µs since 1970, the source's number, the line's number in it.
KEY = 18 + 6 + 12


class SortedRuns:
    """Takes lines of one source in any order and writes sorted runs into `folder`."""

    def __init__(self, folder: Path, source: int) -> None:
        self._folder, self._source = folder, source
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._count = 0
        self.paths: list[Path] = []

    def add(self, at_us: int, payload: bytes) -> None:
        """`payload` is one line without its end."""
        self._count += 1
        line = b"%018d%06d%012d%b\n" % (max(0, at_us), self._source, self._count, payload)
        self._held.append(line)
        self._held_bytes += len(line) + _OBJECT_BYTES
        if self._held_bytes >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._held:
            return
        self._held.sort()
        path = self._folder / f"{self._source:06d}-{len(self.paths):06d}"
        with path.open("wb") as file:
            file.writelines(self._held)
            file.flush()
            os.fsync(file.fileno())
        self.paths.append(path)
        self._held, self._held_bytes = [], 0


def merged(paths: Iterable[Path], folder: Path) -> Iterator[bytes]:
    """Lines of all runs in order. Many runs are merged in rounds, so few files are open at once."""
    left = list(paths)
    for number in itertools.count():
        if len(left) <= OPEN_RUNS:
            break
        together, left = left[:OPEN_RUNS], left[OPEN_RUNS:]
        path = folder / f"merged-{number:06d}"
        if not path.exists():  # of an import that was interrupted
            unfinished = path.with_name(f"{path.name}~")
            with unfinished.open("wb") as file:
                file.writelines(_merged(together))
            unfinished.replace(path)
        for each in together:
            each.unlink(missing_ok=True)
        left.append(path)
    yield from _merged(left)


def _merged(paths: Iterable[Path]) -> Iterator[bytes]:
    with ExitStack() as files:
        yield from heapq.merge(*(files.enter_context(path.open("rb")) for path in paths))
