"""What is likely to fail: entries of `rules/forecasts.yaml`, what was foretold, and what came of it."""

from datetime import datetime
from enum import StrEnum

import msgspec

from healer.model.component import Component
from healer.model.signals import Scope
from healer.model.words import Mode, Remedy, Severity

#: What the rule and the fault of a forecast begin with.
FORECAST_FAULT = "forecast-"


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
