"""The pages of reports: figures of a period, and the hand-over of a shift."""

from typing import Any

from fastapi import APIRouter, Request, Response

from healer.console.pages import Pages, guarded, link
from healer.console.render import PAGE_HEADERS
from healer.console.views import handover, reports
from healer.ports.console_queries import AuditQuery, IncidentQuery, RunQuery

#: Runs that are looked at for those of the shift; it lists 100 of each kind at most.
RUNS_READ = 300


def report_routes(routes: APIRouter, pages: Pages) -> None:
    @routes.get("/reports")
    def reports_page(request: Request, period: str = "24h") -> Response:
        def show() -> Response:
            context = _context(request, pages, period, "24h")
            if "x-partial" in request.headers:
                # A page that looks for news exchanges its strip; the figures stay as they were asked for.
                return pages.show("base.html", context)
            context["reports"] = reports.reports(pages.reads.period(context["cluster"], context["since"]))
            return pages.show("reports.html", context)

        return guarded(show)

    @routes.get("/reports/handover")
    def handover_page(request: Request, period: str = "12h") -> Response:
        def show() -> Response:
            context = _context(request, pages, period, "12h")
            context["shift"] = _handover(pages, context)
            return pages.show("handover.html", context)

        return guarded(show)

    @routes.get("/reports/handover.md")
    def handover_text(request: Request, period: str = "12h") -> Response:
        def show() -> Response:
            context = _context(request, pages, period, "12h")
            name = f"handover-{context['now']:%Y-%m-%d-%H%M}.md"
            headers = {**PAGE_HEADERS, "Content-Disposition": f'inline; filename="{name}"'}
            text = handover.markdown(_handover(pages, context), pages.render.said)
            return Response(text, media_type="text/markdown", headers=headers)

        return guarded(show)


def _context(request: Request, pages: Pages, period: str, usual: str) -> dict[str, Any]:
    context = pages.context(request, "reports")
    chosen = period if period in reports.PERIODS else usual
    since = context["now"] - reports.PERIODS[chosen]
    return context | {"period": chosen, "periods": reports.PERIOD_WORDS, "since": since, "link": link}


def _handover(pages: Pages, context: dict[str, Any]) -> handover.Handover:
    cluster, since, reads = context["cluster"], context["since"], pages.reads
    ended = IncidentQuery(cluster=cluster, open=False, closed_since=since)
    # One more than is listed, to know that there are more.
    some = handover.SHOWN + 1
    told = (
        reads.incidents(ended, limit=some).items,
        reads.runs(RunQuery(cluster=cluster), limit=RUNS_READ).items,
        reads.audit(AuditQuery(cluster=cluster, people_since=since, but=handover.DOORS), limit=some).items,
    )
    return handover.handover(
        context["standing"], context["strip"], context["rows"], told, since, context["now"]
    )
