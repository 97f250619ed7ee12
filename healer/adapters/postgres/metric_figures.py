"""The figures of /metrics that the database holds: one statement for each."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from healer.adapters.postgres.gate_facts import pauses_in_force
from healer.adapters.postgres.incident_counts import (
    DRAINED_AT,
    HIT_LIST,
    SEEN_AT,
    hit_rows,
    lives_lost,
    seconds,
)
from healer.adapters.postgres.loops import RETIRED, WITNESS_PART
from healer.adapters.postgres.retention import free_share
from healer.adapters.postgres.run_rows import DUE_SINCE, ENDED, is_due
from healer.adapters.postgres.tables import (
    audit_records,
    beats,
    deliveries,
    gate,
    goodput,
    inbox,
    incidents,
    messages,
    node_states,
    pauses,
    requeues,
    runs,
    senders,
    slots,
    snapshots,
    unsealed_records,
)

#: A sender that was heard within this time is at work: followers speak every 10 s, most exporters are
#: scraped every 15 to 60 s.
HEARD = timedelta(minutes=2)
DAY, MONTH = timedelta(days=1), timedelta(days=30)
_PERCENTILES = (50, 90)
_COUNT = sa.func.count()
#: Names of figures, and a statement whose last columns are their values; the columns before are labels, the
#: cluster first.
_Asked = tuple[tuple[str, ...], sa.Select]


def gauges(conn: sa.Connection, now: datetime) -> dict[str, dict[tuple[str, ...], float]]:
    """The figures of `healer.api.metrics`: name -> {label values: number}. Ages in s, at least 0."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    clusters = conn.execute(sa.select(snapshots.c.cluster).order_by(snapshots.c.cluster)).scalars().all()
    for part in (_queues(now), _health(now), _fleet(now), _history(now, clusters)):
        for names, query in part:
            for row in conn.execute(query):
                labels = tuple(str(label or "") for label in row[: -len(names)])
                values = zip(names, row[-len(names) :], strict=True)
                for name, value in values:
                    if value is not None:
                        found.setdefault(name, {})[labels] = float(value)
    found["database_bytes"] = {(): conn.scalar(sa.text("SELECT pg_database_size(current_database())")) or 0.0}
    if (free := free_share(conn.engine)) is not None:
        found["database_disk_free_ratio"] = {(): free}
    return found


def _age(now: datetime, since: sa.ColumnElement[Any]) -> sa.ColumnElement[float]:
    return sa.func.greatest(0.0, seconds(sa.literal(now) - since))


def _waiting(now: datetime, cluster: sa.Column, since: sa.ColumnElement[Any]) -> sa.Select:
    """By cluster: how many wait, and since when the oldest does."""
    return sa.select(cluster, _COUNT, _age(now, sa.func.min(since))).group_by(cluster)


def _queues(now: datetime) -> Iterator[_Asked]:
    """What waits in the database for a part of healer."""
    yield (
        ("inbox_waiting", "inbox_oldest_seconds"),
        _waiting(now, inbox.c.cluster, inbox.c.arrived_at).where(inbox.c.consumed_at.is_(None)),
    )
    yield (
        ("audit_unsealed_records", "audit_unsealed_oldest_seconds"),
        _waiting(now, audit_records.c.cluster, audit_records.c.at).select_from(unsealed_records),
    )
    yield (
        ("runs_due", "runs_due_oldest_seconds"),
        _waiting(now, runs.c.cluster, DUE_SINCE).where(*is_due(now)),
    )
    # At webhooks and at channels.
    for state, names in (
        ("failed", ("messages_failed",)),
        ("due", ("messages_waiting", "messages_waiting_oldest_seconds")),
    ):
        found = sa.union_all(
            *(
                sa.select(each.c.cluster, each.c.at).where(each.c.state == state)
                for each in (messages, deliveries)
            )
        ).subquery()
        values = (_COUNT, _age(now, sa.func.min(found.c.at)))[: len(names)]
        yield names, sa.select(found.c.cluster, *values).group_by(found.c.cluster)


def _health(now: datetime) -> Iterator[_Asked]:
    """Whether the parts of healer and those that it depends on are at work."""
    is_witness = beats.c.part.startswith(WITNESS_PART)
    expected = beats.c.at > RETIRED
    yield (
        ("part_beat_age_seconds",),
        sa.select(beats.c.cluster, beats.c.part, _age(now, beats.c.at)).where(~is_witness, expected),
    )
    witness = sa.func.substr(beats.c.part, len(WITNESS_PART) + 1)
    yield (
        ("audit_witness_age_seconds",),
        sa.select(beats.c.cluster, witness, _age(now, beats.c.at)).where(is_witness, expected),
    )
    failing = sa.case((sa.func.coalesce(snapshots.c.error, "") != "", 1), else_=0)
    yield (
        ("slurm_snapshot_age_seconds", "slurm_read_failing"),
        sa.select(snapshots.c.cluster, _age(now, snapshots.c.taken_at), failing),
    )
    heard = _COUNT.filter(senders.c.last_seen > now - HEARD)
    yield (
        ("senders", "senders_heard"),
        sa.select(senders.c.cluster, senders.c.source, _COUNT, heard).group_by(
            senders.c.cluster, senders.c.source
        ),
    )


def _counted(*columns: sa.ColumnElement[Any], where: Sequence[sa.ColumnElement[bool]]) -> sa.Select:
    return sa.select(*columns, _COUNT).where(*where).group_by(*columns)


def _fleet(now: datetime) -> Iterator[_Asked]:
    """What is so now."""
    current = node_states.c
    yield (
        ("nodes",),
        _counted(current.cluster, current.state, current.held_by, where=[current.until.is_(None)]),
    )
    unresolved = [incidents.c.state != "resolved"]
    yield ("incidents_open",), _counted(incidents.c.cluster, incidents.c.severity, where=unresolved)
    hit = hit_rows()
    job = hit.c.value["job"].astext
    yield (
        ("jobs_hit",),
        sa.select(incidents.c.cluster, sa.func.count(job.distinct()))
        .select_from(incidents.join(hit, sa.true()))
        .where(*unresolved, sa.func.jsonb_array_length(HIT_LIST) > 0)
        .group_by(incidents.c.cluster),
    )
    yield (
        ("runs_active", "runs_oldest_seconds"),
        sa.select(runs.c.cluster, runs.c.state, _COUNT, _age(now, sa.func.min(runs.c.created_at)))
        .where(runs.c.state.not_in(ENDED))
        .group_by(runs.c.cluster, runs.c.state),
    )
    yield ("slots_used",), _counted(slots.c.cluster, where=[slots.c.released_at.is_(None)])
    yield ("pauses",), _counted(pauses.c.cluster, where=pauses_in_force(now))
    is_open = sa.case((gate.c.breaker["state"].astext != "closed", 1), else_=0)
    yield ("breaker_open",), sa.select(gate.c.cluster, is_open)


def _history(now: datetime, clusters: Sequence[str]) -> Iterator[_Asked]:
    """What was so in the last day or month."""
    opened, cluster = incidents.c.opened, incidents.c.cluster
    yield ("jobs_requeued_total",), _counted(requeues.c.cluster, where=[])
    yield ("incidents_last_day",), _counted(cluster, incidents.c.rule, where=[opened >= now - DAY])
    yield (
        ("runs_last_day",),
        _counted(runs.c.cluster, runs.c.playbook, runs.c.state, where=[runs.c.created_at >= now - DAY]),
    )
    reviewed = [opened >= now - MONTH, incidents.c.review.is_not(None)]
    yield (("reviews_last_month",), _counted(cluster, incidents.c.rule, incidents.c.review, where=reviewed))
    for percentile in _PERCENTILES:
        spans = (
            sa.func.percentile_cont(percentile / 100).within_group(seconds(span))
            for span in (opened - SEEN_AT, DRAINED_AT - opened)
        )
        yield (
            ("detection_delay_last_day_seconds", "drain_delay_last_day_seconds"),
            sa.select(cluster, sa.literal(str(percentile)), *spans)
            .where(opened >= now - DAY)
            .group_by(cluster),
        )
    begun = now.replace(minute=0, second=0, microsecond=0)
    spent = sa.select(goodput.c.cluster, goodput.c.spent, sa.func.sum(goodput.c.gpu_s))
    last_day = spent.where(goodput.c.hour >= begun - DAY, goodput.c.hour < begun)
    yield ("gpu_time_last_day_seconds",), last_day.group_by(goodput.c.cluster, goodput.c.spent)
    for name in clusters:
        lost = lives_lost([cluster == name, opened >= now - DAY])
        hours = sa.func.coalesce(sa.func.sum(lost.c.hours), 0.0)
        yield ("gpu_time_lost_last_day_seconds",), sa.select(sa.literal(name), hours * 3600)
