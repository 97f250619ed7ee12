"""Reading routes about signals: the catalogue, what arrives in vain, who sends, what was lost, devices."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from healer.api.access import confine, own_clusters
from healer.api.answers import answer
from healer.api.devices import DeviceDetail, DeviceView, detail_of, list_of
from healer.api.documents import answers
from healer.api.newest import VALUES
from healer.api.problems import field_error
from healer.api.reading import Cursor, Id, Limit, Name, Viewer, services_of
from healer.model import DEVICE_MARK, Loss, Sender, Signal, UnknownSeries
from healer.ports.api_answers import Page
from healer.ports.request_errors import NotFound

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


@router.get("/devices", responses=answers(Page[DeviceView], "devices by name"))
def devices(
    request: Request, caller: Viewer, *, cluster: Name = None, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """What is no node and was heard within the hour: switches, storage, PDUs, cooling, racks."""
    services = services_of(request)
    named = own_clusters(request, caller, cluster)
    clusters = sorted(services.clusters or (services.cluster,)) if named is None else named
    at, slash, after = (cursor or f"{clusters[0]}/").partition("/")
    if not slash or at not in clusters:
        raise field_error("cursor", "not one that this list gave")
    since = services.clock.now() - VALUES
    items: list[DeviceView] = []
    for one in clusters[clusters.index(at) :]:
        found = services.history.devices(
            one, since, limit=limit - len(items), after=after if one == at else ""
        )
        items += list_of(one, found, services.rules().catalogue, services.clock.now())
        if found.more:
            return answer(request, Page(items=items, next_cursor=f"{one}/{items[-1].device}"))
        if len(items) == limit and one != clusters[-1]:
            following = clusters[clusters.index(one) + 1]
            return answer(request, Page(items=items, next_cursor=f"{following}/"))
    return answer(request, Page(items=items))


@router.get("/devices/{cluster}/{device}", responses=answers(DeviceDetail, "the device"))
def device(request: Request, caller: Viewer, cluster: Id, device: Id) -> Response:
    """One device with the newest values of its parts."""
    confine(request, caller, cluster=cluster)
    services = services_of(request)
    now = services.clock.now()
    reports, columns = services.history.node_signals(cluster, DEVICE_MARK + device, now - VALUES)
    if not reports:
        minutes = int(VALUES.total_seconds() // 60)
        raise NotFound(
            f"nothing was heard of a device {device} of the cluster {cluster} for {minutes} minutes"
        )
    return answer(request, detail_of(cluster, device, reports, columns, services.rules().catalogue, now))
