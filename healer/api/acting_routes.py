"""Commands of people: on incidents, runs, rules, pauses and the breaker, and repairs of drift from Slurm.

The gate decides; these routes only pass the commands on."""

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from fastapi import Query, Request
from starlette.responses import Response

from healer.api.access import (
    ALLOWED,
    Admin,
    Operator,
    Responder,
    Viewer,
    allowed_cluster,
    allowed_run,
    check_served,
    confine,
    named_cluster,
)
from healer.api.db_health import Fleet
from healer.api.documents import answers
from healer.api.granted import bars_approval, bars_change, may_use
from healer.api.lanes import COMMANDS, PAUSES, LaneRouter
from healer.api.problems import Problem, field_error, not_in_slurm
from healer.api.request_fields import (
    ApproveBody,
    AssignBody,
    BreakerBody,
    Id,
    MergeBody,
    ModeBody,
    NoteBody,
    Nothing,
    PauseBody,
    Reason,
    RetryBody,
    ReviewBody,
    RunBody,
    SplitBody,
    TextInQuery,
    Word,
    count_refusal,
    once,
)
from healer.api.responses import answer
from healer.api.rule_views import BreakerView, RuleView, check_mode, playbook_named, rule_named, rule_view
from healer.api.services import Services, services_of
from healer.engine.records import incident_of_one_job
from healer.model import Incident, Mode, Pause, Playbook, Review, Role, Run, RunState, Verb
from healer.model.node import Drift, Reconciled
from healer.ports.answers import Preview, RuleRecord
from healer.ports.callers import Caller
from healer.ports.commanding import RunRequest
from healer.ports.request_errors import GuardRefused, NotFound
from healer.text import Said, say

router = LaneRouter(COMMANDS, tags=["acting"])
_pauses = LaneRouter(PAUSES)
#: How long a proof of identity is valid for power operations.
FRESH = timedelta(minutes=5)
#: How long an answer waits for the detector; after it, 202.
WAIT_S = 2.0
_POLL_S = (0.005, 0.01, 0.02, 0.04, 0.08)
_DONE = answers(Incident, "the incident as it is now") | answers(
    Incident, "stored, but the detector has not taken it yet", 202
)


def _allowed_incident(request: Request, caller: Caller, id: str) -> Incident:
    incident = services_of(request).queries.incidents.find(id)
    if incident is None:
        raise NotFound(say("engine.no_incident", incident=id))
    job = caller.job if caller.job in incident.jobs_hit else None
    confine(request, caller, cluster=incident.cluster, node=incident.root.node, job=job)
    return incident


def _answer_incident(request: Request, caller: Caller, id: str, status: int = 200) -> Response:
    """The incident as it is now; without its other jobs for a token of one job."""
    found = services_of(request).queries.incidents.find(id)
    if found is not None and caller.job is not None:
        found = incident_of_one_job(found, caller.job)
    return answer(request, found, status)


def _command(
    request: Request,
    caller: Caller,
    id: str,
    body: Nothing | Reason | ReviewBody | MergeBody | SplitBody,
    verb: str,
    **more: Any,
) -> Response:
    """Gives the command to the detector and answers with the incident after it."""
    services = services_of(request)
    incident = _allowed_incident(request, caller, id)
    check_served(services, incident.cluster)
    command = getattr(services.incidents, verb)

    def act(identity: str) -> Response:
        row = command(incident.id, by=caller.name, reason=body.reason or "", request=identity, **more)
        consumed = _wait_until(lambda: services.incidents.consumed(row))
        return _answer_incident(request, caller, incident.id, 200 if consumed else 202)

    return once(request, caller, body, act)


def _wait_until(is_done: Callable[[], bool]) -> bool:
    """Whether it was done within WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    waits = iter(_POLL_S)
    while not is_done():
        if time.monotonic() >= deadline:
            return False
        time.sleep(next(waits, _POLL_S[-1]))
    return True


@router.post("/incidents/{id}/acknowledge", responses=_DONE)
def acknowledge(request: Request, caller: Responder, id: Id, body: Nothing | None = None) -> Response:
    """Somebody has seen it and takes care. 409 if another person already does: assign takes it over."""
    return _command(request, caller, id, body or Nothing(), "acknowledge")


@router.post("/incidents/{id}/assign", responses=_DONE)
def assign(request: Request, caller: Responder, id: Id, body: AssignBody) -> Response:
    """Another person looks after it from now on."""
    return _command(request, caller, id, body, "assign", to=body.to)


@router.post("/incidents/{id}/resolve", responses=_DONE)
def resolve(request: Request, caller: Responder, id: Id, body: Reason) -> Response:
    """Ends an incident by a person's word. A run that works on it is cancelled."""
    return _command(request, caller, id, body, "resolve")


@router.post("/incidents/{id}/reopen", responses=_DONE)
def reopen(request: Request, caller: Responder, id: Id, body: Reason) -> Response:
    """Opens a resolved incident again: healer decides again what to do."""
    return _command(request, caller, id, body, "reopen")


@router.post("/incidents/{id}/review", responses=_DONE)
def review(request: Request, caller: Responder, id: Id, body: ReviewBody) -> Response:
    """Whether it was a true fault: feeds its rule's precision. Too many false alarms end its mode auto."""
    return _command(request, caller, id, body, "review", review=Review(body.review), cause=body.cause)


@router.post("/incidents/{id}/merge", responses=_DONE)
def merge(request: Request, caller: Responder, id: Id, body: MergeBody) -> Response:
    """Ends this incident as a part of another one."""
    into = _allowed_incident(request, caller, body.into)
    return _command(request, caller, id, body, "merge", into=into.id)


@router.post("/incidents/{id}/split", responses=_DONE)
def split(request: Request, caller: Responder, id: Id, body: SplitBody) -> Response:
    """What was merged into it become incidents of their own again; only a person can merge them again."""
    return _command(request, caller, id, body, "split", parts=body.incidents)


@router.post("/incidents/{id}/note", responses=answers(Incident, "the incident"))
def note(request: Request, caller: Responder, id: Id, body: NoteBody) -> Response:
    """Adds a person's words to the incident."""
    services = services_of(request)
    incident = _allowed_incident(request, caller, id)

    def act(identity: str) -> Response:
        services.incidents.note(incident.id, body.note, by=caller.name, request=identity)
        return _answer_incident(request, caller, incident.id)

    return once(request, caller, body, act)


RUNS = "/api/v1/runs/"


# --- runs ------------------------------------------------------------------------------------------------


@router.post(
    "/playbooks/{name}/runs",
    responses=answers(Run, "the run; in state `held` when a guard holds it", 202)
    | answers(Preview, "a dry run: the plan, what the guards say now, the jobs it would hit"),
    status_code=202,
)
def start_run(
    request: Request, caller: Responder, name: Id, body: RunBody, dry_run: Annotated[bool, Query()] = False
) -> Response:
    """Starts a playbook on a node or a job. A guard's Refuse is 409, its Hold a run in state `held`."""
    services = services_of(request)
    playbook = playbook_named(services.rules(), name)
    cluster = named_cluster(services, caller, body.cluster)
    _check_target(playbook, body)
    confine(request, caller, cluster=cluster, node=body.node, job=body.job)
    _check_level(request, caller, playbook, cluster)
    _check_place(request, cluster, body.node)
    check_fresh(services, caller, playbook)
    _check_reach(request, caller, restart=body.restart, nodes=body.inputs.get("nodes"))
    wanted = RunRequest(
        id="preview",
        playbook=name,
        cluster=cluster,
        by=caller.name,
        reason=body.reason or "",
        node=body.node,
        job=body.job,
        incident=body.incident,
        inputs=body.inputs,
        restart=tuple(body.restart),
    )
    if dry_run or body.dry_run:
        return answer(request, services.runs.preview(wanted))
    if not body.reason:
        raise field_error("reason", say("api.run_needs_reason"))

    def act(identity: str) -> Response:
        run = services.runs.start(msgspec.structs.replace(wanted, id=identity))
        return answer(request, run, 202, headers={"Location": RUNS + run.id})

    return _guarded(request, caller, body, act)


def _check_target(playbook: Playbook, body: RunBody) -> None:
    other = "job" if playbook.target == "node" else "node"
    if not getattr(body, playbook.target):
        raise field_error(
            playbook.target,
            say("api.playbook_needs_target", name=playbook.name, target=playbook.target),
        )
    if getattr(body, other):
        raise field_error(
            other,
            say(
                "api.playbook_takes_other_target",
                name=playbook.name,
                target=playbook.target,
                other=other,
            ),
        )


def _check_level(request: Request, caller: Caller, playbook: Playbook, cluster: str) -> None:
    least = Role.responder if playbook.level <= 1 else Role.operator
    if not may_use(caller, ALLOWED[least], cluster, playbook.name):
        why = say(
            "api.playbook_needs_role",
            name=playbook.name,
            needed=least.value,
            own=caller.role.value,
        )
        raise _refusal(request, caller, why)


def switches_power(playbook: Playbook | None) -> bool:
    return playbook is not None and any(step.do is Verb.power_cycle for step in playbook.steps)


def check_fresh(services: Services, caller: Caller, playbook: Playbook | None) -> None:
    """403: someone who signed in through the identity provider or a local account must prove their identity
    again before power operations."""
    session = caller.session
    if session is None or not switches_power(playbook) or not (caller.granted or session.has_account):
        return
    if services.clock.now() - session.proven_at > FRESH:
        if caller.csrf is None:  # a command's session
            raise Problem(403, say("api.sign_in_again_by_command"), code="sign_in_again")
        where = "/sign-in" if session.has_account and services.sign_in is None else "/auth/begin?again=true"
        raise Problem(403, say("api.sign_in_again_for_power", where=where), code="sign_in_again")


def _check_reach(request: Request, caller: Caller, *, restart: Sequence[str], nodes: object = None) -> None:
    """403: a token for one node or job reaches no jobs that span more, and no other nodes."""
    if (caller.node or caller.job) and (restart or nodes):
        raise _refusal(request, caller, say("api.bound_no_restart" if restart else "api.bound_no_search"))


def _refusal(request: Request, caller: Caller, why: Said) -> Problem:
    """403, recorded."""
    request.app.state.access.refusals.note(caller, f"POST {request.url.path[:200]}", why)
    return Problem(403, why)


def _guarded(
    request: Request, caller: Caller, body: RunBody | Reason, act: Callable[[str], Response]
) -> Response:
    try:
        return once(request, caller, body, act)
    except GuardRefused as error:
        count_refusal(error)
        raise


def _on_run(
    request: Request,
    caller: Caller,
    id: str,
    body: Reason,
    verb: str,
    **more: str | int | Sequence[str] | datetime | None,
) -> Response:
    services = services_of(request)
    run = allowed_run(request, caller, id)
    check_served(services, run.cluster)
    bars = bars_approval if verb == "approve" else bars_change
    if why := bars(caller, ALLOWED[Role.operator], run):
        raise _refusal(request, caller, why)
    if verb == "approve":
        check_fresh(services, caller, services.rules().playbooks.get(run.playbook))
    command = getattr(services.runs, verb)

    def act(identity: str) -> Response:
        changed: Run = command(run.id, by=caller.name, reason=body.reason, request=identity, **more)
        status = 202 if changed.state is RunState.held else 200
        return answer(request, changed, status, headers={"Location": RUNS + run.id})

    return _guarded(request, caller, body, act)


@router.post(
    "/runs/{id}/approve",
    responses=answers(Run, "the run goes on") | answers(Run, "a guard holds the run", 202),
)
def approve(request: Request, caller: Operator, id: Id, body: ApproveBody) -> Response:
    """Approves a run that waits for it. For what cannot be undone, not by the person who asked for it.
    `restart` names jobs on its node whose restart you agree to; `approve_until` the question that you saw."""
    _check_reach(request, caller, restart=body.restart)
    return _on_run(request, caller, id, body, "approve", restart=body.restart, until=body.approve_until)


@router.post("/runs/{id}/reject", responses=answers(Run, "the run ends as rejected"))
def reject(request: Request, caller: Operator, id: Id, body: Reason) -> Response:
    """Refuses a run that waits for approval."""
    return _on_run(request, caller, id, body, "reject")


@router.post("/runs/{id}/cancel", responses=answers(Run, "the run is cancelled"))
def cancel(request: Request, caller: Operator, id: Id, body: Reason) -> Response:
    """Stops a run before its next step. A step under way is read back first."""
    return _on_run(request, caller, id, body, "cancel")


@router.post("/runs/{id}/retry", responses=answers(Run, "the run goes on"))
def retry(request: Request, caller: Operator, id: Id, body: RetryBody) -> Response:
    """Lets a stuck run go on where it stopped; with `step` one that is stuck or waits goes back to there.
    `epoch` names the failure that you saw."""
    return _on_run(request, caller, id, body, "retry", step=body.step, epoch=body.epoch)


@router.post("/runs/{id}/undo", responses=answers(Run, "the run takes back what it did"))
def undo(request: Request, caller: Operator, id: Id, body: Reason) -> Response:
    """Takes back what a run has done, the last step first; then it ends as `undone`."""
    return _on_run(request, caller, id, body, "undo")


# --- rules, pauses, breaker ------------------------------------------------------------------------------


@router.post("/rules/{name}/mode", responses=answers(RuleView, "the rule with its new mode"))
def set_mode(request: Request, caller: Admin, name: Id, body: ModeBody) -> Response:
    """Sets how far a rule may go by itself, while running. Auto has to be earned (docs/gate.md): else 409."""
    services = services_of(request)
    rule = rule_named(services.rules(), name)
    check_mode(rule, Mode(body.mode))
    if caller.cluster or caller.clusters or caller.node or caller.job:
        confine(request, caller)

    def act(identity: str) -> Response:
        services.controls.set_mode(
            rule, Mode(body.mode), by=caller.name, reason=body.reason, request=identity
        )
        queries = services.queries.rules
        record = queries.records().get(name, RuleRecord())
        return answer(request, rule_view(services.rules(), rule, record, queries.trials()))

    return once(request, caller, body, act)


@_pauses.post("/pauses", responses=answers(Pause, "the pause, in force", 201), status_code=201)
def pause(request: Request, caller: Operator, body: PauseBody) -> Response:
    """Stops healer from acting on its own in this scope, within a second, until ended or over."""
    services = services_of(request)
    _check_pause(services, caller, request, body)

    def act(identity: str) -> Response:
        made = services.controls.pause(
            Pause(
                id=identity,
                scope=body.scope,
                name=body.name or "",
                by=caller.name,
                reason=body.reason,
                since=services.clock.now(),
                until=body.until,
                cluster=_pause_cluster(services, caller, body),
            ),
            request=identity,
        )
        return answer(request, made, 201, headers={"Location": f"/api/v1/pauses/{made.id}"})

    return once(request, caller, body, act)


def _check_pause(services: Services, caller: Caller, request: Request, body: PauseBody) -> None:
    if body.scope == "all" and body.name:
        raise field_error("name", say("api.scope_all_takes_no_name"))
    if body.scope not in {"all", "cluster"} and not body.name:
        raise field_error("name", say("api.pause_needs_name", scope=body.scope))
    if body.until is not None and body.until <= services.clock.now():
        raise field_error("until", say("api.in_the_past"))
    cluster = body.name if body.scope == "cluster" and body.name else body.cluster
    node = body.name if body.scope == "node" else None
    confine(request, caller, cluster=cluster or caller.cluster, node=node)
    if body.scope == "rule" and body.name:
        rule_named(services.rules(), body.name)
    if body.scope == "playbook" and body.name:
        playbook_named(services.rules(), body.name)
    partition = body.name if body.scope == "partition" else None
    _check_place(request, _pause_cluster(services, caller, body), node, partition)


def _check_place(
    request: Request, cluster: str | None, node: str | None, partition: str | None = None
) -> None:
    """404 for what certainly does not exist: a misspelt pause would hold nothing, and a run never start."""
    services = services_of(request)
    if cluster is not None:
        check_served(services, cluster)
    fleet: Fleet = request.app.state.fleet
    snapshot = fleet.snapshots().get(cluster or "") if node or partition else None
    if snapshot is None:
        return
    if node is not None and node not in snapshot.nodes:
        raise NotFound(not_in_slurm(snapshot, "node", node, snapshot.cluster))
    partitions = {name for each in snapshot.nodes.values() for name in each.partitions}
    if partition is not None and partitions and partition not in partitions:
        names = ", ".join(sorted(partitions))
        raise NotFound(say("api.no_partition", partition=partition, cluster=cluster, names=names))


def _pause_cluster(services: Services, caller: Caller, body: PauseBody) -> str | None:
    """A rule or everything is paused on all clusters unless one is named; a node always has one."""
    if body.scope == "cluster":
        return body.name or named_cluster(services, caller, body.cluster)
    if body.scope in {"node", "partition"}:
        return named_cluster(services, caller, body.cluster)
    return body.cluster or caller.cluster


@_pauses.delete("/pauses/{id}", responses=answers(Pause, "the pause that ended"))
def end_pause(
    request: Request,
    caller: Operator,
    id: Id,
    reason: TextInQuery = "",
    body: Reason | None = None,
) -> Response:
    """Ends a pause. The reason may be in the body or in the query."""
    services = services_of(request)
    pause = _pause_named(services.queries.clusters.pauses(services.clock.now()), id)
    if pause is not None:
        confine(request, caller, cluster=pause.cluster, node=pause.name if pause.scope == "node" else None)
    words = body or Reason(reason=reason or say("api.no_reason"))

    def act(identity: str) -> Response:
        controls = services.controls
        if pause is None:  # the first try of this request may have ended it
            earlier = controls.ended_pause(id, request=identity)
            if earlier is None:
                raise NotFound(say("engine.no_pause", pause=id))
            return answer(request, earlier)
        ended = controls.end_pause(pause.id, by=caller.name, reason=words.reason, request=identity)
        return answer(request, ended)

    return once(request, caller, words, act)


def _pause_named(in_force: Sequence[Pause], name: str) -> Pause | None:
    """The pause with this id, or the only one whose id begins with `name`, as for incidents and runs."""
    whole = [pause for pause in in_force if pause.id == name]
    found = whole or [pause for pause in in_force if len(name) >= 8 and pause.id.startswith(name)]
    return found[0] if len(found) == 1 else None


router.include_router(_pauses)


@router.post("/breaker/reset", responses=answers(BreakerView, "the breaker, half-open"))
def reset_breaker(request: Request, caller: Admin, body: BreakerBody) -> Response:
    """After a storm: lets one canary through. A named person says why; `since` names the storm that you
    saw."""
    services, cluster = services_of(request), allowed_cluster(request, caller, body.cluster)

    def act(identity: str) -> Response:
        words = {"by": caller.name, "reason": body.reason, "request": identity}
        return answer(request, services.runs.reset_breaker(cluster, **words, since=body.since))

    return once(request, caller, body, act)


class DriftList(msgspec.Struct, frozen=True, kw_only=True):
    """Empty where healer's book and Slurm agree."""

    cluster: str
    items: list[Drift]


class RepairList(msgspec.Struct, frozen=True, kw_only=True):
    """One answer for each drift that was there."""

    cluster: str
    items: list[Reconciled]


class RepairBody(Reason):
    """`cluster` may be left out where there is one."""

    cluster: Word | None = None


@router.get("/reconcile", responses=answers(DriftList, "where healer's book and Slurm do not agree"))
def drift(request: Request, caller: Viewer, cluster: Annotated[str | None, Query()] = None) -> Response:
    """What healer left in Slurm without a run for it, and what healer holds that Slurm does not show."""
    named = allowed_cluster(request, caller, cluster)
    return answer(request, DriftList(cluster=named, items=services_of(request).reconcile.drifts(named)))


@router.post("/reconcile", responses=answers(RepairList, "what came of each repair"))
def repair(request: Request, caller: Operator, body: RepairBody) -> Response:
    """Repairs what is healer's own: each through the gate and in the audit. A person's word is left alone."""
    services, cluster = services_of(request), allowed_cluster(request, caller, body.cluster)

    def act(identity: str) -> Response:
        done = services.reconcile.repair(
            cluster,
            by=caller.name,
            reason=body.reason,
            request=identity,
            may_use=lambda playbook: may_use(caller, ALLOWED[Role.operator], cluster, playbook),
        )
        return answer(request, RepairList(cluster=cluster, items=done))

    return once(request, caller, body, act)
