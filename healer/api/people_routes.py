"""Leavers: all that a person holds, and its end."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from healer.api.access import Admin, confine, need
from healer.api.documents import answers
from healer.api.request_fields import Body, Text, Word, once
from healer.api.responses import answer
from healer.api.services import services_of
from healer.engine.leavers import PersonEnded, PersonHolds
from healer.model import Role
from healer.ports.callers import Caller

router = APIRouter()
Auditor = Annotated[Caller, need(Role.auditor)]
PersonName = Annotated[str, Path(min_length=1, max_length=256)]


class EndBody(Body):
    """`to`: who looks after the person's incidents from now on; needed where there are any."""

    to: Word | None = None
    reason: Text


@router.get("/people/{name}", tags=["reading"], responses=answers(PersonHolds, "all that the person holds"))
def person(request: Request, caller: Auditor, name: PersonName) -> Response:
    """Tokens, service accounts, sessions, incidents, runs that wait, and pauses of a person. Of one who holds
    nothing all lists are empty: who is no longer known is no error."""
    confine(request, caller)
    return answer(request, services_of(request).leavers.holds(name))


@router.post("/people/{name}/end", tags=["acting"], responses=answers(PersonEnded, "what has ended"))
def end(request: Request, caller: Admin, name: PersonName, body: EndBody) -> Response:
    """Revokes the person's tokens and accounts, ends the sessions, and assigns the incidents to another.
    Pauses stay, and so do runs that wait: others end, approve or reject them."""
    confine(request, caller)

    def act(identity: str) -> Response:
        ended = services_of(request).leavers.end(
            name, to=body.to, by=caller.name, reason=body.reason, request=identity
        )
        return answer(request, ended)

    return once(request, caller, body, act)
