"""What is going on at a node anyway, and what it says of the faults that are told meanwhile."""

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from healer.model.words import Cause, Severity

#: What begins with a moment explains nothing for longer than this.
CONTEXT_LONGEST = timedelta(hours=1)


class ContextKind(StrEnum):
    maintenance = "maintenance"  # Slurm's reservation or state, or a window of guards.yaml
    rebooting = "rebooting"  # a reboot was issued, or the node comes up
    power_saving = "power_saving"
    booted = "booted"  # its first minutes after a boot
    new_driver = "new_driver"  # another driver version than before
    drained = "drained"  # a person has taken it out
    job_start = "job_start"  # all that works there has only begun


class NodeContext(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What goes on at a node now, and what its faults are judged by meanwhile. `text` is for people; `since`
    where it begins with a moment, `until` where its end is known."""

    kind: ContextKind
    text: str
    since: datetime | None = None
    until: datetime | None = None


class ContextRule(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `rules/context.yaml`.

    `faults` and `but` are globs. While `when` holds, such a finding is not told (it is told again if it still
    stands afterwards); with `severity` it is told, no more urgent than that, and with `cause`. `for_min`
    bounds the contexts that begin with a moment: a boot, a new driver, the start of a job.
    """

    name: str
    when: ContextKind
    faults: tuple[str, ...]
    source: str
    but: tuple[str, ...] = ()
    for_min: float = 0.0
    severity: Severity | None = None
    cause: Cause | None = None

    @property
    def lasts(self) -> timedelta:
        return timedelta(minutes=self.for_min)

    @property
    def tells(self) -> bool:
        return self.severity is not None
