"""The reading routes: roles from viewer up. Lists are paged by cursor; unknown filters are 422."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from healer.api.access import JobReader, Viewer, clusters_shown, confine, named_cluster, need
from healer.api.documents import answers, streams
from healer.api.granted import NoRole, is_stranger
from healer.api.incident_views import (
    STEPS,
    IncidentDetail,
    JobView,
    RunDetail,
    incident_detail,
    job_view,
    run_detail,
    step_times,
)
from healer.api.node_views import VALUES, NodeView, node_page, one_node, with_signals
from healer.api.problems import Problem, not_in_slurm
from healer.api.request_fields import Cursor, Id, Limit, Moment, Name, NodeFilter
from healer.api.responses import answer, event_stream
from healer.api.rule_views import BreakerView, RuleView, rule_list
from healer.api.services import Services, services_of
from healer.detection.reported import firing
from healer.engine.records import (
    NO_HOURS,
    compared_facts,
    goodput_csv,
    goodput_rows,
    incident_record,
    job_history,
    of_one_job,
    under_one_name,
)
from healer.model import (
    AuditRecord,
    Breaker,
    Incident,
    Pause,
    Playbook,
    Role,
    Run,
)
from healer.model.detection import ALERT_STAYS_MAX
from healer.model.goodput import GoodputRow
from healer.ports.answers import AuditVerified, NodeRows, Page, Stats
from healer.ports.callers import Caller
from healer.ports.goodput_book import GoodputBy
from healer.ports.queries import AuditQuery, IncidentQuery, RunQuery
from healer.ports.request_errors import NotFound
from healer.text import say

router = APIRouter(tags=["reading"])
IncidentStates = Literal["open", "mitigating", "verifying", "resolved"]
RunStates = Literal[
    "proposed", "waiting_approval", "held", "running", "waiting",
    "done", "undone", "stuck", "rejected", "cancelled",
]  # fmt: skip
Severities = Literal["P0", "P1", "P2", "P3"]


@router.get("/nodes", responses=answers(Page[NodeView], "nodes by name"))
def nodes(request: Request, caller: Viewer, wanted: Annotated[NodeFilter, Depends()]) -> Response:
    """Every node Slurm knows, with healer's verdict. `q` is a part of the name."""
    services = services_of(request)
    now = services.clock.now()
    clusters = clusters_shown(request, caller, wanted.cluster)
    if not wanted.cluster:  # the last picture of a removed cluster says nothing of its nodes now
        clusters = [name for name in services.served if clusters is None or name in clusters]
    rows = services.queries.nodes.fleet(clusters, now)
    return answer(request, node_page(rows, services.rules(), now, wanted))


@router.get("/nodes/{cluster}/{node}", responses=answers(NodeView, "the node"))
def node(request: Request, caller: Viewer, cluster: Id, node: Id) -> Response:
    """One node: verdict, Slurm's view, incidents, GPUs and links with their newest values, history; may it
    run jobs, and why."""
    confine(request, caller, cluster=cluster, node=node)
    services = services_of(request)
    now, rules, signals = services.clock.now(), services.rules(), services.queries.signals
    rows = services.queries.nodes.rows(cluster, node, now)
    if rows is None:
        snapshot = services.queries.clusters.snapshots().get(cluster)
        raise NotFound(not_in_slurm(snapshot, "node", node, cluster))
    reports, columns = signals.node_signals(cluster, node, now - VALUES)
    found = msgspec.structs.replace(
        one_node(rows, rules, now),
        heard=signals.heard(cluster, node, now - VALUES),
        alerts=firing(rules, signals.alerts(cluster, node, now - ALERT_STAYS_MAX), now),
        **_inventory(services, rows),
    )
    return answer(request, with_signals(found, reports, columns, rules.catalogue, now))


def _inventory(services: Services, rows: NodeRows) -> dict[str, Any]:
    """The node's inventory, and how it differs from the reference of its kind."""
    references = services.queries.nodes.references(rows.snapshot.cluster)
    facts, reference, differs = compared_facts(rows, references)
    return {"inventory": facts, "reference": reference, "differs": differs}


@router.get("/jobs/{cluster}/{job}", responses=answers(JobView, "the job"))
def job(request: Request, caller: JobReader, cluster: Id, job: Id) -> Response:
    """One job: its nodes, step times and checkpoints, the incidents that hit it, and what it lost."""
    confine(request, caller, cluster=cluster, job=job)
    services, snapshot = services_of(request), request.app.state.fleet.snapshots().get(cluster)
    job = snapshot.id_of(job) if snapshot is not None else job
    history = job_history(services.queries.jobs.rows(cluster, job), job, services.rules())
    if is_stranger(caller, history.user):
        raise NoRole(caller)
    if caller.job is not None:
        history = of_one_job(history, job)
    shown = history.snapshot.jobs.get(job) if history.snapshot else None
    batches = services.queries.signals.job_steps(cluster, job, services.clock.now() - STEPS)
    found = job_view(cluster, job, history, step_times(batches, shown.nodes if shown else ()))
    if found is None:
        raise NotFound(not_in_slurm(history.snapshot, "job", job, cluster))
    rows = goodput_rows(under_one_name(history.goodput), services.rules().prices)
    return answer(request, msgspec.structs.replace(found, goodput=rows[0] if rows else None))


@dataclass
class IncidentFilter:
    state: Annotated[list[IncidentStates] | None, Query()] = None
    severity: Annotated[list[Severities] | None, Query()] = None
    cluster: Name = None
    node: Name = None
    q: Name = None
    limit: Limit = 50
    cursor: Cursor = None


@router.get("/incidents", responses=answers(Page[Incident], "incidents, newest first"))
def incidents(request: Request, caller: Viewer, wanted: Annotated[IncidentFilter, Depends()]) -> Response:
    """`state` and `severity` may be given several times; `q` is looked for in titles, nodes, jobs, faults."""
    query = IncidentQuery(
        clusters=clusters_shown(request, caller, wanted.cluster),
        states=wanted.state or (),
        severities=wanted.severity or (),
        node=wanted.node,
        text=wanted.q or "",
    )
    page = services_of(request).queries.incidents.page
    return answer(request, page(query, limit=wanted.limit, cursor=wanted.cursor))


@router.get("/incidents/{id}", responses=answers(IncidentDetail, "the incident"))
def incident(request: Request, caller: Viewer, id: Id) -> Response:
    """One incident with findings, evidence, decisions, runs, timeline, jobs hit, similar ones and notes."""
    services = services_of(request)
    rows = services.queries.incidents.rows(id)
    if rows is None:
        raise NotFound(say("engine.no_incident", incident=id))
    found = rows.incident
    job = caller.job if caller.job in found.jobs_hit else None
    confine(request, caller, cluster=found.cluster, node=found.root.node, job=job)
    rules = services.rules()
    return answer(request, incident_detail(incident_record(rows, rules, services.queries, job=job), rules))


@dataclass
class RunFilter:
    state: Annotated[list[RunStates] | None, Query()] = None
    cluster: Name = None
    node: Name = None
    incident: Name = None
    limit: Limit = 50
    cursor: Cursor = None


@router.get("/runs", responses=answers(Page[Run], "runs, newest first"))
def runs(request: Request, caller: Viewer, wanted: Annotated[RunFilter, Depends()]) -> Response:
    """Runs of playbooks."""
    query = RunQuery(
        clusters=clusters_shown(request, caller, wanted.cluster),
        states=wanted.state or (),
        node=wanted.node,
        incident=wanted.incident,
    )
    page = services_of(request).queries.runs.page
    return answer(request, page(query, limit=wanted.limit, cursor=wanted.cursor))


@router.get("/runs/{id}", responses=answers(RunDetail, "the run"))
def run(request: Request, caller: Viewer, id: Id) -> Response:
    """One run: its steps with state, attempt, evidence and undo, and its log."""
    services = services_of(request)
    found = services.queries.runs.record(id)
    if found is None:
        raise NotFound(say("engine.no_run", run=id))
    confine(request, caller, cluster=found.run.cluster, node=found.run.node, job=found.run.job)
    return answer(request, run_detail(found, services.rules()))


@router.get("/rules", responses=answers(Page[RuleView], "rules in the order of the file"))
def rules(request: Request, caller: Viewer) -> Response:
    """The rules with the mode in force and their precision by the reviews so far."""
    services = services_of(request)
    queries = services.queries.rules
    return answer(request, Page(items=rule_list(services.rules(), queries.records(), queries.trials())))


@router.get("/playbooks", responses=answers(Page[Playbook], "playbooks by name"))
def playbooks(request: Request, caller: Viewer) -> Response:
    """The playbooks with their steps."""
    by_name = services_of(request).rules().playbooks
    return answer(request, Page(items=[by_name[name] for name in sorted(by_name)]))


@router.get("/pauses", responses=answers(Page[Pause], "pauses in force"))
def pauses(request: Request, caller: Viewer) -> Response:
    """Who paused what, why, and until when."""
    services = services_of(request)
    clusters = clusters_shown(request, caller)
    found = services.queries.clusters.pauses(services.clock.now())
    return answer(
        request,
        Page(items=[pause for pause in found if clusters is None or pause.cluster in {None, *clusters}]),
    )


@router.get("/breaker", responses=answers(BreakerView, "the breaker"))
def breaker(request: Request, caller: Viewer, cluster: Name = None) -> Response:
    """The breaker of one cluster, with the roots it counts."""
    services = services_of(request)
    name, *_ = clusters_shown(request, caller, cluster) or [named_cluster(services, caller)]
    breakers = services.queries.clusters.breakers()
    found = next((breaker for breaker in breakers if breaker.cluster == name), None)
    return answer(request, found or Breaker(cluster=name))


@dataclass
class AuditFilter:
    cluster: Name = None
    subject: Name = None
    actor: Name = None
    verb: Name = None
    limit: Limit = 50
    cursor: Cursor = None


@router.get("/audit", responses=answers(Page[AuditRecord], "audit records, newest first"))
def audit(request: Request, caller: Viewer, wanted: Annotated[AuditFilter, Depends()]) -> Response:
    """`verb` and `subject` match from the start: `incident.` or `node/gpu0001`."""
    query = AuditQuery(
        clusters=clusters_shown(request, caller, wanted.cluster),
        subject=wanted.subject or "",
        actor=wanted.actor or "",
        verb=wanted.verb or "",
    )
    page = services_of(request).queries.audit.page
    return answer(request, page(query, limit=wanted.limit, cursor=wanted.cursor))


@router.get("/audit/verify", responses=answers(AuditVerified, "the verdict on the chain"))
def audit_verify(request: Request, caller: Viewer) -> Response:
    """Walks the whole chain: every changed, missing or swapped record is named."""
    clusters_shown(request, caller)
    return answer(request, services_of(request).audit.verify())


@router.get(
    "/audit/export",
    response_class=StreamingResponse,
    responses=streams("application/x-ndjson", "one record a line"),
)
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
    request: Request, caller: Viewer, cluster: Name = None, since: Annotated[Moment | None, Query()] = None
) -> Response:
    """Counts by rule and cause, and the times to detect, decide, drain and return."""
    clusters = clusters_shown(request, caller, cluster)
    return answer(request, services_of(request).queries.figures.stats(clusters, since))


class GoodputView(msgspec.Struct, frozen=True, kw_only=True):
    """`since` and `until` are whole hours. `currency` is that of `rules/prices.yaml`."""

    since: datetime
    until: datetime
    by: GoodputBy
    currency: str
    sum: GoodputRow
    items: list[GoodputRow]


#: The longest period that can be summed, and the usual one.
GOODPUT_LONGEST, GOODPUT_USUAL = timedelta(days=400), timedelta(days=30)


@dataclass
class GoodputFilter:
    since: Annotated[Moment | None, Query(alias="from")] = None
    until: Annotated[Moment | None, Query(alias="to")] = None
    by: Annotated[GoodputBy, Query()] = GoodputBy.partition
    cluster: Name = None
    format: Annotated[Literal["json", "csv"], Query()] = "json"


@router.get("/goodput", responses=answers(GoodputView, "sums", also=("text/csv",)))
def goodput(request: Request, caller: Viewer, wanted: Annotated[GoodputFilter, Depends()]) -> Response:
    """What GPU-hours were spent on (docs/jobs.md), in sums."""
    services = services_of(request)
    if caller.node or caller.job:
        raise Problem(403, say("api.bound_reads_nothing_wider"))
    since, until = _goodput_span(wanted, services.clock.now())
    clusters = clusters_shown(request, caller, wanted.cluster)
    sums = services.queries.figures.goodput(clusters, since, until, wanted.by)
    prices = services.rules().prices
    rows = goodput_rows(sums, prices)
    whole = goodput_rows(under_one_name(sums), prices) or [NO_HOURS]
    if wanted.format == "csv":
        file = f'attachment; filename="goodput-by-{wanted.by}.csv"'
        text, headers = goodput_csv(rows, wanted.by), {"Content-Disposition": file}
        return Response(text, media_type="text/csv; charset=utf-8", headers=headers)
    view = GoodputView(
        since=since, until=until, by=wanted.by, currency=prices.currency, sum=whole[0], items=rows
    )  # fmt: skip
    return answer(request, view)


def _goodput_span(wanted: GoodputFilter, now: datetime) -> tuple[datetime, datetime]:
    """Whole hours: the one that `from` is in is the first, the one before `to` the last."""
    until = wanted.until or now
    try:
        since = (wanted.since or until - GOODPUT_USUAL).replace(minute=0, second=0, microsecond=0)
        if since < until <= since + GOODPUT_LONGEST + timedelta(hours=1):
            return since, until
    except OverflowError:
        pass  # at the ends of the calendar
    text = say("api.goodput_period", days=GOODPUT_LONGEST.days)
    raise Problem(422, text, errors=[{"field": "from", "detail": text}])


@router.get(
    "/events/stream",
    response_class=StreamingResponse,
    responses=streams("text/event-stream", "the events"),
)
async def events(request: Request, caller: Viewer, cluster: Name = None) -> StreamingResponse:
    """Server-sent events: incident, run, fleet, breaker, pause, audit; `reset`: fetch everything again."""
    if caller.node or caller.job:
        raise Problem(403, say("api.bound_reads_nothing_wider"))
    if caller.cluster and cluster not in (None, caller.cluster):
        raise Problem(403, say("api.bound_to_cluster", name=caller.cluster))
    named = cluster or caller.cluster
    if named:
        await run_in_threadpool(clusters_shown, request, caller, named)
    last = request.headers.get("last-event-id", "")
    last_id = int(last) if re.fullmatch(r"[0-9]{1,18}", last) else None
    return StreamingResponse(
        event_stream(request, caller, last_id, (named,) if named else caller.clusters),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no", "Cache-Control": "no-store"},
    )
