"""Shapes of what the API reads, where they are more than a noun. JSON names are the field names."""

from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from healer.model import (
    Answer,
    AuditRecord,
    BreakerState,
    Broken,
    Decision,
    Finding,
    FiringAlert,
    ForecastScore,
    Incident,
    IncidentVerdict,
    LastHeard,
    LemonPart,
    Limit,
    LogEntry,
    Message,
    Mode,
    NodeContext,
    NodeStatus,
    Playbook,
    Reference,
    Review,
    Root,
    Run,
    Similar,
    SlurmJob,
    SlurmNode,
    Verdict,
    VerdictAt,
)
from healer.model.unusual import Unusual

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


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is evidence, finding, verdict, decision, step, note, person or message. `at` is the event's own
    time."""

    at: datetime
    kind: str
    text: str
    by: str = ""
    data: dict[str, Any] = {}


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a run as it stands. `state` is the last event of its log, `pending` before the first.

    `undo` says how the step is taken back, empty when it cannot be or has nothing to take back.
    """

    id: str
    title: str
    state: str
    attempt: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    text: str = ""
    undo: str = ""
    evidence: dict[str, Any] = {}


class RunDetail(Run, frozen=True, kw_only=True):
    """A run as lists show it, and how far it is."""

    title: str
    steps: list[StepView]
    log: list[LogEntry]
    decisions: list[Decision]


class IncidentDetail(Incident, frozen=True, kw_only=True):
    """An incident as lists show it, and all that hangs on it. `runs` come with steps and log.

    Evidence, findings, verdict and action stand apart: `evidence` is what was read, `findings` what detectors
    claim, `verdict` what healer holds true now (`verdicts`: from when on it held what, oldest first, the
    newest 50), `decisions` and `runs` what is done about it. `jobs` are the jobs hit as Slurm still shows
    them; `state` UNKNOWN where it has forgotten them.
    """

    findings: list[Finding]
    verdict: IncidentVerdict
    verdicts: list[VerdictAt]
    decisions: list[Decision]
    runs: list[RunDetail]
    timeline: list[TimelineEntry]
    jobs: list[SlurmJob]
    similar: list[Similar]
    notes: list[Note]
    messages: list[Message]
    audit: list[AuditRecord]


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a node as far as it is known. `verdict` from the open incidents that name it.

    `signals`: name in the catalogue -> newest value; what is older than its signal's `stale_s` is left out.
    """

    index: int
    pci: str | None = None
    uuid: str | None = None
    #: The number on its board.
    serial: str | None = None
    #: The job that Slurm shows on it.
    job: str | None = None
    verdict: Verdict = Verdict.healthy
    incidents: list[str] = []
    model: str = ""
    signals: dict[str, float] = {}
    measured_at: datetime | None = None


class LinkView(msgspec.Struct, frozen=True, kw_only=True):
    """The newest values of one NVLink (`gpu` and `link`) or NIC port (`port`)."""

    gpu: int | None = None
    link: int | None = None
    port: str | None = None
    signals: dict[str, float] = {}


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """`out_by` is healer, person, program, slurm or planned, None while in service. `owner` is who that is by
    name, and `reason_age_s` how old the reason was when Slurm's picture was taken.

    `status` is what Slurm's state comes to, `unknown_flags` what of it nobody knows: healer never resumes
    such a node by itself. `switches` go from leaf to root. `may_run_jobs` is Slurm's own word; `why` explains
    it in one sentence. `gpus`, `jobs`, `history`, `signals`, `links`, `heard` and `alerts` are filled for a
    single node only; `measured_at` is when it last reported, None when nothing came in the last 15 minutes.
    `context` is what goes on there now, by which its faults are judged (docs/rules.md, `context.yaml`).
    `inventory` is what the node told of itself (driver, firmware, settings), `reference` the good node of its
    kind, `differs` what of the inventory is otherwise there. `probation_until`: it came back of late,
    and a fault of the same part is one severity more urgent until then. `lemon_score` is how much it fails
    again and again (docs/detection.md, lemons), `lemon` what that comes from. `unusual` is how it stands
    among its class in each way of looking at its features, for a single node only; None without a model.
    """

    cluster: str
    name: str
    verdict: Verdict
    may_run_jobs: bool
    why: str
    status: NodeStatus = NodeStatus.unknown
    unknown_flags: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    out_by: str | None = None
    owner: str | None = None
    probation_until: datetime | None = None
    context: tuple[NodeContext, ...] = ()
    reason_age_s: float | None = None
    known_bad_in_service: bool = False
    slurm: SlurmNode
    incidents: list[str] = []
    gpus: list[GpuView] = []
    jobs: list[SlurmJob] = []
    history: list[Incident] = []
    lemon_score: float = 0
    lemon: tuple[LemonPart, ...] = ()
    unusual: Unusual | None = None
    taken_at: datetime | None = None
    signals: dict[str, float] = {}
    links: list[LinkView] = []
    measured_at: datetime | None = None
    heard: LastHeard | None = None
    alerts: list[FiringAlert] = []
    inventory: dict[str, str] = {}
    reference: Reference | None = None
    differs: dict[str, str] = {}


class JobStepView(msgspec.Struct, frozen=True, kw_only=True):
    """One step over all ranks that told it: seconds, medians but for `slowest_compute_s`."""

    step: int
    at: datetime | None
    ranks: int
    step_s: float | None = None
    compute_s: float | None = None
    slowest_compute_s: float | None = None
    slowest_rank: int | None = None


class RankView(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank did over the last 20 steps: `slower` is compute per work above its stage (0.18: 18 %)."""

    rank: int
    node: str | None
    gpu: int | None
    stage: int | None
    slower: float
    last: float | None
    compute_s: float | None
    slow_steps: int


class StepTimesView(msgspec.Struct, frozen=True, kw_only=True):
    """Step times of the last 30 minutes, 200 steps at most, of the job's life `restart`.

    `whole_only`: the job tells no compute time, so nobody can say which rank is slow.
    """

    restart: int
    ranks: int
    whole_only: bool
    steps: list[JobStepView]
    slowest: list[RankView]


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    restart: int
    step: int
    path: str
    durable: bool
    at: datetime
    #: As the job told it; None where it made none.
    sha256: str | None = None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """`job` is None when Slurm no longer knows it; `step_times` when none came in the last 30 minutes.

    `gpu_hours_lost`: the sum of what its lives lost, as the incidents that hit it tell (`hit`); None while
    that is not known. `gpu_hours_at_most`: a life told no durable checkpoint, so all of it counts. `done`
    says in sentences what healer did to the job, or why it did nothing, oldest first. `errors` are lines that
    the driver logged of its own programs (Xid 43, 45), counted by code: alone they accuse no node.
    """

    cluster: str
    id: str
    job: SlurmJob | None
    nodes: list[str]
    incidents: list[Incident]
    requeues: list[dict[str, Any]] = []
    done: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    step_times: StepTimesView | None = None
    checkpoints: list[CheckpointView] = []
    gpu_hours_lost: float | None = None
    gpu_hours_at_most: bool = False


class RuleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What running has added to a rule: its mode, and what people said of its incidents."""

    mode: Mode | None = None
    mode_by: str | None = None
    mode_reason: str | None = None
    mode_at: datetime | None = None
    incidents: int = 0
    reviews: dict[Review, int] = {}
    last_incident_at: datetime | None = None
    forecasts: ForecastScore | None = None


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
    why: str


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would do, and what the gate says to it now. `outcome` is act, held or refused."""

    playbook: Playbook
    cluster: str
    node: str | None
    job: str | None
    outcome: str
    why: str
    answers: list[Answer] = []
    jobs_hit: list[SlurmJob] = []
    #: Name them in `restart` as the run is started or approved: only then they are restarted.
    restarts: list[RestartOffer] = []
    limits: list[Limit] = []
    slurm: SlurmNode | None = None
    #: Steps, by id, that would ask a person here: no adapter can do them with this Slurm.
    not_available: dict[str, str] = {}


class BreakerView(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    state: BreakerState
    roots: list[Root] = []
    since: datetime | None = None
    why: str = ""
    canary: str | None = None
    reset_by: str | None = None
    reset_reason: str | None = None


class AuditVerified(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    broken: list[Broken] = []
    records: int = 0


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
    were hit of which nobody knows.
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


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """`ready` is False while any of `checks` fails; each is {"ok", "text", …figures}."""

    ready: bool
    checks: dict[str, dict[str, Any]]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is incident, run, fleet, breaker, pause, audit, or reset (fetch all anew)."""

    id: int
    kind: str
    data: dict[str, Any]
