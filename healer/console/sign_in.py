"""Signing in by a one-time link or a token, and out again. Only where the host brings `sign_in`."""

from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from healer.console.reads import SESSION_COOKIE, SessionOf, SignIn, SignOut
from healer.console.render import Renderer


def session_routes(
    render: Renderer,
    session_of: SessionOf,
    sign_in: SignIn,
    sign_out: SignOut | None,
    *,
    secure_cookie: bool,
) -> APIRouter:
    routes = APIRouter(include_in_schema=False)

    def open_session(token: str, target: str) -> Response:
        new = sign_in(token)
        if new is None:
            return render.page("sign_in.html", 401, failed=True, target=target)
        response = RedirectResponse(_local(target), 303, headers={"Cache-Control": "no-store"})
        response.set_cookie(
            SESSION_COOKIE, new.cookie, max_age=new.max_age_s, httponly=True, samesite="lax",
            secure=secure_cookie, path="/",
        )  # fmt: skip
        return response

    @routes.get("/sign-in")
    def sign_in_page(token: str = "", next: str = "/") -> Response:
        if token:
            return open_session(token, next)
        return render.page("sign_in.html", failed=False, target=next)

    @routes.post("/sign-in")
    async def sign_in_form(request: Request) -> Response:
        form = await _form(request)
        if _from_elsewhere(request):
            return render.page("problem.html", 403, **_ELSEWHERE)
        token, target = form.get("token", "").strip(), form.get("next", "/")
        return await run_in_threadpool(open_session, token, target)

    def end_session(cookie: str | None, csrf: str, *, elsewhere: bool) -> Response:
        session = session_of(cookie) if cookie else None
        if session is not None and (elsewhere or csrf != session.csrf):
            return render.page("problem.html", 403, **_ELSEWHERE)
        if cookie and sign_out is not None:
            sign_out(cookie)
        response = RedirectResponse("/sign-in", 303, headers={"Cache-Control": "no-store"})
        response.delete_cookie(SESSION_COOKIE, path="/")
        return response

    @routes.post("/sign-out")
    async def sign_out_form(request: Request) -> Response:
        form = await _form(request)
        cookie = request.cookies.get(SESSION_COOKIE)
        elsewhere = _from_elsewhere(request)
        return await run_in_threadpool(end_session, cookie, form.get("csrf", ""), elsewhere=elsewhere)

    return routes


async def _form(request: Request) -> dict[str, str]:
    """A small url-encoded form. Read by hand: two fields are no reason for a multipart parser."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_BYTES:
            return {}
    return dict(parse_qsl(body.decode("utf-8", "replace")))


_FORM_BYTES = 8192
_ELSEWHERE = {"title": "Not from this site", "text": "The form was sent from another site."}


def _from_elsewhere(request: Request) -> bool:
    return request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")


def _local(target: str) -> str:
    """A path on this site; anything else becomes `/`, so that a link cannot send people elsewhere."""
    if not target.startswith("/") or target.startswith(("//", "/\\")):
        return "/"
    return quote(target, safe="/?&=%:+,.-_~")
