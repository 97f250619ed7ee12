"""`POST /login/munge` and `/login/slurm`: a person on a host of a cluster becomes a session of theirs, by a
munge credential or a token of Slurm.

Both prove less than a sign-in: root on any host of the cluster has the munge key, and can make either for any
of its users. So they are off unless the site says otherwise, and such a session approves nothing and switches
no power.
"""

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import StringConstraints
from starlette.responses import Response

from healer.api.access import named_cluster
from healer.api.documents import answers
from healer.api.enroll_routes import FRESH, MungeCredential
from healer.api.login_routes import LoginView, login_door, signed_in
from healer.api.problems import Problem
from healer.api.request_fields import Body, Word
from healer.api.responses import answer
from healer.api.services import Services, services_of
from healer.api.site_address import client_address
from healer.model import Role
from healer.ports.callers import CredentialRefused
from healer.ports.directory import LOCAL, UNPROVEN, Arrival
from healer.ports.sign_in import SignInRefused
from healer.text import said_by, say

router = APIRouter(prefix="/login", tags=["acting"])
PURPOSE = b"healer login"
#: How long the groups in the provider's last information about a person are believed.
GROUPS_LAST = timedelta(days=7)

#: A login name of the cluster, and what makes this proof one.
Proven = tuple[str, str]


class MungeBody(Body):
    """`credential` is what `munge` printed for `healer login`."""

    credential: MungeCredential
    cluster: Word | None = None


class SlurmBody(Body):
    """`token` is what `scontrol token` printed."""

    token: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=8192)]
    cluster: Word | None = None


@router.post("/munge", responses=answers(LoginView, "the session", 201), status_code=201)
def by_munge(request: Request, body: MungeBody) -> Response:
    """The session of who made the credential on a host of the cluster. Needs no token."""
    return _opened(request, body.cluster, lambda cluster: _by_munge(request, cluster, body.credential))


@router.post("/slurm", responses=answers(LoginView, "the session", 201), status_code=201)
def by_slurm(request: Request, body: SlurmBody) -> Response:
    """The session of whose token of Slurm it is. Needs no token of healer."""
    return _opened(request, body.cluster, lambda cluster: _by_slurm(request, cluster, body.token))


def _opened(request: Request, wanted: str | None, prove: Callable[[str], Proven]) -> Response:
    services, door, peer = services_of(request), login_door(request), client_address(request.scope)
    door.check(peer)
    try:
        with door:
            name, once = prove(named_cluster(services, None, wanted))
            arrival, role = _arrival(services, name, once)
        return answer(request, signed_in(request, arrival, role=role), 201)
    except (CredentialRefused, SignInRefused) as error:
        door.refused(peer)
        raise Problem(403, say("api.host_refused", why=said_by(error))) from None


def _by_munge(request: Request, cluster: str, credential: str) -> Proven:
    services = services_of(request)
    login_name = services.munge_users.get(cluster)
    if login_name is None:
        raise SignInRefused(say("api.munge_off", cluster=cluster))
    made = services.credentials(cluster).decode(credential)
    if made.payload != PURPOSE or not _is_fresh(made.encoded_at, made.decoded_at):
        raise SignInRefused(say("api.munge_other_purpose"))
    name = login_name(made.uid) if made.uid else None
    if name is None:
        raise SignInRefused(say("api.munge_no_user", uid=made.uid))
    return name, f"munge {hashlib.sha256(credential.encode()).hexdigest()}"


def _by_slurm(request: Request, cluster: str, text: str) -> Proven:
    services = services_of(request)
    tokens = services.slurm_tokens.get(cluster)
    if tokens is None:
        raise SignInRefused(say("api.slurm_login_off", cluster=cluster))
    token = tokens.owner(text)
    if not _is_fresh(token.made_at, services.clock.now()):
        raise SignInRefused(say("api.slurm_token_old"))
    if token.user == "root":
        raise SignInRefused(say("api.slurm_token_root"))
    return token.user, f"slurm {token.once}"


def _is_fresh(made_at: datetime, now: datetime) -> bool:
    return abs(now - made_at) <= FRESH


def _arrival(services: Services, name: str, once: str) -> tuple[Arrival, Role | None]:
    """The person of that name, and the person's own role if no groups grant one."""
    if services.sign_in is None:
        return _with_account(services, name, once)
    return _with_provider(services, name, once), None


def _with_account(services: Services, name: str, once: str) -> tuple[Arrival, Role | None]:
    found = services.accounts.book.find(name) if services.accounts is not None else None
    if found is None:
        raise SignInRefused(say("api.host_no_account", name=name))
    account, _ = found
    arrival = Arrival(
        issuer=LOCAL, subject=name, names=(name,), groups=account.groups, proven_at=UNPROVEN, once=once,
        sid=account.id,
    )  # fmt: skip
    return arrival, account.role


def _with_provider(services: Services, name: str, once: str) -> Arrival:
    person = services.people.find(name)
    if person is None or person.issuer == LOCAL or services.clock.now() - person.seen_at > GROUPS_LAST:
        raise SignInRefused(say("api.host_no_person", name=name, days=GROUPS_LAST.days))
    return Arrival(
        issuer=person.issuer, subject=person.subject, names=(name,), groups=person.groups,
        proven_at=UNPROVEN, once=once,
    )  # fmt: skip
