"""Deletes old rows. Incidents, runs, decisions and the audit are kept."""

import os
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import DBAPIError

from healer.adapters.postgres import evidence, samples
from healer.adapters.postgres.forest_rows import forget_features, forget_unusual
from healer.adapters.postgres.tables import (
    delivery_log,
    fault_bursts,
    forecasts,
    goodput,
    idempotency,
    inbox,
    job_lives,
    job_stretches,
    losses,
    node_states,
    permits,
    raised_alarms,
    senders,
    sessions,
    unknown_series,
)
from healer.adapters.postgres.tokens import ANSWERS_KEPT
from healer.model.detection import ALERT_STAYS_MAX
from healer.model.faults import REPLACED
from healer.model.goodput import HOURS_KEPT
from healer.model.node_states import NodeCondition
from healer.ports.outbound import FORGOTTEN

HEARTBEATS = timedelta(hours=1)
#: Kinds that senders repeat periodically.
_PERIODIC = ("heartbeat", "gpu_inventory", "inventory", "hook")
#: As long as duplicates are recognised, for example an old dmesg that is sent again.
EVENTS = timedelta(days=90)
SESSIONS = timedelta(days=7)
#: Unknown series, losses and senders that were not seen for this long.
UNKNOWN_SERIES = timedelta(days=7)
#: Longer than any rule looks back, for people; replaced parts as long as the life line of a node looks back.
BURSTS, PARTS = timedelta(days=90), timedelta(days=365)
#: The precision of a rule's forecasts is that of a year.
FORECASTS = timedelta(days=365)
#: States of nodes out of service, for the longest report, and in service, for the map of the past: where jobs
#: are short these are many, and on a full disk only as long as the slider reaches.
OUT, IN_SERVICE, IN_SERVICE_LOW = timedelta(days=400), timedelta(days=7), timedelta(days=1)
#: Below this free share of the database's disk, samples are kept only as long as windows need them: they are
#: sent again, events are not.
LOW_SHARE = 0.1

#: Rows that one statement scans, so that it never times out.
PORTION = 20_000

log = structlog.get_logger()


def tidy(engine: sa.Engine, now: datetime, *, free: float | None = None) -> None:
    """Deletes everything that is too old. `free`: the free share of the database's disk (`free_share`).

    What cannot be deleted stops nothing else; the first such error is raised at the end.
    """
    failed: DBAPIError | None = None
    for delete in _deletions(engine, now, free):
        try:
            delete()
        except DBAPIError as error:  # such as a table that takes longer to search than a statement may
            if getattr(error.orig, "sqlstate", None) is None:
                raise  # the server does not answer
            failed = failed or error
    if failed is not None:
        raise failed


def _deletions(engine: sa.Engine, now: datetime, free: float | None) -> Iterator[Callable[[], object]]:
    """Samples first: they are most of the database, and the other deletes write before they free anything."""
    low = free is not None and free < LOW_SHARE
    yield partial(_forget_samples_early, engine, now, free) if low else partial(samples.forget, engine, now)
    arrived = inbox.c.arrived_at
    repeated = inbox.c.doc[("data", "again")].astext.is_not(None)
    too_old = sa.or_(
        sa.and_(inbox.c.kind.in_(_PERIODIC), arrived < now - HEARTBEATS),
        sa.and_(inbox.c.kind == "alert", repeated, arrived < now - ALERT_STAYS_MAX),
        arrived < now - EVENTS,
    )
    yield partial(_delete_by_id, engine, inbox, sa.and_(inbox.c.consumed_at.is_not(None), too_old))
    yield partial(_delete_by_id, engine, permits, permits.c.at < now - EVENTS)
    yield partial(_delete_by_id, engine, delivery_log, delivery_log.c.at < now - EVENTS)
    for table, old in _old_rows(now, low=low):
        yield partial(_delete, engine, table, old)
    yield partial(evidence.forget, engine, now, low=low)
    yield partial(_forget_scores, engine, now)


def _old_rows(now: datetime, *, low: bool) -> Iterator[tuple[sa.Table, sa.ColumnElement[bool]]]:
    """Of tables without ids: what is too old."""
    yield raised_alarms, raised_alarms.c.last_at < now - FORGOTTEN
    yield idempotency, idempotency.c.at < now - ANSWERS_KEPT
    yield sessions, sessions.c.expires_at < now - SESSIONS
    burst = fault_bursts.c
    yield fault_bursts, sa.and_(burst.last_at < now - BURSTS, burst.fault != REPLACED)
    yield fault_bursts, burst.last_at < now - PARTS
    yield forecasts, forecasts.c.ended_at < now - FORECASTS
    in_service = node_states.c.state == NodeCondition.in_service.value
    kept = IN_SERVICE_LOW if low else IN_SERVICE
    yield node_states, sa.and_(in_service, node_states.c.until < now - kept)
    yield node_states, sa.and_(~in_service, node_states.c.until < now - OUT)
    yield goodput, goodput.c.hour < now - HOURS_KEPT
    yield job_lives, job_lives.c.ended_at < now - HOURS_KEPT
    yield job_stretches, job_stretches.c.ended_at < now - EVENTS
    for table in (unknown_series, losses, senders):
        yield table, table.c.last_seen < now - UNKNOWN_SERIES


def _forget_samples_early(engine: sa.Engine, now: datetime, free: float | None) -> None:
    if emptied := samples.forget(engine, now, kept=1):
        log.warning("database disk nearly full, dropping old samples early", free=free, slots=emptied)


def _forget_scores(engine: sa.Engine, now: datetime) -> None:
    with engine.begin() as conn:
        forget_features(conn, now)
        forget_unusual(conn, now)


def _delete_by_id(engine: sa.Engine, table: sa.Table, old: sa.ColumnElement[bool]) -> None:
    """Deletes in the order of ids, a portion in each transaction, so that progress survives a failure."""
    begin = 0
    while True:
        behind = (
            sa.select(table.c.id).where(table.c.id > begin).order_by(table.c.id).limit(PORTION).subquery()
        )
        with engine.begin() as conn:
            end = conn.scalar(sa.select(sa.func.max(behind.c.id)))
            if end is None:
                return
            conn.execute(sa.delete(table).where(table.c.id > begin, table.c.id <= end, old))
        begin = end


def _delete(engine: sa.Engine, table: sa.Table, old: sa.ColumnElement[bool]) -> None:
    """Deletes by portions from a table without ids."""
    place = sa.literal_column("ctid")
    some = sa.select(place).select_from(table).where(old).limit(PORTION).scalar_subquery()
    while True:
        with engine.begin() as conn:
            gone = conn.execute(sa.delete(table).where(place == sa.func.any(sa.func.array(some))))
            if gone.rowcount < PORTION:
                return


def free_share(engine: sa.Engine) -> float | None:
    """The free share of the disk with PostgreSQL's data; None if the server runs elsewhere or does not show
    its data directory to our role."""
    asked = sa.text(  # refused, it would be an error in the server's log at every look
        "SELECT inet_server_addr() IS NULL, CASE WHEN pg_has_role('pg_read_all_settings', 'USAGE') "
        "THEN current_setting('data_directory') END"
    )
    try:
        with engine.connect() as conn:
            here, folder = conn.execute(asked).one()
        disk = os.statvfs(folder) if here and folder else None
    except (DBAPIError, OSError):
        return None
    return disk.f_bavail / disk.f_blocks if disk and disk.f_blocks else None
