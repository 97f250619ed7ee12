"""What people do to runs: each one transaction that passes the gate and writes its audit record."""

from collections.abc import Callable
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from healer.actions import calls_of
from healer.adapters.postgres import audit, gate, inbox
from healer.adapters.postgres.claims import write_entry
from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.ledger import create_run, set_run_state
from healer.adapters.postgres.run_rows import (
    cluster_of,
    incident_named,
    incident_of,
    playbook_of,
    run_of,
)
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tables import run_log, runs
from healer.api.services import Conflict, Forbidden, GuardRefused, NotFound, RunRequest
from healer.api.views import Preview
from healer.decisions import (
    JudgeResult,
    beginning,
    decision_of,
    first_verb,
    is_untouched,
    judge,
    limits,
    reset,
    slot_later,
    takes_canary,
)
from healer.incidents.jobs import hit_among
from healer.model import (
    ENDED_RUN_STATES,
    IRREVERSIBLE_VERBS,
    REMOVING_VERBS,
    AuditRecord,
    Breaker,
    Command,
    CommandKind,
    Component,
    GateFacts,
    Incident,
    LogEntry,
    Outcome,
    Playbook,
    Ruleset,
    Run,
    RunState,
    Slot,
    SlurmJob,
    StepEvent,
    Verb,
)
from healer.playbooks import stuck_at
from healer.ports import Clock, Poke, Scheduler, SchedulerError

_STATES_TO_APPROVE = frozenset({RunState.proposed, RunState.waiting_approval, RunState.held})


class PostgresRunCommands:
    """`healer.api.services.RunCommands`."""

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

    # --- asking ---

    def preview(self, request: RunRequest) -> Preview:
        rules, now = self._rules(), self._clock.now()
        playbook = playbook_of(rules, request)
        with translated(), self._engine.connect() as conn:
            facts = gate.read_facts(conn, request.cluster, self._snapshots, now)
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
                job = self._job(request.job)
                jobs = [job] if job else []
        except SchedulerError as error:
            raise Conflict(f"Slurm: {error}") from error
        run = self._asked(request, playbook, incident, job)
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
        rules, now = self._rules(), self._clock.now()
        playbook = playbook_of(rules, request)
        job = self._job_of(request)
        with translated(), self._engine.begin() as conn:
            known = conn.execute(sa.select(runs.c.doc).where(runs.c.id == request.id)).scalar()
            if known is not None:
                return msgspec.convert(known, Run)
            facts = gate.lock_gate(conn, request.cluster, self._snapshots, now)
            incident = incident_of(conn, request, facts)
            run = self._asked(request, playbook, incident, job)
            proposal = beginning(run, playbook, incident)
            verdict = judge(proposal, facts, rules, now)
            gate.add_decision(conn, decision_of(proposal, verdict, now))
            if verdict.outcome is Outcome.refused:
                self._audit(conn, request, "run.refused", {"guard": verdict.guard, "why": verdict.why})
            elif verdict.outcome is Outcome.held:
                run = msgspec.structs.replace(run, state=RunState.held, question=verdict.why)
                create_run(conn, run)
                self._audit(conn, request, "run.held", {"guard": verdict.guard, "why": verdict.why})
            else:
                self._begin(conn, run, incident, playbook, facts)
                self._audit(conn, request, "run.started", {})
        if verdict.outcome is Outcome.refused:  # stored first: only now it may be raised
            assert verdict.answer is not None
            raise GuardRefused(verdict.answer)
        if run.state is RunState.running:
            self._poke([run.id])
        return run

    def _asked(
        self, request: RunRequest, playbook: Playbook, incident: Incident | None, job: SlurmJob | None
    ) -> Run:
        """The run as it would begin now. A job has many names (`4700_3`, `4711+1`): the run has the one by
        which Slurm lists and restarts it, which caps, fences and guards know it by."""
        return Run(
            id=request.id,
            cluster=request.cluster,
            playbook=playbook.name,
            state=RunState.running,
            by=request.by,
            reason=request.reason,
            created_at=self._clock.now(),
            node=request.node,
            job=job.id if job else request.job,
            incident=incident.id if incident else None,
            rule=incident.rule if incident else playbook.name,
            input={
                "reason_text": f"{request.by}: {request.reason}",
                "restarts": job.restarts if job else None,
            },
        )

    def _begin(
        self,
        conn: sa.Connection,
        run: Run,
        incident: Incident | None,
        playbook: Playbook,
        facts: GateFacts,
    ) -> None:
        self._take_over(conn, run)
        self._free(conn, run, facts)
        self._grant(conn, run, playbook, incident)
        try:
            with conn.begin_nested():
                create_run(conn, run)
        except IntegrityError as error:
            raise Conflict(f"another run is working on {run.node}: wait for it or cancel it") from error

    def _take_over(self, conn: sa.Connection, run: Run) -> None:
        """A person's run takes over one that only waits on the same node."""
        rows = conn.execute(
            sa.select(runs.c.id, runs.c.doc).where(
                runs.c.cluster == run.cluster,
                runs.c.node == run.node,
                runs.c.node.is_not(None),
                runs.c.state.in_(["waiting", "held", "stuck", "proposed", "waiting_approval"]),
            )
        ).all()
        for name, doc in rows:
            other = msgspec.convert(doc, Run)
            why = f"taken over by {run.by} with {run.playbook} ({run.id})"
            set_run_state(conn, name, RunState.done, why=why, at=run.created_at)
            entry = LogEntry(
                run=name,
                at=run.created_at,
                epoch=other.epoch + 1,
                step="taken-over",
                event=StepEvent.skipped,
                text=why,
            )
            write_entry(conn, entry)

    def _free(self, conn: sa.Connection, run: Run, facts: GateFacts) -> None:
        """Ends the run that works on the node if it has only waited until now: a person goes first.

        The gate's lock is held: what has no slot now takes nothing before this commits, and nothing after it.
        """
        name = facts.running.get(run.node or "")
        other = run_of(conn, name) if name is not None and name != run.id else None
        if other is None or not is_untouched(other, self._rules().playbooks.get(other.playbook), facts):
            return
        now = self._clock.now()
        why = f"taken over by {run.approved_by or run.by} with {run.playbook} ({run.id})"
        set_run_state(conn, other.id, RunState.done, why=why, at=now)
        if other.incident is not None:
            told = Command(
                kind=CommandKind.run_changed,
                cluster=other.cluster,
                at=now,
                by=other.by,
                incident=other.incident,
                reason=why,
                data={"run": other.id, "playbook": other.playbook, "state": "done", "early": True},
            )
            inbox.put_command(conn, told, request=f"{run.id}:over:{other.id}")

    def _grant(
        self,
        conn: sa.Connection,
        run: Run,
        playbook: Playbook,
        incident: Incident | None,
    ) -> None:
        if first_verb(playbook) in REMOVING_VERBS and run.node and not slot_later(playbook):
            slot = Slot(
                cluster=run.cluster,
                node=run.node,
                incident=run.incident,
                run=run.id,
                granted_at=run.created_at,
                unusable=incident.unusable if incident else False,
            )
            gate.grant_slot(conn, slot)

    def _job_of(self, request: RunRequest) -> SlurmJob | None:
        if request.job is None:
            return None
        try:
            job = self._job(request.job)
        except SchedulerError as error:
            raise Conflict(f"Slurm: {error}") from error
        if job is None:
            raise NotFound(f"Slurm knows no job {request.job}")
        return job

    def _job(self, name: str) -> SlurmJob | None:
        """The job of this name; the leader where it names a component of a heterogeneous job."""
        job = self._scheduler.job(name)
        return self._scheduler.job(job.leader) if job is not None and job.leader != job.id else job

    # --- answering ---

    def approve(self, run: str, *, by: str, reason: str, request: str) -> Run:
        rules, now = self._rules(), self._clock.now()
        refused: JudgeResult | None = None
        with translated(), self._engine.begin() as conn:
            # The gate first, as everywhere: the walk takes gate and run in this order too.
            facts = gate.lock_gate(conn, cluster_of(conn, run), self._snapshots, now)
            known = run_of(conn, run)
            if known.approved_by == by and known.state not in _STATES_TO_APPROVE:
                return known
            if known.state not in _STATES_TO_APPROVE:
                raise Conflict(f"run {run} is {known.state}: there is nothing to approve")
            playbook = rules.playbooks[known.playbook]
            # DOWN that only frees a node needs nobody; any other the gate holds when it is due.
            never_alone = IRREVERSIBLE_VERBS - {Verb.down}
            if known.by == by and any(step.do in never_alone for step in playbook.steps):
                raise Forbidden(
                    "a step that cannot be undone needs a second person: you asked for it yourself"
                )
            incident = incident_named(conn, known.incident)
            approved = msgspec.structs.replace(known, approved_by=by)
            proposal = beginning(approved, playbook, incident)
            verdict = judge(proposal, facts, rules, now)
            gate.add_decision(conn, decision_of(proposal, verdict, now))
            if verdict.outcome is Outcome.refused:
                refused = verdict
            else:
                acts = verdict.outcome is Outcome.act
                if acts:
                    self._free(conn, approved, facts)
                    facts = gate.read_facts(conn, known.cluster, self._snapshots, now, breaker=facts.breaker)
                    others = {node for node in facts.running if node == known.node}
                    if others:
                        raise Conflict(f"another run is working on {known.node}")
                    self._grant(conn, known, playbook, incident)
                    if takes_canary(facts, proposal):
                        gate.save_breaker(conn, msgspec.structs.replace(facts.breaker, canary=run))
                state = RunState.running if acts else RunState.held
                known = set_run_state(conn, run, state, why=verdict.why, at=now, approved_by=by)
            self._audit_run(conn, known, by, "run.approved", reason, request)
        if refused is not None:
            assert refused.answer is not None
            raise GuardRefused(refused.answer)
        if known.state is RunState.running:
            self._poke([run])
        return known

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

    def retry(self, run: str, *, by: str, reason: str, request: str) -> Run:
        now = self._clock.now()
        with translated(), self._engine.begin() as conn:
            gate.lock_gate(conn, cluster_of(conn, run), self._snapshots, now)
            known = run_of(conn, run)
            if known.state is RunState.running:
                return known
            if known.state is not RunState.stuck:
                raise Conflict(f"run {run} is {known.state}: only a stuck run is retried")
            for step in self._stuck_at(conn, known):
                entry = LogEntry(
                    run=run,
                    at=now,
                    epoch=known.epoch + 1,
                    step=step,
                    event=StepEvent.retry,
                    text=f"{by}: {reason}",
                )
                write_entry(conn, entry)
            try:
                with conn.begin_nested():
                    known = set_run_state(conn, run, RunState.running, why=reason, at=now)
            except IntegrityError as error:
                raise Conflict(f"another run is working on {known.node}") from error
            self._audit_run(conn, known, by, "run.retried", reason, request)
        self._poke([run])
        return known

    def _stuck_at(self, conn: sa.Connection, run: Run) -> list[str]:
        """Of several jobs one may be stuck while the last line of the log speaks of another."""
        docs = conn.execute(
            sa.select(run_log.c.doc).where(run_log.c.run == run.id).order_by(run_log.c.seq)
        ).scalars()
        log = [msgspec.convert(doc, LogEntry) for doc in docs]
        return stuck_at(self._rules().playbooks[run.playbook], log, self._clock.now())

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

    def _audit(self, conn: sa.Connection, request: RunRequest, verb: str, data: dict[str, Any]) -> None:
        told = {
            "playbook": request.playbook,
            "node": request.node,
            "job": request.job,
            "reason": request.reason,
            **data,
        }
        record = AuditRecord(
            cluster=request.cluster,
            at=self._clock.now(),
            actor=request.by,
            verb=verb,
            subject=f"run/{request.id}",
            data=told,
        )
        audit.append(conn, record)

    def _audit_run(
        self, conn: sa.Connection, run: Run, by: str, verb: str, reason: str, request: str
    ) -> None:
        record = AuditRecord(
            cluster=run.cluster,
            at=self._clock.now(),
            actor=by,
            verb=verb,
            subject=f"run/{run.id}",
            data={"reason": reason, "incident": run.incident, "state": str(run.state), "request": request},
        )
        audit.append(conn, record)
