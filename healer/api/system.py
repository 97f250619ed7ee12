"""What lies outside the prefix: liveness, readiness, metrics, and the API's own document."""

import html

from fastapi import APIRouter, Request
from starlette.responses import Response

from healer.api.access import need
from healer.api.answers import answer
from healer.api.documents import answers
from healer.api.metrics import exposition
from healer.api.services import Services, Unavailable
from healer.api.views import Readiness
from healer.model import Role

router = APIRouter()


@router.get("/healthz", responses=answers(dict[str, str], "this process answers"))
def healthz(request: Request) -> Response:
    """This process answers; it says nothing of the others."""
    return answer(request, {"status": "ok"})


@router.get("/readyz", responses=answers(Readiness, "ready") | answers(Readiness, "not ready", 503))
def readyz(request: Request) -> Response:
    """Whether healer as a whole can do its work: the database, Slurm's picture, the detector."""
    services: Services = request.app.state.services
    try:
        ready = services.ready()
    except Unavailable as error:
        ready = Readiness(ready=False, checks={"database": {"ok": False, "text": str(error)}})
    return answer(request, ready, 200 if ready.ready else 503)


@router.get("/metrics", dependencies=[need(Role.viewer)], response_class=Response)
def metrics(request: Request) -> Response:
    """healer's own figures, as Prometheus reads them."""
    services: Services = request.app.state.services
    return Response(
        exposition(services.reads.figures()), media_type="text/plain; version=0.0.4; charset=utf-8"
    )


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request) -> Response:
    return answer(request, request.app.openapi())


@router.get("/docs", include_in_schema=False)
def docs(request: Request) -> Response:
    """The document as one plain page: it works without network and without scripts."""
    rows = []
    for path, operations in request.app.openapi()["paths"].items():
        for method, operation in operations.items():
            names = ", ".join(one["name"] for one in operation.get("parameters", ()))
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
    policy = {"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'"}
    return Response(page, media_type="text/html; charset=utf-8", headers=policy)
