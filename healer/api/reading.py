"""The reading routes: roles from viewer up. Lists are paged by cursor; unknown filters are 422."""

import re
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response, StreamingResponse

from healer.api.access import confine, named_cluster, need, own_clusters
from healer.api.answers import answer
from healer.api.documents import answers
from healer.api.newest import STEPS, VALUES, step_times, with_signals
from healer.api.problems import Problem
from healer.api.rules import playbook_list, rule_list
from healer.api.services import Services
from healer.api.stream import event_stream
from healer.api.views import RuleView
from healer.detection.alerts import firing
from healer.model import AuditRecord, Incident, Pause, Playbook, Role, Run, differences, facts_with, kind_of
from healer.model.detection import ALERT_STAYS_MAX_H
from healer.ports.api_answers import (
    AuditVerified,
    BreakerView,
    IncidentDetail,
    JobView,
    NodeView,
    Page,
    RunDetail,
    Stats,
)
from healer.ports.callers import Caller
from healer.ports.request_errors import NotFound

router = APIRouter(tags=["reading"])

Viewer = Annotated[Caller, need(Role.viewer)]
Limit = Annotated[int, Query(ge=1, le=500)]
Cursor = Annotated[str | None, Query(max_length=500)]
Name = Annotated[str | None, Query(max_length=256)]
Id = Annotated[str, Path(max_length=128)]

#: Whatever fires was told within this time.
ALERTS = timedelta(hours=ALERT_STAYS_MAX_H)
IncidentStates = Literal["open", "mitigating", "verifying", "resolved"]
RunStates = Literal[
    "proposed", "waiting_approval", "held", "running", "waiting",
    "done", "undone", "stuck", "rejected", "cancelled",
]  # fmt: skip
Severities = Literal["P0", "P1", "P2", "P3"]
Verdicts = Literal["healthy", "watch", "suspect", "isolate"]


def services_of(request: Request) -> Services:
    return request.app.state.services


@router.get("/nodes", responses=answers(Page[NodeView], "nodes by name"))
def nodes(
    request: Request,
    caller: Viewer,
    *,
    cluster: Name = None,
    verdict: Annotated[list[Verdicts] | None, Query()] = None,
    q: Name = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Every node Slurm knows, with healer's verdict. `q` is a part of the name."""
    services = services_of(request)
    page = services.reads.nodes(
        services.rules(),
        clusters=own_clusters(request, caller, cluster),
        verdict=verdict or (),
        q=q,
        limit=limit,
        cursor=cursor,
    )
    return answer(request, page)


@router.get("/nodes/{cluster}/{node}", responses=answers(NodeView, "the node"))
def node(request: Request, caller: Viewer, cluster: Id, node: Id) -> Response:
    """One node: verdict, Slurm's view, incidents, GPUs and links with their newest values, history; may it
    run jobs, and why."""
    confine(request, caller, cluster=cluster, node=node)
    services = services_of(request)
    found = services.reads.node(cluster, node, services.rules())
    if found is None:
        raise NotFound(f"Slurm knows no node {node} in the cluster {cluster}")
    now = services.clock.now()
    reports, columns = services.history.node_signals(cluster, node, now - VALUES)
    found = msgspec.structs.replace(
        found,
        heard=services.history.heard(cluster, node, now - VALUES),
        alerts=firing(services.rules(), services.history.alerts(cluster, node, now - ALERTS), now),
        **_inventory(services, found),
    )
    return answer(request, with_signals(found, reports, columns, services.rules().catalogue, now))


def _inventory(services: Services, found: NodeView) -> dict[str, Any]:
    """What the node told of itself, and how that differs from the good node of its kind."""
    told = services.reads.inventories(found.cluster, found.name)
    facts = facts_with(found.slurm, told[0].facts if told else None)
    known = {one.kind: one for one in services.reads.references(found.cluster)}
    reference = known.get(kind_of(found.slurm.gpu_model))
    differs = differences(facts, reference) if reference is not None else {}
    return {"inventory": facts, "reference": reference, "differs": differs}


@router.get("/jobs/{cluster}/{job}", responses=answers(JobView, "the job"))
def job(request: Request, caller: Viewer, cluster: Id, job: Id) -> Response:
    """One job: its nodes, step times and checkpoints, the incidents that hit it, and what it lost."""
    confine(request, caller, cluster=cluster, job=job)
    services = services_of(request)
    found = services.reads.job(cluster, job)
    told = services.history.job_steps(cluster, job, services.clock.now() - STEPS)
    steps = step_times(told, found.nodes if found else ())
    if found is None and steps is None:
        raise NotFound(f"neither Slurm nor healer knows a job {job} in the cluster {cluster}")
    found = found or JobView(cluster=cluster, id=job, job=None, nodes=[], incidents=[])
    return answer(request, msgspec.structs.replace(found, step_times=steps))


@router.get("/incidents", responses=answers(Page[Incident], "incidents, newest first"))
def incidents(
    request: Request,
    caller: Viewer,
    *,
    state: Annotated[list[IncidentStates] | None, Query()] = None,
    severity: Annotated[list[Severities] | None, Query()] = None,
    cluster: Name = None,
    node: Name = None,
    q: Name = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """`state` and `severity` may be given several times; `q` is looked for in titles, nodes, jobs, faults."""
    page = services_of(request).reads.incidents(
        clusters=own_clusters(request, caller, cluster),
        state=state or (),
        severity=severity or (),
        node=node,
        q=q,
        limit=limit,
        cursor=cursor,
    )
    return answer(request, page)


@router.get("/incidents/{id}", responses=answers(IncidentDetail, "the incident"))
def incident(request: Request, caller: Viewer, id: Id) -> Response:
    """One incident with findings, evidence, decisions, runs, timeline, jobs hit, similar ones and notes."""
    found = services_of(request).reads.incident_detail(id)
    if found is None:
        raise NotFound(f"there is no incident {id}")
    root = found.root
    confine(
        request,
        caller,
        cluster=found.cluster,
        node=root.node,
        job=caller.job and _hit(found, caller.job),
    )
    return answer(request, found)


def _hit(found: IncidentDetail, job: str) -> str | None:
    return job if job in found.jobs_hit else None


@router.get("/runs", responses=answers(Page[Run], "runs, newest first"))
def runs(
    request: Request,
    caller: Viewer,
    *,
    state: Annotated[list[RunStates] | None, Query()] = None,
    cluster: Name = None,
    node: Name = None,
    incident: Name = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Runs of playbooks."""
    page = services_of(request).reads.runs(
        clusters=own_clusters(request, caller, cluster),
        state=state or (),
        node=node,
        incident=incident,
        limit=limit,
        cursor=cursor,
    )
    return answer(request, page)


@router.get("/runs/{id}", responses=answers(RunDetail, "the run"))
def run(request: Request, caller: Viewer, id: Id) -> Response:
    """One run: its steps with state, attempt, evidence and undo, and its log."""
    services = services_of(request)
    found = services.reads.run_detail(id, services.rules())
    if found is None:
        raise NotFound(f"there is no run {id}")
    confine(request, caller, cluster=found.cluster, node=found.node, job=found.job)
    return answer(request, found)


@router.get("/rules", responses=answers(Page[RuleView], "rules in the order of the file"))
def rules(request: Request, caller: Viewer) -> Response:
    """The rules with the mode in force and their precision by the reviews so far."""
    services = services_of(request)
    reads = services.reads
    return answer(request, Page(items=rule_list(services.rules(), reads.rule_records(), reads.trials())))


@router.get("/playbooks", responses=answers(Page[Playbook], "playbooks by name"))
def playbooks(request: Request, caller: Viewer) -> Response:
    """The playbooks with their steps."""
    return answer(request, Page(items=playbook_list(services_of(request).rules())))


@router.get("/pauses", responses=answers(Page[Pause], "pauses in force"))
def pauses(request: Request, caller: Viewer) -> Response:
    """Who paused what, why, and until when."""
    services = services_of(request)
    mine = own_clusters(request, caller)
    found = services.reads.pauses(services.clock.now())
    return answer(request, Page(items=[one for one in found if mine is None or one.cluster in {None, *mine}]))


@router.get("/breaker", responses=answers(BreakerView, "the breaker"))
def breaker(request: Request, caller: Viewer, cluster: Name = None) -> Response:
    """The breaker of one cluster, with the roots it counts."""
    services = services_of(request)
    mine = own_clusters(request, caller, cluster) or [named_cluster(services, caller)]
    for one in services.reads.breakers():
        if one.cluster == mine[0]:
            return answer(request, one)
    raise NotFound(f"there is no cluster {mine[0]}")


@router.get("/audit", responses=answers(Page[AuditRecord], "audit records, newest first"))
def audit(
    request: Request,
    caller: Viewer,
    *,
    cluster: Name = None,
    subject: Name = None,
    actor: Name = None,
    verb: Name = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """`verb` and `subject` match from the start: `incident.` or `node/gpu0001`."""
    page = services_of(request).reads.audit(
        clusters=own_clusters(request, caller, cluster),
        subject=subject,
        actor=actor,
        verb=verb,
        limit=limit,
        cursor=cursor,
    )
    return answer(request, page)


@router.get("/audit/verify", responses=answers(AuditVerified, "the verdict on the chain"))
def audit_verify(request: Request, caller: Viewer) -> Response:
    """Walks the whole chain: every changed, missing or swapped record is named."""
    confine(request, caller, cluster=caller.cluster)
    return answer(request, services_of(request).audit.verify())


@router.get("/audit/export", response_class=StreamingResponse)
def audit_export(request: Request, caller: Annotated[Caller, need(Role.auditor)]) -> StreamingResponse:
    """The chain as JSON Lines: another machine verifies it without the database."""
    confine(request, caller)
    lines = services_of(request).audit.export()
    return StreamingResponse(
        lines,
        media_type="application/x-ndjson",
        headers={"Content-Disposition": 'attachment; filename="healer-audit.jsonl"'},
    )


@router.get("/stats", responses=answers(Stats, "figures"))
def stats(
    request: Request, caller: Viewer, cluster: Name = None, since: Annotated[datetime | None, Query()] = None
) -> Response:
    """Counts by rule and cause, and the times to detect, decide, drain and return."""
    if since is not None and since.tzinfo is None:
        raise Problem(
            422, "since: a time needs a zone, such as Z", errors=[{"field": "since", "detail": "no zone"}]
        )
    found = services_of(request).reads.stats(clusters=own_clusters(request, caller, cluster), since=since)
    return answer(request, found)


@router.get("/events/stream", response_class=StreamingResponse)
async def events(request: Request, caller: Viewer, cluster: Name = None) -> StreamingResponse:
    """Server-sent events: incident, run, fleet, breaker, pause, audit; `reset` says: read all anew."""
    if caller.node or caller.job:
        raise Problem(403, "a token bound to a node or job cannot listen to everything")
    if caller.cluster and cluster not in (None, caller.cluster):
        raise Problem(403, f"this token is bound to the cluster {caller.cluster}")
    last = request.headers.get("last-event-id", "")
    last_id = int(last) if re.fullmatch(r"[0-9]{1,18}", last) else None
    stream: AsyncIterator[bytes] = event_stream(request, caller, last_id, cluster or caller.cluster)
    return StreamingResponse(
        stream,
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no", "Cache-Control": "no-store"},
    )
