"""What a process did not store, summed up between two writes, and told to /metrics at once."""

import threading
from collections.abc import Callable
from datetime import datetime

import msgspec

from healer.api.metrics import LOST
from healer.model import Loss, LossReason
from healer.ports import LossBook

#: Kinds of losses that are counted apart between two writes; tokens have few names, so this is never met.
KINDS = 2000


class Losses:
    """Thread-safe. `add` never raises and never asks the database."""

    def __init__(self, book: LossBook, now: Callable[[], datetime]) -> None:
        self._book, self._now = book, now
        self._counted: dict[tuple[str, str, LossReason, str], Loss] = {}
        self._lock = threading.Lock()

    def add(
        self,
        source: str,
        reason: LossReason,
        count: int = 1,
        *,
        cluster: str = "",
        who: str = "",
        example: str = "",
    ) -> None:
        """`count` entries of `source` were lost."""
        if count <= 0:
            return
        LOST.labels(source, reason.value).inc(count)
        now = self._now()
        with self._lock:
            key = (cluster, source, reason, who)
            if key not in self._counted and len(self._counted) >= KINDS:
                key = (cluster, source, reason, "")
            before = self._counted.get(key)
            self._counted[key] = Loss(
                cluster=cluster,
                source=source,
                reason=reason,
                who=key[3],
                count=count + (before.count if before else 0),
                first_seen=before.first_seen if before else now,
                last_seen=now,
                example=example or (before.example if before else ""),
            )

    def flush(self) -> None:
        """Writes what was counted; raises Unavailable, and keeps it for the next time."""
        with self._lock:
            counted, self._counted = self._counted, {}
        if not counted:
            return
        try:
            self._book.add(list(counted.values()))
        except Exception:
            with self._lock:
                for key, one in counted.items():
                    later = self._counted.get(key)
                    count = one.count + (later.count if later else 0)
                    self._counted[key] = msgspec.structs.replace(
                        later or one, first_seen=one.first_seen, count=count
                    )
            raise
