"""The pages of incidents: the queue, one of them, and its report."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from healer.console.pages import PAGE_ROWS, Pages, guarded, link, missing
from healer.console.render import PAGE_HEADERS, one_of
from healer.console.views import charts, incident, timeline
from healer.console.views.buttons import split_buttons
from healer.console.views.queue import NEEDS_WORDS, Needs, Wanted, asking_ids, queue, queue_row
from healer.console.views.report import report
from healer.model import Incident, IncidentState, Role, Severity
from healer.ports.callers import Session
from healer.ports.console_answers import IncidentDetail
from healer.ports.console_queries import BadCursor, IncidentQuery

_FILTERS = ("severity", "state", "needs", "q")


def incident_routes(routes: APIRouter, pages: Pages) -> None:
    @routes.get("/incidents")
    def incidents_page(request: Request, show: str = "open", cursor: str | None = None) -> Response:
        def body() -> Response:
            context = pages.context(request, "incidents")
            asked = {name: request.query_params.get(name, "") for name in _FILTERS}
            wanted = Wanted(
                severity=one_of(Severity, asked["severity"]),
                state=one_of(IncidentState, asked["state"]),
                needs=one_of(Needs, asked["needs"]),
                text=asked["q"].strip(),
                me=context["session"].name,
            )
            # What is open is worked on: the most urgent first. What is over is history: newest first.
            listed = _open if show == "open" else _past
            found, following, total = listed(pages, context, wanted, show, cursor)
            runs = pages.reads.at_work([one.id for one in found if one.is_open])
            filters = {"show": show, **asked}
            context |= {
                "incidents": [queue_row(one, runs.get(one.id), context["now"]) for one in found],
                "total": total,
                "next": link("/incidents", context["keep"], **filters, cursor=following)
                if following
                else None,
                "first": cursor is None,
                "filters": filters,
                "severities": [word.value for word in Severity],
                "states": [word.value for word in IncidentState if word is not IncidentState.resolved],
                "needs_words": NEEDS_WORDS,
                "link": link,
            }
            return pages.show("incidents.html", context)

        return guarded(body)

    @routes.get("/incidents/{incident_id}/report.md")
    def incident_report(request: Request, incident_id: str) -> Response:
        def show() -> Response:
            session = pages.session(request)
            detail = _detail(pages, session, incident_id)
            name = f"incident-{detail.incident.short_id}.md"
            headers = {**PAGE_HEADERS, "Content-Disposition": f'inline; filename="{name}"'}
            text = report(detail, pages.clock(), pages.render.said)
            return Response(text, media_type="text/markdown", headers=headers)

        return guarded(show)

    @routes.get("/incidents/{incident_id}")
    def incident_page(request: Request, incident_id: str) -> Response:
        def show() -> Response:
            session = pages.session(request)
            detail = _detail(pages, session, incident_id)
            context = pages.context(request, "incident", detail.incident.cluster)
            now = context["now"]
            context |= {
                "detail": detail,
                "view": incident.incident_view(detail, context["standing"], session.role, now),
                "timeline": timeline.timeline(detail),
                "charts": _charts(pages, detail, now),
                "similar": detail.similar,
                "collected": detail.collected if session.role in (Role.operator, Role.admin) else (),
                "same_words": incident.SAME_WORDS,
                "split": split_buttons(detail, session.role),
            }
            return pages.show("incident.html", context)

        return guarded(show)


def _detail(pages: Pages, session: Session, name: str) -> IncidentDetail:
    """The incident whose id begins so, of a cluster that the session sees. Raises Problem."""
    detail = pages.reads.incident(name)
    if detail is None or detail.incident.cluster not in pages.clusters(session):
        raise missing("No such incident", f"No incident begins with {name}.")
    return detail


_Listed = tuple[list[Incident], str, int | None]


def _open(pages: Pages, context: dict[str, Any], wanted: Wanted, _: str, cursor: str | None) -> _Listed:
    """One page of the queue, where the next begins, and how many fit in all."""
    standing = context["standing"]
    fit = queue(standing.open_incidents, asking_ids(standing.asking), wanted)
    try:
        wished = int(cursor or 0)
    except ValueError as error:
        raise BadCursor(cursor) from error
    # The queue may have become shorter meanwhile: then its last page.
    start = max(0, min(wished, (len(fit) - 1) // PAGE_ROWS * PAGE_ROWS))
    end = start + PAGE_ROWS
    found = pages.reads.incidents_named([one.id for one in fit[start:end]])
    return found, str(end) if end < len(fit) else "", len(fit)


def _past(pages: Pages, context: dict[str, Any], wanted: Wanted, show: str, cursor: str | None) -> _Listed:
    query = IncidentQuery(
        cluster=context["cluster"],
        open=False if show == "resolved" else None,
        severity=wanted.severity,
        text=wanted.text,
    )
    found = pages.reads.incidents(query, limit=PAGE_ROWS, cursor=cursor)
    return list(found.items), found.next_cursor or "", found.total


def _charts(pages: Pages, detail: IncidentDetail, now: datetime) -> list[charts.FindingCharts]:
    """The charts of the findings, continued with what the node reported since, where that is still kept."""
    if not charts.newest_findings(detail.findings):
        return []
    wanted = charts.later_since(detail.findings, now)
    later = pages.reads.node_signals(detail.incident.cluster, *wanted) if wanted else ([], {})
    return charts.incident_charts(detail, pages.reads.catalogue(), later)
