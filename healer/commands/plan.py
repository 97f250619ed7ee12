"""`healer plan`: what a choice would come to, by figures; nothing is changed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import typer

from healer.commands import print_line
from healer.commands.remote import AS_JSON, CLUSTER, Client, print_json, print_table
from healer.decisions.spares_plan import SparesAsked, SparesPlan, best_of, plan_spares
from healer.model.vocabulary import UserError
from healer.text import say

#: Fewer incidents than this are too few for a rate.
_LEAST = 10
_MOST_READ = 10_000


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="What a choice would come to; nothing is changed.", rich_markup_mode=None)
    group.command("spares")(spares)
    app.add_typer(group, name="plan")


# Wide: one option for each assumption.
def spares(
    *,
    job: str | None = typer.Option(None, help="Take nodes and GPUs of this job instead of --nodes."),
    nodes: int | None = typer.Option(None, min=1, help="Nodes that work, without spares."),
    gpus: int = typer.Option(8, min=1, help="GPUs of a node."),
    mtbf: float | None = typer.Option(
        None,
        min=1e-3,
        help="Hours between faults of one node that stop a job; by default the site's own.",
    ),
    days: int = typer.Option(90, min=1, help="Days of incidents that the site's own rate is taken from."),
    checkpoint: float = typer.Option(30.0, min=0.01, help="Minutes of work between two checkpoints."),
    stall: float = typer.Option(0.0, min=0.0, help="Seconds that a checkpoint stops the job."),
    swap: float = typer.Option(1.0, min=0.0, help="Minutes from a fault to the next step, with a spare."),
    requeue: float = typer.Option(15.0, min=0.0, help="The same, with a requeue."),
    most: int = typer.Option(8, min=0, max=1000, help="Largest number of spares to show."),
    cluster: str | None = CLUSTER,
    json: bool = AS_JSON,
) -> None:
    """Show what spare nodes inside a job's allocation give in effective time and cost in idle GPUs."""
    if job is not None or mtbf is None:
        with Client() as api:
            if job is not None:
                nodes, gpus = _of_job(api, job, cluster, gpus)
            mtbf = mtbf if mtbf is not None else _own_mtbf_h(api, cluster, days)
    if nodes is None:
        raise typer.BadParameter(say("commands.plan_needs_nodes"))
    asked = SparesAsked(
        nodes=nodes, mtbf_h=mtbf, gpus_per_node=gpus, checkpoint_s=checkpoint * 60, stall_s=stall,
        swap_s=swap * 60, requeue_s=requeue * 60,
    )  # fmt: skip
    plans = [plan_spares(asked, number) for number in range(most + 1)]
    best = best_of(plans)
    if json:
        print_json({"asked": asked, "plans": plans, "best": best.spares})
        return
    print_table(
        ["SPARES", "EFFECTIVE", "PER GPU HELD", "IDLE GPUS", "SWAPS/DAY", "REQUEUES/DAY"],
        [_row(plan) for plan in plans],
    )
    print_line(say("commands.plan_best", spares=best.spares, nodes=nodes, hours=mtbf))


def _row(plan: SparesPlan) -> list[str]:
    shares = [f"{plan.effective:.2%}", f"{plan.per_gpu:.2%}"]
    return [str(plan.spares), *shares, f"{plan.idle_gpus:.1f}", f"{plan.swaps_per_day:.2f}",
            f"{plan.requeues_per_day:.2f}"]  # fmt: skip


def _of_job(api: Client, job: str, cluster: str | None, gpus: int) -> tuple[int, int]:
    """Nodes of a running job, and GPUs that it holds of each."""
    named = cluster or next(iter(api.items("/nodes", 1)))["cluster"]
    found = api.get(f"/jobs/{named}/{job}")
    names = found["nodes"]
    if not names:
        raise UserError(say("commands.plan_job_has_no_nodes", job=job))
    held = (found["job"] or {}).get("gpus", {})
    return len(names), len(held.get(names[0], ())) or gpus


def _own_mtbf_h(api: Client, cluster: str | None, days: int) -> float:
    """Node-hours of the site for each incident that hit a job, over the last days or since the first one."""
    now = datetime.now(UTC)
    since = now - timedelta(days=days)
    count, oldest = 0, now
    for incident in api.items("/incidents", _MOST_READ, cluster=cluster):
        opened = datetime.fromisoformat(incident["opened"])
        if opened < since:
            oldest = since
            break
        oldest = min(oldest, opened)
        count += _stopped_a_job(incident)
    if count < _LEAST:
        raise UserError(say("commands.plan_too_few", count=count, days=days))
    nodes = sum(1 for node in api.items("/nodes", _MOST_READ, cluster=cluster) if node["slurm"].get("gpus"))
    return nodes * ((now - oldest) / timedelta(hours=1)) / count


def _stopped_a_job(incident: dict[str, Any]) -> bool:
    """A merged incident counts with the one that it is part of."""
    hit = any(each.get("ended_at") for each in incident.get("hit", ()))
    return hit and not incident.get("merged_into") and incident.get("cause") != "application"
