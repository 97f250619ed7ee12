"""Figures of a period as tables: how fast, how good, what it cost."""

from datetime import timedelta

import msgspec

from healer.console import words
from healer.ports.api_answers import Saved, Spread
from healer.ports.period_figures import Group, Period, RuleFigures

#: What stands in the address -> how long it is.
PERIODS = {
    "12h": timedelta(hours=12),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
PERIOD_WORDS = {"12h": "Last shift (12 h)", "24h": "24 h", "7d": "7 days", "30d": "30 days"}
RULES_SHOWN = 100


class TimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way from one moment to the next; a dash where nothing was measured."""

    name: str
    meaning: str
    count: int
    median: str
    p90: str
    most: str


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """`median / p90` of each part."""

    name: str
    incidents: int
    detect: str
    decide: str
    drain: str
    to_return: str


class RuleRow(msgspec.Struct, frozen=True, kw_only=True):
    figures: RuleFigures
    precision: str
    tone: str


class Reports(msgspec.Struct, frozen=True, kw_only=True):
    times: tuple[TimeRow, ...]
    facts: tuple[tuple[str, str, str], ...]
    by_class: tuple[GroupRow, ...]
    by_cause: tuple[GroupRow, ...]
    rules: tuple[RuleRow, ...]
    rules_more: int


def reports(period: Period) -> Reports:
    stats = period.stats
    return Reports(
        times=(
            _time("Detect", "from the event to the incident", stats.detect),
            _time("Decide", "from the incident to the first decision", stats.decide),
            _time("Drain", "from the incident to the drain read back", stats.drain),
            _time("Return", "from the slot granted to released", stats.to_return),
        ),
        facts=tuple(_facts(period)),
        by_class=tuple(map(_group, period.by_class)),
        by_cause=tuple(map(_group, period.by_cause)),
        rules=tuple(map(_rule, period.by_rule[:RULES_SHOWN])),
        rules_more=max(0, len(period.by_rule) - RULES_SHOWN),
    )


def _facts(period: Period) -> list[tuple[str, str, str]]:
    """(what, figure, what it rests on)."""
    stats = period.stats
    rows = [("Incidents", words.number(stats.incidents), f"{words.number(stats.open)} of them still open")]
    if stats.gpu_hours_lost is None:
        lost, rests = "not known", "no job hit told what it lost"
    else:
        lost, rests = _hours(stats.gpu_hours_lost), "by the jobs hit, each life once"
        if stats.gpu_hours_at_most:
            at_most = _hours(stats.gpu_hours_at_most)
            rests += f"; {at_most} of them at most, for want of a durable checkpoint"
    if stats.jobs_unknown:
        rests += f"; of {words.plural(stats.jobs_unknown, 'more job')} nobody knows"
    rows.append(("GPU-hours lost", lost, rests))
    rows.append(_saved(stats.saved))
    drained = sum(one.drained for one in period.by_rule)
    false = f"of {words.plural(drained, 'drain')}; those whose incident a person called a false alarm"
    rows.append(("False drains", words.number(stats.false_drains), false))
    again = f"{period.relapsed} of {words.plural(period.returned, 'node')} that came back"
    rate = f"{period.relapsed / period.returned:.0%}" if period.returned else "–"
    rows.append(("Relapses", rate, f"{again} had a hardware fault again within 7 days, so far"))
    return rows


def _saved(saved: Saved) -> tuple[str, str, str]:
    alone = f"{words.plural(saved.jobs, 'job')} restarted by healer alone"
    if saved.gpu_hours is None or saved.people_s is None:
        few = f"people took up {saved.people} incidents with jobs: too few to compare with"
        return "GPU-hours saved", "not known", f"{alone}; {few}"
    took = f"the {words.span(saved.people_s)} in which people took up {saved.people} incidents left to them"
    return "GPU-hours saved", _hours(saved.gpu_hours), f"{alone}, beside {took} (median)"


def _hours(hours: float) -> str:
    return f"{hours:,.{0 if hours >= 100 else 1 if hours >= 1 else 2}f}"


def _time(name: str, meaning: str, one: Spread) -> TimeRow:
    return TimeRow(
        name=name,
        meaning=meaning,
        count=one.count,
        median=_span(one.p50_s),
        p90=_span(one.p90_s),
        most=_span(one.max_s),
    )


def _group(one: Group) -> GroupRow:
    return GroupRow(
        name=one.name.replace("_", " "),
        incidents=one.incidents,
        detect=_pair(one.detect),
        decide=_pair(one.decide),
        drain=_pair(one.drain),
        to_return=_pair(one.to_return),
    )


def _pair(one: Spread) -> str:
    return f"{_span(one.p50_s)} / {_span(one.p90_s)}" if one.count else "–"


def _span(seconds: float | None) -> str:
    """A dash for what was not measured. Clocks that differ make a way shorter than nothing: that is 0."""
    return "–" if seconds is None else words.span(max(0.0, seconds))


def _rule(one: RuleFigures) -> RuleRow:
    if one.precision is None:
        return RuleRow(figures=one, precision="not judged", tone="plain")
    text = f"{one.precision:.0%} ({one.true_faults} of {one.true_faults + one.false_alarms})"
    return RuleRow(figures=one, precision=text, tone="good" if one.precision >= 0.95 else "warn")
