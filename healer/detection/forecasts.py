"""Parts that are likely to fail: trends of `rules/forecasts.yaml`, read now and then, told as findings."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from healer.detection.language import parse
from healer.detection.language.compile import Moment, Program
from healer.detection.language.expr import Expr
from healer.detection.language.truth_columns import TRUE
from healer.detection.outlook import Outlook, outlook
from healer.detection.protocol import Detector, Look, Pair
from healer.model import (
    OF_DEVICES,
    Catalogue,
    Component,
    Detections,
    Evidence,
    FaultClass,
    Finding,
    ForecastRule,
    Ruleset,
    Scope,
    Sense,
    Trend,
)
from healer.observations.telemetry_windows import Telemetry
from healer.observations.trends import POINT_S, Saved, Series

#: Signals are read so often; the trend is looked at when a point is complete, each 6 hours.
LOOK_S = 300.0
#: What stands is told again with each new point, so each 6 hours at most.
#: A trend is over when this many looks in a row do not show it: one quiet quarter of a day is no cure.
OVER_LOOKS = 4
#: Points that say how high a level is now: a day.
_NOW_POINTS = 4


@dataclass(slots=True)
class _Foretold:
    """One part of which it is told that it will fail."""

    since: datetime
    #: As the newest look that showed it has it.
    now: Trend
    missed: int = 0
    due: bool = True


@dataclass(slots=True)
class _Followed:
    rule: ForecastRule
    value: Expr | None
    only: Expr | None
    series: Series
    saved: Saved | None = None
    #: Rows whose component was looked up in `saved`.
    placed: int = 0
    told: dict[int, _Foretold] = field(default_factory=dict)
    #: What ended: since when it is known not to stand.
    cleared: dict[Component, datetime] = field(default_factory=dict)


class Forecasts(Detector):
    """The trends of one cluster. One thread owns it; the same samples and moments tell the same."""

    def __init__(
        self, rules: Sequence[ForecastRule], catalogue: Catalogue, before: "Forecasts | None" = None
    ) -> None:
        """`before`: those of the rules until now. Rules that did not change keep what they know."""
        known = {one.rule.name: one for one in before.followed} if before else {}
        self.followed = [
            known[rule.name]
            if rule.name in known and known[rule.name].rule == rule
            else _follow(rule, catalogue)
            for rule in rules
        ]
        roots = [root for one in self.followed for root in (one.value, one.only) if root is not None]
        self._program = Program(roots)
        self.looked_s = before.looked_s if before else -math.inf
        #: Node and GPU -> the part that was seen there last.
        self.parts: dict[tuple[str, int], str] = before.parts if before else {}

    @property
    def nbytes(self) -> int:
        return sum(one.series.nbytes for one in self.followed)

    def under(self, rules: Ruleset) -> "Forecasts":
        return Forecasts(rules.forecasts, rules.catalogue, before=self)

    # --- keeping ----------------------------------------------------------------------------------------

    def pack(self, telemetry: Telemetry) -> dict[str, bytes]:
        """What a restart needs, by rule."""
        return {
            one.rule.name: one.series.pack(telemetry.axis(one.rule.scope).components())
            for one in self.followed
            if one.series.head is not None
        }

    def load(self, packed: Mapping[str, bytes]) -> list[str]:
        """Takes what was kept; returns the rules of which it cannot be read, which begin anew."""
        wrong = []
        for one in self.followed:
            if one.rule.name not in packed:
                continue
            try:
                one.saved = Saved(packed[one.rule.name])
            except ValueError:
                wrong.append(one.rule.name)
        return wrong

    def know_parts(self, telemetry: Telemetry, gpus: Sequence[tuple[str, int, str]]) -> None:
        """Where the part is another one, other series begin."""
        changed = []
        for node, gpu, part in gpus:
            before = self.parts.get((node, gpu))
            self.parts[node, gpu] = part
            if before is not None and before != part:
                changed.append((node, gpu))
        for one in self.followed if changed else ():
            if one.rule.scope is not Scope.gpu:
                continue
            axis = telemetry.axis(Scope.gpu)
            places = [Component(cluster=telemetry.cluster, node=node, gpu=gpu) for node, gpu in changed]
            rows = [row for place in places if (row := axis.row(place)) is not None]
            one.series.forget(np.array(rows, np.intp))
            for row in rows:
                if one.told.pop(row, None) is not None:
                    one.cleared[axis.components()[row]] = datetime.fromtimestamp(self.looked_s, UTC)

    # --- looking ----------------------------------------------------------------------------------------

    def tick(self, look: Look) -> Detections:
        """Cheap but for each `LOOK_S`."""
        telemetry, now = look.telemetry, look.now
        at_s = now.timestamp()
        if at_s - self.looked_s >= LOOK_S:
            self.looked_s = at_s
            moment = self._program.tick(telemetry, now)
            for one in self.followed:
                self._place(one, telemetry)
                if one.series.look(_readings(one, telemetry, moment, now), at_s):
                    _judge(one, telemetry, now)
        findings = [finding for one in self.followed for finding in _tell(one, telemetry, now)]
        return Detections(at=now, findings=tuple(findings), clear_since=self._clear(look.watched))

    def _place(self, one: _Followed, telemetry: Telemetry) -> None:
        """Rows that appeared since the last look get what was kept of them."""
        components = telemetry.axis(one.rule.scope).components()
        if one.saved is not None and len(components) > one.placed:
            one.saved.give(one.series, components, one.placed)
            if not len(one.saved):
                one.saved = None
        one.placed = len(components)

    def _clear(self, watched: Collection[Pair]) -> dict[Pair, datetime]:
        by_rule = {one.rule.rule: one for one in self.followed}
        clear = {}
        for fault, component in watched:
            one = by_rule.get(fault)
            since = one.cleared.get(component) if one is not None else None
            if since is not None:
                clear[fault, component] = since
        return clear


def _follow(rule: ForecastRule, catalogue: Catalogue) -> _Followed:
    value = parse.number(rule.value, catalogue.signals, rule.scope) if rule.value else None
    only = parse.condition(rule.only, catalogue.signals, rule.scope) if rule.only else None
    return _Followed(rule, value, only, Series(counter=bool(rule.counts)))


def _readings(one: _Followed, telemetry: Telemetry, moment: Moment, now: datetime) -> NDArray[np.float64]:
    """(n,) of the rule's axis, NaN where nothing is known, or the rule is not for it."""
    rule, n = one.rule, telemetry.axis(one.rule.scope).n
    found = np.full(n, np.nan)
    if one.value is not None:
        found = np.broadcast_to(np.asarray(moment.number(one.value), np.float64), (n,)).copy()
    for name in rule.counts:
        found = np.where(np.isnan(found), telemetry.value(name, now), found)
    if one.only is not None:
        found[moment.truth(one.only) != TRUE] = np.nan
    if rule.models:
        found[~telemetry.is_model(rule.models, rule.scope)] = np.nan
    return found


def _judged(rule: ForecastRule, series: NDArray[np.float64]) -> Outlook:
    """(points, k) -> where they lead. What is not likely to reach the limit in time is NaN."""
    limit = rule.limit
    if rule.decades:  # what is far below `least` is all alike: a quiet part
        series = np.log10(np.maximum(series, rule.least / 10))
        limit = math.log10(limit)
    found = outlook(series, POINT_S / 86400, limit, falls=rule.falls)
    with np.errstate(invalid="ignore"):
        soon = found.days <= rule.within_days
    return Outlook(*(np.where(soon, each, np.nan) for each in found))


def likely(rule: ForecastRule, series: NDArray[np.float64]) -> list[Trend | None]:
    """(points, k) -> for each series where it leads, if that is the limit, and in time."""
    found: list[Trend | None] = [None] * series.shape[1]
    newest = series[-_NOW_POINTS:]
    known = np.isfinite(newest).sum(axis=0)
    level = np.where(known > 0, np.nansum(newest, axis=0) / np.maximum(known, 1), np.nan)
    with np.errstate(invalid="ignore"):
        high = np.flatnonzero(level <= rule.least if rule.falls else level >= rule.least)
    if len(high):
        shown = _judged(rule, series[:, high])
        for at in np.flatnonzero(np.isfinite(shown.days)).tolist():
            found[int(high[at])] = shown.at(at)
    return found


def _judge(one: _Followed, telemetry: Telemetry, now: datetime) -> None:
    rule, level = one.rule, one.series.newest(_NOW_POINTS)
    with np.errstate(invalid="ignore"):
        high = level <= rule.least if rule.falls else level >= rule.least
    rows = np.flatnonzero(high)
    shown = likely(rule, one.series.series(rows))
    soon = {row: seen for row, seen in zip(rows.tolist(), shown, strict=True) if seen is not None}
    components = telemetry.axis(rule.scope).components()
    for row, figures in soon.items():
        known = one.told.get(row)
        if known is None:
            one.told[row] = _Foretold(since=now, now=figures)
            one.cleared.pop(components[row], None)
        else:
            known.now, known.missed, known.due = figures, 0, True
    known_now = np.isfinite(level)
    for row in [row for row in one.told if row not in soon]:
        # Silence is no sign that it is over.
        one.told[row].missed += int(row < len(known_now) and known_now[row])
        if one.told[row].missed >= OVER_LOOKS:
            del one.told[row]
            one.cleared[components[row]] = now


# --- what is told ---


def _tell(one: _Followed, telemetry: Telemetry, now: datetime) -> Iterator[Finding]:
    components = telemetry.axis(one.rule.scope).components()
    for row, told in one.told.items():
        if told.due:
            told.due = False
            yield _finding(one.rule, components[row], told, telemetry, now)


def _finding(
    rule: ForecastRule, component: Component, told: _Foretold, telemetry: Telemetry, now: datetime
) -> Finding:
    named = f"{rule.rule}|{component.cluster}|{component!r}|{told.since.isoformat()}"
    text = sentence(rule, told.now)
    affected: tuple[Component, ...] = ()
    if rule.scope in OF_DEVICES:
        behind = telemetry.nodes_behind(component)
        affected = tuple(Component(cluster=component.cluster, node=name) for name in behind)
        text = f"{component}: {text}"
    evidence = Evidence(
        digest=sha256(named.encode()).hexdigest(),
        at=told.since,
        arrived_at=now,
        component=component,
        text=text,
        sense=Sense.metrics,
    )
    return Finding.from_evidence(
        evidence,
        fault=rule.rule,
        fault_class=FaultClass.degraded,
        title=f"{rule.title}: likely to fail within {_within(told.now)}",
        confidence=0.6,
        affected=affected,
        foreseen=told.now,
    )


def sentence(rule: ForecastRule, seen: Trend) -> str:
    """`likely to fail within 4 days (3 to 6): 112 errors a day now, 21 more each day, the limit is 200`"""
    now = _figure(rule, 10**seen.level if rule.decades else seen.level)
    limit = _figure(rule, rule.limit)
    if seen.days <= 0:
        return f"at its limit now: {now}, the limit is {limit}"
    span = (
        f"{_days(seen.low)} to {_days(seen.high)}" if seen.high is not None else f"{_days(seen.low)} or more"
    )
    if rule.decades:
        pace = f"{10 ** abs(seen.per_day):.2g} times as much each day"
    else:
        pace = f"{abs(seen.per_day):.3g} {'less' if rule.falls else 'more'} each day"
    return f"likely to fail within {_within(seen)} ({span}): {now} now, {pace}, the limit is {limit}"


def _within(seen: Trend) -> str:
    whole = max(1, math.ceil(seen.days))
    return "a day" if whole == 1 else f"{whole} days"


def _days(days: float) -> str:
    return f"{days:.1f}" if days < 10 else f"{days:.0f}"


def _figure(rule: ForecastRule, value: float) -> str:
    return f"{value:.3g} {rule.unit}".rstrip()
