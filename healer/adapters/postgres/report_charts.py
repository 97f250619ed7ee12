"""Figures of a period over time: one statement for each chart, aggregated by PostgreSQL."""

from typing import Any

import sqlalchemy as sa

from healer.adapters.postgres.engine import read_structs
from healer.adapters.postgres.goodput_rows import goodput_buckets
from healer.adapters.postgres.incident_counts import (
    GIVEN_BACK,
    SEEN_AT,
    bucket_of,
    lives_lost,
    relapsed_later,
    returned_in,
    seconds,
)
from healer.adapters.postgres.tables import incidents, slots
from healer.model import Review
from healer.ports.answers import BucketFigure, BucketReviews, Buckets, BucketSpread, ChartFigures

_OPENED = incidents.c.opened
_COUNT = sa.cast(sa.func.count(), sa.Float)


def chart_figures(conn: sa.Connection, cluster: str, buckets: Buckets, reviewed: Buckets) -> ChartFigures:
    opened = _opened_in(cluster, buckets)
    detect = seconds(_OPENED - SEEN_AT)
    back = seconds(slots.c.released_at - slots.c.granted_at)
    granted = slots.c.granted_at
    held = [GIVEN_BACK, slots.c.cluster == cluster, granted >= buckets.first, granted < buckets.end]
    is_false = incidents.c.review == Review.false_alarm.value
    drained = [*opened, incidents.c.drained_at.is_not(None)]
    lives = lives_lost(opened)
    hours = sa.func.sum(lives.c.hours)
    return ChartFigures(
        incidents=_figures(conn, bucket_of(_OPENED, buckets), incidents.c.fault_class, opened),
        detect=_spreads(conn, bucket_of(_OPENED, buckets), detect, opened),
        to_return=_spreads(conn, bucket_of(granted, buckets), back, held),
        lost=_figures(conn, bucket_of(lives.c.opened, buckets), lives.c.cause, [lives.c.hours > 0], hours),
        drains=_figures(
            conn, bucket_of(_OPENED, buckets), sa.case((is_false, "false"), else_="other"), drained
        ),
        returns=_returns(conn, cluster, buckets),
        out=_nodes_out(conn, cluster, buckets),
        goodput=goodput_buckets(conn, cluster, buckets),
        reviews=_reviews(conn, cluster, reviewed),
    )


def _opened_in(cluster: str, buckets: Buckets) -> list[sa.ColumnElement[bool]]:
    return [incidents.c.cluster == cluster, buckets.first <= _OPENED, buckets.end > _OPENED]


def _figures(
    conn: sa.Connection, bucket: Any, name: Any, where: Any, value: Any = _COUNT
) -> tuple[BucketFigure, ...]:
    each = sa.select(bucket.label("bucket"), name.label("name"), value.label("value")).where(*where)
    return tuple(read_structs(conn, each.group_by(sa.text("1, 2")).order_by(sa.text("1, 2")), BucketFigure))


def _spreads(conn: sa.Connection, bucket: Any, span: Any, where: Any) -> tuple[BucketSpread, ...]:
    p50, p90 = (sa.func.percentile_cont(share).within_group(span) for share in (0.5, 0.9))
    each = sa.select(bucket.label("bucket"), p50.label("p50_s"), p90.label("p90_s"))
    measured = each.where(*where, span.is_not(None))
    return tuple(read_structs(conn, measured.group_by(sa.text("1")).order_by(sa.text("1")), BucketSpread))


def _returns(conn: sa.Connection, cluster: str, buckets: Buckets) -> tuple[BucketFigure, ...]:
    outcome = sa.case((relapsed_later(), "relapsed"), else_="stayed")
    where = returned_in(cluster, buckets.first, buckets.end)
    each = (
        sa.select(bucket_of(incidents.c.closed, buckets).label("bucket"), outcome.label("name"))
        .where(*where)
        .subquery()
    )
    return _figures(conn, each.c.bucket, each.c.name, [])


# A state that lasts is counted as far as the latest snapshot.
_OUT = sa.text("""
SELECT bucket, name,
  sum(least(ended, (bucket + 1) * :step_s) - greatest(began, bucket * :step_s)) / 3600 AS value
FROM (
  -- Not all buckets for each state: most states lie in one.
  SELECT *, generate_series(floor(began / :step_s)::int, ceil(ended / :step_s)::int - 1) AS bucket
  FROM (
    SELECT CASE state WHEN 'planned' THEN state ELSE held_by END AS name,
      date_part('epoch', greatest(since, :first) - CAST(:start AS timestamptz)) AS began,
      date_part('epoch', least(coalesce(until, taken_at), :end) - CAST(:start AS timestamptz)) AS ended
    FROM node_states JOIN snapshots USING (cluster)
    WHERE cluster = :cluster AND state <> 'in_service' AND since < :end AND (until > :first OR until IS NULL)
  ) AS held
  WHERE began < ended
) AS parts
GROUP BY 1, 2 ORDER BY 1, 2
""")


def _nodes_out(conn: sa.Connection, cluster: str, buckets: Buckets) -> tuple[BucketFigure, ...]:
    span = {"start": buckets.start, "first": buckets.first, "end": buckets.end}
    # As a float: psycopg sends small integers as smallint, and 25 hours of 3600 s are beyond it.
    parts = {"cluster": cluster, "step_s": float(buckets.step_s), **span}
    return tuple(read_structs(conn, _OUT, BucketFigure, parts))


def _reviews(conn: sa.Connection, cluster: str, buckets: Buckets) -> tuple[BucketReviews, ...]:
    def count(review: Review) -> Any:
        return sa.func.count().filter(incidents.c.review == review.value)

    judged = incidents.c.review.in_([Review.true_fault.value, Review.false_alarm.value])
    query = (
        sa.select(
            bucket_of(_OPENED, buckets).label("bucket"),
            incidents.c.rule,
            count(Review.true_fault).label("true_faults"),
            count(Review.false_alarm).label("false_alarms"),
        )
        .where(*_opened_in(cluster, buckets), judged)
        .group_by(sa.text("1, 2"))
        .order_by(sa.text("1, 2"))
    )
    return tuple(read_structs(conn, query, BucketReviews))
