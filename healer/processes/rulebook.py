"""The rules in force, read anew when their files change. Only a wholly valid set takes their place."""

import os
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

#: Files are looked at no more often than this.
LOOK_EVERY_S = 1.0

#: (path, time in ns, bytes) of each file.
Stamp = tuple[tuple[str, int, int], ...]


class Rulebook:
    """Callable: the rules of now. `problem` says why changed files were not taken, empty when all is well.

    `load(folder, prove)` reads them; to prove is to run detection rules on their cases, which takes a second
    or two. The first load proves nothing and raises RulesInvalid: a process starts at once, and never without
    rules. Who detects with them calls `prove` first; changed files are always proven, in a thread of their
    own: whoever asks meanwhile gets the old set at once.
    """

    def __init__(self, folder: Path, load: Callable[[Path, bool], Ruleset]) -> None:
        self.folder, self._load = folder, load
        self.problem = ""
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._looked = time.monotonic()
        self._rules = load(folder, False)
        #: When the rules in force were taken.
        self.since = datetime.now(UTC)

    def __call__(self) -> Ruleset:
        if time.monotonic() - self._looked >= LOOK_EVERY_S and self._lock.acquire(blocking=False):
            # Held until a changed set is proven: one at a time, and what changes meanwhile is seen after it.
            aside = False
            try:
                aside = self._changed()
            finally:
                if not aside:
                    self._lock.release()
        return self._rules

    def prove(self) -> bool:
        """Whether the rules do on their cases what the cases say; if not, `problem` tells."""
        try:
            self._load(self.folder, True)
        except RulesInvalid as error:
            self.problem = str(error)
            log.error("the detection rules do not do what their cases say", problem=self.problem)
            return False
        return True

    def _changed(self) -> bool:
        """Whether files changed; then a thread reads them, and ends what the lock is held for."""
        if time.monotonic() - self._looked < LOOK_EVERY_S:
            return False  # another thread has just looked
        self._looked = time.monotonic()
        stamp = self._look()
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
            self._stamp, self._rules, self.problem = stamp, rules, ""
            self.since = datetime.now(UTC)
            log.info("rules reloaded", version=rules.version)
        finally:
            self._lock.release()

    def _refused(self, error: Exception) -> None:
        self.problem = str(error)
        log.error("changed rules are not valid, the old set stays", problem=self.problem)

    def _look(self) -> Stamp:
        return tuple(sorted(_files(self.folder)))


def _files(folder: str | Path) -> Iterator[tuple[str, int, int]]:
    """What the stamp holds of each file below. Each process asks each second: a file costs one system call
    and no Path. What goes meanwhile is gone."""
    with suppress(OSError), os.scandir(folder) as found:
        for one in found:
            if one.is_dir(follow_symlinks=False):
                yield from _files(one.path)
            elif one.name.endswith((".yaml", ".sh")):
                with suppress(OSError):
                    told = one.stat()
                    yield one.path, told.st_mtime_ns, told.st_size
