"""The pages of what healer watches: nodes, jobs, and the rules it watches them by."""

import json
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from healer.console import words
from healer.console.pages import PAGE_ROWS, Pages, asking_by_incident, guarded, link, missing
from healer.console.views import heat, incident, node, rules, runs, signals, unusual
from healer.console.views.buttons import node_buttons
from healer.console.views.job import WINDOW, checkpoint_steps, facts, job_view
from healer.detection.alerts import firing
from healer.detection.lemons import LIMIT
from healer.model import (
    FACTS,
    FiringAlert,
    Mode,
    Reservation,
    Ruleset,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    differences,
    facts_with,
    kind_of,
)
from healer.model.detection import ALERT_STAYS_MAX_H
from healer.observations.gpus import jobs_by_gpu
from healer.observations.step_grid import StepGrid, deviation, grid
from healer.ports.console_answers import JobHistory, Standing
from healer.ports.console_queries import IncidentQuery, RunQuery
from healer.ports.pull import HistoryAway

#: Names that arrive and that no rule can use: the most frequent ones.
UNKNOWN_SHOWN = 200
#: Alerts of a node, those of one name together.
ALERTS_SHOWN = 20
#: Senders and kinds of losses on the page of signals, and nodes of which the clock is asked for.
ARRIVING_SHOWN, CLOCKS_SHOWN = 200, 20
#: What a node's chart may show of a Prometheus-compatible server.
HOURS = {"6": "6 h", "24": "24 h", "168": "7 days"}


def machine_routes(routes: APIRouter, pages: Pages) -> None:
    _node_routes(routes, pages)
    _job_routes(routes, pages)
    _rule_routes(routes, pages)
    _signal_routes(routes, pages)


def _node_routes(routes: APIRouter, pages: Pages) -> None:
    @routes.get("/nodes/{cluster}/{name}")
    def node_page(request: Request, cluster: str, name: str, signal: str = "", hours: str = "") -> Response:
        def show() -> Response:
            context = pages.context(request, "node", cluster)
            row = next((row for row in context["rows"] if row.name == name), None)
            if row is None:
                raise missing("No such node", f"Slurm shows no node {name} in {cluster}.")
            stands: Standing = context["standing"]
            now = context["now"]
            past = pages.reads.incidents(IncidentQuery(cluster=cluster, node=name), limit=PAGE_ROWS)
            asking = asking_by_incident(stands)
            ran = pages.reads.runs(RunQuery(cluster=cluster, node=name), limit=PAGE_ROWS)
            reports, columns = pages.reads.node_signals(cluster, name, now - node.WINDOW)
            context |= {
                "row": row,
                "slurm": stands.snapshot.nodes[name] if stands.snapshot else None,
                "jobs": stands.snapshot.jobs_on(name) if stands.snapshot else [],
                "gpu_jobs": jobs_by_gpu(stands.snapshot, name) if stands.snapshot else {},
                "reservations": reservations_of(stands.snapshot, name) if stands.snapshot else [],
                "going_on": pages.reads.node_context(cluster, name),
                "lemon": pages.reads.lemon(cluster, name),
                "lemon_limit": LIMIT,
                "unusual": unusual.table(pages.reads.unusual(cluster, name)),
                "fleet_figures": pages.reads.fleet_figures(cluster, name),
                "incidents": [incident.incident_row(one, asking, now) for one in past.items],
                "runs": [runs.run_row(run, now) for run in ran.items],
                "buttons": node_buttons(
                    row,
                    cluster,
                    context["session"].role,
                    stands.rules.playbooks.values(),
                ),
                "probation": max(
                    (one.probation_until for one in past.items if one.probation_until and not one.is_open),
                    default=None,
                ),
                "veto": next((veto for veto in stands.vetoes if veto.node == name), None),
                "heard": pages.reads.heard(cluster, name, now - node.WINDOW),
                "slot": next((slot for slot in stands.slots if slot.node == name), None),
                "measured": node.measured(
                    reports,
                    columns,
                    pages.reads.catalogue(),
                    gpus=row.gpus,
                    incidents=row.incidents,
                    node=name,
                    signal=signal,
                    now=now,
                ),
            }
            context |= _made_of(pages, cluster, name, context["slurm"])
            context |= _alerts(pages, stands.rules, cluster, name, now)
            context |= _remembered(pages, cluster, name, context, hours)
            return pages.show("node.html", context)

        return guarded(show)


def _made_of(pages: Pages, cluster: str, name: str, shown: SlurmNode | None) -> dict[str, Any]:
    """(what, the node's value, that of the good node where it is another) of each fact that is known."""
    facts = facts_with(shown, pages.reads.inventory(cluster, name))
    kind = kind_of(shown.gpu_model if shown is not None else "")
    reference = next((one for one in pages.reads.references(cluster) if one.kind == kind), None)
    differs = differences(facts, reference) if reference is not None else {}
    rows = [
        (FACTS[fact], facts[fact], reference.facts[fact] if reference is not None and fact in differs else "")
        for fact in FACTS
        if fact in facts
    ]
    return {"made_of": rows, "reference": reference}


def _alerts(pages: Pages, rules: Ruleset, cluster: str, name: str, now: datetime) -> dict[str, Any]:
    """What fires, what it is to healer, and how many more are like it: the newest of each name and place,
    those that open an incident first."""
    told = pages.reads.alerts(cluster, name, now - timedelta(hours=ALERT_STAYS_MAX_H))
    opening = {entry.name for entry in rules.alerts if entry.opens}
    fires = firing(rules, told, now)
    alike = Counter((one.name, str(one.component)) for one in fires)
    newest: dict[tuple[str, str], FiringAlert] = {}
    for one in fires:
        newest.setdefault((one.name, str(one.component)), one)
    shown = [
        (one, words.alert_taken(one.rule if one.rule in opening else None), alike[key] - 1)
        for key, one in sorted(newest.items(), key=lambda pair: pair[1].rule not in opening)[:ALERTS_SHOWN]
    ]
    return {"alerts": shown, "alerts_more": len(fires) - sum(1 + more for *_, more in shown)}


def _remembered(pages: Pages, cluster: str, name: str, context: dict, wanted: str) -> dict:
    """The chart over more hours than healer keeps, where a Prometheus-compatible server is set."""
    hours = int(wanted) if wanted in HOURS else 0
    measured, now = context["measured"], context["now"]
    told = {
        "hours": hours,
        "hours_known": HOURS if pages.reads.remembers(cluster) else {},
        "history_away": "",
    }
    signal = pages.reads.catalogue().signals.get(measured.signal)
    if not hours or not told["hours_known"] or signal is None:
        return told | {"hours": 0}
    try:
        since = now - timedelta(hours=hours)
        points = pages.reads.remembered(cluster, name, signal.name, since, now)
    except HistoryAway as error:
        return told | {"history_away": str(error)}
    incidents = context["row"].incidents
    chart = node.remembered_chart(points, signal, name, incidents, now, hours=hours)
    return told | {"measured": msgspec.structs.replace(measured, chart=chart)}


def reservations_of(snapshot: SlurmSnapshot, node: str) -> list[Reservation]:
    return [one for one in snapshot.reservations.values() if node in one.nodes]


def _job_routes(routes: APIRouter, pages: Pages) -> None:
    def read(
        request: Request, cluster: str, job: str
    ) -> tuple[dict, SlurmJob | None, JobHistory, StepGrid | None]:
        """The page's context, Slurm's word, what healer knows, and its steps. Raises Stop and Problem."""
        context = pages.context(request, "job", cluster)
        snapshot = context["standing"].snapshot
        shown = snapshot.jobs.get(job) if snapshot else None
        history = pages.reads.job(cluster, job)
        told = pages.reads.job_steps(cluster, job, context["now"] - WINDOW)
        made = grid(told, slurm_nodes=shown.nodes if shown else ())
        if shown is None and made is None and history.empty:
            text = f"Neither Slurm nor healer knows a job {job} in {cluster}."
            raise missing("No such job", text)
        return context, shown, history, made

    @routes.get("/jobs/{cluster}/{job}")
    def job_page(request: Request, cluster: str, job: str) -> Response:
        def show() -> Response:
            context, shown, history, made = read(request, cluster, job)
            asking = asking_by_incident(context["standing"])
            rows = {row.name: row for row in context["rows"]}
            now = context["now"]
            context |= {
                "id": job,
                "shown": shown,
                "view": job_view(shown, rows, made, history),
                "facts": facts(shown) if shown else [],
                "history": history,
                "incidents": [incident.incident_row(one, asking, now) for one in history.incidents],
            }
            return pages.show("job.html", context)

        return guarded(show)

    @routes.get("/jobs/{cluster}/{job}/steps.json")
    def job_steps(request: Request, cluster: str, job: str) -> Response:
        def show() -> Response:
            _, _, history, made = read(request, cluster, job)
            body = {}
            if made is not None:
                steps = checkpoint_steps(history, made.restart)
                body = heat.picture(made, deviation(made), steps, cluster)
            text = json.dumps(body, separators=(",", ":"), allow_nan=False)
            return pages.json(request, text)

        return guarded(show)


def _rule_routes(routes: APIRouter, pages: Pages) -> None:
    @routes.get("/rules")
    def rules_page(
        request: Request, q: str = "", mode: str = "", kind: str = "", state: str = "", show: str = ""
    ) -> Response:
        def body() -> Response:
            context = pages.context(request, "rules")
            found = rules.rule_rows(pages.reads.rule_book(context["cluster"]))
            unknown = pages.reads.unknown_series(context["cluster"], limit=UNKNOWN_SHOWN)
            context |= {
                "rules": rules.fitting(found, text=q, mode=mode, kind=kind, state=state),
                "count": len(found),
                "unknown": unknown,
                "unknown_full": len(unknown) == UNKNOWN_SHOWN,
                "view": "unknown" if show == "unknown" else "rules",
                "tries": pages.tries,
                "q": q,
                "mode": mode,
                "kind": kind,
                "state": state,
                "modes": [word.value for word in Mode],
                "link": link,
            }
            return pages.show("rules.html", context)

        return guarded(body)


def _signal_routes(routes: APIRouter, pages: Pages) -> None:
    @routes.get("/signals")
    def signals_page(request: Request) -> Response:
        def body() -> Response:
            context = pages.context(request, "signals")
            cluster, now = context["cluster"], context["now"]
            told = pages.reads.arriving(cluster, limit=ARRIVING_SHOWN)
            named = list(dict.fromkeys(one.node for one in told.senders if one.node))[:CLOCKS_SHOWN]
            context |= {
                "losses": signals.loss_rows(told.losses, now),
                "senders": signals.sender_rows(told.senders, now),
                "senders_full": len(told.senders) == ARRIVING_SHOWN,
                "queues": signals.queue_rows(told.queues),
                "skews": {
                    name: pages.reads.heard(cluster, name, now - node.WINDOW).clock_skew_s for name in named
                },
                "link": link,
            }
            return pages.show("signals.html", context)

        return guarded(body)
