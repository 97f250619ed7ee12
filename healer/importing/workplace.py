"""What an import has done so far, in a folder next to its output, so that an interrupted one continues.

A source that is read leaves what it brought; one that is being read leaves its reader from time to time. Both
are pickles, so the folder is this user's alone, and one of another user is refused.
"""

import errno
import fcntl
import io
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from healer.text import say

#: Between two states of a source on disk: what a killed import reads again.
STATE_EVERY_S = 30.0


class Workplace:
    """Sources that were read, and states of those that were being read, by number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def finished(self, source: int) -> Any:
        """What this source brought; None: it is not read yet."""
        return self._load(self._path(source, "read"), {})

    def finish(self, source: int, found: object) -> None:
        self._save(self._path(source, "read"), found, {})
        self._path(source, "state").unlink(missing_ok=True)

    def state(self, source: int, shared: Mapping[str, object]) -> Any:
        """The last state of this source; None: it begins. `shared`: what every reader has, by name."""
        return self._load(self._path(source, "state"), shared)

    def keeper(self, source: int, shared: Mapping[str, object]) -> Callable[[Callable[[], object]], None]:
        """Asks for a state and keeps it, now and then."""
        kept_s = time.monotonic()

        def keep(state: Callable[[], object]) -> None:
            nonlocal kept_s
            if time.monotonic() - kept_s >= STATE_EVERY_S:
                self._save(self._path(source, "state"), state(), shared)
                kept_s = time.monotonic()

        return keep

    def _path(self, source: int, what: str) -> Path:
        return self.folder / f"{source:06d}.{what}"

    def _load(self, path: Path, shared: Mapping[str, object]) -> Any:
        if not path.exists():
            return None
        with path.open("rb") as file:
            return _Unpickler(file, shared).load()

    def _save(self, path: Path, what: object, shared: Mapping[str, object]) -> None:
        """Whole or not at all."""
        packed = io.BytesIO()
        _Pickler(packed, shared).dump(what)
        write_whole(path, packed.getvalue())


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, shared: Mapping[str, object]) -> None:
        super().__init__(file)
        self._names = {id(each): name for name, each in shared.items()}

    def persistent_id(self, obj: Any, /) -> str | None:
        return self._names.get(id(obj))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, shared: Mapping[str, object]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: Any, /) -> object:
        return self._shared[pid]


def write_whole(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f"{path.name}~")
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def place_of(output: Path) -> Path:
    return output.resolve().parent / f".import-{output.name}"


@contextmanager
def workplace(output: Path, plan: bytes) -> Iterator[Workplace]:
    """The same `plan` is the same import; what another left is removed. The folder goes at the end, unless
    something interrupts. Raises OSError, also while another import is at it."""
    folder = place_of(output)
    folder.mkdir(mode=0o700, exist_ok=True)
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(at)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(errno.EPERM, say("importing.other_user"), str(folder))
        try:
            fcntl.flock(at, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(errno.EBUSY, say("importing.other_import"), str(output)) from None
        if not (folder / "plan").exists() or (folder / "plan").read_bytes() != plan:
            for each in folder.iterdir():
                each.unlink()
            write_whole(folder / "plan", plan)
        yield Workplace(folder)
        shutil.rmtree(folder)
    finally:
        os.close(at)
