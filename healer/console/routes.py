"""The pages. Each is one read of the database and one template; every press goes to the REST API."""

import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from healer.console.reads import (
    SESSION_COOKIE,
    AuditQuery,
    BadCursor,
    ConsoleReads,
    IncidentQuery,
    RunQuery,
    Session,
    SessionOf,
    SignIn,
    SignOut,
    Standing,
)
from healer.console.render import PAGE_HEADERS, Renderer
from healer.console.sign_in import session_routes
from healer.console.views import audit, fleet, incident, runs, standing, timeline
from healer.console.views.buttons import may_act, may_respond, node_buttons, run_buttons
from healer.console.views.report import report
from healer.model import Role, RunState, Severity

PAGE_ROWS = 50
FLEET_ROWS = 50

_NO_CLUSTER = "healer has not seen a cluster yet. `healer doctor` says what is missing."

_MAY_LOOK = frozenset(Role) - {Role.signals}


class _Stop(Exception):
    """A page that ends early with this answer."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


class _Pages:
    """What all pages share: who looks, at which cluster, and how it stands."""

    def __init__(self, reads: ConsoleReads, session_of: SessionOf, clock: Callable[[], datetime]) -> None:
        self.reads = reads
        self.session_of = session_of
        self.render = Renderer(clock)
        self.clock = clock

    def session(self, request: Request) -> Session:
        cookie = request.cookies.get(SESSION_COOKIE)
        session = self.session_of(cookie) if cookie else None
        if session is None:
            target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            where = f"/sign-in?{urlencode({'next': target})}" if target != "/" else "/sign-in"
            raise _Stop(RedirectResponse(where, 303, headers={"Cache-Control": "no-store"}))
        if session.role not in _MAY_LOOK:
            raise _Stop(self.problem(403, "Not for this token", f"Role {session.role.value} sees no pages."))
        return session

    def problem(self, status: int, title: str, text: str) -> Response:
        return self.render.page("problem.html", status, title=title, text=text)

    def clusters(self, session: Session) -> list[str]:
        known = self.reads.clusters()
        return [name for name in known if name in session.clusters] if session.clusters else known

    def context(self, request: Request, page: str, cluster: str | None = None) -> dict[str, Any]:
        """The names that every template knows. Raises `_Stop`."""
        session = self.session(request)
        clusters = self.clusters(session)
        wanted = cluster or request.query_params.get("cluster") or (clusters[0] if clusters else None)
        stands = self.reads.standing(wanted) if wanted in clusters and wanted else None
        if stands is None:
            if wanted is None or wanted in clusters:
                raise _Stop(self.problem(503, "No cluster yet", _NO_CLUSTER))
            raise _Stop(self.problem(404, "No such cluster", f"healer knows no cluster {wanted}."))
        now = self.clock()
        rows = fleet.node_rows(stands)
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
            "now": now,
            "pause_button": standing.pause_button(stands.cluster),
            "end_pause": standing.end_pause_button,
            "reset_breaker": standing.reset_breaker_button(stands.cluster),
            "admin": session.role is Role.admin,
            "keep": {"cluster": stands.cluster} if len(clusters) > 1 else {},
        }

    def show(self, template: str, context: dict[str, Any], status: int = 200) -> Response:
        return self.render.page(template, status, **context)


def router(
    reads: ConsoleReads,
    session_of: SessionOf,
    *,
    clock: Callable[[], datetime],
    sign_in: SignIn | None = None,
    sign_out: SignOut | None = None,
    secure_cookie: bool = False,
) -> APIRouter:
    """All routes of the console. Without `sign_in` the host serves `/sign-in` itself.

    `secure_cookie`: the site is reached by https, so the cookie may be sent by https alone.
    """
    pages = _Pages(reads, session_of, clock)
    routes = APIRouter(include_in_schema=False)
    _fleet_routes(routes, pages)
    _incident_routes(routes, pages)
    _run_routes(routes, pages)
    _audit_routes(routes, pages)
    _static_routes(routes, pages)
    if sign_in is not None:
        routes.include_router(
            session_routes(pages.render, session_of, sign_in, sign_out, secure_cookie=secure_cookie)
        )
    return routes


def _guarded(page: Callable[[], Response]) -> Response:
    try:
        return page()
    except _Stop as stop:
        return stop.response
    except BadCursor:
        return Response("The page number in the address is not one of ours.", 400, headers=PAGE_HEADERS)


def _fleet_routes(routes: APIRouter, pages: _Pages) -> None:
    @routes.get("/")
    def fleet_page(request: Request, q: str = "", page: int = 1) -> Response:
        def show() -> Response:
            context = pages.context(request, "fleet")
            found = fleet.by_trouble(row for row in context["rows"] if fleet.matches(row, q))
            count = max(1, -(-len(found) // FLEET_ROWS))
            number = min(max(page, 1), count)
            context |= {
                "q": q,
                "found": len(found),
                "shown": found[(number - 1) * FLEET_ROWS : number * FLEET_ROWS],
                "pages": count,
                "number": number,
                "legend": fleet.legend(context["rows"]),
            }
            return pages.show("fleet.html", context)

        return _guarded(show)

    @routes.get("/fleet.json")
    def fleet_json(request: Request) -> Response:
        def show() -> Response:
            context = pages.context(request, "fleet")
            body = json.dumps(fleet.fleet_body(context["standing"], context["rows"]), separators=(",", ":"))
            tag = f'"{hashlib.sha256(body.encode()).hexdigest()[:16]}"'
            headers = {"ETag": tag, "Cache-Control": "private, no-cache", "X-Content-Type-Options": "nosniff"}
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers=headers)
            return Response(body, media_type="application/json", headers=headers)

        return _guarded(show)

    @routes.get("/nodes/{cluster}/{node}")
    def node_page(request: Request, cluster: str, node: str) -> Response:
        def show() -> Response:
            context = pages.context(request, "node", cluster)
            row = next((row for row in context["rows"] if row.name == node), None)
            if row is None:
                raise _Stop(pages.problem(404, "No such node", f"Slurm shows no node {node} in {cluster}."))
            stands: Standing = context["standing"]
            query = IncidentQuery(cluster=cluster, node=node)
            past = pages.reads.incidents(query, limit=PAGE_ROWS)
            asking = _asking(stands)
            ran = pages.reads.runs(RunQuery(cluster=cluster, node=node), limit=PAGE_ROWS)
            now = context["now"]
            context |= {
                "row": row,
                "slurm": stands.snapshot.nodes[node] if stands.snapshot else None,
                "jobs": stands.snapshot.jobs_on(node) if stands.snapshot else [],
                "incidents": [incident.incident_row(one, asking, now) for one in past.items],
                "runs": [runs.run_row(run, now) for run in ran.items],
                "buttons": node_buttons(row, cluster, context["session"].role),
                "veto": next((veto for veto in stands.vetoes if veto.node == node), None),
                "slot": next((slot for slot in stands.slots if slot.node == node), None),
            }
            return pages.show("node.html", context)

        return _guarded(show)


def _asking(stands: Standing) -> dict[str, Any]:
    return {run.incident: run for run in stands.asking if run.incident}


def _incident_routes(routes: APIRouter, pages: _Pages) -> None:
    @routes.get("/incidents")
    def incidents_page(
        request: Request, show: str = "open", severity: str = "", q: str = "", cursor: str | None = None
    ) -> Response:
        def body() -> Response:
            context = pages.context(request, "incidents")
            query = IncidentQuery(
                cluster=context["cluster"],
                open={"open": True, "resolved": False}.get(show),
                severity=Severity(severity) if severity in set(Severity) else None,
                text=q.strip(),
            )
            found = pages.reads.incidents(query, limit=PAGE_ROWS, cursor=cursor)
            asking = _asking(context["standing"])
            rows = [incident.incident_row(one, asking, context["now"]) for one in found.items]
            if query.open:
                # What is open is worked on: the most severe first. What is over is history: newest first.
                rows.sort(key=lambda row: row.incident.severity)
            context |= {
                "incidents": rows,
                "total": found.total,
                "next": _link("/incidents", context["keep"], show=show, severity=severity, q=q,
                              cursor=found.next_cursor or "") if found.next_cursor else None,
                "first": cursor is None,
                "view": show,
                "severity": severity,
                "severities": [word.value for word in Severity],
                "q": q,
                "link": _link,
            }  # fmt: skip
            return pages.show("incidents.html", context)

        return _guarded(body)

    @routes.get("/incidents/{incident_id}/report.md")
    def incident_report(request: Request, incident_id: str) -> Response:
        def show() -> Response:
            session = pages.session(request)
            detail = pages.reads.incident(incident_id)
            if detail is None or detail.incident.cluster not in pages.clusters(session):
                raise _Stop(pages.problem(404, "No such incident", f"No incident begins with {incident_id}."))
            name = f"incident-{detail.incident.short_id}.md"
            headers = {**PAGE_HEADERS, "Content-Disposition": f'inline; filename="{name}"'}
            return Response(report(detail, pages.clock()), media_type="text/markdown", headers=headers)

        return _guarded(show)

    @routes.get("/incidents/{incident_id}")
    def incident_page(request: Request, incident_id: str) -> Response:
        def show() -> Response:
            session = pages.session(request)
            detail = pages.reads.incident(incident_id)
            if detail is None or detail.incident.cluster not in pages.clusters(session):
                raise _Stop(pages.problem(404, "No such incident", f"No incident begins with {incident_id}."))
            context = pages.context(request, "incident", detail.incident.cluster)
            now = context["now"]
            context |= {
                "detail": detail,
                "view": incident.incident_view(detail, context["standing"], session.role, now),
                "timeline": timeline.timeline(detail),
                "similar": [incident.incident_row(one, {}, now) for one in detail.similar],
            }
            return pages.show("incident.html", context)

        return _guarded(show)


def _link(path: str, keep: dict[str, str], **query: str) -> str:
    """An address with the query's non-empty parts; `keep` carries the cluster where there are several."""
    parts = {**keep, **{key: value for key, value in query.items() if value}}
    return f"{path}?{urlencode(parts)}" if parts else path


def _run_routes(routes: APIRouter, pages: _Pages) -> None:
    @routes.get("/runs")
    def runs_page(request: Request, state: str = "", cursor: str | None = None) -> Response:
        def show() -> Response:
            context = pages.context(request, "runs")
            wanted = RunState(state) if state in set(RunState) else None
            found = pages.reads.runs(
                RunQuery(cluster=context["cluster"], state=wanted), limit=PAGE_ROWS, cursor=cursor
            )
            now = context["now"]
            context |= {
                "asking": [runs.run_row(run, now) for run in context["standing"].asking] if not state else [],
                "runs": [runs.run_row(run, now) for run in found.items],
                "next": _link("/runs", context["keep"], state=state, cursor=found.next_cursor)
                if found.next_cursor
                else None,
                "first": cursor is None,
                "state": state,
                "total": found.total,
                "link": _link,
            }
            return pages.show("runs.html", context)

        return _guarded(show)

    @routes.get("/runs/{run_id}")
    def run_page(request: Request, run_id: str) -> Response:
        def show() -> Response:
            session = pages.session(request)
            detail = pages.reads.run(run_id)
            if detail is None or detail.run.cluster not in pages.clusters(session):
                raise _Stop(pages.problem(404, "No such run", f"There is no run {run_id}."))
            context = pages.context(request, "run", detail.run.cluster)
            last = runs.last_decision(detail)
            context |= {
                "run": detail.run,
                "row": runs.run_row(detail.run, context["now"]),
                "steps": runs.steps(detail.log, detail.run.created_at),
                "log": detail.log,
                "decision": last,
                "guards": runs.guard_rows(last.answers) if last else [],
                "buttons": run_buttons(detail.run, session.role),
                "mode_note": runs.mode_note(detail.run.mode),
            }
            return pages.show("run.html", context)

        return _guarded(show)


def _audit_routes(routes: APIRouter, pages: _Pages) -> None:
    @routes.get("/audit")
    def audit_page(
        request: Request, actor: str = "", verb: str = "", subject: str = "", cursor: str | None = None
    ) -> Response:
        def show() -> Response:
            context = pages.context(request, "audit")
            query = AuditQuery(cluster=context["cluster"], actor=actor, verb=verb, subject=subject)
            found = pages.reads.audit(query, limit=PAGE_ROWS, cursor=cursor)
            context |= {
                "records": [audit.audit_row(record, context["cluster"]) for record in found.items],
                "total": found.total,
                "next": _link("/audit", context["keep"], actor=actor, verb=verb, subject=subject,
                              cursor=found.next_cursor) if found.next_cursor else None,
                "first": cursor is None,
                "chain": pages.reads.chain(context["cluster"]),
                "actor": actor,
                "verb": verb,
                "subject": subject,
            }  # fmt: skip
            return pages.show("audit.html", context)

        return _guarded(show)


def _static_routes(routes: APIRouter, pages: _Pages) -> None:
    @routes.get("/static/{name:path}")
    def static_file(name: str, v: str = "") -> Response:
        found = pages.render.assets.response(name, v)
        return found if found is not None else Response("No such file.", 404, media_type="text/plain")

    @routes.get("/favicon.ico")
    def favicon() -> Response:
        return RedirectResponse(pages.render.assets.url("icon.svg"), 308)
