"""Who may use the API: tokens and service accounts, and everything that a person holds."""

from datetime import datetime

from fastapi import APIRouter, Request, Response

from healer.api.problems import Problem
from healer.console.pages import Here, PageRoute, Pages, RoleCheck
from healer.console.views import Shown, people_view
from healer.engine.leavers import Leavers
from healer.model import Role
from healer.ports.callers import Caller
from healer.ports.service_accounts import TokenRow
from healer.text import say

#: Only where tokens can be read.
routes = APIRouter(route_class=PageRoute)


def _leavers(pages: Pages) -> Leavers:
    assert pages.sources.leavers is not None
    return pages.sources.leavers


@routes.get("/tokens")
def tokens_page(request: Request, pages: Here, ended: bool = False) -> Response:
    context = pages.context(request, "tokens")
    caller, now = context["session"], context["now"]
    has_role = pages.role_check(caller)
    sees_all = has_role(Role.auditor)
    found = _leavers(pages).book.listed(in_force_at=None if ended else now)
    rows = [row for row in found if row.is_of(caller.name) or sees_all or has_role(Role.auditor, row.cluster)]
    context |= {
        "tokens": [_token_line(row, caller, now, has_role) for row in rows],
        "ended": ended,
        "sees_all": sees_all,
        "glass": context["standing"].glass if sees_all else None,
    }
    return pages.show("tokens.html", context)


@routes.get("/people/{name}")
def person_page(request: Request, pages: Here, name: str) -> Response:
    context = pages.context(request, "tokens")
    caller, now = context["session"], context["now"]
    has_role = pages.role_check(caller)
    if not has_role(Role.auditor):
        raise Problem(
            403,
            say("console.people_for_admins_and_auditors"),
            heading=say("console.people_not_for_this_role"),
        )
    held = _leavers(pages).holds(name)
    context |= {
        "held": held,
        "tokens": [_token_line(row, caller, now, has_role) for row in held.tokens],
        "end": people_view.end_button(held, caller) if has_role(Role.admin) else None,
    }
    return pages.show("person.html", context)


def _token_line(row: TokenRow, caller: Caller, now: datetime, has_role: RoleCheck) -> Shown:
    may_revoke = row.is_of(caller.name) or has_role(Role.admin, row.cluster)
    return people_view.token_row(row, now, may_revoke=may_revoke)
