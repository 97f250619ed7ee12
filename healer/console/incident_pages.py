"""The pages of incidents: the queue, one of them, and its report."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from fastapi import APIRouter, Request, Response

from healer.api.granted import role_at
from healer.console.pages import PAGE_ROWS, Here, PageRoute, Pages, bars_of, missing
from healer.console.render import csv_file, markdown_file, next_link, one_of
from healer.console.views import Shown, charts_view, glance_view, incident_view
from healer.console.views.buttons import split_buttons
from healer.console.views.glance_view import JobProgress
from healer.console.views.queue_view import NEEDS_WORDS, Needs, Wanted, asking_ids, queue, queue_row
from healer.console.views.svg_lanes import LaneChart, csv_text
from healer.console.views.timeline_view import TimelineRow, timeline
from healer.engine.records import IncidentRecord, incident_record
from healer.model import Incident, IncidentState, Role, Severity
from healer.ports.answers import Standing
from healer.ports.callers import Caller
from healer.ports.queries import IncidentQuery
from healer.ports.request_errors import Invalid
from healer.text import say

_FILTERS = ("severity", "state", "needs", "q")
#: Step times of the hit jobs are read for incidents that were opened within this time.
_STEPS_WITHIN = timedelta(hours=1)


routes = APIRouter(route_class=PageRoute)


@routes.get("/incidents")
def incidents_page(request: Request, pages: Here, show: str = "open", cursor: str | None = None) -> Response:
    context = pages.context(request, "incidents")
    asked = {name: request.query_params.get(name, "") for name in _FILTERS}
    wanted = Wanted(
        severity=one_of(Severity, asked["severity"]),
        state=one_of(IncidentState, asked["state"]),
        needs=one_of(Needs, asked["needs"]),
        text=asked["q"].strip(),
        me=context["session"].name,
    )
    # Open incidents: the most urgent first. Resolved ones: the newest first.
    if show == "open":
        found, following, total = _list_open(pages, context["standing"], wanted, cursor)
    else:
        found, following, total = _list_past(pages, context["cluster"], wanted, show, cursor)
    runs = pages.queries.runs.at_work([incident.id for incident in found if incident.is_open])
    filters = {"show": show, **asked}
    context |= {
        "incidents": [queue_row(incident, runs.get(incident.id), context["now"]) for incident in found],
        "total": total,
        "next": next_link("/incidents", context["keep"], following, **filters),
        "first": cursor is None,
        "filters": filters,
        "severities": [word.value for word in Severity],
        "states": [word.value for word in IncidentState if word is not IncidentState.resolved],
        "needs_words": NEEDS_WORDS,
    }
    return pages.show("incidents.html", context)


@routes.get("/incidents/{incident_id}/report.md")
def incident_report(request: Request, pages: Here, incident_id: str) -> Response:
    detail = _read_incident(pages, pages.session(request), incident_id)
    text = incident_view.report(detail, pages.clock(), pages.render.translate)
    return markdown_file(f"incident-{detail.incident.short_id}.md", text)


@routes.get("/incidents/{incident_id}")
def incident_page(request: Request, pages: Here, incident_id: str) -> Response:
    session = pages.session(request)
    detail = _read_incident(pages, session, incident_id)
    context = pages.context(request, "incident", detail.incident.cluster)
    now, role = context["now"], role_at(session, detail.incident.cluster)
    rows = timeline(detail)
    bars = bars_of(pages, session)
    context |= {
        "detail": detail,
        "view": incident_view.view_incident(
            detail, context["standing"], role, now, me=session.name, bars=bars
        ),
        "timeline": rows,
        "glance": _glance(pages, detail, rows, now),
        "charts": _charts(pages, detail, now),
        "similar": detail.similar,
        "collected": detail.collected if role in (Role.operator, Role.admin) else (),
        "same_words": incident_view.SAME_WORDS,
        "split": split_buttons(detail, role),
    }
    return pages.show("incident.html", context)


@routes.get("/incidents/{incident_id}/glance.csv")
def glance_file(request: Request, pages: Here, incident_id: str) -> Response:
    """The table behind the picture of the incident."""
    detail = _read_incident(pages, pages.session(request), incident_id)
    chart = _glance(pages, detail, timeline(detail), pages.clock())
    return csv_file(f"incident-{detail.incident.short_id}.csv", csv_text(chart, pages.render.translate))


def _glance(pages: Pages, detail: IncidentRecord, rows: Sequence[TimelineRow], now: datetime) -> LaneChart:
    return glance_view.glance(detail, rows, _jobs(pages, detail, now), now)


def _read_incident(pages: Pages, session: Caller, name: str) -> IncidentRecord:
    """The incident whose id begins so, of a cluster that the session sees. Raises Problem."""
    rows = pages.queries.incidents.rows(name)
    if rows is None or rows.incident.cluster not in pages.clusters(session):
        raise missing("incident", name=name)
    return incident_record(rows, pages.rules, pages.queries, of_runs=True)


_Listed = tuple[list[Incident], str, int | None]


def _list_open(pages: Pages, standing: Standing, wanted: Wanted, cursor: str | None) -> _Listed:
    """One page of the queue, the start of the next, and how many match in all."""
    fit = queue(standing.open_incidents, asking_ids(standing.asking), wanted)
    try:
        wished = int(cursor or 0)
    except ValueError as error:
        raise Invalid("cursor", say("api.cursor_unknown")) from error
    # The queue may have become shorter meanwhile: then its last page.
    start = max(0, min(wished, (len(fit) - 1) // PAGE_ROWS * PAGE_ROWS))
    end = start + PAGE_ROWS
    found = pages.queries.incidents.named([incident.id for incident in fit[start:end]])
    return found, str(end) if end < len(fit) else "", len(fit)


def _list_past(pages: Pages, cluster: str, wanted: Wanted, show: str, cursor: str | None) -> _Listed:
    query = IncidentQuery(
        clusters=[cluster],
        open=False if show == "resolved" else None,
        severities=[wanted.severity] if wanted.severity else (),
        text=wanted.text,
    )
    found = pages.queries.incidents.page(query, limit=PAGE_ROWS, cursor=cursor)
    return found.items, found.next_cursor or "", None


def _jobs(pages: Pages, detail: IncidentRecord, now: datetime) -> dict[str, JobProgress]:
    """Of the jobs that have a lane. Step times are kept so briefly that only those of a fresh incident
    are read, and of a job's many batches those about a few moments."""
    incident, found = detail.incident, {}
    fresh = now - incident.opened <= _STEPS_WITHIN
    for job in glance_view.jobs_drawn(incident):
        moments = glance_view.step_moments(incident, job, now)
        batches = pages.queries.signals.sampled_steps(incident.cluster, job, moments) if fresh else []
        checkpoints = tuple(pages.queries.jobs.checkpoints(incident.cluster, job))
        found[job] = JobProgress(checkpoints=checkpoints, steps=glance_view.steps_seen(batches))
    return found


def _charts(pages: Pages, detail: IncidentRecord, now: datetime) -> list[Shown]:
    """The charts of the findings, continued with later samples of the node that are still kept."""
    if not charts_view.newest_findings(detail.findings):
        return []
    wanted = charts_view.later_since(detail.findings, now)
    later = pages.queries.signals.node_signals(detail.incident.cluster, *wanted) if wanted else ([], {})
    return charts_view.incident_charts(detail, pages.rules.catalogue, later)
