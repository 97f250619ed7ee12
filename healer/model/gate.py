"""What the one gate knows when it judges a proposal. A value: guards read it and nothing else."""

from bisect import bisect_right
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property

import msgspec

from healer.model.slurm import SlurmSnapshot
from healer.model.trials import Trial
from healer.model.words import BreakerState, FaultClass, Guard, Mode, Remedy, Severity


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """One node taken out by us. Lasts until the node returns or its fault is proven.

    `unusable`: granted past the slot caps by law 2 (it does not use up a slot of the caps).
    """

    cluster: str
    node: str
    incident: str | None
    run: str
    granted_at: datetime
    unusable: bool = False
    #: When our drain was read back; a node without it later was resumed by a person.
    drained_at: datetime | None = None


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """`scope` is one of all, cluster, partition, node, rule, playbook; `name` what it names (all: "")."""

    id: str
    scope: str
    name: str
    by: str
    reason: str
    since: datetime
    until: datetime | None = None
    cluster: str | None = None


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """One distinct root of the storm count."""

    node: str
    rule: str
    at: datetime
    incident: str
    driver: str = ""
    switch: str = ""


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    state: BreakerState = BreakerState.closed
    since: datetime | None = None
    why: str = ""
    roots: tuple[Root, ...] = ()
    reset_by: str | None = None
    reset_reason: str | None = None
    #: The run allowed through while half-open.
    canary: str | None = None


class RequeueUse(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    restarts: int
    at: datetime
    incident: str | None = None


class RemedyUse(msgspec.Struct, frozen=True, kw_only=True):
    """A remedy tried on a node: for `repeat` and `reboot_cap`."""

    node: str
    remedy: Remedy
    rule: str
    at: datetime
    incident: str | None = None


class Veto(msgspec.Struct, frozen=True, kw_only=True):
    """A person resumed our drain: healer leaves the node alone until then (law 5)."""

    node: str
    by: str
    at: datetime
    until: datetime


class Urgency(msgspec.Struct, frozen=True, kw_only=True):
    """Who goes first when several wait for the same capacity. `size`: nodes of the largest job hit."""

    severity: Severity
    size: int
    since: datetime

    @property
    def order(self) -> tuple[str, int, datetime]:
        """Sorts the most urgent first."""
        return (self.severity, -self.size, self.since)


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A run that `guard` holds back. `jobs` are those that its incident hit."""

    run: str
    guard: Guard
    severity: Severity
    since: datetime
    node: str | None = None
    jobs: tuple[str, ...] = ()


class Permit(msgspec.Struct, frozen=True, kw_only=True):
    """The gate let a hook fail, by which Slurm drains the node: that drain is ours, up to `until`.

    `id` is the hook's own report; `job` and `restarts` the life of the job for which a prolog ran. Slurm
    holds that job, and we release it. `incident` and `run` None: the hook was not answered, and failed by the
    site's own list of certain faults; `check` names it.
    """

    id: str
    cluster: str
    node: str
    hook: str
    at: datetime
    until: datetime
    incident: str | None = None
    run: str | None = None
    job: str | None = None
    restarts: int | None = None
    check: str = ""


class HookAsk(msgspec.Struct, frozen=True, kw_only=True):
    """One hook that waits for its answer. `id` is its report's: the same when it runs twice."""

    id: str
    cluster: str
    node: str
    hook: str
    job: str | None = None
    restarts: int | None = None


class Maintenance(msgspec.Struct, frozen=True, kw_only=True):
    """Planned work, from rules/guards.yaml. Unset bounds are open."""

    nodes: tuple[str, ...]
    why: str
    since: datetime | None = None
    until: datetime | None = None


class Sweeps(msgspec.Struct, frozen=True, kw_only=True):
    """What the guard over sweeps looks at beside the rest; read only where a sweep is asked for.

    `running`: node -> the run that sweeps it now, or got stuck at it. `ailing`: node -> the worst class of
    the hardware faults that are open there. `tested`: node -> when it last passed or failed a test, `begun`:
    when its last sweep began; both as far back as two turns.
    """

    running: dict[str, str] = {}
    ailing: dict[str, FaultClass] = {}
    tested: dict[str, datetime] = {}
    begun: dict[str, datetime] = {}


class GateFacts(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Everything a guard may look at. `snapshot` is Slurm's latest picture, None before the first.

    `slots` are those held now; `granted` the moments of all slots granted in the last hour (not those by
    law 2); `requeues` the last 24 h; `remedies` the last 24 h; `modes` rule -> mode set while running;
    `actions` outcome (True = worked) of the last ten removing steps, oldest first; `running` node -> run.
    """

    cluster: str
    snapshot: SlurmSnapshot | None
    slots: tuple[Slot, ...] = ()
    granted: tuple[datetime, ...] = ()
    pauses: tuple[Pause, ...] = ()
    breaker: Breaker
    requeues: tuple[RequeueUse, ...] = ()
    remedies: tuple[RemedyUse, ...] = ()
    vetoes: tuple[Veto, ...] = ()
    modes: dict[str, Mode] = {}
    actions: tuple[bool, ...] = ()
    running: dict[str, str] = {}
    #: Of the last 24 h.
    permits: tuple[Permit, ...] = ()
    #: Runs that wait for capacity.
    waiting: tuple[Waiting, ...] = ()
    #: New or changed rules and playbooks that have runs left.
    trials: tuple[Trial, ...] = ()
    #: None: not read, because nobody asked for a sweep.
    sweeps: Sweeps | None = None

    @cached_property
    def held(self) -> Mapping[str, Slot]:
        """Node -> its slot; each guard asks for it, of a thousand."""
        return {slot.node: slot for slot in self.slots}

    @cached_property
    def counted(self) -> frozenset[str]:
        """Nodes whose slot counts against the caps: those granted by law 2 do not."""
        return frozenset(slot.node for slot in self.slots if not slot.unusable)

    @cached_property
    def _grants(self) -> tuple[datetime, ...]:
        return tuple(sorted(self.granted))

    def granted_since(self, moment: datetime) -> tuple[datetime, ...]:
        """Of `granted` those later than that, oldest first."""
        return self._grants[bisect_right(self._grants, moment) :]


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One cap for people. For the floor `used` is what stands in service and `limit` the least."""

    guard: Guard
    name: str
    used: int
    limit: int
    nodes: int
