"""Inputs and outputs of detectors: components, rules over measured signals, observations, findings with their
evidence."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from healer.model.faults import FORECAST_FAULT, Trait, fault_is
from healer.model.telemetry import Scope
from healer.model.vocabulary import Cause, FaultClass, Mode, PlaceKind, Remedy, Sense, Severity
from healer.text import Said, no_words

#: Prefix of a device where a node name is expected too: no node name begins with it.
DEVICE_MARK = "@"


class Component(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A part of a cluster, as far as it is known.

    `gpu` is the index that Slurm and nvidia-smi use (0-based), `pci` the bus id in the form `0000:9b:00`,
    `link` an NVLink number, `switch` a leaf switch or an NVSwitch, `job` Slurm's job id as text.
    `device` is what is no node (a switch's own telemetry, a PDU, a storage server), `part` a port, outlet or
    target of it.
    """

    cluster: str
    node: str | None = None
    gpu: int | None = None
    pci: str | None = None
    link: int | None = None
    nic: str | None = None
    switch: str | None = None
    job: str | None = None
    rank: int | None = None
    device: str | None = None
    part: str | None = None

    @classmethod
    def of_place(cls, cluster: str, kind: PlaceKind, name: str) -> "Component":
        """A place that nodes share. A rack, a PDU and a domain keep their names from their own telemetry."""
        if kind is PlaceKind.switch:
            return cls(cluster=cluster, switch=name)
        return cls(cluster=cluster, device=name)

    def may_equal(self, other: "Component") -> bool:
        """Whether both may name the same part: they agree on every field that both have. One sender may give
        a GPU's index, another one its address."""
        if self.node != other.node:
            return False
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        return all(ours == theirs for ours, theirs in pairs if ours is not None and theirs is not None)

    def __str__(self) -> str:
        """For people: `gpu0017 GPU 3 (0000:9b:00)`."""
        words = [self.node or self.switch or self.device or self.cluster]
        if self.gpu is not None:
            words.append(f"GPU {self.gpu}")
        if self.pci:
            words.append(f"({self.pci})")
        if self.link is not None:
            words.append(f"link {self.link}")
        if self.switch and self.node:
            words.append(self.switch)
        if self.part and self.device and not self.node:
            words.append(self.part)
        if self.job and not self.node:
            words = [f"job {self.job}"]
        return " ".join(words)


def device_in(subject: str) -> str | None:
    """The device of a report's subject; None for a node."""
    return subject[len(DEVICE_MARK) :] if subject.startswith(DEVICE_MARK) else None


#: Alertmanager and Grafana repeat a firing alert every 4 h by default: twice that, plus the hour in which a
#: repeat may be left out (`healer.signals.alert_bodies.AGAIN_S`).
ALERT_STAYS_H = 9.0
#: The longest that an entry may request: alerts are read back this far after a restart.
ALERT_STAYS_MAX_H = 72
ALERT_STAYS_MAX = timedelta(hours=ALERT_STAYS_MAX_H)


# Wide: an entry of rules/detection/, as sites write it.
class DetectionRule(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `rules/detection/*.yaml`. It is a policy too: the rulebook makes a `Rule` of it.

    `when` is the expression; `for_s` how long it has to hold (`for` in the file, a duration such as 2m).
    `signal` is what the chart shows, `threshold` an expression of the same unit drawn in it (empty: none).
    `evidence` are further signals whose values are shown with the finding. `models` limits the rule to GPU
    models (globs). `source` says where the threshold comes from. `names_xid`: the signal's value is an Xid
    number, and the finding takes that Xid's catalogue row. `sign`: it opens no incident and is recorded as an
    event of its part, whose rate over hours and days may be a fault (`rules/escalations.yaml`).
    """

    name: str
    title: str
    when: str
    scope: Scope
    severity: Severity
    fault_class: FaultClass
    cause: Cause
    source: str
    for_s: float = 0.0
    signal: str = ""
    threshold: str = ""
    evidence: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    remedy: tuple[Remedy, ...] = ()
    playbook: str | None = None
    mode: Mode | None = None
    runbook: str = ""
    unusable: bool = False
    names_xid: bool = False
    sign: bool = False


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `rules/alerts.yaml`: what an alert of another system means. It is a policy too.

    `alert` are globs over the alert's name (or a CloudEvent's type), `labels` globs over its labels; the
    first entry that matches an alert takes it. `opens` false: evidence only, for an incident that is open
    already. An alert not repeated for `stays_h` hours counts as resolved, even without a resolved message.
    """

    name: str
    title: str
    alert: tuple[str, ...]
    source: str
    labels: dict[str, str] = {}
    opens: bool = True
    severity: Severity = Severity.P3
    fault_class: FaultClass = FaultClass.informational
    cause: Cause = Cause.unclear
    stays_h: float = ALERT_STAYS_H
    remedy: tuple[Remedy, ...] = ()
    playbook: str | None = None
    mode: Mode | None = None
    runbook: str = ""


class FiringAlert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert of another system that fires now. `rule` is the entry of `rules/alerts.yaml` that takes it;
    none: it is only evidence. `heard_at` is when it was last reported, to the hour."""

    name: str
    text: str
    component: Component
    since: datetime
    heard_at: datetime
    rule: str | None = None
    source: str = ""
    url: str = ""
    labels: dict[str, str] = {}


class GpuModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU model is made for: `rules/gpu_models.yaml`. `match` are globs over the names that Slurm's
    gres, nvidia-smi and DCGM use; `values` what `spec(name)` gives in a rule."""

    name: str
    match: tuple[str, ...]
    values: dict[str, float]
    source: str


class ChartLine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line of a chart. `role` is one of own, peers, low, high, threshold. None: nothing known then."""

    label: Said
    role: str
    values: tuple[float | None, ...]


class ChartMark(msgspec.Struct, frozen=True, kw_only=True):
    """A moment drawn into a chart."""

    at: datetime
    label: Said


class Chart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The signal that mattered, against its peers. `times` are seconds since 1970, one per value.

    `x` is `time`, or `step` where `times` counts training steps. `signal` and `part` (as in `GPU 3`) let a
    page ask for what came later.
    """

    title: Said
    unit: str
    times: tuple[float, ...]
    lines: tuple[ChartLine, ...]
    marks: tuple[ChartMark, ...] = ()
    x: str = "time"
    signal: str = ""
    node: str | None = None
    gpu: int | None = None
    link: int | None = None
    port: str | None = None


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """How much one feature made a score: `share` is 0..1 of all."""

    feature: str
    share: float
    value: float
    peers: float


# Wide: an entry of rules/forecasts.yaml, as sites write it.
class ForecastRule(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `rules/forecasts.yaml`. It is a policy too, named `forecast-` and its name.

    It follows either `counts`, a counter (the first of these signals that a part has), in events a day, or
    `value`, an expression of the rule language, where the condition `only` is true. It is raised when the
    trend reaches `limit` within `within_days`; below `least` there is no trend yet. `falls`: the limit lies
    below. `decades`: judged by its logarithm. `unit` is for people. `fails` are faults (globs) of the same
    part that prove it right; `models` limits it to GPU models (globs).
    """

    name: str
    title: str
    scope: Scope
    limit: float
    least: float
    unit: str
    fails: tuple[str, ...]
    source: str
    counts: tuple[str, ...] = ()
    value: str = ""
    only: str = ""
    falls: bool = False
    decades: bool = False
    within_days: float = 7
    models: tuple[str, ...] = ()
    severity: Severity = Severity.P3
    remedy: tuple[Remedy, ...] = (Remedy.diagnose,)
    playbook: str | None = None
    mode: Mode = Mode.approve
    runbook: str = "forecast"

    @property
    def rule(self) -> str:
        """The name of its policy, and of its fault."""
        return f"{FORECAST_FAULT}{self.name}"


class Trend(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a trend leads: `level` now, `per_day` its slope, `days` until the limit, from `low` to `high`
    (None: no end in sight). Of a rule in `decades` level and slope are logarithms (base 10)."""

    level: float
    per_day: float
    days: float
    low: float
    high: float | None = None


class Outcome(StrEnum):
    """Result of a forecast. `void`: undecidable, because the part left before its time. `unforeseen`: a fault
    that should have had a forecast and had none."""

    open = "open"
    hit = "hit"
    miss = "miss"
    void = "void"
    unforeseen = "unforeseen"


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """A part that is likely to fail before `until`; made once per part. `rule` is the policy's name, `seen`
    the trend when it was made (None: `unforeseen`). Ended at `ended_at` with `outcome`, for the reason
    `why`."""

    id: str
    cluster: str
    rule: str
    component: Component
    told_at: datetime
    until: datetime
    seen: Trend | None
    limit: float
    incident: str | None = None
    outcome: Outcome = Outcome.open
    ended_at: datetime | None = None
    why: Said = msgspec.field(default_factory=no_words)


class ForecastScore(msgspec.Struct, frozen=True, kw_only=True):
    """How good a rule's forecasts are. `unforeseen`: faults of its `fails`, on parts that it follows, without
    a forecast. Precision hits / (hits + misses), recall hits / (hits + unforeseen); None before the first."""

    open: int = 0
    hits: int = 0
    misses: int = 0
    void: int = 0
    unforeseen: int = 0

    @property
    def precision(self) -> float | None:
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else None

    @property
    def recall(self) -> float | None:
        return self.hits / (self.hits + self.unforeseen) if self.hits + self.unforeseen else None


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """A collected file as it lies on its node. `sha256` is hex; `parts` says in words what is in it."""

    size_bytes: int
    sha256: str
    parts: tuple[str, ...] = ()


class EvidenceFile(msgspec.Struct, frozen=True, kw_only=True):
    """The same file, kept by healer: gzip of text. `id` follows from the run and its step."""

    id: str
    cluster: str
    node: str
    run: str
    name: str
    at: datetime
    bundle: Bundle
    incident: str | None = None


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a finding rests on, as people read it. `job` is the job that the signal itself names."""

    digest: str
    at: datetime
    component: Component
    text: Said
    #: The sense that reported it: two senses that agree count for more than one sense twice.
    sense: Sense
    line: str = ""
    arrived_at: datetime | None = None
    job: str | None = None
    #: A fatal fault that was reported, not measured: it has ended the work on its GPU.
    fatal: bool = False
    #: It says that its component certainly cannot work.
    unusable: bool = False
    #: The token that relayed it, if it is not the node's own report; such text is believed only once a second
    #: sense agrees (`healer.incidents.certainty`).
    relayed_by: str = ""
    #: For step times: the tokens that sent those of the job.
    sent_by: str = ""
    #: The run that asked the node about it; and what the node shows instead, if it denies that.
    look: str = ""
    denied: Said | None = None


# Wide: everything that any detector may report; each sets a few of the fields with a default.
class Finding(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`rule` names the detection rule, `fault` the narrower kind of fault (for example `xid-79`).

    `unusable`: the component surely cannot work (law 2). `teardown`: means nothing after a root fault in
    the same job (Xid 45 and its kin). `confidence` is 0..1. `jobs` are the jobs the signal itself names.
    """

    rule: str
    fault: str
    fault_class: FaultClass
    component: Component
    at: datetime
    arrived_at: datetime
    text: Said
    confidence: float
    evidence: tuple[Evidence, ...]
    unusable: bool = False
    teardown: bool = False
    jobs: tuple[str, ...] = ()
    #: What else the cause covers, if the root is shared (a switch and its nodes).
    affected: tuple[Component, ...] = ()
    #: What the driver itself requests (Xid 154, RST / D-RST); overrides the catalogue.
    asked: str | None = None
    #: The main signal, against its peers.
    charts: tuple[Chart, ...] = ()
    #: The main contributions to the score of its class's model, largest first.
    contributions: tuple[Contribution, ...] = ()
    #: Evidence for an incident that is already open at its place: opens none and raises no severity.
    evidence_only: bool = msgspec.field(default=False, name="beside")
    #: It follows from a fault elsewhere: if a root is open in the same job, it is only counted.
    follows: bool = False
    #: The remedy and cause in its catalogue row; the rule's own values override them.
    remedy: Remedy | None = None
    cause: Cause | None = None
    #: A short name for pages and Slurm's reason, if the whole `text` is too long for that.
    title: Said | None = None
    #: For a forecast: where the trend leads.
    foreseen: Trend | None = None

    @classmethod
    def from_evidence(cls, evidence: Evidence, *, fault: str, **more: Any) -> "Finding":
        """The finding of one piece of evidence: place, time, text and job are the evidence's unless `more`
        has others, and the rule has the fault's name."""
        given = {
            "rule": fault,
            "component": evidence.component,
            "at": evidence.at,
            "arrived_at": evidence.arrived_at,
            "text": evidence.text,
            "jobs": (evidence.job,) if evidence.job else (),
        }
        return cls(fault=fault, evidence=(evidence,), **(given | more))

    @property
    def of_one_gpu(self) -> bool:
        """A kernel line about one GPU, even if its address is lost; otherwise the place is the node."""
        about_gpu = fault_is(self.fault, Trait.gpu_line) and self.component.switch is None
        return about_gpu and bool(self.evidence[0].line)

    @property
    def headline(self) -> Said:
        return self.title or self.text


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node's own report of something that may stop a job on it: a lost link, file system, disk or memory.
    `at`: when healer received it. `evidence`: the kernel's line; None: measured, such as a port's state."""

    at: datetime
    text: Said
    fault: str = ""
    evidence: Evidence | None = None
    remedy: Remedy | None = None


class Detections(msgspec.Struct, frozen=True, kw_only=True):
    """`findings` are new ones. `clear_since`: (fault, component) -> since when its cause is known to be gone.

    Anything unknown is in neither: missing data opens nothing and closes nothing.
    """

    at: datetime
    findings: tuple[Finding, ...] = ()
    clear_since: Mapping[tuple[str, Component], datetime] = {}


class ObservationKind(StrEnum):
    xid = "xid"
    sxid = "sxid"
    gpu_lost = "gpu_lost"  # fallen off the bus, reported without an Xid number
    kernel_line = "kernel_line"  # a line without a code, see `rules/kernel_lines.yaml`; `data["name"]`
    gpu_identity = "gpu_identity"  # the line that gives PCI address and UUID
    heartbeat = "heartbeat"
    gpu_inventory = "gpu_inventory"  # which GPU has which index, by the labels of telemetry
    inventory = "inventory"  # the node's hardware and configuration (`healer.model.FACTS`)
    hook = "hook"  # one run of a Slurm hook on its node, with its checks (see `healer.signals.hook_reports`)
    checkpoint = "checkpoint"  # what a requeued job can resume from
    alert = "alert"  # an alert of another system (see `healer.signals.alert_bodies`)
    command = "command"  # commands of people and runs to the detector (see `healer.model.node`)


#: Lines that may be faults.
KERNEL_LINES = frozenset(
    {ObservationKind.xid, ObservationKind.sxid, ObservationKind.gpu_lost, ObservationKind.kernel_line}
)


class Observation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One parsed signal.

    `digest` is its identity (hex): a repeated signal has the same digest. `event_at` is the sender's clock,
    `arrived_at` ours; both are UTC. `data` holds what only this kind has, e.g. for an Xid: `pid`, `process`,
    `gpu_instance`, `compute_instance`, `caused_by`, `recovery_action`, `unit`, `fatal_word`, `registers`.
    """

    digest: str
    kind: ObservationKind
    component: Component
    event_at: datetime
    arrived_at: datetime
    boot_id: str | None = None
    code: int | None = None
    text: str = ""
    line: str = ""
    data: dict[str, Any] = {}
    #: The kernel's sequence number of the line, if its sender knows it.
    seq: int | None = None
    #: The token that relayed it, if that is not the node's own report (`healer.api.event_routes`).
    relayed_by: str = ""
    #: Row in the inbox; None where there is no inbox (replay, simulation).
    inbox_id: int | None = None


#: Before every other time.
EARLIEST = datetime.min.replace(tzinfo=UTC)


def is_due(last: datetime | None, every: timedelta, now: datetime) -> bool:
    """Whether the next time has come, `every` after the `last`. A clock that was set back causes no delay."""
    return last is None or abs(now - last) >= every
