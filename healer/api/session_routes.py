"""Sessions of the console: who has which, and the end of one."""

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from healer.api.access import Viewer, is_role
from healer.api.documents import answers
from healer.api.request_fields import Id, Nothing, once
from healer.api.responses import answer
from healer.api.services import services_of
from healer.model import Role
from healer.ports.callers import Caller
from healer.ports.directory import SessionRow
from healer.ports.request_errors import NotFound
from healer.text import say

router = APIRouter()
#: The session by which the request came.
OWN = "own"


class SessionList(msgspec.Struct, frozen=True, kw_only=True):
    items: list[SessionRow]


class SessionEnded(msgspec.Struct, frozen=True, kw_only=True):
    id: str


@router.get("/sessions", tags=["reading"], responses=answers(SessionList, "open sessions, newest first"))
def sessions(request: Request, caller: Viewer) -> Response:
    """Open sessions: an administrator's answer has those of everybody, others have their own."""
    services = services_of(request)
    rows = services.people.sessions(services.clock.now(), name=_whose(request, caller))
    return answer(request, SessionList(items=list(rows)))


@router.delete("/sessions/{id}", tags=["acting"], responses=answers(SessionEnded, "the session that ended"))
def end(request: Request, caller: Viewer, id: Id, body: Nothing | None = None) -> Response:
    """Ends a session within a second; `own` is that of the request. Administrators may end everybody's,
    others their own."""
    services = services_of(request)
    if id == OWN and caller.session is not None:
        id = caller.session.id
    name = _whose(request, caller)

    def act(_: str) -> Response:
        if not services.people.end(id, by=caller.name, now=services.clock.now(), name=name):
            raise NotFound(say("api.no_session", id=id))
        return answer(request, SessionEnded(id=id))

    return once(request, caller, body or Nothing(), act)


def _whose(request: Request, caller: Caller) -> str | None:
    """None: everyone's, for an administrator of the whole site."""
    return None if is_role(request, caller, Role.admin) else caller.name
