"""What is dropped by age. Incidents, runs, decisions and the audit are kept."""

import os
from datetime import datetime, timedelta

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import DBAPIError

from healer.adapters.postgres import evidence, samples
from healer.adapters.postgres.forest_rows import forget_features, forget_unusual
from healer.adapters.postgres.tables import (
    delivery_log,
    fault_bursts,
    forecasts,
    idempotency,
    inbox,
    losses,
    permits,
    raised_alarms,
    senders,
    sessions,
    unknown_series,
)
from healer.model.detection import ALERT_STAYS_MAX_H
from healer.ports.outbound import FORGOTTEN

HEARTBEATS = timedelta(hours=1)
#: What senders say again and again.
_SAID_AGAIN = ("heartbeat", "gpu_inventory", "inventory", "hook")
#: That an alert goes on is noted once an hour; no rule asks further back.
AGAIN = timedelta(hours=ALERT_STAYS_MAX_H)
#: As long as an identity must be known: an old dmesg that is sent again within it is a duplicate.
EVENTS = timedelta(days=90)
KEYS = timedelta(hours=24)
SESSIONS = timedelta(days=7)
#: A name that was not sent for so long is no longer listed as unknown, nor a loss or a sender.
UNKNOWN_SERIES = timedelta(days=7)
#: Longer than anything looks back: for whoever asks later what a part has had.
BURSTS = timedelta(days=90)
#: What came of forecasts: a rule's precision is that of a year.
FORECASTS = timedelta(days=365)
#: Below this share of free room on the database's disk samples are kept for as long as windows ask for
#: them, and no longer: they come again, events do not.
LOW_SHARE = 0.1

#: Rows that one statement looks at, so that it ends in time whatever has gathered.
PORTION = 20_000

log = structlog.get_logger()


def tidy(engine: sa.Engine, now: datetime, *, free: float | None = None) -> None:
    """`free` is the free share of the database's disk, as `free_share` tells it."""
    low = free is not None and free < LOW_SHARE
    if low and (emptied := samples.forget(engine, now, kept=1)):
        # First, because all else here writes before it frees anything.
        log.warning("the database's disk is nearly full: samples are dropped early", free=free, slots=emptied)
    walked = inbox.c.consumed_at.is_not(None)
    arrived = inbox.c.arrived_at
    again = inbox.c.doc[("data", "again")].astext.is_not(None)
    _by_number(
        engine,
        inbox,
        sa.and_(
            walked,
            sa.or_(
                sa.and_(inbox.c.kind.in_(_SAID_AGAIN), arrived < now - HEARTBEATS),
                sa.and_(inbox.c.kind == "alert", again, arrived < now - AGAIN),
                arrived < now - EVENTS,
            ),
        ),
    )
    _by_number(engine, permits, permits.c.at < now - EVENTS)
    _by_number(engine, delivery_log, delivery_log.c.at < now - EVENTS)
    _all(engine, raised_alarms, raised_alarms.c.last_at < now - FORGOTTEN)
    _all(engine, idempotency, idempotency.c.at < now - KEYS)
    _all(engine, sessions, sessions.c.expires_at < now - SESSIONS)
    _all(engine, fault_bursts, fault_bursts.c.last_at < now - BURSTS)
    _all(engine, forecasts, forecasts.c.ended_at < now - FORECASTS)
    for seen in (unknown_series, losses, senders):
        _all(engine, seen, seen.c.last_seen < now - UNKNOWN_SERIES)
    evidence.forget(engine, now, low=low)
    with engine.begin() as conn:
        forget_features(conn, now)
        forget_unusual(conn, now)
    samples.forget(engine, now)


def _by_number(engine: sa.Engine, table: sa.Table, old: sa.ColumnElement[bool]) -> None:
    """Deletes in the order of the rows' ids, a portion in each transaction: after a backlog of days, or where
    one row cannot go, all others are gone for good."""
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


def _all(engine: sa.Engine, table: sa.Table, old: sa.ColumnElement[bool]) -> None:
    """The same for a table without numbers."""
    place = sa.literal_column("ctid")
    some = sa.select(place).select_from(table).where(old).limit(PORTION).scalar_subquery()
    while True:
        with engine.begin() as conn:
            gone = conn.execute(sa.delete(table).where(place == sa.func.any(sa.func.array(some))))
            if gone.rowcount < PORTION:
                return


def free_share(engine: sa.Engine) -> float | None:
    """The free share of the disk that PostgreSQL's data lie on; None where this machine cannot tell: a server
    elsewhere, or one whose folder our role may not know."""
    asked = sa.text("SELECT inet_server_addr() IS NULL, current_setting('data_directory')")
    try:
        with engine.connect() as conn:
            here, folder = conn.execute(asked).one()
        disk = os.statvfs(folder) if here else None
    except (DBAPIError, OSError):
        return None
    return disk.f_bavail / disk.f_blocks if disk and disk.f_blocks else None
