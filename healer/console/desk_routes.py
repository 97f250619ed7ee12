"""The pages of the one who is on duty: approvals, pauses and caps, and how healer itself does."""

from fastapi import APIRouter, Request, Response

from healer.console.pages import Pages, guarded, link
from healer.console.views import approvals, caps, health, pauses, playbooks, runs, signals
from healer.ports.console_queries import AuditQuery
from healer.ports.self_health import OwnReads

#: Records of pauses that are looked at for those that are over.
PAUSE_RECORDS = 200
#: Senders, kinds of losses and unknown series that the page of health looks at.
ARRIVING_SEEN = 200


def desk_routes(routes: APIRouter, pages: Pages, own: OwnReads | None) -> None:
    _approval_routes(routes, pages)
    _pause_routes(routes, pages)
    if own is not None:
        _health_routes(routes, pages, own)


def _approval_routes(routes: APIRouter, pages: Pages) -> None:
    @routes.get("/approvals")
    def approvals_page(request: Request) -> Response:
        def show() -> Response:
            context = pages.context(request, "approvals")
            stands, role = context["standing"], context["session"].role
            rows = [runs.run_row(run, context["now"]) for run in stands.asking]
            waits = approvals.most_urgent(rows, stands)
            rules = pages.reads.rules()
            takes = {name: playbooks.takes(one) for name, one in rules.playbooks.items()}
            context |= {
                "approvals": [
                    approvals.approval(row, pages.reads.run(row.run.id), stands, takes, role)
                    for row in waits[: approvals.SHOWN]
                ],
                "count": len(waits),
                "held": len(rows) - len(waits),
                "room": approvals.room(caps.caps(stands, context["strip"], rules)),
                "link": link,
            }
            return pages.show("approvals.html", context)

        return guarded(show)


def _pause_routes(routes: APIRouter, pages: Pages) -> None:
    @routes.get("/pauses")
    def pauses_page(request: Request) -> Response:
        def show() -> Response:
            context = pages.context(request, "pauses")
            stands, now, session = context["standing"], context["now"], context["session"]
            several = len(context["clusters"]) > 1 and not session.clusters
            rules = pages.reads.rules()
            told = pages.reads.audit(
                AuditQuery(cluster=stands.cluster, verb="pause."), limit=PAUSE_RECORDS
            ).items
            context |= {
                "pauses": pauses.pause_rows(stands, session, now),
                "past": pauses.past_pauses(told, stands.pauses, now),
                "add": pauses.add_buttons(stands, rules, session.role, now, several=several),
                "caps": caps.caps(stands, context["strip"], rules),
                "breaker": stands.breaker,
                "breaker_view": caps.breaker_view(stands),
                "link": link,
            }
            return pages.show("pauses.html", context)

        return guarded(show)


def _health_routes(routes: APIRouter, pages: Pages, own: OwnReads) -> None:
    @routes.get("/health")
    def health_page(request: Request) -> Response:
        def show() -> Response:
            context = pages.context(request, "health")
            cluster, now = context["cluster"], context["now"]
            told, known = pages.reads.arriving(cluster, limit=ARRIVING_SEEN), own(cluster)
            rules = pages.reads.rules()
            arrives = health.Arrives(
                losses=tuple(signals.loss_rows(told.losses, now)),
                senders=tuple(signals.sender_rows(told.senders, now)),
                queues=tuple(signals.queue_rows(known.queues)),
                unknown=tuple(pages.reads.unknown_series(cluster, limit=ARRIVING_SEEN)),
            )
            context["health"] = health.health(
                known, context["standing"], arrives, len(rules.rules), len(rules.playbooks), now
            )
            context["link"] = link
            return pages.show("health.html", context)

        return guarded(show)
