"""The rules in force, read again when their files change. Only a wholly valid set takes their place.

The last proven set is kept on disk: a process that starts while the files are broken begins with it.
"""

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import structlog

from healer.model import Ruleset
from healer.rulebook.ruleset import RulesInvalid

log = structlog.get_logger()

#: Files are checked no more often than this.
LOOK_EVERY_S = 1.0

#: (path, time in ns, bytes) of each file.
Stamp = tuple[tuple[str, int, int], ...]


class Rulebook:
    """Callable: the rules of now. `problem` says why changed files were not taken, empty when all is well.

    `load(folder, prove)` reads them; to prove is to run detection rules on their cases, which takes a second
    or two. The first load proves nothing: a process starts at once, and never without rules. It raises
    RulesInvalid where neither the files nor the set in `kept` can be used. A detector calls `prove` before it
    uses them; changed files are always proven, in a thread of their own, while callers get the old set at
    once.
    """

    def __init__(
        self, folder: Path, load: Callable[[Path, bool], Ruleset], kept: "KeptRules | None" = None
    ) -> None:
        self.folder, self._load, self._kept = folder, load, kept
        self.problem = ""
        self._lock = threading.Lock()
        self._stamp = self._current_stamp()
        self._looked = time.monotonic()
        try:
            self._rules = load(folder, False)
        except RulesInvalid as error:
            if not folder.is_dir() or (last := self._last_proven(error)) is None:
                raise  # a folder that is not there is a wrong setting, and no broken file
            self._rules = last
        #: When the rules in force were taken.
        self.since = datetime.now(UTC)

    def __call__(self) -> Ruleset:
        if time.monotonic() - self._looked >= LOOK_EVERY_S and self._lock.acquire(blocking=False):
            # Held until a changed set is proven: one at a time, and what changes meanwhile is seen after it.
            is_reading = False
            try:
                is_reading = self._changed()
            finally:
                if not is_reading:
                    self._lock.release()
        return self._rules

    def prove(self) -> bool:
        """Whether the rules in force pass their cases: of the files, else of the last proven set. `problem`
        says what is wrong with the files."""
        stamp = self._current_stamp()
        try:
            proven = self._load(self.folder, True)
        except RulesInvalid as error:
            self.problem = str(error)
            log.error("detection rules fail their own cases", problem=self.problem)
            last = self._last_proven(error, prove=True)
            if last is not None:
                self._rules = last
            return last is not None
        self._keep(proven, stamp)
        return True

    def _keep(self, proven: Ruleset, stamp: Stamp) -> None:
        """`stamp`: that of the files before they were read. Anything changed since is not what was proven."""
        if self._kept is not None:
            self._kept.put(self.folder, proven.version, lambda: self._current_stamp() == stamp)

    def _last_proven(self, error: RulesInvalid, *, prove: bool = False) -> Ruleset | None:
        """The kept set; None if there is none, or if this version of healer refuses it."""
        folder = self._kept.folder() if self._kept is not None else None
        if folder is None:
            return None
        try:
            rules = self._load(folder, prove)
        except RulesInvalid:
            return None
        self.problem = str(error)
        log.error("rules invalid, using the last proven set", problem=self.problem)
        return rules

    def _changed(self) -> bool:
        """Whether files changed; then a thread reads them, and releases the lock at the end."""
        if time.monotonic() - self._looked < LOOK_EVERY_S:
            return False  # another thread has just looked
        self._looked = time.monotonic()
        stamp = self._current_stamp()
        if stamp == self._stamp:
            return False
        threading.Thread(target=self._take, args=(stamp,), name="rules", daemon=True).start()
        return True

    def _take(self, stamp: Stamp) -> None:
        try:
            rules = self._load(self.folder, True)
        except RulesInvalid as error:
            self._stamp = stamp
            self._refused(error)
        except Exception as error:  # a file that was being replaced, perhaps: it is read again
            self._refused(error)
        else:
            if self._current_stamp() != stamp:
                # A copy half in place may be valid, and lack the file with the protected nodes.
                log.info("rules changed while they were read, reading them again")
                return
            self._stamp, self._rules, self.problem = stamp, rules, ""
            self._keep(rules, stamp)
            self.since = datetime.now(UTC)
            log.info("rules reloaded", version=rules.version)
        finally:
            self._lock.release()

    def _refused(self, error: Exception) -> None:
        self.problem = str(error)
        log.error("changed rules invalid, keeping the old set", problem=self.problem)

    def _current_stamp(self) -> Stamp:
        return tuple(sorted(_files(self.folder)))


class KeptRules:
    """The last proven rules, in `base`: a folder for each version, and the name of the newest in `current`.

    Several processes may put the same version at once. A disk that takes nothing costs no more than the copy.
    """

    def __init__(self, base: Path) -> None:
        self._base, self._current = base, base / "current"

    def folder(self) -> Path | None:
        with suppress(OSError):
            folder = self._base / self._current.read_text().strip()
            return folder if folder != self._base and folder.is_dir() else None
        return None

    def put(self, rules: Path, version: str, is_unchanged: Callable[[], bool]) -> None:
        target, before = self._base / version, self.folder()
        if before == target:
            return
        try:
            self._base.mkdir(exist_ok=True)  # but no data directory: one that was removed stays so
            with tempfile.TemporaryDirectory(dir=self._base, ignore_cleanup_errors=True) as new:
                copy = shutil.copytree(rules, Path(new, version), ignore_dangling_symlinks=True)
                if not is_unchanged():
                    return
                if not target.exists():
                    copy.rename(target)
                name = Path(new, "current")
                name.write_text(version)
                name.replace(self._current)
            for entry in self._base.iterdir():
                if entry.is_dir() and entry not in {target, before} and not entry.name.startswith("tmp"):
                    shutil.rmtree(entry, ignore_errors=True)
        except OSError as error:
            log.warning("proven rules not saved", problem=str(error))


def _files(folder: str | Path, *, linked: bool = False) -> Iterator[tuple[str, int, int]]:
    """What the stamp holds of each file below. Each process asks each second: a file costs one system call
    and no Path. What goes meanwhile is gone. A folder that is `linked` may be of others: only its files."""
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            if entry.name.endswith((".yaml", ".sh")):
                with suppress(OSError):
                    status = entry.stat()
                    yield entry.path, status.st_mtime_ns, status.st_size
            elif not linked and (entry.is_dir(follow_symlinks=False) or entry.is_symlink()):
                yield from _files(entry.path, linked=entry.is_symlink())
