"""What reports count of incidents, as columns and conditions for their statements."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, distinct_on

from healer.adapters.postgres.tables import incidents, slots
from healer.model import HARDWARE, HitBasis, Review
from healer.ports.answers import Buckets

_TIME = sa.DateTime(timezone=True)
#: By incident: the time of its first evidence and of its confirmed drain.
SEEN_AT = sa.cast(incidents.c.seen_at, _TIME)
DRAINED_AT = sa.cast(incidents.c.drained_at, _TIME)
_PROBATION = sa.cast(incidents.c.probation_until, _TIME)
#: The jobs that an incident hit (`healer.model.incident.JobHit`); may be empty.
HIT_LIST = sa.func.coalesce(incidents.c.hit, sa.text("'[]'::jsonb"))

#: A slot whose node was out and is not any more; a drain that Slurm never showed took no node.
GIVEN_BACK = sa.and_(slots.c.drained_at.is_not(None), slots.c.released_at.is_not(None))


def seconds(span: sa.ColumnElement[Any]) -> sa.ColumnElement[float]:
    """The length of an interval in floating point: EXTRACT computes in numeric and takes three times as
    long."""
    return sa.func.date_part("epoch", span, type_=sa.Float)


def bucket_of(at: sa.ColumnElement[Any], buckets: Buckets) -> sa.ColumnElement[int]:
    """The number of the bucket that a moment is in."""
    since = seconds(at - sa.literal(buckets.start, sa.DateTime(timezone=True)))
    step = sa.literal_column(str(buckets.step_s), sa.Float)
    return sa.cast(sa.func.floor(since / step), sa.Integer)


def hit_rows() -> sa.TableValuedAlias:
    """A row for each job that was hit, in the column `value`, to join to the incidents."""
    return sa.func.jsonb_array_elements(HIT_LIST).table_valued(sa.column("value", JSONB), name="hit")


def lives_lost(where: Sequence[sa.ColumnElement[bool]]) -> sa.Subquery:
    """Each life of a job that was hit, once: with its largest loss of all incidents, whether it is an upper
    bound or unknown, and the cause and the time of the incident that names that loss."""
    hit = hit_rows()
    rows = sa.select(
        incidents.c.cluster, incidents.c.cause, incidents.c.opened.label("opened"), hit.c.value
    ).select_from(incidents.join(hit, sa.true()))
    hits = rows.where(*where, incidents.c.hit.is_not(None)).subquery()
    field = hits.c.value
    hours = sa.cast(field["lost_gpu_hours"].astext, sa.Float)
    basis = field["basis"].astext
    life = (hits.c.cluster, field["job"].astext, field["restart"].astext)
    return (
        sa.select(
            hours.label("hours"),
            sa.func.max(hours).filter(basis == str(HitBasis.start)).over(partition_by=life).label("at_most"),
            sa.func.bool_and(basis == str(HitBasis.unknown)).over(partition_by=life).label("unknown"),
            hits.c.cause,
            hits.c.opened,
        )
        .ext(distinct_on(*life))
        .order_by(*life, hours.desc().nulls_last(), hits.c.opened)
        .subquery()
    )


def relapsed_later() -> sa.ColumnElement[bool]:
    """Whether the incident's node had a hardware fault again during its probation."""
    later = incidents.alias("later")
    return sa.exists().where(
        later.c.cluster == incidents.c.cluster,
        later.c.node == incidents.c.node,
        later.c.opened > incidents.c.closed,
        later.c.opened < _PROBATION,
        later.c.fault_class.in_(sorted(HARDWARE)),
        later.c.merged_into.is_(None),
        later.c.review.is_distinct_from(Review.false_alarm.value),
    )


def returned_in(cluster: str, since: datetime, until: datetime) -> list[sa.ColumnElement[bool]]:
    """Incidents whose node healer had drained and returned to service in that time."""
    closed = incidents.c.closed
    return [
        incidents.c.cluster == cluster, closed >= since, closed < until,
        incidents.c.drained_at.is_not(None), incidents.c.probation_until.is_not(None),
    ]  # fmt: skip
