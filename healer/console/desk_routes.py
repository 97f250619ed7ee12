"""The pages of the one who is on duty: pauses and caps."""

from fastapi import APIRouter, Request, Response

from healer.console.pages import Pages, guarded, link
from healer.console.reads import AuditQuery
from healer.console.views import caps, pauses

#: Records of pauses that are looked at for those that are over.
PAUSE_RECORDS = 200


def desk_routes(routes: APIRouter, pages: Pages) -> None:
    _pause_routes(routes, pages)


def _pause_routes(routes: APIRouter, pages: Pages) -> None:
    @routes.get("/pauses")
    def pauses_page(request: Request) -> Response:
        def show() -> Response:
            context = pages.context(request, "pauses")
            stands, now, role = context["standing"], context["now"], context["session"].role
            rules = pages.reads.rule_book(stands.cluster).rules
            told = pages.reads.audit(
                AuditQuery(cluster=stands.cluster, verb="pause."), limit=PAUSE_RECORDS
            ).items
            context |= {
                "pauses": pauses.pause_rows(stands, role, now),
                "past": pauses.past_pauses(told, stands.pauses, now),
                "add": pauses.add_buttons(stands, rules, role, now),
                "caps": caps.caps(stands, context["strip"], rules),
                "breaker": stands.breaker,
                "breaker_view": caps.breaker_view(stands),
                "link": link,
            }
            return pages.show("pauses.html", context)

        return guarded(show)
