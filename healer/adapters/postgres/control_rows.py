"""Rows of what people order beside runs: pauses, modes of rules, and which request was audited."""

from datetime import datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.tables import audit_records, pauses, rule_modes
from healer.model import Mode, Pause


def audited(conn: sa.Connection, subject: str, request: str) -> bool:
    statement = sa.select(audit_records.c.id).where(
        audit_records.c.subject == subject, audit_records.c.data["request"].astext == request
    )
    return conn.execute(statement.limit(1)).first() is not None


def add_pause(conn: sa.Connection, pause: Pause) -> bool:
    row = insert(pauses).values(**msgspec.structs.asdict(pause))
    made = row.on_conflict_do_nothing(index_elements=["id"]).returning(pauses.c.id)
    return conn.execute(made).first() is not None


def pause_named(conn: sa.Connection, name: str) -> Pause | None:
    row = conn.execute(sa.select(pauses).where(pauses.c.id == name)).first()
    return pause_of(row) if row else None


def end_pause(conn: sa.Connection, name: str, by: str, at: datetime) -> Pause | None:
    in_force = pauses.c.id == name, pauses.c.ended_at.is_(None)
    row = conn.execute(
        sa.update(pauses).where(*in_force).values(ended_at=at, ended_by=by).returning(pauses)
    ).first()
    return pause_of(row) if row else None


def pause_of(row: sa.Row) -> Pause:
    return Pause(
        id=row.id,
        scope=row.scope,
        name=row.name,
        by=row.by,
        reason=row.reason,
        since=row.since,
        until=row.until,
        cluster=row.cluster,
    )


def rule_mode(conn: sa.Connection, rule: str) -> tuple[Mode, str] | None:
    row = conn.execute(sa.select(rule_modes).where(rule_modes.c.rule == rule)).first()
    return (Mode(row.mode), row.by) if row else None


def save_rule_mode(conn: sa.Connection, rule: str, mode: Mode, *, by: str, reason: str, at: datetime) -> None:
    values = {"mode": mode.value, "by": by, "reason": reason, "at": at}
    row = insert(rule_modes).values(rule=rule, **values)
    conn.execute(row.on_conflict_do_update(index_elements=["rule"], set_=values))
