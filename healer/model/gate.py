"""The input of the one gate for judging a proposal. A value: guards read it and nothing else."""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from healer.model.slurm import SlurmJob, SlurmNode, SlurmSnapshot, slurm_kind
from healer.model.vocabulary import BreakerState, FaultClass, Guard, Mode, Remedy, RunState, Severity, Verb
from healer.text import Said, no_words

#: An approved run counts as one of the first ones while it is in one of these states: not if it is stuck,
#: cancelled or undone.
COUNTED = frozenset({RunState.running, RunState.waiting, RunState.done})


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A rule or playbook that is new or changed: `left` more runs of it wait for a person.

    `name` is `rule/NAME` or `playbook/NAME`, `digest` what it says (`Ruleset.texts`), `since` when it was
    first seen to say that.
    """

    name: str
    digest: str
    since: datetime
    left: int


#: Fields of rules and playbooks that only people read, and the mode, which is earned separately.
_WITHOUT_MEANING = frozenset({"mode", "title", "runbook", "source"})


def digest(parts: Iterable[msgspec.Struct | str], *, without: Collection[str] = _WITHOUT_MEANING) -> str:
    """The same for the same meaning: comments, the order of fields and default values do not count, nor do
    the fields `without`. A field added by a later version changes nothing either."""
    values = [part if isinstance(part, str) else _plain_value(part, without) for part in parts]
    return sha256(msgspec.json.encode(values, order="sorted")).hexdigest()[:16]


def _plain_value(value: object, without: Collection[str]) -> object:
    if isinstance(value, Mapping):
        return {str(name): _plain_value(item, without) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(item, without) for item in value]
    if not isinstance(value, msgspec.Struct) or isinstance(value, Mode):
        return value
    return {
        field.name: _plain_value(content, without)
        for field in msgspec.structs.fields(value)
        if field.name not in without
        and (content := getattr(value, field.name)) != field.default
        and content != {}
    }


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """One node taken out of service by healer. Lasts until the node returns or its fault is proven.

    `unusable`: granted despite the slot caps by law 2 (it uses up no slot of the caps).
    """

    cluster: str
    node: str
    incident: str | None
    run: str
    granted_at: datetime
    unusable: bool = False
    #: When healer's drain was read back; a node without it later was resumed by a person.
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
    why: Said = msgspec.field(default_factory=no_words)
    roots: tuple[Root, ...] = ()
    reset_by: str | None = None
    reset_reason: str | None = None
    #: The run allowed through while half-open.
    canary: str | None = None


@lru_cache(maxsize=64)
def storm_size(share: float, nodes: int) -> int:
    """Distinct roots of one fault class in 5 minutes that make a storm (law 3): at least 3, at most 8."""
    return max(3, min(8, math.ceil(Fraction(str(share)) * nodes)))


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


class HookRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One hook that waits for its answer. `id` is its report's: the same if it runs twice."""

    id: str
    cluster: str
    node: str
    hook: str
    job: str | None = None
    restarts: int | None = None


class Permit(HookRequest, frozen=True, kw_only=True):
    """The gate permitted a hook to fail, which makes Slurm drain the node: that drain is healer's, up to
    `until`.

    `id` is the hook's own report; `job` and `restarts`: the life of the job for which a prolog ran. Slurm
    holds that job, and healer releases it. `incident` and `run` None: the hook got no answer, and failed by
    the site's own list of certain faults; `check` names it.
    """

    at: datetime
    until: datetime
    incident: str | None = None
    run: str | None = None
    check: str = ""


class Maintenance(msgspec.Struct, frozen=True, kw_only=True):
    """Planned work, from rules/guards.yaml. Unset bounds are open."""

    nodes: tuple[str, ...]
    why: str
    since: datetime | None = None
    until: datetime | None = None


class Sweeps(msgspec.Struct, frozen=True, kw_only=True):
    """Further input of the sweep guard; loaded only if a sweep is requested.

    `running`: node -> the run that sweeps it now, or got stuck there. `ailing`: node -> the worst class of
    its open hardware faults. `tested`: node -> when it last passed or failed a test, `begun`: when its last
    sweep began; both as far back as two turns.
    """

    running: dict[str, str] = {}
    ailing: dict[str, FaultClass] = {}
    tested: dict[str, datetime] = {}
    begun: dict[str, datetime] = {}


# Wide: the ledger's half of what the guards read.
class LedgerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger knows of a cluster, for the guards.

    `slots` are those held now; `granted` the moments of all slots granted in the last hour (not those by
    law 2); `requeues` the last 24 h; `remedies` the last 24 h; `modes` rule -> mode set while running;
    `actions` outcome (True = worked) of the last ten removing steps since the breaker last changed, oldest
    first; `running` node -> run; `unmade` node -> when the run of its slot ended, where no drain was read
    back; `kept` node -> the person whose run has its slot, and has not ended.
    """

    slots: tuple[Slot, ...] = ()
    granted: tuple[datetime, ...] = ()
    pauses: tuple[Pause, ...] = ()
    requeues: tuple[RequeueUse, ...] = ()
    remedies: tuple[RemedyUse, ...] = ()
    vetoes: tuple[Veto, ...] = ()
    modes: dict[str, Mode] = {}
    actions: tuple[bool, ...] = ()
    running: dict[str, str] = {}
    unmade: dict[str, datetime] = {}
    kept: dict[str, str] = {}
    #: From the last 24 h.
    permits: tuple[Permit, ...] = ()
    #: Runs that wait for capacity.
    waiting: tuple[Waiting, ...] = ()
    #: New or changed rules and playbooks that have runs left.
    trials: tuple[Trial, ...] = ()
    #: By the clock of the ledger; None: it has no other than its reader's.
    read_at: datetime | None = None

    def earlier(self, now: datetime) -> datetime:
        """`now`, or the time by the ledger's clock if that is earlier: what ends by time, and what counts
        against a cap, ends by both clocks. One clock that is ahead must not end a pause."""
        return now if self.read_at is None else min(now, self.read_at)


class GateFacts(LedgerFacts, frozen=True, kw_only=True, dict=True):
    """Everything a guard may read: one value, which makes a guard a pure function. `snapshot` is the latest
    Slurm snapshot, None before the first; `sweeps` None: not loaded, because no sweep was requested."""

    cluster: str
    snapshot: SlurmSnapshot | None
    breaker: Breaker
    sweeps: Sweeps | None = None

    def slurm_node(self, name: str | None) -> SlurmNode | None:
        """The node as Slurm shows it."""
        return self.snapshot.nodes.get(name or "") if self.snapshot is not None else None

    @cached_property
    def held(self) -> Mapping[str, Slot]:
        """Node -> its slot; cached, because each guard asks for it, for a thousand slots."""
        return {slot.node: slot for slot in self.slots}

    @cached_property
    def counted(self) -> frozenset[str]:
        """Nodes whose slot counts against the caps: those granted by law 2 do not."""
        return frozenset(slot.node for slot in self.slots if not slot.unusable)

    @cached_property
    def _grants(self) -> tuple[datetime, ...]:
        return tuple(sorted(self.granted))

    def granted_since(self, moment: datetime) -> tuple[datetime, ...]:
        """Those of `granted` later than that, oldest first."""
        return self._grants[bisect_right(self._grants, moment) :]

    def without_slots(self, nodes: Collection[str]) -> "GateFacts":
        """The facts without the slots of these nodes."""
        slots = tuple(slot for slot in self.slots if slot.node not in nodes)
        return msgspec.structs.replace(self, slots=slots) if nodes else self


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One cap for people. For the floor, `used` is what is in service and `limit` the minimum."""

    guard: Guard
    name: str
    used: int
    limit: int
    nodes: int


# Wide: stored whole with its decision and shown by the API; most fields are exceptions that one guard each
# reads.
class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """One capacity-removing (or returning) step that asks the gate.

    `by` is the person who asked, None for healer itself. `rule` and `mode` are the incident's; a person's
    proposal has mode auto. `approved_by` names who approved it, `agreed_by` who agreed to the restart of this
    very job when they started or approved a run on its node. `ride`: the node's slot is already held by
    this incident, so slot guards and mode were answered before.
    """

    cluster: str
    verb: Verb
    node: str | None = None
    job: str | None = None
    incident: str | None = None
    run: str | None = None
    rule: str = ""
    playbook: str = ""
    remedy: Remedy = Remedy.none
    mode: Mode = Mode.auto
    unusable: bool = False
    #: `unusable` was reported by other parts and the worker has not seen it for itself: it gives no exemption
    #: from the caps.
    unchecked: bool = False
    fatal: bool = False
    by: str | None = None
    approved_by: str | None = None
    agreed_by: str | None = None
    ride: bool = False
    #: The node is to be the partner in another node's tests, whether or not its own turn has come.
    borrows: bool = False
    #: This node and others are searched for a slow one: an open, non-fatal fault on it is no reason to leave
    #: it out.
    suspect: bool = False
    #: The run only begins: it checks and waits before it takes anything, and asks again then.
    begins: bool = False
    #: Restart count of the job that a requeue is about.
    restarts: int | None = None
    #: Its drain takes over what Slurm itself drained or set DOWN.
    adopts: bool = False
    #: Since when all jobs of the node were seen completing, by the run's own log.
    stuck_since: datetime | None = None
    #: When the run that asks began; None: it has not begun.
    begun_at: datetime | None = None
    #: It is a site command that takes capacity: the node must be drained and empty.
    empties: bool = False
    #: It was granted before, and only the rest of it is requested.
    granted: bool = False
    #: Why its evidence is not believed by itself; then it needs a person's approval.
    doubt: Said = msgspec.field(default_factory=no_words)
    #: Only a relay's text says so: no job that may still make progress is restarted for it.
    one_word: bool = False
    #: Its urgency among waiting runs; None without an incident.
    urgency: Urgency | None = None

    @property
    def passes_caps(self) -> bool:
        """Law 2: it is exempt from the slot caps and uses none of them."""
        return self.unusable and not self.unchecked


class AnswerKind(StrEnum):
    allow = "allow"
    hold = "hold"
    refuse = "refuse"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One guard's answer with its figure. `why` is a sentence for people.

    `limit` and `used` are what the guard compared, in the unit the sentence names; `frees_at` is when the
    answer may change by itself, None when only a person or an event changes it.
    """

    guard: Guard
    kind: AnswerKind
    why: Said
    limit: float | None = None
    used: float | None = None
    frees_at: datetime | None = None


class Outcome(StrEnum):
    act = "act"
    held = "held"
    refused = "refused"
    nothing = "nothing"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Stored whole, also when nothing is done. `guard` names the guard that kept it back."""

    at: datetime
    cluster: str
    incident: str | None
    playbook: str | None
    outcome: Outcome
    why: Said
    proposal: Proposal | None = None
    answers: tuple[Answer, ...] = ()
    guard: Guard | None = None
    run: str | None = None
    facts: dict[str, Any] = {}


#: Hooks whose failure drains the node, and the reason that Slurm gives then.
DRAINING_HOOKS = {"prolog": "prolog-error", "epilog": "epilog-error"}
#: Times of two machines are ordered only if they differ by more; Slurm notes whole seconds.
CLOCKS_DIFFER = timedelta(seconds=5)


def permit_for(node: SlurmNode, permits: Iterable[Permit]) -> Permit | None:
    """The permit that covers Slurm's own drain of the node; None if that drain is not healer's.

    By the reason that Slurm gives, and its time: a hook that failed by itself later is not covered.
    """
    kind = slurm_kind(node.reason) if node.drain else None
    if kind is None or node.reason_at is None:
        return None
    for permit in permits:
        matches = permit.node == node.name and DRAINING_HOOKS.get(permit.hook) == kind
        if matches and permit.at - CLOCKS_DIFFER <= node.reason_at <= permit.until:
            return permit
    return None


def is_held_after_launch(job: SlurmJob) -> bool:
    """Slurm itself requeued the job and holds it, because it could not be started (d.11 of the facts).

    Slurm writes the words with spaces or underscores; a hold by a person has other words.
    """
    reason = f"{job.why} {job.reason}".replace("_", " ").lower()
    return job.state == "PENDING" and bool(job.held_by) and "launch failed requeued held" in reason
