"""What is counted in memory and written now and then: nothing of it is lost while the database is away."""

import threading
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Summed(Generic[K, V]):
    """What came since the last write, by key. `_lock` guards `_counted`.

    `write` raises when nothing was written. `join(earlier, later)` is both as one; it may change either.
    """

    def __init__(self, write: Callable[[Mapping[K, V]], None], join: Callable[[V, V], V]) -> None:
        self._write, self._join = write, join
        self._counted: dict[K, V] = {}
        self._lock = threading.Lock()

    def _count(self, key: K, one: V) -> None:
        """Under the lock."""
        before = self._counted.get(key)
        self._counted[key] = one if before is None else self._join(before, one)

    def flush(self) -> None:
        """Writes what was counted; raises what `write` raises, and keeps it for the next time."""
        with self._lock:
            counted, self._counted = self._counted, {}
        if not counted:
            return
        try:
            self._write(counted)
        except Exception:
            with self._lock:
                for key, one in counted.items():
                    later = self._counted.get(key)
                    self._counted[key] = one if later is None else self._join(one, later)
            raise
