"""Runs held by one worker: a session lock each, a lease and a growing epoch.

The lock dies with the worker's session; what that worker had begun to do may still be under way, so another
one takes the run only after it has seen the lock free for a lease's time (`healer.ports.lease`). Every write
names its epoch, so a worker that was overtaken is refused. All runs of a process share one session, on which
what they write at the same time goes together; what they ask the gate goes together on another one.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres import gate_facts as gate
from healer.adapters.postgres.engine import Lane, ledger_errors, read_docs
from healer.adapters.postgres.node_rows import PostgresSnapshots, read_histories, read_references
from healer.adapters.postgres.run_rows import ENDED, Lines, logs_of, store
from healer.adapters.postgres.tables import incidents, permits, requeues, runs
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
    StepEvent,
    Sweeps,
    Ticket,
    audit_record,
)
from healer.ports.clock import Clock
from healer.ports.commanding import ALONE
from healer.ports.lease import FRESH_S, LEASE, PROOFS, Left
from healer.ports.transactions import AlreadyRequeued, GateTx, LeaseLost, LedgerAway

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class LedgerParts:
    """What the ledger of one cluster works with. `stopwatch`: seconds that no change of the clock touches."""

    engine: sa.Engine
    cluster: str
    snapshots: PostgresSnapshots
    clock: Clock
    has_sink: bool
    stopwatch: Callable[[], float] = time.monotonic


# --- who holds which run: taken, proven and given back for many runs at once, on one session of the process.
# Rows that somebody else has locked just now are passed over, so that a holder of several never waits for
# one; what was passed over gets a transaction of its own.


_LOCK = sa.text(
    "SELECT id FROM unnest(CAST(:ids AS text[])) AS wanted (id) "
    "WHERE pg_try_advisory_lock(hashtextextended(id, 0))"
)
_UNLOCK = sa.text(
    "SELECT pg_advisory_unlock(hashtextextended(id, 0)) FROM unnest(CAST(:ids AS text[])) AS held (id)"
)
_TAKE = sa.text("""
WITH due AS (
  SELECT runs.id FROM runs
  JOIN unnest(CAST(:ids AS text[]), CAST(:lefts AS bigint[])) AS wanted (id, epoch) ON wanted.id = runs.id
  WHERE runs.state = 'running' AND (runs.wake_at IS NULL OR runs.wake_at <= :now)
    AND (runs.lease_until IS NULL OR runs.epoch = wanted.epoch)
  FOR NO KEY UPDATE OF runs SKIP LOCKED)
UPDATE runs SET epoch = runs.epoch + 1, lease_until = :until, wake_at = NULL
FROM due WHERE runs.id = due.id RETURNING runs.id, runs.epoch, runs.doc
""")
_LEFT = sa.text(
    "SELECT id, epoch FROM runs WHERE id = ANY(:ids) AND state = 'running' AND lease_until IS NOT NULL"
)
_INCIDENTS = sa.text("SELECT id, doc FROM incidents WHERE id = ANY(:ids)")
_FREE = sa.text("UPDATE runs SET lease_until = NULL WHERE id = ANY(:ids)")

_MINE = """
WITH mine AS (
  SELECT runs.id FROM runs
  JOIN unnest(CAST(:ids AS text[]), CAST(:epochs AS bigint[])) AS held (id, epoch)
    ON held.id = runs.id AND held.epoch = runs.epoch
  FOR NO KEY UPDATE OF runs {})
UPDATE runs SET lease_until = :until FROM mine WHERE runs.id = mine.id RETURNING runs.id
"""
_CHANGE = """
WITH mine AS (
  SELECT runs.id, given.doc AS told FROM runs
  JOIN jsonb_array_elements(CAST(:rows AS jsonb)) AS given (doc)
    ON runs.id = given.doc->>'id' AND runs.epoch = (given.doc->>'epoch')::bigint
  FOR NO KEY UPDATE OF runs {})
UPDATE runs SET state = told->>'state', wake_at = (told->>'wake_at')::timestamptz, lease_until = NULL,
  ended_at = (told->>'ended_at')::timestamptz, doc = told
FROM mine WHERE runs.id = mine.id RETURNING runs.id
"""
_MINE_NOW, _MINE_FREE = sa.text(_MINE.format("")), sa.text(_MINE.format("SKIP LOCKED"))
_CHANGE_NOW, _CHANGE_FREE = sa.text(_CHANGE.format("")), sa.text(_CHANGE.format("SKIP LOCKED"))


@dataclass(frozen=True)
class Taken:
    """A run under its new epoch, with its log and incident as they were then."""

    run: Run
    log: list[LogEntry]
    incident: Incident | None
    #: The session whose lock it is, and when by the stopwatch it was surely this one's.
    session: int
    since_s: float


class Locks:
    """The locks of one session, by its own book: the server counts a lock that it gives twice."""

    def __init__(self) -> None:
        self._session, self._locked, self._held = 0, set[str](), set[str]()

    def of(self, session: int) -> "Locks":
        """What an earlier session had is gone with it."""
        if session != self._session:
            self._session, self._locked, self._held = session, set(), set()
        return self

    def lock(self, conn: sa.Connection, runs: Sequence[str]) -> list[str]:
        """Those of these that are free, here and elsewhere; their locks are ours now."""
        wanted = [run for run in dict.fromkeys(runs) if run not in self._held]
        new = [run for run in wanted if run not in self._locked]
        if new:
            self._locked.update(conn.execute(_LOCK, {"ids": new}).scalars())
        return [run for run in wanted if run in self._locked]

    def unlock(self, conn: sa.Connection, but: Mapping[str, object]) -> None:
        """Gives back all that is neither held nor among those just taken."""
        free = [run for run in self._locked if run not in self._held and run not in but]
        if free:
            conn.execute(_UNLOCK, {"ids": free})
            self._locked.difference_update(free)

    def hold(self, runs: Mapping[str, object]) -> None:
        self._held.update(runs)

    def release(self, run: str) -> None:
        self._held.discard(run)


def take(
    conn: sa.Connection, runs: Sequence[str], left: Left, now: datetime, *, session: int, since_s: float
) -> dict[str, Taken]:
    """Those of these runs, whose locks are ours, that are due: each under a new epoch."""
    asked = {"ids": list(runs), "lefts": [left.epoch(run) for run in runs], "now": now, "until": now + LEASE}
    rows = conn.execute(_TAKE, asked).all() if runs else []
    ids = [row.id for row in rows]
    if others := [run for run in runs if run not in set(ids)]:
        # The lock is ours, and so the run is free: one that still has a lease was left without a word.
        for run, epoch in conn.execute(_LEFT, {"ids": others}):
            left.seen(run, epoch)
    logs = logs_of(conn, ids)
    by_id = {row.id: msgspec.convert(row.doc, Run) for row in rows}
    incidents_by_id = incidents_of(conn, [run.incident for run in by_id.values() if run.incident is not None])
    found = {}
    for row in rows:
        left.taken(row.id)
        run = msgspec.structs.replace(by_id[row.id], epoch=row.epoch, lease_until=now + LEASE, wake_at=None)
        found[row.id] = Taken(run, logs[row.id], incidents_by_id.get(run.incident or ""), session, since_s)
    return found


def incidents_of(conn: sa.Connection, names: Sequence[str]) -> dict[str, Incident]:
    if not names:
        return {}
    return {
        name: msgspec.convert(doc, Incident) for name, doc in conn.execute(_INCIDENTS, {"ids": list(names)})
    }


def prove(conn: sa.Connection, runs: Sequence[Run], until: datetime) -> set[str]:
    """Those that are still of this epoch: theirs until the transaction ends, and their leases go on.

    Of several, those that somebody has locked are not among them, whosever they are.
    """
    if not runs:
        return set()
    held = {"ids": [run.id for run in runs], "epochs": [run.epoch for run in runs], "until": until}
    return set(conn.execute(_MINE_FREE if len(runs) > 1 else _MINE_NOW, held).scalars())


def change(conn: sa.Connection, runs: Sequence[Run]) -> set[str]:
    """The same for runs that are given back in a new state, which is theirs then."""
    if not runs:
        return set()
    rows = {"rows": msgspec.json.encode(runs).decode()}
    return set(conn.execute(_CHANGE_FREE if len(runs) > 1 else _CHANGE_NOW, rows).scalars())


def free_leases(conn: sa.Connection, runs: Sequence[str]) -> None:
    """Nothing of these is under way any more: the next one need not wait for that."""
    conn.execute(_FREE, {"ids": list(runs)})


# --- what runs ask the gate


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
    """The work of a lane: cases of one cluster in, their answers out."""

    def __init__(self, parts: LedgerParts) -> None:
        self._parts, self._clock = parts, parts.clock

    def __call__(self, conn: sa.Connection, cases: Sequence[Case]) -> Sequence[object]:
        cluster, now = self._parts.cluster, self._clock.now()
        answers: dict[int, object] = {}
        with conn.begin():
            # The gate first, then the runs: the order of the walk and of people's commands.
            facts = gate.lock_gate(conn, cluster, self._parts.snapshots, now)
            mine = prove(conn, [case.run for case in cases], now + LEASE)
            kept: list[Lines] = []
            changed = False
            for place in sorted(range(len(cases)), key=lambda place: cases[place].order):
                case = cases[place]
                if case.run.id not in mine:
                    answers[place] = ALONE if len(cases) > 1 else lost(case.run)
                    continue
                if changed:
                    self._store(conn, kept)
                    kept, now = [], self._clock.now()
                    facts = gate.read_facts(conn, cluster, self._parts.snapshots, now)
                tx = PostgresGateTx(conn, case.run, facts)
                answers[place] = case.judge(tx)
                kept.append(case.before.then(tx.lines))
                changed = tx.changed
            self._store(conn, kept)
        return [answers[place] for place in range(len(cases))]

    def _store(self, conn: sa.Connection, kept: Sequence[Lines]) -> None:
        store(conn, self._parts.cluster, kept, at=self._clock.now(), has_sink=self._parts.has_sink)


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
        return gate.read_sweeps(self._conn, self._run.cluster, playbooks, since)

    def add_decision(self, decision: Decision) -> None:
        self.lines.decisions.append(decision)

    def write(self, entry: LogEntry) -> None:
        self.lines.entries.append(entry)
        self.changed |= entry.event is not StepEvent.started

    def grant_slot(self, slot: Slot) -> None:
        self.changed = True
        gate.grant_slots(self._conn, [slot])

    def release_slot(self, node: str, *, at: datetime, why: str) -> None:
        self.changed = True
        gate.release_slot(self._conn, self._run.cluster, node, at=at, why=why)

    def add_remedy(self, use: RemedyUse) -> None:
        self.changed = True
        self.lines.remedies.append(use)

    def add_requeue(self, use: RequeueUse) -> None:
        self.changed = True
        row = {"run": self._run.id, **msgspec.structs.asdict(use)}
        statement = insert(requeues).values(cluster=self._run.cluster, **row)
        ended = sa.select(runs.c.id).where(runs.c.state.in_(ENDED))
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
        life = (requeues.c.job == job, requeues.c.restarts == restarts)
        return sa.and_(requeues.c.cluster == self._run.cluster, *life)

    def save_breaker(self, breaker: Breaker) -> None:
        self.changed = True
        gate.save_breaker(self._conn, breaker)

    def audit(self, record: AuditRecord) -> None:
        self.lines.audits.append(record)


# --- claims


@dataclass(frozen=True)
class _Take:
    run: str


@dataclass(frozen=True)
class _Write:
    """`run` as it is held, and what is written with the proof that it is; with `ends` it is given back so."""

    run: Run
    session: int
    lines: Lines = field(default_factory=Lines)
    ends: bool = False


@dataclass(frozen=True)
class _Give:
    """`over`: nothing of it is under way here any more, though its lease lasts."""

    run: str
    session: int
    over: bool


@dataclass(frozen=True)
class _Look:
    incident: str


@dataclass(frozen=True)
class _Paused:
    """Whether any pause is in force."""


_Item = _Take | _Write | _Give | _Look | _Paused


class Claims:
    """One process's claims."""

    def __init__(self, parts: LedgerParts) -> None:
        self.parts = parts
        self._left, self._locks = Left(parts.stopwatch), Locks()
        self.lane = Lane[_Item](parts.engine, self._work)
        self.gate = Lane[Case](parts.engine, Judging(parts))

    @contextmanager
    def claim(self, run: str) -> Iterator["PostgresClaim | None"]:
        with ledger_errors():
            taken: Taken | None = self.lane.do(_Take(run))
        if taken is None:
            yield None
            return
        over = False
        try:
            yield PostgresClaim(self, taken)
        except LeaseLost:
            # A person ended or turned the run. Nothing of it is under way here any more, so the next one
            # need not wait for that.
            over = True
            raise
        finally:
            self.lane.post(_Give(run, taken.session, over))

    def _work(self, conn: sa.Connection, items: Sequence[_Item]) -> Sequence[object]:
        """One transaction. `_Give` comes first, so that a run may be taken again in the same."""
        now, since_s, session = self.parts.clock.now(), self.parts.stopwatch(), self.lane.session
        locks = self._locks.of(session)
        gives = [item for item in items if isinstance(item, _Give) and item.session == session]
        for give in gives:
            locks.release(give.run)
        if overs := [give.run for give in gives if give.over]:
            with conn.begin():
                free_leases(conn, overs)
        writes = [item for item in items if isinstance(item, _Write) and item.session == session]
        looks = {item.incident for item in items if isinstance(item, _Look)}
        with conn.begin():
            wanted = locks.lock(conn, [item.run for item in items if isinstance(item, _Take)])
            taken = take(conn, wanted, self._left, now, session=session, since_s=since_s)
            mine = prove(conn, [item.run for item in writes if not item.ends], now + LEASE)
            mine |= change(conn, [item.run for item in writes if item.ends])
            lines = [item.lines for item in writes if item.run.id in mine]
            store(conn, self.parts.cluster, lines, at=now, has_sink=self.parts.has_sink)
            shown = incidents_of(conn, sorted(looks))
            asked = any(isinstance(item, _Paused) for item in items)
            paused = asked and bool(gate.read_pauses(conn, self.parts.cluster, now))
            locks.unlock(conn, but=taken)
        locks.hold(taken)
        results: list[object] = []
        for item in items:
            match item:
                case _Take():
                    results.append(taken.pop(item.run, None))
                case _Look():
                    results.append(shown.get(item.incident))
                case _Paused():
                    results.append(paused)
                case _Give():
                    results.append(None)
                case _Write() if item.session != session:
                    results.append(LedgerAway(f"the session that held run {item.run.id} is gone"))
                case _Write() if item.run.id in mine:
                    results.append((now + LEASE, since_s))
                case _Write():
                    results.append(ALONE if len(writes) > 1 else lost(item.run))
        return results


# Wide: implements `ports.RunClaim`.
class PostgresClaim:
    """`healer.ports.transactions.RunClaim`. Every write extends the lease, and takes with it what was kept
    for it."""

    def __init__(self, claims: Claims, taken: Taken) -> None:
        self.run = taken.run
        self._claims, self._clock, self._engine = claims, claims.parts.clock, claims.parts.engine
        self._session, self._log = taken.session, taken.log
        self._fresh = taken.incident
        self._kept = Lines()
        #: By the stopwatch, just before it was last proven that the run is this one's.
        self._renewed_s = taken.since_s
        by_person = taken.run.by != "healer"
        severity = str(taken.incident.severity) if taken.incident is not None else "P3"
        self._order = ("" if by_person else severity, taken.run.created_at)

    def log(self) -> list[LogEntry]:
        """As it was when the run was claimed; only the holder of the claim adds to it."""
        return list(self._log)

    def incident(self) -> Incident | None:
        """As it is now: the detector may have changed it since the last step."""
        fresh, self._fresh = self._fresh, None
        if fresh is not None or self.run.incident is None:
            return fresh
        with ledger_errors():
            return self._claims.lane.do(_Look(self.run.incident))

    def known_bad(self) -> set[str]:
        query = sa.select(incidents.c.doc).where(
            incidents.c.cluster == self.run.cluster,
            incidents.c.state != "resolved",
            incidents.c.doc["known_bad_in_service"].as_boolean(),
        )
        with ledger_errors(), self._engine.connect() as conn:
            return {name for incident in read_docs(conn, query, Incident) for name in incident.bad_nodes}

    def references(self) -> list[Reference]:
        with ledger_errors(), self._engine.connect() as conn:
            return read_references(conn, self.run.cluster)

    def history(self, node: str, since: datetime) -> NodeHistory:
        with ledger_errors(), self._engine.connect() as conn:
            return read_histories(conn, self.run.cluster, since, node).get(node, NodeHistory())

    def permits(self) -> list[Permit]:
        lately = permits.c.at > self._clock.now() - gate.PERMITS_KEPT
        query = sa.select(permits.c.doc).where(permits.c.cluster == self.run.cluster, lately)
        with ledger_errors(), self._engine.connect() as conn:
            return read_docs(conn, query, Permit)

    def facts(self, playbooks: Sequence[str]) -> GateFacts:
        now = self._clock.now()
        with ledger_errors(), self._engine.connect() as conn:
            facts = gate.read_facts(conn, self.run.cluster, self._claims.parts.snapshots, now)
            sweeps = gate.read_sweeps(conn, self.run.cluster, playbooks, now)
        return msgspec.structs.replace(facts, sweeps=sweeps)

    def paused(self) -> bool:
        with ledger_errors():
            return self._claims.lane.do(_Paused())

    def fence(self) -> bool:
        if self.run.lease_until is None:
            raise LeaseLost(f"run {self.run.id} is not held")
        for proofs in range(PROOFS):
            if self._claims.parts.stopwatch() - self._renewed_s <= FRESH_S:
                return proofs > 0
            self._write(Lines())  # whoever is stopped behind it proves it once more
        raise LeaseLost(f"the database answers too slowly to prove that run {self.run.id} is held")

    def gate(self, judge: Callable[[GateTx], T]) -> T:
        """What it proves is the epoch alone, on another session than the lock's: `fence` trusts it no longer
        for that."""
        if self.run.lease_until is None:
            raise LeaseLost(f"run {self.run.id} is not held")
        if self._session != self._claims.lane.session:
            raise LedgerAway(f"the session that held run {self.run.id} is gone")
        if self._kept.released:
            self._write(Lines())  # guards look at slots
        with ledger_errors():
            answer = self._claims.gate.do(Case(self.run, judge, self._order, self._kept))
        self._kept = Lines()
        return answer

    def write(
        self, entry: LogEntry, *, audit: AuditRecord | None = None, drained: RemedyUse | None = None
    ) -> None:
        lines = Lines(entries=[entry])
        if audit is not None:
            lines.audits.append(audit)
        if drained is not None:
            lines.drained.append((drained.node, drained.at))
            if drained.incident is not None:
                lines.remedies.append(drained)
        self._write(lines)

    def set_state(
        self,
        state: RunState,
        *,
        why: str,
        wake_at: datetime | None = None,
        question: str | None = None,
        approve_until: datetime | None = None,
        command: Command | None = None,
    ) -> None:
        now = self._clock.now()
        self.run = msgspec.structs.replace(
            self.run,
            state=state,
            wake_at=wake_at,
            question=question,
            approve_until=approve_until,
            ended_at=now if state in ENDED_RUN_STATES else None,
            lease_until=None,
        )
        lines = Lines(commands=[] if command is None else [self._named(command)])
        if state in {RunState.stuck, *ENDED_RUN_STATES}:
            run = self.run
            about = {"why": why, "incident": run.incident, "playbook": run.playbook}
            record = audit_record(run.cluster, now, run.by, f"run.{state}", f"run/{run.id}", **about)
            lines.audits.append(record)
        with ledger_errors():
            self._claims.lane.do(_Write(self.run, self._session, self._kept.then(lines), ends=True))
        self._kept = Lines()

    def keep(self, entry: LogEntry) -> None:
        self._kept.entries.append(entry)

    def send_command(self, command: Command) -> None:
        self._kept.commands.append(self._named(command))

    def _named(self, command: Command) -> tuple[Command, str]:
        return command, f"{self.run.id}:{self.run.epoch}:{command.kind}:{command.at.isoformat()}"

    def queue_message(self, message: Message | Ticket) -> None:
        self._kept.messages.append(message)

    def release_slot(self, node: str, *, why: str) -> None:
        self._kept.released.append((node, self._clock.now(), why))

    def _write(self, lines: Lines) -> None:
        """One transaction that also proves the claim and extends the lease."""
        with ledger_errors():
            wanted = _Write(self.run, self._session, self._kept.then(lines))
            until, begun_s = self._claims.lane.do(wanted)
        self._kept = Lines()
        self.run, self._renewed_s = msgspec.structs.replace(self.run, lease_until=until), begun_s
