"""Slurm, with its calls timed for traces: HEALER_TRACES_URL."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from healer.adapters.slurm.preferred import PreferredScheduler
from healer.model import SlurmCall
from healer.ports.scheduling import Scheduler, SchedulerError

T = TypeVar("T")

#: Call, begin and end in nanoseconds since 1970, and Slurm's error if there was one.
Note = Callable[[SlurmCall, int, int, str], None]


class TracedScheduler(PreferredScheduler):
    def __init__(self, adapters: Sequence[Scheduler], note: Note, *, cluster: str | None = None) -> None:
        super().__init__(adapters, cluster=cluster)
        self._note = note

    def first(
        self, call: SlurmCall, ask: Callable[[Scheduler], T], *, write: bool = False
    ) -> tuple[int, T, dict[int, SchedulerError]]:
        begun, failed = time.time_ns(), ""
        try:
            return super().first(call, ask, write=write)
        except SchedulerError as error:
            failed = str(error)
            raise
        finally:
            self._note(call, begun, time.time_ns(), failed)
