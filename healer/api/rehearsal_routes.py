"""Rehearsals: changes of rule files, replayed over recordings. They are not applied here."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field, StringConstraints
from starlette.responses import Response

from healer.api.access import Admin, Operator, Viewer, allowed_cluster, clusters_shown, confine
from healer.api.documents import answers, streams
from healer.api.problems import Problem, field_error
from healer.api.request_fields import Body, Id, Moment, Name, Reason, Text, Word, once
from healer.api.responses import answer
from healer.api.services import Services, services_of
from healer.model.recordings import Recordings
from healer.model.run import Outcomes, Rehearsal
from healer.ports.answers import Page
from healer.ports.callers import Caller
from healer.ports.request_errors import Conflict, NotFound
from healer.rulebook.source import unified_diff
from healer.text import said_by, say

router = APIRouter(tags=["rules"])
NEWEST = 50
_FileText = Annotated[str, StringConstraints(max_length=262_144, pattern=r"^[^\x00]*$")]
#: Problems of a text named in one answer.
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
    name = allowed_cluster(request, caller, cluster)
    return answer(request, services_of(request).recordings(name))


@router.get(
    "/recordings/done", responses=answers(dict[str, Any], "the document of a replay, of what was really done")
)
def done(
    request: Request,
    caller: Viewer,
    since: Annotated[Moment, Query()],
    until: Annotated[Moment, Query()],
    cluster: Name = None,
) -> Response:
    """What was really opened, done and held in a span, to compare a replay with."""
    in_cluster = allowed_cluster(request, caller, cluster)
    return answer(request, services_of(request).done(in_cluster, since, until))


@router.get("/rehearsals", responses=answers(Page[Rehearsal], "newest first, without texts and results"))
def listed(request: Request, caller: Viewer, cluster: Name = None) -> Response:
    """Changes of rules that were tried."""
    found = services_of(request).rehearsals.newest(clusters_shown(request, caller, cluster), NEWEST)
    return answer(request, Page(items=found))


@router.post("/rehearsals", responses=answers(Rehearsal, "it waits for its turn", 202), status_code=202)
def ask(request: Request, caller: Operator, body: RehearsalBody) -> Response:
    """Tries a change of one rule file over the recordings, in the background, one at a time. The text is
    checked as at load: 422 with file and line. Nothing is applied."""
    services, cluster = services_of(request), allowed_cluster(request, caller, body.cluster)
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
    """The file's present text. 422 for an invalid name or text, 409 if nothing is recorded."""
    try:
        before = services.rule_files.text(body.file)
    except ValueError as error:
        raise field_error("file", said_by(error)) from None
    if before == body.text:
        raise field_error("text", say("api.file_unchanged", file=body.file))
    recorded = services.recordings(cluster)
    if not recorded.files:
        raise Conflict(recorded.problem or say("api.nothing_recorded"))
    problems = services.rule_files.problems(body.file, body.text)
    if problems:
        errors = [{"field": "text", "detail": problem} for problem in problems[:_PROBLEMS]]
        raise Problem(422, say("api.rules_invalid", problems=problems[0]), errors=errors)
    return before


# The operation id is that of clients generated before the function had this name.
@router.get(
    "/rehearsals/{id}",
    operation_id="one_api_v1_rehearsals__id__get",
    responses=answers(Rehearsal, "the change and what it made different"),
)
def rehearsal(request: Request, caller: Viewer, id: Id) -> Response:
    """One change that was tried: its text, how far it is, and the comparison."""
    return answer(request, _allowed_rehearsal(request, caller, id))


@router.get("/rehearsals/{id}/diff", response_class=Response, responses=streams("text/plain", "the diff"))
def diff(request: Request, caller: Viewer, id: Id) -> Response:
    """The change as a unified diff, for `git apply`."""
    rehearsal = _allowed_rehearsal(request, caller, id)
    return _download(
        unified_diff(rehearsal.file, rehearsal.before, rehearsal.text), f"{rehearsal.id[:8]}.diff"
    )


@router.get("/rehearsals/{id}/file", response_class=Response, responses=streams("text/plain", "the file"))
def file(request: Request, caller: Viewer, id: Id) -> Response:
    """The changed file."""
    rehearsal = _allowed_rehearsal(request, caller, id)
    return _download(rehearsal.text, rehearsal.file.rpartition("/")[2])


@router.get("/rehearsals/{id}/outcomes", responses=answers(Page[Outcomes], "by changed rule"))
def outcomes(request: Request, caller: Viewer, id: Id) -> Response:
    """How the real incidents turned out that each changed rule opened in the replay."""
    rehearsal = _allowed_rehearsal(request, caller, id)
    return answer(request, Page(items=services_of(request).rehearsals.outcomes(rehearsal)))


@router.post("/rehearsals/{id}/cancel", responses=answers(Rehearsal, "it is cancelled"))
def cancel(request: Request, caller: Operator, id: Id, body: Reason) -> Response:
    """Stops it within seconds."""
    services, rehearsal = services_of(request), _allowed_rehearsal(request, caller, id)

    def act(_: str) -> Response:
        now = services.clock.now()
        ended = services.rehearsals.cancel(rehearsal.id, by=caller.name, reason=body.reason, at=now)
        return answer(request, ended)

    return once(request, caller, body, act)


@router.post("/rehearsals/{id}/proof", responses=answers(Page[Outcomes], "by changed rule"))
def prove(request: Request, caller: Admin, id: Id, body: ProofBody) -> Response:
    """What these rules, as edited, opened in the replay counts as what they opened: by it a changed rule
    keeps or earns its mode (docs/gate.md). Each incident once, by what is known of it at any time."""
    services, rehearsal = services_of(request), _allowed_rehearsal(request, caller, id)
    confine(request, caller)  # a rule earns its mode for all clusters

    def act(identity: str) -> Response:
        now = services.clock.now()
        found = services.rehearsals.prove(
            rehearsal.id, body.rules, by=caller.name, reason=body.reason, at=now, request=identity
        )
        return answer(request, Page(items=found))

    return once(request, caller, body, act)


def _allowed_rehearsal(request: Request, caller: Caller, id: str) -> Rehearsal:
    rehearsal = services_of(request).rehearsals.find(id)
    if rehearsal is None:
        raise NotFound(say("api.no_rehearsal", id=id))
    confine(request, caller, cluster=rehearsal.cluster)
    return rehearsal


def _download(text: str, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(text, media_type="text/plain; charset=utf-8", headers=headers)
