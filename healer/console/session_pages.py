"""Signing in by a one-time link or a local account, and out; choosing the language; sessions. No form but
the list's needs a script."""

from typing import Any
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from healer.api.cookies import drop_cookie, read_cookie, set_cookie
from healer.api.credential_budget import address_of
from healer.api.problems import Problem
from healer.api.signing_in import change_password, open_by_account
from healer.api.site_address import is_own_origin
from healer.console.pages import Here, PageRoute, Pages
from healer.console.views.buttons import Button
from healer.engine.local_accounts import Attempt
from healer.model import Role
from healer.ports.callers import SESSION_COOKIE
from healer.ports.directory import SESSION_LASTS, SessionRow
from healer.ports.request_errors import Invalid
from healer.ports.sign_in import SignInRefused
from healer.text import language, say

_FORM_BYTES = 16_384
_YEAR_S = 365 * 86400


NOT_KEPT = {"Cache-Control": "no-store"}

routes = APIRouter(route_class=PageRoute)
#: Only where sessions can be listed.
list_routes = APIRouter(route_class=PageRoute)


@routes.get("/sign-in")
def sign_in_page(pages: Here, token: str = "", next: str = "/") -> Response:
    """Does not use up a link: a preview (in a chat) before the person opens the URL costs nothing."""
    return pages.render.page("sign_in.html", **sign_in_words(pages, next, token=token))


@routes.post("/sign-in")
async def sign_in_form(request: Request, pages: Here) -> Response:
    form = await own_form(request)
    target = form.get("next", "/")
    if "password" in form:
        attempt = Attempt(*(form.get(name, "").strip() for name in Attempt._fields))
        return await run_in_threadpool(_open_by_account, request, pages, attempt, target)
    return await run_in_threadpool(_open_session, request, pages, form.get("token", "").strip(), target)


def _open_by_account(request: Request, pages: Pages, attempt: Attempt, target: str) -> Response:
    agent = request.headers.get("user-agent", "")
    app = request.app.state
    try:
        cookie = open_by_account(app.services, app.access, attempt, address_of(request), agent)
    except SignInRefused as error:
        words = sign_in_words(pages, target, name=attempt.name, refused=str(error))
        return pages.render.page("sign_in.html", 401, **words)
    end_former(request, pages)
    return with_session(request, cookie, target)


def end_former(request: Request, pages: Pages) -> None:
    """A person who proves their identity again still has only one session."""
    if pages.signed_in(request) is not None:
        pages.sessions.sign_out(read_cookie(request, SESSION_COOKIE))


def _open_session(request: Request, pages: Pages, token: str, target: str) -> Response:
    cookie = pages.sessions.sign_in(token, address_of(request))
    if cookie is None:
        words = sign_in_words(pages, target)
        return pages.render.page("sign_in.html", 401, **words | {"failed": True})
    return with_session(request, cookie, target)


def with_session(request: Request, cookie: str, target: str) -> Response:
    response = RedirectResponse(local(target), 303, headers=NOT_KEPT)
    lasts_s = int(SESSION_LASTS.total_seconds())
    set_cookie(request, response, SESSION_COOKIE, cookie, lasts_s=lasts_s)
    return response


def sign_in_words(
    pages: Pages, target: str, *, token: str = "", name: str = "", refused: str = ""
) -> dict[str, Any]:
    """What the page of signing in shows. `name`: as it was typed; `refused`: why a sign-in failed."""
    sign_in = pages.sign_in
    return {
        "failed": False,
        "target": target,
        "token": token,
        "refused": refused,
        "by_provider": sign_in is not None and sign_in.provider is not None,
        "by_proxy": sign_in is not None and sign_in.proxy is not None,
        "by_account": pages.accounts is not None and pages.accounts.exist(),
        "name": name,
    }


@routes.post("/sign-out")
async def sign_out_form(request: Request, pages: Here) -> Response:
    form = await read_form(request)
    return await run_in_threadpool(_end_session, request, pages, form.get("csrf", ""))


def _end_session(request: Request, pages: Pages, csrf: str) -> Response:
    session = pages.signed_in(request)
    if session is not None and (is_foreign(request) or csrf != session.csrf):
        raise foreign_form()
    cookie = read_cookie(request, SESSION_COOKIE)
    if cookie:
        pages.sessions.sign_out(cookie)
    response = RedirectResponse("/sign-in", 303, headers=NOT_KEPT)
    drop_cookie(request, response, SESSION_COOKIE)
    return response


@routes.post("/language")
async def choose_language(request: Request, pages: Here) -> Response:
    """For guests too: the page on which one signs in has the switch."""
    form = await own_form(request)
    response = RedirectResponse(local(form.get("next", "/")), 303, headers=NOT_KEPT)
    if (to := form.get("to", "")) in language.LANGUAGES:
        set_cookie(request, response, language.COOKIE, to, lasts_s=_YEAR_S, script=True)
    return response


@list_routes.get("/sessions")
@list_routes.get("/sessions/password")  # where the form below leaves its person
def sessions_page(request: Request, pages: Here) -> Response:
    """The person's own sessions; everyone's for an administrator."""
    return _show_sessions(request, pages)


@list_routes.post("/sessions/password")
async def change_password_form(request: Request, pages: Here) -> Response:
    form = await read_form(request)
    return await run_in_threadpool(_change_password, request, pages, form)


def _change_password(request: Request, pages: Pages, form: dict[str, str]) -> Response:
    session, app = pages.session(request), request.app.state
    if is_foreign(request) or form.get("csrf") != session.csrf:
        raise foreign_form()
    new, keep = form.get("new", ""), session.session.id if session.session is not None else ""
    attempt = Attempt(session.name, form.get("password", "").strip(), form.get("code", "").strip())
    try:
        if new != form.get("again"):
            raise Invalid("again", say("console.session_password_differs"))
        ended = change_password(app.services, app.access, attempt, new, address_of(request), keep=keep)
    except (SignInRefused, Invalid) as error:
        return _show_sessions(request, pages, refused=str(error))
    return _show_sessions(request, pages, changed=say("console.session_password_changed", count=ended))


def _show_sessions(request: Request, pages: Pages, *, refused: str = "", changed: str = "") -> Response:
    context = pages.context(request, "sessions")
    session, people = context["session"], pages.people
    name = None if pages.role_check(session)(Role.admin) else session.name
    rows = people.sessions(context["now"], name=name) if people is not None else []
    context |= {
        "sessions": rows,
        "this": session.session.id if session.session is not None else "",
        "ends": {row.id: _end_button(row) for row in rows},
        "all": name is None,
        "has_password": pages.accounts is not None and bool(session.session and session.session.has_account),
        "refused": refused,
        "changed": changed,
    }
    return pages.show("sessions.html", context)


def _end_button(row: SessionRow) -> Button:
    return Button(
        label=say("console.session_end"),
        action=f"/api/v1/sessions/{row.id}",
        method="DELETE",
        title=say("console.session_end_title", name=row.name),
        effect=say("console.session_end_effect"),
        field="",
    )


# --- forms ---


async def read_form(request: Request) -> dict[str, str]:
    """A small url-encoded form. Read by hand: two fields are no reason for a multipart parser."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_BYTES:
            return {}
    return dict(parse_qsl(body.decode("utf-8", "replace")))


async def own_form(request: Request) -> dict[str, str]:
    """The form of a page of this site, for a person without a session to prove it. Raises Problem."""
    form = await read_form(request)
    if is_foreign(request):
        raise foreign_form()
    return form


def is_foreign(request: Request) -> bool:
    """Whether a form came from a page of another site. By http, and from old browsers, the origin alone says
    so."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and not is_own_origin(request.scope, origin)


def foreign_form() -> Problem:
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
