"""Reading routes about signals themselves: the catalogue, and what arrives that it does not know."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from healer.api.access import own_clusters
from healer.api.answers import answer
from healer.api.documents import answers
from healer.api.reading import Limit, Name, Viewer, services_of
from healer.api.views import Page
from healer.model import Loss, Sender, Signal, UnknownSeries

router = APIRouter(tags=["reading"])


@router.get("/signals/catalogue", responses=answers(Page[Signal], "signals by name"))
def catalogue(request: Request, caller: Viewer) -> Response:
    """The signals that rules may use, with the names under which each arrives."""
    known = services_of(request).rules().catalogue.signals
    return answer(request, Page(items=[known[name] for name in sorted(known)]))


@router.get("/signals/unknown", responses=answers(Page[UnknownSeries], "the most frequent first"))
def unknown(request: Request, caller: Viewer, *, cluster: Name = None, limit: Limit = 500) -> Response:
    """What is sent and not stored: not in the catalogue, or of no node of the cluster."""
    found = services_of(request).unknown.series(own_clusters(request, caller, cluster), limit)
    return answer(request, Page(items=found))


@router.get("/signals/senders", responses=answers(Page[Sender], "the latest first"))
def senders(request: Request, caller: Viewer, *, cluster: Name = None, limit: Limit = 500) -> Response:
    """Who sends what, by token and route, and when each was heard last."""
    found = services_of(request).senders.senders(own_clusters(request, caller, cluster), limit)
    return answer(request, Page(items=found))


@router.get("/signals/losses", responses=answers(Page[Loss], "the latest first"))
def losses(request: Request, caller: Viewer, *, cluster: Name = None, limit: Limit = 500) -> Response:
    """What was sent and is not stored, by route, reason and sender."""
    found = services_of(request).losses.losses(own_clusters(request, caller, cluster), limit)
    return answer(request, Page(items=found))
