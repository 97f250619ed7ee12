"""The gate's lock and what guards may look at, read in one transaction."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tables import (
    decisions,
    gate,
    pauses,
    remedies,
    requeues,
    rule_modes,
    run_log,
    runs,
    slots,
    vetoes,
)
from healer.model import (
    REMOVING_VERBS,
    Breaker,
    Decision,
    GateFacts,
    Pause,
    RemedyUse,
    RequeueUse,
    Slot,
    Veto,
)

_DAY = timedelta(hours=24)
_HOUR = timedelta(hours=1)


def lock_gate(conn: sa.Connection, cluster: str, snapshots: PostgresSnapshots, now: datetime) -> GateFacts:
    """Takes the gate's row lock until the transaction ends and reads the facts under it."""
    conn.execute(
        insert(gate)
        .values(cluster=cluster, breaker=msgspec.to_builtins(Breaker(cluster=cluster)))
        .on_conflict_do_nothing()
    )
    row = conn.execute(sa.select(gate.c.breaker).where(gate.c.cluster == cluster).with_for_update()).one()
    return read_facts(conn, cluster, snapshots, now, breaker=msgspec.convert(row.breaker, Breaker))


def read_facts(
    conn: sa.Connection,
    cluster: str,
    snapshots: PostgresSnapshots,
    now: datetime,
    *,
    breaker: Breaker | None = None,
) -> GateFacts:
    """The facts without the lock: for previews and pages."""
    if breaker is None:
        row = conn.execute(sa.select(gate.c.breaker).where(gate.c.cluster == cluster)).first()
        breaker = msgspec.convert(row.breaker, Breaker) if row else Breaker(cluster=cluster)
    return GateFacts(
        cluster=cluster,
        snapshot=snapshots.read(conn, cluster),
        slots=_slots(conn, cluster),
        granted=_granted(conn, cluster, now),
        pauses=_pauses(conn, cluster, now),
        breaker=breaker,
        requeues=_since(conn, requeues, RequeueUse, cluster, now - _DAY),
        remedies=_since(conn, remedies, RemedyUse, cluster, now - _DAY),
        vetoes=_vetoes(conn, cluster, now),
        modes={row.rule: row.mode for row in conn.execute(sa.select(rule_modes.c.rule, rule_modes.c.mode))},
        actions=_actions(conn, cluster),
        running=_running(conn, cluster),
    )


def add_decision(conn: sa.Connection, decision: Decision) -> None:
    conn.execute(
        sa.insert(decisions).values(
            cluster=decision.cluster,
            incident=decision.incident,
            run=decision.run,
            at=decision.at,
            outcome=decision.outcome,
            doc=msgspec.to_builtins(decision),
        )
    )


def grant_slot(conn: sa.Connection, slot: Slot) -> None:
    """One slot per node: a second grant for a node that has one is nothing."""
    statement = insert(slots).values(**msgspec.structs.asdict(slot))
    conn.execute(
        statement.on_conflict_do_nothing(
            index_elements=["cluster", "node"], index_where=sa.text("released_at IS NULL")
        )
    )


def release_slot(conn: sa.Connection, cluster: str, node: str, *, at: datetime, why: str) -> None:
    conn.execute(
        sa.update(slots)
        .where(slots.c.cluster == cluster, slots.c.node == node, slots.c.released_at.is_(None))
        .values(released_at=at, released_why=why)
    )


def save_breaker(conn: sa.Connection, breaker: Breaker) -> None:
    conn.execute(
        sa.update(gate).where(gate.c.cluster == breaker.cluster).values(breaker=msgspec.to_builtins(breaker))
    )


def _named(row: sa.Row, noun: type[Any]) -> Mapping[str, Any]:
    return {name: getattr(row, name) for name in noun.__struct_fields__ if hasattr(row, name)}


def _slots(conn: sa.Connection, cluster: str) -> tuple[Slot, ...]:
    rows = conn.execute(
        sa.select(slots).where(slots.c.cluster == cluster, slots.c.released_at.is_(None)).order_by(slots.c.id)
    )
    return tuple(Slot(**_named(row, Slot)) for row in rows)


def _granted(conn: sa.Connection, cluster: str, now: datetime) -> tuple[datetime, ...]:
    rows = conn.execute(
        sa.select(slots.c.granted_at)
        .where(slots.c.cluster == cluster, slots.c.granted_at > now - _HOUR, ~slots.c.unusable)
        .order_by(slots.c.granted_at)
    )
    return tuple(rows.scalars())


def _pauses(conn: sa.Connection, cluster: str, now: datetime) -> tuple[Pause, ...]:
    rows = conn.execute(
        sa.select(pauses)
        .where(
            pauses.c.ended_at.is_(None),
            sa.or_(pauses.c.until.is_(None), pauses.c.until > now),
            sa.or_(pauses.c.cluster.is_(None), pauses.c.cluster == cluster),
        )
        .order_by(pauses.c.since)
    )
    return tuple(Pause(**_named(row, Pause)) for row in rows)


def _since(
    conn: sa.Connection, table: sa.Table, noun: type[Any], cluster: str, moment: datetime
) -> tuple[Any, ...]:
    rows = conn.execute(
        sa.select(table).where(table.c.cluster == cluster, table.c.at > moment).order_by(table.c.id)
    )
    return tuple(msgspec.convert(_named(row, noun), noun) for row in rows)


def _vetoes(conn: sa.Connection, cluster: str, now: datetime) -> tuple[Veto, ...]:
    rows = conn.execute(sa.select(vetoes).where(vetoes.c.cluster == cluster, vetoes.c.until > now))
    return tuple(Veto(**_named(row, Veto)) for row in rows)


def _actions(conn: sa.Connection, cluster: str) -> tuple[bool, ...]:
    """How the last ten removing steps ended, oldest first."""
    removing = [str(verb) for verb in REMOVING_VERBS]
    rows = conn.execute(
        sa.select(run_log.c.event)
        .join(runs, runs.c.id == run_log.c.run)
        .where(
            runs.c.cluster == cluster,
            run_log.c.event.in_(["done", "failed"]),
            run_log.c.doc["data"]["verb"].astext.in_(removing),
        )
        .order_by(run_log.c.seq.desc())
        .limit(10)
    )
    return tuple(event == "done" for event in reversed(rows.scalars().all()))


def _running(conn: sa.Connection, cluster: str) -> dict[str, str]:
    rows = conn.execute(
        sa.select(runs.c.node, runs.c.id).where(
            runs.c.cluster == cluster, runs.c.state == "running", ~runs.c.shadow, runs.c.node.is_not(None)
        )
    )
    return {row.node: row.id for row in rows}
