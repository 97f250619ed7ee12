"""Runs that people request: simultaneous requests start in one transaction, with one Slurm snapshot.

They are judged one after the other, each with the grants of the earlier ones
(`healer.decisions.guards.after_grant`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from healer.actions.base import whole_job, whole_jobs
from healer.decisions import (
    JudgeResult,
    after_grant,
    decision_of,
    holds_slot,
    is_untouched,
    judge,
    proposal_to_begin,
    refused_restart,
    runs_alongside,
    with_restarts,
)
from healer.decisions.book_mismatch import GRACE
from healer.decisions.sweeps import tests_since, with_sweep
from healer.engine.runlog import run_changed
from healer.model import (
    AuditRecord,
    Decision,
    GateFacts,
    Incident,
    LogEntry,
    Outcome,
    Playbook,
    Ruleset,
    Run,
    RunState,
    SlurmJob,
    StepEvent,
    audit_record,
)
from healer.playbooks import takes_restarts
from healer.playbooks.advance import InputInvalid, read_inputs
from healer.ports.answers import RestartOffer
from healer.ports.clock import Clock
from healer.ports.commanding import ALONE, CommandTx, RunRequest
from healer.ports.request_errors import Conflict, Invalid, NotFound
from healer.ports.scheduling import SchedulerError, SlurmReads
from healer.text import Said, quoted, said_by, say


class StartRequest(NamedTuple):
    """A request with its playbook, its job as shown by Slurm, and the jobs to restart with it."""

    request: RunRequest
    playbook: Playbook
    job: SlurmJob | None = None
    restart: Mapping[str, int] = {}


def count_begun(
    facts: GateFacts,
    runs: Iterable[Run],
    incident_of: Callable[[str], Incident | None],
    rules: Ruleset,
    now: datetime,
) -> GateFacts:
    """Counts the nodes of runs that have just begun as granted, although the worker that grants them has not
    got there yet. A run that a guard holds waits like any other."""
    for run in runs:
        playbook = rules.playbooks.get(run.playbook)
        at_work = run.state is RunState.running and not run.shadow and not run.alongside
        new = at_work and run.question is None and now - run.created_at < GRACE
        if not new or playbook is None or run.node is None or run.node in facts.held:
            continue
        incident = incident_of(run.incident) if run.incident is not None else None
        facts = after_grant(facts, proposal_to_begin(run, playbook, incident), run.id, now)
    return facts


def with_begun(tx: CommandTx, facts: GateFacts, rules: Ruleset, now: datetime) -> GateFacts:
    """The gate's facts for a person's request, including runs that have just begun."""
    begun = [tx.run(run) for node, run in facts.running.items() if node not in facts.held]
    return count_begun(facts, filter(None, begun), tx.incident, rules, now)


def start_runs(tx: CommandTx, many: Sequence[StartRequest], rules: Ruleset, clock: Clock) -> list[object]:
    """For each request its run, the verdict that refused it, the error of the request, or ALONE.

    A repeated request gets its existing run. If two requests name the same node or job, the later one needs a
    transaction of its own (ALONE).
    """
    facts = tx.lock_gate()
    now = clock.now()  # after the lock, which may have taken a while
    facts = with_begun(tx, facts, rules, now)
    repeated = tx.known_runs([asked.request.id for asked in many])
    nodes = [asked.request.node for asked in many if asked.request.node is not None]
    batch = _Batch(tx, rules, now, tx.waiting_on(nodes))
    seen, results = set[tuple[str, str | None]](), list[object]()
    for asked in many:
        request = asked.request
        places = ("run", request.id), ("node", request.node), ("job", request.job)
        about = {place for place in places if place[1] is not None}
        if seen & about:
            results.append(ALONE)
        elif request.id in repeated:
            results.append(repeated[request.id])
        else:
            seen |= about
            result, facts = batch.begin(asked, facts)
            results.append(result)
    tx.add_starts(batch.runs, batch.decisions, batch.records)
    return results


class _Batch:
    """What one transaction starts, under the gate's lock. The rows are written together at the end."""

    def __init__(self, tx: CommandTx, rules: Ruleset, now: datetime, waiting: Sequence[Run]) -> None:
        self._tx, self._rules, self._now, self._waiting = tx, rules, now, waiting
        self.runs: list[Run] = []
        self.decisions: list[Decision] = []
        self.records: list[AuditRecord] = []

    def begin(self, asked: StartRequest, facts: GateFacts) -> tuple[object, GateFacts]:
        """The run, the verdict that refused it, or the error; and the facts for the next request."""
        tx, rules, now, request = self._tx, self._rules, self._now, asked.request
        try:
            incident = incident_of(tx, request, facts)
            run = run_to_start(asked, incident, now)
        except (NotFound, Invalid) as error:
            return error, facts
        facts = with_sweeps(tx, facts, asked.playbook, rules, now)
        proposal = proposal_to_begin(run, asked.playbook, incident)
        verdict = refused_restart(run, incident, facts, rules, now) or judge(proposal, facts, rules, now)
        acts = verdict.outcome is Outcome.act
        if acts and (conflict := self._conflict(run, facts)) is not None:
            return conflict, facts
        self.decisions.append(decision_of(proposal, verdict, now))
        kept = {} if acts else {"guard": verdict.guard, "why": verdict.why}
        if verdict.outcome is Outcome.refused:
            self._audit(request, "run.refused", kept)
            return verdict, facts
        if not acts:
            run = msgspec.structs.replace(run, state=RunState.held, question=verdict.why)
            self._audit(request, "run.held", kept)
            self.runs.append(run)
            return run, facts
        if not run.alongside:
            self._take_over_waiting(run, facts)
            take_over_untouched(tx, run, facts, rules, now)
        self._audit(request, "run.started", kept)
        self.runs.append(run)
        facts = after_grant(facts, proposal, run.id, now)
        sweeps = asked.playbook.name in rules.sweeping
        return run, with_sweep(facts, run) if sweeps else facts

    def _conflict(self, run: Run, facts: GateFacts) -> Conflict | None:
        """An error if another run already works on the node; None if the node is free."""
        if run.alongside:
            other = self._tx.running_on(run.node, run.playbook)
            does = say("engine.does_the_same", run=other, node=run.node)
            return None if other is None else Conflict(does)
        other = _at_work(self._tx, run, facts)
        if other is None or is_untouched(other, self._rules.playbooks.get(other.playbook), facts):
            return None
        return Conflict(node_taken_text(run.node))

    def _take_over_waiting(self, run: Run, facts: GateFacts) -> None:
        """Lets a person's run take over from runs that only wait on the same node."""
        for other in self._waiting:
            if other.node != run.node:
                continue
            why = say("engine.taken_over", who=run.by, playbook=run.playbook, run=run.id)
            self._tx.set_run_state(other.id, RunState.done, why=why, at=self._now)
            if not (other.alongside or holds_slot(facts, other)):
                _report_untouched(self._tx, other, run, why, self._now)
            entry = LogEntry(
                run=other.id,
                at=self._now,
                epoch=other.epoch + 1,
                step="taken-over",
                event=StepEvent.skipped,
                text=why,
            )
            self._tx.write(entry)

    def _audit(self, request: RunRequest, verb: str, data: dict[str, Any]) -> None:
        about = {name: getattr(request, name) for name in ("playbook", "node", "job", "reason")}
        restart = {"restart": list(request.restart)} if request.restart else {}
        by, subject = request.by, f"run/{request.id}"
        record = audit_record(request.cluster, self._now, by, verb, subject, **about, **restart, **data)
        self.records.append(record)


def incident_of(tx: CommandTx, request: RunRequest, facts: GateFacts) -> Incident | None:
    """The incident that the request names, else the one whose slot the node holds. Raises NotFound."""
    if request.incident is not None:
        found = tx.incident(request.incident)
        if found is None or found.cluster != request.cluster:
            raise NotFound(say("engine.no_incident", incident=request.incident))
        return found
    slot = facts.held.get(request.node or "")
    found = tx.incident(slot.incident) if slot and slot.incident else None
    return tx.incident(found.left_to) if found is not None and found.left_to else found


def with_sweeps(
    tx: CommandTx, facts: GateFacts, playbook: Playbook, rules: Ruleset, now: datetime
) -> GateFacts:
    """The facts, including those of the sweep guard if this playbook sweeps."""
    books = rules.sweeping
    if playbook.name not in books or facts.sweeps is not None:
        return facts
    return msgspec.structs.replace(facts, sweeps=tx.sweeps(books, tests_since(rules, facts.cluster, now)))


def run_to_start(asked: StartRequest, incident: Incident | None, now: datetime) -> Run:
    """The run as it would begin now. A job has several names (`4700_3`, `4711+1`); the run uses the one under
    which Slurm lists and restarts it, like caps, fences and guards. Raises Invalid."""
    request, playbook, job = asked.request, asked.playbook, asked.job
    run = Run(
        id=request.id,
        cluster=request.cluster,
        playbook=playbook.name,
        state=RunState.running,
        by=request.by,
        reason=quoted(request.reason),
        created_at=now,
        node=request.node,
        job=job.id if job else request.job,
        incident=incident.id if incident else None,
        rule=incident.rule if incident else playbook.name,
        alongside=runs_alongside(playbook),
        input={
            "reason_text": f"{request.by}: {request.reason}",
            "restarts": job.restarts if job else None,
            **_inputs(playbook, request),
        },
    )
    return with_restarts(run, asked.restart, request.by)


def take_over_untouched(tx: CommandTx, run: Run, facts: GateFacts, rules: Ruleset, now: datetime) -> bool:
    """Ends the run on the node if it has only waited so far: a person goes first.

    The gate's lock is held, so a run without a slot can take nothing before or after this commit.
    """
    other = _at_work(tx, run, facts)
    if other is None or not is_untouched(other, rules.playbooks.get(other.playbook), facts):
        return False
    why = say("engine.taken_over", who=run.approved_by or run.by, playbook=run.playbook, run=run.id)
    tx.set_run_state(other.id, RunState.done, why=why, at=now)
    _report_untouched(tx, other, run, why, now)
    return True


def _report_untouched(tx: CommandTx, other: Run, run: Run, why: Said, now: datetime) -> None:
    """Informs the detector that `other` ended in favour of `run` without taking anything. If it ended without
    returning the node, its incident is decided on again."""
    if other.incident is not None and not other.shadow:
        news = run_changed(other, RunState.done, now, reason=why, early=True)
        tx.send_command(news, request=f"{run.id}:over:{other.id}")


def node_taken_text(node: str | None) -> Said:
    return say("engine.node_taken_wait", node=node)


def _at_work(tx: CommandTx, run: Run, facts: GateFacts) -> Run | None:
    """Another run that works on this run's node; None if there is none."""
    name = facts.running.get(run.node or "")
    return tx.lock_run(name) if name is not None and name != run.id else None


def _inputs(playbook: Playbook, request: RunRequest) -> dict[str, Any]:
    """The request's inputs, parsed by the playbook's types. Raises Invalid, which names the input."""
    if not playbook.inputs and not request.inputs:
        return {}
    try:
        return {"inputs": read_inputs(playbook, request.inputs)}
    except InputInvalid as error:
        raise Invalid(f"inputs.{error.name}", said_by(error)) from error


# --- jobs that a run on their node may restart with a person's consent


def agreed_restarts(
    scheduler: SlurmReads, playbook: Playbook, node: str | None, named: Sequence[str]
) -> dict[str, int]:
    """The named jobs -> their restart counts. `4711:0` is job 4711 before its first restart: Conflict once it
    has been restarted. Raises Invalid."""
    if not named:
        return {}
    if node is None or not takes_restarts(playbook):
        raise Invalid("restart", say("engine.restarts_no_job", playbook=playbook.name))
    here = {job.id: job for job in _jobs_on(scheduler, node)}
    found: dict[str, int] = {}
    for text in named:
        name, _, life = text.partition(":")
        if life and not (life.isascii() and life.isdecimal()):
            raise Invalid("restart", say("engine.restart_count", text=text))
        job = here.get(name) or read_job(scheduler, name)
        if job is None or job.id not in here:
            raise Invalid("restart", say("engine.job_elsewhere", job=name, node=node))
        if life and int(life) != job.restarts:
            raise Conflict(say("engine.job_restarted", job=name))
        found[job.id] = job.restarts
    return found


def offered_restarts(
    scheduler: SlurmReads, run: Run, playbook: Playbook, judged: Callable[[Run, str], JudgeResult]
) -> list[RestartOffer]:
    """Each job on the run's node, with the guards' answer to its restart if `run.by` consents. `judged`
    returns the answer for a run with that consent."""
    if run.node is None or not takes_restarts(playbook):
        return []
    offers: list[RestartOffer] = []
    for job in _jobs_on(scheduler, run.node):
        agreed = with_restarts(run, {job.id: job.restarts}, run.by)
        verdict = judged(agreed, job.id)
        offer = RestartOffer(
            job=job.id,
            restarts=job.restarts,
            name=job.name,
            user=job.user,
            nodes=len(job.nodes),
            possible=verdict.outcome is not Outcome.refused,
            why=verdict.why,
        )
        offers.append(offer)
    return offers


def read_job(scheduler: SlurmReads, name: str) -> SlurmJob | None:
    """The job, the leader if it is heterogeneous; None if Slurm does not know it. Raises Conflict."""
    try:
        return whole_job(scheduler, name)
    except SchedulerError as error:
        raise Conflict(say("engine.slurm_says", error=said_by(error))) from error


def _jobs_on(scheduler: SlurmReads, node: str) -> list[SlurmJob]:
    """Running jobs on the node, as leaders if heterogeneous. Raises Conflict."""
    try:
        running = [job for job in scheduler.jobs_on(node) if "COMPLETING" not in job.flags]
        return whole_jobs(scheduler, running)
    except SchedulerError as error:
        raise Conflict(say("engine.slurm_says", error=said_by(error))) from error
