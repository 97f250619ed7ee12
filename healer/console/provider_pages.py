"""Sign-in through the identity provider, and its notice when a person signs out there."""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from healer.api.cookies import drop_cookie, read_cookie, set_cookie
from healer.api.problems import Problem
from healer.api.services import Services
from healer.api.signing_in import end_by_provider, open_session
from healer.api.site_address import peer_of
from healer.console.pages import Here, PageRoute, Pages
from healer.console.session_pages import (
    NOT_KEPT,
    end_former,
    local,
    own_form,
    read_form,
    sign_in_words,
    with_session,
)
from healer.ports.sign_in import IdentityProvider, SignInRefused
from healer.text import said_by, say

routes = APIRouter(route_class=PageRoute)
#: Kept from the first page to the provider's answer: the state of one sign-in.
_BEGUN_COOKIE, _BEGUN_LASTS_S = "healer_sign_in", 600


@routes.get("/auth/begin")
def begin(request: Request, pages: Here, next: str = "/", again: bool = False) -> Response:
    """Changes nothing: a preview of this URL begins a sign-in that is never completed."""
    try:
        begun = _provider(request).begin(local(next), again=again)
    except SignInRefused as error:
        return _refused(pages, said_by(error), next, 503)
    response = RedirectResponse(begun.url, 303, headers=NOT_KEPT)
    set_cookie(request, response, _BEGUN_COOKIE, begun.kept, lasts_s=_BEGUN_LASTS_S)
    return response


@routes.get("/auth/callback")
def callback(
    request: Request, pages: Here, state: str = "", code: str = "", iss: str = "", error: str = ""
) -> Response:
    kept, services = read_cookie(request, _BEGUN_COOKIE), _services(request)
    try:
        if error:
            raise SignInRefused(say("api.sign_in_provider_says", why=error[:100]))
        claim = services.rules().access.claim
        proven = _provider(request).finish(kept, state=state, code=code, issuer=iss, claim=claim)
        opened = open_session(
            services, request.app.state.access, proven.arrival, request.headers.get("user-agent", "")
        )
    except SignInRefused as refused:
        # The cookie stays: it may be that of a later sign-in, of another tab.
        return _refused(pages, str(refused), "/", 403)
    end_former(request, pages)
    response = with_session(request, opened.secret, proven.target)
    drop_cookie(request, response, _BEGUN_COOKIE)
    return response


@routes.post("/auth/proxy")
async def by_proxy(request: Request, pages: Here) -> Response:
    """The button of a site whose proxy has signed the person in."""
    form = await own_form(request)
    return await run_in_threadpool(_open_by_proxy, request, pages, form.get("next", "/"))


def _open_by_proxy(request: Request, pages: Pages, target: str) -> Response:
    services = _services(request)
    proxy = services.sign_in.proxy if services.sign_in is not None else None
    arrival = proxy.arrival(peer_of(request.scope), request.headers.items()) if proxy is not None else None
    if arrival is None:
        return _refused(pages, say("api.sign_in_not_by_proxy"), target, 403)
    try:
        opened = open_session(
            services, request.app.state.access, arrival, request.headers.get("user-agent", "")
        )
    except SignInRefused as error:
        return _refused(pages, said_by(error), target, 403)
    return with_session(request, opened.secret, target)


@routes.post("/auth/backchannel")
async def backchannel(request: Request) -> Response:
    """OpenID Connect Back-Channel Logout: ends the sessions that the provider has ended."""
    form = await read_form(request)
    try:
        await run_in_threadpool(end_by_provider, _services(request), form.get("logout_token", ""))
    except SignInRefused as error:
        raise Problem(400, said_by(error)) from None
    return Response(headers=NOT_KEPT)


def _services(request: Request) -> Services:
    services: Any = request.app.state.services
    return services


def _provider(request: Request) -> IdentityProvider:
    sign_in = _services(request).sign_in
    if sign_in is None or sign_in.provider is None:
        raise Problem(404, say("api.sign_in_no_provider"))
    return sign_in.provider


def _refused(pages: Pages, why: str, target: str, status: int) -> Response:
    return pages.render.page("sign_in.html", status, **sign_in_words(pages, target, refused=why))
