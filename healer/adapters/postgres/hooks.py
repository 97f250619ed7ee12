"""What the hooks' route asks the ledger: how the nodes stand, and what hooks were permitted."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres import audit_rows as audit
from healer.adapters.postgres import gate_facts as gate
from healer.adapters.postgres.engine import reading, translated
from healer.adapters.postgres.incident_queries import watched
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tables import incidents, permits, runs, slots
from healer.model import AuditRecord, GateFacts, HookAsk, Incident, Permit, Run, Slot, Verdict
from healer.ports.transactions import HookStanding

_ORDER = list(Verdict)


class PostgresHooks:
    """`healer.ports.transactions.HookBook`."""

    def __init__(self, engine: sa.Engine, snapshots: PostgresSnapshots) -> None:
        self._engine, self._snapshots = engine, snapshots

    def standings(self, cluster: str, now: datetime) -> dict[str, HookStanding]:
        with reading(self._engine) as conn:
            told = watched(conn, [cluster], now)
        found: dict[str, HookStanding] = {}
        for one in told:
            for node, verdict in one.nodes.items():
                known = found.get(node)
                if known is None or _ORDER.index(verdict) > _ORDER.index(known.verdict):
                    reason = f"{one.title} (incident {one.short_id})"
                    found[node] = HookStanding(verdict=verdict, reason=reason)
        return found

    def is_held(self, cluster: str, node: str) -> bool:
        held = sa.select(slots.c.id).where(
            slots.c.cluster == cluster, slots.c.node == node, slots.c.released_at.is_(None)
        )
        with reading(self._engine) as conn:
            return conn.execute(held).first() is not None

    def known(self, ask: HookAsk) -> Permit | None:
        with reading(self._engine) as conn:
            return _known(conn, ask)

    def note(self, permit: Permit, now: datetime) -> None:
        with translated(), self._engine.begin() as conn:
            if _known(conn, permit) is None:
                _add(conn, permit, now)

    @contextmanager
    def asking(self, cluster: str, now: datetime) -> Iterator["_Asking"]:
        with translated(), self._engine.begin() as conn:
            yield _Asking(conn, gate.lock_gate(conn, cluster, self._snapshots, now), now)


class _Asking:
    """`healer.ports.transactions.HookTx`."""

    def __init__(self, conn: sa.Connection, facts: GateFacts, now: datetime) -> None:
        self._conn, self.facts, self._now = conn, facts, now

    def known(self, ask: HookAsk) -> Permit | None:
        return _known(self._conn, ask)

    def cause(self, slot: Slot) -> tuple[Incident, Run] | None:
        incident = self._conn.scalar(sa.select(incidents.c.doc).where(incidents.c.id == slot.incident))
        run = self._conn.scalar(sa.select(runs.c.doc).where(runs.c.id == slot.run))
        if incident is None or run is None:
            return None
        return msgspec.convert(incident, Incident), msgspec.convert(run, Run)

    def add(self, permit: Permit) -> None:
        _add(self._conn, permit, self._now)


def _known(conn: sa.Connection, of: HookAsk | Permit) -> Permit | None:
    query = sa.select(permits.c.doc).where(
        permits.c.cluster == of.cluster,
        permits.c.node == of.node,
        permits.c.hook == of.hook,
        permits.c.report == of.id,
    )
    doc = conn.execute(query).scalar()
    return msgspec.convert(doc, Permit) if doc else None


def _add(conn: sa.Connection, permit: Permit, now: datetime) -> None:
    row = {
        "cluster": permit.cluster,
        "node": permit.node,
        "hook": permit.hook,
        "report": permit.id,
        "at": permit.at,
        "doc": msgspec.to_builtins(permit),
    }
    conn.execute(insert(permits).values(**row).on_conflict_do_nothing())
    data = {
        "hook": permit.hook,
        "job": permit.job,
        "incident": permit.incident,
        "run": permit.run,
        "check": permit.check,
        "until": permit.until.isoformat(),
    }
    record = AuditRecord(
        cluster=permit.cluster,
        at=now,
        actor="healer" if permit.run else "hook",
        verb="hook.permitted" if permit.run else "hook.failed",
        subject=f"node/{permit.node}",
        data={name: value for name, value in data.items() if value},
    )
    audit.append(conn, record)
