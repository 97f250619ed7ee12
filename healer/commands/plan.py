"""`healer plan`: the figures behind a choice; nothing is changed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import typer

from healer.commands import assumed, print_line
from healer.commands.remote import AS_JSON, CLUSTER, Client, Column, print_json, print_list
from healer.model.vocabulary import UserError
from healer.text import say

#: The site's own rate is computed over this many days; fewer incidents than this are too few for one.
_DAYS, _LEAST = 90, 10
_MOST_READ = 10_000


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="What a choice would come to; nothing is changed.", rich_markup_mode=None)
    group.command("spares")(spares)
    app.add_typer(group, name="plan")


def spares(
    *,
    job: str | None = typer.Option(None, help="Take the number of nodes from this job."),
    nodes: int | None = typer.Option(None, min=1, max=1_000_000, help="Nodes that work, without spares."),
    mtbf: float | None = typer.Option(
        None,
        min=1e-3,
        max=1e9,
        help="Hours between faults of one node that stop a job; by default the site's own.",
    ),
    assume: list[str] = typer.Option(
        [],
        metavar="NAME=NUMBER",
        help="checkpoint_s, stall_s, swap_s, requeue_s or gpus_per_node, like swap_s=60; repeat for more.",
    ),
    cluster: str | None = CLUSTER,
    json: bool = AS_JSON,
) -> None:
    """Show what spare nodes inside a job's allocation give in effective time and cost in idle GPUs."""
    from healer.decisions.spares_plan import SparesAsked, best_of, plans_up_to_best

    if job is not None or mtbf is None:
        with Client() as api:
            nodes = _nodes_of(api, job, cluster) if job is not None else nodes
            mtbf = mtbf if mtbf is not None else _own_mtbf_h(api, cluster)
    if nodes is None:
        raise typer.BadParameter(say("commands.plan_needs_nodes"))
    asked = assumed(assume, SparesAsked, nodes=nodes, mtbf_h=mtbf)
    plans = plans_up_to_best(asked)
    best = best_of(plans)
    if json:
        print_json({"asked": msgspec.structs.asdict(asked), "best": best.spares,
                    "plans": [msgspec.structs.asdict(plan) for plan in plans]})  # fmt: skip
        return
    print_list([msgspec.structs.asdict(plan) for plan in plans], _COLUMNS, as_json=False)
    print_line(say("commands.plan_best", spares=best.spares, nodes=nodes, hours=mtbf))


_COLUMNS: dict[str, Column] = {
    "SPARES": "spares",
    "EFFECTIVE": lambda plan: f"{plan['effective']:.2%}",
    "PER GPU HELD": lambda plan: f"{plan['per_gpu']:.2%}",
    "IDLE GPUS": lambda plan: f"{plan['idle_gpus']:.1f}",
    "SWAPS/DAY": lambda plan: f"{plan['swaps_per_day']:.2f}",
    "REQUEUES/DAY": lambda plan: f"{plan['requeues_per_day']:.2f}",
}


def _nodes_of(api: Client, job: str, cluster: str | None) -> int:
    """Of a running job."""
    # A route that guesses no cluster: there may be such a job in each.
    named = cluster or api.get("/references")["cluster"]
    names = api.get(f"/jobs/{named}/{job}")["nodes"]
    if not names:
        raise UserError(say("commands.plan_job_has_no_nodes", job=job))
    return len(names)


def _own_mtbf_h(api: Client, cluster: str | None) -> float:
    """Node-hours of the site for each incident that stopped a job, in 90 days or since the first incident."""
    now = datetime.now(UTC)
    since = now - timedelta(days=_DAYS)
    count, oldest = 0, now
    for incident in api.items("/incidents", _MOST_READ, cluster=cluster):
        opened = datetime.fromisoformat(incident["opened"])
        if opened < since:
            oldest = since
            break
        oldest = min(oldest, opened)
        count += _stopped_a_job(incident)
    if count < _LEAST:
        raise UserError(say("commands.plan_too_few", count=count, days=_DAYS))
    nodes = sum(1 for node in api.items("/nodes", _MOST_READ, cluster=cluster) if node["slurm"].get("gpus"))
    return nodes * ((now - oldest) / timedelta(hours=1)) / count


def _stopped_a_job(incident: dict[str, Any]) -> bool:
    """A merged incident counts with the one that it is part of."""
    hit = any(each.get("ended_at") for each in incident.get("hit", ()))
    return hit and not incident.get("merged_into") and incident.get("cause") != "application"
