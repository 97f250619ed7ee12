"""Healer's own health in the database: for the health page and /readyz."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import aggregate_order_by

from healer.adapters.postgres.arrivals import read_states
from healer.adapters.postgres.engine import reading
from healer.adapters.postgres.forest_rows import models_seen
from healer.adapters.postgres.loops import (
    RETIRED,
    WITNESS_PART,
    beat_lately,
    lock_held,
    part_lock,
    read_beats,
)
from healer.adapters.postgres.node_rows import read_controller
from healer.adapters.postgres.outbox import all_deliveries
from healer.adapters.postgres.retention import free_share
from healer.adapters.postgres.run_rows import DUE_SINCE, is_due
from healer.adapters.postgres.tables import (
    audit_records,
    beats,
    inbox,
    runs,
    scrapes,
    snapshots,
    unsealed_records,
)
from healer.ports.answers import Backlog, Pulse, SealState, Sink, Stored
from healer.text import NO_WORDS, Said, from_stored

#: Messages older than this are history.
SINKS_FOR = timedelta(days=7)
_LEADING = ("detector", "scraper")


def pulses(engine: sa.Engine, clusters: Sequence[str]) -> list[Pulse]:
    """The pulse of each cluster. Raises Unavailable."""
    with reading(engine) as conn:
        table = snapshots.c
        query = sa.select(table.cluster, table.taken_at, table.error).where(table.cluster.in_(clusters))
        rows = {row.cluster: row for row in conn.execute(query)}
        return [
            Pulse(
                cluster=cluster,
                taken_at=rows[cluster].taken_at if cluster in rows else None,
                error=rows[cluster].error or "" if cluster in rows else "",
                controller=read_controller(conn, cluster),
                detector=_detector_works(conn, cluster),
                seal=_seal_state(conn, cluster),
            )
            for cluster in clusters
        ]


def _detector_works(conn: sa.Connection, cluster: str) -> bool:
    """Whether one leads. One that hangs keeps its lock, and no longer beats."""
    return (
        lock_held(conn, part_lock("detector", cluster))
        and beat_lately(conn, cluster, "detector") is not False
    )


def seal_state(engine: sa.Engine, cluster: str) -> SealState:
    """How far the cluster's audit is sealed and witnessed. Raises Unavailable."""
    with reading(engine) as conn:
        return _seal_state(conn, cluster)


def _seal_state(conn: sa.Connection, cluster: str) -> SealState:
    oldest = sa.select(sa.func.min(audit_records.c.at)).select_from(unsealed_records)
    served = sa.select(beats.c.part, beats.c.at).where(
        beats.c.cluster == cluster, beats.c.part.startswith(WITNESS_PART), beats.c.at > RETIRED
    )
    return SealState(
        since=conn.scalar(oldest.where(audit_records.c.cluster == cluster)),
        witnesses={row.part.removeprefix(WITNESS_PART): row.at for row in conn.execute(served)},
    )


def stored(engine: sa.Engine, cluster: str, now: datetime) -> Stored:
    """The state of healer's parts and queues for one cluster. Raises Unavailable."""
    with reading(engine) as conn:
        version, size = conn.execute(
            sa.text("SELECT current_setting('server_version'), pg_database_size(current_database())")
        ).one()
        states = read_states(conn, sa.select(scrapes.c.body).where(scrapes.c.cluster == cluster))
        return Stored(
            version=version,
            size_bytes=size,
            free_share=free_share(engine),
            controller=read_controller(conn, cluster),
            beats=read_beats(conn, cluster),
            leads=frozenset(part for part in _LEADING if lock_held(conn, part_lock(part, cluster))),
            backlogs=tuple(_backlogs(conn, cluster, now)),
            sinks=tuple(_sinks(conn, cluster, now)),
            scrape=states[0] if states else None,
            models=models_seen(conn, cluster, now),
        )


def _backlogs(conn: sa.Connection, cluster: str, now: datetime) -> Iterator[Backlog]:
    signals = _waiting(inbox.c.arrived_at).where(inbox.c.cluster == cluster, inbox.c.consumed_at.is_(None))
    records = _waiting(audit_records.c.at).select_from(unsealed_records)
    queues = {
        "Signals for the detector": signals,
        "Runs for the workers": _waiting(DUE_SINCE).where(runs.c.cluster == cluster, *is_due(now)),
        "Audit records for the seal": records.where(audit_records.c.cluster == cluster),
    }
    for name, query in queues.items():
        count, oldest = conn.execute(query).one()
        yield Backlog(name=name, count=count, oldest=oldest)


def _waiting(since: sa.ColumnElement[Any]) -> sa.Select[int, Any]:
    return sa.select(sa.func.count(), sa.func.min(since))


def _sinks(conn: sa.Connection, cluster: str, now: datetime) -> Iterator[Sink]:
    listed = all_deliveries().c
    state = listed.state

    def count(word: str) -> sa.ColumnElement[int]:
        return sa.func.count().filter(state == word)

    at = sa.func.coalesce(listed.ended_at, listed.at)
    errors = sa.func.array_agg(aggregate_order_by(listed.error, listed.at.desc()))
    wrong = errors.filter(state.in_(("failed", "due")), listed.error.is_not(None))
    newest = sa.func.max(at).filter(state == "sent")
    rows = conn.execute(
        sa.select(listed.channel, count("sent"), count("due"), count("failed"), newest, wrong)
        .where(listed.cluster == cluster, listed.at > now - SINKS_FOR, state != "listed")
        .group_by(listed.channel)
        .order_by(listed.channel)
    )
    for name, sent, due, failed, last, wrong_texts in rows:
        error = from_stored(wrong_texts[0], Said) if wrong_texts else NO_WORDS
        yield Sink(name=name, sent=sent, due=due, failed=failed, last_sent=last, error=error)
