"""Figures of a period by class, cause and rule, beside those of `figures.stats`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from healer.adapters.postgres.figures import DRAINED_AT, FIRST_DECISION, SEEN_AT, stats
from healer.adapters.postgres.tables import incidents, slots
from healer.model import HARDWARE, Review
from healer.ports.api_answers import Spread
from healer.ports.period_figures import Group, Period, RuleFigures

_DOC = incidents.c.doc
_SHARES = (0.5, 0.9, 1.0)


def period(conn: sa.Connection, cluster: str, since: datetime) -> Period:
    """Of the incidents opened since then."""
    where = [incidents.c.cluster == cluster, incidents.c.opened >= since]
    returned, relapsed = conn.execute(_relapses(cluster, since)).one()
    return Period(
        since=since,
        stats=stats(conn, [cluster], since),
        by_class=_groups(conn, _DOC["fault_class"].astext, where),
        by_cause=_groups(conn, _DOC["cause"].astext, where),
        by_rule=_rules(conn, where),
        returned=returned,
        relapsed=relapsed,
    )


def _groups(
    conn: sa.Connection, key: sa.ColumnElement[Any], where: Sequence[sa.ColumnElement[bool]]
) -> tuple[Group, ...]:
    """The most frequent first."""
    opened = incidents.c.opened
    spans = {"detect": opened - SEEN_AT, "decide": FIRST_DECISION - opened, "drain": DRAINED_AT - opened}
    each = sa.select(key.label("key"), *(_seconds(span).label(name) for name, span in spans.items()))
    one = each.where(*where).subquery()
    asked = [part for name in spans for part in _spread(one.c[name])]
    counted = conn.execute(
        sa.select(one.c.key, sa.func.count().label("count"), *asked)
        .group_by(one.c.key)
        .order_by(sa.desc("count"), one.c.key)
    ).all()
    back = _seconds(slots.c.released_at - slots.c.granted_at)
    out = incidents.join(slots, slots.c.incident == incidents.c.id)
    away = conn.execute(
        sa.select(key, *_spread(back))
        .select_from(out)
        .where(*where, slots.c.released_at.is_not(None))
        .group_by(key)
    )
    returns = {row[0]: _told(row[1:]) for row in away}
    width = len(_SHARES) + 1
    return tuple(
        Group(
            name=row[0] or "unknown",
            incidents=row[1],
            **{name: _told(row[2 + at * width : 2 + (at + 1) * width]) for at, name in enumerate(spans)},
            to_return=returns.get(row[0], Spread(count=0)),
        )
        for row in counted
    )


def _seconds(span: sa.ColumnElement[Any]) -> sa.ColumnElement[float]:
    return sa.cast(sa.extract("epoch", span), sa.Float)


def _spread(seconds: sa.ColumnElement[float]) -> list[sa.ColumnElement[Any]]:
    shares = (sa.func.percentile_cont(share).within_group(seconds) for share in _SHARES)
    return [sa.func.count(seconds), *shares]


def _told(figures: Sequence[Any]) -> Spread:
    count, *rest = figures
    p50, p90, most = (None if one is None else float(one) for one in rest)
    return Spread(count=count, p50_s=p50, p90_s=p90, max_s=most)


def _rules(conn: sa.Connection, where: Sequence[sa.ColumnElement[bool]]) -> tuple[RuleFigures, ...]:
    review, drained = _DOC["review"].astext, _DOC["drained_at"].astext.is_not(None)
    false = review == Review.false_alarm.value

    def count(wanted: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
        return sa.func.count().filter(wanted)

    rows = conn.execute(
        sa.select(
            incidents.c.rule,
            sa.func.count().label("incidents"),
            count(drained).label("drained"),
            count(review == Review.true_fault.value).label("true_faults"),
            count(false).label("false_alarms"),
            count(sa.and_(false, drained)).label("false_drains"),
        )
        .where(*where)
        .group_by(incidents.c.rule)
        .order_by(sa.desc("incidents"), incidents.c.rule)
    )
    return tuple(RuleFigures(**row._mapping) for row in rows)


def _relapses(cluster: str, since: datetime) -> sa.Select[int, int]:
    """Incidents whose node came back in the period, and those of them whose node had a hardware fault again
    before its probation ended."""
    probation = sa.cast(_DOC["probation_until"].astext, sa.DateTime(timezone=True))
    later = incidents.alias("later")
    again = sa.exists().where(
        later.c.cluster == incidents.c.cluster,
        later.c.node == incidents.c.node,
        later.c.opened > incidents.c.closed,
        later.c.opened < probation,
        later.c.doc["fault_class"].astext.in_(sorted(HARDWARE)),
        later.c.doc["merged_into"].astext.is_(None),
        later.c.doc["review"].astext.is_distinct_from(Review.false_alarm.value),
    )
    return sa.select(sa.func.count(), sa.func.count().filter(again)).where(
        incidents.c.cluster == cluster,
        incidents.c.closed >= since,
        _DOC["drained_at"].astext.is_not(None),
        probation.is_not(None),
    )
