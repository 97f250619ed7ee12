"""Rules over measured signals, what is known of GPU models, and the picture of a finding."""

from datetime import datetime

import msgspec

from healer.model.signals import Scope
from healer.model.words import Cause, FaultClass, Mode, Remedy, Severity


class DetectionRule(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `rules/detection/*.yaml`. It is a policy too: `healer.ruleset` makes a `Rule` of it.

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
