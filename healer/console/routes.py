"""The pages. Each is one read of the database and one template; every press goes to the REST API."""

from collections.abc import Callable
from datetime import datetime
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from healer.console.desk_routes import desk_routes
from healer.console.errors import ErrorPages
from healer.console.fleet_routes import fleet_routes
from healer.console.incident_routes import incident_routes
from healer.console.language_routes import language_routes
from healer.console.machine_routes import machine_routes
from healer.console.pages import PAGE_ROWS, Pages, guarded, link, missing
from healer.console.playbook_routes import playbook_routes
from healer.console.rehearsal_routes import rehearsal_routes
from healer.console.render import speak
from healer.console.report_routes import report_routes
from healer.console.sign_in import session_routes
from healer.console.views import audit, runs
from healer.console.views.buttons import from_here_buttons, run_buttons
from healer.model import RunState
from healer.ports.callers import SessionOf, SignIn, SignOut
from healer.ports.console_queries import AuditQuery, ConsoleReads, RehearsalReads, RunQuery
from healer.ports.self_health import OwnReads


class Console(APIRouter):
    """The routes of the console, and `error_page`: an error as a page of it."""

    def __init__(self, pages: Pages) -> None:
        super().__init__(include_in_schema=False, dependencies=[Depends(speak)])
        self.error_page = ErrorPages(pages)


def router(
    reads: ConsoleReads,
    session_of: SessionOf,
    *,
    clock: Callable[[], datetime],
    sign_in: SignIn | None = None,
    sign_out: SignOut | None = None,
    secure_cookie: bool = False,
    link_secret: str | None = None,
    rehearsals: RehearsalReads | None = None,
    own: OwnReads | None = None,
) -> Console:
    """All routes of the console. Without `sign_in` the host serves `/sign-in` itself.

    `secure_cookie`: the site is reached by https, so the cookie may be sent by https alone. `link_secret`:
    signs the links of messages that show a run without signing in; None: there are none. `rehearsals`: what
    the pages read on which a change of the rules is tried; None: there are no such pages. `own`: what healer
    knows of itself; None: its health has no page.
    """
    pages = Pages(reads, session_of, clock)
    pages.tries, pages.tells_health = rehearsals is not None, own is not None
    routes = Console(pages)
    fleet_routes(routes, pages)
    incident_routes(routes, pages)
    machine_routes(routes, pages)
    desk_routes(routes, pages, own)
    report_routes(routes, pages)
    playbook_routes(routes, pages)
    if rehearsals is not None:
        rehearsal_routes(routes, pages, rehearsals)
    _run_routes(routes, pages, link_secret)
    _audit_routes(routes, pages)
    _static_routes(routes, pages)
    language_routes(routes, pages, secure_cookie=secure_cookie)
    if sign_in is not None:
        routes.include_router(
            session_routes(pages.render, session_of, sign_in, sign_out, secure_cookie=secure_cookie)
        )
    return routes


def _run_routes(routes: APIRouter, pages: Pages, link_secret: str | None) -> None:
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
                "next": link("/runs", context["keep"], state=state, cursor=found.next_cursor)
                if found.next_cursor
                else None,
                "first": cursor is None,
                "state": state,
                "total": found.total,
                "link": link,
            }
            return pages.show("runs.html", context)

        return guarded(show)

    @routes.get("/runs/{run_id}")
    def run_page(request: Request, run_id: str) -> Response:
        def show() -> Response:
            if link_secret is not None and pages.guest(request, link_secret):
                return _look(pages, run_id)
            session = pages.session(request)
            detail = pages.reads.run(run_id)
            if detail is None or detail.run.cluster not in pages.clusters(session):
                raise missing("No such run", f"There is no run {run_id}.")
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
                "again": from_here_buttons(detail.run, detail.log, session.role),
                "mode_note": runs.mode_note(detail.run.mode),
            }
            return pages.show("run.html", context)

        return guarded(show)


def _look(pages: Pages, run_id: str) -> Response:
    """The run for somebody who came by a link of a message."""
    detail = pages.reads.run(run_id)
    if detail is None:
        raise missing("No such run", f"There is no run {run_id}.")
    last = runs.last_decision(detail)
    return pages.show(
        "look.html",
        {
            "run": detail.run,
            "row": runs.run_row(detail.run, pages.clock()),
            "plan": detail.plan,
            "decision": last,
            "guards": runs.guard_rows(last.answers) if last else [],
            "sign_in": f"/sign-in?{urlencode({'next': f'/runs/{run_id}'})}",
        },
    )


def _audit_routes(routes: APIRouter, pages: Pages) -> None:
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
                "next": link("/audit", context["keep"], actor=actor, verb=verb, subject=subject,
                              cursor=found.next_cursor) if found.next_cursor else None,
                "first": cursor is None,
                "chain": pages.reads.chain(context["cluster"]),
                "actor": actor,
                "verb": verb,
                "subject": subject,
            }  # fmt: skip
            return pages.show("audit.html", context)

        return guarded(show)


def _static_routes(routes: APIRouter, pages: Pages) -> None:
    @routes.get("/static/{name:path}")
    def static_file(name: str, v: str = "") -> Response:
        found = pages.render.assets.response(name, v)
        if found is None:
            raise missing("No such file", "There is no file at this address.")
        return found

    @routes.get("/favicon.ico")
    def favicon() -> Response:
        return RedirectResponse(pages.render.assets.url("icon.svg"), 308)
