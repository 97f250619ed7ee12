"""What the pages need to know, as one Protocol over `healer.model`. The database's side implements it.

Every method is one short read (a few indexed queries), safe to call from a thread pool, and raises nothing
for "not found": it returns None or an empty page. Lists are newest first unless said otherwise. A cursor is
an opaque text that came out of `next_cursor`; a cursor that cannot be read raises `BadCursor`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from healer.console.period import Period
from healer.incidents.similar import Similar
from healer.model import (
    AuditRecord,
    Breaker,
    Catalogue,
    Checkpoint,
    Column,
    Component,
    Controller,
    Decision,
    EvidenceFile,
    Finding,
    ForecastScore,
    GuardSettings,
    Incident,
    IncidentState,
    IncidentVerdict,
    LastHeard,
    LemonScore,
    LogEntry,
    Loss,
    Message,
    Mode,
    NodeContext,
    NodeStanding,
    Observation,
    Pause,
    Reference,
    Role,
    Ruleset,
    Run,
    RunState,
    Sender,
    Severity,
    Slot,
    SlurmSnapshot,
    Trial,
    UnknownSeries,
    Verdict,
    VerdictAt,
    Veto,
)
from healer.model.incident import bad_nodes
from healer.model.recordings import Recordings
from healer.model.rehearsal import Outcomes, Rehearsal
from healer.model.unusual import Unusual

if TYPE_CHECKING:
    from healer.model.samples import Report, StepBatch
    from healer.ports.pull import Points

    #: Reports of a node, and what the numbers of their columns stand for.
    Reported = tuple[list[Report], dict[int, Column]]

T = TypeVar("T")


class BadCursor(ValueError):
    """A cursor that did not come from `next_cursor`."""


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One page of a list. `total` is the number of rows that match, None where counting is too dear."""

    items: tuple[T, ...] = ()
    next_cursor: str | None = None
    total: int | None = None


class OpenIncident(msgspec.Struct, frozen=True, kw_only=True):
    """The few fields of an unresolved incident that every page needs (header figures, the fleet map)."""

    id: str
    severity: Severity
    state: IncidentState
    rule: str
    title: str
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


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How one cluster stands now. Read on every page, so it must be cheap (aim: under 10 ms at 1,250 nodes).

    `rules` are those in force, `guards` the cluster's own of them. `snapshot` is Slurm's latest picture
    (None before the first), `snapshot_version` its row's version and `snapshot_error` the poller's last
    error, empty when the last poll worked. `controller` is how slurmctld does, None before the first
    poll. `slots` are those held now, `granted_last_hour` counts slots granted in the last 60 min (not
    those by law 2). `pauses` and `vetoes` are those in force. `asking` are runs that want a person:
    waiting for approval, proposed, stuck, held, or waiting with a question; oldest first, 50 at most.
    `rules_error` is the reason why changed rule files were not taken, empty when the current set is
    theirs. `detector_at` is when the detector last showed that it lives, None when unknown.
    """

    cluster: str
    rules: Ruleset
    breaker: Breaker
    guards: GuardSettings
    default_mode: Mode
    snapshot: SlurmSnapshot | None = None
    snapshot_version: int = 0
    snapshot_error: str = ""
    controller: Controller | None = None
    slots: tuple[Slot, ...] = ()
    granted_last_hour: int = 0
    pauses: tuple[Pause, ...] = ()
    vetoes: tuple[Veto, ...] = ()
    open_incidents: tuple[OpenIncident, ...] = ()
    asking: tuple[Run, ...] = ()
    rules_error: str = ""
    detector_at: datetime | None = None


class NodeGauges(msgspec.Struct, frozen=True):
    """Each GPU's newest temperature and the reasons of a lower clock as bits; None: not told of late."""

    temperature_c: tuple[float | None, ...] = ()
    reasons: tuple[float | None, ...] = ()


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What a person wrote on an incident."""

    at: datetime
    by: str
    text: str


class ToldAt(msgspec.Struct, frozen=True, kw_only=True):
    """One channel of a message: `healer.model.DeliveryState`."""

    channel: str
    state: str
    error: str = ""


class SentMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A page, note or ticket and how its delivery stands: `state` (due, sent, failed, listed: no sink) is
    that of the generic webhook, or of the tickets."""

    at: datetime
    kind: str
    state: str
    message: Message
    error: str = ""
    reference: str = ""
    channels: tuple[ToldAt, ...] = ()


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its whole log, oldest first, and the decisions taken for it (each gate's answer).

    `plan`: the titles of its playbook's steps as they are now.
    """

    run: Run
    log: tuple[LogEntry, ...] = ()
    decisions: tuple[Decision, ...] = ()
    plan: tuple[str, ...] = ()


class IncidentDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One incident with everything that belongs to it. All lists oldest first.

    `records` are the audit records whose subject is this incident or one of its runs (200 at most);
    `similar` are up to five other incidents, of the same part and node first, then of the same fault;
    `merged` those that ended as a part of this one.
    """

    incident: Incident
    verdict: IncidentVerdict
    verdicts: tuple[VerdictAt, ...] = ()
    findings: tuple[Finding, ...] = ()
    decisions: tuple[Decision, ...] = ()
    runs: tuple[RunDetail, ...] = ()
    notes: tuple[Note, ...] = ()
    records: tuple[AuditRecord, ...] = ()
    messages: tuple[SentMessage, ...] = ()
    similar: tuple[Similar, ...] = ()
    #: What was collected on its nodes.
    collected: tuple[EvidenceFile, ...] = ()
    merged: tuple[OpenIncident, ...] = ()


class IncidentQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of the list. `open`: True only unresolved, False only resolved, None both. `text` is looked
    for (any case) in the title, rule, fault, node names, job ids and the start of the id."""

    cluster: str
    open: bool | None = None
    state: IncidentState | None = None
    severity: Severity | None = None
    node: str | None = None
    text: str = ""
    #: Only what was resolved since then.
    closed_since: datetime | None = None


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    state: RunState | None = None
    node: str | None = None
    playbook: str | None = None


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`verb` and `subject` match from the start (`incident.`, `node/gpu0001`), `actor` whole. `people_since`:
    only what others than healer did, and since then, without the verbs that begin as one of `but`."""

    cluster: str
    actor: str = ""
    verb: str = ""
    subject: str = ""
    people_since: datetime | None = None
    but: tuple[str, ...] = ()


class Queue(NamedTuple):
    """What waits to be written in this process, and for how much there is room."""

    name: str
    waiting: int
    limit: int
    unit: str


class Arriving(NamedTuple):
    """How signals arrive at one cluster: each list the latest first."""

    losses: list[Loss]
    senders: list[Sender]
    queues: list[Queue]


class ChainState(msgspec.Struct, frozen=True, kw_only=True):
    """Where the audit chain ends: last sealed record, how many wait for the seal, last signed checkpoint."""

    cluster: str
    seq: int = 0
    hash: str = ""
    unsealed: int = 0
    checkpoint: Checkpoint | None = None


class CheckpointSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint as the job told it. A requeue goes back to the newest durable one."""

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
    """One sentence of what healer did to a job, or why it did nothing, from a run's log.

    `event` is done, skipped or failed. `step` is the step's id: `requeue`, `revive`, `owner` …
    """

    at: datetime
    step: str
    event: str
    text: str
    run: str
    incident: str | None = None


class JobErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one code that the driver logged on the job's GPUs while it ran, as of its own programs.

    They are counted, and say nothing against a node: Xid 43 and 45 come whenever a program fails or is ended.
    `lines` in all, on `nodes` nodes (`node` is one of them), from `since` to `until`.
    """

    fault: str
    text: str
    lines: int
    nodes: int
    node: str
    since: datetime
    until: datetime


class JobHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What healer knows of a job. `incidents` that hit it newest first, the rest oldest first.

    `checkpoints` are the last 50 told. `gpu_hours_lost` is what its lives lost, as the incidents that hit it
    tell (`Incident.hit`); None while that is not known. `gpu_hours_at_most`: it may be less. `errors` of its
    own programs in the last 7 days, the most frequent first.
    """

    incidents: tuple[Incident, ...] = ()
    requeues: tuple[Requeue, ...] = ()
    done: tuple[JobDone, ...] = ()
    errors: tuple[JobErrors, ...] = ()
    checkpoints: tuple[CheckpointSeen, ...] = ()
    gpu_hours_lost: float | None = None
    gpu_hours_at_most: bool = False

    @property
    def empty(self) -> bool:
        return not (self.incidents or self.requeues or self.done or self.errors or self.checkpoints)


class RuleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What running made of one rule. `mode` was set while running, None: the file's or the default.

    `fired` counts its incidents' findings of the last 7 days.
    """

    mode: Mode | None = None
    mode_by: str | None = None
    mode_at: datetime | None = None
    last_at: datetime | None = None
    last_incident: str | None = None
    open: int = 0
    fired: int = 0
    true_faults: int = 0
    false_alarms: int = 0
    forecasts: ForecastScore | None = None


class RuleBook(msgspec.Struct, frozen=True, kw_only=True):
    """The rules in force and what became of each. `cases` counts the cases beside the files, by rule."""

    rules: Ruleset
    records: dict[str, RuleRecord] = {}
    cases: dict[str, int] = {}
    trials: tuple[Trial, ...] = ()


class RehearsalReads(Protocol):
    """What the pages of tried changes need to know."""

    def recordings(self, cluster: str) -> Recordings: ...
    def files(self) -> list[str]: ...
    def text(self, file: str) -> str | None: ...
    def newest(self, cluster: str, limit: int) -> list[Rehearsal]: ...
    def one(self, name: str) -> Rehearsal | None: ...
    def outcomes(self, rehearsal: Rehearsal) -> list[Outcomes]: ...

    def real(self, names: Sequence[str]) -> dict[str, bool | None]:
        """Of these ids those of real incidents: true fault, false alarm, or None: not judged."""
        ...


class ConsoleReads(Protocol):
    def clusters(self) -> list[str]:
        """Names of the clusters known, sorted."""
        ...

    def standing(self, cluster: str) -> Standing | None:
        """None for a cluster that nobody knows."""
        ...

    def incidents(self, query: IncidentQuery, *, limit: int, cursor: str | None = None) -> Page[Incident]:
        """Newest first by `opened`; `evidence` of the items may be cut to the first line."""
        ...

    def incidents_named(self, ids: Sequence[str]) -> list[Incident]:
        """In the order of the ids, without those that are gone."""
        ...

    def at_work(self, ids: Sequence[str]) -> dict[str, Run]:
        """By incident: the newest run that works on it and has not ended."""
        ...

    def incident(self, incident: str) -> IncidentDetail | None:
        """By id, or by its first 8 or more characters (what stands in Slurm's reason), if only one fits."""
        ...

    def runs(self, query: RunQuery, *, limit: int, cursor: str | None = None) -> Page[Run]: ...

    def run(self, run: str) -> RunDetail | None: ...

    def audit(self, query: AuditQuery, *, limit: int, cursor: str | None = None) -> Page[AuditRecord]:
        """Sealed records and those not sealed yet (`seq` None)."""
        ...

    def chain(self, cluster: str) -> ChainState: ...

    def catalogue(self) -> Catalogue:
        """What may be measured."""
        ...

    def rules(self) -> Ruleset:
        """Those in force, by themselves: nothing is read of the database."""
        ...

    def rule_book(self, cluster: str) -> RuleBook: ...

    def period(self, cluster: str, since: datetime) -> Period:
        """Figures of the incidents opened since then."""
        ...

    def unknown_series(self, cluster: str, *, limit: int) -> list[UnknownSeries]:
        """Names that arrive and that no rule can use, most frequent first."""
        ...

    def arriving(self, cluster: str, *, limit: int) -> Arriving:
        """Who sends, and what was not stored: at most so many of each."""
        ...

    def job(self, cluster: str, job: str) -> JobHistory: ...

    def node_signals(self, cluster: str, node: str, since: datetime) -> "Reported":
        """What arrived after `since`, oldest first; kept for about an hour."""
        ...

    def inventory(self, cluster: str, node: str) -> dict[str, str]:
        """What the node told of itself: driver, firmware, settings."""
        ...

    def node_context(self, cluster: str, node: str) -> tuple[NodeContext, ...]:
        """What goes on at the node now, by which its faults are judged."""
        ...

    def lemon(self, cluster: str, node: str) -> LemonScore | None:
        """How much the node fails again and again; None: not at all."""
        ...

    def gauges(self, cluster: str) -> Mapping[str, NodeGauges]:
        """By node, of those that told any in the last minutes. The same mapping while nothing changed."""
        ...

    def paces(self, cluster: str) -> Mapping[str, float]:
        """By node in a job that tells compute times: its slowest rank's over the median of its peers."""
        ...

    def lemons(self, cluster: str) -> Mapping[str, float]:
        """The score of each node that has one."""
        ...

    def unusual(self, cluster: str, node: str) -> Unusual | None:
        """How the node stands among its class in each way of looking at its features; None: no model, or
        nothing measured in the last day."""
        ...

    def fleet_figures(self, cluster: str, node: str) -> NodeStanding | None:
        """What its tests measured beside its model's other nodes, as the detector compared last."""
        ...

    def references(self, cluster: str) -> list[Reference]:
        """What nodes of each kind should be."""
        ...

    def remembers(self, cluster: str) -> bool:
        """Whether a Prometheus-compatible server is set: only then `remembered` gives anything."""
        ...

    def remembered(self, cluster: str, node: str, signal: str, since: datetime, until: datetime) -> "Points":
        """What that server remembers of one signal of a node. Raises HistoryAway."""
        ...

    def heard(self, cluster: str, node: str, since: datetime) -> LastHeard:
        """When the node last spoke, after `since`."""
        ...

    def alerts(self, cluster: str, node: str, since: datetime) -> list[Observation]:
        """What other systems' alerting told of the node, oldest first."""
        ...

    def job_steps(self, cluster: str, job: str, since: datetime) -> "list[StepBatch]": ...


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Who looks. `csrf` goes into the page and comes back in `X-Healer-CSRF`; `clusters` empty means all."""

    name: str
    role: Role
    csrf: str = ""
    clusters: tuple[str, ...] = ()


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """What the browser gets for a sign-in link: the value of the session cookie and how long it lasts."""

    cookie: str
    max_age_s: int


#: Name of the session cookie.
SESSION_COOKIE = "healer_session"

#: The value of the session cookie -> who it is; None when it is unknown, ended or over.
SessionOf = Callable[[str], Session | None]

#: A one-time token -> a session; None when the link is unknown, used or expired (the page tells no more).
SignIn = Callable[[str], NewSession | None]

#: Ends the session with this cookie value.
SignOut = Callable[[str], None]
