"""Tokens and service accounts: who holds which, and the end of one. They are made on healer's machine."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from healer.api.access import ALLOWED, Access, Viewer, clusters_shown, confine, is_role
from healer.api.documents import answers
from healer.api.request_fields import Id, Name, Reason, once
from healer.api.responses import answer
from healer.api.services import services_of
from healer.model import Role
from healer.ports.request_errors import NotFound
from healer.ports.service_accounts import TokenRow
from healer.text import say

router = APIRouter()


class TokenList(msgspec.Struct, frozen=True, kw_only=True):
    items: list[TokenRow]


@router.get("/tokens", tags=["reading"], responses=answers(TokenList, "tokens, newest first"))
def tokens(
    request: Request,
    caller: Viewer,
    person: Name = None,
    cluster: Name = None,
    ended: Annotated[bool, Query()] = False,
) -> Response:
    """Tokens of people and programs, without their secrets: all of them for admins and auditors, else the
    caller's own and the accounts that he owns. Those of nodes and jobs are not listed. `ended`: those that
    have expired or were revoked too."""
    services = services_of(request)
    clusters = clusters_shown(request, caller, cluster)
    rows = services.token_book.listed(person=person, in_force_at=None if ended else services.clock.now())
    of_all, own_of_all = is_role(request, caller, Role.auditor), cluster is None and caller.is_of_person

    def is_seen(row: TokenRow) -> bool:
        there = clusters is None or row.cluster in clusters
        if row.is_of(caller.name):
            return there or own_of_all
        everywhere = row.cluster is None
        return there and (of_all if everywhere else is_role(request, caller, Role.auditor, row.cluster))

    return answer(request, TokenList(items=[row for row in rows if is_seen(row)]))


@router.post("/tokens/{id}/revoke", tags=["acting"], responses=answers(TokenRow, "the token that ended"))
def revoke(request: Request, caller: Viewer, id: Id, body: Reason) -> Response:
    """Makes a token worthless within a second, and ends its sessions. Admins may revoke every token, others
    their own and the accounts that they own."""
    services = services_of(request)
    access: Access = request.app.state.access
    admin = access.narrowed(caller, ALLOWED[Role.admin])

    def act(_: str) -> Response:
        now = services.clock.now()
        row = next((row for row in services.token_book.listed() if row.id == id), None)
        if row is None or (admin is None and not row.is_of(caller.name)):
            raise NotFound(say("api.no_token_here", token=id))
        if (caller.cluster and not caller.is_of_person) or not row.is_of(caller.name):
            confine(request, admin or caller, cluster=row.cluster)
        if row.revoked_at is None:
            services.token_book.revoke(id, by=caller.name, now=now, reason=body.reason)
            row = msgspec.structs.replace(row, revoked_at=now)
        return answer(request, row)

    return once(request, caller, body, act)
