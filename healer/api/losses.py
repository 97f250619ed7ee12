"""What a process did not store, summed up between two writes, and told to /metrics at once."""

from collections.abc import Callable
from datetime import datetime

import msgspec

from healer.api.metrics import LOST
from healer.api.summed import Summed
from healer.model import Loss, LossReason
from healer.ports.signal_stores import LossBook

#: Kinds of losses that are counted apart between two writes; tokens have few names, so this is never met.
KINDS = 2000


class Losses(Summed[tuple[str, str, LossReason, str], Loss]):
    """Thread-safe. `add` never raises and never asks the database."""

    def __init__(self, book: LossBook, now: Callable[[], datetime]) -> None:
        super().__init__(lambda counted: book.add(list(counted.values())), _joined)
        self._now = now

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
            one = Loss(
                cluster=cluster,
                source=source,
                reason=reason,
                who=key[3],
                count=count,
                first_seen=now,
                last_seen=now,
                example=example,
            )
            self._count(key, one)


def _joined(earlier: Loss, later: Loss) -> Loss:
    return msgspec.structs.replace(
        later,
        count=earlier.count + later.count,
        first_seen=earlier.first_seen,
        example=later.example or earlier.example,
    )
