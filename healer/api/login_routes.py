"""`/login/device`: a person at a terminal becomes a session of theirs, by the provider's device flow.

Needs no token: the provider vouches for who confirms the code. Each beginning counts against its address, as
does each question that comes too soon: else strangers could have healer flood the provider."""

from datetime import datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request
from pydantic import StringConstraints
from starlette.responses import Response

from healer.api.access import Access
from healer.api.documents import answers
from healer.api.door import Door
from healer.api.problems import Problem
from healer.api.request_fields import Body
from healer.api.responses import answer
from healer.api.services import Services, services_of
from healer.api.signing_in import open_session
from healer.api.site_address import client_address
from healer.model import Role
from healer.ports.directory import SESSION_LASTS, Arrival
from healer.ports.service_accounts import login_secret
from healer.ports.sign_in import DeviceBegun, DeviceSignIn, ProviderAway, SignInRefused, StillWaiting
from healer.text import said_by, say

router = APIRouter(prefix="/login", tags=["acting"])


class KeptBody(Body):
    """`kept`: as the beginning gave it."""

    kept: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=8192)]


class LoginView(msgspec.Struct, frozen=True, kw_only=True):
    """`token` is that of a session: it ends as sessions do, and is shown this once."""

    token: str
    name: str
    role: Role
    expires_at: datetime


class WaitingView(msgspec.Struct, frozen=True, kw_only=True):
    """`slow_down`: ask 5 s less often from now on."""

    slow_down: bool


@router.post(
    "/device", responses=answers(DeviceBegun, "a code for the provider's page", 201), status_code=201
)
def begin(request: Request) -> Response:
    """Begins a sign-in by the provider's device flow. Needs no token."""
    peer, door = client_address(request.scope), login_door(request)
    door.check(peer)
    try:
        with door:
            begun = _devices(services_of(request)).begin()
    except SignInRefused as error:
        raise _refused(error) from None
    finally:
        door.refused(peer)
    return answer(request, begun, 201)


@router.post(
    "/device/finish",
    responses=answers(LoginView, "the session", 201) | answers(WaitingView, "not confirmed yet", 202),
    status_code=201,
)
def finish(request: Request, body: KeptBody) -> Response:
    """The session of who has confirmed the code. Needs no token."""
    services, door, peer = services_of(request), login_door(request), client_address(request.scope)
    door.check(peer)
    try:
        with door:
            found = _devices(services).finish(body.kept, claim=services.rules().access.claim)
        if isinstance(found, StillWaiting):
            if found.slow_down:
                door.refused(peer)
            return answer(request, WaitingView(slow_down=found.slow_down), 202)
        return answer(request, signed_in(request, found), 201)
    except SignInRefused as error:
        door.refused(peer)
        raise _refused(error) from None


def signed_in(request: Request, arrival: Arrival, *, role: Role | None = None) -> LoginView:
    """The session of a command. `role`: see `open_session`. Raises SignInRefused."""
    services, access = services_of(request), _access(request)
    until = services.clock.now() + SESSION_LASTS
    agent = request.headers.get("user-agent", "")
    opened = open_session(services, access, arrival, agent, role=role, make=login_secret)
    return LoginView(token=opened.secret, name=opened.name, role=opened.role, expires_at=until)


def _devices(services: Services) -> DeviceSignIn:
    devices = services.sign_in.devices if services.sign_in is not None else None
    if devices is None:
        raise Problem(404, say("api.sign_in_no_provider"))
    return devices


def _refused(error: SignInRefused) -> Problem:
    return Problem(503 if isinstance(error, ProviderAway) else 403, said_by(error))


def login_door(request: Request) -> Door:
    door: Door = request.app.state.login_door
    return door


def _access(request: Request) -> Access:
    access: Access = request.app.state.access
    return access
