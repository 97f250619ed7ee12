"""Signing in by a one-time link or a token, and out; choosing the language. No form needs a script."""

from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from healer.api.problems import Problem
from healer.console.pages import Here, PageRoute, Pages
from healer.ports.callers import SESSION_COOKIE, SESSION_LASTS
from healer.text import language, say

_FORM_BYTES = 8192
_YEAR_S = 365 * 86400


_NOT_KEPT = {"Cache-Control": "no-store"}

routes = APIRouter(route_class=PageRoute)


@routes.get("/sign-in")
def sign_in_page(pages: Here, token: str = "", next: str = "/") -> Response:
    if token:
        return _open_session(pages, token, next)
    return pages.render.page("sign_in.html", failed=False, target=next)


@routes.post("/sign-in")
async def sign_in_form(request: Request, pages: Here) -> Response:
    form = await _read_form(request)
    if _is_foreign(request):
        raise _foreign_form()
    token, target = form.get("token", "").strip(), form.get("next", "/")
    return await run_in_threadpool(_open_session, pages, token, target)


def _open_session(pages: Pages, token: str, target: str) -> Response:
    cookie = pages.sessions.sign_in(token)
    if cookie is None:
        return pages.render.page("sign_in.html", 401, failed=True, target=target)
    response = RedirectResponse(local(target), 303, headers=_NOT_KEPT)
    response.set_cookie(
        SESSION_COOKIE, cookie, max_age=int(SESSION_LASTS.total_seconds()), httponly=True, samesite="lax",
        secure=pages.secure_cookie, path="/",
    )  # fmt: skip
    return response


@routes.post("/sign-out")
async def sign_out_form(request: Request, pages: Here) -> Response:
    form = await _read_form(request)
    return await run_in_threadpool(_end_session, request, pages, form.get("csrf", ""))


def _end_session(request: Request, pages: Pages, csrf: str) -> Response:
    session = pages.signed_in(request)
    if session is not None and (_is_foreign(request) or csrf != session.csrf):
        raise _foreign_form()
    cookie = request.cookies.get(SESSION_COOKIE)
    if cookie:
        pages.sessions.sign_out(cookie)
    response = RedirectResponse("/sign-in", 303, headers=_NOT_KEPT)
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


@routes.post("/language")
async def choose_language(request: Request, pages: Here) -> Response:
    """For guests too: the page on which one signs in has the switch."""
    form = await _read_form(request)
    if _is_foreign(request):
        raise _foreign_form()
    response = RedirectResponse(local(form.get("next", "/")), 303, headers=_NOT_KEPT)
    if (to := form.get("to", "")) in language.LANGUAGES:
        response.set_cookie(
            language.COOKIE, to, max_age=_YEAR_S, samesite="lax", secure=pages.secure_cookie, path="/"
        )
    return response


# --- forms ---


async def _read_form(request: Request) -> dict[str, str]:
    """A small url-encoded form. Read by hand: two fields are no reason for a multipart parser."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_BYTES:
            return {}
    return dict(parse_qsl(body.decode("utf-8", "replace")))


def _is_foreign(request: Request) -> bool:
    return request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")


def _foreign_form() -> Problem:
    return Problem(
        403,
        say("console.session_form_was_sent_from_another"),
        heading=say("console.session_not_from_this_site"),
    )


def local(target: str) -> str:
    """A path on this site; anything else becomes `/`, so that a link cannot send people elsewhere."""
    if not target.startswith("/") or target.startswith(("//", "/\\")):
        return "/"
    return quote(target, safe="/?&=%:+,.-_~")
