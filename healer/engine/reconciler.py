"""Differences between healer's records and Slurm, and their repair by people's commands, through the gate."""

from collections.abc import Callable
from datetime import datetime

from healer.decisions.book_mismatch import find_mismatches
from healer.engine.command import Commands
from healer.model import GateFacts, RunState
from healer.model.node import Drift, Reconciled, Repair
from healer.model.run import run_id
from healer.ports.clock import Clock
from healer.ports.commanding import CommandTx, RunRequest
from healer.ports.request_errors import Conflict, GuardRefused, Invalid, NotFound
from healer.text import said_by, say

#: Any change of Slurm or of a slot is a run of a playbook: the gate judges it, and a worker does it.
_PLAYBOOKS = {
    Repair.validate: "validate",
    Repair.release: "release",
    Repair.end_reservation: "tidy",
    Repair.clear_note: "tidy",
    Repair.free_slot: "tidy",
}


class Reconciler:
    """Raises Unavailable, and NotFound for an unknown cluster."""

    def __init__(self, commands: Commands, clock: Clock) -> None:
        self._commands, self._clock = commands, clock

    def drifts(self, cluster: str) -> list[Drift]:
        with self._commands.site(cluster).ledger.command() as tx:
            return _differences(tx, tx.read_gate(), self._clock.now())

    def repair(
        self,
        cluster: str,
        *,
        by: str,
        reason: str,
        request: str,
        may_use: Callable[[str], bool] = lambda playbook: True,
    ) -> list[Reconciled]:
        """Repairs each difference that is healer's own, through the gate and with an audit record. `may_use`:
        whether the caller may use this playbook there, as for a run that they start or cancel themselves."""
        found = []
        for drift in self.drifts(cluster):
            playbook = self._playbook_of(drift)
            if playbook is None or may_use(playbook):
                found.append(self._repair(drift, by, reason, request))
            else:
                why = say("api.granted_not_this_playbook", playbook=playbook, cluster=cluster)
                found.append(Reconciled(drift=drift, done=False, text=why))
        return found

    def _playbook_of(self, drift: Drift) -> str | None:
        """The playbook of the run that the repair starts or cancels; None if the run is gone."""
        if drift.repair is not Repair.cancel_run:
            return _PLAYBOOKS[drift.repair]
        with self._commands.site(drift.cluster).ledger.command() as tx:
            run = tx.lock_run(drift.name)
            return run.playbook if run is not None else None

    def _repair(self, drift: Drift, by: str, reason: str, request: str) -> Reconciled:
        about = f"{request}|{drift.kind}|{drift.node}|{drift.name}"
        name = run_id(about)
        try:
            if drift.repair is Repair.cancel_run:
                self._commands.cancel(drift.name, by=by, reason=reason, request=name)
                return Reconciled(drift=drift, done=True, text=say("engine.is_cancelled", run=drift.name))
            return self._start(drift, by, reason, name)
        except GuardRefused as error:
            guard, why = say(f"words.guard_{error.answer.guard}"), error.answer.why
            return Reconciled(drift=drift, done=False, text=say("engine.guard_says", guard=guard, why=why))
        except (Conflict, Invalid, NotFound) as error:
            return Reconciled(drift=drift, done=False, text=said_by(error))

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


def _differences(tx: CommandTx, facts: GateFacts, now: datetime) -> list[Drift]:
    open_incidents = [incident for incident in tx.open_incidents() if incident.is_open]
    return find_mismatches(facts, tx.active_runs(), open_incidents, now)
