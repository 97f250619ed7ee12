"""The page of the fleet, and the body of its map."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from healer.console.pages import FLEET_ROWS, Here, PageRoute, Pages
from healer.console.render import link, one_of
from healer.console.views import colours, fleet_view, past_view
from healer.console.views.colours import COLOUR_WORDS, MEASURED, Colour, Measurements
from healer.console.views.fleet_view import NodeRow
from healer.console.views.pauses_view import caps
from healer.model import SlurmSnapshot

_REASONS = "clock_event_reasons"

routes = APIRouter(route_class=PageRoute)


@routes.get("/")
def fleet_page(
    request: Request, pages: Here, q: str = "", place: str = "", colour: str = "", page: int = 1
) -> Response:
    """`at`: a moment of the past, which has the usual colours alone."""
    context = pages.context(request, "fleet")
    at = request.query_params.get("at", "")
    if at.isdecimal() and len(at) < 20:
        # The slider counts seconds; an address that is passed on names a time.
        asked = {**request.query_params, "at": past_view.address_of(at, context["now"])}
        return RedirectResponse(link("/", {key: word for key, word in asked.items() if word}), 303)
    moment = past_view.moment_in(at, context["now"])
    standing, rows = context["standing"], _rows(pages, context, moment)
    by = Colour.service if moment else one_of(Colour, colour) or Colour.service
    measured = _measured(pages, standing.snapshot, by)
    found = fleet_view.by_trouble(
        row for row in rows if fleet_view.matches(row, q, place, pages.render.translate)
    )
    worst: dict[str, int] = {}
    if by is not Colour.service:
        body = pages.bodies.now(standing, rows, by, measured)
        worst = {cell[0]: colours.worst(cell[8]) for cell in body.cells}
        # Worst first by what is looked at; of what is alike the order stays.
        found.sort(key=lambda row: -worst[row.name])
    count = max(1, -(-len(found) // FLEET_ROWS))
    number = min(max(page, 1), count)
    shown = found[(number - 1) * FLEET_ROWS : number * FLEET_ROWS]
    context |= {
        "rows": rows,
        "moment": moment,
        "not_understood": bool(at) and moment is None,
        "slider": past_view.slider(context["now"], moment),
        "filters": {
            "colour": by.value if by is not Colour.service else "",
            "place": place,
            "q": q,
            "at": at if moment else "",
        },
        "colour": by,
        "colours": COLOUR_WORDS,
        "measured": by in MEASURED,
        "found": len(found),
        "shown": shown,
        "says": {row.name: colours.describe(by, row, measured) for row in shown},
        "pages": count,
        "number": number,
        "legend": fleet_view.legend(rows),
        "scale": colours.counts(by, worst.values()),
        "caps": caps(standing, context["strip"], standing.rules),
    }
    return pages.show("fleet.html", context)


@routes.get("/fleet.json")
def fleet_json(request: Request, pages: Here, colour: str = "", since: str = "", at: str = "") -> Response:
    """All that the map draws. `since`, a tag that came before: only what changed, 204 for nothing. `at`: a
    moment of the past, as a whole."""
    context = pages.context(request, "fleet")
    by, standing = one_of(Colour, colour) or Colour.service, context["standing"]
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    if moment := past_view.moment_in(at, context["now"]):
        whole = pages.bodies.past(standing, _rows(pages, context, moment))
        return Response(whole, media_type="application/json", headers=headers)
    body = pages.bodies.now(standing, context["rows"], by, _measured(pages, standing.snapshot, by))
    if since == body.tag:
        return Response(status_code=204, headers=headers)
    changed = pages.bodies.since(since, standing, by, body) if since else None
    return Response(changed or body.whole, media_type="application/json", headers=headers)


def _rows(pages: Pages, context: dict[str, Any], moment: datetime | None) -> list[NodeRow]:
    standing = context["standing"]
    if moment is None:
        return context["rows"]
    return past_view.past_rows(pages.queries.nodes.past(standing.cluster, moment), standing.snapshot)


def _measured(pages: Pages, snapshot: SlurmSnapshot | None, by: Colour) -> Measurements:
    """What the colours are made of; nothing is looked up that is not shown."""
    if snapshot is None:
        return Measurements()
    match by:
        case Colour.temperature:
            return Measurements(gauges=pages.measures.gauges(snapshot))
        case Colour.throttle:
            signal = pages.rules.catalogue.signals.get(_REASONS)
            return Measurements(gauges=pages.measures.gauges(snapshot), reasons=signal.bits if signal else {})
        case Colour.steps:
            return Measurements(paces=pages.measures.paces(snapshot))
        case Colour.lemon:
            return Measurements(lemons=pages.measures.lemons(snapshot))
        case _:
            return Measurements()
