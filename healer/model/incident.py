"""Incidents: findings with one cause, their place, and the jobs they hit."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from healer.model.detection import Component, Evidence
from healer.model.faults import Retest
from healer.model.vocabulary import (
    Cause,
    FaultClass,
    Guard,
    HitBasis,
    IncidentState,
    Remedy,
    Review,
    Sense,
    Severity,
    Verb,
    Verdict,
)
from healer.text import Said, no_words


class JobCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A durable checkpoint that a job reported. `at` is the job's clock, `arrived_at` ours; both are UTC."""

    job: str
    restart: int
    step: int
    path: str
    at: datetime
    arrived_at: datetime


class JobHit(msgspec.Struct, frozen=True, kw_only=True):
    """One life of a job that an incident hit, as Slurm showed it at the time: Slurm soon forgets jobs.

    `gpus` it held in all and `nodes` it ran on (0: not given by Slurm). `ended_at` is when its work ended,
    `since` from when on that work is lost; `lost_gpu_hours` = gpus × (ended_at - since), None: unknown.
    """

    job: str
    basis: HitBasis
    user: str = ""
    gpus: int = 0
    nodes: int = 0
    restart: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    since: datetime | None = None
    lost_gpu_hours: float | None = None

    @property
    def settled(self) -> bool:
        """Nothing more will become known about this life."""
        return self.basis is not HitBasis.runs_on

    @property
    def at_most(self) -> bool:
        return self.basis is HitBasis.start


#: Evidence kept in full on an incident: how it began, and the newest. Anything in between is only counted.
EVIDENCE_FIRST = 10
EVIDENCE_KEPT = 50
#: How long the node is watched after a return, with its faults judged more strictly.
PROBATION = timedelta(days=7)


class SenseReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """When a sense last reported on the root's node. `part` is the GPU it named; empty: the whole node."""

    sense: Sense
    at: datetime
    part: str = ""


def bad_nodes(root: Component, folded: tuple[str, ...], nodes: dict[str, Verdict]) -> tuple[str, ...]:
    """The nodes of an incident that are known bad and stay in service (law 2): its own node, or the certainly
    unusable ones among those folded into it."""
    if root.node is not None:
        return (root.node,)
    return tuple(name for name in folded if nodes.get(name) is Verdict.isolate)


class RuledOut(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was considered and did not carry: a signal that follows from the root, planned work, a node in its
    first minutes. `what` and `why` are for people; `count` is how often it came."""

    at: datetime
    what: Said
    why: Said
    component: Component | None = None
    count: int = 1


class IncidentVerdict(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The verdict on nodes and cause. `certainty` is 0..1; `sentence` is what an engineer would say in one
    breath; `why` its reasons, each a line or figure with its source."""

    nodes: dict[str, Verdict]
    cause: Cause
    certainty: float
    sentence: Said
    why: tuple[Said, ...] = ()
    set_aside: tuple[RuledOut, ...] = ()
    retest: Retest | None = None


class VerdictAt(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict from `at` on."""

    at: datetime
    verdict: IncidentVerdict


# Wide: stored and returned as one JSON object, with the same bytes in replay; each change affects several of
# its parts.
class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One cause. `id` is a hash of cluster, rule, root and opening evidence, so a replay gives the same.

    `nodes` holds a verdict for each node of the incident; `counted` what was only counted (fault -> number);
    `owner` the person whose drain is on the node; `node_was_out`: the node was out of service or under
    planned work when the incident opened, so it is no root of a storm.
    """

    id: str
    cluster: str
    rule: str
    fault: str
    fault_class: FaultClass
    title: Said
    root: Component
    opened: datetime
    updated: datetime
    #: No decision before this time: the settling time.
    settle_until: datetime
    state: IncidentState = IncidentState.open
    severity: Severity = Severity.P3
    cause: Cause = Cause.unclear
    affected: tuple[Component, ...] = ()
    nodes: dict[str, Verdict] = {}
    remedy: tuple[Remedy, ...] = ()
    #: The highest rung of the ladder that was carried out for it; none if nothing is known to be done.
    tried: Remedy = Remedy.none
    jobs_hit: tuple[str, ...] = ()
    #: Their losses, of the first 200.
    hit: tuple[JobHit, ...] = ()
    #: The highest confidence of its findings, 0..1; None if an earlier version opened it.
    confidence: float | None = None
    #: True once the jobs hit were listed after the drain was read back; before that the list is an estimate.
    jobs_hit_final: bool = False
    evidence: tuple[Evidence, ...] = ()
    evidence_count: int = 0
    counted: dict[str, int] = {}
    unusable: bool = False
    known_bad_in_service: bool = False
    #: Nodes whose own incidents are folded into this one, a wave, while the breaker holds them.
    folded: tuple[str, ...] = ()
    node_was_out: bool = False
    owner: str | None = None
    owner_since: datetime | None = None
    acknowledged_by: str | None = None
    review: Review | None = None
    review_cause: str | None = None
    merged_into: str | None = None
    closed: datetime | None = None
    closed_why: Said | None = None
    probation_until: datetime | None = None
    #: When healer's drain was read back; a node without it later was resumed by a person.
    drained_at: datetime | None = None
    #: The run that works on it, and how many there were.
    run: str | None = None
    run_count: int = 0
    #: The guard that keeps healer back, and a digest of the last stored decision (stored again on change).
    held_by: Guard | None = None
    #: Its ticket was opened while the breaker or the floor held its run, whose own step then updates it.
    ticket_precedes_run: bool = False
    decision_key: str = ""
    p0_since: datetime | None = None
    #: When it was last reopened. Its channels have got its end: later messages have different ids.
    reopened_at: datetime | None = None
    #: Since when the senses that reported it see its cause gone; None: still present, or unknown.
    clear_since: datetime | None = None
    #: The time of the last tick for it, to a quarter of a minute; None: it is not measured.
    ticked_at: datetime | None = None
    #: Each sense's last report, even without new evidence.
    heard: tuple[SenseReport, ...] = ()
    #: A worse incident of the same node: the run that works on this one does not return the node by itself.
    worse: str | None = None
    #: The same, if healer may act on it: the run ends and leaves the node to that incident.
    gives_way_to: str | None = None
    #: The entry of `rules/context.yaml` that makes it less urgent during another activity at its node.
    plan: Said = msgspec.field(default_factory=no_words)
    #: Since when it waits to be seen again (`seen_again`): the end of that plan, or a boot that may have
    #: ended its fault. Earlier evidence does not count until then. Stored as `plan_over`.
    waits_since: datetime | None = msgspec.field(default=None, name="plan_over")
    seen_again: datetime | None = None
    #: Explanations that were considered and ruled out: once each, the first 20.
    set_aside: tuple[RuledOut, ...] = ()
    #: Why its evidence is not believed by itself (law 2): its sender is suspect. Nothing is done then unless
    #: a person approves.
    doubt: Said = msgspec.field(default_factory=no_words)
    #: The person who cancelled or rejected healer's run: nothing more is started until a reopen.
    stopped_by: str | None = None

    @property
    def short_id(self) -> str:
        """The first 8 characters, as written into Slurm's reason."""
        return self.id[:8]

    @property
    def bad_nodes(self) -> tuple[str, ...]:
        return bad_nodes(self.root, self.folded, self.nodes) if self.known_bad_in_service else ()

    @property
    def left_to(self) -> str | None:
        """The worse incident that it was merged into, which now has its node and its slot."""
        return self.merged_into if self.worse == self.merged_into else None

    @property
    def is_open(self) -> bool:
        return self.state is not IncidentState.resolved

    @property
    def is_relayed(self) -> bool:
        """A relay reports it, or did and was not believed (law 2)."""
        return bool(self.doubt) or any(evidence.relayed_by for evidence in self.evidence)


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """`healthy` if there are none."""
    return max(verdicts, key=list(Verdict).index, default=Verdict.healthy)


def by_opening(incident: Incident) -> tuple[datetime, str, str]:
    """Sort key: the oldest first; of those opened at once, by place. Ids alone would order them by a hash."""
    return incident.opened, str(incident.root), incident.id


def probations(incidents: Iterable[Incident], now: datetime) -> dict[str, datetime]:
    """Nodes on probation -> until when."""
    found: dict[str, datetime] = {}
    for incident in incidents:
        node, until = incident.root.node, incident.probation_until
        if node is not None and until is not None and until > now:
            found[node] = max(until, found.get(node, until))
    return found


class NodeHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What healer keeps of one node: its incidents, oldest first, and which of them have a repair ticket."""

    incidents: tuple[Incident, ...] = ()
    ticketed: frozenset[str] = frozenset()


#: How many incidents of the same node, and of the same fault, are compared, newest first.
SIMILAR_MAX = 50


class Similarity(StrEnum):
    """What two incidents share, the closest first."""

    part = "part"  # the same GPU or other part of the same node, whatever its fault was
    node = "node"  # the same rule on the same node
    model = "model"  # the same fault on another node with the same GPU model
    fault = "fault"  # the same fault; the hardware may differ


# Wide: an object of the API's answer: the page's view of the other incident, copied flat.
class Similar(msgspec.Struct, frozen=True, kw_only=True):
    """Another incident in short. `ended` says in a sentence how; `helped` is the last repair before its node
    returned, `return_s` the time from the drain to that (None: it did not return, or was not drained)."""

    id: str
    cluster: str
    same: Similarity
    rule: str
    fault: str
    title: Said
    root: Component
    opened: datetime
    closed: datetime | None
    state: IncidentState
    severity: Severity
    review: Review | None
    review_cause: str | None
    ended: Said
    helped: Verb | None = None
    return_s: float | None = None
