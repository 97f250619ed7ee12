"""Claims on runs: a session-level advisory lock, a lease and a growing epoch for each claimed run.

The lock ends with the worker's session, but a call that the worker began may still be under way. So another
worker takes the run only after it has seen the lock free for the length of a lease (`healer.ports.lease`).
Every write names its epoch; a worker that lost its claim is refused. All claims of a process share one
session and batch their concurrent writes there; their questions to the gate are batched on a second session.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres import gate_facts as gate
from healer.adapters.postgres.engine import (
    Lane,
    alone,
    earlier_clock,
    ledger_errors,
    ledger_reading,
    read_docs,
    storable_rows,
)
from healer.adapters.postgres.incident_rows import watched
from healer.adapters.postgres.node_rows import (
    PostgresSnapshots,
    read_histories,
    read_references,
    reported_gpu,
)
from healer.adapters.postgres.run_rows import ENDED, Lines, log_entry, store
from healer.adapters.postgres.tables import incidents, permits, requeues, runs
from healer.model import (
    ENDED_RUN_STATES,
    AuditRecord,
    Breaker,
    Command,
    Component,
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
    probations,
)
from healer.ports.clock import Clock
from healer.ports.commanding import ALONE
from healer.ports.lease import FRESH_S, LEASE, LEASE_S, NAP, PROOFS
from healer.ports.transactions import AlreadyRequeued, GateTx, LeaseLost, LedgerAway
from healer.text import from_stored

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class LedgerParts:
    """The dependencies of one cluster's ledger. `stopwatch` returns monotonic seconds."""

    engine: sa.Engine
    cluster: str
    snapshots: PostgresSnapshots
    clock: Clock
    has_sink: bool
    stopwatch: Callable[[], float] = time.monotonic


# --- statements that claim, renew and release many runs at once. Rows locked by another transaction are
# skipped, so that one busy run never delays the others; a skipped run gets a transaction of its own.

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
  WHERE runs.state = 'running' AND runs.cluster = :cluster
    AND (runs.wake_at IS NULL OR runs.wake_at <= :now OR runs.wake_at > :wrong)
    AND (runs.lease_until IS NULL OR runs.epoch = wanted.epoch)
  FOR NO KEY UPDATE OF runs SKIP LOCKED)
UPDATE runs SET epoch = runs.epoch + 1, lease_until = :until, wake_at = NULL
FROM due WHERE runs.id = due.id RETURNING runs.id, runs.epoch, runs.doc
""")
_USE = sa.text("SELECT")
_ALONE = sa.text("SELECT pg_try_advisory_xact_lock(hashtextextended(:name, 0))")
_LEFT = sa.text(
    "SELECT id, epoch FROM runs WHERE id = ANY(:ids) AND state = 'running' AND lease_until IS NOT NULL"
)
#: The log and the incident of each of these runs. Not part of `_TAKE`, which sees the log as of its start: a
#: command may have added to it before the row was locked.
_ABOUT = sa.text("""
SELECT runs.id, incidents.doc AS incident, coalesce((
    SELECT json_agg(json_build_object('seq', seq, 'doc', doc) ORDER BY seq) FROM run_log
    WHERE run = runs.id), '[]') AS log
FROM runs LEFT JOIN incidents ON incidents.id = runs.incident WHERE runs.id = ANY(:ids)
""")
_INCIDENTS = sa.text("SELECT id, doc FROM incidents WHERE id = ANY(:ids)")
_FREE = sa.text("UPDATE runs SET lease_until = NULL WHERE id = ANY(:ids)")

_RENEW = """
WITH claimed AS (
  SELECT runs.id FROM runs
  JOIN unnest(CAST(:ids AS text[]), CAST(:epochs AS bigint[])) AS held (id, epoch)
    ON held.id = runs.id AND held.epoch = runs.epoch
  FOR NO KEY UPDATE OF runs {})
UPDATE runs SET lease_until = :until FROM claimed WHERE runs.id = claimed.id RETURNING runs.id
"""
_SAVE = """
WITH claimed AS (
  SELECT runs.id, given.doc AS saved FROM runs
  JOIN jsonb_array_elements(CAST(:rows AS jsonb)) AS given (doc)
    ON runs.id = given.doc->>'id' AND runs.epoch = (given.doc->>'epoch')::bigint
  FOR NO KEY UPDATE OF runs {})
UPDATE runs SET state = saved->>'state', wake_at = (saved->>'wake_at')::timestamptz, lease_until = NULL,
  ended_at = (saved->>'ended_at')::timestamptz, doc = saved
FROM claimed WHERE runs.id = claimed.id RETURNING runs.id
"""
#: Each statement waiting for locked rows, and skipping them.
_RENEW_ONE, _RENEW_MANY = sa.text(_RENEW.format("")), sa.text(_RENEW.format("SKIP LOCKED"))
_SAVE_ONE, _SAVE_MANY = sa.text(_SAVE.format("")), sa.text(_SAVE.format("SKIP LOCKED"))


@dataclass(frozen=True)
class ClaimedRun:
    """A run under its new epoch, with its log and incident as of the claim."""

    run: Run
    log: list[LogEntry]
    incident: Incident | None
    #: The session that holds the lock, and a stopwatch time at which the claim was certainly valid.
    session: int
    since_s: float


class RunLocks:
    """The advisory locks of one session. Tracked here because the server counts a lock taken twice."""

    def __init__(self) -> None:
        self._session, self._locked, self._held = 0, set[str](), set[str]()

    def on_session(self, session: int) -> None:
        """Forgets the locks of an earlier session: they ended with it."""
        if session != self._session:
            self._session, self._locked, self._held = session, set(), set()

    def lock(self, conn: sa.Connection, runs: Sequence[str]) -> list[str]:
        """Locks these runs and returns those that were free."""
        wanted = [run for run in dict.fromkeys(runs) if run not in self._held]
        new = [run for run in wanted if run not in self._locked]
        if new:
            self._locked.update(conn.execute(_LOCK, {"ids": new}).scalars())
        return [run for run in wanted if run in self._locked]

    def unlock(self, conn: sa.Connection, but: Mapping[str, object]) -> None:
        """Releases every lock that is neither held nor among those just claimed."""
        free = [run for run in self._locked if run not in self._held and run not in but]
        if free:
            conn.execute(_UNLOCK, {"ids": free})
            self._locked.difference_update(free)

    def hold(self, runs: Mapping[str, object]) -> None:
        self._held.update(runs)

    def release(self, run: str) -> None:
        self._held.discard(run)


#: Abandoned runs are forgotten after this time.
_FORGOTTEN_S = 600.0


class Left:
    """Abandoned runs, as this process has seen them. One for all its threads.

    `stopwatch`: a monotonic clock in seconds that also runs while the process is stopped.
    """

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        self._stopwatch = stopwatch
        self._seen: dict[str, tuple[int, float]] = {}

    def seen(self, run: str, epoch: int) -> None:
        """The lock of this run was free, and its last holder, of this epoch, had not given it back."""
        seen, now_s = self._seen.get(run), self._stopwatch()
        if seen is None or seen[0] != epoch:
            self._seen[run] = (epoch, now_s)
        for name, (_, since_s) in list(self._seen.items()) if len(self._seen) > 1000 else ():
            if now_s - since_s > _FORGOTTEN_S:
                self._seen.pop(name, None)

    def epoch(self, run: str) -> int | None:
        """The epoch from which the run may be taken now; None: it has to wait, or was not abandoned."""
        seen = self._seen.get(run)
        return seen[0] if seen is not None and self._stopwatch() - seen[1] >= LEASE_S else None

    def taken(self, run: str) -> None:
        self._seen.pop(run, None)


def claim_due(
    conn: sa.Connection, cluster: str, runs: Sequence[str], left: Left, now: datetime
) -> list[tuple[Run, list[LogEntry], Incident | None]]:
    """Claims those of these runs that are due and the cluster's, each under a new epoch. The caller holds
    their locks."""
    values = {"ids": list(runs), "lefts": [left.epoch(run) for run in runs], "now": now, "until": now + LEASE}
    values |= {"cluster": cluster, "wrong": now + 2 * NAP}
    rows = conn.execute(_TAKE, values).all() if runs else []
    ids = [row.id for row in rows]
    if others := [run for run in runs if run not in set(ids)]:
        # We hold the lock, so a run that still has a lease was abandoned by its worker.
        for run, epoch in conn.execute(_LEFT, {"ids": others}):
            left.seen(run, epoch)
    about = {row.id: row for row in conn.execute(_ABOUT, {"ids": ids})} if ids else {}
    claimed = []
    for row in rows:
        left.taken(row.id)
        run = from_stored(row.doc, Run)
        run = msgspec.structs.replace(run, epoch=row.epoch, lease_until=now + LEASE, wake_at=None)
        log, doc = about[row.id].log, about[row.id].incident
        entries = [log_entry(line["seq"], line["doc"]) for line in log]
        claimed.append((run, entries, None if doc is None else from_stored(doc, Incident)))
    return claimed


def read_incidents(conn: sa.Connection, ids: Sequence[str]) -> dict[str, Incident]:
    rows = conn.execute(_INCIDENTS, {"ids": list(ids)}) if ids else ()
    return {incident: from_stored(doc, Incident) for incident, doc in rows}


def renew_leases(conn: sa.Connection, runs: Sequence[Run], until: datetime, *, is_alone: bool) -> set[str]:
    """Renews the leases of the runs that still have this epoch, locks their rows and returns their ids.

    Unless the run is alone in its transaction, rows locked by another one are skipped, even if the claim is
    valid: two that hold a run and wait for another could wait for each other.
    """
    if not runs:
        return set()
    values = {"ids": [run.id for run in runs], "epochs": [run.epoch for run in runs], "until": until}
    return set(conn.execute(_RENEW_ONE if is_alone else _RENEW_MANY, values).scalars())


def release_runs(conn: sa.Connection, runs: Sequence[Run], *, is_alone: bool) -> set[str]:
    """Saves the new state of claimed runs and ends their leases. Returns and skips like `renew_leases`."""
    if not runs:
        return set()
    rows = {"rows": storable_rows(runs)}
    return set(conn.execute(_SAVE_ONE if is_alone else _SAVE_MANY, rows).scalars())


# --- questions to the gate


@dataclass(frozen=True)
class GateCase:
    """A run's question to the gate. `judge` is called again if its first transaction was rolled back."""

    run: Run
    judge: Callable[[GateTx], Any]
    #: Sort key, most urgent first.
    order: tuple[str, datetime]
    #: Pending writes of the run; no guard reads them.
    pending: Lines = field(default_factory=Lines)


def judge_cases(parts: LedgerParts, conn: sa.Connection, cases: Sequence[GateCase]) -> Sequence[object]:
    """Judges the cases in order of urgency, in one transaction under the gate's lock; returns the answers."""
    cluster, clock = parts.cluster, parts.clock
    answers: dict[int, object] = {}

    def store_lines(lines: Sequence[Lines]) -> None:
        store(conn, cluster, lines, at=clock.now(), has_sink=parts.has_sink)

    with conn.begin():
        # Lock order as in the walk and in people's commands: the gate first, then the runs.
        now = clock.now()
        facts = gate.lock_gate(conn, cluster, parts.snapshots, now)
        is_alone = len(cases) == 1
        claimed = renew_leases(conn, [case.run for case in cases], now + LEASE, is_alone=is_alone)
        unsaved: list[Lines] = []
        changed = False
        for place in sorted(range(len(cases)), key=lambda place: cases[place].order):
            case = cases[place]
            if case.run.id not in claimed:
                answers[place] = lease_lost(case.run) if is_alone else ALONE
                continue
            if changed:
                store_lines(unsaved)
                unsaved = []
                facts = gate.read_facts(conn, cluster, parts.snapshots, clock.now())
            tx = PostgresGateTx(conn, case.run, facts)
            answers[place] = case.judge(tx)
            unsaved.append(case.pending.then(tx.lines))
            changed = tx.changed
        store_lines(unsaved)
    return [answers[place] for place in range(len(cases))]


def lease_lost(run: Run) -> LeaseLost:
    return LeaseLost(f"run {run.id} was claimed by another worker or ended by a person")


class PostgresGateTx:
    """`healer.ports.transactions.GateTx` in a transaction that holds the gate's lock and the run's row."""

    def __init__(self, conn: sa.Connection, run: Run, facts: GateFacts) -> None:
        self._conn, self._run, self.facts = conn, run, facts
        self.lines = Lines()
        #: Whether `facts` are out of date for the next case.
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
        self.lines.granted.append(slot)

    def release_slot(self, node: str, *, at: datetime, why: str) -> None:
        self.changed = True
        granted, self.lines.granted = self.lines.granted, []
        gate.grant_slots(self._conn, granted)  # in their order: it may be the same node
        gate.release_slot(self._conn, self._run.cluster, node, at=at, why=why)

    def add_remedy(self, use: RemedyUse) -> None:
        self.changed = True
        self.lines.remedies.append(use)

    def add_requeue(self, use: RequeueUse) -> None:
        self.changed = True
        row = {"run": self._run.id, **msgspec.structs.asdict(use)}
        statement = insert(requeues).values(cluster=self._run.cluster, **row)
        holder = sa.literal_column("requeues.run", sa.Text)  # a column would be one of another `requeues`
        its_state = sa.select(runs.c.state).where(runs.c.id == holder).scalar_subquery()
        requeue_row = self._conn.execute(
            statement.on_conflict_do_update(
                constraint="requeues_once",
                set_={"run": self._run.id, "at": use.at, "incident": use.incident},
                where=sa.or_(requeues.c.run == self._run.id, its_state.in_(ENDED)),
            ).returning(requeues.c.id)
        ).first()
        if requeue_row is None:
            held = sa.select(requeues.c.run).where(self._life(use.job, use.restarts))
            raise AlreadyRequeued(self._conn.execute(held).scalar_one())

    def drop_requeue(self, job: str, restarts: int) -> None:
        self.changed = True
        by_this_run = requeues.c.run == self._run.id
        self._conn.execute(sa.delete(requeues).where(self._life(job, restarts), by_this_run))

    def _life(self, job: str, restarts: int) -> sa.ColumnElement[bool]:
        life = (requeues.c.job == job, requeues.c.restarts == restarts)
        return sa.and_(requeues.c.cluster == self._run.cluster, *life)

    def save_breaker(self, breaker: Breaker) -> None:
        self.changed = True
        gate.save_breaker(self._conn, breaker)

    def audit(self, record: AuditRecord) -> None:
        self.lines.audits.append(record)


# --- claims: requests to the shared session, and the claim that a worker holds


@dataclass(frozen=True)
class _ClaimRun:
    run: str


@dataclass(frozen=True)
class _WriteRun:
    """Proves the claim on `run` and writes `lines`; with `releases` it saves the run and ends its lease."""

    run: Run
    session: int
    lines: Lines = field(default_factory=Lines)
    releases: bool = False


@dataclass(frozen=True)
class _ReleaseLock:
    """`ends_lease`: nothing of the run is under way here, so the next worker need not wait for the lease."""

    run: str
    session: int
    ends_lease: bool


@dataclass(frozen=True)
class _Pulse:
    """Uses the session, which shows others that this process is not frozen."""


@dataclass(frozen=True)
class _ReadIncident:
    incident: str


@dataclass(frozen=True)
class _AskPaused:
    """Whether any pause is in force."""


_Request = _ClaimRun | _WriteRun | _ReleaseLock | _Pulse
_Read = _ReadIncident | _AskPaused


class Claims:
    """One process's claims."""

    def __init__(self, parts: LedgerParts) -> None:
        self.parts = parts
        self._left, self._locks = Left(parts.stopwatch), RunLocks()
        self.lane = Lane[_Request](parts.engine, self._serve)
        self.reads = Lane[_Read](alone(parts.engine), self._read)
        self.gate = Lane[GateCase](parts.engine, partial(judge_cases, parts))

    @contextmanager
    def claim(self, run: str) -> Iterator["PostgresClaim | None"]:
        with ledger_errors():
            claimed: ClaimedRun | None = self.lane.do(_ClaimRun(run))
        if claimed is None:
            yield None
            return
        ends_lease = False
        try:
            yield PostgresClaim(self, claimed)
        except LeaseLost:
            # A person ended or changed the run, and the worker stopped.
            ends_lease = True
            raise
        finally:
            self.lane.post(_ReleaseLock(run, claimed.session, ends_lease))

    def pulse(self) -> None:
        """Call it every `BEAT_S` (see `FrozenWorkers`)."""
        with ledger_errors():
            self.lane.do(_Pulse())

    def _serve(self, conn: sa.Connection, requests: Sequence[_Request]) -> Sequence[object]:
        """Serves a batch in one transaction. Releases come first: a run may be claimed again in the batch."""
        now, since_s, session = self.parts.clock.now(), self.parts.stopwatch(), self.lane.session
        locks, is_alone = self._locks, len(requests) == 1
        locks.on_session(session)
        self._release(conn, [request for request in requests if isinstance(request, _ReleaseLock)])
        writes = [item for item in requests if isinstance(item, _WriteRun) and item.session == session]
        with conn.begin():
            if any(isinstance(item, _Pulse) for item in requests):
                conn.execute(_USE)
            free = locks.lock(conn, [item.run for item in requests if isinstance(item, _ClaimRun)])
            due = claim_due(conn, self.parts.cluster, free, self._left, now)
            claimed = {run.id: ClaimedRun(run, log, about, session, since_s) for run, log, about in due}
            kept = [write.run for write in writes if not write.releases]
            proven = renew_leases(conn, kept, now + LEASE, is_alone=is_alone)
            proven |= release_runs(conn, [write.run for write in writes if write.releases], is_alone=is_alone)
            lines = [write.lines for write in writes if write.run.id in proven]
            store(conn, self.parts.cluster, lines, at=now, has_sink=self.parts.has_sink)
            locks.unlock(conn, but=claimed)
        locks.hold(claimed)
        results: list[object] = []
        for request in requests:
            match request:
                case _ClaimRun():
                    results.append(claimed.pop(request.run, None))
                case _ReleaseLock() | _Pulse():
                    results.append(None)
                case _WriteRun() if request.session != session:
                    results.append(session_gone(request.run))
                case _WriteRun() if request.run.id in proven:
                    results.append((now + LEASE, since_s))
                case _WriteRun():
                    results.append(lease_lost(request.run) if is_alone else ALONE)
        return results

    def _read(self, conn: sa.Connection, requests: Sequence[_Read]) -> Sequence[object]:
        wanted = {item.incident for item in requests if isinstance(item, _ReadIncident)}
        found = read_incidents(conn, sorted(wanted))
        is_asked = any(isinstance(item, _AskPaused) for item in requests)
        paused = is_asked and bool(gate.read_pauses(conn, self.parts.cluster, self.parts.clock.now()))
        return [found.get(item.incident) if isinstance(item, _ReadIncident) else paused for item in requests]

    def _release(self, conn: sa.Connection, releases: Sequence[_ReleaseLock]) -> None:
        current = [release for release in releases if release.session == self.lane.session]
        for release in current:
            self._locks.release(release.run)
        if ended := [release.run for release in current if release.ends_lease]:
            with conn.begin():
                conn.execute(_FREE, {"ids": ended})


def session_gone(run: Run) -> LedgerAway:
    return LedgerAway(f"the session that held run {run.id} is gone")


# Wide: implements `ports.RunClaim`.
class PostgresClaim:
    """`healer.ports.transactions.RunClaim`. Every write extends the lease and includes pending lines."""

    def __init__(self, claims: Claims, claimed: ClaimedRun) -> None:
        self.run = claimed.run
        self._claims, self._clock, self._engine = claims, claims.parts.clock, claims.parts.engine
        self._session, self._log = claimed.session, claimed.log
        self._first_incident = claimed.incident
        self._pending = Lines()
        #: Stopwatch time just before the claim was last proven.
        self._renewed_s = claimed.since_s
        by_person = claimed.run.by != "healer"
        severity = str(claimed.incident.severity) if claimed.incident is not None else "P3"
        self._order = ("" if by_person else severity, claimed.run.created_at)

    def log(self) -> list[LogEntry]:
        """The log as of the claim; only the holder of the claim adds to it."""
        return list(self._log)

    def incident(self) -> Incident | None:
        """The current incident: the detector may have changed it since the last step."""
        incident, self._first_incident = self._first_incident, None
        if incident is not None or self.run.incident is None:
            return incident
        with ledger_errors():
            return self._claims.reads.do(_ReadIncident(self.run.incident))

    def known_bad(self) -> set[str]:
        query = sa.select(incidents.c.doc).where(
            incidents.c.cluster == self.run.cluster,
            incidents.c.state != "resolved",
            incidents.c.doc["known_bad_in_service"].as_boolean(),
        )
        with ledger_reading(self._engine) as conn:
            return {name for incident in read_docs(conn, query, Incident) for name in incident.bad_nodes}

    def on_probation(self) -> dict[str, datetime]:
        with ledger_reading(self._engine) as conn:
            now = self._clock.now()
            return probations(watched(conn, [self.run.cluster], now), now)

    @contextmanager
    def alone(self, what: str) -> Iterator[bool]:
        """The lock ends with its session, so a worker that dies leaves nothing locked."""
        with ledger_errors(), self._engine.begin() as conn:
            yield bool(conn.scalar(_ALONE, {"name": f"{self.run.cluster} {what}"}))

    def references(self) -> list[Reference]:
        with ledger_reading(self._engine) as conn:
            return read_references(conn, self.run.cluster)

    def reported_gpu(self, root: Component) -> dict[str, Any]:
        with ledger_reading(self._engine) as conn:
            return reported_gpu(conn, root, self._clock.now())

    def history(self, node: str, since: datetime) -> NodeHistory:
        with ledger_reading(self._engine) as conn:
            return read_histories(conn, self.run.cluster, since, node).get(node, NodeHistory())

    def earlier_now(self) -> datetime:
        return earlier_clock(self._engine, self._clock.now())

    def permits(self) -> list[Permit]:
        lately = permits.c.at > self._clock.now() - gate.PERMITS_KEPT
        query = sa.select(permits.c.doc).where(permits.c.cluster == self.run.cluster, lately)
        with ledger_reading(self._engine) as conn:
            return read_docs(conn, query, Permit)

    def facts(self, playbooks: Sequence[str]) -> GateFacts:
        now = self._clock.now()
        with ledger_reading(self._engine) as conn:
            facts = gate.read_facts(conn, self.run.cluster, self._claims.parts.snapshots, now)
            sweeps = gate.read_sweeps(conn, self.run.cluster, playbooks, now)
        return msgspec.structs.replace(facts, sweeps=sweeps)

    def paused(self) -> bool:
        with ledger_errors():
            return self._claims.reads.do(_AskPaused())

    def fence(self) -> bool:
        if self.run.lease_until is None:
            raise LeaseLost(f"run {self.run.id} is not held")
        for proofs in range(PROOFS):
            if self._claims.parts.stopwatch() - self._renewed_s <= FRESH_S:
                return proofs > 0
            self._write(Lines())  # checked again: the process may be suspended right after the write
        raise LeaseLost(f"the database answers too slowly to prove that run {self.run.id} is held")

    def gate(self, judge: Callable[[GateTx], T]) -> T:
        """Proves the epoch only, on another session than the lock's, so `fence` does not rely on it."""
        if self.run.lease_until is None:
            raise LeaseLost(f"run {self.run.id} is not held")
        if self._session != self._claims.lane.session:
            raise session_gone(self.run)
        if self._pending.released:
            self._write(Lines())  # guards count slots
        with ledger_errors():
            answer = self._claims.gate.do(GateCase(self.run, judge, self._order, self._pending))
        self._pending = Lines()
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
            data = {"why": why, "incident": run.incident, "playbook": run.playbook}
            record = audit_record(run.cluster, now, run.by, f"run.{state}", f"run/{run.id}", **data)
            lines.audits.append(record)
        with ledger_errors():
            lines = self._pending.then(lines)
            self._claims.lane.do(_WriteRun(self.run, self._session, lines, releases=True))
        self._pending = Lines()

    def keep(self, entry: LogEntry) -> None:
        self._pending.entries.append(entry)

    def send_command(self, command: Command) -> None:
        self._pending.commands.append(self._named(command))

    def _named(self, command: Command) -> tuple[Command, str]:
        return command, f"{self.run.id}:{self.run.epoch}:{command.kind}:{command.at.isoformat()}"

    def queue_message(self, message: Message | Ticket) -> None:
        self._pending.messages.append(message)

    def release_slot(self, node: str, *, why: str) -> None:
        self._pending.released.append((node, self._clock.now(), why))

    def _write(self, lines: Lines) -> None:
        """Writes in one transaction that also proves the claim and extends the lease."""
        with ledger_errors():
            request = _WriteRun(self.run, self._session, self._pending.then(lines))
            until, begun_s = self._claims.lane.do(request)
        self._pending = Lines()
        self.run, self._renewed_s = msgspec.structs.replace(self.run, lease_until=until), begun_s
