"""The pages of runs: all of them, and one with its steps."""

from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from healer.api.granted import role_at
from healer.console.pages import PAGE_ROWS, Here, PageRoute, Pages, bars_of, missing
from healer.console.render import next_link, one_of
from healer.console.views.buttons import from_here_buttons, run_buttons
from healer.console.views.runs_view import last_decision, log_rows, run_row, steps
from healer.model import RunState
from healer.ports.answers import RunRecord
from healer.ports.queries import RunQuery
from healer.text import say

routes = APIRouter(route_class=PageRoute)


@routes.get("/runs")
def runs_page(request: Request, pages: Here, state: str = "", cursor: str | None = None) -> Response:
    context = pages.context(request, "runs")
    wanted, now = one_of(RunState, state), context["now"]
    asked = RunQuery(clusters=[context["cluster"]], states=[wanted] if wanted else ())
    found = pages.queries.runs.page(asked, limit=PAGE_ROWS, cursor=cursor)
    context |= {
        "asking": [run_row(run, now) for run in context["standing"].asking] if not state else [],
        "runs": [run_row(run, now) for run in found.items],
        "next": next_link("/runs", context["keep"], found.next_cursor, state=state),
        "first": cursor is None,
        "state": state,
    }
    return pages.show("runs.html", context)


@routes.get("/runs/{run_id}")
def run_page(request: Request, pages: Here, run_id: str) -> Response:
    if pages.is_guest(request):
        return _linked_page(pages, run_id)
    session = pages.session(request)
    detail = pages.queries.runs.record(run_id)
    if detail is None or detail.run.cluster not in pages.clusters(session):
        raise missing("run", run_id=run_id)
    context = pages.context(request, "run", detail.run.cluster) | _decided(detail)
    role = role_at(session, detail.run.cluster)
    context |= {
        "run": detail.run,
        "row": run_row(detail.run, context["now"]),
        "steps": steps(detail.run, detail.log, detail.run.created_at),
        "log": log_rows(detail.log),
        "buttons": run_buttons(detail.run, role, bars_of(pages, session)),
        "again": from_here_buttons(detail.run, detail.log, role),
        "mode_note": say(f"console.mode_{detail.run.mode}"),
    }
    return pages.show("run.html", context)


def _linked_page(pages: Pages, run_id: str) -> Response:
    """The run, for a person who came through a link in a message."""
    detail = pages.queries.runs.record(run_id)
    if detail is None:
        raise missing("run", run_id=run_id)
    context = {
        "run": detail.run,
        "row": run_row(detail.run, pages.clock()),
        "plan": detail.plan,
        "sign_in": f"/sign-in?{urlencode({'next': f'/runs/{run_id}'})}",
    }
    return pages.show("look.html", context | _decided(detail))


def _decided(detail: RunRecord) -> dict[str, Any]:
    last = last_decision(detail)
    return {"decision": last, "guards": last.answers if last else ()}
