"""Local accounts: a person changes their password, after proving their identity as for a sign-in."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Request
from pydantic import StringConstraints
from starlette.responses import Response

from healer.api.access import Access
from healer.api.credential_budget import address_of
from healer.api.documents import answers
from healer.api.problems import Problem
from healer.api.request_fields import Body
from healer.api.responses import answer
from healer.api.services import services_of
from healer.api.signing_in import change_password
from healer.engine.local_accounts import Attempt
from healer.ports.sign_in import SignInRefused
from healer.text import said_by

router = APIRouter(prefix="/account", tags=["acting"])
_Secret = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class PasswordBody(Body):
    """`password` and `code` as for a sign-in; `new`: the password from now on."""

    name: _Secret
    password: _Secret
    code: _Secret
    new: _Secret


class PasswordView(msgspec.Struct, frozen=True, kw_only=True):
    """`sessions`: how many ended."""

    name: str
    sessions: int


@router.post("/password", responses=answers(PasswordView, "it was changed"))
def password(request: Request, body: PasswordBody) -> Response:
    """Changes the password of a local account and ends the person's sessions. Needs no token."""
    access: Access = request.app.state.access
    attempt = Attempt(body.name.strip(), body.password, body.code.strip())
    try:
        ended = change_password(services_of(request), access, attempt, body.new, address_of(request))
    except SignInRefused as error:
        raise Problem(403, said_by(error)) from None
    return answer(request, PasswordView(name=attempt.name, sessions=ended))
