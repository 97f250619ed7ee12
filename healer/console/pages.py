"""What all pages share: the caller, the cluster and its state."""

import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
from fastapi import Depends, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from healer.api.problems import Problem
from healer.console.fleet_map import FleetBodies, FleetMeasures
from healer.console.render import Renderer, Runbooks, runbooks_dir
from healer.console.views import fleet_view, standing_view
from healer.console.views.buttons import may_act, may_respond
from healer.model import Mode, Role, Ruleset, UnknownSeries
from healer.model.recordings import Recordings
from healer.model.shown import shown
from healer.ports.answers import Arriving, ClusterState, RuleBook, SelfHealthReads, Standing
from healer.ports.callers import SESSION_COOKIE, Caller, Sessions
from healer.ports.measurements import Charts
from healer.ports.queries import Queries, Rehearsals, RuleFiles
from healer.ports.request_errors import Invalid
from healer.telling.news import LINK_NAME, is_valid_link
from healer.text import say

_WEEK = timedelta(days=7)
PAGE_ROWS = 50
FLEET_ROWS = 50

_NO_CLUSTER = say("console.pages_healer_has_not_seen_cluster")

#: Who sees pages.
MAY_LOOK = frozenset(Role) - {Role.signals}


class Stop(Exception):
    """A page that ends early with this answer."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


class PageRoute(APIRoute):
    """A route whose handler may raise `Stop`, and Invalid for a wrong cursor."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except Stop as stop:
                return stop.response
            except Invalid:
                text = say("console.pages_page_number_address_not_one")
                raise Problem(400, text, heading=say("console.errors_no_such_page")) from None

        return answer


def missing(heading: str, text: str) -> Problem:
    """404: there is no such thing, or this person may not see it."""
    return Problem(404, text, heading=heading)


@dataclass(frozen=True, kw_only=True)
class Trying:
    """What rehearsals of rule changes need."""

    rehearsals: Rehearsals
    files: RuleFiles
    recordings: Callable[[str], Recordings]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What the pages read: the same queries as the API, and the state of this process.

    `unknown` and `arriving`: of a cluster, at most so many. `modes`: of several clusters each, with the mode
    of rules without their own. `rules_error`: why changed rule files were not loaded. `cases`: test cases of
    the rule files, by rule. `trying` None: no rehearsals here; `self_health` None: its page does not exist.
    """

    queries: Queries
    rules: Callable[[], Ruleset]
    clock: Callable[[], datetime]
    unknown: Callable[[str, int], Sequence[UnknownSeries]]
    arriving: Callable[[str, int], Arriving]
    modes: Mapping[str, Mode] = field(default_factory=dict)
    rules_error: Callable[[], str] = lambda: ""
    cases: Callable[[], dict[str, int]] = dict
    charts: Charts | None = None
    trying: Trying | None = None
    self_health: SelfHealthReads | None = None


class FleetRows:
    """The rows of each cluster, the same list until Slurm's nodes, an incident or a slot change."""

    def __init__(self) -> None:
        self._made: dict[
            str, tuple[tuple[object, object, dict[str, fleet_view.Hold]], list[fleet_view.NodeRow]]
        ] = {}

    def of(self, standing: Standing) -> list[fleet_view.NodeRow]:
        held = fleet_view.holds(standing)
        shown = standing.snapshot.nodes if standing.snapshot else None
        made = self._made.get(standing.cluster)
        if made is not None:
            (nodes, incidents, holds), rows = made
            if nodes is shown and incidents is standing.open_incidents and holds == held:
                return rows
        before = {row.name: row for row in made[1]} if made is not None else {}
        rows = fleet_view.node_rows(standing, before)
        self._made[standing.cluster] = (shown, standing.open_incidents, held), rows
        return rows


class Pages:
    """What all pages share: the caller, the cluster and its state.

    `secure_cookie`: the site is reached by https, so the cookie may only be sent by https. `link_secret`
    signs the links of messages that show a run without signing in; None: there are none.
    """

    def __init__(
        self,
        sources: Sources,
        sessions: Sessions,
        *,
        secure_cookie: bool = False,
        link_secret: str | None = None,
    ) -> None:
        self.sources, self.queries, self.sessions = sources, sources.queries, sessions
        self.secure_cookie, self._link_secret = secure_cookie, link_secret
        self.render = Renderer()
        self.clock = sources.clock
        self.fleet_rows = FleetRows()
        self.bodies = FleetBodies(self.render.translate)
        self.measures = FleetMeasures(self.queries, self.clock)
        self.runbooks = Runbooks(runbooks_dir())

    @property
    def rules(self) -> Ruleset:
        """Those in force."""
        return self.sources.rules()

    def session(self, request: Request) -> Caller:
        session = self.signed_in(request)
        if session is None:
            raise Stop(to_sign_in(request))
        if session.role not in MAY_LOOK:
            raise Problem(
                403,
                say("console.pages_role_sees_no_pages", value=session.role.value),
                heading=say("console.pages_not_for_this_token"),
            )
        return session

    def signed_in(self, request: Request) -> Caller | None:
        cookie = request.cookies.get(SESSION_COOKIE)
        return self.sessions.session(cookie) if cookie else None

    def is_guest(self, request: Request) -> bool:
        """Whether a person who is not signed in came by a signed link that shows this page."""
        secret = self._link_secret
        if secret is None or self.signed_in(request) is not None:
            return False
        given = request.query_params.get(LINK_NAME, "")
        return is_valid_link(request.url.path, given, secret, self.clock())

    def clusters(self, session: Caller) -> list[str]:
        names = sorted({*self.queries.clusters.names(), *self.sources.modes})
        return [name for name in names if session.cluster in (None, name)]

    def context(self, request: Request, page: str, cluster: str | None = None) -> dict[str, Any]:
        """The names that every template uses. Raises `Stop` and Problem."""
        session = self.session(request)
        clusters = self.clusters(session)
        wanted = cluster or request.query_params.get("cluster") or (clusters[0] if clusters else None)
        if wanted is None:
            raise Problem(503, _NO_CLUSTER, heading=say("console.pages_no_cluster_yet"))
        if wanted not in clusters:
            raise missing(
                say("console.pages_no_such_cluster"),
                say("console.pages_healer_knows_no_cluster", wanted=wanted),
            )
        return self.around(request, page, session, clusters, self.standing(wanted))

    def standing(self, cluster: str) -> Standing:
        state, rules = self.queries.clusters.state(cluster, self.clock()), self.rules
        return Standing(
            **{name: getattr(state, name) for name in ClusterState.__struct_fields__},
            rules=rules,
            guards=rules.cluster_guards.get(cluster, rules.guards),
            default_mode=self.sources.modes.get(cluster, rules.default_mode),
            rules_error=self.sources.rules_error(),
        )

    def rule_book(self, cluster: str) -> RuleBook:
        rules, queries = self.rules, self.queries.rules
        if cluster in self.sources.modes:
            rules = msgspec.structs.replace(rules, default_mode=self.sources.modes[cluster])
        return RuleBook(
            rules=rules,
            records=queries.records(cluster, fired_since=self.clock() - _WEEK),
            cases=self.sources.cases(),
            trials=tuple(queries.trials(cluster)),
        )

    def around(
        self, request: Request, page: str, session: Caller, clusters: list[str], standing: Standing
    ) -> dict[str, Any]:
        """The names of the layout."""
        now = self.clock()
        rows = self.fleet_rows.of(standing)
        return {
            "session": session,
            "acts": may_act(session.role),
            "responds": may_respond(session.role),
            "clusters": clusters,
            "cluster": standing.cluster,
            "standing": standing,
            "strip": standing_view.strip(standing, rows, now),
            "rows": rows,
            "page": page,
            # Where a form returns to.
            "here": _here(request),
            "now": now,
            "pause_button": standing_view.pause_button(standing.cluster),
            "end_pause": partial(standing_view.end_pause_button, session=session),
            "reset_breaker": standing_view.reset_breaker_button(standing.cluster),
            "runbooks": self.runbooks,
            "tells_health": self.sources.self_health is not None,
            "admin": session.role is Role.admin,
            "keep": {"cluster": standing.cluster} if len(clusters) > 1 else {},
        }

    def json(self, request: Request, body: str) -> Response:
        """JSON for a script; 304 if the script has it already."""
        body = shown(body)
        tag = f'"{hashlib.sha256(body.encode()).hexdigest()[:16]}"'
        headers = {
            "ETag": tag,
            "Cache-Control": "private, no-cache",
            "X-Content-Type-Options": "nosniff",
        }
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


async def _pages_of(request: Request) -> Pages:
    return request.state.pages


#: For a handler: the console's pages, which `Console` adds to each request.
Here = Annotated[Pages, Depends(_pages_of)]


def asking_by_incident(standing: Standing) -> dict[str, Any]:
    return {run.incident: run for run in standing.asking if run.incident}
