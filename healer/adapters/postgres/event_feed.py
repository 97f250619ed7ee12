"""The feed of events: each sealed record of the audit to one sink, in order, at least once.

The chain is the outbox: a record is there once what it tells of is committed, and is never changed. Only how
far the sink has come is stored. One that the sink refused `MAX_TRIES` times is passed over, so that it hears
the next; while it cannot be reached nothing is passed over but by age.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

import sqlalchemy as sa
import structlog
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.audit_rows import RECORD, head_of, record_of
from healer.adapters.postgres.messages import MAX_TRIES, wait_after
from healer.adapters.postgres.tables import audit_chain, audit_records, event_feed
from healer.model import AuditRecord
from healer.ports.clock import Clock
from healer.ports.outbound import DeliveryFailed

log = structlog.get_logger()

#: Events of one call, so that a backlog does not hold the caller for long.
ROUND_MAX = 50
#: A sink that cannot be reached is tried as after the first refusal for so long, then as after the second.
_SOON = timedelta(minutes=1)
#: What is older when its turn comes is passed over: a feed that was off for a week begins with yesterday.
OLDEST = timedelta(hours=24)


class Sink(Protocol):
    def send(self, seq: int, record: AuditRecord) -> None: ...


def deliver_events(
    engine: sa.Engine, cluster: str, sink: Sink, *, clock: Clock, chance: Callable[[], float]
) -> int:
    """Sends what is due; the number that the sink took. The first call of all begins with what comes next."""
    sent = 0
    for _ in range(ROUND_MAX):
        now = clock.now()
        feed = _feed(engine, cluster)
        if feed.next_try_at is not None and feed.next_try_at > now:
            break
        found = _next(engine, cluster, feed.seq)
        if found is None:
            break
        seq, record = found
        try:
            if now - record.at <= OLDEST:
                sink.send(seq, record)
                sent += 1
        except DeliveryFailed as error:
            tries = feed.tries + 1 if error.refused else feed.tries
            if tries < MAX_TRIES:
                failures = tries if error.refused else 1 if now - record.at < _SOON else 2
                wait_s = wait_after(failures, error.retry_after_s, chance())
                then = now + timedelta(seconds=wait_s)
                _note(engine, cluster, feed.seq, feed.seq, tries=tries, next_try_at=then)
                break
            log.warning("an event is passed over", cluster=cluster, seq=seq, why=str(error))
        _note(engine, cluster, feed.seq, seq, tries=0, next_try_at=None)
    return sent


def _feed(engine: sa.Engine, cluster: str) -> sa.Row:
    with engine.begin() as conn:
        wanted = sa.select(event_feed).where(event_feed.c.cluster == cluster)
        known = conn.execute(wanted).first()
        if known is not None:
            return known
        head = head_of(conn, cluster)
        begin = insert(event_feed).values(cluster=cluster, seq=head.seq if head else 0)
        conn.execute(begin.on_conflict_do_nothing())
        return conn.execute(wanted).one()


def _next(engine: sa.Engine, cluster: str, after: int) -> tuple[int, AuditRecord] | None:
    with engine.connect() as conn:
        row = conn.execute(
            sa.select(audit_chain.c.seq, *RECORD)
            .select_from(audit_chain.join(audit_records, audit_records.c.id == audit_chain.c.record))
            .where(audit_chain.c.cluster == cluster, audit_chain.c.seq > after)
            .order_by(audit_chain.c.seq)
            .limit(1)
        ).first()
    return None if row is None else (row[0], record_of(row[1:]))


def _note(
    engine: sa.Engine, cluster: str, before: int, seq: int, *, tries: int, next_try_at: datetime | None
) -> None:
    """Where another scheduler has come further meanwhile, that stands."""
    with engine.begin() as conn:
        conn.execute(
            sa.update(event_feed)
            .where(event_feed.c.cluster == cluster, event_feed.c.seq == before)
            .values(seq=seq, tries=tries, next_try_at=next_try_at)
        )
