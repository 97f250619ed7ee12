"""The pages of the person on duty: approvals, pauses and caps, signals, reports, healer's own health."""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from healer.console.pages import Here, PageRoute, Pages, bars_of, missing
from healer.console.render import csv_file, markdown_file
from healer.console.views import (
    Shown,
    health_view,
    pauses_view,
    queue_view,
    report_charts_view,
    reports_view,
)
from healer.console.views.playbooks_view import takes
from healer.console.views.report_charts_view import Span
from healer.console.views.runs_view import run_row
from healer.console.views.svg_charts import SvgChart
from healer.ports.queries import AuditQuery, IncidentQuery, RunQuery

#: Records of pauses read for those that are over.
PAUSE_RECORDS = 200
#: Senders and unknown series shown.
ARRIVING_SHOWN = 200
#: Clocks are shown by the heartbeats of so long.
CLOCKS_SEEN = timedelta(minutes=1)
#: Runs read for those of the shift; it lists 100 of each kind at most.
RUNS_READ = 300

routes = APIRouter(route_class=PageRoute)
#: Only where healer's own health is known.
health_routes = APIRouter(route_class=PageRoute)


@routes.get("/approvals")
def approvals_page(request: Request, pages: Here) -> Response:
    context = pages.context(request, "approvals")
    standing, role = context["standing"], context["role"]
    rows = [run_row(run, context["now"]) for run in standing.asking]
    waiting = queue_view.most_urgent(rows, standing)
    bars = bars_of(pages, context["session"])
    taken = {name: takes(playbook) for name, playbook in pages.rules.playbooks.items()}
    context |= {
        "approvals": [
            queue_view.approval(row, pages.queries.runs.record(row.run.id), standing, taken, role, bars)
            for row in waiting[: queue_view.SHOWN]
        ],
        "count": len(waiting),
        "held": len(rows) - len(waiting),
        "room": queue_view.room(pauses_view.caps(standing, context["strip"], pages.rules)),
    }
    return pages.show("approvals.html", context)


@routes.get("/pauses")
def pauses_page(request: Request, pages: Here) -> Response:
    context = pages.context(request, "pauses")
    standing, now, operates = context["standing"], context["now"], context["operates"]
    several = len(context["clusters"]) > 1 and operates(None)
    asked = AuditQuery(clusters=[standing.cluster], verb="pause.")
    records = pages.queries.audit.page(asked, limit=PAUSE_RECORDS).items
    context |= {
        "pauses": pauses_view.pause_rows(standing, operates, now),
        "past": pauses_view.past_pauses(records, standing.pauses, now),
        "add": pauses_view.add_buttons(standing, pages.rules, context["role"], now, several=several),
        "caps": pauses_view.caps(standing, context["strip"], pages.rules),
        "breaker": standing.breaker,
        "breaker_view": pauses_view.breaker_view(standing),
    }
    return pages.show("pauses.html", context)


@routes.get("/signals")
def signals_page(request: Request, pages: Here) -> Response:
    context = pages.context(request, "signals")
    cluster, now = context["cluster"], context["now"]
    arriving = pages.sources.arriving(cluster, ARRIVING_SHOWN)
    context |= {
        "losses": health_view.loss_rows(arriving.losses, now),
        "senders": health_view.sender_rows(arriving.senders),
        "senders_full": len(arriving.senders.heard) == ARRIVING_SHOWN,
        "queues": health_view.queue_rows(arriving.queues),
        "skews": pages.queries.signals.clock_skews(cluster, now - CLOCKS_SEEN),
    }
    return pages.show("signals.html", context)


@health_routes.get("/health")
def health_page(request: Request, pages: Here) -> Response:
    context, read_health = pages.context(request, "health"), pages.sources.self_health
    assert read_health is not None  # otherwise this route does not exist
    cluster, now = context["cluster"], context["now"]
    arriving, state = pages.sources.arriving(cluster, ARRIVING_SHOWN), read_health(cluster)
    arrives = health_view.Arrives(
        losses=tuple(health_view.loss_rows(arriving.losses, now)),
        senders=arriving.senders,
        queues=tuple(health_view.queue_rows(state.queues)),
        unknown=tuple(pages.sources.unknown(cluster, ARRIVING_SHOWN)),
    )
    rules = pages.rules
    context["health"] = health_view.health(
        state, context["standing"], arrives, len(rules.rules), len(rules.playbooks), now
    )
    return pages.show("health.html", context)


# --- reports: figures of a period, and the hand-over of a shift ---


#: The first and the last day of a report.
_From = Annotated[str, Query(alias="from")]
_To = Annotated[str, Query(alias="to")]


@routes.get("/reports")
def reports_page(
    request: Request, pages: Here, period: str = "", since: _From = "", until: _To = ""
) -> Response:
    context = _report_context(request, pages, period or "24h", "24h")
    if "x-partial" in request.headers:
        # A page that updates itself only exchanges its strip; the figures stay.
        return pages.show("base.html", context)
    cluster, span = context["cluster"], _span(context, since, until)
    # The figures of a year take PostgreSQL as long as its charts: two sessions read them at once.
    with ThreadPoolExecutor(1, thread_name_prefix="charts") as thread:
        charts = thread.submit(copy_context().run, _charts, pages, cluster, span)
        figures = pages.queries.figures.period(cluster, span.since, span.until)
    context |= {
        "span": span,
        "asked": {"period": "" if span.first else context["period"], "from": since, "to": until},
        "not_understood": bool(since or until) and span.first is None,
        "reports": reports_view.reports(figures),
        "charts": charts.result(),
    }
    return pages.show("reports.html", context)


@routes.get("/reports/{chart}.csv")
def chart_file(
    request: Request, pages: Here, chart: str, period: str = "", since: _From = "", until: _To = ""
) -> Response:
    """The table behind a chart."""
    context = _report_context(request, pages, period or "24h", "24h")
    span = _span(context, since, until)
    drawn = {picture.id: picture for picture in _charts(pages, context["cluster"], span)}.get(chart)
    if drawn is None:
        raise missing("chart")
    name = f"{chart}-{span.since:%Y-%m-%d}-{span.until:%Y-%m-%d}.csv"
    return csv_file(name, report_charts_view.csv_text(drawn, pages.render.translate))


def _span(context: dict[str, Any], since: str, until: str) -> Span:
    """The days that the address names, else its period."""
    named = report_charts_view.span_between(since, until, context["now"])
    return named or Span(since=context["since"], until=context["now"])


def _charts(pages: Pages, cluster: str, span: Span) -> list[SvgChart]:
    parts, reviewed = report_charts_view.buckets(span), report_charts_view.review_buckets(span)
    figures = pages.queries.figures.charts(cluster, parts, reviewed)
    return report_charts_view.charts(figures, parts, reviewed)


@routes.get("/reports/handover")
def handover_page(request: Request, pages: Here, period: str = "12h") -> Response:
    context = _report_context(request, pages, period, "12h")
    return pages.show("handover.html", context | {"shift": _handover(pages, context)})


@routes.get("/reports/handover.md")
def handover_text(request: Request, pages: Here, period: str = "12h") -> Response:
    context = _report_context(request, pages, period, "12h")
    text = reports_view.markdown(_handover(pages, context), pages.render.translate)
    return markdown_file(f"handover-{context['now']:%Y-%m-%d-%H%M}.md", text)


def _report_context(request: Request, pages: Pages, period: str, usual: str) -> dict[str, Any]:
    context = pages.context(request, "reports")
    chosen = period if period in reports_view.PERIODS else usual
    since = context["now"] - reports_view.PERIODS[chosen]
    return context | {"period": chosen, "periods": reports_view.PERIOD_WORDS, "since": since}


def _handover(pages: Pages, context: dict[str, Any]) -> Shown:
    clusters, since, queries = [context["cluster"]], context["since"], pages.queries
    ended = IncidentQuery(clusters=clusters, open=False, closed_since=since)
    people = AuditQuery(clusters=clusters, people_since=since, but=reports_view.DOORS)
    # One more than is listed, to know that there are more.
    some = reports_view.SHOWN + 1
    shift = reports_view.Shift(
        since,
        ended=queries.incidents.page(ended, limit=some).items,
        runs=queries.runs.page(RunQuery(clusters=clusters), limit=RUNS_READ).items,
        records=queries.audit.page(people, limit=some).items,
    )
    return reports_view.handover(
        context["standing"], context["strip"], context["rows"], shift, context["now"]
    )
