"""What healer told people: every page, message and ticket, how its delivery stands, and its replay."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from healer.api.access import confine, need, own_clusters
from healer.api.answers import answer
from healer.api.bodies import Reason, Word
from healer.api.documents import answers
from healer.api.once import once
from healer.api.reading import Cursor, Id, Limit, Name, Viewer, services_of
from healer.model import Delivery, DeliveryState, Role
from healer.ports.api_answers import Page
from healer.ports.callers import Caller

router = APIRouter()

Responder = Annotated[Caller, need(Role.responder)]


class RetryBody(Reason):
    """`channel`: that one alone; else all that failed."""

    channel: Word | None = None


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """The deliveries that are due again."""

    items: list[Delivery]


@router.get("/messages", tags=["reading"], responses=answers(Page[Delivery], "deliveries, newest first"))
def messages(
    request: Request,
    caller: Viewer,
    *,
    state: Annotated[list[DeliveryState] | None, Query()] = None,
    channel: Name = None,
    incident: Name = None,
    cluster: Name = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Each message at each sink, with every try. `state=failed` are the dead letters."""
    page = services_of(request).messages.page(
        clusters=own_clusters(request, caller, cluster),
        state=state or (),
        channel=channel,
        incident=incident,
        limit=limit,
        cursor=cursor,
    )
    return answer(request, page)


@router.post(
    "/messages/{id}/retry", tags=["acting"], responses=answers(Retried, "what is delivered once more")
)
def retry(request: Request, caller: Responder, id: Id, body: RetryBody) -> Response:
    """Delivers a dead letter once more; 409 where nothing of it failed."""
    services = services_of(request)
    confine(request, caller, cluster=services.messages.cluster_of(id))

    def act(_: str) -> Response:
        found = services.messages.retry(
            id, channel=body.channel, by=caller.name, reason=body.reason, now=services.clock.now()
        )
        return answer(request, Retried(items=list(found)))

    return once(request, caller, body, act)
