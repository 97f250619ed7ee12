"""Reading routes about collected data: evidence, the catalogue, unknown series, senders, losses, devices, and
the targets that healer scrapes."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from healer.api.access import Operator, Viewer, allowed_run, clusters_shown, confine
from healer.api.documents import answers, streams
from healer.api.node_views import VALUES, DeviceDetail, DeviceView, device_detail, device_views
from healer.api.problems import field_error
from healer.api.request_fields import Cursor, Id, Limit, Name
from healer.api.responses import answer
from healer.api.services import services_of
from healer.model import (
    DEVICE_MARK,
    AuditRecord,
    EvidenceFile,
    Loss,
    ScrapeState,
    Sender,
    Signal,
    TargetState,
    UnknownSeries,
)
from healer.ports.answers import Page
from healer.ports.request_errors import NotFound
from healer.text import say

router = APIRouter(tags=["reading"])
_LISTED = answers(Page[EvidenceFile], "its files, oldest first")
# The operation ids are those of clients generated before the functions had these names.


@router.get(
    "/incidents/{id}/evidence",
    operation_id="of_incident_api_v1_incidents__id__evidence_get",
    responses=_LISTED,
)
def incident_evidence(request: Request, caller: Operator, id: Id) -> Response:
    """What was collected for an incident. Not for a token of one job: the incident may have hit others."""
    services = services_of(request)
    found = services.queries.incidents.find(id)
    if found is None:
        raise NotFound(say("engine.no_incident", incident=id))
    confine(request, caller, cluster=found.cluster, node=found.root.node)
    return answer(request, Page(items=services.evidence.files(incident=found.id)))


@router.get("/runs/{id}/evidence", operation_id="of_run_api_v1_runs__id__evidence_get", responses=_LISTED)
def run_evidence(request: Request, caller: Operator, id: Id) -> Response:
    """What a run collected; the only way to the files of a run without an incident."""
    run = allowed_run(request, caller, id)
    return answer(request, Page(items=services_of(request).evidence.files(run=run.id)))


@router.get(
    "/evidence/{id}",
    operation_id="one_api_v1_evidence__id__get",
    response_class=Response,
    responses=streams("application/gzip", "the file"),
)
def evidence_file(request: Request, caller: Operator, id: Id) -> Response:
    """One file: text, packed with gzip. The download is audited."""
    services = services_of(request)
    found = services.evidence.file(id)
    if found is None:
        raise NotFound(say("api.no_evidence", id=id))
    run = services.queries.runs.find(found.run)
    confine(request, caller, cluster=found.cluster, node=found.node, job=run and run.job)
    data = services.evidence.content(found.id)
    services.controls.audit(
        AuditRecord(
            cluster=found.cluster,
            at=services.clock.now(),
            actor=caller.name,
            verb="evidence.taken",
            subject=f"node/{found.node}",
            data={"evidence": found.id, "incident": found.incident, "run": found.run},
        )
    )
    headers = {"Content-Disposition": f'attachment; filename="{found.name}"', "Cache-Control": "no-store"}
    return Response(data, media_type="application/gzip", headers=headers)


@router.get("/signals/catalogue", responses=answers(Page[Signal], "signals by name"))
def catalogue(request: Request, caller: Viewer) -> Response:
    """The signals that rules may use, with the names under which each arrives."""
    signals = services_of(request).rules().catalogue.signals
    return answer(request, Page(items=[signals[name] for name in sorted(signals)]))


@router.get("/signals/unknown", responses=answers(Page[UnknownSeries], "the most frequent first"))
def unknown(request: Request, caller: Viewer, *, cluster: Name = None, limit: Limit = 500) -> Response:
    """What is sent and not stored: not in the catalogue, or of no node of the cluster."""
    found = services_of(request).unknown.series(clusters_shown(request, caller, cluster), limit)
    return answer(request, Page(items=found))


@router.get("/signals/senders", responses=answers(Page[Sender], "the latest first"))
def senders(request: Request, caller: Viewer, *, cluster: Name = None, limit: Limit = 500) -> Response:
    """Who sends what, by token and route, and when each was heard last."""
    found = services_of(request).senders.senders(clusters_shown(request, caller, cluster), limit)
    return answer(request, Page(items=found))


@router.get("/signals/losses", responses=answers(Page[Loss], "the latest first"))
def losses(request: Request, caller: Viewer, *, cluster: Name = None, limit: Limit = 500) -> Response:
    """What was sent and is not stored, by route, reason and sender."""
    found = services_of(request).losses.losses(clusters_shown(request, caller, cluster), limit)
    return answer(request, Page(items=found))


@router.get("/devices", responses=answers(Page[DeviceView], "devices by name"))
def devices(
    request: Request, caller: Viewer, *, cluster: Name = None, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """Devices that are no nodes and reported within the hour: switches, storage, PDUs, cooling, racks."""
    services = services_of(request)
    named = clusters_shown(request, caller, cluster)
    clusters = sorted(services.served) if named is None else named
    at, slash, after = (cursor or f"{clusters[0]}/").partition("/")
    if not slash or at not in clusters:
        raise field_error("cursor", say("api.bad_cursor"))
    since = services.clock.now() - VALUES
    items: list[DeviceView] = []
    for name in clusters[clusters.index(at) :]:
        found = services.queries.signals.devices(
            name, since, limit=limit - len(items), after=after if name == at else ""
        )
        items += device_views(name, found, services.rules().catalogue, services.clock.now())
        if found.more:
            return answer(request, Page(items=items, next_cursor=f"{name}/{items[-1].device}"))
        if len(items) == limit and name != clusters[-1]:
            following = clusters[clusters.index(name) + 1]
            return answer(request, Page(items=items, next_cursor=f"{following}/"))
    return answer(request, Page(items=items))


@router.get("/devices/{cluster}/{device}", responses=answers(DeviceDetail, "the device"))
def device(request: Request, caller: Viewer, cluster: Id, device: Id) -> Response:
    """One device with the newest values of its parts."""
    confine(request, caller, cluster=cluster)
    services = services_of(request)
    now = services.clock.now()
    reports, columns = services.queries.signals.node_signals(cluster, DEVICE_MARK + device, now - VALUES)
    if not reports:
        minutes = int(VALUES.total_seconds() // 60)
        raise NotFound(say("api.device_silent", device=device, cluster=cluster, minutes=minutes))
    catalogue = services.rules().catalogue
    return answer(request, device_detail(cluster, device, reports, columns, catalogue, now))


class ScraperView(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster's scraper. `up`, `unknown` and `waiting` are targets; the other counts are since its start.

    `at` is its last report: if that is older than some seconds, it does not run.
    """

    cluster: str
    at: datetime
    up: int
    unknown: int
    waiting: int
    scrapes: int
    failed: int
    samples: int
    troubles: tuple[str, ...] = ()


class ScrapeView(msgspec.Struct, frozen=True, kw_only=True):
    """`items` are targets and queries, failing ones first; `more` of them are not shown."""

    scrapers: list[ScraperView]
    items: list[TargetState]
    more: int = 0


@router.get("/scrape", responses=answers(ScrapeView, "targets, those of which nothing came first"))
def scrape(
    request: Request,
    caller: Viewer,
    *,
    cluster: Name = None,
    job: Name = None,
    up: bool | None = None,
    limit: Limit = 500,
) -> Response:
    """The targets that healer scrapes: when each was scraped last, and why it failed."""
    states = services_of(request).scrapes.states(clusters_shown(request, caller, cluster))
    targets = [target for state in states for target in state.targets]
    wanted = [target for target in targets if job in (None, target.job) and up in (None, target.up)]
    wanted.sort(key=lambda target: (target.up is not False, target.cluster, target.job, target.target))
    unlisted = sum(state.more for state in states) if job is None and up is None else 0
    view = ScrapeView(
        scrapers=[_scraper(state) for state in states],
        items=wanted[:limit],
        more=len(wanted[limit:]) + unlisted,
    )
    return answer(request, view)


def _scraper(state: ScrapeState) -> ScraperView:
    counts = {name: getattr(state, name) for name in ("scrapes", "failed", "samples", "troubles")}
    return ScraperView(cluster=state.cluster, at=state.at, **_targets_by_state(state), **counts)


def _targets_by_state(state: ScrapeState) -> dict[str, int]:
    counts = Counter(target.up for target in state.targets)
    return {"up": counts[True], "unknown": counts[False], "waiting": counts[None]}


def scrape_gauges(states: Sequence[ScrapeState], now: datetime) -> dict[str, dict[tuple[str, ...], Any]]:
    """Figures of /metrics: name -> {label values: number}."""
    found = defaultdict[str, dict[tuple[str, ...], Any]](dict)
    for state in states:
        for word, count in _targets_by_state(state).items():
            found["scrape_targets"][state.cluster, word] = count
        found["scrapes_total"][state.cluster, "failed"] = state.failed
        found["scrapes_total"][state.cluster, "done"] = state.scrapes - state.failed
        found["scrape_samples_total"][(state.cluster,)] = state.samples
        if state.targets:  # without any the scraper need not run
            found["scrape_report_age_seconds"][(state.cluster,)] = max(0.0, (now - state.at).total_seconds())
    return found
