"""The ledger in memory, for replay and simulation: the Protocols of the one in PostgreSQL, in one process.

A transaction records how to undo its writes, so that a walk that fails leaves nothing behind.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from healer.model import (
    ENDED_RUN_STATES,
    AuditRecord,
    Breaker,
    Command,
    Component,
    FaultBurst,
    GateFacts,
    Incident,
    Inventory,
    LogEntry,
    Message,
    NodeHistory,
    Observation,
    ObservationKind,
    Permit,
    Reference,
    RemedyUse,
    Run,
    RunState,
    SlurmSnapshot,
    Sweeps,
    Ticket,
    Trial,
    probations,
)
from healer.ports.clock import Clock
from healer.ports.transactions import GateTx, LeaseLost
from healer.sim.ledger_reads import RECENT, gate_facts, node_history, record_texts, sweeps
from healer.sim.ledger_tables import Tables
from healer.sim.memory_tx import MemoryTx
from healer.sim.stores import MemoryCheckpoints
from healer.text import to_stored

__all__ = ["MemoryClaim", "MemoryLedger", "MemoryTx", "Tables"]

T = TypeVar("T")


# Wide: implements `ports.Ledger`, and what the detector reads from PostgreSQL directly.
class MemoryLedger:
    """`healer.ports.Ledger`. `snapshot` is Slurm's picture for the gate; the ledger's owner updates it."""

    def __init__(self, cluster: str, clock: Clock) -> None:
        self.cluster, self.clock = cluster, clock
        self.tables = Tables(breaker=Breaker(cluster=cluster))
        self.snapshot: SlurmSnapshot | None = None
        self.checkpoints = MemoryCheckpoints()
        self._claimed: set[str] = set()

    @contextmanager
    def transaction(self) -> Iterator["MemoryTx"]:
        tx = MemoryTx(self)
        try:
            yield tx
        except BaseException:
            tx.undo()
            raise

    @contextmanager
    def claim(self, run: str) -> Iterator["MemoryClaim | None"]:
        found = self.tables.runs.get(run)
        if found is None or not _is_due(found, self.clock.now()) or run in self._claimed:
            yield None
            return
        self._claimed.add(run)
        try:
            yield MemoryClaim(self, found)
        finally:
            self._claimed.discard(run)

    def bursts(self, since: datetime) -> list[FaultBurst]:
        recent = (burst for burst in self.tables.bursts.values() if burst.last_at >= since)
        return sorted(recent, key=lambda burst: (burst.last_at, burst.node, burst.part, burst.fault))

    def inventories(self) -> list[Inventory]:
        return list(self.tables.inventories.values())

    def note_texts(self, texts: Mapping[str, str], first_runs: int, now: datetime) -> list[Trial]:
        return record_texts(self.tables, self.cluster, texts, first_runs, now)

    def due_runs(self, now: datetime, *, sent: timedelta = timedelta(0)) -> list[str]:
        return [
            run.id
            for run in self.tables.active_runs()
            if _is_due(run, now) and (run.epoch > 0 or not now - sent < run.created_at <= now)
        ]

    def has_run(self, run: str) -> bool:
        return run in self.tables.runs

    def consumed(self, row: int) -> bool:
        command = list(self.tables.requests.values())[row]
        return command not in self.tables.commands

    def command(self) -> AbstractContextManager["MemoryTx"]:
        return self.transaction()

    def together(
        self,
        work: Callable[["MemoryTx", Sequence[T]], Sequence[object]],
        after: Callable[[Sequence[object]], None],
    ) -> Callable[[T], Any]:
        def do(item: T) -> Any:
            with self.transaction() as tx:
                [result] = work(tx, [item])
            after([result])
            if isinstance(result, BaseException):
                raise result
            return result

        return do

    def take_commands(self) -> list[Observation]:
        """What runs and people have sent since the last call, as the inbox would deliver it."""
        commands, self.tables.commands = self.tables.commands, []
        return [
            Observation(
                digest=f"command-{index}",
                kind=ObservationKind.command,
                component=Component(cluster=self.cluster),
                event_at=command.at,
                arrived_at=command.at,
                data=to_stored(command),
            )
            for index, command in enumerate(commands)
        ]

    def facts(self) -> GateFacts:
        return gate_facts(self.tables, self.cluster, self.snapshot, self.clock.now())

    def sweeps(self, playbooks: Sequence[str], since: datetime) -> Sweeps:
        return sweeps(self.tables, playbooks, since, self.clock.now())


def _is_due(run: Run, now: datetime) -> bool:
    return run.state is RunState.running and (run.wake_at is None or run.wake_at <= now)


# Wide: implements `ports.RunClaim`.
class MemoryClaim:
    """`healer.ports.RunClaim`. It never times out; as in PostgreSQL, a person who ends the run revokes it."""

    def __init__(self, ledger: MemoryLedger, run: Run) -> None:
        self._ledger = ledger
        self._kept: list[Callable[[MemoryTx], object]] = []
        self.run = msgspec.structs.replace(run, epoch=run.epoch + 1, wake_at=None)
        ledger.tables.runs[run.id] = self.run

    def log(self) -> list[LogEntry]:
        return list(self._ledger.tables.log.get(self.run.id, []))

    def incident(self) -> Incident | None:
        return self._ledger.tables.incidents.get(self.run.incident or "")

    def known_bad(self) -> set[str]:
        recent = self._ledger.tables.recent_incidents(self._ledger.clock.now() - RECENT)
        return {name for incident in recent if incident.is_open for name in incident.bad_nodes}

    def on_probation(self) -> dict[str, datetime]:
        tables, now = self._ledger.tables, self._ledger.clock.now()
        dropped = {node: until for node, until in tables.probations.items() if until > now}
        return dropped | probations(tables.incidents.values(), now)

    def references(self) -> list[Reference]:
        return list(self._ledger.tables.references.values())

    def facts(self, playbooks: Sequence[str]) -> GateFacts:
        sweeps = self._ledger.sweeps(playbooks, self._ledger.clock.now())
        return msgspec.structs.replace(self._ledger.facts(), sweeps=sweeps)

    def paused(self) -> bool:
        return bool(self._ledger.facts().pauses)

    def fence(self) -> bool:
        return False

    def gate(self, judge: Callable[[GateTx], T]) -> T:
        with self._written() as tx:
            tx.run_id, tx.facts = self.run.id, self._ledger.facts()
            return judge(tx)

    def write(
        self,
        entry: LogEntry,
        *,
        audit: AuditRecord | None = None,
        drained: RemedyUse | None = None,
    ) -> None:
        with self._written() as tx:
            tx.write(entry)
            if audit is not None:
                tx.audit(audit)
            if drained is not None:
                tx.mark_drained(drained)

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
        changed = msgspec.structs.replace(
            self.run,
            state=state,
            wake_at=wake_at,
            question=question,
            approve_until=approve_until,
            ended_at=self._ledger.clock.now() if state in ENDED_RUN_STATES else None,
        )
        with self._written() as tx:
            tx.undo.put(self._ledger.tables.runs, self.run.id, changed)
            if command is not None:
                tx.send_command(command)
        self.run = changed

    def history(self, node: str, since: datetime) -> NodeHistory:
        return node_history(self._ledger.tables, node, since)

    def permits(self) -> tuple[Permit, ...]:
        return self._ledger.facts().permits

    def keep(self, entry: LogEntry) -> None:
        self._kept.append(lambda tx: tx.write(entry))

    def send_command(self, command: Command) -> None:
        self._kept.append(lambda tx: tx.send_command(command))

    def queue_message(self, message: Message | Ticket) -> None:
        self._kept.append(lambda tx: tx.queue_message(message))

    def release_slot(self, node: str, *, why: str) -> None:
        at = self._ledger.clock.now()
        self._kept.append(lambda tx: tx.release_slot(node, at=at, why=why))

    @contextmanager
    def _written(self) -> Iterator[MemoryTx]:
        """One transaction that proves the claim and carries out what was kept for it."""
        with self._ledger.transaction() as tx:
            if self._ledger.tables.runs[self.run.id].epoch != self.run.epoch:
                raise LeaseLost(f"run {self.run.id} was ended by a person")
            for write in self._kept:
                write(tx)
            yield tx
        self._kept.clear()
