"""Signing in by a one-time link or a token, and out again. Only where the host brings `sign_in`."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from healer.console.forms import fields, foreign_form, from_elsewhere, local
from healer.console.render import Renderer
from healer.ports.callers import SESSION_COOKIE, SessionOf, SignIn, SignOut


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
        response = RedirectResponse(local(target), 303, headers={"Cache-Control": "no-store"})
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
        form = await fields(request)
        if from_elsewhere(request):
            raise foreign_form()
        token, target = form.get("token", "").strip(), form.get("next", "/")
        return await run_in_threadpool(open_session, token, target)

    def end_session(cookie: str | None, csrf: str, *, elsewhere: bool) -> Response:
        session = session_of(cookie) if cookie else None
        if session is not None and (elsewhere or csrf != session.csrf):
            raise foreign_form()
        if cookie and sign_out is not None:
            sign_out(cookie)
        response = RedirectResponse("/sign-in", 303, headers={"Cache-Control": "no-store"})
        response.delete_cookie(SESSION_COOKIE, path="/")
        return response

    @routes.post("/sign-out")
    async def sign_out_form(request: Request) -> Response:
        form = await fields(request)
        cookie = request.cookies.get(SESSION_COOKIE)
        elsewhere = from_elsewhere(request)
        return await run_in_threadpool(end_session, cookie, form.get("csrf", ""), elsewhere=elsewhere)

    return routes
