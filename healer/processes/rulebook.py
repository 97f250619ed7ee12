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

    `load(folder, prove)` reads them; to prove is to run detection rules on their cases, which takes a second
    or two. The first load proves nothing and raises RulesInvalid: a process starts at once, and never without
    rules. Who detects with them calls `prove` first; changed files are always proven.
    """

    def __init__(self, folder: Path, load: Callable[[Path, bool], Ruleset]) -> None:
        self.folder, self._load = folder, load
        self.problem = ""
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._looked = time.monotonic()
        self._rules = load(folder, False)

    def __call__(self) -> Ruleset:
        due = time.monotonic() - self._looked >= LOOK_EVERY_S
        # Whoever comes meanwhile goes on with the old set: proving a new one takes a second or two.
        if due and self._lock.acquire(blocking=False):
            try:
                self._refresh()
            finally:
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

    def _refresh(self) -> None:
        if time.monotonic() - self._looked < LOOK_EVERY_S:
            return  # another thread has just looked
        self._looked = time.monotonic()
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._rules = self._load(self.folder, True)
        except RulesInvalid as error:
            self.problem = str(error)
            log.error("changed rules are not valid, the old set stays", problem=self.problem)
        else:
            self.problem = ""
            log.info("rules reloaded", version=self._rules.version)

    def _look(self) -> tuple[tuple[str, int, int], ...]:
        files = sorted([*self.folder.rglob("*.yaml"), *self.folder.rglob("*.sh")])
        return tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files)
