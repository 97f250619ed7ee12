"""Choosing the language, and finished sentences in it for what scripts get from the API."""

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from healer.api.problems import Problem
from healer.console import language
from healer.console.forms import fields, foreign_form, from_elsewhere, local
from healer.console.pages import Pages, guarded

_YEAR_S = 365 * 86400
#: What words.js asks for at once. Each text may cost some 0.02 s of the process that takes signals in.
_TEXTS, _CHARS = 50, 2000


def language_routes(routes: APIRouter, pages: Pages, *, secure_cookie: bool) -> None:
    @routes.post("/language")
    async def choose(request: Request) -> Response:
        """For guests too: the page on which one signs in has the switch."""
        form = await fields(request)
        if from_elsewhere(request):
            raise foreign_form()
        response = RedirectResponse(local(form.get("next", "/")), 303, headers={"Cache-Control": "no-store"})
        if (to := form.get("to", "")) in language.LANGUAGES:
            response.set_cookie(
                language.COOKIE, to, max_age=_YEAR_S, samesite="lax", secure=secure_cookie, path="/"
            )
        return response

    @routes.post("/words")
    async def in_words(request: Request) -> Response:
        body = await request.body()

        def show() -> Response:
            pages.session(request)
            try:
                texts = msgspec.json.decode(body, type=list[str])
            except msgspec.DecodeError:
                raise Problem(400, "a list of texts is wanted") from None
            if len(texts) > _TEXTS or any(len(one) > _CHARS for one in texts):
                raise Problem(413, f"at most {_TEXTS} texts of {_CHARS} characters are taken at once")
            said = msgspec.json.encode([pages.render.said(one) for one in texts])
            return Response(said, media_type="application/json", headers={"Cache-Control": "no-store"})

        return await run_in_threadpool(guarded, show)
