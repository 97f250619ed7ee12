"""Break-glass access in a browser: the form for the sealed secret, and the session."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from healer.api.break_glass_routes import GlassBody, opened
from healer.api.cookies import set_cookie
from healer.api.credential_budget import address_of
from healer.api.problems import Problem
from healer.console.pages import Here, PageRoute, Pages
from healer.console.session_pages import end_former, local, own_form
from healer.ports.callers import SESSION_COOKIE
from healer.ports.request_errors import Invalid
from healer.text import say

routes = APIRouter(route_class=PageRoute)
_FORBIDDEN = 403


@routes.get("/break-glass")
def glass_page(pages: Here, next: str = "/") -> Response:
    """Asks no database, as strangers see it, and uses nothing up."""
    return pages.render.page("break_glass.html", **_form(next))


@routes.post("/break-glass")
async def glass_form(request: Request, pages: Here) -> Response:
    form = await own_form(request)
    return await run_in_threadpool(_open, request, pages, form)


def _open(request: Request, pages: Pages, form: dict[str, str]) -> Response:
    target = form.get("next", "/")
    given = {name: form.get(name, "") for name in GlassBody.model_fields}
    try:
        body = GlassBody(**given)
        opening = opened(request, body.secret, body.person, body.reason)
    except ValidationError:
        return _again(pages, given, target, say("console.glass_incomplete"), 422)
    except Invalid as error:
        return _again(pages, given, target, str(error), 422)
    except Problem as problem:
        if problem.status != _FORBIDDEN:
            raise
        return _again(pages, given, target, problem.detail, 403)
    end_former(request, pages)
    is_sealed = pages.sessions.session(opening.cookie, address_of(request)) is not None
    response = pages.render.page(
        "break_glass.html", opening=opening, is_sealed=is_sealed, target=local(target)
    )
    left_s = int((opening.until - opening.at).total_seconds())
    set_cookie(request, response, SESSION_COOKIE, opening.cookie, lasts_s=left_s)
    return response


def _again(pages: Pages, given: dict[str, str], target: str, why: str, status: int) -> Response:
    typed = {"person": given["person"], "reason": given["reason"]}
    return pages.render.page("break_glass.html", status, **_form(target, **typed, refused=why))


def _form(target: str, *, person: str = "", reason: str = "", refused: str = "") -> dict[str, Any]:
    return {"opening": None, "target": target, "person": person, "reason": reason, "refused": refused}
