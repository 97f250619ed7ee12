"""A run held by one worker: a session lock, a lease and a growing epoch.

The lock dies with the worker's session; what that worker had begun to do may still be under way, so another
one takes the run only after it has seen the lock free for a lease's time (`healer.lease`). Every write names
its epoch, so a worker that was overtaken is refused.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres import audit, gate, inbox, messages
from healer.adapters.postgres.engine import ledger_errors
from healer.adapters.postgres.references import read_references
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tables import incidents, permits, remedies, requeues, run_log, runs
from healer.adapters.postgres.tables import messages as queued
from healer.lease import FRESH_S, LEASE, PROOFS, Left
from healer.model import (
    ENDED_RUN_STATES,
    AuditRecord,
    Breaker,
    Command,
    Decision,
    GateFacts,
    Incident,
    LogEntry,
    Message,
    NodeHistory,
    Permit,
    Reference,
    RemedyUse,
    RequeueUse,
    Run,
    RunState,
    Slot,
    Sweeps,
    Ticket,
)
from healer.ports import AlreadyRequeued, Clock, LeaseLost


class Claims:
    """One process's claims. `stopwatch`: seconds that no change of the clock touches."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        snapshots: PostgresSnapshots,
        clock: Clock,
        has_sink: bool,
        stopwatch: Callable[[], float],
    ) -> None:
        self._engine = engine
        self.snapshots, self.clock, self.has_sink, self.stopwatch = snapshots, clock, has_sink, stopwatch
        self.left = Left(stopwatch)

    @contextmanager
    def claim(self, run: str) -> Iterator["PostgresClaim | None"]:
        with ledger_errors(), self._engine.connect() as conn:
            session = conn.connection.driver_connection
            try:
                with conn.begin():
                    claim = _take(conn, run, self)
                yield claim
            except LeaseLost:
                # A person ended or turned the run. Nothing of it is under way here any more, so the next one
                # need not wait for that; where the session was lost, and the lock with it, it waits.
                if not conn.invalidated and conn.connection.driver_connection is session:
                    conn.rollback()
                    conn.execute(sa.update(runs).where(runs.c.id == run).values(lease_until=None))
                    conn.commit()
                conn.invalidate()
                raise
            except BaseException:
                conn.invalidate()  # with its session goes the lock, whatever state it was in
                raise
            conn.execute(sa.text("SELECT pg_advisory_unlock(hashtextextended(:run, 0))"), {"run": run})
            conn.commit()


def _take(conn: sa.Connection, run: str, claims: Claims) -> "PostgresClaim | None":
    """The run under a new epoch with its log and incident, if it is this one's turn. One transaction."""
    left, begun_s = claims.left, claims.stopwatch()
    got = conn.execute(sa.text("SELECT pg_try_advisory_lock(hashtextextended(:run, 0))"), {"run": run})
    if not got.scalar_one():
        return None
    now = claims.clock.now()
    row = conn.execute(
        sa.update(runs)
        .where(
            runs.c.id == run,
            runs.c.state == "running",
            sa.or_(runs.c.wake_at.is_(None), runs.c.wake_at <= now),
            sa.or_(runs.c.lease_until.is_(None), runs.c.epoch == left.epoch(run)),
        )
        .values(epoch=runs.c.epoch + 1, lease_until=now + LEASE, wake_at=None)
        .returning(runs.c.doc, runs.c.epoch)
    ).first()
    if row is None:
        _note_left(conn, run, left)
        return None
    left.taken(run)
    held = msgspec.structs.replace(
        msgspec.convert(row.doc, Run), epoch=row.epoch, lease_until=now + LEASE, wake_at=None
    )
    claim = PostgresClaim(conn, held, claims, begun_s)
    claim.read()
    return claim


def _note_left(conn: sa.Connection, run: str, left: Left) -> None:
    """The lock is ours, and so nobody holds the run: one that still has a lease was left without a word."""
    holder = sa.select(runs.c.epoch).where(
        runs.c.id == run, runs.c.state == "running", runs.c.lease_until.is_not(None)
    )
    epoch = conn.execute(holder).scalar()
    if epoch is not None:
        left.seen(run, epoch)


class PostgresClaim:
    """`healer.ports.RunClaim`. Every write extends the lease."""

    def __init__(self, conn: sa.Connection, run: Run, claims: Claims, renewed_s: float) -> None:
        """`renewed_s`: by the stopwatch, just before it was proven that the run is this one's."""
        self.run = run
        self._stopwatch, self._renewed_s = claims.stopwatch, renewed_s
        self._conn, self._snapshots = conn, claims.snapshots
        self._clock, self._has_sink = claims.clock, claims.has_sink
        self._log: list[LogEntry] = []
        self._fresh: Incident | None = None

    def read(self) -> None:
        """Reads log and incident inside the transaction that claimed the run."""
        rows = self._conn.execute(
            sa.select(run_log.c.seq, run_log.c.doc)
            .where(run_log.c.run == self.run.id)
            .order_by(run_log.c.seq)
        )
        self._log = [msgspec.structs.replace(msgspec.convert(doc, LogEntry), seq=seq) for seq, doc in rows]
        self._fresh = self._read_incident()

    def log(self) -> list[LogEntry]:
        """As it was when the run was claimed; only the holder of the claim adds to it."""
        return list(self._log)

    def incident(self) -> Incident | None:
        """As it stands now: the detector may have changed it since the last step."""
        known, self._fresh = self._fresh, None
        if known is not None or self.run.incident is None:
            return known
        with ledger_errors(), self._conn.begin():
            return self._read_incident()

    def _read_incident(self) -> Incident | None:
        if self.run.incident is None:
            return None
        query = sa.select(incidents.c.doc).where(incidents.c.id == self.run.incident)
        doc = self._conn.execute(query).scalar()
        return msgspec.convert(doc, Incident) if doc else None

    def known_bad(self) -> set[str]:
        query = sa.select(incidents.c.doc).where(
            incidents.c.cluster == self.run.cluster,
            incidents.c.state != "resolved",
            incidents.c.doc["known_bad_in_service"].as_boolean(),
        )
        with ledger_errors(), self._conn.begin():
            docs = self._conn.execute(query).scalars()
            return {name for doc in docs for name in msgspec.convert(doc, Incident).bad_nodes}

    def references(self) -> list[Reference]:
        with ledger_errors(), self._conn.begin():
            return read_references(self._conn, self.run.cluster)

    def history(self, node: str, since: datetime) -> NodeHistory:
        mine = (
            sa.select(incidents.c.id, incidents.c.doc)
            .where(
                incidents.c.cluster == self.run.cluster,
                incidents.c.node == node,
                sa.or_(incidents.c.closed.is_(None), incidents.c.closed >= since),
                incidents.c.doc["merged_into"].astext.is_(None),
            )
            .order_by(incidents.c.opened, incidents.c.id)
        )
        with ledger_errors(), self._conn.begin():
            rows = self._conn.execute(mine).all()
            filed = sa.select(queued.c.incident).where(
                queued.c.kind == "ticket", queued.c.incident.in_([row.id for row in rows])
            )
            ticketed = frozenset(self._conn.execute(filed).scalars())
        found = tuple(msgspec.convert(row.doc, Incident) for row in rows)
        return NodeHistory(incidents=found, ticketed=ticketed)

    def permits(self) -> list[Permit]:
        query = sa.select(permits.c.doc).where(
            permits.c.cluster == self.run.cluster, permits.c.at > self._clock.now() - gate.PERMITS_KEPT
        )
        with ledger_errors(), self._conn.begin():
            return [msgspec.convert(doc, Permit) for doc in self._conn.execute(query).scalars()]

    def facts(self, playbooks: Sequence[str]) -> GateFacts:
        now = self._clock.now()
        with ledger_errors(), self._conn.begin():
            facts = gate.read_facts(self._conn, self.run.cluster, self._snapshots, now)
            sweeps = gate.read_sweeps(self._conn, self.run.cluster, playbooks, now)
        return msgspec.structs.replace(facts, sweeps=sweeps)

    def paused(self) -> bool:
        with ledger_errors(), self._conn.begin():
            return bool(gate.read_pauses(self._conn, self.run.cluster, self._clock.now()))

    def fence(self) -> None:
        if self.run.lease_until is None:
            raise LeaseLost(f"run {self.run.id} is not held")
        for _ in range(PROOFS):
            if self._stopwatch() - self._renewed_s <= FRESH_S:
                return
            with self._written():  # whoever is stopped behind it proves it once more
                pass
        raise LeaseLost(f"the database answers too slowly to prove that run {self.run.id} is held")

    @contextmanager
    def gate(self) -> Iterator["PostgresGateTx"]:
        until, begun_s = self._clock.now() + LEASE, self._stopwatch()
        with ledger_errors(), self._conn.begin():
            # The gate first, then the run: the order of the walk and of people's commands.
            facts = gate.lock_gate(self._conn, self.run.cluster, self._snapshots, self._clock.now())
            self._mine(lease_until=until)
            yield PostgresGateTx(self._conn, self.run, facts)
        self.run, self._renewed_s = msgspec.structs.replace(self.run, lease_until=until), begun_s

    def write(
        self,
        entry: LogEntry,
        *,
        audit: AuditRecord | None = None,
        drained: RemedyUse | None = None,
    ) -> None:
        with self._written():
            write_entry(self._conn, entry)
            if audit is not None:
                _audit(self._conn, audit)
            if drained is not None:
                gate.mark_drained(self._conn, self.run.cluster, drained.node, drained.at)
                if drained.incident is not None:
                    _add_remedy(self._conn, self.run.cluster, drained)

    def set_state(
        self,
        state: RunState,
        *,
        why: str,
        wake_at: datetime | None = None,
        question: str | None = None,
        approve_until: datetime | None = None,
        tell: Command | None = None,
    ) -> None:
        now = self._clock.now()
        ended = now if state in ENDED_RUN_STATES else None
        self.run = msgspec.structs.replace(
            self.run,
            state=state,
            wake_at=wake_at,
            question=question,
            approve_until=approve_until,
            ended_at=ended,
            lease_until=None,
        )
        with ledger_errors(), self._conn.begin():
            self._mine(
                state=state,
                wake_at=wake_at,
                lease_until=None,
                ended_at=ended,
                doc=msgspec.to_builtins(self.run),
            )
            if state in {RunState.stuck, *ENDED_RUN_STATES}:
                _audit(
                    self._conn,
                    AuditRecord(
                        cluster=self.run.cluster,
                        at=now,
                        actor=self.run.by,
                        verb=f"run.{state}",
                        subject=f"run/{self.run.id}",
                        data={"why": why, "incident": self.run.incident, "playbook": self.run.playbook},
                    ),
                )
            if tell is not None:
                self._put(tell)

    def tell(self, command: Command) -> None:
        with self._written():
            self._put(command)

    def _put(self, command: Command) -> None:
        request = f"{self.run.id}:{self.run.epoch}:{command.kind}:{command.at.isoformat()}"
        inbox.put_command(self._conn, command, request=request)

    def queue_message(self, message: Message | Ticket) -> None:
        with self._written():
            messages.queue(self._conn, message, at=self._clock.now(), has_sink=self._has_sink)

    def release_slot(self, node: str, *, why: str) -> None:
        with self._written():
            gate.release_slot(self._conn, self.run.cluster, node, at=self._clock.now(), why=why)

    @contextmanager
    def _written(self) -> Iterator[None]:
        """One transaction that also proves the claim and extends the lease."""
        until, begun_s = self._clock.now() + LEASE, self._stopwatch()
        with ledger_errors(), self._conn.begin():
            self._mine(lease_until=until)
            yield
        self.run, self._renewed_s = msgspec.structs.replace(self.run, lease_until=until), begun_s

    def _mine(self, **values: object) -> None:
        done = self._conn.execute(
            sa.update(runs).where(runs.c.id == self.run.id, runs.c.epoch == self.run.epoch).values(**values)
        )
        if done.rowcount != 1:
            raise LeaseLost(f"run {self.run.id} was claimed by another worker or ended by a person")


class PostgresGateTx:
    """`healer.ports.GateTx` inside a claim's transaction."""

    def __init__(self, conn: sa.Connection, run: Run, facts: GateFacts) -> None:
        self._conn, self._run, self.facts = conn, run, facts

    def sweeps(self, playbooks: Sequence[str], since: datetime) -> Sweeps:
        return gate.read_sweeps(self._conn, self._run.cluster, playbooks, since)

    def add_decision(self, decision: Decision) -> None:
        gate.add_decision(self._conn, decision)

    def write(self, entry: LogEntry) -> None:
        write_entry(self._conn, entry)

    def grant_slot(self, slot: Slot) -> None:
        gate.grant_slot(self._conn, slot)

    def release_slot(self, node: str, *, at: datetime, why: str) -> None:
        gate.release_slot(self._conn, self._run.cluster, node, at=at, why=why)

    def add_remedy(self, use: RemedyUse) -> None:
        _add_remedy(self._conn, self._run.cluster, use)

    def add_requeue(self, use: RequeueUse) -> None:
        row = {"run": self._run.id, **msgspec.structs.asdict(use)}
        statement = insert(requeues).values(cluster=self._run.cluster, **row)
        ended = sa.select(runs.c.id).where(runs.c.state.in_([str(state) for state in ENDED_RUN_STATES]))
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
        mine = requeues.c.run == self._run.id
        self._conn.execute(sa.delete(requeues).where(self._life(job, restarts), mine))

    def _life(self, job: str, restarts: int) -> sa.ColumnElement[bool]:
        known = (requeues.c.job == job, requeues.c.restarts == restarts)
        return sa.and_(requeues.c.cluster == self._run.cluster, *known)

    def save_breaker(self, breaker: Breaker) -> None:
        gate.save_breaker(self._conn, breaker)

    def audit(self, record: AuditRecord) -> None:
        _audit(self._conn, record)


_audit = audit.append


def _add_remedy(conn: sa.Connection, cluster: str, use: RemedyUse) -> None:
    conn.execute(sa.insert(remedies).values(cluster=cluster, **msgspec.structs.asdict(use)))


def write_entry(conn: sa.Connection, entry: LogEntry) -> None:
    conn.execute(
        sa.insert(run_log).values(
            run=entry.run, at=entry.at, step=entry.step, event=entry.event, doc=msgspec.to_builtins(entry)
        )
    )
