"""Runs held by one worker: a session lock each, a lease and a growing epoch.

The lock dies with the worker's session; what that worker had begun to do may still be under way, so another
one takes the run only after it has seen the lock free for a lease's time (`healer.ports.lease`). Every write
names its epoch, so a worker that was overtaken is refused. All runs of a process share one session, on which
what they write at the same time goes together; what they ask the gate goes together on another one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres import gate_facts as gate
from healer.adapters.postgres.engine import ledger_errors
from healer.adapters.postgres.gate_facts import Case, Judging, lost
from healer.adapters.postgres.holding import (
    Locks,
    Taken,
    change,
    free_leases,
    incidents_of,
    prove,
    take,
)
from healer.adapters.postgres.lane import Lane
from healer.adapters.postgres.lines import Lines, store
from healer.adapters.postgres.references import read_references
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tables import incidents, permits
from healer.adapters.postgres.tables import messages as queued
from healer.model import (
    ENDED_RUN_STATES,
    AuditRecord,
    Command,
    GateFacts,
    Incident,
    LogEntry,
    Message,
    NodeHistory,
    Permit,
    Reference,
    RemedyUse,
    Run,
    RunState,
    Ticket,
    audit_record,
)
from healer.ports.clock import Clock
from healer.ports.commanding import ALONE
from healer.ports.lease import FRESH_S, LEASE, PROOFS, Left
from healer.ports.transactions import GateTx, LeaseLost, LedgerAway

T = TypeVar("T")


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
    """`over`: nothing of it is under way here any more, though its lease stands."""

    run: str
    session: int
    over: bool


@dataclass(frozen=True)
class _Look:
    incident: str


@dataclass(frozen=True)
class _Paused:
    """Whether any pause stands."""


_Item = _Take | _Write | _Give | _Look | _Paused


class Claims:
    """One process's claims. `stopwatch`: seconds that no change of the clock touches."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        cluster: str,
        snapshots: PostgresSnapshots,
        clock: Clock,
        has_sink: bool,
        stopwatch: Callable[[], float],
    ) -> None:
        self.engine, self.cluster = engine, cluster
        self.clock, self.has_sink, self.stopwatch = clock, has_sink, stopwatch
        self._left, self._locks = Left(stopwatch), Locks()
        self.lane = Lane[_Item](engine, self._work)
        self.snapshots = snapshots
        self.gate = Lane[Case](engine, Judging(snapshots, clock, has_sink=has_sink))

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
        """One transaction. `_Give` comes first, so that a run may be taken anew in the same."""
        now, since_s, session = self.clock.now(), self.stopwatch(), self.lane.session
        locks = self._locks.of(session)
        gives = [one for one in items if isinstance(one, _Give) and one.session == session]
        for give in gives:
            locks.release(give.run)
        if overs := [give.run for give in gives if give.over]:
            with conn.begin():
                free_leases(conn, overs)
        writes = [one for one in items if isinstance(one, _Write) and one.session == session]
        looks = {one.incident for one in items if isinstance(one, _Look)}
        with conn.begin():
            wanted = locks.lock(conn, [one.run for one in items if isinstance(one, _Take)])
            taken = take(conn, wanted, self._left, now, session=session, since_s=since_s)
            mine = prove(conn, [one.run for one in writes if not one.ends], now + LEASE)
            mine |= change(conn, [one.run for one in writes if one.ends])
            lines = [one.lines for one in writes if one.run.id in mine]
            store(conn, self.cluster, lines, at=now, has_sink=self.has_sink)
            shown = incidents_of(conn, sorted(looks))
            asked = any(isinstance(one, _Paused) for one in items)
            paused = asked and bool(gate.read_pauses(conn, self.cluster, now))
            locks.unlock(conn, but=taken)
        locks.hold(taken)
        results: list[object] = []
        for one in items:
            match one:
                case _Take():
                    results.append(taken.pop(one.run, None))
                case _Look():
                    results.append(shown.get(one.incident))
                case _Paused():
                    results.append(paused)
                case _Give():
                    results.append(None)
                case _Write() if one.session != session:
                    results.append(LedgerAway(f"the session that held run {one.run.id} is gone"))
                case _Write() if one.run.id in mine:
                    results.append((now + LEASE, since_s))
                case _Write():
                    results.append(ALONE if len(writes) > 1 else lost(one.run))
        return results


# Wide: implements `ports.RunClaim`.
class PostgresClaim:
    """`healer.ports.transactions.RunClaim`. Every write extends the lease, and takes with it what was kept
    for it."""

    def __init__(self, claims: Claims, taken: Taken) -> None:
        self.run = taken.run
        self._claims, self._clock, self._engine = claims, claims.clock, claims.engine
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
        """As it stands now: the detector may have changed it since the last step."""
        known, self._fresh = self._fresh, None
        if known is not None or self.run.incident is None:
            return known
        with ledger_errors():
            return self._claims.lane.do(_Look(self.run.incident))

    def known_bad(self) -> set[str]:
        query = sa.select(incidents.c.doc).where(
            incidents.c.cluster == self.run.cluster,
            incidents.c.state != "resolved",
            incidents.c.doc["known_bad_in_service"].as_boolean(),
        )
        with ledger_errors(), self._engine.connect() as conn:
            docs = conn.execute(query).scalars()
            return {name for doc in docs for name in msgspec.convert(doc, Incident).bad_nodes}

    def references(self) -> list[Reference]:
        with ledger_errors(), self._engine.connect() as conn:
            return read_references(conn, self.run.cluster)

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
        with ledger_errors(), self._engine.connect() as conn:
            rows = conn.execute(mine).all()
            filed = sa.select(queued.c.incident).where(
                queued.c.kind == "ticket", queued.c.incident.in_([row.id for row in rows])
            )
            ticketed = frozenset(conn.execute(filed).scalars())
        found = tuple(msgspec.convert(row.doc, Incident) for row in rows)
        return NodeHistory(incidents=found, ticketed=ticketed)

    def permits(self) -> list[Permit]:
        query = sa.select(permits.c.doc).where(
            permits.c.cluster == self.run.cluster, permits.c.at > self._clock.now() - gate.PERMITS_KEPT
        )
        with ledger_errors(), self._engine.connect() as conn:
            return [msgspec.convert(doc, Permit) for doc in conn.execute(query).scalars()]

    def facts(self, playbooks: Sequence[str]) -> GateFacts:
        now = self._clock.now()
        with ledger_errors(), self._engine.connect() as conn:
            facts = gate.read_facts(conn, self.run.cluster, self._claims.snapshots, now)
            sweeps = gate.read_sweeps(conn, self.run.cluster, playbooks, now)
        return msgspec.structs.replace(facts, sweeps=sweeps)

    def paused(self) -> bool:
        with ledger_errors():
            return self._claims.lane.do(_Paused())

    def fence(self) -> bool:
        if self.run.lease_until is None:
            raise LeaseLost(f"run {self.run.id} is not held")
        for proofs in range(PROOFS):
            if self._claims.stopwatch() - self._renewed_s <= FRESH_S:
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
        self,
        entry: LogEntry,
        *,
        audit: AuditRecord | None = None,
        drained: RemedyUse | None = None,
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
        tell: Command | None = None,
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
        lines = Lines(commands=[] if tell is None else [self._named(tell)])
        if state in {RunState.stuck, *ENDED_RUN_STATES}:
            about = {"why": why, "incident": self.run.incident, "playbook": self.run.playbook}
            run = self.run
            record = audit_record(run.cluster, now, run.by, f"run.{state}", f"run/{run.id}", **about)
            lines.audits.append(record)
        with ledger_errors():
            self._claims.lane.do(_Write(self.run, self._session, self._kept.then(lines), ends=True))
        self._kept = Lines()

    def keep(self, entry: LogEntry) -> None:
        self._kept.entries.append(entry)

    def tell(self, command: Command) -> None:
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
