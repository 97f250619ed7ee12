"""What people tell about incidents. Only the detector writes their structure: these are commands to it."""

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from healer.api.access import confine, need
from healer.api.answers import answer
from healer.api.bodies import Body, MergeBody, NoteBody, Nothing, Reason, ReviewBody, SplitBody
from healer.api.documents import answers
from healer.api.once import once
from healer.api.problems import field_error
from healer.api.reading import Id, services_of
from healer.model import Command, CommandKind, Incident, Review, Role
from healer.ports.callers import Caller
from healer.ports.request_errors import Conflict, NotFound

router = APIRouter()

Responder = Annotated[Caller, need(Role.responder)]

#: How long an answer waits for the detector; after it, 202.
WAIT_S = 2.0
_POLL_S = (0.005, 0.01, 0.02, 0.04, 0.08)

_DONE = answers(Incident, "the incident as it is now") | answers(
    Incident, "stored, but the detector has not taken it yet", 202
)


def _own(request: Request, caller: Caller, id: str) -> Incident:
    incident = services_of(request).reads.incident(id)
    if incident is None:
        raise NotFound(f"there is no incident {id}")
    job = caller.job if caller.job in incident.jobs_hit else None
    confine(request, caller, cluster=incident.cluster, node=incident.root.node, job=job)
    return incident


def _tell(
    request: Request,
    caller: Caller,
    id: str,
    body: Body,
    kind: CommandKind,
    *,
    reason: str | None,
    data: dict[str, Any] | None = None,
    check: Callable[[Incident], None] | None = None,
    then: Callable[[Incident, str], None] | None = None,
) -> Response:
    """Puts a command before the detector and answers with what came of it."""
    services = services_of(request)
    incident = _own(request, caller, id)

    def act(identity: str) -> Response:
        if check is not None:
            check(incident)
        command = Command(
            kind=kind,
            cluster=incident.cluster,
            at=services.clock.now(),
            by=caller.name,
            incident=incident.id,
            reason=reason or "",
            data=data or {},
        )
        row = services.controls.tell(command, request=identity)
        if then is not None:
            then(incident, identity)
        taken = _taken(lambda: services.controls.consumed(row))
        return answer(request, services.reads.incident(incident.id), 200 if taken else 202)

    return once(request, caller, body, act)


def _taken(consumed: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_S
    waits = iter(_POLL_S)
    while not consumed():
        if time.monotonic() >= deadline:
            return False
        time.sleep(next(waits, _POLL_S[-1]))
    return True


@router.post("/incidents/{id}/acknowledge", responses=_DONE)
def acknowledge(request: Request, caller: Responder, id: Id, body: Nothing | None = None) -> Response:
    """Somebody has seen it and takes care."""
    words = body or Nothing()
    return _tell(request, caller, id, words, CommandKind.acknowledge, reason=words.reason)


@router.post("/incidents/{id}/resolve", responses=_DONE)
def resolve(request: Request, caller: Responder, id: Id, body: Reason) -> Response:
    """Ends an incident by a person's word. A run that works on it is cancelled."""

    def check(incident: Incident) -> None:
        if not incident.is_open:
            raise Conflict("the incident is resolved already")

    return _tell(request, caller, id, body, CommandKind.resolve, reason=body.reason, check=check)


@router.post("/incidents/{id}/reopen", responses=_DONE)
def reopen(request: Request, caller: Responder, id: Id, body: Reason) -> Response:
    """Opens a resolved incident again: it is decided anew."""

    def check(incident: Incident) -> None:
        if incident.is_open:
            raise Conflict("the incident is open")
        if incident.merged_into:
            raise Conflict(f"the incident was merged into {incident.merged_into}")

    return _tell(request, caller, id, body, CommandKind.reopen, reason=body.reason, check=check)


@router.post("/incidents/{id}/review", responses=_DONE)
def review(request: Request, caller: Responder, id: Id, body: ReviewBody) -> Response:
    """Whether it was a true fault: feeds its rule's precision. Too many false alarms end its mode auto."""
    data = {"review": body.review} | ({"cause": body.cause} if body.cause else {})
    services = services_of(request)

    def then(incident: Incident, identity: str) -> None:
        rule = services.rules().by_name.get(incident.rule)
        if rule is not None:
            services.controls.judge_mode(
                rule, incident=incident.id, review=Review(body.review), request=identity
            )

    return _tell(request, caller, id, body, CommandKind.review, reason=body.reason, data=data, then=then)


@router.post("/incidents/{id}/merge", responses=_DONE)
def merge(request: Request, caller: Responder, id: Id, body: MergeBody) -> Response:
    """Ends this incident as a part of another one."""
    into = _own(request, caller, body.into)

    def check(incident: Incident) -> None:
        if into.id == incident.id:
            raise field_error("into", "an incident cannot be merged into itself")
        if into.cluster != incident.cluster:
            raise field_error("into", f"that incident is of the cluster {into.cluster}")
        if into.merged_into:
            raise Conflict(f"incident {into.short_id} was itself merged into {into.merged_into[:8]}")
        if not incident.is_open:
            raise Conflict("the incident is resolved already")

    return _tell(
        request, caller, id, body, CommandKind.merge, reason=body.reason, data={"into": into.id}, check=check
    )


@router.post("/incidents/{id}/split", responses=_DONE)
def split(request: Request, caller: Responder, id: Id, body: SplitBody) -> Response:
    """What was merged into it are incidents of their own again, and nothing but a person merges them anew."""
    merged = services_of(request).reads.merged_into(_own(request, caller, id).id)
    parts = merged if body.incidents is None else [_one_of(merged, name) for name in body.incidents]

    def check(incident: Incident) -> None:
        if not parts:
            raise Conflict("nothing was merged into the incident")

    data = {"incidents": list(dict.fromkeys(parts))}
    return _tell(request, caller, id, body, CommandKind.split, reason=body.reason, data=data, check=check)


def _one_of(merged: Sequence[str], name: str) -> str:
    found = [one for one in merged if one.startswith(name)]
    if len(found) != 1:
        raise field_error("incidents", f"{name} was not merged into this incident")
    return found[0]


@router.post("/incidents/{id}/note", responses=answers(Incident, "the incident"))
def note(request: Request, caller: Responder, id: Id, body: NoteBody) -> Response:
    """Adds a person's words to the incident."""
    services = services_of(request)
    incident = _own(request, caller, id)

    def act(identity: str) -> Response:
        services.controls.note(incident.id, body.note, by=caller.name, request=identity)
        return answer(request, services.reads.incident(incident.id))

    return once(request, caller, body, act)
