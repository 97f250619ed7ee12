"""People's commands: each is judged by the gate in one transaction, and audited.

The API, the console, chat buttons, the command line and the people of a simulation all call `Commands`. Each
command is a function over the ledger's transaction; `Commands` reads Slurm before it and wakes workers after
it. `request` is the id of a request: a repeat changes nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache, partial
from typing import Any, NamedTuple

import msgspec

from healer.actions import calls_of
from healer.decisions import (
    ASKING,
    JudgeResult,
    cannot_be_undone,
    decision_of,
    judge,
    limits,
    proposal_to_begin,
    refused_restart,
    reset,
    restart_proposal,
    takes_nothing,
    with_restarts,
)
from healer.engine.runlog import run_changed
from healer.engine.starts import (
    StartRequest,
    agreed_restarts,
    incident_of,
    node_taken_text,
    offered_restarts,
    read_job,
    run_to_start,
    start_runs,
    take_over_untouched,
    with_begun,
    with_sweeps,
)
from healer.incidents.impact import hit_among
from healer.model import (
    ENDED_RUN_STATES,
    Breaker,
    BreakerState,
    Component,
    Incident,
    LogEntry,
    Outcome,
    Playbook,
    Ruleset,
    Run,
    RunState,
    SlurmJob,
    SlurmNode,
    StepEvent,
    audit_record,
)
from healer.model.grants import APPROVING, fits_any
from healer.model.person_names import broke_glass, count_people
from healer.playbooks import UNDO, keys_from_step, parts_to_undo, stuck_keys
from healer.ports.answers import Preview
from healer.ports.clock import Clock
from healer.ports.commanding import CommandLedger, CommandTx, NodeTaken, RunRequest
from healer.ports.directory import LOCAL, Directory, Person
from healer.ports.request_errors import Conflict, Forbidden, GuardRefused, Invalid, NotFound
from healer.ports.scheduling import SchedulerError, SlurmReads
from healer.ports.service_accounts import is_person, person_of
from healer.ports.transactions import Poke
from healer.telling.news import breaker_reset_message
from healer.text import Said, quoted, said_by, say

_GOES_BACK = frozenset({RunState.stuck, RunState.waiting})


class Site(NamedTuple):
    """What commands need from a cluster: its ledger, its Slurm, and a way to wake its workers."""

    ledger: CommandLedger
    scheduler: SlurmReads
    poke: Poke


class Order(NamedTuple):
    """A person's command about a run, an incident, a rule or a cluster. `about`: the id or name of that
    object."""

    about: str
    by: str
    reason: str
    request: str
    clock: Clock

    @property
    def at(self) -> datetime:
        """The present time, not the time of the order: the command may have waited for the gate's lock."""
        return self.clock.now()


class Commands:
    """Commands to the runs of all clusters. They raise GuardRefused, NotFound, Conflict, Forbidden and
    Invalid, and Unavailable if the database does not answer; in that case nothing was done.

    Only `people` approve; without a directory every name counts as a person. `provided`: people come from an
    identity provider, and their groups decide what they may approve."""

    def __init__(
        self,
        sites: Mapping[str, Site],
        rules: Callable[[], Ruleset],
        clock: Clock,
        people: Directory | None = None,
        *,
        provided: bool = False,
    ) -> None:
        self._sites, self._rules, self._clock = sites, rules, clock
        self._people, self._provided = people or _Everybody(), provided
        self._starts = {
            name: site.ledger.together(self._start_runs, partial(_wake, site)) for name, site in sites.items()
        }

    def preview(self, request: RunRequest) -> Preview:
        """The plan with live checks; changes nothing. Refusals by guards are part of the answer."""
        site, rules, now = self.site(request.cluster), self._rules(), self._clock.now()
        playbook = playbook_of(rules, request)
        with site.ledger.command() as tx:
            facts = with_sweeps(tx, with_begun(tx, tx.read_gate(), rules, now), playbook, rules, now)
            incident = incident_of(tx, request, facts)
        node, job, jobs = _node_and_jobs(site.scheduler, request, incident)
        run = run_to_start(StartRequest(request, playbook, job), incident, now)
        verdict = judge(proposal_to_begin(run, playbook, incident), facts, rules, now)

        def judged_restart(agreed: Run, job: str) -> JudgeResult:
            return judge(restart_proposal(agreed, job, incident), facts, rules, now)

        return Preview(
            playbook=playbook,
            cluster=request.cluster,
            node=request.node,
            job=request.job,
            outcome=verdict.outcome,
            why=verdict.why,
            answers=list(verdict.answers),
            jobs_hit=jobs,
            restarts=offered_restarts(site.scheduler, run, playbook, judged_restart),
            limits=limits(facts, rules, now),
            slurm=node,
            not_available=_unavailable_steps(site.scheduler, playbook),
        )

    def start(self, request: RunRequest) -> Run:
        """Starts a run. One that a guard holds is returned in state `held`; a refusal raises GuardRefused."""
        site = self.site(request.cluster)
        playbook = playbook_of(self._rules(), request)
        restart = agreed_restarts(site.scheduler, playbook, request.node, request.restart)
        # A playbook that takes nothing may be started for a job that Slurm has forgotten.
        job = read_job(site.scheduler, request.job) if request.job else None
        if request.job and job is None and not takes_nothing(playbook):
            raise NotFound(say("engine.no_job", job=request.job))
        try:
            answer = self._starts[request.cluster](StartRequest(request, playbook, job, restart))
        except NodeTaken as error:
            raise Conflict(node_taken_text(request.node)) from error
        return _or_refused(answer)

    def _start_runs(self, tx: CommandTx, many: Sequence[StartRequest]) -> Sequence[object]:
        return start_runs(tx, many, self._rules(), self._clock)

    def approve(
        self,
        run: str,
        *,
        by: str,
        reason: str,
        request: str,
        restart: Sequence[str] = (),
        until: datetime | None = None,
    ) -> Run:
        """Raises Forbidden if `by` is not a person, may not approve this playbook, or requested the run and a
        second person is needed. `restart`: jobs on the run's node whose restart `by` consents to. `until`:
        the `approve_until` of the question that `by` saw; Conflict if the run asks a different question by
        now."""
        site, rules, agreed = self._site_of(run), self._rules(), dict[str, int]()
        approver = Approver(by, self._people.find(by), self._provided)
        if restart:  # query Slurm before the gate is locked
            with site.ledger.command() as tx:
                stored = locked_run(tx, run)
            agreed = agreed_restarts(site.scheduler, _book_of(stored, rules), stored.node, restart)
        with _changing(site) as tx:
            order = self._order(run, by, reason, request)
            answer = approve(tx, order, agreed, rules, approver, until)
        return _wake_for(site, _or_refused(answer))

    def bars(self, by: str) -> Callable[[Run], Said | None]:
        """For each run, why `by` may not approve it, in the words of `approve`; None if they may."""
        rules, find = self._rules(), cache(self._people.find)

        def why(run: Run) -> Said | None:
            approver = Approver(by, find(by), self._provided)
            playbook = rules.playbooks.get(run.playbook)
            return why_not_approve(run, playbook, approver, rules) if playbook else None

        return why

    def reject(self, run: str, *, by: str, reason: str, request: str) -> Run:
        with _changing(self._site_of(run)) as tx:
            return stop(tx, self._order(run, by, reason, request), RunState.rejected)

    def cancel(self, run: str, *, by: str, reason: str, request: str) -> Run:
        with _changing(self._site_of(run)) as tx:
            return stop(tx, self._order(run, by, reason, request), RunState.cancelled)

    def retry(
        self,
        run: str,
        *,
        by: str,
        reason: str,
        request: str,
        step: str | None = None,
        epoch: int | None = None,
    ) -> Run:
        """Continues a stuck run at the step where it stopped. With `step`, a stuck or waiting run goes back
        to that step and repeats it and all later steps. `epoch`: of the run that `by` saw; Conflict if it
        has gone on since."""
        site = self._site_of(run)
        with _changing(site) as tx:
            retried = retry(tx, self._order(run, by, reason, request), step, epoch, self._rules())
        return _wake_for(site, retried)

    def undo(self, run: str, *, by: str, reason: str, request: str) -> Run:
        """Undoes what the run did, last step first, and ends it. The new epoch fences off a worker that still
        holds the run."""
        site = self._site_of(run)
        with _changing(site) as tx:
            undone = undo(tx, self._order(run, by, reason, request), self._rules())
        return _wake_for(site, undone)

    def reset_breaker(
        self, cluster: str, *, by: str, reason: str, request: str, since: datetime | None = None
    ) -> Breaker:
        """Open -> half-open. `since`: of the breaker that `by` saw. Conflict when it is not open, or has
        opened again since."""
        with _changing(self.site(cluster)) as tx:
            return reset_breaker(tx, self._order(cluster, by, reason, request), since)

    def site(self, cluster: str) -> Site:
        """Raises NotFound for an unknown cluster."""
        if cluster not in self._sites:
            raise NotFound(say("engine.no_cluster", name=cluster, names=", ".join(sorted(self._sites))))
        return self._sites[cluster]

    def _site_of(self, run: str) -> Site:
        for site in self._sites.values():
            if site.ledger.has_run(run):
                return site
        raise NotFound(say("engine.no_run", run=run))

    def _order(self, about: str, by: str, reason: str, request: str) -> Order:
        return Order(about, by, reason, request, self._clock)


class _Everybody:
    """The directory of a simulation: every name is a person."""

    def find(self, name: str) -> Person:
        return Person(name=name, issuer=LOCAL, subject=name)


class Approver(NamedTuple):
    """The approver. `person`: their entry in the site's directory; `provided`: the site has an identity
    provider."""

    name: str
    person: Person | None
    provided: bool


def approve(
    tx: CommandTx,
    order: Order,
    restart: Mapping[str, int],
    rules: Ruleset,
    approver: Approver,
    until: datetime | None = None,
) -> Run | JudgeResult:
    """The approved run, or the verdict that refused it. The refusal is stored too, so raise only after the
    commit.

    A run that waits for an approval at one of its steps continues from there; a run that has not begun is
    judged by the gate. The gate is locked before the run, in the same order as in the walk.
    """
    if why := _why_account(order.by):
        raise Forbidden(why)
    facts = tx.lock_gate()
    run, now = locked_run(tx, order.about), order.at
    refused_before = run.state in ASKING and run.approved_by != order.by
    if _is_repeated(tx, order) and not refused_before:
        return run  # it may be waiting at a later step, which this order does not cover
    step = _step_to_approve(tx, run)
    if step is None and run.state not in ASKING:
        return _approved_before(run, order, restart)
    if until is not None and run.approve_until != until:
        raise Conflict(say("engine.asks_another", run=run.id))
    playbook = _book_of(run, rules)
    if why := why_not_approve(run, playbook, approver, rules):
        raise Forbidden(why)
    approved = with_restarts(run, restart, order.by)
    incident = tx.incident(run.incident) if run.incident else None
    if step is not None:
        refused = refused_restart(approved, incident, facts, rules, now) if restart else None
        return refused or _approve_step(tx, approved, step, order, restart)
    approved = msgspec.structs.replace(approved, approved_by=order.by)
    facts = with_sweeps(tx, with_begun(tx, facts, rules, now), playbook, rules, now)
    proposal = proposal_to_begin(approved, playbook, incident)
    verdict = refused_restart(approved, incident, facts, rules, now) or judge(proposal, facts, rules, now)
    tx.add_decision(decision_of(proposal, verdict, now))
    if verdict.outcome is Outcome.refused:
        _audit_run(tx, run, "run.approved", order)
        return verdict
    if verdict.outcome is Outcome.act and not run.alongside:
        freed = take_over_untouched(tx, approved, facts, rules, now)
        if run.node in facts.running and not freed:
            raise Conflict(say("engine.node_taken", node=run.node))
    return _begin_approved(tx, approved, verdict, order)


def _begin_approved(tx: CommandTx, run: Run, verdict: JudgeResult, order: Order) -> Run:
    state = RunState.running if verdict.outcome is Outcome.act else RunState.held
    stored = tx.set_run_state(
        run.id, state, why=verdict.why, at=order.at, approved_by=order.by, input=run.input
    )
    _audit_run(tx, stored, "run.approved", order)
    return stored


def _approve_step(tx: CommandTx, run: Run, step: str, order: Order, restart: Mapping[str, int]) -> Run:
    agreement = {"by": order.by} | ({"restart": dict(restart)} if restart else {})
    text = say("engine.approved", who=order.by, reason=order.reason)
    tx.write(_person_entry(run, step, StepEvent.done, text, order, agreement))
    return _go_on(tx, run, "run.approved", order)


def _is_repeated(tx: CommandTx, order: Order) -> bool:
    return tx.audited(f"run/{order.about}", order.request)


def _approved_before(run: Run, order: Order, restart: Mapping[str, int]) -> Run:
    """The run for a repeated approval; Conflict if the approval differs from the earlier one."""
    if run.approved_by != order.by:
        raise Conflict(say("engine.nothing_to_approve", **_id_and_state(run)))
    if not restart.items() <= run.input.get("restart", {}).items():
        raise Conflict(say("engine.restart_too_late", **_id_and_state(run)))
    return run


def _id_and_state(run: Run) -> dict[str, str]:
    """The run's id and state, for the text of a refusal."""
    return {"run": run.id, "state": say(f"words.run_{run.state}")}


def _why_account(name: str) -> Said | None:
    return None if is_person(name) else say("engine.accounts_never_approve", name=name)


def why_not_approve(run: Run, playbook: Playbook, approver: Approver, rules: Ruleset) -> Said | None:
    """Why this approver may not approve the run, in one sentence; None if they may. If a service account
    requested the run, its owner counts as the requester."""
    if why := _why_account(approver.name):
        return why
    if not broke_glass(approver.name) and (why := _why_no_person(run, approver, rules)):
        return why
    groups = approver.person.groups if approver.person else ()
    for duty in rules.access.duties_of(run.playbook):
        if barred := sorted({*duty.never} & {*groups}):
            return say("engine.never_approves", playbook=run.playbook, group=barred[0])
    if not _may_have_asked(person_of(run.by), approver.name):
        return None
    if cannot_be_undone(playbook):
        return say("engine.glass_no_second" if person_of(run.by) != approver.name else "engine.second_person")
    if rules.access.needs_second(run.playbook):
        return say("engine.duty_second_person", playbook=run.playbook)
    return None


def _may_have_asked(asker: str, approver: str) -> bool:
    """Whether the approver may be the person who asked. A break-glass user could be anyone."""
    return asker == approver or (asker != "healer" and count_people((asker, approver)) < 2)


def _why_no_person(run: Run, approver: Approver, rules: Ruleset) -> Said | None:
    """Why the approver is not a person of the site, or the identity provider's groups do not grant it; else
    None. The API has already checked the role of a local person."""
    person = approver.person
    if not approver.provided:
        return say("engine.unknown_approves", name=approver.name) if person is None else None
    if person is None or person.issuer == LOCAL:
        return say("engine.nobody_approves", name=approver.name)
    may = (
        grant.role in APPROVING and grant.covers(run.cluster) and fits_any(run.playbook, grant.playbooks)
        for grant in rules.access.grants_of(person.subject, person.groups)
    )
    if any(may):
        return None
    return say("engine.not_granted", name=person.name, playbook=run.playbook, cluster=run.cluster)


def _step_to_approve(tx: CommandTx, run: Run) -> str | None:
    """The step at which the run waits for an approval; None if it waits for none."""
    log = tx.log(run.id) if run.state is RunState.waiting else ()
    last = log[-1] if log else None
    waits = last is not None and last.event is StepEvent.waiting and last.data.get("approval")
    return last.step if last is not None and waits else None


def stop(tx: CommandTx, order: Order, state: RunState) -> Run:
    """Rejects a run that waits for permission, to begin or at a step, or cancels one that has not ended, and
    informs the detector."""
    tx.lock_gate()
    run = locked_run(tx, order.about)
    if run.state is state:
        return run
    if run.state in ENDED_RUN_STATES:
        raise Conflict(say("engine.run_ended", **_id_and_state(run)))
    asks = run.state in ASKING or _step_to_approve(tx, run) is not None
    if state is RunState.rejected and not asks:
        raise Conflict(say("engine.cancel_instead", **_id_and_state(run)))
    verb = f"run.{state}"
    stored = tx.set_run_state(run.id, state, why=order.reason, at=order.at)
    _audit_run(tx, stored, verb, order)
    if stored.incident:
        news = run_changed(stored, state, order.at, by=order.by, reason=order.reason)
        tx.send_command(news, request=f"{order.request}:{verb}")
    return stored


def retry(tx: CommandTx, order: Order, step: str | None, epoch: int | None, rules: Ruleset) -> Run:
    tx.lock_gate()
    run = locked_run(tx, order.about)
    if run.state is RunState.running or _is_repeated(tx, order):
        return run
    if epoch not in (None, run.epoch) and run.wake_at is None:  # each check of a timed wait is a new epoch
        raise Conflict(say("engine.went_on", run=run.id))
    if step is not None:
        keys = _steps_from(tx, run, step, rules)
    elif run.state is RunState.stuck:
        # Of several jobs one may be stuck while the log's last entry is about another.
        keys = stuck_keys(_book_of(run, rules), tx.log(run.id), order.at)
    else:
        raise Conflict(say("engine.not_stuck", **_id_and_state(run)))
    text = say("engine.by_person", who=order.by, reason=order.reason)
    for key in keys:
        tx.write(_person_entry(run, key, StepEvent.retry, text, order))
    return _go_on(tx, run, "run.retried", order)


def _steps_from(tx: CommandTx, run: Run, step: str, rules: Ruleset) -> list[str]:
    if run.state not in _GOES_BACK:
        raise Conflict(say("engine.cannot_go_back", **_id_and_state(run)))
    log = tx.log(run.id)
    if any(entry.step == UNDO for entry in log):
        raise Conflict(say("engine.taken_back_now", run=run.id))
    try:
        keys = keys_from_step(_book_of(run, rules), log, step)
    except ValueError as error:
        raise Invalid("step", said_by(error)) from error
    if not keys:
        raise Conflict(say("engine.not_come_to", run=run.id, step=step))
    return keys


def undo(tx: CommandTx, order: Order, rules: Ruleset) -> Run:
    tx.lock_gate()
    run = locked_run(tx, order.about)
    log = tx.log(run.id)
    if any(entry.step == UNDO for entry in log):
        return run
    if run.state in ENDED_RUN_STATES:
        raise Conflict(say("engine.ended_not_undone", **_id_and_state(run)))
    if not parts_to_undo(_book_of(run, rules), log):
        raise Conflict(say("engine.changed_nothing", run=run.id))
    text = say("engine.by_person", who=order.by, reason=order.reason)
    tx.write(_person_entry(run, UNDO, StepEvent.done, text, order, {"by": order.by}))
    return _go_on(tx, run, "run.undo", order)


def reset_breaker(tx: CommandTx, order: Order, since: datetime | None = None) -> Breaker:
    facts = tx.lock_gate()
    if tx.audited(f"breaker/{facts.cluster}", order.request):
        return facts.breaker  # it may have opened again, which this order does not cover
    if since is not None and facts.breaker.state is BreakerState.open and facts.breaker.since != since:
        raise Conflict(say("engine.breaker_opened_again", cluster=facts.cluster))
    try:
        breaker = reset(facts.breaker, order.by, order.reason, order.at)
    except ValueError as error:
        raise Conflict(said_by(error)) from error
    tx.save_breaker(breaker)
    tx.queue_message(breaker_reset_message(facts.breaker, order.by, order.reason))
    _audit(tx, facts.cluster, "breaker.reset", f"breaker/{facts.cluster}", order)
    return breaker


def locked_run(tx: CommandTx, run: str) -> Run:
    found = tx.lock_run(run)
    if found is None:
        raise NotFound(say("engine.no_run", run=run))
    return found


def _book_of(run: Run, rules: Ruleset) -> Playbook:
    """The run's playbook as it is now. Raises Conflict where it was removed since the run began."""
    playbook = rules.playbooks.get(run.playbook)
    if playbook is None:
        raise Conflict(say("engine.playbook_gone", name=run.playbook))
    return playbook


def playbook_of(rules: Ruleset, request: RunRequest) -> Playbook:
    """Raises NotFound, or Invalid if the request names a target of the wrong kind for the playbook."""
    playbook = rules.playbooks.get(request.playbook)
    if playbook is None:
        names = ", ".join(sorted(rules.playbooks))
        raise NotFound(say("engine.no_playbook", name=request.playbook, names=names))
    wanted, other = ("node", "job") if playbook.target == "node" else ("job", "node")
    if getattr(request, wanted) is None:
        raise Invalid(wanted, say(f"engine.works_on_{wanted}", playbook=playbook.name))
    if getattr(request, other) is not None:
        raise Invalid(other, say(f"engine.not_on_{other}", playbook=playbook.name))
    return playbook


def _node_and_jobs(
    scheduler: SlurmReads, request: RunRequest, incident: Incident | None
) -> tuple[SlurmNode | None, SlurmJob | None, list[SlurmJob]]:
    """The node and the job that the request names, and the jobs that it would hit. Raises Conflict."""
    if request.job:
        job = read_job(scheduler, request.job)
        return None, job, [job] if job else []
    try:
        node = scheduler.node(request.node or "")
        root = incident.root if incident else Component(cluster=request.cluster, node=request.node)
        hit, certain = hit_among(scheduler.jobs_on(node.name), root, node_gpus=node.gpus)
        return node, None, hit if certain else []
    except SchedulerError as error:
        raise Conflict(say("engine.slurm_says", error=said_by(error))) from error


def _unavailable_steps(scheduler: SlurmReads, playbook: Playbook) -> dict[str, str]:
    """Step -> why this Slurm's adapters cannot do it; empty if Slurm does not answer."""
    try:
        lacks = scheduler.unavailable()
    except SchedulerError:
        return {}
    missing = {step.id: [call for call in calls_of(step) if call in lacks] for step in playbook.steps}
    return {
        step: say("engine.not_available", why=quoted(lacks[calls[0]]))
        for step, calls in missing.items()
        if calls
    }


@contextmanager
def _changing(site: Site) -> Iterator[CommandTx]:
    """One transaction. Raises Conflict if another run works on the node of a run that would continue."""
    try:
        with site.ledger.command() as tx:
            yield tx
    except NodeTaken as error:
        raise Conflict(say("engine.node_taken", node=str(error))) from error


def _or_refused(answer: Run | JudgeResult) -> Run:
    if isinstance(answer, Run):
        return answer
    assert answer.answer is not None
    raise GuardRefused(answer.answer)


def _wake_for(site: Site, run: Run) -> Run:
    """Wakes the workers if the run continues; returns the run."""
    _wake(site, [run])
    return run


def _wake(site: Site, results: Sequence[object]) -> None:
    """Wakes the workers for all running runs among the results, in one message."""
    due = [run.id for run in results if isinstance(run, Run) and run.state is RunState.running]
    if due:
        site.poke(due)


def _person_entry(
    run: Run, step: str, event: StepEvent, text: Said, order: Order, data: dict[str, Any] | None = None
) -> LogEntry:
    """A person's entry in the run's log; its new epoch fences off the worker that holds the run."""
    return LogEntry(
        run=run.id, at=order.at, epoch=run.epoch + 1, step=step, event=event, text=text, data=data or {}
    )


def _go_on(tx: CommandTx, run: Run, verb: str, order: Order) -> Run:
    stored = tx.set_run_state(run.id, RunState.running, why=order.reason, at=order.at, input=run.input)
    _audit_run(tx, stored, verb, order)
    return stored


def _audit_run(tx: CommandTx, run: Run, verb: str, order: Order) -> None:
    data = {"incident": run.incident, "state": str(run.state)}
    if verb == "run.approved" and (agreed := run.input.get("restart")):
        data["restart"] = agreed
    _audit(tx, run.cluster, verb, f"run/{run.id}", order, **data)


def _audit(tx: CommandTx, cluster: str, verb: str, subject: str, order: Order, **data: Any) -> None:
    why = {"reason": order.reason, "request": order.request}
    tx.audit(audit_record(cluster, order.at, order.by, verb, subject, **why, **data))
