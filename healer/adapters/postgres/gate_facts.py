"""The gate's lock, what guards may look at, read in one transaction, and what runs ask it.

What several runs ask at the same time is one transaction: the lock is taken once, and the picture read once.
One proposal is judged after the other, the most urgent first. As soon as one of them has changed what guards
look at, it is read once more for the next.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.holding import prove
from healer.adapters.postgres.lines import Lines, store
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tables import gate, pauses, requeues, runs, slots
from healer.model import (
    ENDED_RUN_STATES,
    HARDWARE,
    NODE_REMOVING,
    SLOT_GUARDS,
    AuditRecord,
    Breaker,
    Decision,
    GateFacts,
    Guard,
    LogEntry,
    Mode,
    Pause,
    Permit,
    RemedyUse,
    RequeueUse,
    Run,
    Slot,
    StepEvent,
    Sweeps,
    Trial,
    Verb,
    Veto,
    Waiting,
)
from healer.ports.clock import Clock
from healer.ports.commanding import ALONE
from healer.ports.lease import LEASE
from healer.ports.transactions import AlreadyRequeued, GateTx, LeaseLost

FACTS = sa.text("""
SELECT json_build_object(
  'slots', coalesce((SELECT json_agg(one) FROM (
     SELECT cluster, node, incident, run, granted_at, unusable, drained_at FROM slots
     WHERE cluster = :cluster AND released_at IS NULL ORDER BY id) AS one), '[]'),
  'granted', coalesce((SELECT json_agg(granted_at ORDER BY granted_at) FROM slots
     WHERE cluster = :cluster AND granted_at > :now - interval '1 hour' AND NOT unusable
       AND (released_at IS NULL OR drained_at IS NOT NULL)), '[]'),
  'pauses', coalesce((SELECT json_agg(one) FROM (
     SELECT id, scope, name, "by", reason, since, until, cluster FROM pauses
     WHERE ended_at IS NULL AND (until IS NULL OR until > :now)
       AND (cluster IS NULL OR cluster = :cluster) ORDER BY since) AS one), '[]'),
  'requeues', coalesce((SELECT json_agg(one) FROM (
     SELECT job, restarts, at, incident FROM requeues
     WHERE cluster = :cluster AND at > :now - interval '24 hours' ORDER BY id) AS one), '[]'),
  'remedies', coalesce((SELECT json_agg(one) FROM (
     SELECT node, remedy, rule, at, incident FROM remedies
     WHERE cluster = :cluster AND at > :now - interval '24 hours' ORDER BY id) AS one), '[]'),
  'vetoes', coalesce((SELECT json_agg(one) FROM (
     SELECT node, "by", at, until FROM vetoes
     WHERE cluster = :cluster AND until > :now ORDER BY id) AS one), '[]'),
  'modes', coalesce((SELECT json_object_agg(rule, mode) FROM rule_modes), '{}'),
  'trials', coalesce((SELECT json_agg(one) FROM (
     SELECT name, digest, since, "left" FROM rule_texts
     WHERE cluster = :cluster AND "left" > 0) AS one), '[]'),
  'actions', coalesce((SELECT json_agg(event = 'done' ORDER BY seq) FROM (
     SELECT run_log.seq, run_log.event FROM run_log JOIN runs ON runs.id = run_log.run
     WHERE runs.cluster = :cluster AND run_log.doc->'data'->>'verb' = ANY(:removing)
       AND run_log.event IN ('done', 'failed') AND run_log.doc->'data'->>'verb' IS NOT NULL
       AND (run_log.event = 'done'
            OR run_log.event = 'failed' AND (run_log.doc->'data'->>'final')::boolean)
     ORDER BY run_log.seq DESC LIMIT 10) AS one), '[]'),
  'permits', coalesce((SELECT json_agg(doc ORDER BY id) FROM permits
     WHERE cluster = :cluster AND at > :now - CAST(:permits_kept AS interval)), '[]'),
  'running', coalesce((SELECT json_object_agg(node, id) FROM runs
     WHERE cluster = :cluster AND state = 'running' AND NOT shadow AND node IS NOT NULL
       AND (doc->>'beside') IS DISTINCT FROM 'true'), '{}'),
  'waiting', coalesce((SELECT json_agg(one) FROM (
     SELECT * FROM (
       SELECT runs.id AS run, runs.node, incidents.severity, incidents.opened AS since,
              incidents.doc->'jobs_hit' AS jobs,
              CASE WHEN runs.state = 'held' THEN incidents.doc->>'held_by' ELSE (
                SELECT doc->'data'->>'guard' FROM run_log
                WHERE run = runs.id ORDER BY seq DESC LIMIT 1) END AS guard
       FROM runs JOIN incidents ON incidents.id = runs.incident
       WHERE runs.cluster = :cluster AND NOT runs.shadow
         AND (runs.state = 'held' OR runs.state = 'running' AND runs.doc->>'question' IS NOT NULL)) AS held
     WHERE guard = ANY(:capacity) ORDER BY severity, since) AS one), '[]')
)::text
""")

_GRANT = sa.text("""
INSERT INTO slots (cluster, node, incident, run, granted_at, unusable, drained_at)
SELECT doc->>'cluster', doc->>'node', doc->>'incident', doc->>'run', (doc->>'granted_at')::timestamptz,
  (doc->>'unusable')::boolean, (doc->>'drained_at')::timestamptz
FROM jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY AS given (doc, place) ORDER BY place
ON CONFLICT (cluster, node) WHERE released_at IS NULL DO UPDATE
SET run = excluded.run, incident = coalesce(excluded.incident, slots.incident)
WHERE slots.drained_at IS NULL OR slots.run IN (SELECT id FROM runs WHERE state = ANY(:ended))
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
#: `fatal` comes after `degraded`: the worst is the greatest.
_HARDWARE = sorted(str(one) for one in HARDWARE)
_TESTS = [str(Verb.diagnose), str(Verb.sweep)]


class _Known(msgspec.Struct):
    """What `FACTS` answers: those fields of GateFacts."""

    slots: tuple[Slot, ...] = ()
    granted: tuple[datetime, ...] = ()
    pauses: tuple[Pause, ...] = ()
    requeues: tuple[RequeueUse, ...] = ()
    remedies: tuple[RemedyUse, ...] = ()
    vetoes: tuple[Veto, ...] = ()
    modes: dict[str, Mode] = {}
    trials: tuple[Trial, ...] = ()
    actions: tuple[bool, ...] = ()
    permits: tuple[Permit, ...] = ()
    running: dict[str, str] = {}
    waiting: tuple[Waiting, ...] = ()


_decode = msgspec.json.Decoder(_Known).decode
_ENDED = [str(state) for state in ENDED_RUN_STATES]
#: A drain that came of a hook is known as ours for so long, if nothing gave it our reason before.
PERMITS_KEPT = timedelta(hours=24)
REMOVING = [str(verb) for verb in NODE_REMOVING]
#: What several may wait for at once.
CAPACITY = [str(guard) for guard in (*SLOT_GUARDS, Guard.floor)]


def read_pauses(conn: sa.Connection, cluster: str, now: datetime) -> list[str]:
    """The ids of the pauses that stand for this cluster. Without the lock: for what takes no capacity."""
    query = sa.select(pauses.c.id).where(
        pauses.c.ended_at.is_(None),
        sa.or_(pauses.c.until.is_(None), pauses.c.until > now),
        sa.or_(pauses.c.cluster.is_(None), pauses.c.cluster == cluster),
    )
    return list(conn.execute(query).scalars())


def lock_gate(conn: sa.Connection, cluster: str, snapshots: PostgresSnapshots, now: datetime) -> GateFacts:
    """Takes the gate's row lock until the transaction ends and reads the facts under it."""
    query = sa.select(gate.c.breaker).where(gate.c.cluster == cluster).with_for_update()
    row = conn.execute(query).first()
    if row is None:
        breaker = msgspec.to_builtins(Breaker(cluster=cluster))
        conn.execute(insert(gate).values(cluster=cluster, breaker=breaker).on_conflict_do_nothing())
        row = conn.execute(query).one()
    return read_facts(conn, cluster, snapshots, now, breaker=msgspec.convert(row.breaker, Breaker))


def read_facts(
    conn: sa.Connection,
    cluster: str,
    snapshots: PostgresSnapshots,
    now: datetime,
    *,
    breaker: Breaker | None = None,
) -> GateFacts:
    """The facts without the lock: for previews and pages. One statement: this lies on the path to a drain."""
    if breaker is None:
        row = conn.execute(sa.select(gate.c.breaker).where(gate.c.cluster == cluster)).first()
        breaker = msgspec.convert(row.breaker, Breaker) if row else Breaker(cluster=cluster)
    asked = {"cluster": cluster, "now": now, "removing": REMOVING, "permits_kept": PERMITS_KEPT}
    asked["capacity"] = CAPACITY
    known = _decode(conn.execute(FACTS, asked).scalar_one())
    fields = {name: getattr(known, name) for name in known.__struct_fields__}
    return GateFacts(cluster=cluster, breaker=breaker, snapshot=snapshots.read(conn, cluster), **fields)


def read_sweeps(conn: sa.Connection, cluster: str, playbooks: Sequence[str], since: datetime) -> Sweeps:
    """Apart from the facts: nobody who waits for a drain needs them."""
    asked = {"cluster": cluster, "playbooks": list(playbooks), "since": since}
    found = conn.execute(SWEEPS, {**asked, "hardware": _HARDWARE, "tests": _TESTS}).scalar_one()
    return msgspec.json.decode(found, type=Sweeps)


def grant_slots(conn: sa.Connection, many: Sequence[Slot]) -> None:
    """One slot per node, and none twice among these. A later run takes over that of one which drained nothing
    yet, or has ended."""
    if many:
        conn.execute(_GRANT, {"rows": msgspec.json.encode(many).decode(), "ended": _ENDED})


def release_slot(conn: sa.Connection, cluster: str, node: str, *, at: datetime, why: str) -> None:
    conn.execute(
        sa.update(slots)
        .where(slots.c.cluster == cluster, slots.c.node == node, slots.c.released_at.is_(None))
        .values(released_at=at, released_why=why)
    )


def slot_of(conn: sa.Connection, cluster: str, node: str) -> Slot | None:
    """Read anew: each statement sees what was committed before it."""
    columns = [slots.c[name] for name in Slot.__struct_fields__]
    held = sa.and_(slots.c.cluster == cluster, slots.c.node == node, slots.c.released_at.is_(None))
    row = conn.execute(sa.select(*columns).where(held)).first()
    return Slot(**row._mapping) if row is not None else None


def save_breaker(conn: sa.Connection, breaker: Breaker) -> None:
    conn.execute(
        sa.update(gate).where(gate.c.cluster == breaker.cluster).values(breaker=msgspec.to_builtins(breaker))
    )


# --- what runs ask


@dataclass(frozen=True)
class Case:
    """A run's question. `judge` may be asked again where nothing came of the first answer."""

    run: Run
    judge: Callable[[GateTx], Any]
    #: Sorts the most urgent first.
    order: tuple[str, datetime]
    #: What the run had to write before; nothing of it is what guards look at.
    before: Lines = field(default_factory=Lines)


class Judging:
    """The work of a lane (`healer.adapters.postgres.lane`): cases of one cluster in, their answers out."""

    def __init__(self, snapshots: PostgresSnapshots, clock: Clock, *, has_sink: bool) -> None:
        self._snapshots, self._clock, self._has_sink = snapshots, clock, has_sink

    def __call__(self, conn: sa.Connection, cases: Sequence[Case]) -> Sequence[object]:
        cluster, now = cases[0].run.cluster, self._clock.now()
        answers: dict[int, object] = {}
        with conn.begin():
            # The gate first, then the runs: the order of the walk and of people's commands.
            facts = lock_gate(conn, cluster, self._snapshots, now)
            mine = prove(conn, [case.run for case in cases], now + LEASE)
            kept: list[Lines] = []
            changed = False
            for place in sorted(range(len(cases)), key=lambda one: cases[one].order):
                case = cases[place]
                if case.run.id not in mine:
                    answers[place] = ALONE if len(cases) > 1 else lost(case.run)
                    continue
                if changed:
                    self._store(conn, cluster, kept)
                    kept, now = [], self._clock.now()
                    facts = read_facts(conn, cluster, self._snapshots, now, breaker=None)
                tx = PostgresGateTx(conn, case.run, facts)
                answers[place] = case.judge(tx)
                kept.append(case.before.then(tx.lines))
                changed = tx.changed
            self._store(conn, cluster, kept)
        return [answers[place] for place in range(len(cases))]

    def _store(self, conn: sa.Connection, cluster: str, kept: Sequence[Lines]) -> None:
        store(conn, cluster, kept, at=self._clock.now(), has_sink=self._has_sink)


def lost(run: Run) -> LeaseLost:
    return LeaseLost(f"run {run.id} was claimed by another worker or ended by a person")


class PostgresGateTx:
    """`healer.ports.transactions.GateTx` inside a transaction that has the gate's lock, and the run."""

    def __init__(self, conn: sa.Connection, run: Run, facts: GateFacts) -> None:
        self._conn, self._run, self.facts = conn, run, facts
        self.lines = Lines()
        #: `facts` are no longer what the next one would read.
        self.changed = False

    def sweeps(self, playbooks: Sequence[str], since: datetime) -> Sweeps:
        return read_sweeps(self._conn, self._run.cluster, playbooks, since)

    def add_decision(self, decision: Decision) -> None:
        self.lines.decisions.append(decision)

    def write(self, entry: LogEntry) -> None:
        self.lines.entries.append(entry)
        self.changed |= entry.event is not StepEvent.started

    def grant_slot(self, slot: Slot) -> None:
        self.changed = True
        grant_slots(self._conn, [slot])

    def release_slot(self, node: str, *, at: datetime, why: str) -> None:
        self.changed = True
        release_slot(self._conn, self._run.cluster, node, at=at, why=why)

    def add_remedy(self, use: RemedyUse) -> None:
        self.changed = True
        self.lines.remedies.append(use)

    def add_requeue(self, use: RequeueUse) -> None:
        self.changed = True
        row = {"run": self._run.id, **msgspec.structs.asdict(use)}
        statement = insert(requeues).values(cluster=self._run.cluster, **row)
        ended = sa.select(runs.c.id).where(runs.c.state.in_(_ENDED))
        taken = self._conn.execute(
            statement.on_conflict_do_update(
                constraint="requeues_once",
                set_={"run": self._run.id, "at": use.at},
                where=sa.or_(requeues.c.run == self._run.id, requeues.c.run.in_(ended)),
            ).returning(requeues.c.id)
        ).first()
        if taken is None:
            held = sa.select(requeues.c.run).where(self._life(use.job, use.restarts))
            raise AlreadyRequeued(self._conn.execute(held).scalar_one())

    def drop_requeue(self, job: str, restarts: int) -> None:
        self.changed = True
        mine = requeues.c.run == self._run.id
        self._conn.execute(sa.delete(requeues).where(self._life(job, restarts), mine))

    def _life(self, job: str, restarts: int) -> sa.ColumnElement[bool]:
        known = (requeues.c.job == job, requeues.c.restarts == restarts)
        return sa.and_(requeues.c.cluster == self._run.cluster, *known)

    def save_breaker(self, breaker: Breaker) -> None:
        self.changed = True
        save_breaker(self._conn, breaker)

    def audit(self, record: AuditRecord) -> None:
        self.lines.audits.append(record)
