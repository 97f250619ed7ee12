"""The rules in force, read anew when their files change. Only a wholly valid set takes their place."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from healer.model import Ruleset
from healer.ruleset import RulesInvalid

log = structlog.get_logger()

#: Files are looked at no more often than this.
LOOK_EVERY_S = 1.0


class Rulebook:
    """Callable: the rules of now. `problem` says why changed files were not taken, empty when all is well.

    The first load raises RulesInvalid: a process never starts without rules.
    """

    def __init__(self, folder: Path, load: Callable[[Path], Ruleset]) -> None:
        self.folder, self._load = folder, load
        self.problem = ""
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._looked = time.monotonic()
        self._rules = load(folder)

    def __call__(self) -> Ruleset:
        due = time.monotonic() - self._looked >= LOOK_EVERY_S
        # Whoever comes meanwhile goes on with the old set: proving a new one takes a second or two.
        if due and self._lock.acquire(blocking=False):
            try:
                self._refresh()
            finally:
                self._lock.release()
        return self._rules

    def _refresh(self) -> None:
        if time.monotonic() - self._looked < LOOK_EVERY_S:
            return  # another thread has just looked
        self._looked = time.monotonic()
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._rules = self._load(self.folder)
        except RulesInvalid as error:
            self.problem = str(error)
            log.error("changed rules are not valid, the old set stays", problem=self.problem)
        else:
            self.problem = ""
            log.info("rules reloaded", version=self._rules.version)

    def _look(self) -> tuple[tuple[str, int, int], ...]:
        files = sorted(self.folder.rglob("*.yaml"))
        return tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files)
