"""Drift between healer's book and Slurm: read in one look, and repaired as people's commands are."""

from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres import audit, gate
from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tables import incidents, runs
from healer.decisions.drift import drifts
from healer.decisions.guards import pause, stale
from healer.model import (
    ENDED_RUN_STATES,
    AnswerKind,
    AuditRecord,
    GateFacts,
    Incident,
    Proposal,
    Ruleset,
    Run,
    SlurmNode,
    Verb,
)
from healer.model.drift import Drift, Reconciled, Repair
from healer.model.notes import is_our_note
from healer.ports.clock import Clock
from healer.ports.people_commands import RunCommands, RunRequest
from healer.ports.request_errors import Conflict, GuardRefused, NotFound
from healer.ports.slurm import Scheduler, SchedulerError

_ENDED = [str(state) for state in ENDED_RUN_STATES]
#: These are runs of playbooks: the gate judges them, and a worker does them.
_PLAYBOOKS = {Repair.validate: "validate", Repair.release: "release"}


class PostgresReconcile:
    """`healer.ports.people_commands.Reconcile`."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        snapshots: PostgresSnapshots,
        scheduler: Scheduler,
        runs: RunCommands,
        rules: Callable[[], Ruleset],
        clock: Clock,
    ) -> None:
        self._engine, self._snapshots, self._scheduler = engine, snapshots, scheduler
        self._runs, self._rules, self._clock = runs, rules, clock

    def drifts(self, cluster: str) -> list[Drift]:
        now = self._clock.now()
        with translated(), self._engine.connect() as conn:
            return self._look(conn, gate.read_facts(conn, cluster, self._snapshots, now))

    def _look(self, conn: sa.Connection, facts: GateFacts) -> list[Drift]:
        going = conn.execute(
            sa.select(runs.c.doc).where(runs.c.cluster == facts.cluster, runs.c.state.not_in(_ENDED))
        ).scalars()
        standing = conn.execute(
            sa.select(incidents.c.doc).where(
                incidents.c.cluster == facts.cluster, incidents.c.state != "resolved"
            )
        ).scalars()
        return drifts(
            facts,
            [msgspec.convert(doc, Run) for doc in going],
            [msgspec.convert(doc, Incident) for doc in standing],
            self._clock.now(),
        )

    def repair(self, cluster: str, *, by: str, reason: str, request: str) -> list[Reconciled]:
        return [self._one(drift, by, reason, request) for drift in self.drifts(cluster)]

    def _one(self, drift: Drift, by: str, reason: str, request: str) -> Reconciled:
        told = f"{request}|{drift.kind}|{drift.node}|{drift.name}"
        name = f"r{sha256(told.encode()).hexdigest()[:23]}"
        try:
            if drift.repair in _PLAYBOOKS:
                return self._run(drift, by, reason, name)
            if drift.repair is Repair.cancel_run:
                self._runs.cancel(drift.name, by=by, reason=reason, request=name)
                return Reconciled(drift=drift, done=True, text=f"run {drift.name} is cancelled")
            return self._now(drift, by, reason)
        except GuardRefused as error:
            return Reconciled(drift=drift, done=False, text=f"{error.answer.guard}: {error}")
        except (Conflict, NotFound, SchedulerError) as error:
            return Reconciled(drift=drift, done=False, text=str(error))

    def _run(self, drift: Drift, by: str, reason: str, name: str) -> Reconciled:
        playbook = _PLAYBOOKS[drift.repair]
        on_job = drift.repair is Repair.release
        run = self._runs.start(
            RunRequest(
                id=name,
                playbook=playbook,
                cluster=drift.cluster,
                by=by,
                reason=reason,
                node=None if on_job else drift.node,
                job=drift.name if on_job else None,
            )
        )
        return Reconciled(drift=drift, done=True, text=f"run {run.id} of {playbook}: {run.state}", run=run.id)

    def _now(self, drift: Drift, by: str, reason: str) -> Reconciled:
        """What takes nothing from anybody: at once, where the gate's lock shows that it still is so."""
        now = self._clock.now()
        with translated(), self._engine.begin() as conn:
            facts = gate.lock_gate(conn, drift.cluster, self._snapshots, now)
            if drift not in self._look(conn, facts):
                return Reconciled(drift=drift, done=False, text="it is so no more")
            asked = Proposal(cluster=drift.cluster, verb=Verb.undrain, node=drift.node, by=by)
            for guard in (pause, stale):
                answer = guard(asked, facts, self._rules(), now)
                if answer.kind is not AnswerKind.allow:
                    return Reconciled(drift=drift, done=False, text=f"{answer.guard}: {answer.why}")
            if drift.repair is Repair.free_slot:
                gate.release_slot(conn, drift.cluster, drift.node or "", at=now, why=f"{by}: {reason}")
                audit.append(conn, _record(drift, now, by, reason))
                return Reconciled(drift=drift, done=True, text=drift.would)
        # Not under the lock: a slow Slurm would hold up every drain.
        error = self._in_slurm(drift)
        with translated(), self._engine.begin() as conn:
            audit.append(conn, _record(drift, self._clock.now(), by, reason, error))
        return Reconciled(drift=drift, done=error is None, text=error or drift.would)

    def _in_slurm(self, drift: Drift) -> str | None:
        """Does it, and reads it back whatever the call said; why it is not so, or None."""
        said = ""
        try:
            if drift.repair is Repair.end_reservation:
                self._scheduler.unreserve(drift.name)
            else:
                self._clear(self._scheduler.node(drift.node or ""))
        except SchedulerError as error:
            said = f": {error}"
        try:
            stands = self._stands(drift)
        except SchedulerError as error:
            return f"whether it was done is not known: {error}"
        return f"it stands in Slurm all the same{said}" if stands else None

    def _stands(self, drift: Drift) -> bool:
        if drift.repair is Repair.end_reservation:
            return drift.name in self._scheduler.snapshot().reservations
        return bool(_notes(self._scheduler.node(drift.node or "")))

    def _clear(self, node: SlurmNode) -> None:
        if ours := _notes(node):
            self._scheduler.annotate(node.name, **dict.fromkeys(ours, ""))


def _notes(node: SlurmNode) -> set[str]:
    return {name for name in ("comment", "extra") if is_our_note(getattr(node, name))}


def _record(drift: Drift, at: datetime, by: str, reason: str, error: str | None = None) -> AuditRecord:
    data: dict[str, Any] = {"reason": reason, "what": drift.what, "name": drift.name}
    if error is not None:
        data |= {"repair": str(drift.repair), "text": error}
    return AuditRecord(
        cluster=drift.cluster,
        at=at,
        actor=by,
        verb=f"reconcile.{drift.repair if error is None else 'failed'}",
        subject=f"node/{drift.node}" if drift.node else f"reservation/{drift.name}",
        data=data,
    )
