"""What runs ask the gate, several in one transaction: the lock is taken once, and the picture read once.

One proposal is judged after the other, the most urgent first. As soon as one of them has changed what guards
look at, it is read anew for the next.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres import gate
from healer.adapters.postgres.holding import prove
from healer.adapters.postgres.lane import ALONE
from healer.adapters.postgres.lines import Lines, store
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tables import requeues, runs
from healer.model import (
    ENDED_RUN_STATES,
    AuditRecord,
    Breaker,
    Decision,
    GateFacts,
    LogEntry,
    RemedyUse,
    RequeueUse,
    Run,
    Slot,
    StepEvent,
    Sweeps,
)
from healer.ports.clock import Clock
from healer.ports.lease import LEASE
from healer.ports.transactions import AlreadyRequeued, GateTx, LeaseLost

_ENDED = [str(state) for state in ENDED_RUN_STATES]


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
            facts = gate.lock_gate(conn, cluster, self._snapshots, now)
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
                    facts = gate.read_facts(conn, cluster, self._snapshots, now, breaker=None)
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
        return gate.read_sweeps(self._conn, self._run.cluster, playbooks, since)

    def add_decision(self, decision: Decision) -> None:
        self.lines.decisions.append(decision)

    def write(self, entry: LogEntry) -> None:
        self.lines.entries.append(entry)
        self.changed |= entry.event is not StepEvent.started

    def grant_slot(self, slot: Slot) -> None:
        self.changed = True
        gate.grant_slot(self._conn, slot)

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
        gate.save_breaker(self._conn, breaker)

    def audit(self, record: AuditRecord) -> None:
        self.lines.audits.append(record)
