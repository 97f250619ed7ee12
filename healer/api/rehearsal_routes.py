"""Changes of rule files, tried over recordings: asked for, looked at, made proof. None is applied here."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field, StringConstraints
from starlette.responses import Response

from healer.api.access import Admin, Operator, Viewer, confine, named_cluster, own_clusters
from healer.api.documents import answers
from healer.api.problems import Problem, field_error
from healer.api.request_fields import Body, Id, Name, Reason, Text, Word, once
from healer.api.responses import answer
from healer.api.services import Services, services_of
from healer.model.recordings import Recordings
from healer.model.run import Outcomes, Rehearsal
from healer.ports.answers import Page
from healer.ports.callers import Caller
from healer.ports.request_errors import Conflict, NotFound
from healer.rulebook.source import unified

router = APIRouter(tags=["rules"])
NEWEST = 50
_FileText = Annotated[str, StringConstraints(max_length=262_144, pattern=r"^[^\x00]*$")]
#: Problems of a text that are told at once.
_PROBLEMS = 50


class RehearsalBody(Body):
    """`file` of `rules/` as it would be. The newest `days` that are recorded are replayed."""

    cluster: Word | None = None
    file: Word
    text: _FileText
    days: Annotated[float, Field(gt=0, le=31)] = 7.0
    samples: bool = True
    reason: Text


class ProofBody(Reason):
    """`rules`: those whose incidents in the replay become proof of them as edited."""

    rules: Annotated[list[Word], Field(min_length=1, max_length=100)]


@router.get("/recordings", responses=answers(Recordings, "the recordings, oldest first"))
def recordings(request: Request, caller: Viewer, cluster: Name = None) -> Response:
    """Whether this cluster is recorded, and what there is: spans, routes, sizes, what was lost."""
    services = services_of(request)
    meant = named_cluster(services, caller, cluster)
    confine(request, caller, cluster=meant)
    return answer(request, services.recordings(meant))


@router.get(
    "/recordings/done", responses=answers(dict[str, Any], "the document of a replay, of what was really done")
)
def done(
    request: Request,
    caller: Viewer,
    since: Annotated[datetime, Query()],
    until: Annotated[datetime, Query()],
    cluster: Name = None,
) -> Response:
    """What was really opened, done and held in a span, to compare a replay with."""
    services = services_of(request)
    meant = named_cluster(services, caller, cluster)
    confine(request, caller, cluster=meant)
    for name, at in (("since", since), ("until", until)):
        if at.tzinfo is None:
            raise field_error(name, "a moment with its zone")
    return answer(request, services.done(meant, since, until))


@router.get("/rehearsals", responses=answers(Page[Rehearsal], "newest first, without texts and results"))
def listed(request: Request, caller: Viewer, cluster: Name = None) -> Response:
    """Changes of rules that were tried."""
    found = services_of(request).rehearsals.newest(own_clusters(request, caller, cluster), NEWEST)
    return answer(request, Page(items=found))


@router.post("/rehearsals", responses=answers(Rehearsal, "it waits for its turn", 202), status_code=202)
def ask(request: Request, caller: Operator, body: RehearsalBody) -> Response:
    """Tries a change of one rule file over the recordings, in the background, one at a time. The text is
    checked as at load: 422 with file and line. Nothing is applied."""
    services = services_of(request)
    cluster = named_cluster(services, caller, body.cluster)
    confine(request, caller, cluster=cluster)
    before = _checked(services, cluster, body)

    def act(identity: str) -> Response:
        asked = Rehearsal(
            id=identity,
            cluster=cluster,
            file=body.file,
            text=body.text,
            before=before,
            days=body.days,
            samples=body.samples,
            by=caller.name,
            reason=body.reason,
            created_at=services.clock.now(),
        )
        made = services.rehearsals.ask(asked)
        return answer(request, made, 202, headers={"Location": f"/api/v1/rehearsals/{made.id}"})

    return once(request, caller, body, act)


def _checked(services: Services, cluster: str, body: RehearsalBody) -> str | None:
    """What the file says now. 422 for a name or a text that cannot be, 409 where nothing is recorded."""
    try:
        before = services.rule_files.text(body.file)
    except ValueError as error:
        raise field_error("file", str(error)) from None
    if before == body.text:
        raise field_error("text", f"{body.file} says this already")
    told = services.recordings(cluster)
    if not told.files:
        raise Conflict(told.problem or "nothing is recorded yet: HEALER_RECORDING=on starts it")
    problems = services.rule_files.problems(body.file, body.text)
    if problems:
        errors = [{"field": "text", "detail": one} for one in problems[:_PROBLEMS]]
        raise Problem(422, f"the rules would not be valid: {problems[0]}", errors=errors)
    return before


@router.get("/rehearsals/{id}", responses=answers(Rehearsal, "the change and what it made different"))
def one(request: Request, caller: Viewer, id: Id) -> Response:
    """One change that was tried: its text, how far it is, and the comparison."""
    return answer(request, _own(request, caller, id))


@router.get("/rehearsals/{id}/diff", response_class=Response)
def diff(request: Request, caller: Viewer, id: Id) -> Response:
    """The change as a unified diff, for `git apply`."""
    known = _own(request, caller, id)
    return _download(unified(known.file, known.before, known.text), f"{known.id[:8]}.diff")


@router.get("/rehearsals/{id}/file", response_class=Response)
def file(request: Request, caller: Viewer, id: Id) -> Response:
    """The file as it would be."""
    known = _own(request, caller, id)
    return _download(known.text, known.file.rpartition("/")[2])


@router.get("/rehearsals/{id}/outcomes", responses=answers(Page[Outcomes], "by changed rule"))
def outcomes(request: Request, caller: Viewer, id: Id) -> Response:
    """How the real incidents turned out that each changed rule opened in the replay."""
    return answer(request, Page(items=services_of(request).rehearsals.outcomes(_own(request, caller, id))))


@router.post("/rehearsals/{id}/cancel", responses=answers(Rehearsal, "it is cancelled"))
def cancel(request: Request, caller: Operator, id: Id, body: Reason) -> Response:
    """Stops it within seconds."""
    services, known = services_of(request), _own(request, caller, id)

    def act(_: str) -> Response:
        now = services.clock.now()
        ended = services.rehearsals.cancel(known.id, by=caller.name, reason=body.reason, at=now)
        return answer(request, ended)

    return once(request, caller, body, act)


@router.post("/rehearsals/{id}/proof", responses=answers(Page[Outcomes], "by changed rule"))
def prove(request: Request, caller: Admin, id: Id, body: ProofBody) -> Response:
    """What these rules, as edited, opened in the replay counts as what they opened: by it a changed rule
    keeps or earns its mode (docs/gate.md). Each incident once, by what is known of it at any time."""
    services, known = services_of(request), _own(request, caller, id)

    def act(identity: str) -> Response:
        now = services.clock.now()
        found = services.rehearsals.prove(
            known.id, body.rules, by=caller.name, reason=body.reason, at=now, request=identity
        )
        return answer(request, Page(items=found))

    return once(request, caller, body, act)


def _own(request: Request, caller: Caller, id: str) -> Rehearsal:
    known = services_of(request).rehearsals.find(id)
    if known is None:
        raise NotFound(f"no change {id} was tried")
    confine(request, caller, cluster=known.cluster)
    return known


def _download(text: str, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(text, media_type="text/plain; charset=utf-8", headers=headers)
