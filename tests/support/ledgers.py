"""The ledger in memory and the one on PostgreSQL under one drive, and small nouns to put into them."""

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres import tables
from healer.adapters.postgres.audit_rows import RECORD, record_of
from healer.adapters.postgres.claims import LedgerParts
from healer.adapters.postgres.engine import write_docs
from healer.adapters.postgres.inbox import CONSUME, PostgresInbox
from healer.adapters.postgres.incident_rows import verdicts_of
from healer.adapters.postgres.ledger import PostgresLedger
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.model import (
    AuditRecord,
    Command,
    CommandKind,
    Component,
    Decision,
    FaultClass,
    Finding,
    GateFacts,
    Incident,
    LogEntry,
    Message,
    Mode,
    Observation,
    ObservationKind,
    Outcome,
    Pause,
    Run,
    RunState,
    Severity,
    Slot,
    SlurmSnapshot,
    StepEvent,
    VerdictAt,
)
from healer.ports.transactions import RunClaim
from healer.sim.memory_ledger import MemoryLedger
from healer.sim.sim_clock import SimClock
from healer.sim.stores import MemoryCheckpoints
from healer.text import from_stored

START = datetime(2026, 11, 20, 3, tzinfo=UTC)
CLUSTER = "pod1"
#: Longer than the lease of a worker that died.
LEASE_S = 21


def consume(conn: sa.Connection, observations: Sequence[Observation], at: datetime) -> None:
    """As a walk marks the rows of its batch."""
    write_docs(conn, CONSUME, [seen.inbox_id for seen in observations], at=at)


def lock_waits(conn: sa.Connection) -> int:
    """How many sessions of this database wait for a lock. `conn` commits each statement: within a transaction
    the view does not change."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    return conn.execute(sa.text(f"{waiting} AND wait_event_type = 'Lock'")).scalar_one()


class Bench(Protocol):
    """A ledger under test, and what others write into it or read from it."""

    clock: SimClock

    @property
    def ledger(self) -> "MemoryLedger | PostgresLedger": ...

    def show(self, snapshot: SlurmSnapshot) -> None: ...
    def pause(self, pause: Pause) -> None: ...
    def mode(self, rule: str, mode: Mode) -> None: ...
    def decisions(self) -> list[Decision]: ...
    def findings(self) -> list[tuple[str, Finding]]: ...
    def verdicts(self, incident: str) -> list[VerdictAt]: ...
    def save(self, checkpoint: Observation) -> None: ...
    def audited(self) -> list[str]: ...
    def records(self) -> list[AuditRecord]: ...
    def messages(self) -> list[str]: ...
    def commands(self) -> list[Command]: ...


class MemoryBench:
    def __init__(self) -> None:
        self.clock = SimClock(START)
        self.ledger = MemoryLedger(CLUSTER, self.clock)
        self.saved = self.ledger.checkpoints = MemoryCheckpoints()

    def show(self, snapshot: SlurmSnapshot) -> None:
        self.ledger.snapshot = snapshot

    def pause(self, pause: Pause) -> None:
        self.ledger.tables.pauses.append(pause)

    def mode(self, rule: str, mode: Mode) -> None:
        self.ledger.tables.modes[rule] = mode

    def decisions(self) -> list[Decision]:
        return self.ledger.tables.decisions

    def findings(self) -> list[tuple[str, Finding]]:
        return self.ledger.tables.findings

    def verdicts(self, incident: str) -> list[VerdictAt]:
        return list(self.ledger.tables.verdicts.get(incident, ()))

    def save(self, checkpoint: Observation) -> None:
        self.saved.hear([checkpoint])

    def audited(self) -> list[str]:
        return [one.verb for one in self.records()]

    def records(self) -> list[AuditRecord]:
        return self.ledger.tables.audit

    def messages(self) -> list[str]:
        return list(self.ledger.tables.messages)

    def commands(self) -> list[Command]:
        return self.ledger.tables.commands


class PostgresBench:
    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.clock = SimClock(START)
        self.snapshots = PostgresSnapshots(engine)
        self.ledger = PostgresLedger(
            LedgerParts(
                engine=engine,
                cluster=CLUSTER,
                snapshots=self.snapshots,
                clock=self.clock,
                has_sink=False,
                stopwatch=lambda: self.clock.now().timestamp(),
            )
        )

    def show(self, snapshot: SlurmSnapshot) -> None:
        self.snapshots.put(snapshot)

    def pause(self, pause: Pause) -> None:
        self._insert(tables.pauses, **msgspec.structs.asdict(pause))

    def mode(self, rule: str, mode: Mode) -> None:
        self._insert(tables.rule_modes, rule=rule, mode=mode, by="ann", reason="x", at=self.clock.now())

    def decisions(self) -> list[Decision]:
        rows = self._read(sa.select(tables.decisions.c.doc).order_by(tables.decisions.c.id))
        return [from_stored(row.doc, Decision) for row in rows]

    def findings(self) -> list[tuple[str, Finding]]:
        rows = self._read(sa.select(tables.findings).order_by(tables.findings.c.id))
        return [(row.incident, from_stored(row.doc, Finding)) for row in rows]

    def verdicts(self, incident: str) -> list[VerdictAt]:
        with self.engine.connect() as conn:
            return verdicts_of(conn, incident)

    def save(self, checkpoint: Observation) -> None:
        PostgresInbox(self.engine, CLUSTER).add([checkpoint])

    def audited(self) -> list[str]:
        return [one.verb for one in self.records()]

    def records(self) -> list[AuditRecord]:
        rows = self._read(sa.select(*RECORD).order_by(tables.audit_records.c.id))
        return [record_of(row) for row in rows]

    def messages(self) -> list[str]:
        return [row.id for row in self._read(sa.select(tables.messages.c.id).order_by(tables.messages.c.at))]

    def commands(self) -> list[Command]:
        seen = PostgresInbox(self.engine, CLUSTER).unconsumed(100)
        return [from_stored(one.data, Command) for one in seen if one.kind is ObservationKind.command]

    def _insert(self, table: sa.Table, **values: Any) -> None:
        with self.engine.begin() as conn:
            conn.execute(sa.insert(table).values(**values))

    def _read(self, query: Any) -> Sequence[Any]:
        with self.engine.connect() as conn:
            return conn.execute(query).all()


def bench_of(request: pytest.FixtureRequest) -> Bench:
    """For a fixture with the params `memory` and `postgres`."""
    if request.param == "memory":
        return MemoryBench()
    return PostgresBench(request.getfixturevalue("fresh_database"))


def node(number: int = 1) -> str:
    return f"gpu{number:04d}"


def ago(seconds: float = 0, **span: float) -> datetime:
    return START - timedelta(seconds=seconds, **span)


def incident(number: int = 1, **fields: Any) -> Incident:
    given: dict[str, Any] = {
        "id": f"{number:032x}",
        "cluster": CLUSTER,
        "rule": "gpu-lost",
        "fault": "xid-79",
        "fault_class": FaultClass.fatal,
        "title": "GPU fell off the bus",
        "root": Component(cluster=CLUSTER, node=node(number), gpu=3),
        "opened": START,
        "updated": START,
        "settle_until": START,
        "severity": Severity.P1,
    }
    return Incident(**(given | fields))


def run(name: str = "r1", number: int | None = 1, **fields: Any) -> Run:
    given: dict[str, Any] = {
        "id": name,
        "cluster": CLUSTER,
        "playbook": "gpu-fatal",
        "state": RunState.running,
        "by": "healer",
        "reason": "GPU fell off the bus",
        "created_at": START,
        "node": node(number) if number else None,
        "rule": "gpu-lost",
    }
    return Run(**(given | fields))


def slot(number: int = 1, **fields: Any) -> Slot:
    given: dict[str, Any] = {"cluster": CLUSTER, "node": node(number), "incident": None, "run": "r1"}
    given["granted_at"] = START
    return Slot(**(given | fields))


def entry(step: str = "drain", event: StepEvent = StepEvent.done, **fields: Any) -> LogEntry:
    given: dict[str, Any] = {"run": "r1", "at": START, "epoch": 1, "step": step, "event": event}
    return LogEntry(**(given | fields))


def record(verb: str = "node.drained") -> AuditRecord:
    return AuditRecord(cluster=CLUSTER, at=START, actor="healer", verb=verb, subject="node/gpu0001")


def decision(**fields: Any) -> Decision:
    given: dict[str, Any] = {"at": START, "cluster": CLUSTER, "incident": None, "playbook": "gpu-fatal"}
    return Decision(**(given | {"outcome": Outcome.act, "why": "every guard allows it"} | fields))


def message(name: str = "m1") -> Message:
    return Message(id=name, cluster=CLUSTER, title="t", text="x", severity=Severity.P0, page=True)


def command(kind: CommandKind = CommandKind.jobs_hit, **data: Any) -> Command:
    return Command(kind=kind, cluster=CLUSTER, at=START, by="healer", incident="i", data=data)


def begin(bench: Bench, *runs: Run) -> None:
    with bench.ledger.transaction() as tx:
        for one in runs:
            tx.create_run(one)


def facts(bench: Bench) -> GateFacts:
    with bench.ledger.transaction() as tx:
        return tx.lock_gate()


def claimed(stack: ExitStack, bench: Bench, name: str = "r1") -> RunClaim:
    claim = stack.enter_context(bench.ledger.claim(name))
    assert claim is not None
    return claim


def free(bench: Bench, name: str = "r1") -> bool:
    with bench.ledger.claim(name) as claim:
        return claim is not None


def pass_lease(bench: Bench, name: str = "r1") -> None:
    """A worker left the run without a word: another one looks at it, and may take it a lease later."""
    free(bench, name)
    bench.clock.advance(LEASE_S)


class Broken(Exception):
    """What goes wrong at the end of a transaction."""
