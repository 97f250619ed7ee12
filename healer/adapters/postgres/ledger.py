"""The ledger on PostgreSQL: transactions of the walk and of commands, and the runs that are due."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres import audit_rows, node_rows, outbox, rule_rows, run_rows
from healer.adapters.postgres import gate_facts as gate
from healer.adapters.postgres import inbox as inbox_rows
from healer.adapters.postgres.claims import Claims, LedgerParts, PostgresClaim
from healer.adapters.postgres.engine import (
    Lane,
    Writes,
    ledger_errors,
    ledger_reading,
    read_doc,
    read_docs,
    read_structs,
    reading,
    request_errors,
    upsert,
    writing,
)
from healer.adapters.postgres.tables import (
    audit_records,
    forecasts,
    inbox,
    incidents,
    messages,
    notes,
    part_of,
    pauses,
    references,
    rule_modes,
    run_log,
    runs,
    slots,
    vetoes,
)
from healer.model import (
    LIFTING_VERBS,
    AuditRecord,
    Breaker,
    Command,
    Decision,
    FaultBurst,
    Finding,
    Forecast,
    GateFacts,
    Incident,
    IncidentVerdict,
    Inventory,
    JobCheckpoint,
    LogEntry,
    Message,
    Mode,
    Observation,
    ObservationKind,
    Pause,
    Proof,
    Reference,
    Review,
    Run,
    RunState,
    Slot,
    Sweeps,
    Ticket,
    Trial,
    Verb,
    Veto,
    by_opening,
)
from healer.ports.lease import LEASE, NAP, UNHEARD
from healer.text import from_stored

#: The window of the storm count: incidents resolved within it are still read.
_RECENT = timedelta(minutes=5)
#: Log entries of an incident that are read, the latest ones.
_STEPS_MAX = 500
_WAITING = ("waiting", "held", "stuck", "proposed", "waiting_approval")
T = TypeVar("T")


_SAVE_INCIDENTS = sa.text("""
INSERT INTO incidents (id, cluster, rule, state, severity, node, opened, updated, closed, doc)
SELECT doc->>'id', doc->>'cluster', doc->>'rule', doc->>'state', doc->>'severity', doc#>>'{root,node}',
  (doc->>'opened')::timestamptz, (doc->>'updated')::timestamptz, (doc->>'closed')::timestamptz, doc
FROM jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY AS given (doc, place) ORDER BY place
ON CONFLICT (id) DO UPDATE SET cluster = excluded.cluster, rule = excluded.rule, state = excluded.state,
  severity = excluded.severity, node = excluded.node, opened = excluded.opened, updated = excluded.updated,
  closed = excluded.closed, doc = excluded.doc
""")
_SAVE_FORECASTS = sa.text("""
INSERT INTO forecasts (id, cluster, rule, outcome, told_at, ended_at, doc)
SELECT doc->>'id', doc->>'cluster', doc->>'rule', doc->>'outcome', (doc->>'told_at')::timestamptz,
  (doc->>'ended_at')::timestamptz, doc
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS doc
ON CONFLICT (id) DO UPDATE SET cluster = excluded.cluster, rule = excluded.rule, outcome = excluded.outcome,
  told_at = excluded.told_at, ended_at = excluded.ended_at, doc = excluded.doc
""")
_ADD = """
INSERT INTO {} (incident, at, doc)
SELECT item->>'incident', (item->>'at')::timestamptz, item->'doc'
FROM jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY AS given (item, place) ORDER BY place
"""
_ADD_FINDINGS, _ADD_VERDICTS = sa.text(_ADD.format("findings")), sa.text(_ADD.format("verdicts"))


class PostgresLedger:
    """`healer.ports.transactions.Ledger` of one cluster.

    The detector passes the connection that holds its lock, so that only the leader can commit.
    """

    def __init__(self, parts: LedgerParts, connection: sa.Connection | None = None) -> None:
        self._parts, self._connection = parts, connection
        self.cluster, self._engine = parts.cluster, parts.engine
        self._claims = Claims(parts)
        #: Shows other workers that this one is not frozen (`FrozenWorkers`).
        self.pulse = self._claims.pulse

    @contextmanager
    def transaction(self) -> Iterator["PostgresTx"]:
        with ledger_errors():
            if self._connection is not None:
                with self._connection.begin(), self._sent(self._connection) as tx:
                    yield tx
            else:
                with self._engine.begin() as conn, self._sent(conn) as tx:
                    yield tx

    @contextmanager
    def _sent(self, conn: sa.Connection) -> Iterator["PostgresTx"]:
        """A transaction whose last writes are sent before the commit."""
        tx = PostgresTx(conn, self._parts)
        yield tx
        tx.send()

    def claim(self, run: str) -> AbstractContextManager[PostgresClaim | None]:
        return self._claims.claim(run)

    def bursts(self, since: datetime) -> list[FaultBurst]:
        with ledger_reading(self._engine) as conn:
            return node_rows.bursts_since(conn, self.cluster, since)

    def inventories(self) -> list[Inventory]:
        with ledger_reading(self._engine) as conn:
            return node_rows.read_inventories(conn, self.cluster)

    def rename_texts(self, digests: Mapping[str, tuple[str, str]]) -> None:
        with ledger_errors(), self._engine.begin() as conn:
            rule_rows.rename_texts(conn, self.cluster, digests)

    def note_texts(self, texts: Mapping[str, str], first_runs: int, now: datetime) -> list[Trial]:
        with ledger_errors(), self._engine.begin() as conn:
            return rule_rows.note_texts(conn, self.cluster, texts, first_runs, now)

    def has_run(self, run: str) -> bool:
        query = sa.select(runs.c.id).where(runs.c.cluster == self.cluster, runs.c.id == run)
        with reading(self._engine) as conn:
            return conn.execute(query).first() is not None

    def has_running(self, playbooks: Sequence[str]) -> bool:
        """Whether a run of one of these playbooks is running."""
        query = sa.select(runs.c.id).where(*self._running, runs.c.playbook.in_(playbooks)).limit(1)
        with ledger_reading(self._engine) as conn:
            return conn.execute(query).first() is not None

    @property
    def _running(self) -> tuple[sa.ColumnElement[bool], ...]:
        return runs.c.cluster == self.cluster, runs.c.state == "running"

    def consumed(self, row: int) -> bool:
        query = sa.select(inbox.c.consumed_at).where(inbox.c.id == row)
        with reading(self._engine) as conn:
            return conn.execute(query).scalar() is not None

    @contextmanager
    def command(self) -> Iterator["PostgresTx"]:
        with writing(self._engine) as conn, self._sent(conn) as tx:
            yield tx

    def together(
        self,
        work: Callable[["PostgresTx", Sequence[T]], Sequence[object]],
        after: Callable[[Sequence[object]], None],
    ) -> Callable[[T], Any]:
        def work_on(conn: sa.Connection, items: Sequence[T]) -> Sequence[object]:
            with conn.begin(), self._sent(conn) as tx:
                results = work(tx, items)
            after(results)
            return results

        lane = Lane[T](self._engine, work_on)

        def do(item: T) -> Any:
            with request_errors():
                return lane.do(item)

        return do

    def due_runs(self, now: datetime, *, sent: timedelta = timedelta(0)) -> list[str]:
        """Ids of runs that are new, woken, or perhaps abandoned: the lease is not renewed (`is_unheard`)."""
        wake_at = runs.c.wake_at  # as `is_awake`
        ready = sa.or_(wake_at.is_(None), wake_at <= now, wake_at > now + 2 * NAP)
        left = sa.or_(
            runs.c.lease_until.is_(None),
            runs.c.lease_until <= now + LEASE - UNHEARD,
            runs.c.lease_until > now + 2 * LEASE,
        )
        # A run created in the future was created by another clock.
        late = sa.or_(runs.c.epoch > 0, runs.c.created_at <= now - sent, runs.c.created_at > now)
        query = (
            sa.select(runs.c.id)
            .where(*self._running, ready, left, late)
            .order_by(runs.c.created_at)
            .limit(200)
        )
        with ledger_reading(self._engine) as conn:
            return list(conn.scalars(query))


# Wide: implements `ports.WalkTx`, `GateTx` and `CommandTx` over one connection.
class PostgresTx:
    """`healer.ports.transactions.WalkTx` and `healer.ports.commanding.CommandTx` on an open transaction.

    Rows that are only written wait, and are sent together before anything else is done on the connection, so
    that each statement sees what came before it. The opener of the transaction calls `send` before its
    commit.
    """

    def __init__(self, conn: sa.Connection, parts: LedgerParts) -> None:
        self._conn, self._cluster, self._parts = conn, parts.cluster, parts
        self._writes, self._saved = Writes(), set[str]()

    @property
    def conn(self) -> sa.Connection:
        self.send()
        return self._conn

    def send(self) -> None:
        """Raises NodeTaken where a run that waits is the second one at work on its node."""
        with run_rows.node_taken(""):
            self._writes.send(self._conn)
        self._saved.clear()

    def open_incidents(self) -> list[Incident]:
        lately = sa.or_(incidents.c.state != "resolved", incidents.c.opened > self._now() - _RECENT)
        query = sa.select(incidents.c.doc).where(incidents.c.cluster == self._cluster, lately)
        return sorted(read_docs(self.conn, query, Incident), key=by_opening)

    def incident(self, name: str) -> Incident | None:
        return read_doc(self.conn, sa.select(incidents.c.doc).where(incidents.c.id == name), Incident)

    def merged_into(self, name: str) -> list[Incident]:
        parts = sa.select(incidents.c.doc).where(incidents.c.state == "resolved", part_of == name)
        return sorted(read_docs(self.conn, parts, Incident), key=by_opening)

    def active_runs(self) -> list[Run]:
        return read_docs(self.conn, sa.select(runs.c.doc).where(*self._active), Run)

    def has_active_runs(self) -> bool:
        return self.conn.execute(sa.select(runs.c.id).where(*self._active).limit(1)).first() is not None

    @property
    def _active(self) -> tuple[sa.ColumnElement[bool], ...]:
        return runs.c.cluster == self._cluster, runs.c.state.not_in(run_rows.ENDED)

    def run(self, name: str) -> Run | None:
        return read_doc(self.conn, sa.select(runs.c.doc).where(runs.c.id == name), Run)

    def lock_run(self, run: str) -> Run | None:
        return run_rows.locked_run(self.conn, self._cluster, run)

    def known_runs(self, names: Sequence[str]) -> dict[str, Run]:
        rows = self.conn.execute(sa.select(runs.c.id, runs.c.doc).where(runs.c.id.in_(names)))
        return {row.id: from_stored(row.doc, Run) for row in rows}

    def waiting_on(self, nodes: Sequence[str]) -> list[Run]:
        here = runs.c.cluster == self._cluster, runs.c.node.in_(nodes)
        return read_docs(self.conn, sa.select(runs.c.doc).where(*here, runs.c.state.in_(_WAITING)), Run)

    def running_on(self, node: str | None, playbook: str) -> str | None:
        here = runs.c.cluster == self._cluster, runs.c.node == node, runs.c.playbook == playbook
        return self.conn.scalar(sa.select(runs.c.id).where(*here, runs.c.state == "running", ~runs.c.shadow))

    def log(self, run: str) -> list[LogEntry]:
        return run_rows.logs_of(self.conn, [run])[run]

    def is_returning(self, run: str) -> bool:
        verb, event = run_log.c.doc["data"]["verb"].astext, run_log.c.event
        lifts = sa.and_(event == "started", verb.in_([str(lifting) for lifting in LIFTING_VERBS]))
        drained = sa.and_(event == "done", verb == str(Verb.drain))
        last = sa.select(event).where(run_log.c.run == run, lifts | drained).order_by(run_log.c.seq.desc())
        return self.conn.execute(last.limit(1)).scalar() == "started"

    def lock_gate(self) -> GateFacts:
        return gate.lock_gate(self.conn, self._cluster, self._parts.snapshots, self._now())

    def read_gate(self) -> GateFacts:
        return gate.read_facts(self.conn, self._cluster, self._parts.snapshots, self._now())

    def sweeps(self, playbooks: Sequence[str], since: datetime) -> Sweeps:
        return gate.read_sweeps(self.conn, self._cluster, playbooks, since)

    def at_work(self, batch: Sequence[Observation]) -> tuple[list[Run], set[str]]:
        taken = [signal.inbox_id for signal in batch if signal.kind is ObservationKind.command]
        commanded = inbox.c.doc["incident"].astext
        waiting = sa.select(sa.null(), commanded).where(
            inbox.c.cluster == self._cluster,
            inbox.c.consumed_at.is_(None),
            inbox.c.kind == ObservationKind.command.value,
            inbox.c.id.not_in(taken),
            commanded.is_not(None),
        )
        active = sa.select(runs.c.doc, sa.null()).where(*self._active)
        rows = self.conn.execute(active.union_all(waiting)).all()
        at_work = [from_stored(doc, Run) for doc, _ in rows if doc is not None]
        return at_work, {incident for _, incident in rows if incident is not None}

    def save_incident(self, incident: Incident) -> None:
        if incident.id in self._saved:
            self.send()  # a statement changes a row once
        self._saved.add(incident.id)
        self._writes.add(_SAVE_INCIDENTS, [incident])

    def add_findings(self, incident: str, findings: Sequence[Finding]) -> None:
        rows = [{"incident": incident, "at": finding.at, "doc": finding} for finding in findings]
        self._writes.add(_ADD_FINDINGS, rows)

    def add_verdict(self, incident: str, verdict: IncidentVerdict, *, at: datetime) -> None:
        self._writes.add(_ADD_VERDICTS, [{"incident": incident, "at": at, "doc": verdict}])

    def newest_durable(self, job: str, since: datetime | None = None) -> JobCheckpoint | None:
        return inbox_rows.newest_durable(self.conn, self._cluster, job, since)

    def save_bursts(self, bursts: Sequence[FaultBurst]) -> None:
        self._writes.add(node_rows.SAVE_BURSTS, bursts)

    def forecasts(self, since: datetime) -> list[Forecast]:
        table = forecasts.c
        lately = sa.or_(table.ended_at.is_(None), table.ended_at >= since)
        query = sa.select(table.doc).where(table.cluster == self._cluster, lately)
        # Not `conn`: none of the rows that wait is a forecast.
        return read_docs(self._conn, query.order_by(table.told_at, table.id), Forecast)

    def save_forecasts(self, forecasts: Sequence[Forecast]) -> None:
        self._writes.add(_SAVE_FORECASTS, forecasts)

    def save_inventories(self, inventories: Sequence[Inventory]) -> None:
        node_rows.save_inventories(self.conn, self._cluster, inventories)

    def references(self) -> list[Reference]:
        return node_rows.read_references(self.conn, self._cluster)

    def add_decision(self, decision: Decision) -> None:
        self._writes.add(run_rows.DECISIONS, [decision])

    def create_run(self, run: Run) -> None:
        self._writes.add(run_rows.RUNS, [run])

    def add_starts(
        self, runs: Sequence[Run], decisions: Sequence[Decision], records: Sequence[AuditRecord]
    ) -> None:
        run_rows.write_runs(self.conn, runs)
        self._writes.add(run_rows.DECISIONS, decisions)
        self._writes.add(audit_rows.APPEND, [audit_rows.row_of(record) for record in records])

    def set_run_state(
        self, run: str, state: RunState, *, why: str, at: datetime, question: str | None = None, **change: Any
    ) -> Run:
        return run_rows.set_run_state(self.conn, run, state, why=why, at=at, question=question, **change)

    def grant_slot(self, slot: Slot) -> None:
        gate.grant_slots(self.conn, [slot])

    def release_slot(self, node: str, *, at: datetime, why: str) -> None:
        gate.release_slot(self.conn, self._cluster, node, at=at, why=why)

    def has_slots(self) -> bool:
        held = slots.c.cluster == self._cluster, slots.c.released_at.is_(None)
        return self.conn.execute(sa.select(slots.c.id).where(*held).limit(1)).first() is not None

    def slot_of(self, node: str) -> Slot | None:
        columns = [slots.c[name] for name in Slot.__struct_fields__]
        held = sa.select(*columns).where(*gate.held(self._cluster, node))
        found = read_structs(self.conn, held, Slot)
        return found[0] if found else None

    def save_breaker(self, breaker: Breaker) -> None:
        gate.save_breaker(self.conn, breaker)

    def add_veto(self, veto: Veto) -> None:
        self.conn.execute(sa.insert(vetoes).values(cluster=self._cluster, **msgspec.structs.asdict(veto)))

    def queue_message(self, message: Message | Ticket) -> None:
        outbox.queue(self.conn, message, at=self._now(), has_sink=self._parts.has_sink)

    def has_ticket(self, incident: str) -> bool:
        query = sa.select(messages.c.id).where(messages.c.incident == incident, messages.c.kind == "ticket")
        return self.conn.execute(query.limit(1)).first() is not None

    def steps_of(self, incident: Incident) -> list[LogEntry]:
        acting = sa.select(runs.c.id).where(runs.c.cluster == self._cluster, ~runs.c.shadow)
        of_incident = acting.where(runs.c.incident == incident.id)
        on_node = acting.where(runs.c.node == incident.root.node, runs.c.created_at >= incident.opened)
        chosen = of_incident if incident.root.node is None else of_incident.union(on_node)
        query = sa.select(run_log.c.seq, run_log.c.doc).where(run_log.c.run.in_(chosen))
        rows = self.conn.execute(query.order_by(run_log.c.seq.desc()).limit(_STEPS_MAX))
        return [from_stored({**row.doc, "seq": row.seq}, LogEntry) for row in rows][::-1]

    def audit(self, record: AuditRecord) -> None:
        self._writes.add(audit_rows.APPEND, [audit_rows.row_of(record)])

    def write(self, entry: LogEntry) -> None:
        run_rows.write_entries(self.conn, [entry])

    def send_command(self, command: Command, *, request: str) -> int:
        return inbox_rows.put_command(self.conn, command, request=request)

    def audited(self, subject: str, request: str) -> bool:
        same = audit_records.c.subject == subject, audit_records.c.data["request"].astext == request
        return self.conn.execute(sa.select(audit_records.c.id).where(*same).limit(1)).first() is not None

    def add_note(self, incident: str, text: str, *, by: str, at: datetime) -> None:
        self.conn.execute(sa.insert(notes).values(incident=incident, at=at, by=by, text=text))

    def add_pause(self, pause: Pause) -> bool:
        row = insert(pauses).values(**msgspec.structs.asdict(pause))
        made = row.on_conflict_do_nothing(index_elements=["id"]).returning(pauses.c.id)
        return self.conn.execute(made).first() is not None

    def pause(self, name: str) -> Pause | None:
        found = read_structs(self.conn, sa.select(*gate.PAUSE).where(pauses.c.id == name), Pause)
        return found[0] if found else None

    def end_pause(self, name: str, *, by: str, at: datetime) -> Pause | None:
        this = sa.update(pauses).where(pauses.c.id == name, pauses.c.ended_at.is_(None))
        ended = this.values(ended_at=at, ended_by=by).returning(*gate.PAUSE)
        found = read_structs(self.conn, ended, Pause)
        return found[0] if found else None

    def rule_mode(self, rule: str) -> tuple[Mode, str] | None:
        row = self.conn.execute(sa.select(rule_modes).where(rule_modes.c.rule == rule)).first()
        return (Mode(row.mode), row.by) if row else None

    def save_rule_mode(self, rule: str, mode: Mode, *, by: str, reason: str, at: datetime) -> None:
        values = {"mode": mode.value, "by": by, "reason": reason, "at": at}
        self.conn.execute(upsert(rule_modes, {"rule": rule}, values))

    def proof(
        self,
        rule: str,
        most: int,
        *,
        digests: Mapping[str, tuple[str, str]],
        review: tuple[str, Review] | None = None,
    ) -> Proof:
        pending = inbox_rows.pending_reviews(self.conn) | dict([review] if review else ())
        found = rule_rows.proofs(self.conn, most, rules=[rule], now=pending, digests=digests)
        return found.get(rule, Proof())

    def save_reference(self, reference: Reference) -> None:
        node_rows.save_reference(self.conn, reference)

    def drop_reference(self, reference: Reference) -> bool:
        this = references.c.cluster == reference.cluster, references.c.kind == reference.kind
        return self.conn.execute(sa.delete(references).where(*this)).rowcount > 0

    def consume(self, observations: Sequence[Observation]) -> None:
        ids = [observation.inbox_id for observation in observations if observation.inbox_id is not None]
        self._writes.add(inbox_rows.CONSUME, ids, at=self._now())

    def _now(self) -> datetime:
        return self._parts.clock.now()
