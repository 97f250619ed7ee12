"""The feed of events. The audit's chain is its outbox: a record is there once what it tells of is committed,
and is never changed. Only how far the sink has come is stored."""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.audit_rows import RECORD, head_of, record_of
from healer.adapters.postgres.tables import audit_chain, audit_records, event_feed
from healer.model import AuditRecord
from healer.ports.outbound import Fed


class PostgresEventFeed:
    """`healer.ports.outbound.EventFeed`."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        self._engine, self.cluster = engine, cluster

    def position(self) -> Fed:
        table = event_feed.c
        wanted = sa.select(table.seq, table.tries, table.next_try_at).where(table.cluster == self.cluster)
        with self._engine.begin() as conn:
            known = conn.execute(wanted).first()
            if known is None:
                head = head_of(conn, self.cluster)
                begin = insert(event_feed).values(cluster=self.cluster, seq=head.seq if head else 0)
                conn.execute(begin.on_conflict_do_nothing())
                known = conn.execute(wanted).one()
        return Fed(*known)

    def next(self, after: int) -> tuple[int, AuditRecord] | None:
        with self._engine.connect() as conn:
            row = conn.execute(
                sa.select(audit_chain.c.seq, *RECORD)
                .select_from(audit_chain.join(audit_records, audit_records.c.id == audit_chain.c.record))
                .where(audit_chain.c.cluster == self.cluster, audit_chain.c.seq > after)
                .order_by(audit_chain.c.seq)
                .limit(1)
            ).first()
        return None if row is None else (row[0], record_of(row[1:]))

    def note(self, before: int, fed: Fed) -> None:
        mine = (event_feed.c.cluster == self.cluster, event_feed.c.seq == before)
        with self._engine.begin() as conn:
            conn.execute(sa.update(event_feed).where(*mine).values(fed._asdict()))
