"""Where healer's records and Slurm differ, and the repair of that: as people's commands, through the gate."""

from collections.abc import Callable
from datetime import datetime
from hashlib import sha256

from healer.decisions.book_mismatch import find_mismatches
from healer.decisions.guards import pause, stale
from healer.engine.command import Commands
from healer.model import (
    Answer,
    AnswerKind,
    AuditRecord,
    GateFacts,
    Proposal,
    Ruleset,
    RunState,
    Verb,
    audit_record,
)
from healer.model.node import Drift, Reconciled, Repair
from healer.ports.clock import Clock
from healer.ports.commanding import CommandTx, RunRequest
from healer.ports.request_errors import Conflict, GuardRefused, Invalid, NotFound
from healer.text import Said, quoted, say

#: What changes Slurm is a run of a playbook: the gate judges it, and a worker does it.
_PLAYBOOKS = {
    Repair.validate: "validate",
    Repair.release: "release",
    Repair.end_reservation: "tidy",
    Repair.clear_note: "tidy",
}


class Reconciler:
    """Raises Unavailable, and NotFound for a cluster that is none."""

    def __init__(self, commands: Commands, rules: Callable[[], Ruleset], clock: Clock) -> None:
        self._commands, self._rules, self._clock = commands, rules, clock

    def drifts(self, cluster: str) -> list[Drift]:
        with self._commands.site(cluster).ledger.command() as tx:
            return _differences(tx, tx.read_gate(), self._clock.now())

    def repair(self, cluster: str, *, by: str, reason: str, request: str) -> list[Reconciled]:
        """Each that is healer's own, through the gate and into the audit."""
        return [self._repair(drift, by, reason, request) for drift in self.drifts(cluster)]

    def _repair(self, drift: Drift, by: str, reason: str, request: str) -> Reconciled:
        about = f"{request}|{drift.kind}|{drift.node}|{drift.name}"
        name = f"r{sha256(about.encode()).hexdigest()[:23]}"
        try:
            if drift.repair in _PLAYBOOKS:
                return self._start(drift, by, reason, name)
            if drift.repair is Repair.cancel_run:
                self._commands.cancel(drift.name, by=by, reason=reason, request=name)
                return Reconciled(drift=drift, done=True, text=say("engine.is_cancelled", run=drift.name))
            return self._free_slot(drift, by, reason)
        except GuardRefused as error:
            return Reconciled(drift=drift, done=False, text=_guard_says(error.answer))
        except (Conflict, Invalid, NotFound) as error:
            return Reconciled(drift=drift, done=False, text=quoted(error.args[-1]))

    def _start(self, drift: Drift, by: str, reason: str, name: str) -> Reconciled:
        playbook = _PLAYBOOKS[drift.repair]
        on_job = drift.repair is Repair.release
        run = self._commands.start(
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
        held = run.state is RunState.held
        about = {"run": run.id, "playbook": playbook, "state": say(f"words.run_{run.state}")}
        text = say("engine.run_of", **about)
        if held:
            text = say("engine.run_of_held", question=run.question, **about)
        return Reconciled(drift=drift, done=not held, text=text, run=run.id)

    def _free_slot(self, drift: Drift, by: str, reason: str) -> Reconciled:
        """It is in healer's book alone: at once, where the gate's lock shows that it still is so."""
        now, site = self._clock.now(), self._commands.site(drift.cluster)
        with site.ledger.command() as tx:
            facts = tx.lock_gate()
            if drift not in _differences(tx, facts, now):
                return Reconciled(drift=drift, done=False, text=say("engine.no_more"))
            asked = Proposal(cluster=drift.cluster, verb=Verb.undrain, node=drift.node, by=by)
            for guard in (pause, stale):
                answer = guard(asked, facts, self._rules(), now)
                if answer.kind is not AnswerKind.allow:
                    return Reconciled(drift=drift, done=False, text=_guard_says(answer))
            tx.release_slot(drift.node or "", at=now, why=say("engine.by_person", who=by, reason=reason))
            tx.audit(_record(drift, now, by, reason))
            return Reconciled(drift=drift, done=True, text=drift.would)


def _guard_says(answer: Answer) -> Said:
    return say("engine.guard_says", guard=say(f"words.guard_{answer.guard}"), why=answer.why)


def _differences(tx: CommandTx, facts: GateFacts, now: datetime) -> list[Drift]:
    open_incidents = [incident for incident in tx.open_incidents() if incident.is_open]
    return find_mismatches(facts, tx.active_runs(), open_incidents, now)


def _record(drift: Drift, at: datetime, by: str, reason: str) -> AuditRecord:
    data = {"reason": reason, "what": drift.what, "name": drift.name}
    return audit_record(drift.cluster, at, by, f"reconcile.{drift.repair}", f"node/{drift.node}", **data)
