"""Errors as pages for a person's browser, where a program gets a problem."""

import logging
import re
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response

from healer.api.credential_budget import OverBudget
from healer.api.problems import Problem
from healer.console import words
from healer.console.pages import MAY_LOOK, Pages, to_sign_in
from healer.console.render import link
from healer.text import say

log = logging.getLogger("healer.api")

#: Errors of a URL: a person who is not signed in is asked to sign in first, as on every page.
_SIGN_IN_FIRST = frozenset({401, 404, 405})
#: Status -> heading and text, where the page set none; with an empty text that of the problem is shown.
_WORDS = {
    400: (say("console.errors_not_understood"), ""),
    403: (say("console.errors_not_allowed"), ""),
    404: (say("console.errors_no_such_page"), say("console.errors_there_no_page_this_address")),
    405: (say("console.errors_not_this_way"), say("console.errors_something_this_address_but_not")),
    422: (say("console.errors_not_understood"), ""),
    500: (say("console.errors_something_went_wrong"), ""),
}
#: First part of an address -> the page above it.
_ABOVE = {name: name for name in ("incidents", "runs", "rules", "approvals", "reports", "playbooks")}
_ABOVE |= {name: name for name in ("pauses", "signals", "audit", "tokens")}
_ABOVE |= {"runbooks": "playbooks", "rehearsals": "rules", "people": "tokens"}
#: Addresses that scripts and programs read, among the pages.
_FILES = re.compile(r"\.(json|md)$|^/static/")
_ACCEPT_MAX = 1000


class ErrorPages:
    """For `healer.api.problems.Errors.page`."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def __call__(self, request: Request, problem: Problem) -> Response | None:
        """None if the client prefers a problem to a page. From a thread."""
        # A problem with a heading comes from a page: a client that accepts both alike gets a page.
        usual = bool(problem.heading) and not _FILES.search(request.url.path)
        if not prefers_page(request.headers.get("accept", ""), usual=usual):
            return None
        try:
            layout = self._layout(request, problem)
        except Exception:
            log.exception("error page shown without its header")
            layout = {}
        if layout is None:
            return to_sign_in(request)
        title, text = _words(problem)
        response = self._pages.render.page(
            "problem.html",
            problem.status,
            title=title,
            text=text,
            ways=_ways(request.url.path, layout.get("keep", {})),
            **layout,
        )
        response.headers.update(problem.headers)
        return response

    def _layout(self, request: Request, problem: Problem) -> dict[str, Any] | None:
        """The names of the layout for a signed-in person; none for others, and where reading them may fail.
        None: the person has to sign in first."""
        if problem.status >= 500 or isinstance(problem, OverBudget):
            return {}
        session = self._pages.signed_in(request)
        if session is None:
            return None if problem.status in _SIGN_IN_FIRST and not problem.heading else {}
        if session.role not in MAY_LOOK:
            return {}
        clusters = self._pages.clusters(session)
        asked = (request.path_params.get("cluster"), request.query_params.get("cluster"))
        cluster = next((name for name in (*asked, *clusters) if name in clusters), None)
        if cluster is None:
            return {}
        return self._pages.around(request, "problem", session, clusters, self._pages.standing(cluster))


def _words(problem: Problem) -> tuple[str, str]:
    if problem.heading:
        return problem.heading, problem.detail
    title, text = _WORDS.get(problem.status, (HTTPStatus(problem.status).phrase, ""))
    return title, text or words.sentence(problem.detail)


def _ways(path: str, keep: dict[str, str]) -> list[tuple[str, str]]:
    """(address, words) of pages that surely exist: the one above this address, and the first one."""
    above = _ABOVE.get(path.split("/")[1])
    ways = [(link(f"/{above}", keep), say(f"console.errors_{above}"))] if above else []
    return [*ways, (link("/", keep), say("console.errors_fleet"))]


def prefers_page(accept: str, *, usual: bool) -> bool:
    """Whether an Accept header prefers HTML to a problem; `usual` if it accepts both alike."""
    html = _quality(accept, "text/html")
    problem = max(_quality(accept, kind) for kind in ("application/problem+json", "application/json"))
    return usual if html == problem else html > problem


def _quality(accept: str, kind: str) -> tuple[float, int]:
    """Its q value, and how specifically it is named: 2 itself, 1 by `text/*`, 0 by `*/*`, -1 not."""
    plainly = {kind: 2, f"{kind.partition('/')[0]}/*": 1, "*/*": 0}
    found = (0.0, -1)
    for part in accept[:_ACCEPT_MAX].lower().split(","):
        name, *more = (word.strip() for word in part.split(";"))
        if plainly.get(name, -1) > found[1]:
            found = (
                next((_number(parameter[2:]) for parameter in more if parameter.startswith("q=")), 1.0),
                plainly[name],
            )
    return found if found[0] else (0.0, -1)


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"[01](\.\d{0,3})?", text) else 0.0
