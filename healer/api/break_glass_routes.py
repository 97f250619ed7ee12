"""Breaking the glass, while signing in is impossible: `healer.engine.emergency` judges."""

from datetime import datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request
from pydantic import StringConstraints
from starlette.responses import Response

from healer.api.access import Access, Admin, Viewer, confine, digest_of
from healer.api.credential_budget import address_of
from healer.api.documents import answers
from healer.api.problems import Problem
from healer.api.request_fields import Body, Reason, Text, Word, once
from healer.api.responses import answer
from healer.api.services import services_of
from healer.ports.break_glass import GlassState, Opening
from healer.text import say

router = APIRouter(prefix="/break-glass", tags=["acting"])


class GlassBody(Body):
    """`secret` is what the safe holds; `person` is who uses it, by his own word."""

    secret: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]
    person: Word
    reason: Text


class OpenedView(msgspec.Struct, frozen=True, kw_only=True):
    """A token of an administrator."""

    token: str
    name: str
    expires_at: datetime


@router.get("", responses=answers(GlassState, "the latest seal, and what became of it"))
def glass(request: Request, caller: Viewer) -> Response:
    """Whether a seal lies ready, and whether an hour runs."""
    return answer(request, services_of(request).emergency.state())


@router.post("/open", responses=answers(OpenedView, "a token, shown this once", 201), status_code=201)
def break_glass(request: Request, body: GlassBody) -> Response:
    """Makes who has the sealed secret an administrator for an hour, and pages everybody. Needs no token."""
    opening = opened(request, body.secret, body.person, body.reason)
    view = OpenedView(token=opening.token, name=opening.name, expires_at=opening.until)
    return answer(request, view, 201)


@router.post("/end", responses=answers(GlassState, "the hour that ended"))
def end(request: Request, caller: Admin, body: Reason) -> Response:
    """Ends the hour at once, with its token and sessions. The seal has to be renewed all the same."""
    emergency = services_of(request).emergency
    confine(request, caller)

    def act(_: str) -> Response:
        return answer(request, emergency.end(by=caller.name, reason=body.reason))

    return once(request, caller, body, act)


def opened(request: Request, secret: str, person: str, reason: str) -> Opening:
    """The hour. Within the budget of wrong credentials of the request's address; 403 for a wrong secret."""
    access: Access = request.app.state.access
    with access.budget.attempt(address_of(request)) as hold:
        opening = services_of(request).emergency.use(secret, person=person, reason=reason)
        if opening is None:
            hold.wrong()
            raise Problem(403, say("api.glass_wrong"), code="forbidden")
    for credential in (opening.token, opening.cookie):
        access.budget.accept_session(digest_of(credential))
    return opening
