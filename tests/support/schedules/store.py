"""PostgreSQL as the processes of a schedule see it: one set of tables, sessions with locks, leases, an inbox.

A transaction is one atomic step, as the gate's lock and the epochs make it; between two of them
anything may happen. What dies with a session (locks, the detector's lead) and what outlives it (leases,
everything committed) is as in `healer.adapters.postgres`.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from healer.adapters.postgres.claims import Left
from healer.model import (
    Breaker,
    Command,
    Component,
    Controller,
    Observation,
    ObservationKind,
    Run,
    RunState,
    Slot,
    SlurmSnapshot,
)
from healer.ports.lease import FRESH_S, LEASE, PROOFS, is_awake, is_unheard
from healer.ports.transactions import LeaseLost, LedgerAway
from healer.sim.memory_ledger import MemoryClaim, MemoryLedger, MemoryTx, Tables
from healer.sim.stores import MemoryCheckpoints
from healer.text import from_stored, stored_json, to_stored
from tests.support.schedules.processes import Process, Session


class Store:
    """All that is committed, and which session holds what."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.tables = Tables(breaker=Breaker(cluster=cluster))
        self.snapshot: SlurmSnapshot | None = None
        self.checkpoints = MemoryCheckpoints()
        self.signals: list[Observation] = []
        self.unconsumed: dict[str, Observation] = {}
        self.leader: Session | None = None
        self.locks: dict[str, Session] = {}
        self.leases: dict[str, datetime] = {}
        #: Node -> when it was last given back.
        self.returned: dict[str, datetime] = {}
        #: Celery's queue: runs to be advanced. Messages may be lost or come twice.
        self.queue: list[str] = []
        self.commits = 0
        self.on_grant: Callable[[Slot], None] = lambda _: None

    def cut(self, session: Session) -> None:
        """The session is gone: its locks are free."""
        session.alive = False
        self.locks = {run: held for run, held in self.locks.items() if held is not session}
        if self.leader is session:
            self.leader = None

    def add(self, observations: Sequence[Observation]) -> None:
        for one in observations:
            if all(one.digest != known.digest for known in self.signals):
                self.signals.append(one)
                self.unconsumed[one.digest] = one

    # --- ports.Inbox and ports.Snapshots, for the detector

    def latest(self, cluster: str) -> SlurmSnapshot | None:
        return self.snapshot

    def controller(self, cluster: str) -> Controller | None:
        return None

    def since(self, moment: datetime) -> list[Observation]:
        return [one for one in self.signals if one.arrived_at >= moment and one.digest not in self.unconsumed]

    def alerts(self, moment: datetime) -> list[Observation]:
        return []

    def batch(self, limit: int) -> list[Observation]:
        commands = [_observed(self.cluster, one) for one in self.tables.commands]
        return [*self.unconsumed.values(), *commands][:limit]


def _observed(cluster: str, command: Command) -> Observation:
    return Observation(
        digest=f"command-{hash(stored_json(command))}",
        kind=ObservationKind.command,
        component=Component(cluster=cluster),
        event_at=command.at,
        arrived_at=command.at,
        data=to_stored(command),
    )


class ProcessLedger(MemoryLedger):
    """`ports.Ledger` of one process. `leads`: what it commits, it commits as the detector."""

    def __init__(self, store: Store, process: Process, *, leads: bool = False) -> None:
        self.store, self.process, self._leads = store, process, leads
        self._made = False
        super().__init__(store.cluster, process.clock)
        self._made = True
        self._left = Left(process.clock.monotonic)
        self.checkpoints = store.checkpoints

    @property
    def tables(self) -> Tables:
        return self.store.tables

    @tables.setter
    def tables(self, tables: Tables) -> None:
        if self._made:  # the constructor's own are empty
            self.store.tables = tables

    @property
    def snapshot(self) -> SlurmSnapshot | None:
        return self.store.snapshot

    @snapshot.setter
    def snapshot(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, snapshot: SlurmSnapshot | None
    ) -> None:
        if snapshot is not None:
            self.store.snapshot = snapshot

    def alive(self) -> None:
        """A pool gives another connection for a broken one; the detector has only the one with its lock."""
        session = self.process.session
        if session.alive:
            return
        if not self._leads:
            self.process.session = Session(self.process.name)
        raise LedgerAway("the session was cut")

    @contextmanager
    def transaction(self) -> Iterator["ProcessTx"]:
        self.process.point("begin")
        self.alive()
        kept = self.tables
        self.store.tables = _copy_of(kept)
        try:
            tx = ProcessTx(self)
            yield tx
        except BaseException:
            self.store.tables = kept
            raise
        self.store.commits += 1
        tx.committed()
        self.process.point("committed")

    @contextmanager
    def claim(self, run: str) -> Iterator["ProcessClaim | None"]:
        self.process.point("claim")
        self.alive()
        store, session, now = self.store, self.process.session, self.clock.now()
        known = store.tables.runs.get(run)
        if (
            known is None
            or run in store.locks
            or known.state is not RunState.running
            or not is_awake(known.wake_at, now)
        ):
            yield None
            return
        if run in store.leases and self._left.epoch(run) != known.epoch:
            self._left.seen(run, known.epoch)
            yield None
            return
        self._left.taken(run)
        store.locks[run] = session
        try:
            yield ProcessClaim(self, known, session)
        except LeaseLost:
            if store.locks.get(run) is session:  # the connection is still open, and with it the lock
                store.leases.pop(run, None)
            raise
        finally:
            if store.locks.get(run) is session:
                del store.locks[run]

    def due_runs(self, now: datetime, *, sent: timedelta = timedelta(0)) -> list[str]:
        due = super().due_runs(now, sent=sent)
        return [one for one in due if is_unheard(self.store.leases.get(one), now)]

    # --- the detector's inbox

    def unconsumed(self, limit: int) -> list[Observation]:
        self.alive()
        return self.store.batch(limit)

    def since(self, moment: datetime, *, lines: datetime) -> list[Observation]:
        return self.store.since(moment)

    def alerts(self, moment: datetime) -> list[Observation]:
        return []


def _copy_of(tables: Tables) -> Tables:
    """Other processes see what a transaction writes once it is committed."""
    copies = {name: copy.copy(value) for name, value in vars(tables).items()}
    copies["log"] = {run: list(entries) for run, entries in tables.log.items()}
    return Tables(**copies)


class ProcessTx(MemoryTx):
    """What it does beside the tables is done when it is committed."""

    def __init__(self, ledger: ProcessLedger) -> None:
        super().__init__(ledger)
        self.store, self._now = ledger.store, ledger.clock.now
        self._after: list[Callable[[], object]] = []

    def committed(self) -> None:
        for one in self._after:
            one()

    def at_work(self, batch: Sequence[Observation]) -> tuple[list[Run], set[str]]:
        left = list(self._tables.commands)
        for one in _commands(batch):
            if one in left:
                left.remove(one)
        return self.active_runs(), {one.incident for one in left if one.incident is not None}

    def consume(self, observations: Sequence[Observation]) -> None:
        for one in _commands(observations):
            if one in self._tables.commands:
                self._tables.commands.remove(one)
        digests = [one.digest for one in observations]
        self._after.append(lambda: [self.store.unconsumed.pop(digest, None) for digest in digests])

    def grant_slot(self, slot: Slot) -> None:
        if slot.node not in self._tables.slots:
            self._after.append(lambda: self.store.on_grant(slot))
        super().grant_slot(slot)

    def release_slot(self, node: str, *, at: datetime, why: str) -> None:
        super().release_slot(node, at=at, why=why)
        self._after.append(lambda: self.store.returned.update({node: at}))

    def lease(self, run: str, until: datetime | None) -> None:
        def done() -> None:
            if until is None:
                self.store.leases.pop(run, None)
            else:
                self.store.leases[run] = until

        self._after.append(done)


def _commands(batch: Sequence[Observation]) -> list[Command]:
    return [from_stored(one.data, Command) for one in batch if one.kind is ObservationKind.command]


class ProcessClaim(MemoryClaim):
    """As `PostgresClaim`: a lease by the holder's clock, renewed by each write, proven before an effect."""

    def __init__(self, ledger: ProcessLedger, run: Run, session: Session) -> None:
        super().__init__(ledger, run)
        self._of, self._session = ledger, session
        ledger.store.leases[run.id] = ledger.clock.now() + LEASE
        self._renewed_s = ledger.process.clock.monotonic()
        self._leaves = False
        ledger.store.commits += 1

    def fence(self) -> bool:
        for proofs in range(PROOFS):
            if self._of.process.clock.monotonic() - self._renewed_s <= FRESH_S:
                return proofs > 0
            with self._written():
                pass
        raise LeaseLost("not proven in time")

    def set_state(self, state: RunState, **fields) -> None:  # type: ignore[no-untyped-def]
        self._leaves = True
        super().set_state(state, **fields)

    @contextmanager
    def _written(self) -> Iterator[MemoryTx]:
        begun_s, until = self._of.process.clock.monotonic(), self._of.clock.now() + LEASE
        if not self._session.alive:
            raise LedgerAway("the connection that holds the run is gone")
        with super()._written() as tx:
            yield tx
            assert isinstance(tx, ProcessTx)
            tx.lease(self.run.id, None if self._leaves else until)
        self._renewed_s = begun_s
