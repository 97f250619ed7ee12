"""Rules over measured signals, what is known of GPU models, and the picture of a finding."""

from datetime import datetime
from enum import StrEnum

import msgspec

from healer.model.component import Component
from healer.model.faults import FORECAST_FAULT
from healer.model.telemetry import Scope
from healer.model.vocabulary import Cause, FaultClass, Mode, Remedy, Severity

#: Alertmanager and Grafana repeat what fires every 4 h unless told otherwise: twice that, and the hour for
#: which a repeat may go unnoted (`healer.signals.alert_bodies.AGAIN_S`).
ALERT_STAYS_H = 9.0
#: The longest that an entry may ask for: so far back alerts are read after a restart.
ALERT_STAYS_MAX_H = 72.0


# Wide: an entry of rules/detection/, as sites write it.
class DetectionRule(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `rules/detection/*.yaml`. It is a policy too: the rulebook makes a `Rule` of it.

    `when` is the expression; `for_s` how long it has to hold (`for` in the file, a duration such as 2m).
    `signal` is what the chart shows, `threshold` an expression of the same unit drawn in it (empty: none).
    `evidence` are further signals whose values are told with the finding. `models` limits the rule to GPU
    models (globs). `source` says where the threshold comes from.
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


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `rules/alerts.yaml`: what an alert of another system means. It is a policy too.

    `alert` are globs over the alert's name (or a CloudEvent's type), `labels` globs over its labels; the
    first entry that fits an alert has it. `opens` false: it is only evidence beside what is known already.
    An alert that nobody repeats for `stays_h` hours is over, whether or not it was said to be resolved.
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
    none: it is only evidence. `heard_at` is when it was told last, to an hour."""

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

    label: str
    role: str
    values: tuple[float | None, ...]


class ChartMark(msgspec.Struct, frozen=True, kw_only=True):
    """A moment drawn into a chart."""

    at: datetime
    label: str


class Chart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The signal that mattered, against its peers. `times` are seconds since 1970, one per value.

    `x` is `time`, or `step` where `times` counts training steps. `signal` and `part` (as in `GPU 3`) let a
    page ask for what came later.
    """

    title: str
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
    `value`, an expression of the rule language, where the condition `only` is true. It is told when the trend
    reaches `limit` within `within_days`; below `least` it is no trend yet. `falls`: the limit lies below.
    `decades`: judged by its logarithm. `unit` is for people. `fails` are faults (globs) of the same part that
    prove it right; `models` limits it to GPU models (globs).
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


class Foreseen(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a trend leads: `level` now, `per_day` its slope, `days` until the limit, from `low` to `high`
    (None: no end in sight). Of a rule in `decades` level and slope are logarithms (base 10)."""

    level: float
    per_day: float
    days: float
    low: float
    high: float | None = None


class Outcome(StrEnum):
    """What came of a forecast. `void`: nobody can tell, the part left before its time. `unforeseen`: no
    forecast, but a fault of a part of which there should have been one."""

    open = "open"
    hit = "hit"
    miss = "miss"
    void = "void"
    unforeseen = "unforeseen"


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Told once for a part: that it is likely to fail before `until`. `rule` is the policy's name, `seen`
    what it rested on when it was told (None: `unforeseen`). Ended at `ended_at` with `outcome`, for `why`."""

    id: str
    cluster: str
    rule: str
    component: Component
    told_at: datetime
    until: datetime
    seen: Foreseen | None
    limit: float
    incident: str | None = None
    outcome: Outcome = Outcome.open
    ended_at: datetime | None = None
    why: str = ""


class ForecastScore(msgspec.Struct, frozen=True, kw_only=True):
    """How good a rule's forecasts are. `unforeseen`: faults of its `fails` on parts that it follows, of which
    nothing was foretold. Precision hits / (hits + misses), recall hits / (hits + unforeseen); None before the
    first."""

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
