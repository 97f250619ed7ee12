"""The gate: its lock, the facts that guards read, slots, pauses, and permits for Slurm hooks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres import audit_rows
from healer.adapters.postgres.engine import confirm, pick, read_doc, reading, write_docs, writing
from healer.adapters.postgres.incident_rows import watched
from healer.adapters.postgres.node_rows import TESTS, PostgresSnapshots, SnapshotStore
from healer.adapters.postgres.run_rows import ENDED, GRANT
from healer.adapters.postgres.tables import gate, incidents, pauses, permits, runs, slots
from healer.model import (
    HARDWARE,
    NODE_REMOVING,
    SLOT_GUARDS,
    AuditRecord,
    Breaker,
    GateFacts,
    Guard,
    HookRequest,
    Incident,
    LedgerFacts,
    Pause,
    Permit,
    Run,
    Slot,
    Sweeps,
    worst_verdict,
)
from healer.model.detection import EARLIEST
from healer.ports.transactions import HookStanding, OutOfService
from healer.text import Said, from_stored, read_said, to_stored

FACTS = sa.text("""
SELECT pictured.version, pictured.taken_at, json_build_object(
  'read_at', statement_timestamp(),
  'slots', coalesce((SELECT json_agg(item) FROM (
     SELECT cluster, node, incident, run, granted_at, unusable, drained_at FROM slots
     WHERE cluster = :cluster AND released_at IS NULL ORDER BY id) AS item), '[]'),
  'granted', coalesce((SELECT json_agg(granted_at ORDER BY granted_at) FROM slots
     WHERE cluster = :cluster AND granted_at > clock.now - interval '1 hour' AND NOT unusable
       AND (released_at IS NULL OR drained_at IS NOT NULL)), '[]'),
  'pauses', coalesce((SELECT json_agg(item) FROM (
     SELECT id, scope, name, "by", reason, since, until, cluster FROM pauses
     WHERE ended_at IS NULL AND (until IS NULL OR until > clock.now)
       AND (cluster IS NULL OR cluster = :cluster) ORDER BY since) AS item), '[]'),
  'requeues', coalesce((SELECT json_agg(item) FROM (
     SELECT job, restarts, at, incident FROM requeues
     WHERE cluster = :cluster AND at > clock.now - interval '24 hours' ORDER BY id) AS item), '[]'),
  'remedies', coalesce((SELECT json_agg(item) FROM (
     SELECT node, remedy, rule, at, incident FROM remedies
     WHERE cluster = :cluster AND at > clock.now - interval '24 hours' ORDER BY id) AS item), '[]'),
  'vetoes', coalesce((SELECT json_agg(item) FROM (
     SELECT node, "by", at, until FROM vetoes
     WHERE cluster = :cluster AND until > clock.now ORDER BY id) AS item), '[]'),
  'modes', coalesce((SELECT json_object_agg(rule, mode) FROM rule_modes), '{}'),
  'trials', coalesce((SELECT json_agg(item) FROM (
     SELECT name, digest, since, "left" FROM rule_texts
     WHERE cluster = :cluster AND "left" > 0) AS item), '[]'),
  'actions', coalesce((SELECT json_agg(event = 'done' ORDER BY seq) FILTER (WHERE at > :counted) FROM (
     SELECT run_log.seq, run_log.at, run_log.event FROM run_log
     WHERE (SELECT cluster FROM runs WHERE id = run_log.run) = :cluster
       AND run_log.doc->'data'->>'verb' = ANY(:removing)
       AND run_log.event IN ('done', 'failed') AND run_log.doc->'data'->>'verb' IS NOT NULL
       AND (run_log.event = 'done'
            OR run_log.event = 'failed' AND (run_log.doc->'data'->>'final')::boolean)
     ORDER BY run_log.seq DESC LIMIT 10) AS item), '[]'),
  'permits', coalesce((SELECT json_agg(doc ORDER BY id) FROM permits
     WHERE cluster = :cluster AND at > clock.now - CAST(:permits_kept AS interval)), '[]'),
  'running', coalesce((SELECT json_object_agg(node, id) FROM runs
     WHERE cluster = :cluster AND state = 'running' AND NOT shadow AND node IS NOT NULL
       AND (doc->>'beside') IS DISTINCT FROM 'true'), '{}'),
  'unmade', coalesce((SELECT json_object_agg(slots.node, coalesce(runs.ended_at, slots.granted_at))
     FROM slots LEFT JOIN runs ON runs.id = slots.run
     WHERE slots.cluster = :cluster AND slots.released_at IS NULL AND slots.drained_at IS NULL
       AND (runs.id IS NULL OR runs.state = ANY(:ended))), '{}'),
  'kept', coalesce((SELECT json_object_agg(slots.node, runs.doc->>'by')
     FROM slots JOIN runs ON runs.id = slots.run
     WHERE slots.cluster = :cluster AND slots.released_at IS NULL
       AND runs.state <> ALL(:ended) AND runs.doc->>'by' <> 'healer'), '{}'),
  'waiting', coalesce((SELECT json_agg(item) FROM (
     SELECT * FROM (
       SELECT runs.id AS run, runs.node, incidents.severity, incidents.opened AS since,
              incidents.doc->'jobs_hit' AS jobs,
              CASE WHEN runs.state = 'held' THEN incidents.doc->>'held_by' ELSE (
                SELECT doc->'data'->>'guard' FROM run_log
                WHERE run = runs.id ORDER BY seq DESC LIMIT 1) END AS guard
       FROM runs JOIN incidents ON incidents.id = runs.incident
       WHERE runs.cluster = :cluster AND NOT runs.shadow
         AND (runs.state = 'held' OR runs.state = 'running' AND runs.doc->>'question' IS NOT NULL)) AS held
     WHERE guard = ANY(:capacity) ORDER BY severity, since) AS item), '[]')
)::text AS facts
FROM (SELECT least(CAST(:now AS timestamptz), statement_timestamp()) AS now) AS clock -- `GateFacts.earlier`
LEFT JOIN snapshots AS pictured ON pictured.cluster = :cluster
""")

SWEEPS = sa.text("""
SELECT json_build_object(
  'running', coalesce((SELECT json_object_agg(node, id) FROM runs
     WHERE cluster = :cluster AND state IN ('running', 'stuck') AND NOT shadow
       AND state NOT IN ('done', 'undone', 'rejected', 'cancelled') -- as the index `runs_active` has it
       AND node IS NOT NULL AND playbook = ANY(:playbooks)), '{}'),
  'ailing', coalesce((SELECT json_object_agg(node, class) FROM (
     SELECT node, max(doc->>'fault_class') AS class FROM incidents
     WHERE cluster = :cluster AND state <> 'resolved' AND node IS NOT NULL
       AND doc->>'fault_class' = ANY(:hardware) GROUP BY node) AS ill), '{}'),
  'begun', coalesce((SELECT json_object_agg(node, at) FROM (
     SELECT node, max(created_at) AS at FROM runs
     WHERE cluster = :cluster AND created_at > :since AND NOT shadow AND node IS NOT NULL
       AND playbook = ANY(:playbooks) GROUP BY node) AS tried), '{}'),
  'tested', coalesce((SELECT json_object_agg(node, at) FROM (
     SELECT runs.node, max(run_log.at) AS at FROM run_log JOIN runs ON runs.id = run_log.run
     WHERE run_log.event = 'done' AND run_log.doc->'data'->>'passed' IS NOT NULL AND run_log.at > :since
       AND run_log.doc->'data'->>'verb' = ANY(:tests)
       AND runs.cluster = :cluster AND runs.node IS NOT NULL GROUP BY runs.node) AS proven), '{}')
)::text
""")
#: `max` of a class in SQL is the worst: `fatal` sorts after `degraded`.
_HARDWARE = sorted(map(str, HARDWARE))


_decode = msgspec.json.Decoder(LedgerFacts, dec_hook=read_said).decode
#: How long a drain by a failed hook is recognised as healer's without healer's reason.
PERMITS_KEPT = timedelta(hours=24)
REMOVING = [str(verb) for verb in NODE_REMOVING]
#: Guards on shared capacity, for which several runs may wait.
CAPACITY = [str(guard) for guard in (*SLOT_GUARDS, Guard.floor)]


def pauses_in_force(now: datetime) -> tuple[sa.ColumnElement[bool], ...]:
    """As `GateFacts.earlier` has it: a pause lasts until it is over by both clocks."""
    earlier = sa.func.least(now, sa.func.statement_timestamp())
    return pauses.c.ended_at.is_(None), sa.or_(pauses.c.until.is_(None), pauses.c.until > earlier)


def read_pauses(conn: sa.Connection, cluster: str, now: datetime) -> list[str]:
    """The ids of the pauses in force for this cluster. Reads without the gate's lock."""
    applies = sa.or_(pauses.c.cluster.is_(None), pauses.c.cluster == cluster)
    return list(conn.scalars(sa.select(pauses.c.id).where(*pauses_in_force(now), applies)))


#: The columns of `Pause`.
PAUSE = tuple(pauses.c[name] for name in Pause.__struct_fields__)


def lock_gate(conn: sa.Connection, cluster: str, snapshots: PostgresSnapshots, now: datetime) -> GateFacts:
    """Takes the gate's row lock until the transaction ends and reads the facts under it."""
    query = sa.select(gate.c.breaker).where(gate.c.cluster == cluster).with_for_update()
    row = conn.execute(query).first()
    if row is None:
        breaker = to_stored(Breaker(cluster=cluster))
        conn.execute(insert(gate).values(cluster=cluster, breaker=breaker).on_conflict_do_nothing())
        row = conn.execute(query).one()
    return read_facts(conn, cluster, snapshots, now, breaker=from_stored(row.breaker, Breaker))


def read_facts(
    conn: sa.Connection,
    cluster: str,
    snapshots: PostgresSnapshots,
    now: datetime,
    *,
    breaker: Breaker | None = None,
) -> GateFacts:
    """The facts, without the lock (`lock_gate` takes it first). One statement: every drain waits for it."""
    if breaker is None:
        row = conn.execute(sa.select(gate.c.breaker).where(gate.c.cluster == cluster)).first()
        breaker = from_stored(row.breaker, Breaker) if row else Breaker(cluster=cluster)
    values = {"cluster": cluster, "now": now, "removing": REMOVING, "permits_kept": PERMITS_KEPT}
    values |= {"capacity": CAPACITY, "ended": ENDED, "counted": breaker.since or EARLIEST}
    row = conn.execute(FACTS, values).one()
    fields = msgspec.structs.asdict(_decode(row.facts))
    snapshot = snapshots.read_of(conn, cluster, row)
    return GateFacts(cluster=cluster, breaker=breaker, snapshot=snapshot, **fields)


def read_sweeps(conn: sa.Connection, cluster: str, playbooks: Sequence[str], since: datetime) -> Sweeps:
    """The state of sweeps by these playbooks. Not part of the facts, so that no drain waits for it."""
    values = {"cluster": cluster, "playbooks": list(playbooks), "since": since}
    found = conn.execute(SWEEPS, {**values, "hardware": _HARDWARE, "tests": TESTS}).scalar_one()
    return msgspec.json.decode(found, type=Sweeps, dec_hook=read_said)


def grant_slots(conn: sa.Connection, many: Sequence[Slot]) -> None:
    write_docs(conn, GRANT, many, ended=ENDED)


def release_slot(conn: sa.Connection, cluster: str, node: str, *, at: datetime, why: str) -> None:
    values = {"released_at": at, "released_why": why}
    conn.execute(sa.update(slots).where(*held(cluster, node)).values(values))


def held(cluster: str, node: str) -> tuple[sa.ColumnElement[bool], ...]:
    return slots.c.cluster == cluster, slots.c.node == node, slots.c.released_at.is_(None)


def save_breaker(conn: sa.Connection, breaker: Breaker) -> None:
    conn.execute(sa.update(gate).where(gate.c.cluster == breaker.cluster).values(breaker=to_stored(breaker)))


_OUT = (
    sa.select(
        slots.c.cluster,
        slots.c.node,
        slots.c.drained_at.label("at"),
        slots.c.incident,
        incidents.c.rule,
        incidents.c.doc["title"].label("title"),
        runs.c.playbook,
        runs.c.doc["input"].label("input"),
    )
    .join(incidents, incidents.c.id == slots.c.incident)
    .join(runs, runs.c.id == slots.c.run)
    .where(slots.c.released_at.is_(None), slots.c.drained_at.is_not(None))
    .where(incidents.c.fault_class.in_(sorted(HARDWARE)))
)


class PostgresHooks(SnapshotStore):
    """`healer.ports.transactions.HookBook`."""

    def standings(self, cluster: str, now: datetime) -> dict[str, HookStanding]:
        with reading(self._engine) as conn:
            incidents_watched = watched(conn, [cluster], now)
        found: dict[str, HookStanding] = {}
        for incident in incidents_watched:
            for node, verdict in incident.nodes.items():
                before = found.get(node)
                if before is None or worst_verdict((before.verdict, verdict)) is not before.verdict:
                    reason = f"{incident.title} (incident {incident.short_id})"
                    found[node] = HookStanding(verdict=verdict, reason=reason)
        return found

    def out_of_service(self) -> list[OutOfService]:
        with reading(self._engine) as conn:
            rows = conn.execute(_OUT).mappings().all()
        return [
            OutOfService(**row | {"title": read_said(Said, row["title"]), "input": row["input"] or {}})
            for row in map(dict, rows)
        ]

    def is_held(self, cluster: str, node: str) -> bool:
        with reading(self._engine) as conn:
            return conn.execute(sa.select(slots.c.id).where(*held(cluster, node))).first() is not None

    def permit_for(self, ask: HookRequest) -> Permit | None:
        with writing(self._engine) as conn:
            permit = _read_permit(conn, ask)
            if permit is not None:
                confirm(conn)  # Slurm drains the node on this answer
            return permit

    def note(self, permit: Permit, now: datetime) -> None:
        with writing(self._engine) as conn:
            if _read_permit(conn, permit) is None:
                _add_permit(conn, permit, now)

    @contextmanager
    def asking(self, cluster: str, now: datetime) -> Iterator["_PostgresHookTx"]:
        with writing(self._engine) as conn:
            yield _PostgresHookTx(conn, lock_gate(conn, cluster, self._snapshots, now), now)


class _PostgresHookTx:
    """`healer.ports.transactions.HookTx`."""

    def __init__(self, conn: sa.Connection, facts: GateFacts, now: datetime) -> None:
        self._conn, self.facts, self._now = conn, facts, now

    def permit_for(self, ask: HookRequest) -> Permit | None:
        return _read_permit(self._conn, ask)

    def cause(self, slot: Slot) -> tuple[Incident, Run] | None:
        cause = sa.select(incidents.c.doc).where(incidents.c.id == slot.incident)
        incident = read_doc(self._conn, cause, Incident)
        run = read_doc(self._conn, sa.select(runs.c.doc).where(runs.c.id == slot.run), Run)
        return None if incident is None or run is None else (incident, run)

    def add(self, permit: Permit) -> None:
        _add_permit(self._conn, permit, self._now)


def _read_permit(conn: sa.Connection, report: HookRequest | Permit) -> Permit | None:
    """The permit stored for this report of a hook."""
    of_node = (permits.c.cluster == report.cluster, permits.c.node == report.node)
    of_report = (permits.c.hook == report.hook, permits.c.report == report.id)
    return read_doc(conn, sa.select(permits.c.doc).where(*of_node, *of_report), Permit)


def _add_permit(conn: sa.Connection, permit: Permit, now: datetime) -> None:
    row = pick(permit, "cluster", "node", "hook", "at")
    row |= {"report": permit.id, "doc": to_stored(permit)}
    conn.execute(insert(permits).values(**row).on_conflict_do_nothing())
    data = pick(permit, "hook", "job", "incident", "run", "check")
    data["until"] = permit.until.isoformat()
    record = AuditRecord(
        cluster=permit.cluster,
        at=now,
        actor="healer" if permit.run else "hook",
        verb="hook.permitted" if permit.run else "hook.failed",
        subject=f"node/{permit.node}",
        data={name: value for name, value in data.items() if value},
    )
    audit_rows.append(conn, record)
