"""Slurm for a worker that may change nothing: HEALER_READ_ONLY."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from healer.adapters.slurm.preferred import PreferredScheduler
from healer.model import SlurmCall
from healer.ports.scheduling import NotAvailable, Scheduler, SchedulerError, SlurmReads
from healer.text import say

T = TypeVar("T")

#: Every call that changes something.
CHANGES = frozenset(call for call in SlurmCall if not hasattr(SlurmReads, call))
WHY = say("slurm.read_only")


class ReadOnlyScheduler(PreferredScheduler):
    """Reads as the adapters do. No change reaches any of them: each is NotAvailable."""

    def unavailable(self) -> Mapping[SlurmCall, str]:
        return {**super().unavailable(), **dict.fromkeys(CHANGES, WHY)}

    def first(
        self, call: SlurmCall, ask: Callable[[Scheduler], T], *, write: bool = False
    ) -> tuple[int, T, dict[int, SchedulerError]]:
        if write or call in CHANGES:
            raise NotAvailable(call, WHY)
        return super().first(call, ask)
