"""What all pages share: who looks, at which cluster, and how it stands."""

import hashlib
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from healer.api.problems import Problem
from healer.console.render import Renderer
from healer.console.runbooks import Runbooks, runbooks_dir
from healer.console.views import fleet, standing
from healer.console.views.buttons import may_act, may_respond
from healer.model import Role
from healer.ports.callers import SESSION_COOKIE, Session, SessionOf
from healer.ports.console_answers import Standing
from healer.ports.console_queries import BadCursor, ConsoleReads
from healer.telling import links

PAGE_ROWS = 50
FLEET_ROWS = 50

_NO_CLUSTER = "healer has not seen a cluster yet. `healer doctor` says what is missing."

#: Who sees pages.
MAY_LOOK = frozenset(Role) - {Role.signals}


class Stop(Exception):
    """A page that ends early with this answer."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


def missing(heading: str, text: str) -> Problem:
    """There is no such thing, or this person sees none."""
    return Problem(404, text, heading=heading)


class FleetRows:
    """The rows of each cluster, the very same list until Slurm, an incident or a slot says something else."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[tuple[object, object, dict[str, fleet.Hold]], list[fleet.NodeRow]]] = {}

    def of(self, stands: Standing) -> list[fleet.NodeRow]:
        held = fleet.holds(stands)
        shown = stands.snapshot.nodes if stands.snapshot else None
        made = self._made.get(stands.cluster)
        if made is not None:
            (nodes, incidents, holds), rows = made
            if nodes is shown and incidents is stands.open_incidents and holds == held:
                return rows
        before = {row.name: row for row in made[1]} if made is not None else {}
        rows = fleet.node_rows(stands, before)
        self._made[stands.cluster] = (shown, stands.open_incidents, held), rows
        return rows


class Pages:
    """What all pages share: who looks, at which cluster, and how it stands."""

    def __init__(self, reads: ConsoleReads, session_of: SessionOf, clock: Callable[[], datetime]) -> None:
        self.reads = reads
        self.session_of = session_of
        self.render = Renderer(clock)
        self.clock = clock
        self.fleet_rows = FleetRows()
        self.runbooks = Runbooks(runbooks_dir())
        #: Whether changes of the rules can be tried here.
        self.tries = False
        #: Whether the health of healer itself has a page here.
        self.tells_health = False

    def session(self, request: Request) -> Session:
        session = self.signed_in(request)
        if session is None:
            raise Stop(to_sign_in(request))
        if session.role not in MAY_LOOK:
            raise Problem(403, f"Role {session.role.value} sees no pages.", heading="Not for this token")
        return session

    def signed_in(self, request: Request) -> Session | None:
        cookie = request.cookies.get(SESSION_COOKIE)
        return self.session_of(cookie) if cookie else None

    def guest(self, request: Request, secret: str) -> bool:
        """Whether somebody who is not signed in came by a link of ours that shows this page."""
        if self.signed_in(request) is not None:
            return False
        given = request.query_params.get(links.NAME, "")
        return links.opens(request.url.path, given, secret, self.clock())

    def clusters(self, session: Session) -> list[str]:
        known = self.reads.clusters()
        return [name for name in known if name in session.clusters] if session.clusters else known

    def context(self, request: Request, page: str, cluster: str | None = None) -> dict[str, Any]:
        """The names that every template knows. Raises `Stop` and Problem."""
        session = self.session(request)
        clusters = self.clusters(session)
        wanted = cluster or request.query_params.get("cluster") or (clusters[0] if clusters else None)
        stands = self.reads.standing(wanted) if wanted in clusters and wanted else None
        if stands is None:
            if wanted is None or wanted in clusters:
                raise Problem(503, _NO_CLUSTER, heading="No cluster yet")
            raise missing("No such cluster", f"healer knows no cluster {wanted}.")
        return self.around(request, page, session, clusters, stands)

    def around(
        self, request: Request, page: str, session: Session, clusters: list[str], stands: Standing
    ) -> dict[str, Any]:
        """What the layout shows."""
        now = self.clock()
        rows = self.fleet_rows.of(stands)
        return {
            "session": session,
            "acts": may_act(session.role),
            "responds": may_respond(session.role),
            "clusters": clusters,
            "cluster": stands.cluster,
            "standing": stands,
            "strip": standing.strip(stands, rows, now),
            "rows": rows,
            "page": page,
            # Where a form comes back to.
            "here": _here(request),
            "now": now,
            "pause_button": standing.pause_button(stands.cluster),
            "end_pause": partial(standing.end_pause_button, session=session),
            "reset_breaker": standing.reset_breaker_button(stands.cluster),
            "runbooks": self.runbooks,
            "tells_health": self.tells_health,
            "admin": session.role is Role.admin,
            "keep": {"cluster": stands.cluster} if len(clusters) > 1 else {},
        }

    def json(self, request: Request, body: str) -> Response:
        """A body that scripts draw; 304 when it is the one they have."""
        tag = f'"{hashlib.sha256(body.encode()).hexdigest()[:16]}"'
        headers = {"ETag": tag, "Cache-Control": "private, no-cache", "X-Content-Type-Options": "nosniff"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="application/json", headers=headers)

    def show(self, template: str, context: dict[str, Any], status: int = 200) -> Response:
        return self.render.page(template, status, **context)


def _here(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def to_sign_in(request: Request) -> Response:
    target = _here(request)
    where = f"/sign-in?{urlencode({'next': target})}" if target != "/" else "/sign-in"
    return RedirectResponse(where, 303, headers={"Cache-Control": "no-store"})


def guarded(page: Callable[[], Response]) -> Response:
    try:
        return page()
    except Stop as stop:
        return stop.response
    except BadCursor:
        text = "The page number in the address is not one of ours."
        raise Problem(400, text, heading="No such page") from None


def link(path: str, keep: dict[str, str], **query: str) -> str:
    """An address with the query's non-empty parts; `keep` carries the cluster where there are several."""
    parts = {**keep, **{key: value for key, value in query.items() if value}}
    return f"{path}?{urlencode(parts)}" if parts else path


def asking_by_incident(stands: Standing) -> dict[str, Any]:
    return {run.incident: run for run in stands.asking if run.incident}
