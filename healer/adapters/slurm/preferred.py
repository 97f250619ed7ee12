"""One Slurm through several adapters, with the calls that change it: for the worker alone.

A write that may have reached Slurm is never repeated with another adapter: the caller reads back.
"""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from healer.adapters.slurm import process
from healer.adapters.slurm.preferred_reads import PreferredReads
from healer.model import SlurmCall
from healer.ports.scheduling import Scheduler

#: The limit of a write over all adapters, less than a lease leaves for one call.
WRITE_S = 7.0

P = ParamSpec("P")
T = TypeVar("T")


def _write(
    method: Callable[Concatenate[Scheduler, P], T],
) -> Callable[Concatenate["PreferredScheduler", P], T]:
    """Calls the same method of the first adapter that offers it, within `WRITE_S`."""
    call = SlurmCall(method.__name__)

    def write(self: "PreferredScheduler", *args: P.args, **kwargs: P.kwargs) -> T:
        with process.within(WRITE_S):
            return self.first(call, lambda slurm: getattr(slurm, call)(*args, **kwargs), write=True)[1]

    return write


# Wide: implements `ports.Scheduler`.
class PreferredScheduler(PreferredReads[Scheduler]):
    """`ports.Scheduler` over other adapters."""

    drain = _write(Scheduler.drain)
    undrain = _write(Scheduler.undrain)
    resume = _write(Scheduler.resume)
    down = _write(Scheduler.down)
    reboot = _write(Scheduler.reboot)
    cancel_reboot = _write(Scheduler.cancel_reboot)
    annotate = _write(Scheduler.annotate)
    reserve = _write(Scheduler.reserve)
    change_reservation = _write(Scheduler.change_reservation)
    unreserve = _write(Scheduler.unreserve)
    shrink = _write(Scheduler.shrink)
    requeue = _write(Scheduler.requeue)
    revive = _write(Scheduler.revive)
    start_now = _write(Scheduler.start_now)
    hold = _write(Scheduler.hold)
    release = _write(Scheduler.release)
    exclude = _write(Scheduler.exclude)
    signal = _write(Scheduler.signal)
    notify = _write(Scheduler.notify)
    remark = _write(Scheduler.remark)
    submit = _write(Scheduler.submit)
    cancel = _write(Scheduler.cancel)
