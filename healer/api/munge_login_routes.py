"""`POST /login/munge`: a person on a host of a cluster becomes a session of theirs by a munge credential.

It proves less than a sign-in: root on any host of the cluster has the munge key, and can be any of its users.
So it is off unless the site says otherwise, and such a session approves nothing and switches no power.
"""

import hashlib
from datetime import timedelta

from fastapi import APIRouter, Request
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
from healer.text import say

router = APIRouter(prefix="/login", tags=["acting"])
PURPOSE = b"healer login"
#: The groups of the provider's last word on a person are believed for so long.
GROUPS_LAST = timedelta(days=7)


class MungeBody(Body):
    """`credential` is what `munge` printed for `healer login`."""

    credential: MungeCredential
    cluster: Word | None = None


@router.post("/munge", responses=answers(LoginView, "the session", 201), status_code=201)
def by_munge(request: Request, body: MungeBody) -> Response:
    """The session of who made the credential on a host of the cluster. Needs no token."""
    services, door, peer = services_of(request), login_door(request), client_address(request.scope)
    door.check(peer)
    try:
        with door:
            cluster = named_cluster(services, None, body.cluster)
            arrival, role = _arrival(services, cluster, body.credential)
        return answer(request, signed_in(request, arrival, role=role), 201)
    except (CredentialRefused, SignInRefused) as error:
        door.refused(peer)
        raise Problem(403, say("api.munge_refused", why=str(error))) from None


def _arrival(services: Services, cluster: str, credential: str) -> tuple[Arrival, Role | None]:
    """Who made the credential, and the role of the person's own where no groups grant one."""
    login_name = services.munge_users.get(cluster)
    if login_name is None:
        raise SignInRefused(say("api.munge_off", cluster=cluster))
    made = services.credentials(cluster).decode(credential)
    if made.payload != PURPOSE or abs(made.decoded_at - made.encoded_at) > FRESH:
        raise SignInRefused(say("api.munge_other_purpose"))
    name = login_name(made.uid) if made.uid else None
    if name is None:
        raise SignInRefused(say("api.munge_no_user", uid=made.uid))
    once = f"munge {hashlib.sha256(credential.encode()).hexdigest()}"
    if services.sign_in is None:
        return _with_account(services, name, once)
    return _with_provider(services, name, once), None


def _with_account(services: Services, name: str, once: str) -> tuple[Arrival, Role | None]:
    found = services.accounts.book.find(name) if services.accounts is not None else None
    if found is None:
        raise SignInRefused(say("api.munge_no_account", name=name))
    account, _ = found
    arrival = Arrival(
        issuer=LOCAL, subject=name, names=(name,), groups=account.groups, proven_at=UNPROVEN, once=once,
        sid=account.id,
    )  # fmt: skip
    return arrival, account.role


def _with_provider(services: Services, name: str, once: str) -> Arrival:
    person = services.people.find(name)
    if person is None or person.issuer == LOCAL or services.clock.now() - person.seen_at > GROUPS_LAST:
        raise SignInRefused(say("api.munge_no_person", name=name, days=GROUPS_LAST.days))
    return Arrival(
        issuer=person.issuer, subject=person.subject, names=(name,), groups=person.groups,
        proven_at=UNPROVEN, once=once,
    )  # fmt: skip
