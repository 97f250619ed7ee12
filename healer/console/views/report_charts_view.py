"""The charts of a period: its length, its parts, and each chart with the table behind it."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta

import msgspec

from healer.console.views.csv_table import csv_table
from healer.console.views.svg_charts import COLORS, Kind, Series, SvgChart, Unit
from healer.model.goodput import Spent
from healer.model.node_states import Holder, NodeCondition
from healer.ports.answers import (
    BucketFigure,
    BucketReviews,
    Buckets,
    BucketSpread,
    ChartFigures,
)
from healer.text import say

_HOUR, _DAY, _WEEK = 3600, 86400, 7 * 86400
#: The longest period that a person may ask for.
LONGEST = timedelta(days=400)
#: Rules in the chart of precision: those with the most reviews.
RULES_DRAWN = 8


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A period that a report is about. `first` and `last` are its days where a person named them."""

    since: datetime
    until: datetime
    first: date | None = None
    last: date | None = None


def span_between(first: str, last: str, now: datetime) -> Span | None:
    """The period from the first day to the end of the last, UTC; None where they name none."""
    try:
        days = date.fromisoformat(first), date.fromisoformat(last)
    except ValueError:
        return None
    if not timedelta() <= days[1] - days[0] < LONGEST:
        return None
    begin, end = (datetime.combine(day, time(), UTC) for day in days)
    if begin >= now:
        return None
    return Span(since=begin, until=min(end + timedelta(days=1), now), first=days[0], last=days[1])


def buckets(span: Span) -> Buckets:
    """Hours of up to two days, days of up to 45, else weeks."""
    length = span.until - span.since
    return _parts(span, _HOUR if length <= timedelta(days=2) else _DAY if length.days <= 45 else _WEEK)


def review_buckets(span: Span) -> Buckets:
    """Wider parts: few incidents are reviewed, and each cell of the chart holds a figure."""
    length = span.until - span.since
    if length <= timedelta(days=2):
        return _parts(span, 4 * _HOUR)
    return _parts(span, _DAY if length.days <= 10 else _WEEK if length.days <= 100 else 4 * _WEEK)


def _parts(span: Span, step_s: int) -> Buckets:
    """Whole hours or days of UTC, of which the first holds the start of the period, and the last its end."""
    since = span.since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    start = since if step_s < _DAY else since.replace(hour=0)
    count = max(1, -(-int((span.until - start).total_seconds()) // step_s))
    return Buckets(start=start, step_s=step_s, count=count, since=span.since, until=span.until)


def charts(figures: ChartFigures, parts: Buckets, reviewed: Buckets) -> list[SvgChart]:
    drawn = _Drawn(parts)
    return [
        drawn.bars("goodput", Unit.hours, _stacks(_together(figures.goodput), parts, SPENT_WORDS)),
        drawn.bars("incidents", Unit.whole, _stacks(figures.incidents, parts)),
        drawn.bars("lost", Unit.hours, _stacks(figures.lost, parts)),
        drawn.bars("out", Unit.hours, _stacks(figures.out, parts, _OUT)),
        drawn.lines("detect", figures.detect),
        drawn.lines("repair", figures.to_return),
        drawn.bars("drains", Unit.whole, _stacks(figures.drains, parts, _DRAINS)),
        drawn.bars("relapses", Unit.whole, _stacks(figures.returns, parts, _RETURNS)),
        _precision(figures.reviews, reviewed),
    ]


_DRAINS = {
    "other": say("console.reports_chart_other_drains"),
    "false": say("console.reports_chart_false_drains"),
}
_RETURNS = {
    "stayed": say("console.reports_chart_stayed"),
    "relapsed": say("console.reports_chart_relapsed"),
}


_OUT = {
    Holder.healer.value: "healer",
    Holder.slurm.value: "Slurm",
    Holder.person.value: say("console.reports_chart_people"),
    Holder.none.value: "unknown",
    NodeCondition.planned.value: say("console.reports_chart_planned"),
}


#: As many as there are colors.
SPENT_WORDS = {
    spent.value: say(f"console.spent_{spent}") for spent in Spent if spent not in {Spent.queued, Spent.slowed}
}


def _together(figures: Iterable[BucketFigure]) -> list[BucketFigure]:
    """Slow steps and hangs are one series; waits in the queue use no GPU and are left out."""
    hung = Spent.hung.value
    return [
        msgspec.structs.replace(figure, name=hung) if figure.name == Spent.slowed.value else figure
        for figure in figures
        if figure.name != Spent.queued.value
    ]


class _Drawn:
    """Charts over the same parts of a period."""

    def __init__(self, parts: Buckets) -> None:
        self._times = tuple(_label(parts, at) for at in range(parts.count))
        self._ticks = ticks(parts)

    def bars(self, name: str, unit: Unit, series: tuple[Series, ...]) -> SvgChart:
        return self._chart(name, Kind.bars, unit, series)

    def lines(self, name: str, spreads: Sequence[BucketSpread]) -> SvgChart:
        found = {spread.bucket: spread for spread in spreads}
        shares = {"p50_s": say("console.reports_chart_median"), "p90_s": "p90"}
        series = tuple(
            Series(name=word, values=tuple(_share(found.get(at), key) for at in range(len(self._times))))
            for key, word in shares.items()
        )
        return self._chart(name, Kind.lines, Unit.seconds, series)

    def _chart(self, name: str, kind: Kind, unit: Unit, series: tuple[Series, ...]) -> SvgChart:
        return SvgChart(
            id=name,
            title=say(f"console.reports_chart_{name}"),
            note=say(f"console.reports_chart_{name}_note"),
            kind=kind,
            unit=unit,
            times=self._times,
            ticks=self._ticks,
            series=series,
        )


def _share(spread: BucketSpread | None, key: str) -> float | None:
    return None if spread is None else max(0.0, getattr(spread, key))


def _stacks(
    figures: Iterable[BucketFigure], parts: Buckets, names: Mapping[str, str] | None = None
) -> tuple[Series, ...]:
    """A series for each name, in the order of `names`, else the largest first; what has no color of its own
    is one series, the last."""
    found: dict[str, list[float]] = {name: [0.0] * parts.count for name in names or ()}
    for figure in figures:
        if 0 <= figure.bucket < parts.count:
            found.setdefault(figure.name, [0.0] * parts.count)[figure.bucket] += figure.value
    if names is None:
        found = dict(sorted(found.items(), key=lambda item: (-sum(item[1]), item[0])))
        rest = list(found)[COLORS - 1 :]
        if len(rest) > 1:
            others = [math.fsum(column) for column in zip(*(found.pop(name) for name in rest), strict=True)]
            found[say("console.reports_chart_others", count=len(rest))] = others
    return tuple(
        Series(name=names[name] if names else name.replace("_", " "), values=tuple(values))
        for name, values in found.items()
    )


def _precision(reviews: Sequence[BucketReviews], parts: Buckets) -> SvgChart:
    by_rule: dict[str, dict[int, BucketReviews]] = {}
    for review in reviews:
        by_rule.setdefault(review.rule, {})[review.bucket] = review
    most = sorted(by_rule, key=lambda rule: (-sum(map(_judged, by_rule[rule].values())), rule))
    series = []
    for rule in most[:RULES_DRAWN]:
        its = [by_rule[rule].get(at) for at in range(parts.count)]
        series.append(
            Series(
                name=rule,
                values=tuple(review and review.true_faults / _judged(review) for review in its),
                basis=tuple(_judged(review) if review else 0 for review in its),
            )
        )
    return SvgChart(
        id="precision",
        title=say("console.reports_chart_precision"),
        note=say("console.reports_chart_precision_note"),
        kind=Kind.matrix,
        unit=Unit.share,
        times=tuple(_label(parts, at) for at in range(parts.count)),
        ticks=ticks(parts),
        series=tuple(series),
    )


def _judged(review: BucketReviews) -> int:
    return review.true_faults + review.false_alarms


# --- the axis of time


def _label(parts: Buckets, at: int) -> str:
    begin, end = parts.begin(at), parts.begin(at + 1)
    if parts.step_s < _DAY:
        return say("words.range", first=f"{begin:%m-%d %H:%M}", last=f"{end:%H:%M}")
    if parts.step_s == _DAY:
        return f"{begin:%Y-%m-%d}"
    return say("words.range", first=f"{begin:%Y-%m-%d}", last=f"{end - timedelta(days=1):%Y-%m-%d}")


#: Labels on the axis at most; a narrow screen shows every other one.
_TICKS = 8


def ticks(parts: Buckets) -> tuple[tuple[int, str], ...]:
    every = -(-parts.count // _TICKS)
    form = "%H:%M" if parts.step_s < _DAY else "%m-%d"
    return tuple((at, f"{parts.begin(at):{form}}") for at in range(0, parts.count, every))


# --- the table as a file


def csv_text(chart: SvgChart, translate: Callable[[str], str]) -> str:
    """Numbers as they are, not rounded: a spreadsheet makes its own charts of them."""
    judged = any(each.basis for each in chart.series)
    counts = [say("console.reports_reviews_of", name=each.name) for each in chart.series if judged]
    head = (say("console.charts_time_utc"), *(each.name for each in chart.series), *counts)
    return csv_table([head, *(_line(chart, at) for at in range(len(chart.times)))], translate)


def _line(chart: SvgChart, at: int) -> list[str | float | None]:
    values = (_figure(each.values[at], chart.unit) for each in chart.series)
    return [chart.times[at], *values, *(each.basis[at] for each in chart.series if each.basis)]


def _figure(value: float | None, unit: Unit) -> float | None:
    return int(value) if value is not None and unit is Unit.whole else value
