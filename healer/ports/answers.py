"""Answers of queries to the API and the console that combine several nouns; JSON names are the field
names."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from healer.model import (
    Answer,
    Breaker,
    Broken,
    Checkpoint,
    Component,
    Controller,
    Decision,
    EvidenceFile,
    FaultBurst,
    Finding,
    ForecastScore,
    GuardSettings,
    Incident,
    IncidentState,
    Inventory,
    LemonScore,
    Limit,
    LogEntry,
    Loss,
    Message,
    Mode,
    NodeComparison,
    Pause,
    Playbook,
    Review,
    Ruleset,
    Run,
    Sender,
    Severity,
    Slot,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Trial,
    Verdict,
    VerdictAt,
    Veto,
)
from healer.model.goodput import Spent
from healer.model.incident import bad_nodes
from healer.model.node_states import NodeState
from healer.model.telemetry import ScrapeState, Unusual
from healer.ports.break_glass import GlassState
from healer.text import NO_WORDS, Said, no_words


class Queue(NamedTuple):
    """A queue of this process: what waits to be written, and its capacity."""

    name: str
    waiting: int
    limit: int
    unit: str


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """What waits in the database for a process of healer, and since when the oldest of it waits."""

    name: str
    count: int = 0
    oldest: datetime | None = None


class Sink(msgspec.Struct, frozen=True, kw_only=True):
    """One channel, the generic webhook, or the tickets, over the last 7 days. `error` is that of the newest
    message that failed or waits for a retry."""

    name: str
    sent: int = 0
    due: int = 0
    failed: int = 0
    last_sent: datetime | None = None
    error: Said = NO_WORDS


class ModelSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The model of one class of nodes. `nodes`: how many it scored lately; `at`: when it last did."""

    hardware: str
    load: str
    model: str
    nodes: int
    at: datetime


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """healer's own state of one cluster in the database. `beats`: process -> its last heartbeat; `leads`: the
    kinds of processes of which one holds the leader's lock."""

    version: str = ""
    size_bytes: int = 0
    free_share: float | None = None
    controller: Controller | None = None
    beats: dict[str, datetime] = {}
    leads: frozenset[str] = frozenset()
    backlogs: tuple[Backlog, ...] = ()
    sinks: tuple[Sink, ...] = ()
    scrape: ScrapeState | None = None
    models: tuple[ModelSeen, ...] = ()


#: The problem that nothing seals the audit; any other is named after its witness.
SEAL = "seal"


class SealState(msgspec.Struct, frozen=True, kw_only=True):
    """`since`: the time of the oldest record that waits for the sealer; None: none waits. `witnesses`: by
    name, when each had all checkpoints."""

    since: datetime | None = None
    witnesses: dict[str, datetime] = {}


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """Liveness of one cluster: when Slurm's snapshot was taken (None: never yet) and the poller's last error,
    the state of slurmctld, whether a detector leads and works, and how far the audit is sealed."""

    cluster: str
    taken_at: datetime | None = None
    error: str = ""
    controller: Controller | None = None
    detector: bool = False
    seal: SealState = SealState()


class SelfHealth(msgspec.Struct, frozen=True, kw_only=True):
    """healer's own health. `checks` are those of /readyz. `broker`: the messages that wait there; None if it
    does not answer, and `broker_text` says why. `rules_since`: when it loaded the rules in force."""

    stored: Stored
    checks: dict[str, dict[str, Any]] = {}
    queues: tuple[Queue, ...] = ()
    broker: int | None = None
    broker_text: str = ""
    rules_version: str = ""
    rules_since: datetime | None = None


#: Of one cluster.
SelfHealthReads = Callable[[str], SelfHealth]


T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One page of a list; `next_cursor` is None on the last."""

    items: list[T]
    next_cursor: str | None = None


# What a person wrote on an incident. A docstring here would be a part of /openapi.json.
class Note(msgspec.Struct, frozen=True, kw_only=True):
    at: datetime
    by: str
    text: str


class OpenIncident(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an unresolved incident that every page needs (header figures, the fleet map)."""

    id: str
    severity: Severity
    state: IncidentState
    rule: str
    title: Said
    root: Component
    opened: datetime
    nodes: dict[str, Verdict] = {}
    known_bad_in_service: bool = False
    folded: tuple[str, ...] = ()
    owner: str | None = None
    acknowledged_by: str | None = None
    fault: str = ""
    jobs_hit: tuple[str, ...] = ()

    @property
    def bad_nodes(self) -> tuple[str, ...]:
        return bad_nodes(self.root, self.folded, self.nodes) if self.known_bad_in_service else ()


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of one cluster. Read on every page, so it must be cheap (under 10 ms at 1,250 nodes).

    `snapshot` is Slurm's latest snapshot (None before the first), `snapshot_error` the poller's last error,
    empty if the last poll worked. `controller` is the state of slurmctld, None before the first poll. `slots`
    are those held now, `granted_last_hour` counts slots granted in the last 60 min (not those by law 2).
    `pauses` and `vetoes` are those in force. `asking` are runs that need a person: waiting for approval,
    proposed, stuck, held, or waiting with a question; oldest first. `glass` is that of the whole site.
    `beats`: when each part of healer was last heard.
    """

    cluster: str
    breaker: Breaker
    snapshot: SlurmSnapshot | None = None
    snapshot_error: str = ""
    controller: Controller | None = None
    slots: tuple[Slot, ...] = ()
    granted_last_hour: int = 0
    pauses: tuple[Pause, ...] = ()
    vetoes: tuple[Veto, ...] = ()
    open_incidents: tuple[OpenIncident, ...] = ()
    asking: tuple[Run, ...] = ()
    glass: GlassState = GlassState()
    beats: dict[str, datetime] = {}


class Standing(ClusterState, frozen=True, kw_only=True):
    """The state of one cluster under the rules in force; `guards` are those of the cluster. `rules_error`
    says why changed rule files were not loaded, empty if the current set is theirs."""

    rules: Ruleset
    guards: GuardSettings
    default_mode: Mode
    rules_error: str = ""


class ChannelDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """One channel of a message: `healer.model.DeliveryState`."""

    channel: str
    state: str
    error: Said | None = None
    reference: str | None = None


class SentMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A page, note or ticket and its delivery: `state` (due, sent, failed, listed: no sink) is that of the
    generic webhook, or of the ticket system."""

    at: datetime
    kind: str
    state: str
    message: Message
    error: Said | None = None
    reference: str | None = None
    page: bool = False
    channels: tuple[ChannelDelivery, ...] = ()


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its whole log, oldest first, and the decisions taken for it (each gate's answer).

    `plan`: the titles of its playbook's steps as they are now.
    """

    run: Run
    log: tuple[LogEntry, ...] = ()
    decisions: tuple[Decision, ...] = ()
    plan: tuple[str, ...] = ()


class IncidentRows(msgspec.Struct, frozen=True, kw_only=True):
    """One incident with everything stored of it. All lists oldest first.

    `verdicts`: the newest 50. `alike` are candidates for similar ones: the newest of its node and of its
    fault. `merged` were merged into this one. `collected` are the files of its nodes.
    """

    incident: Incident
    verdicts: tuple[VerdictAt, ...] = ()
    findings: tuple[Finding, ...] = ()
    decisions: tuple[Decision, ...] = ()
    runs: tuple[RunRecord, ...] = ()
    notes: tuple[Note, ...] = ()
    messages: tuple[SentMessage, ...] = ()
    alike: tuple[Incident, ...] = ()
    collected: tuple[EvidenceFile, ...] = ()
    merged: tuple[OpenIncident, ...] = ()
    snapshot: SlurmSnapshot | None = None


class FleetRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows for lists of nodes. By cluster: Slurm's snapshot; by node, its inventory if it changed recently,
    and the scores of lemons. `watched` are open incidents and those on probation."""

    snapshots: dict[str, SlurmSnapshot]
    watched: tuple[Incident, ...] = ()
    changed: dict[str, dict[str, Inventory]] = {}
    lemons: dict[str, dict[str, LemonScore]] = {}


class PastFleet(msgspec.Struct, frozen=True, kw_only=True):
    """By name: the states of nodes at a moment, empty where nothing is known of it; the incidents that were
    open then, with the verdicts of then."""

    states: Mapping[str, NodeState] = {}
    incidents: tuple[OpenIncident, ...] = ()


class NodeRows(msgspec.Struct, frozen=True, kw_only=True):
    """Everything stored of one node. `watched` are its open incidents and those it is on probation for,
    `history` its newest 50; `gpus` the facts of its last heartbeat about each, by index; `standing` its test
    results compared with other nodes."""

    snapshot: SlurmSnapshot
    node: SlurmNode
    watched: tuple[Incident, ...] = ()
    history: tuple[Incident, ...] = ()
    gpus: dict[int, dict[str, Any]] = {}
    inventory: Inventory | None = None
    lemon: LemonScore | None = None
    unusual: Unusual | None = None
    standing: NodeComparison | None = None


class OutOfService(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which healer had drained the node. `released_at` None: it lasts."""

    drained_at: datetime
    released_at: datetime | None = None
    incident: str | None = None


class NodeStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was done to the node: what, and by which run."""

    at: datetime
    verb: str
    run: str


class NodeLife(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a node, oldest first. `incidents` are the newest 500; `parts` mark GPUs that were
    replaced."""

    incidents: tuple[Incident, ...] = ()
    outs: tuple[OutOfService, ...] = ()
    steps: tuple[NodeStep, ...] = ()
    parts: tuple[FaultBurst, ...] = ()


class CheckpointSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint as the job reported it. A requeue goes back to the newest durable one."""

    at: datetime
    step: int
    restart: int = 0
    durable: bool = True
    path: str = ""
    sha256: str | None = None


class Requeue(msgspec.Struct, frozen=True, kw_only=True):
    """One requeue of a job by healer: which of its lives was ended, and for which incident."""

    at: datetime
    restarts: int
    incident: str | None = None
    run: str | None = None


class JobDone(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence about what healer did to a job, or why it did nothing, from a run's log.

    `event` is done, skipped or failed. `step` is the step's id: `requeue`, `revive`, `owner` …
    """

    at: datetime
    step: str
    event: str
    text: Said
    run: str
    incident: str | None = None


class JobErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one code that the driver logged on the job's GPUs while it ran, as of its own programs.

    They are counted, and say nothing against a node: Xid 43 and 45 come whenever a program fails or is ended.
    `lines` in all, on `nodes` nodes (`node` is one of them), from `since` to `until`. `text` is the
    catalogue's, where it was looked up.
    """

    fault: str
    lines: int
    nodes: int
    node: str
    since: datetime
    until: datetime
    text: Said = msgspec.field(default_factory=no_words)


class GoodputSum(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-hours of one class and partition, of one job, user, cause…"""

    name: str
    partition: str
    spent: Spent
    gpu_hours: float


class JobRows(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a job. `incidents` that hit it newest first, the rest oldest first; `checkpoints` are
    the last 50 reported; `goodput` by class and cause, which is its name; `errors` of its own programs in the
    last 7 days, the most frequent first."""

    snapshot: SlurmSnapshot | None = None
    incidents: tuple[Incident, ...] = ()
    requeues: tuple[Requeue, ...] = ()
    done: tuple[JobDone, ...] = ()
    errors: tuple[JobErrors, ...] = ()
    checkpoints: tuple[CheckpointSeen, ...] = ()
    goodput: tuple[GoodputSum, ...] = ()
    #: The owner in Slurm; empty: unknown.
    user: str = ""

    @property
    def empty(self) -> bool:
        found = self.incidents, self.requeues, self.done, self.errors, self.checkpoints, self.goodput
        return not any(found)


class RuleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The history of one rule. `mode` was set at run time; None: the file's or the default.

    `incidents` it opened, `open` are so now; `reviews` by what people said of them. `last_at` and
    `last_incident`: when it last fired, and for which. `fired` counts its findings of the last 7 days, where
    that was asked for.
    """

    mode: Mode | None = None
    mode_by: str | None = None
    mode_reason: str | None = None
    mode_at: datetime | None = None
    incidents: int = 0
    open: int = 0
    reviews: dict[Review, int] = {}
    last_at: datetime | None = None
    last_incident: str | None = None
    fired: int = 0
    forecasts: ForecastScore | None = None

    @property
    def true_faults(self) -> int:
        return self.reviews.get(Review.true_fault, 0)

    @property
    def false_alarms(self) -> int:
        return self.reviews.get(Review.false_alarm, 0)

    @property
    def precision(self) -> float | None:
        judged = self.true_faults + self.false_alarms
        return self.true_faults / judged if judged else None


class RuleBook(msgspec.Struct, frozen=True, kw_only=True):
    """The rules in force with the record of each. `cases` counts the test cases of the rule files, by
    rule."""

    rules: Ruleset
    records: dict[str, RuleRecord] = {}
    cases: dict[str, int] = {}
    trials: tuple[Trial, ...] = ()


class ChainState(msgspec.Struct, frozen=True, kw_only=True):
    """Where the audit chain ends: last sealed record, how many wait for the seal, last signed checkpoint."""

    cluster: str
    seq: int = 0
    hash: str = ""
    unsealed: int = 0
    checkpoint: Checkpoint | None = None


class AuditVerified(msgspec.Struct, frozen=True, kw_only=True):
    """`gaps`: what restores of backups have lost, a sentence each; they are no broken places."""

    ok: bool
    broken: list[Broken] = []
    records: int = 0
    gaps: list[Said] = []


class HeardSender(NamedTuple):
    """A token's use of one route; `silent`: nothing comes from the token, by any route."""

    sender: Sender
    silent: bool


class SendersHeard(NamedTuple):
    """How many tokens sent signals to one cluster, how many of them are silent, and the routes of some: of
    silent tokens first, then the latest."""

    tokens: int = 0
    silent: int = 0
    heard: Sequence[HeardSender] = ()


class Arriving(NamedTuple):
    """How signals arrive at one cluster; `losses`: the latest first."""

    losses: list[Loss]
    senders: SendersHeard
    queues: list[Queue]


class NodeGauges(msgspec.Struct, frozen=True):
    """Each GPU's newest temperature and the bits of its clock event reasons; None: not reported recently."""

    temperature_c: tuple[float | None, ...] = ()
    reasons: tuple[float | None, ...] = ()


class RestartOffer(msgspec.Struct, frozen=True, kw_only=True):
    """A job on the node that the run would wait for, and whose restart may be agreed to with the run.

    `possible`: no guard refuses it now; `why` is the guards' sentence. `JOB:RESTARTS` names this very life.
    """

    job: str
    restarts: int
    name: str
    user: str
    nodes: int
    possible: bool
    why: Said


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would do, and what the gate says to it now. `outcome` is act, held or refused."""

    playbook: Playbook
    cluster: str
    node: str | None
    job: str | None
    outcome: str
    why: Said
    answers: list[Answer] = []
    jobs_hit: list[SlurmJob] = []
    #: To restart them, name them in `restart` when the run is started or approved.
    restarts: list[RestartOffer] = []
    limits: list[Limit] = []
    slurm: SlurmNode | None = None
    #: Steps, by id, that would ask a person here, because no adapter can do them with this Slurm.
    not_available: dict[str, str] = {}


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. None where nothing was measured."""

    count: int
    p50_s: float | None = None
    p90_s: float | None = None
    max_s: float | None = None


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What restarts without a person saved: over the `jobs` that healer restarted alone, GPUs × (`people_s`,
    the median time in which people took up the `people` incidents left to them, less the time that healer
    took). `gpu_hours` and `people_s` None: people took up too few to say."""

    jobs: int = 0
    people: int = 0
    people_s: float | None = None
    gpu_hours: float | None = None


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and times of the incidents opened since `since`.

    detect: event to incident; decide: incident to first decision; drain: incident to drain read back;
    to_return: slot granted to released. `gpu_hours_lost` by the jobs that these incidents hit, each life once
    (`gpu_hours_at_most` of them since the job began, for want of a durable checkpoint); `jobs_unknown` more
    were hit whose loss is unknown.
    """

    since: datetime | None
    incidents: int
    open: int
    by_rule: dict[str, int]
    by_cause: dict[str, int]
    by_severity: dict[str, int]
    detect: Spread
    decide: Spread
    drain: Spread
    to_return: Spread
    false_drains: int
    gpu_hours_lost: float | None = None
    gpu_hours_at_most: float | None = None
    jobs_unknown: int = 0
    saved: Saved = Saved()


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Incidents of one cause or one fault class, and their times, as in `Stats`."""

    name: str
    incidents: int = 0
    detect: Spread
    decide: Spread
    drain: Spread
    to_return: Spread


class RuleFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One rule's incidents of the period: how many drained a node, and people's reviews of them."""

    rule: str
    incidents: int = 0
    drained: int = 0
    true_faults: int = 0
    false_alarms: int = 0
    false_drains: int = 0

    @property
    def precision(self) -> float | None:
        judged = self.true_faults + self.false_alarms
        return self.true_faults / judged if judged else None


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """`returned` nodes that healer returned to service in the period; `relapsed` of them had a hardware fault
    again within their probation."""

    since: datetime
    until: datetime
    stats: Stats
    by_class: tuple[Group, ...] = ()
    by_cause: tuple[Group, ...] = ()
    by_rule: tuple[RuleFigures, ...] = ()
    returned: int = 0
    relapsed: int = 0


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """Equal parts of a period, for charts: `count` of `step_s` each, from `start` on. `since` and `until`: of
    the period, if it begins or ends within a part; what lies beyond it is not counted."""

    start: datetime
    step_s: int
    count: int
    since: datetime | None = None
    until: datetime | None = None

    @property
    def first(self) -> datetime:
        return self.since or self.start

    @property
    def end(self) -> datetime:
        return self.until or self.begin(self.count)

    def begin(self, number: int) -> datetime:
        return self.start + timedelta(seconds=self.step_s * number)


class BucketFigure(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted or summed for one name in one bucket."""

    bucket: int
    name: str
    value: float


class BucketSpread(msgspec.Struct, frozen=True, kw_only=True):
    bucket: int
    p50_s: float
    p90_s: float


class BucketReviews(msgspec.Struct, frozen=True, kw_only=True):
    """People's reviews of one rule's incidents that opened in one bucket."""

    bucket: int
    rule: str
    true_faults: int
    false_alarms: int


class ChartFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a period over time. `reviews` go by buckets of their own.

    incidents: by fault class, by when they opened; detect: event to incident; to_return: slot granted to
    released, by when it was granted; lost: GPU-hours by cause, each life of a job once; drains: `false` ones
    and `other`; returns: nodes that `relapsed` within their probation, and those that `stayed`; out:
    node-hours out of service by `Holder`, and `planned` ones.
    """

    incidents: tuple[BucketFigure, ...] = ()
    detect: tuple[BucketSpread, ...] = ()
    to_return: tuple[BucketSpread, ...] = ()
    lost: tuple[BucketFigure, ...] = ()
    drains: tuple[BucketFigure, ...] = ()
    returns: tuple[BucketFigure, ...] = ()
    out: tuple[BucketFigure, ...] = ()
    #: GPU-hours by class, without those in the queue.
    goodput: tuple[BucketFigure, ...] = ()
    reviews: tuple[BucketReviews, ...] = ()


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """`ready` is False while any of `checks` fails; each is {"ok", "text", …figures}."""

    ready: bool
    checks: dict[str, dict[str, Any]]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is incident, run, fleet, breaker, pause, audit, or reset (fetch everything again)."""

    id: int
    kind: str
    data: dict[str, Any]
