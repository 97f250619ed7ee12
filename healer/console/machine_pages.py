"""The pages of the machines that healer watches: nodes and jobs."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from healer.console import words
from healer.console.pages import (
    PAGE_ROWS,
    Here,
    PageRoute,
    Pages,
    asking_by_incident,
    job_owner,
    missing,
    missing_in_slurm,
    path_and_query,
)
from healer.console.render import csv_file
from healer.console.views import Shown, incident_view, job_view, life_view, node_view
from healer.console.views.buttons import node_buttons
from healer.console.views.fleet_view import NodeRow
from healer.console.views.node_view import NodeNow
from healer.console.views.runs_view import run_row
from healer.console.views.standing_view import is_stale
from healer.console.views.svg_lanes import LaneChart, csv_text
from healer.decisions.node_facts import context_of
from healer.detection.lemons import LIMIT
from healer.detection.reported import firing
from healer.engine.records import JobHistory, compared_facts, job_history, of_one_job
from healer.model import (
    FACTS,
    FiringAlert,
    Reference,
    Ruleset,
    SlurmJob,
    SlurmSnapshot,
)
from healer.model.detection import ALERT_STAYS_MAX
from healer.model.shown import shown as printable
from healer.observations.fault_history import jobs_by_gpu
from healer.observations.step_grid import StepGrid, deviation, grid
from healer.ports.answers import NodeRows
from healer.ports.callers import Caller
from healer.ports.measurements import HistoryAway
from healer.ports.queries import RunQuery
from healer.text import say

#: Alerts of a node, those of one name together.
ALERTS_SHOWN = 20
#: What a node's chart may show of a Prometheus-compatible server.
HOURS = {"6": "6 h", "24": "24 h", "168": say("console.reports_7_days")}

routes = APIRouter(route_class=PageRoute)


@routes.get("/nodes/{cluster}/{name}")
def node_page(
    request: Request, pages: Here, cluster: str, name: str, signal: str = "", hours: str = ""
) -> Response:
    context = pages.context(request, "node", cluster)
    standing, now = context["standing"], context["now"]
    row, rows = _read_node(pages, context, name)
    asking = asking_by_incident(standing)
    ran = pages.queries.runs.page(RunQuery(clusters=[cluster], node=name), limit=PAGE_ROWS)
    context |= {
        "row": row,
        "life": _life(pages, rows, cluster, now),
        "going_on": context_of(pages.rules, rows.snapshot, rows.node, rows.inventory, now),
        "lemon": rows.lemon,
        "lemon_limit": LIMIT,
        "unusual": node_view.unusual_row(rows.unusual),
        "fleet_figures": rows.standing,
        "incidents": [incident_view.incident_row(incident, asking, now) for incident in rows.history],
        "runs": [run_row(run, now) for run in ran.items],
        "buttons": node_buttons(row, cluster, context["role"], standing.rules.playbooks.values()),
        "probation": max(
            (
                incident.probation_until
                for incident in rows.history
                if incident.probation_until and not incident.is_open
            ),
            default=None,
        ),
        "veto": next((veto for veto in standing.vetoes if veto.node == name), None),
        "heard": pages.queries.signals.heard(cluster, name, now - node_view.WINDOW),
        "slot": next((slot for slot in standing.slots if slot.node == name), None),
    }
    context |= _shown_by_slurm(standing.snapshot, name)
    context |= _made_of(rows, pages.queries.nodes.references(cluster))
    context |= _alerts(pages, standing.rules, cluster, name, now)
    context |= _measured(pages, row, cluster, now, signal, hours)
    return pages.show("node.html", context)


@routes.get("/nodes/{cluster}/{name}/life.csv")
def life_file(request: Request, pages: Here, cluster: str, name: str) -> Response:
    """The table behind the picture of the node's last year."""
    context = pages.context(request, "node", cluster)
    _, rows = _read_node(pages, context, name)
    chart = _life(pages, rows, cluster, context["now"])
    return csv_file(f"{cluster}-{rows.node.name}.csv", csv_text(chart, pages.render.translate))


def _read_node(pages: Pages, context: dict[str, Any], name: str) -> tuple[NodeRow, NodeRows]:
    """Raises Problem."""
    row = next((row for row in context["rows"] if row.name == name), None)
    rows = pages.queries.nodes.rows(context["cluster"], name, context["now"]) if row is not None else None
    if row is None or rows is None:
        raise missing_in_slurm(context["standing"].snapshot, "node", name, context["cluster"])
    return row, rows


def _life(pages: Pages, rows: NodeRows, cluster: str, now: datetime) -> LaneChart:
    life = pages.queries.nodes.life(cluster, rows.node.name, now - life_view.LIFE)
    return life_view.life_line(life, rows.node, rows.inventory, now)


def _shown_by_slurm(snapshot: SlurmSnapshot | None, name: str) -> dict[str, Any]:
    if snapshot is None:
        return {"slurm": None, "jobs": [], "gpu_jobs": {}, "reservations": []}
    return {
        "slurm": snapshot.nodes[name],
        "jobs": snapshot.jobs_on(name),
        "gpu_jobs": jobs_by_gpu(snapshot, name),
        "reservations": [
            reservation for reservation in snapshot.reservations.values() if name in reservation.nodes
        ],
    }


def _made_of(rows: NodeRows, references: Sequence[Reference]) -> dict[str, Any]:
    """(what, the node's value, that of the good node where it is another) of each fact that is known."""
    facts, reference, differs = compared_facts(rows, references)
    good = reference.facts if reference is not None else {}
    lines = [
        (say(f"words.fact_{fact}"), facts[fact], good[fact] if fact in differs else "")
        for fact in FACTS
        if fact in facts
    ]
    return {"made_of": lines, "reference": reference}


def _alerts(pages: Pages, rules: Ruleset, cluster: str, name: str, now: datetime) -> dict[str, Any]:
    """What fires, what it is to healer, and how many more are like it: the newest of each name and place,
    those that open an incident first."""
    reported = pages.queries.signals.alerts(cluster, name, now - ALERT_STAYS_MAX)
    opening = {entry.name for entry in rules.alerts if entry.opens}
    fires = firing(rules, reported, now)
    alike = Counter((alert.name, str(alert.component)) for alert in fires)
    newest: dict[tuple[str, str], FiringAlert] = {}
    for alert in fires:
        newest.setdefault((alert.name, str(alert.component)), alert)
    shown = [
        (alert, words.alert_taken(alert.rule if alert.rule in opening else None), alike[key] - 1)
        for key, alert in sorted(newest.items(), key=lambda pair: pair[1].rule not in opening)[:ALERTS_SHOWN]
    ]
    return {"alerts": shown, "alerts_more": len(fires) - sum(1 + more for *_, more in shown)}


def _measured(
    pages: Pages, row: NodeRow, cluster: str, now: datetime, signal: str, wanted_hours: str
) -> dict[str, Any]:
    """What the node measured; and the chart over more hours than healer keeps, where a Prometheus-compatible
    server is set."""
    node = NodeNow(name=row.name, gpus=row.slurm.gpus, incidents=row.incidents, now=now)
    catalogue = pages.rules.catalogue
    reports, columns = pages.queries.signals.node_signals(cluster, row.name, now - node_view.WINDOW)
    measured = node_view.measured(reports, columns, catalogue, node, signal)
    charts = pages.sources.charts
    remembers = charts is not None and charts.remembers(cluster)
    shown = {"measured": measured, "hours": 0, "hours_known": HOURS if remembers else {}, "history_away": ""}
    drawn = catalogue.signals.get(measured.signal)
    if charts is None or not remembers or wanted_hours not in HOURS or drawn is None:
        return shown
    hours = int(wanted_hours)
    try:
        points = charts.points(cluster, row.name, drawn.name, now - timedelta(hours=hours), now)
    except HistoryAway as error:
        return shown | {"hours": hours, "history_away": str(error)}
    chart = node_view.remembered_chart(points, drawn, node, hours=hours)
    return shown | {"hours": hours, "measured": Shown(**vars(measured) | {"chart": chart})}


# --- jobs ---


@routes.get("/jobs")
def own_jobs_page(request: Request, pages: Here) -> Response:
    """Jobs of the Slurm user with the person's name, in each cluster."""
    owner = job_owner(pages.sessions, request)
    caller = owner or pages.session(request)
    names = pages.cluster_names() if owner is not None else pages.clusters(caller)
    found, unread, now = [], [], pages.clock()
    for name in names:
        standing = pages.standing(name)
        if is_stale(standing, now):
            unread.append(name)
        snapshot = standing.snapshot
        jobs = [job for job in snapshot.jobs.values() if job.user == caller.name] if snapshot else []
        found += [(name, job) for job in sorted(jobs, key=lambda job: (job.state, job.id))]
    context = pages.context(request, "job") if owner is None else {"owner": owner}
    context |= {"jobs": found, "unread": unread, "name": caller.name, "here": "/jobs", "now": now}
    return pages.show("jobs.html", context)


@routes.get("/jobs/{cluster}/{job}")
def job_page(request: Request, pages: Here, cluster: str, job: str) -> Response:
    context, shown, history, steps = _read_job(request, pages, cluster, job)
    asking = asking_by_incident(context["standing"])
    rows = {row.name: row for row in context["rows"]}
    if context["owner"] is not None:
        rows = _with_hits_alone(rows, history)
    context |= {
        "id": job,
        "shown": shown,
        "view": job_view.view_job(shown, rows, steps, history),
        "facts": job_view.facts(shown) if shown else [],
        "history": history,
        "spent": job_view.spent_rows(history.goodput),
        "incidents": [
            incident_view.incident_row(incident, asking, context["now"]) for incident in history.incidents
        ],
    }
    return pages.show("job.html", context)


def _with_hits_alone(rows: Mapping[str, NodeRow], history: JobHistory) -> dict[str, NodeRow]:
    """Without the incidents of other jobs on the same nodes: their titles may name these."""
    its = {incident.id for incident in history.incidents}
    return {
        name: msgspec.structs.replace(row, incidents=tuple(hit for hit in row.incidents if hit.id in its))
        for name, row in rows.items()
    }


@routes.get("/jobs/{cluster}/{job}/steps.json")
def job_steps(request: Request, pages: Here, cluster: str, job: str) -> Response:
    _, _, history, steps = _read_job(request, pages, cluster, job)
    body = {}
    if steps is not None:
        checkpoints = job_view.checkpoint_steps(history, steps.restart)
        body = job_view.picture(steps, deviation(steps), checkpoints, cluster)
    return _json(request, json.dumps(body, separators=(",", ":"), allow_nan=False))


def _json(request: Request, body: str) -> Response:
    """JSON for a script; 304 if the script has it already."""
    body = printable(body)
    tag = f'"{hashlib.sha256(body.encode()).hexdigest()[:16]}"'
    headers = {
        "ETag": tag,
        "Cache-Control": "private, no-cache",
        "X-Content-Type-Options": "nosniff",
    }
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def _read_job(
    request: Request, pages: Pages, cluster: str, job: str
) -> tuple[dict[str, Any], SlurmJob | None, JobHistory, StepGrid | None]:
    """The page's context, Slurm's data, healer's data, and its steps. Raises Stop and Problem."""
    owner = job_owner(pages.sessions, request)
    if owner is None:
        context = pages.context(request, "job", cluster)
    else:
        context = _owner_context(request, pages, owner, cluster)
    snapshot = context["standing"].snapshot
    job = snapshot.id_of(job) if snapshot else job
    shown = snapshot.jobs.get(job) if snapshot else None
    history = job_history(pages.queries.jobs.rows(cluster, job), job, pages.rules)
    if owner is not None and history.user != owner.name:
        raise missing_in_slurm(snapshot, "job", job, cluster)
    if owner is not None:
        history = of_one_job(history, job)
    batches = pages.queries.signals.job_steps(cluster, job, context["now"] - job_view.WINDOW)
    steps = grid(batches, slurm_nodes=shown.nodes if shown else ())
    if shown is None and steps is None and history.empty:
        raise missing_in_slurm(snapshot, "job", job, cluster)
    return context, shown, history, steps


def _owner_context(request: Request, pages: Pages, owner: Caller, cluster: str) -> dict[str, Any]:
    """The names that a page of one's own job uses. Raises Problem."""
    if cluster not in pages.cluster_names():
        raise missing("cluster", wanted=cluster)
    standing = pages.standing(cluster)
    return {
        "owner": owner,
        "cluster": cluster,
        "standing": standing,
        "rows": pages.fleet_rows.of(standing),
        "here": path_and_query(request),
        "now": pages.clock(),
    }
