"""What all pages share: the caller, the cluster and its state."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Annotated, Any, Protocol
from urllib.parse import urlencode

import msgspec
from fastapi import Depends, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from healer.api.access import ALLOWED
from healer.api.cookies import read_cookie
from healer.api.credential_budget import address_of
from healer.api.granted import bars_approval, has_role, role_at
from healer.api.problems import Problem, not_in_slurm
from healer.console import words
from healer.console.fleet_map import FleetBodies, FleetMeasures
from healer.console.render import Renderer, Runbooks
from healer.console.views import fleet_view, standing_view
from healer.console.views.buttons import may_act, may_respond, nothing_bars
from healer.engine.leavers import Leavers
from healer.engine.local_accounts import LocalAccounts
from healer.model import Mode, Role, Ruleset, Run, SlurmSnapshot, UnknownSeries
from healer.model.recordings import Recordings
from healer.ports.answers import Arriving, ClusterState, RuleBook, SelfHealthReads, Standing
from healer.ports.callers import SESSION_COOKIE, Caller, Sessions
from healer.ports.directory import People
from healer.ports.measurements import Charts
from healer.ports.queries import Queries, Rehearsals, RuleFiles
from healer.ports.request_errors import Invalid
from healer.ports.sign_in import SignIn
from healer.rulebook.runbooks import runbooks_dir
from healer.telling.news import LINK_NAME, is_valid_link
from healer.text import Said, say

_WEEK = timedelta(days=7)
PAGE_ROWS = 50
FLEET_ROWS = 50

_NO_CLUSTER = say("console.pages_healer_has_not_seen_cluster")

#: Roles that see pages.
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


def missing(what: str, **args: str) -> Problem:
    """404: there is no such thing, or this person may not see it. `what`: its key in the catalogue."""
    return Problem(404, say(f"console.why_missing_{what}", **args), heading=say(f"console.missing_{what}"))


def missing_in_slurm(snapshot: SlurmSnapshot | None, kind: str, name: str, cluster: str) -> Problem:
    """404 for a node or a job (`kind`)."""
    why = words.sentence(not_in_slurm(snapshot, kind, name, cluster))
    return Problem(404, say("words.stopped", text=why), heading=say(f"console.missing_{kind}"))


@dataclass(frozen=True, kw_only=True)
class Trying:
    """What rehearsals of rule changes need."""

    rehearsals: Rehearsals
    files: RuleFiles
    recordings: Callable[[str], Recordings]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What the pages read: the same queries as the API, and the state of this process.

    `bars`: by a person's name, why they may not approve a run (`Commands.bars`).
    `unknown` and `arriving`: of a cluster, at most so many. `modes`: of each configured cluster, the mode
    of rules without their own. `rules_error`: why changed rule files were not loaded. `cases`: test cases of
    the rule files, by rule. `trying` None: no rehearsals here; `self_health` or `leavers` None: their
    pages do not exist.
    """

    queries: Queries
    rules: Callable[[], Ruleset]
    clock: Callable[[], datetime]
    unknown: Callable[[str, int], Sequence[UnknownSeries]]
    arriving: Callable[[str, int], Arriving]
    bars: Callable[[str], Callable[[Run], Said | None]] = lambda by: nothing_bars
    modes: Mapping[str, Mode] = field(default_factory=dict)
    rules_error: Callable[[], str] = lambda: ""
    cases: Callable[[], dict[str, int]] = dict
    charts: Charts | None = None
    trying: Trying | None = None
    self_health: SelfHealthReads | None = None
    leavers: Leavers | None = None


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


class RoleCheck(Protocol):
    """Whether a person has the role or one that includes it at the cluster; None: at all of the site."""

    def __call__(self, role: Role, cluster: str | None = None) -> bool: ...


class Pages:
    """What all pages share: the caller, the cluster and its state.

    `link_secret` signs the links of messages that show a run without signing in; None: there are none.
    """

    def __init__(
        self,
        sources: Sources,
        sessions: Sessions,
        *,
        link_secret: str | None = None,
        people: People | None = None,
        sign_in: SignIn | None = None,
        accounts: LocalAccounts | None = None,
    ) -> None:
        self.sources, self.queries, self.sessions = sources, sources.queries, sessions
        self._link_secret = link_secret
        self.people, self.sign_in, self.accounts = people, sign_in, accounts
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
            if (owner := job_owner(self.sessions, request)) is not None:
                raise Stop(RedirectResponse("/jobs", 303)) if request.url.path == "/" else _no_role(owner)
            raise Stop(to_sign_in(request))
        if session.role not in MAY_LOOK:
            raise Problem(
                403,
                say("console.pages_role_sees_no_pages", role=session.role.value),
                heading=say("console.pages_not_for_this_token"),
            )
        return session

    def signed_in(self, request: Request) -> Caller | None:
        cookie = read_cookie(request, SESSION_COOKIE)
        return self.sessions.session(cookie, address_of(request)) if cookie else None

    def is_guest(self, request: Request) -> bool:
        """Whether a person who is not signed in came through a signed link that shows this page."""
        secret = self._link_secret
        if secret is None or self.signed_in(request) is not None:
            return False
        given = request.query_params.get(LINK_NAME, "")
        return is_valid_link(request.url.path, given, secret, self.clock())

    def clusters(self, session: Caller) -> list[str]:
        names = self.cluster_names()
        if session.clusters is not None:
            return [name for name in names if name in session.clusters]
        return [name for name in names if session.cluster in (None, name)]

    def role_check(self, session: Caller) -> RoleCheck:
        """The check for one page: it reads the clusters once, however many rows ask, and not where none
        does."""
        names = cache(self.cluster_names)
        return lambda role, cluster=None: has_role(session, ALLOWED[role], cluster, names())

    def cluster_names(self) -> list[str]:
        return sorted({*self.queries.clusters.names(), *self.sources.modes})

    def context(self, request: Request, page: str, cluster: str | None = None) -> dict[str, Any]:
        """The names that every template uses. Raises `Stop` and Problem."""
        session = self.session(request)
        clusters = self.clusters(session)
        wanted = cluster or request.query_params.get("cluster") or (clusters[0] if clusters else None)
        if wanted is None:
            raise Problem(503, _NO_CLUSTER, heading=say("console.pages_no_cluster_yet"))
        if wanted not in clusters:
            raise missing("cluster", wanted=wanted)
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
        now, role = self.clock(), role_at(session, standing.cluster)
        may = self.role_check(session)
        operates = partial(may, Role.operator)
        rows = self.fleet_rows.of(standing)
        strip = standing_view.strip(standing, rows, now)
        if glass := standing_view.glass_banner(standing.glass, now):
            strip = msgspec.structs.replace(strip, banners=(glass, *strip.banners))
        return {
            "session": session,
            "role": role,
            "owner": None,
            "acts": may_act(role),
            "responds": may_respond(role),
            "clusters": clusters,
            "cluster": standing.cluster,
            "standing": standing,
            "strip": strip,
            "rows": rows,
            "page": page,
            # Where a form returns to.
            "here": path_and_query(request),
            "now": now,
            "pause_button": standing_view.pause_button(standing.cluster),
            "end_pause": partial(standing_view.end_pause_button, operates=operates),
            "end_glass": standing_view.end_glass_button(),
            "reset_breaker": standing_view.reset_breaker_button(standing.breaker),
            "runbooks": self.runbooks,
            "lists_sessions": self.people is not None,
            "tells_health": self.sources.self_health is not None,
            "lists_tokens": self.sources.leavers is not None,
            "admin": role is Role.admin,
            "ends_glass": partial(may, Role.admin),
            # At a cluster; None: on all of the site.
            "operates": operates,
            "keep": {"cluster": standing.cluster} if len(clusters) > 1 else {},
        }

    def show(self, template: str, context: dict[str, Any], status: int = 200) -> Response:
        return self.render.page(template, status, **context)


def bars_of(pages: Pages, session: Caller) -> Callable[[Run], Said | None]:
    """Why the person of this session may not approve a run; None if they may."""
    by_name = pages.sources.bars(session.name)
    return lambda run: bars_approval(session, ALLOWED[Role.operator], run) or by_name(run)


def job_owner(sessions: Sessions, request: Request) -> Caller | None:
    """A person without a role, at a site where people see their own jobs."""
    cookie = read_cookie(request, SESSION_COOKIE)
    return sessions.job_owner(cookie, address_of(request)) if cookie else None


def _no_role(owner: Caller) -> Problem:
    return Problem(
        403, say("console.own_jobs_only", name=owner.name), heading=say("console.own_jobs_heading")
    )


def path_and_query(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def to_sign_in(request: Request) -> Response:
    target = path_and_query(request)
    where = f"/sign-in?{urlencode({'next': target})}" if target != "/" else "/sign-in"
    return RedirectResponse(where, 303, headers={"Cache-Control": "no-store"})


async def _pages_of(request: Request) -> Pages:
    return request.state.pages


#: For a handler: the console's pages, which `Console` adds to each request.
Here = Annotated[Pages, Depends(_pages_of)]


def asking_by_incident(standing: Standing) -> dict[str, Any]:
    return {run.incident: run for run in standing.asking if run.incident}
