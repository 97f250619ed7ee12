"""Routes outside the prefix: liveness, readiness, metrics, and the OpenAPI document."""

import html
from contextlib import suppress
from functools import lru_cache
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from healer.api.access import Viewer, clusters_shown
from healer.api.collection_routes import scrape_gauges
from healer.api.documents import answers, streams
from healer.api.metrics import DATABASE_UP, Found, exposition, job_figures
from healer.api.responses import answer, answer_json, as_json
from healer.api.services import Services, services_of
from healer.api.spooling import Spooling
from healer.ports.answers import Readiness
from healer.ports.request_errors import Unavailable
from healer.text import say

router = APIRouter()


@router.get("/healthz", responses=answers(dict[str, str], "this process answers"))
async def healthz(request: Request) -> Response:  # no thread: those of the pages may all wait
    """This process answers; it says nothing of the others."""
    return answer(request, {"status": "ok"})


@router.get("/readyz", responses=answers(Readiness, "ready") | answers(Readiness, "not ready", 503))
async def readyz(request: Request) -> Response:
    """Whether healer as a whole can do its work: the database and its disk, Slurm's snapshot, the detector;
    and what waits in the spool of this process."""
    state = request.app.state
    shared: Readiness = await state.ready.current()
    local = process_checks(state)
    is_ready = shared.ready and "disk" not in local
    return answer(request, Readiness(ready=is_ready, checks=shared.checks | local), 200 if is_ready else 503)


def process_checks(state: Any) -> dict[str, dict[str, Any]]:
    """Checks of this process itself: its spool, and a full disk."""
    disk_full: str = state.database.disk_full
    disk = {"disk": {"ok": False, "text": disk_full}} if disk_full else {}
    return {"spool": _spooled(state.services, state.spooling)} | disk


def _spooled(services: Services, spooling: Spooling | None) -> dict[str, Any]:
    """Entries that wait are no failure; a spool that is missing, almost full, or refused by the database
    is."""
    if services.spool is None:
        return {"ok": False, "text": say("api.spool_off")}
    state = services.spool.state()
    if spooling is not None and spooling.stuck:
        text = say("api.spool_stuck", n=state.entries)
        return {"ok": False, "text": text, "entries": state.entries, "bytes": state.size_bytes}
    if state.since is None:
        return {"ok": True, "text": say("api.spool_empty"), "entries": 0, "bytes": 0}
    return {
        "ok": state.size_bytes < 0.9 * state.limit_bytes,
        "text": say("api.spool_waiting", n=state.entries, since=f"{state.since:%Y-%m-%d %H:%M:%S}"),
        "entries": state.entries,
        "bytes": state.size_bytes,
        "limit_bytes": state.limit_bytes,
        "since": state.since,
    }


@router.get("/metrics", response_class=Response, responses=streams("text/plain", "the figures"))
def metrics(request: Request, caller: Viewer) -> Response:
    """healer's own figures, as Prometheus reads them. While the database is away: those of this process."""
    services, shown = services_of(request), clusters_shown(request, caller)
    found: Found = {}
    # Not by `Database.ask`: a slow read of many figures is no sign that the database is away.
    if not request.app.state.database.away:
        with suppress(Unavailable):
            found = _stored_figures(request)
    DATABASE_UP.set(bool(found))
    # Rows of a cluster that was removed from the settings would alarm forever.
    text = exposition(found, [cluster for cluster in services.served if shown is None or cluster in shown])
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _stored_figures(request: Request) -> Found:
    """Raises Unavailable."""
    services, now = services_of(request), services_of(request).clock.now()
    jobs = job_figures(request.app.state.fleet.snapshots())
    scrapes = scrape_gauges(services.scrapes.states(None), now)
    return {**services.queries.figures.gauges(now), **jobs, **scrapes}


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request) -> Response:
    return answer_json(request, _document(request.app))


@router.get("/docs", include_in_schema=False)
def docs(request: Request) -> Response:
    policy = {"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'"}
    return Response(_page(request.app), media_type="text/html; charset=utf-8", headers=policy)


# Made once: anybody may ask for them, and each thread that makes one keeps the others waiting.


@lru_cache(maxsize=1)
def _document(app: FastAPI) -> bytes:
    return as_json(app.openapi())


@lru_cache(maxsize=1)
def _page(app: FastAPI) -> bytes:
    """The OpenAPI document as one plain page: it works without network and without scripts."""
    rows = []
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            names = ", ".join(parameter["name"] for parameter in operation.get("parameters", ()))
            text = (operation.get("description") or operation.get("summary") or "").split("\n\n")[0]
            cells = (method.upper(), path, names, text)
            rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>healer: REST API</title>'
        "<h1>healer: REST API</h1><p>The whole document: <a href='/openapi.json'>/openapi.json</a>.</p>"
        "<table border='1' cellpadding='4'><tr><th>Method<th>Path<th>Parameters<th>What it does</tr>"
        + "".join(rows)
        + "</table></html>"
    )
    return page.encode()
