"""The audit's records for lists, and where the chain ends."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from healer.adapters.postgres.engine import reading
from healer.adapters.postgres.paging import begins
from healer.adapters.postgres.tables import audit_chain, audit_checkpoints, audit_records, audit_unsealed
from healer.model import AuditRecord, Checkpoint
from healer.ports.answers import ChainState, Page
from healer.ports.queries import AuditQuery, decode_cursor, encode_cursor


class PostgresAudit:
    """`healer.ports.queries.AuditQueries`."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def page(self, query: AuditQuery, *, limit: int, cursor: str | None = None) -> Page[AuditRecord]:
        statement = (
            sa.select(audit_records, audit_chain.c.seq, audit_chain.c.prev, audit_chain.c.hash)
            .outerjoin(audit_chain, audit_chain.c.record == audit_records.c.id)
            .where(*_asked(query))
            .order_by(audit_records.c.id.desc())
            .limit(limit + 1)
        )
        if cursor is not None:
            (last,) = decode_cursor(cursor, tuple[int])
            statement = statement.where(audit_records.c.id < min(last, 2**63 - 1))
        with reading(self._engine) as conn:
            rows = conn.execute(statement).all()
        more = encode_cursor(rows[limit - 1].id) if len(rows) > limit else None
        return Page(items=[_record(row) for row in rows[:limit]], next_cursor=more)

    def chain(self, cluster: str) -> ChainState:
        with reading(self._engine) as conn:
            head = conn.execute(_newest(audit_chain, cluster)).first()
            waiting = conn.execute(
                sa.select(sa.func.count())
                .select_from(audit_unsealed)
                .join(audit_records, audit_records.c.id == audit_unsealed.c.record)
                .where(audit_records.c.cluster == cluster)
            ).scalar_one()
            signed = conn.execute(_newest(audit_checkpoints, cluster)).first()
        return ChainState(
            cluster=cluster,
            seq=head.seq if head else 0,
            hash=bytes(head.hash).hex() if head else "",
            unsealed=waiting,
            checkpoint=None if signed is None else _checkpoint(signed),
        )


def _newest(table: sa.Table, cluster: str) -> sa.Select:
    return sa.select(table).where(table.c.cluster == cluster).order_by(table.c.seq.desc()).limit(1)


def _asked(query: AuditQuery) -> Iterator[sa.ColumnElement[bool]]:
    record = audit_records.c
    if query.clusters is not None:
        yield record.cluster.in_(query.clusters)
    if query.actor:
        yield record.actor == query.actor
    if query.verb:
        yield begins(record.verb, query.verb)
    if query.subject:
        yield begins(record.subject, query.subject)
    if query.subjects:
        yield record.subject.in_(query.subjects)
    if query.people_since is not None:
        yield record.actor != "healer"
        yield record.id > _last_before(query.people_since)
        yield from (~begins(record.verb, one) for one in query.but)


def _last_before(moment: datetime) -> sa.ColumnElement[int]:
    """The last record before then, found from the end: a filter by `at` would walk the whole trail."""
    older = sa.select(audit_records.c.id).where(audit_records.c.at < moment)
    return sa.func.coalesce(older.order_by(audit_records.c.id.desc()).limit(1).scalar_subquery(), 0)


def _record(row: Any) -> AuditRecord:
    return AuditRecord(
        cluster=row.cluster,
        at=row.at,
        actor=row.actor,
        verb=row.verb,
        subject=row.subject,
        data=row.data,
        id=row.id,
        seq=row.seq,
        prev=None if row.prev is None else bytes(row.prev).hex(),
        hash=None if row.hash is None else bytes(row.hash).hex(),
    )


def _checkpoint(row: sa.Row) -> Checkpoint:
    return Checkpoint(
        cluster=row.cluster,
        seq=row.seq,
        hash=bytes(row.hash).hex(),
        at=row.at,
        key=row.key,
        signature=bytes(row.signature).hex(),
    )
