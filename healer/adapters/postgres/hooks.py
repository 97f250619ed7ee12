"""What the hooks' route asks the ledger: how the nodes stand, and whether a hook may fail."""

from collections.abc import Callable
from datetime import datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres import audit, gate
from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.rows import watched
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tables import incidents, permits, runs, slots
from healer.decisions import own_permit, permit_of
from healer.model import AuditRecord, HookAsk, Incident, Permit, Ruleset, Run, Verdict
from healer.ports.clock import Clock
from healer.ports.hook_answers import HookStanding

_ORDER = list(Verdict)


class PostgresHooks:
    """`healer.ports.hook_answers.Hooks`."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        snapshots: PostgresSnapshots,
        rules: Callable[[], Ruleset],
        clock: Clock,
    ) -> None:
        self._engine, self._snapshots, self._rules, self._clock = engine, snapshots, rules, clock

    def standings(self, cluster: str) -> dict[str, HookStanding]:
        with translated(), self._engine.connect() as conn:
            told = watched(conn, [cluster], self._clock.now())
        found: dict[str, HookStanding] = {}
        for one in told:
            for node, verdict in one.nodes.items():
                known = found.get(node)
                if known is None or _ORDER.index(verdict) > _ORDER.index(known.verdict):
                    reason = f"{one.title} (incident {one.short_id})"
                    found[node] = HookStanding(verdict=verdict, reason=reason)
        return found

    def known(self, ask: HookAsk) -> Permit | None:
        with translated(), self._engine.connect() as conn:
            return self._known(conn, ask)

    def is_held(self, cluster: str, node: str) -> bool:
        held = sa.select(slots.c.id).where(
            slots.c.cluster == cluster, slots.c.node == node, slots.c.released_at.is_(None)
        )
        with translated(), self._engine.connect() as conn:
            return conn.execute(held).first() is not None

    def permit(self, ask: HookAsk) -> Permit | None:
        """One transaction under the gate's lock, like any drain. The same ask again has the same answer."""
        now = self._clock.now()
        with translated(), self._engine.begin() as conn:
            facts = gate.lock_gate(conn, ask.cluster, self._snapshots, now)
            if known := self._known(conn, ask):
                return known
            slot = facts.held.get(ask.node)
            if slot is None or slot.incident is None:
                return None
            incident = conn.execute(
                sa.select(incidents.c.doc).where(incidents.c.id == slot.incident)
            ).scalar()
            run = conn.execute(sa.select(runs.c.doc).where(runs.c.id == slot.run)).scalar()
            if incident is None or run is None:
                return None
            given = permit_of(
                ask, msgspec.convert(incident, Incident), msgspec.convert(run, Run), facts, self._rules(), now
            )
            if isinstance(given, str):
                return None
            self._add(conn, given, now)
            return given

    def note_own(self, ask: HookAsk, check: str, at: datetime) -> None:
        """A hook has failed without an answer, by the site's list. A second telling is nothing."""
        with translated(), self._engine.begin() as conn:
            if self._known(conn, ask) is None:
                self._add(conn, own_permit(ask, check, at), self._clock.now())

    def _known(self, conn: sa.Connection, ask: HookAsk) -> Permit | None:
        query = sa.select(permits.c.doc).where(
            permits.c.cluster == ask.cluster,
            permits.c.node == ask.node,
            permits.c.hook == ask.hook,
            permits.c.report == ask.id,
        )
        doc = conn.execute(query).scalar()
        return msgspec.convert(doc, Permit) if doc else None

    def _add(self, conn: sa.Connection, permit: Permit, now: datetime) -> None:
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
