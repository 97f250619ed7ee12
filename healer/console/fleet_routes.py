"""The page of the fleet, and the body of its map."""

from fastapi import APIRouter, Request, Response

from healer.console.fleet_bodies import FleetBodies
from healer.console.pages import FLEET_ROWS, Pages, guarded, link
from healer.console.render import one_of
from healer.console.views import colours, fleet
from healer.console.views.caps import caps
from healer.console.views.colours import COLOUR_WORDS, MEASURED, Colour, Told

_REASONS = "clock_event_reasons"


def fleet_routes(routes: APIRouter, pages: Pages) -> None:
    bodies = FleetBodies(pages.render.said)

    @routes.get("/")
    def fleet_page(
        request: Request, q: str = "", place: str = "", colour: str = "", page: int = 1
    ) -> Response:
        def show() -> Response:
            context = pages.context(request, "fleet")
            rows, by = context["rows"], one_of(Colour, colour) or Colour.service
            told = _told(pages, context["cluster"], by)
            found = fleet.by_trouble(row for row in rows if fleet.matches(row, q, place, pages.render.said))
            worst: dict[str, int] = {}
            if by is not Colour.service:
                body = bodies.now(context["standing"], rows, by, told)
                worst = {cell[0]: colours.worst(cell[8]) for cell in body.cells}
                # Worst first by what is looked at; of what is alike the order stays.
                found.sort(key=lambda row: -worst[row.name])
            count = max(1, -(-len(found) // FLEET_ROWS))
            number = min(max(page, 1), count)
            shown = found[(number - 1) * FLEET_ROWS : number * FLEET_ROWS]
            filters = {"colour": by.value if by is not Colour.service else "", "place": place, "q": q}
            context |= {
                "filters": filters,
                "colour": by,
                "colours": COLOUR_WORDS,
                "measured": by in MEASURED,
                "found": len(found),
                "shown": shown,
                "says": {row.name: colours.says(by, row, told) for row in shown},
                "pages": count,
                "number": number,
                "legend": fleet.legend(rows),
                "scale": colours.counts(by, worst.values()),
                "caps": caps(context["standing"], context["strip"], context["standing"].rules),
                "link": link,
            }
            return pages.show("fleet.html", context)

        return guarded(show)

    @routes.get("/fleet.json")
    def fleet_json(request: Request, colour: str = "", since: str = "") -> Response:
        """All that the map draws. `since`, a tag that came before: only what changed, 204 for nothing."""

        def show() -> Response:
            context = pages.context(request, "fleet")
            by = one_of(Colour, colour) or Colour.service
            stands = context["standing"]
            body = bodies.now(stands, context["rows"], by, _told(pages, stands.cluster, by))
            headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
            if since == body.tag:
                return Response(status_code=204, headers=headers)
            changed = bodies.since(since, stands, by, body) if since else None
            return Response(changed or body.whole, media_type="application/json", headers=headers)

        return guarded(show)


def _told(pages: Pages, cluster: str, by: Colour) -> Told:
    """What the colours are made of; nothing is looked up that is not shown."""
    match by:
        case Colour.temperature:
            return Told(gauges=pages.reads.gauges(cluster))
        case Colour.throttle:
            signal = pages.reads.catalogue().signals.get(_REASONS)
            return Told(gauges=pages.reads.gauges(cluster), reasons=signal.bits if signal else {})
        case Colour.steps:
            return Told(paces=pages.reads.paces(cluster))
        case Colour.lemon:
            return Told(lemons=pages.reads.lemons(cluster))
        case _:
            return Told()
