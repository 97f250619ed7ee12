"""What is dropped by age. Incidents, runs, decisions and the audit are kept."""

from datetime import datetime, timedelta

import sqlalchemy as sa

from healer.adapters.postgres import features, samples
from healer.adapters.postgres.tables import (
    idempotency,
    inbox,
    losses,
    permits,
    senders,
    sessions,
    unknown_series,
)
from healer.model.detection import ALERT_STAYS_MAX_H

HEARTBEATS = timedelta(hours=1)
#: What senders say again and again.
_SAID_AGAIN = ("heartbeat", "gpu_inventory", "hook")
#: That an alert goes on is noted once an hour; no rule asks further back.
AGAIN = timedelta(hours=ALERT_STAYS_MAX_H)
#: As long as an identity must be known: an old dmesg that is sent again within it is a duplicate.
EVENTS = timedelta(days=90)
KEYS = timedelta(hours=24)
SESSIONS = timedelta(days=7)
#: A name that nobody sent for so long is no longer listed as unknown, nor a loss or a sender.
UNKNOWN_SERIES = timedelta(days=7)


def tidy(engine: sa.Engine, now: datetime) -> None:
    with engine.begin() as conn:
        walked = inbox.c.consumed_at.is_not(None)
        conn.execute(
            sa.delete(inbox).where(
                walked, inbox.c.kind.in_(_SAID_AGAIN), inbox.c.arrived_at < now - HEARTBEATS
            )
        )
        again = inbox.c.doc[("data", "again")].astext.is_not(None)
        conn.execute(
            sa.delete(inbox).where(walked, inbox.c.kind == "alert", again, inbox.c.arrived_at < now - AGAIN)
        )
        conn.execute(sa.delete(inbox).where(walked, inbox.c.arrived_at < now - EVENTS))
        conn.execute(sa.delete(permits).where(permits.c.at < now - EVENTS))
        conn.execute(sa.delete(idempotency).where(idempotency.c.at < now - KEYS))
        conn.execute(sa.delete(sessions).where(sessions.c.expires_at < now - SESSIONS))
        conn.execute(sa.delete(unknown_series).where(unknown_series.c.last_seen < now - UNKNOWN_SERIES))
        conn.execute(sa.delete(losses).where(losses.c.last_seen < now - UNKNOWN_SERIES))
        conn.execute(sa.delete(senders).where(senders.c.last_seen < now - UNKNOWN_SERIES))
        features.forget(conn, now)
    samples.forget(engine, now)
