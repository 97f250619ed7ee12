"""What people do to runs: each one transaction that passes the gate and writes its audit record."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from healer.actions import calls_of
from healer.adapters.postgres import audit, gate, inbox
from healer.adapters.postgres.claims import write_entry
from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.ledger import set_run_state
from healer.adapters.postgres.lines import write_decisions
from healer.adapters.postgres.restarts import Restarts
from healer.adapters.postgres.rows import logs_of
from healer.adapters.postgres.run_rows import (
    cluster_of,
    incident_named,
    incident_of,
    playbook_of,
    run_of,
)
from healer.adapters.postgres.run_starts import Asked, Starts, free, run_asked, slot_for, with_sweeps
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.decisions import (
    JudgeResult,
    beginning,
    decision_of,
    judge,
    limits,
    reset,
    restart_refused,
    takes_canary,
    takes_nothing,
    with_restarts,
)
from healer.incidents.jobs import hit_among
from healer.model import (
    ENDED_RUN_STATES,
    IRREVERSIBLE_VERBS,
    AuditRecord,
    Breaker,
    Command,
    CommandKind,
    Component,
    GateFacts,
    LogEntry,
    Outcome,
    Playbook,
    Ruleset,
    Run,
    RunState,
    SlurmJob,
    StepEvent,
    Verb,
)
from healer.playbooks import UNDO, from_here, stuck_at, touched
from healer.ports.api_answers import Preview
from healer.ports.clock import Clock
from healer.ports.people_commands import RunRequest
from healer.ports.request_errors import Conflict, Forbidden, GuardRefused, Invalid, NotFound
from healer.ports.slurm import Scheduler, SchedulerError, whole_job
from healer.ports.transactions import Poke

_STATES_TO_APPROVE = frozenset({RunState.proposed, RunState.waiting_approval, RunState.held})
_GOES_BACK = frozenset({RunState.stuck, RunState.waiting})


class PostgresRunCommands:
    """`healer.ports.people_commands.RunCommands`."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        snapshots: PostgresSnapshots,
        scheduler: Scheduler,
        rules: Callable[[], Ruleset],
        clock: Clock,
        poke: Poke,
    ) -> None:
        self._engine, self._snapshots, self._scheduler = engine, snapshots, scheduler
        self._rules, self._clock, self._poke = rules, clock, poke
        self._restarts = Restarts(scheduler)
        self._starts = Starts(engine, snapshots=snapshots, rules=rules, clock=clock, poke=poke)

    # --- asking ---

    def preview(self, request: RunRequest) -> Preview:
        rules, now = self._rules(), self._clock.now()
        playbook = playbook_of(rules, request)
        with translated(), self._engine.connect() as conn:
            facts = gate.read_facts(conn, request.cluster, self._snapshots, now)
            facts = with_sweeps(conn, facts, playbook, rules, now)
            incident = incident_of(conn, request, facts)
        node = job = None
        jobs = []
        try:
            if request.node:
                node = self._scheduler.node(request.node)
                where = incident.root if incident else None
                where = where or Component(cluster=request.cluster, node=request.node)
                on_node = self._scheduler.jobs_on(request.node)
                hit, certain = hit_among(on_node, where, node_gpus=node.gpus)
                jobs = hit if certain else []
            if request.job:
                job = whole_job(self._scheduler, request.job)
                jobs = [job] if job else []
        except SchedulerError as error:
            raise Conflict(f"Slurm: {error}") from error
        run = run_asked(Asked(request, playbook, job, {}), incident, now)
        verdict = judge(beginning(run, playbook, incident), facts, rules, now)
        return Preview(
            playbook=playbook,
            cluster=request.cluster,
            node=request.node,
            job=request.job,
            outcome=verdict.outcome,
            why=verdict.why,
            answers=list(verdict.answers),
            jobs_hit=jobs,
            restarts=self._restarts.offered(run, playbook, incident, facts, rules, now),
            limits=limits(facts, rules, now),
            slurm=node,
            not_available=self._not_available(playbook),
        )

    def _not_available(self, playbook: Playbook) -> dict[str, str]:
        """Steps that this Slurm's adapters cannot do, and why; nothing where Slurm does not answer."""
        try:
            lacks = self._scheduler.unavailable()
        except SchedulerError:
            return {}
        found = {}
        for step in playbook.steps:
            missing = [call for call in calls_of(step) if call in lacks]
            if missing:
                found[step.id] = f"not available here: {lacks[missing[0]]}"
        return found

    def start(self, request: RunRequest) -> Run:
        playbook = playbook_of(self._rules(), request)
        agreed = self._restarts.agreed(playbook, request.node, request.restart)
        return self._starts.start(Asked(request, playbook, self._job_of(request, playbook), agreed))

    def _job_of(self, request: RunRequest, playbook: Playbook) -> SlurmJob | None:
        """None: the run is about none, or takes nothing from it: then Slurm may have forgotten it."""
        if request.job is None:
            return None
        try:
            job = whole_job(self._scheduler, request.job)
        except SchedulerError as error:
            raise Conflict(f"Slurm: {error}") from error
        if job is None and not takes_nothing(playbook):
            raise NotFound(f"Slurm knows no job {request.job}")
        return job

    # --- answering ---

    def approve(self, run: str, *, by: str, reason: str, request: str, restart: Sequence[str] = ()) -> Run:
        rules, now = self._rules(), self._clock.now()
        agreed = self._agreed(run, restart)
        refused: JudgeResult | None = None
        with translated(), self._engine.begin() as conn:
            # The gate first, as everywhere: the walk takes gate and run in this order too.
            facts = gate.lock_gate(conn, cluster_of(conn, run), self._snapshots, now)
            known = run_of(conn, run)
            if known.state is RunState.waiting and (step := self._approval_of(conn, known)) is not None:
                self._check_second(known, rules.playbooks[known.playbook], by)
                agreed_to = self._may_restart(conn, known, agreed, by, facts)
                told = {"by": by} | ({"restart": agreed} if agreed else {})
                self._mark(conn, known, [step], StepEvent.done, f"{by} approved: {reason}", told)
                known = self._go_on(conn, agreed_to, by, "run.approved", reason, request)
                self._poke([run])
                return known
            if known.approved_by == by and known.state not in _STATES_TO_APPROVE:
                if not agreed.items() <= known.input.get("restart", {}).items():
                    raise Conflict(f"run {run} is {known.state}: a restart is agreed to before that")
                return known
            if known.state not in _STATES_TO_APPROVE:
                raise Conflict(f"run {run} is {known.state}: there is nothing to approve")
            playbook = rules.playbooks[known.playbook]
            self._check_second(known, playbook, by)
            incident = incident_named(conn, known.incident)
            approved = with_restarts(msgspec.structs.replace(known, approved_by=by), agreed, by)
            proposal = beginning(approved, playbook, incident)
            facts = with_sweeps(conn, facts, playbook, rules, now)
            verdict = restart_refused(approved, incident, facts, rules, now) or judge(
                proposal, facts, rules, now
            )
            write_decisions(conn, [decision_of(proposal, verdict, now)])
            if verdict.outcome is Outcome.refused:
                refused = verdict
            else:
                acts = verdict.outcome is Outcome.act
                if acts:
                    if not known.beside:
                        free(conn, approved, facts, rules, now)
                    facts = gate.read_facts(conn, known.cluster, self._snapshots, now, breaker=facts.breaker)
                    if known.node in facts.running and not known.beside:
                        raise Conflict(f"another run is working on {known.node}")
                    if (slot := slot_for(known, playbook, incident)) is not None:
                        gate.grant_slots(conn, [slot])
                    if takes_canary(facts, proposal):
                        gate.save_breaker(conn, msgspec.structs.replace(facts.breaker, canary=run))
                state = RunState.running if acts else RunState.held
                known = set_run_state(
                    conn, run, state, why=verdict.why, at=now, approved_by=by, input=approved.input
                )
            self._audit_run(conn, known, by, "run.approved", reason, request)
        if refused is not None:
            assert refused.answer is not None
            raise GuardRefused(refused.answer)
        if known.state is RunState.running:
            self._poke([run])
        return known

    def _agreed(self, run: str, named: Sequence[str]) -> dict[str, int]:
        """The jobs that are to be restarted with the run. Slurm is asked before the gate is locked."""
        if not named:
            return {}
        with translated(), self._engine.connect() as conn:
            known = run_of(conn, run)
        return self._restarts.agreed(self._rules().playbooks[known.playbook], known.node, named)

    def _may_restart(
        self, conn: sa.Connection, run: Run, jobs: Mapping[str, int], by: str, facts: GateFacts
    ) -> Run:
        """The run with what `by` agrees to. Raises GuardRefused where the gate refuses a restart now."""
        agreed = with_restarts(run, jobs, by)
        incident = incident_named(conn, run.incident)
        refused = restart_refused(agreed, incident, facts, self._rules(), self._clock.now()) if jobs else None
        if refused is not None:
            assert refused.answer is not None
            raise GuardRefused(refused.answer)
        return agreed

    def _check_second(self, run: Run, playbook: Playbook, by: str) -> None:
        # DOWN that only frees a node needs nobody; any other the gate holds when it is due.
        never_alone = IRREVERSIBLE_VERBS - {Verb.down}
        if run.by == by and any(step.do in never_alone for step in playbook.steps):
            raise Forbidden("a step that cannot be undone needs a second person: you asked for it yourself")

    def _approval_of(self, conn: sa.Connection, run: Run) -> str | None:
        """The step at which the run waits for an approval."""
        log = self._log(conn, run)
        last = log[-1] if log else None
        waits = last is not None and last.event is StepEvent.waiting and last.data.get("approval")
        return last.step if last is not None and waits else None

    def reject(self, run: str, *, by: str, reason: str, request: str) -> Run:
        return self._stop(run, RunState.rejected, "run.rejected", by=by, reason=reason, request=request)

    def cancel(self, run: str, *, by: str, reason: str, request: str) -> Run:
        return self._stop(run, RunState.cancelled, "run.cancelled", by=by, reason=reason, request=request)

    def _stop(self, run: str, state: RunState, verb: str, *, by: str, reason: str, request: str) -> Run:
        now = self._clock.now()
        with translated(), self._engine.begin() as conn:
            gate.lock_gate(conn, cluster_of(conn, run), self._snapshots, now)
            known = run_of(conn, run)
            if known.state is state:
                return known
            if known.state in ENDED_RUN_STATES:
                raise Conflict(f"run {run} has ended ({known.state})")
            if state is RunState.rejected and known.state not in _STATES_TO_APPROVE:
                raise Conflict(f"run {run} is {known.state}: cancel it instead")
            known = set_run_state(conn, run, state, why=reason, at=now)
            self._audit_run(conn, known, by, verb, reason, request)
            if known.incident:
                inbox.put_command(
                    conn,
                    Command(
                        kind=CommandKind.run_changed,
                        cluster=known.cluster,
                        at=now,
                        by=by,
                        incident=known.incident,
                        reason=reason,
                        data={"run": run, "playbook": known.playbook, "state": str(state)},
                    ),
                    request=f"{request}:{verb}",
                )
        return known

    def retry(self, run: str, *, by: str, reason: str, request: str, step: str | None = None) -> Run:
        now = self._clock.now()
        with translated(), self._engine.begin() as conn:
            gate.lock_gate(conn, cluster_of(conn, run), self._snapshots, now)
            known = run_of(conn, run)
            if known.state is RunState.running:
                return known
            if step is None:
                if known.state is not RunState.stuck:
                    raise Conflict(f"run {run} is {known.state}: only a stuck run is retried")
                keys = self._stuck_at(conn, known)
            else:
                keys = self._from_here(conn, known, step)
            self._mark(conn, known, keys, StepEvent.retry, f"{by}: {reason}")
            known = self._go_on(conn, known, by, "run.retried", reason, request)
        self._poke([run])
        return known

    def undo(self, run: str, *, by: str, reason: str, request: str) -> Run:
        """A worker that still works on the run loses it: the state's new epoch fences it off."""
        now = self._clock.now()
        with translated(), self._engine.begin() as conn:
            gate.lock_gate(conn, cluster_of(conn, run), self._snapshots, now)
            known = run_of(conn, run)
            log = self._log(conn, known)
            if any(one.step == UNDO for one in log):
                return known
            if known.state in ENDED_RUN_STATES:
                raise Conflict(f"run {run} has ended ({known.state}): start a playbook that brings it back")
            if not touched(self._rules().playbooks[known.playbook], log):
                raise Conflict(f"run {run} has changed nothing yet: cancel it")
            self._mark(conn, known, [UNDO], StepEvent.done, f"{by}: {reason}", {"by": by})
            known = self._go_on(conn, known, by, "run.undo", reason, request)
        self._poke([run])
        return known

    def _from_here(self, conn: sa.Connection, run: Run, step: str) -> list[str]:
        if run.state not in _GOES_BACK:
            raise Conflict(f"run {run.id} is {run.state}: one that is stuck or waits can go back to a step")
        log = self._log(conn, run)
        if any(one.step == UNDO for one in log):
            raise Conflict(f"run {run.id} is being taken back: retry it without a step")
        try:
            keys = from_here(self._rules().playbooks[run.playbook], log, step)
        except ValueError as error:
            raise Invalid("step", str(error)) from error
        if not keys:
            raise Conflict(f"run {run.id} has not come to the step {step} yet")
        return keys

    def _mark(
        self,
        conn: sa.Connection,
        run: Run,
        keys: Sequence[str],
        event: StepEvent,
        text: str,
        data: dict[str, Any] | None = None,
    ) -> None:
        for key in keys:
            entry = LogEntry(
                run=run.id,
                at=self._clock.now(),
                epoch=run.epoch + 1,
                step=key,
                event=event,
                text=text,
                data=data or {},
            )
            write_entry(conn, entry)

    def _go_on(self, conn: sa.Connection, run: Run, by: str, verb: str, reason: str, request: str) -> Run:
        now = self._clock.now()
        try:
            with conn.begin_nested():
                known = set_run_state(conn, run.id, RunState.running, why=reason, at=now, input=run.input)
        except IntegrityError as error:
            raise Conflict(f"another run is working on {run.node}") from error
        self._audit_run(conn, known, by, verb, reason, request)
        return known

    def _stuck_at(self, conn: sa.Connection, run: Run) -> list[str]:
        """Of several jobs one may be stuck while the last line of the log speaks of another."""
        return stuck_at(self._rules().playbooks[run.playbook], self._log(conn, run), self._clock.now())

    def _log(self, conn: sa.Connection, run: Run) -> list[LogEntry]:
        return logs_of(conn, [run.id]).get(run.id, [])

    def reset_breaker(self, cluster: str, *, by: str, reason: str, request: str) -> Breaker:
        now = self._clock.now()
        with translated(), self._engine.begin() as conn:
            facts = gate.lock_gate(conn, cluster, self._snapshots, now)
            try:
                breaker = reset(facts.breaker, by, reason, now)
            except ValueError as error:
                raise Conflict(str(error)) from error
            gate.save_breaker(conn, breaker)
            record = AuditRecord(
                cluster=cluster,
                at=now,
                actor=by,
                verb="breaker.reset",
                subject=f"breaker/{cluster}",
                data={"reason": reason, "request": request},
            )
            audit.append(conn, record)
        return breaker

    # --- audit ---

    def _audit_run(
        self, conn: sa.Connection, run: Run, by: str, verb: str, reason: str, request: str
    ) -> None:
        told = {"reason": reason, "incident": run.incident, "state": str(run.state), "request": request}
        agreed = run.input.get("restart") if verb == "run.approved" else None
        record = AuditRecord(
            cluster=run.cluster,
            at=self._clock.now(),
            actor=by,
            verb=verb,
            subject=f"run/{run.id}",
            data=told | ({"restart": agreed} if agreed else {}),
        )
        audit.append(conn, record)
