"""A worker that may change nothing reads Slurm, and no change reaches it: whatever call, whatever adapter."""

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from healer.adapters.slurm.withheld import CHANGES, ReadOnlyScheduler
from healer.ports.scheduling import NotAvailable, Scheduler, SlurmReads
from healer.sim.sim_clock import SimClock
from healer.sim.sim_slurm import SimScheduler


class _Counted:
    """A simulated Slurm that records which calls reach it."""

    name = "cli"

    def __init__(self) -> None:
        self._slurm = SimScheduler("pod1", SimClock(datetime(2026, 11, 20, 9, 0, tzinfo=UTC)), 4)
        self.reached: list[str] = []

    def __getattr__(self, call: str) -> Callable[..., Any]:
        def ask(*given: Any, **named: Any) -> Any:
            self.reached.append(call)
            return getattr(self._slurm, call)(*given, **named)

        return ask


def _changes() -> list[str]:
    """The methods that Scheduler adds to SlurmReads."""
    both = {name for name, _ in inspect.getmembers(Scheduler, inspect.isfunction)}
    return sorted(name for name in both - set(dir(SlurmReads)) if not name.startswith("_"))


def test_every_change_is_withheld() -> None:
    assert sorted(CHANGES) == _changes()


@pytest.mark.parametrize("call", _changes())
def test_no_change_reaches_slurm(call: str) -> None:
    slurm = _Counted()
    given = list(inspect.signature(getattr(Scheduler, call)).parameters.values())[1:]
    arguments = ["gpu0001" for one in given if one.default is inspect.Parameter.empty]
    with pytest.raises(NotAvailable, match="read-only"):
        getattr(ReadOnlyScheduler([cast(Any, slurm)]), call)(*arguments)
    assert slurm.reached == []


def test_adapter_announces_beforehand_what_it_cannot_do() -> None:
    slurm = ReadOnlyScheduler([cast(Any, _Counted())])
    assert slurm.snapshot().nodes.keys() == {"gpu0001", "gpu0002", "gpu0003", "gpu0004"}
    assert slurm.node("gpu0002").name == "gpu0002"
    assert slurm.unavailable().keys() >= CHANGES
