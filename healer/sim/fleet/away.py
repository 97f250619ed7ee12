"""Slurm's controller as healer reaches it: it may be away for a while."""

from typing import Any

from healer.ports.slurm import SchedulerUnavailable
from healer.sim.slurm_core import SimScheduler


class Controller:
    """`ports.Scheduler`: the simulated Slurm, or nobody who answers."""

    def __init__(self, slurm: SimScheduler) -> None:
        self._slurm = slurm
        self.away = False

    def __getattr__(self, call: str) -> Any:
        if self.away:
            return _unanswered
        return getattr(self._slurm, call)


def _unanswered(*_args: object, **_fields: object) -> Any:
    raise SchedulerUnavailable("slurmctld does not answer.", sent=False)
