"""The ledger on PostgreSQL: the walk's transaction, and which runs are due."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError

from healer.adapters.postgres import (
    audit_rows as audit,
)
from healer.adapters.postgres import (
    control_rows as controls,
)
from healer.adapters.postgres import (
    fault_bursts,
    inbox,
    outbox,
    references,
    rule_texts,
    verdicts,
)
from healer.adapters.postgres import (
    forecast_rows as forecasts,
)
from healer.adapters.postgres import (
    gate_facts as gate,
)
from healer.adapters.postgres.checkpoints import newest_durable
from healer.adapters.postgres.claims import Claims, PostgresClaim
from healer.adapters.postgres.engine import ledger_errors, translated
from healer.adapters.postgres.lane import Lane
from healer.adapters.postgres.lines import write_decisions, write_entries, write_runs
from healer.adapters.postgres.proofs import proofs
from healer.adapters.postgres.run_queries import logs_of
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tables import findings as findings_table
from healer.adapters.postgres.tables import inbox as inbox_table
from healer.adapters.postgres.tables import incidents, notes, part_of, run_log, runs, vetoes
from healer.model import (
    ENDED_RUN_STATES,
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
    Veto,
)
from healer.ports.clock import Clock
from healer.ports.commanding import NodeTaken
from healer.ports.lease import LEASE, UNHEARD

#: The storm count looks back this far, so incidents resolved within it are still read.
_RECENT = timedelta(minutes=5)
_ENDED = ("done", "undone", "rejected", "cancelled")
_WAITING = ("waiting", "held", "stuck", "proposed", "waiting_approval")
T = TypeVar("T")


class PostgresLedger:
    """`healer.ports.Ledger` of one cluster.

    The detector gives the connection that holds its lock: what it commits, it commits as the one detector.
    """

    def __init__(
        self,
        engine: sa.Engine,
        cluster: str,
        *,
        snapshots: PostgresSnapshots,
        clock: Clock,
        has_sink: bool,
        connection: sa.Connection | None = None,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = cluster
        self._engine, self._connection = engine, connection
        self._snapshots, self._clock, self._has_sink = snapshots, clock, has_sink
        self._claims = Claims(
            engine,
            cluster=cluster,
            snapshots=snapshots,
            clock=clock,
            has_sink=has_sink,
            stopwatch=stopwatch,
        )

    @contextmanager
    def transaction(self) -> Iterator["PostgresTx"]:
        with ledger_errors():
            if self._connection is not None:
                with self._connection.begin():
                    yield self._tx(self._connection)
            else:
                with self._engine.begin() as conn:
                    yield self._tx(conn)

    def _tx(self, conn: sa.Connection) -> "PostgresTx":
        return PostgresTx(conn, self.cluster, self._snapshots, self._clock, self._has_sink)

    def claim(self, run: str) -> AbstractContextManager[PostgresClaim | None]:
        return self._claims.claim(run)

    def bursts(self, since: datetime) -> list[FaultBurst]:
        with ledger_errors(), self._engine.connect() as conn:
            return fault_bursts.since(conn, self.cluster, since)

    def inventories(self) -> list[Inventory]:
        with ledger_errors(), self._engine.connect() as conn:
            return references.read_inventories(conn, self.cluster)

    def note_texts(self, texts: Mapping[str, str], first_runs: int, now: datetime) -> list[Trial]:
        with ledger_errors(), self._engine.begin() as conn:
            return rule_texts.note(conn, self.cluster, texts, first_runs, now)

    def has_run(self, run: str) -> bool:
        query = sa.select(runs.c.id).where(runs.c.cluster == self.cluster, runs.c.id == run)
        with translated(), self._engine.connect() as conn:
            return conn.execute(query).first() is not None

    def consumed(self, row: int) -> bool:
        query = sa.select(inbox_table.c.consumed_at).where(inbox_table.c.id == row)
        with translated(), self._engine.connect() as conn:
            return conn.execute(query).scalar() is not None

    @contextmanager
    def command(self) -> Iterator["PostgresTx"]:
        with translated(), self._engine.begin() as conn:
            yield self._tx(conn)

    def together(
        self,
        work: Callable[["PostgresTx", Sequence[T]], Sequence[object]],
        after: Callable[[Sequence[object]], None],
    ) -> Callable[[T], Any]:
        def work_on(conn: sa.Connection, items: Sequence[T]) -> Sequence[object]:
            with conn.begin():
                results = work(self._tx(conn), items)
            after(results)
            return results

        lane = Lane[T](self._engine, work_on)

        def do(item: T) -> Any:
            with translated():
                return lane.do(item)

        return do

    def due_runs(self, now: datetime, *, sent: timedelta = timedelta(0)) -> list[str]:
        """New, woken, or maybe left by a dead worker: its lease is not renewed (`lease.is_unheard`)."""
        # One that began in the future did so by another clock.
        late = sa.or_(runs.c.epoch > 0, runs.c.created_at <= now - sent, runs.c.created_at > now)
        with self._engine.connect() as conn:
            rows = conn.execute(
                sa.select(runs.c.id)
                .where(
                    runs.c.cluster == self.cluster,
                    runs.c.state == "running",
                    sa.or_(runs.c.wake_at.is_(None), runs.c.wake_at <= now),
                    sa.or_(
                        runs.c.lease_until.is_(None),
                        runs.c.lease_until <= now + LEASE - UNHEARD,
                        runs.c.lease_until > now + 2 * LEASE,
                    ),
                    late,
                )
                .order_by(runs.c.created_at)
                .limit(200)
            )
            return list(rows.scalars())


# Wide: implements `ports.WalkTx`, `GateTx` and `CommandTx` over one connection.
class PostgresTx:
    """`healer.ports.WalkTx` and `CommandTx` on an open transaction."""

    def __init__(
        self,
        conn: sa.Connection,
        cluster: str,
        snapshots: PostgresSnapshots,
        clock: Clock,
        has_sink: bool,
    ) -> None:
        self.conn, self._cluster = conn, cluster
        self._snapshots, self._clock, self._has_sink = snapshots, clock, has_sink

    def open_incidents(self) -> list[Incident]:
        since = self._clock.now() - _RECENT
        rows = self.conn.execute(
            sa.select(incidents.c.doc)
            .where(
                incidents.c.cluster == self._cluster,
                sa.or_(
                    incidents.c.state != "resolved",
                    sa.and_(incidents.c.state == "resolved", incidents.c.opened > since),
                ),
            )
            .order_by(incidents.c.opened, incidents.c.id)
        )
        return [msgspec.convert(doc, Incident) for doc in rows.scalars()]

    def incident(self, name: str) -> Incident | None:
        doc = self.conn.execute(sa.select(incidents.c.doc).where(incidents.c.id == name)).scalar()
        return msgspec.convert(doc, Incident) if doc else None

    def merged_into(self, name: str) -> list[Incident]:
        rows = self.conn.execute(
            sa.select(incidents.c.doc)
            .where(incidents.c.state == "resolved", part_of == name)
            .order_by(incidents.c.opened, incidents.c.id)
        )
        return [msgspec.convert(doc, Incident) for doc in rows.scalars()]

    def active_runs(self) -> list[Run]:
        rows = self.conn.execute(
            sa.select(runs.c.doc).where(runs.c.cluster == self._cluster, runs.c.state.not_in(_ENDED))
        )
        return [msgspec.convert(doc, Run) for doc in rows.scalars()]

    def has_active_runs(self) -> bool:
        query = sa.select(runs.c.id).where(runs.c.cluster == self._cluster, runs.c.state.not_in(_ENDED))
        return self.conn.execute(query.limit(1)).first() is not None

    def run(self, name: str) -> Run | None:
        doc = self.conn.execute(sa.select(runs.c.doc).where(runs.c.id == name)).scalar()
        return msgspec.convert(doc, Run) if doc else None

    def lock_run(self, run: str) -> Run | None:
        query = sa.select(runs.c.doc, runs.c.epoch).where(runs.c.cluster == self._cluster, runs.c.id == run)
        row = self.conn.execute(query.with_for_update()).first()
        return msgspec.structs.replace(msgspec.convert(row.doc, Run), epoch=row.epoch) if row else None

    def known_runs(self, names: Sequence[str]) -> dict[str, Run]:
        rows = self.conn.execute(sa.select(runs.c.id, runs.c.doc).where(runs.c.id.in_(names)))
        return {row.id: msgspec.convert(row.doc, Run) for row in rows}

    def waiting_on(self, nodes: Sequence[str]) -> list[Run]:
        here = runs.c.cluster == self._cluster, runs.c.node.in_(nodes)
        rows = self.conn.execute(sa.select(runs.c.doc).where(*here, runs.c.state.in_(_WAITING)))
        return [msgspec.convert(doc, Run) for doc in rows.scalars()]

    def running_beside(self, node: str | None, playbook: str) -> str | None:
        here = runs.c.cluster == self._cluster, runs.c.node == node, runs.c.playbook == playbook
        return self.conn.scalar(sa.select(runs.c.id).where(*here, runs.c.state == "running", ~runs.c.shadow))

    def log(self, run: str) -> list[LogEntry]:
        return logs_of(self.conn, [run]).get(run, [])

    def is_returning(self, run: str) -> bool:
        query = sa.select(run_log.c.seq).where(
            run_log.c.run == run,
            run_log.c.event == "started",
            run_log.c.doc["data"]["verb"].astext.in_([str(verb) for verb in LIFTING_VERBS]),
        )
        return self.conn.execute(query.limit(1)).first() is not None

    def lock_gate(self) -> GateFacts:
        return gate.lock_gate(self.conn, self._cluster, self._snapshots, self._clock.now())

    def read_gate(self) -> GateFacts:
        return gate.read_facts(self.conn, self._cluster, self._snapshots, self._clock.now())

    def sweeps(self, playbooks: Sequence[str], since: datetime) -> Sweeps:
        return gate.read_sweeps(self.conn, self._cluster, playbooks, since)

    def spoken_of(self, batch: Sequence[Observation]) -> set[str]:
        taken = [one.inbox_id for one in batch if one.kind is ObservationKind.command]
        names = self.conn.execute(
            sa.select(inbox_table.c.doc["incident"].astext).where(
                inbox_table.c.cluster == self._cluster,
                inbox_table.c.consumed_at.is_(None),
                inbox_table.c.kind == ObservationKind.command.value,
                inbox_table.c.id.not_in(taken),
            )
        )
        return {name for name in names.scalars() if name is not None}

    def save_incident(self, incident: Incident) -> None:
        row = {
            "cluster": incident.cluster,
            "rule": incident.rule,
            "state": incident.state,
            "severity": incident.severity,
            "node": incident.root.node,
            "opened": incident.opened,
            "updated": incident.updated,
            "closed": incident.closed,
            "doc": msgspec.to_builtins(incident),
        }
        statement = insert(incidents).values(id=incident.id, **row)
        self.conn.execute(statement.on_conflict_do_update(index_elements=["id"], set_=row))

    def add_findings(self, incident: str, findings: Sequence[Finding]) -> None:
        rows = [{"incident": incident, "at": one.at, "doc": msgspec.to_builtins(one)} for one in findings]
        if rows:
            self.conn.execute(sa.insert(findings_table), rows)

    def add_verdict(self, incident: str, verdict: IncidentVerdict, *, at: datetime) -> None:
        verdicts.add(self.conn, incident, verdict, at)

    def newest_durable(self, job: str) -> JobCheckpoint | None:
        return newest_durable(self.conn, self._cluster, job)

    def save_bursts(self, bursts: Sequence[FaultBurst]) -> None:
        fault_bursts.save(self.conn, bursts)

    def forecasts(self, since: datetime) -> list[Forecast]:
        return forecasts.since(self.conn, self._cluster, since)

    def save_forecast(self, forecast: Forecast) -> None:
        forecasts.save(self.conn, forecast)

    def save_inventories(self, inventories: Sequence[Inventory]) -> None:
        references.save_inventories(self.conn, self._cluster, inventories)

    def references(self) -> list[Reference]:
        return references.read_references(self.conn, self._cluster)

    def add_decision(self, decision: Decision) -> None:
        write_decisions(self.conn, [decision])

    def create_run(self, run: Run) -> None:
        with _node_taken(run.node or ""):
            write_runs(self.conn, [run])

    def add_starts(
        self,
        runs: Sequence[Run],
        slots: Sequence[Slot],
        decisions: Sequence[Decision],
        records: Sequence[AuditRecord],
    ) -> None:
        gate.grant_slots(self.conn, slots)
        with _node_taken(""):
            write_runs(self.conn, runs)
        write_decisions(self.conn, decisions)
        audit.append_many(self.conn, records)

    def set_run_state(
        self,
        run: str,
        state: RunState,
        *,
        why: str,
        at: datetime,
        question: str | None = None,
        **change: Any,
    ) -> Run:
        return set_run_state(self.conn, run, state, why=why, at=at, question=question, **change)

    def grant_slot(self, slot: Slot) -> None:
        gate.grant_slots(self.conn, [slot])

    def release_slot(self, node: str, *, at: datetime, why: str) -> None:
        gate.release_slot(self.conn, self._cluster, node, at=at, why=why)

    def slot_of(self, node: str) -> Slot | None:
        return gate.slot_of(self.conn, self._cluster, node)

    def save_breaker(self, breaker: Breaker) -> None:
        gate.save_breaker(self.conn, breaker)

    def add_veto(self, veto: Veto) -> None:
        self.conn.execute(sa.insert(vetoes).values(cluster=self._cluster, **msgspec.structs.asdict(veto)))

    def queue_message(self, message: Message | Ticket) -> None:
        outbox.queue(self.conn, message, at=self._clock.now(), has_sink=self._has_sink)

    def has_ticket(self, incident: str) -> bool:
        return outbox.has_ticket(self.conn, incident)

    def steps_of(self, incident: Incident) -> list[LogEntry]:
        return outbox.steps_of(self.conn, incident)

    def audit(self, record: AuditRecord) -> None:
        audit.append(self.conn, record)

    def write(self, entry: LogEntry) -> None:
        write_entries(self.conn, [entry])

    def tell(self, command: Command, *, request: str) -> int:
        return inbox.put_command(self.conn, command, request=request)

    def audited(self, subject: str, request: str) -> bool:
        return controls.audited(self.conn, subject, request)

    def add_note(self, incident: str, text: str, *, by: str, at: datetime) -> None:
        self.conn.execute(sa.insert(notes).values(incident=incident, at=at, by=by, text=text))

    def add_pause(self, pause: Pause) -> bool:
        return controls.add_pause(self.conn, pause)

    def pause(self, name: str) -> Pause | None:
        return controls.pause_named(self.conn, name)

    def end_pause(self, name: str, *, by: str, at: datetime) -> Pause | None:
        return controls.end_pause(self.conn, name, by, at)

    def rule_mode(self, rule: str) -> tuple[Mode, str] | None:
        return controls.rule_mode(self.conn, rule)

    def save_rule_mode(self, rule: str, mode: Mode, *, by: str, reason: str, at: datetime) -> None:
        controls.save_rule_mode(self.conn, rule, mode, by=by, reason=reason, at=at)

    def proof(
        self,
        rule: str,
        most: int,
        *,
        texts: Mapping[str, str],
        review: tuple[str, Review] | None = None,
    ) -> Proof:
        return proofs(self.conn, most, rules=[rule], now=review, texts=texts).get(rule, Proof())

    def save_reference(self, reference: Reference) -> None:
        references.save_reference(self.conn, reference)

    def drop_reference(self, reference: Reference) -> bool:
        return references.forget_reference(self.conn, reference.cluster, reference.kind)

    def consume(self, observations: Sequence[Observation]) -> None:
        inbox.consume(self.conn, observations, self._clock.now())


def set_run_state(
    conn: sa.Connection, run: str, state: RunState, *, why: str, at: datetime, **change: object
) -> Run:
    """Sets the state in row and document alike. A worker that still holds the run loses its claim.

    Its lease stays: what it has begun may be under way, and nobody else goes on before that is over. What has
    ended stays so: that run comes back as it is.
    """
    doc = conn.execute(sa.select(runs.c.doc).where(runs.c.id == run).with_for_update()).scalar_one()
    known = msgspec.convert(doc, Run)
    if known.state in ENDED_RUN_STATES:
        return known
    ended = at if state in _ENDED else None
    change = {"question": None, **change}
    changed = msgspec.structs.replace(known, state=state, ended_at=ended, **change)
    values = {
        "state": state,
        "ended_at": ended,
        "wake_at": None,
        "epoch": runs.c.epoch + 1,
        "doc": msgspec.to_builtins(msgspec.structs.replace(changed, reason=changed.reason or why)),
    }
    with _node_taken(known.node or ""):
        conn.execute(sa.update(runs).where(runs.c.id == run).values(values))
    return changed


@contextmanager
def _node_taken(node: str) -> Iterator[None]:
    """Of running runs a node has one: the index refuses another."""
    try:
        yield
    except IntegrityError as error:
        cause = error.orig
        if isinstance(cause, psycopg.Error) and cause.diag.constraint_name == "runs_one_per_node":
            raise NodeTaken(node) from error
        raise
