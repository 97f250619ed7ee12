"""Parts that are likely to fail: trends of `rules/forecasts.yaml`, reported as findings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.detection.language import parse
from healer.detection.language.compile import Moment, Program
from healer.detection.language.expr import Expr
from healer.detection.language.truth_columns import TRUE
from healer.detection.outlook import Outlook, outlook
from healer.detection.protocol import Detector, Episode, Episodes, TickInput, new_evidence, unreadable
from healer.model import (
    OF_DEVICES,
    Catalogue,
    Component,
    Detections,
    FaultClass,
    Finding,
    ForecastRule,
    Ruleset,
    Scope,
    Sense,
    Trend,
)
from healer.observations.fault_history import is_another, part_named
from healer.observations.telemetry_windows import Telemetry
from healer.observations.trends import POINT_S, Saved, Series, means
from healer.text import Said, quoted, say

#: How often signals are read; the trend is judged when a point is complete, every 6 hours. A lasting trend is
#: reported again with each new point.
LOOK_S = 300.0
#: A trend is over when this many points in a row do not show it: one quiet quarter of a day is not enough.
OVER_LOOKS = 4
#: The name under which the GPU of each series is stored.
PARTS = "gpu-parts"
#: The present level is the mean of this many points: a day.
_NOW_POINTS = 4


@dataclass(slots=True)
class _Followed:
    rule: ForecastRule
    value: Expr | None
    only: Expr | None
    series: Series
    saved: Saved | None = None
    #: Rows whose component was looked up in `saved`.
    placed: int = 0
    #: Parts that are likely to fail.
    episodes: Episodes[Trend] = field(default_factory=lambda: Episodes(OVER_LOOKS))

    def load(self, packed: Mapping[str, bytes]) -> list[str]:
        """As `Detector.load`."""

        def read(kept: bytes) -> None:
            self.saved = Saved(kept)

        return unreadable(packed, self.rule.name, read)


class Forecasts(Detector):
    """The trends of one cluster. Deterministic: the same samples at the same moments give the same
    findings."""

    def __init__(
        self, rules: Sequence[ForecastRule], catalogue: Catalogue, before: "Forecasts | None" = None
    ) -> None:
        """`before`: the forecasts of the earlier rules. Unchanged rules keep their data."""
        before_by_name = {followed.rule.name: followed for followed in before.followed} if before else {}
        self.followed = [
            before_by_name[rule.name]
            if rule.name in before_by_name and before_by_name[rule.name].rule == rule
            else _follow(rule, catalogue)
            for rule in rules
        ]
        expressions = [expr for followed in self.followed for expr in (followed.value, followed.only)]
        self._program = Program([expr for expr in expressions if expr is not None])
        self.looked_s = before.looked_s if before else -math.inf
        #: Node and GPU -> the part last seen there.
        self.parts: dict[tuple[str, int], str] = before.parts if before else {}

    @property
    def nbytes(self) -> int:
        return sum(followed.series.nbytes for followed in self.followed)

    def under(self, rules: Ruleset) -> "Forecasts":
        return Forecasts(rules.forecasts, rules.catalogue, before=self)

    # --- keeping ----------------------------------------------------------------------------------------

    def pack(self, telemetry: Telemetry) -> dict[str, bytes]:
        parts = [(node, gpu, part) for (node, gpu), part in self.parts.items()]
        return {
            followed.rule.name: followed.series.pack(
                telemetry.axis(followed.rule.scope).components(), followed.saved
            )
            for followed in self.followed
            if followed.series.head is not None
        } | ({PARTS: msgspec.json.encode(parts)} if parts else {})

    def load(self, packed: Mapping[str, bytes]) -> list[str]:
        lost = [name for followed in self.followed for name in followed.load(packed)]
        return lost + unreadable(packed, PARTS, self._load_parts)

    def _load_parts(self, kept: bytes) -> None:
        parts = msgspec.json.decode(kept, type=list[tuple[str, int, str]])
        self.parts = {(node, gpu): part for node, gpu, part in parts}

    def know_parts(self, telemetry: Telemetry, gpus: Sequence[tuple[str, int, str]]) -> None:
        """Starts a new series where the part has been replaced."""
        changed = []
        for node, gpu, part in gpus:
            before = self.parts.get((node, gpu))
            self.parts[node, gpu] = part
            if before is not None and _is_another(before, part):
                changed.append(Component(cluster=telemetry.cluster, node=node, gpu=gpu))
        axis = telemetry.axis(Scope.gpu)
        rows = [row for where in changed if (row := axis.row(where)) is not None]
        for followed in self.followed if changed else ():
            if followed.rule.scope is not Scope.gpu:
                continue
            followed.series.forget(np.array(rows, np.intp))
            for where in changed:
                if followed.saved is not None:
                    followed.saved.forget(where)
                if followed.episodes.on.pop(where, None) is not None:
                    followed.episodes.over[where] = datetime.fromtimestamp(self.looked_s, UTC)

    # --- looking ----------------------------------------------------------------------------------------

    def tick(self, given: TickInput) -> Detections:
        """Cheap, except once per `LOOK_S`."""
        telemetry, now = given.telemetry, given.now
        at_s = now.timestamp()
        if at_s - self.looked_s >= LOOK_S:
            self.looked_s = at_s
            moment = self._program.tick(telemetry, now)
            for followed in self.followed:
                self._place(followed, telemetry)
                if followed.series.look(_readings(followed, telemetry, moment, now), at_s):
                    _judge(followed, telemetry, now)
        findings, clear = [], {}
        for followed in self.followed:
            rule, episodes = followed.rule, followed.episodes
            findings += [_finding(rule, where, episode, telemetry, now) for where, episode in episodes.due()]
            clear |= episodes.cleared(rule.rule, given.watched)
        return Detections(at=now, findings=tuple(findings), clear_since=clear)

    def _place(self, followed: _Followed, telemetry: Telemetry) -> None:
        """Gives stored data to rows that appeared since the last look."""
        components = telemetry.axis(followed.rule.scope).components()
        if followed.saved is not None and len(components) > followed.placed:
            followed.saved.give(followed.series, components, followed.placed)
            if not len(followed.saved):
                followed.saved = None
        followed.placed = len(components)


def _is_another(before: str, now: str) -> bool:
    old, new = part_named(before), part_named(now)
    return old is not None and new is not None and is_another(old, new)


def _follow(rule: ForecastRule, catalogue: Catalogue) -> _Followed:
    value = parse.number(rule.value, catalogue.signals, rule.scope) if rule.value else None
    only = parse.condition(rule.only, catalogue.signals, rule.scope) if rule.only else None
    return _Followed(rule, value, only, Series(counter=bool(rule.counts)))


def _readings(
    followed: _Followed, telemetry: Telemetry, moment: Moment, now: datetime
) -> NDArray[np.float64]:
    """(n,) of the rule's axis; NaN where unknown, or where the rule does not apply."""
    rule, n = followed.rule, telemetry.axis(followed.rule.scope).n
    found = np.full(n, np.nan)
    if followed.value is not None:
        found = np.broadcast_to(np.asarray(moment.number(followed.value), np.float64), (n,)).copy()
    for name in rule.counts:
        found = np.where(np.isnan(found), telemetry.value(name, now), found)
    if followed.only is not None:
        found[moment.truth(followed.only) != TRUE] = np.nan
    if rule.models:
        found[~telemetry.is_model(rule.models, rule.scope)] = np.nan
    return found


def _judged(rule: ForecastRule, series: NDArray[np.float64]) -> Outlook:
    """(points, k) -> trends. NaN where the limit is not likely to be reached in time."""
    limit = rule.limit
    if rule.decades:  # values far below `least` are all alike: a quiet part
        series = np.log10(np.maximum(series, rule.least / 10))
        limit = math.log10(limit)
    found = outlook(series, POINT_S / 86400, limit, falls=rule.falls)
    with np.errstate(invalid="ignore"):
        soon = found.days <= rule.within_days
    return Outlook(*(np.where(soon, each, np.nan) for each in found))


def _is_near(rule: ForecastRule, level: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(n,) whether the level is such that its trend is looked at."""
    with np.errstate(invalid="ignore"):
        return level <= rule.least if rule.falls else level >= rule.least


def likely(rule: ForecastRule, series: NDArray[np.float64]) -> list[Trend | None]:
    """(points, k) -> for each series its trend, if that reaches the limit in time."""
    found: list[Trend | None] = [None] * series.shape[1]
    high = np.flatnonzero(_is_near(rule, means(series[-_NOW_POINTS:])))
    if len(high):
        shown = _judged(rule, series[:, high])
        for at in np.flatnonzero(np.isfinite(shown.days)).tolist():
            found[int(high[at])] = shown.at(at)
    return found


def _judge(followed: _Followed, telemetry: Telemetry, now: datetime) -> None:
    rule, level = followed.rule, followed.series.newest(_NOW_POINTS)
    rows = np.flatnonzero(_is_near(rule, level))
    trends = likely(rule, followed.series.series(rows))
    axis = telemetry.axis(rule.scope)
    components = axis.components()
    soon = {
        components[row]: trend for row, trend in zip(rows.tolist(), trends, strict=True) if trend is not None
    }
    for where, trend in soon.items():
        followed.episodes.show(where, trend, now)
    for where in [where for where in followed.episodes.on if where not in soon]:
        row = axis.row(where)
        # Missing data does not mean that the trend is over.
        if row is not None and row < len(level) and np.isfinite(level[row]):
            followed.episodes.miss(where, now)


# --- findings ---


def _finding(
    rule: ForecastRule, component: Component, episode: Episode[Trend], telemetry: Telemetry, now: datetime
) -> Finding:
    identity = f"{rule.rule}|{component.cluster}|{component!r}|{episode.since.isoformat()}"
    text = sentence(rule, episode.now)
    affected: tuple[Component, ...] = ()
    if rule.scope in OF_DEVICES:
        behind = telemetry.nodes_behind(component)
        affected = tuple(Component(cluster=component.cluster, node=name) for name in behind)
        text = say("detection.told", head=str(component), text=text)
    return Finding.from_evidence(
        new_evidence(identity, component, episode.since, text, now, Sense.metrics),
        fault=rule.rule,
        fault_class=FaultClass.degraded,
        title=say("detection.forecast", count=_days_left(episode.now), title=quoted(rule.title)),
        confidence=0.6,
        affected=affected,
        foreseen=episode.now,
    )


def sentence(rule: ForecastRule, seen: Trend) -> Said:
    """`likely to fail within 4 days (3 to 6): 112 errors a day now, 21 more each day, the limit is 200`"""
    now = _figure(rule, 10**seen.level if rule.decades else seen.level)
    limit = _figure(rule, rule.limit)
    if seen.days <= 0:
        return say("detection.forecast_now", now=now, limit=limit)
    if seen.high is not None:
        span = say("detection.days_range", low=_days(seen.low), high=_days(seen.high))
    else:
        span = say("detection.days_or_more", low=_days(seen.low))
    if rule.decades:
        pace = say("detection.pace_times", n=10 ** abs(seen.per_day))
    else:
        pace = say("detection.pace_less" if rule.falls else "detection.pace_more", n=abs(seen.per_day))
    days = _days_left(seen)
    return say("detection.forecast_text", count=days, span=span, now=now, pace=pace, limit=limit)


def _days_left(seen: Trend) -> int:
    return max(1, math.ceil(seen.days))


def _days(days: float) -> str:
    return f"{days:.1f}" if days < 10 else f"{days:.0f}"


def _figure(rule: ForecastRule, value: float) -> str:
    figure = f"{value:.3g}"
    return say("detection.forecast_figure", value=figure, unit=quoted(rule.unit)) if rule.unit else figure
