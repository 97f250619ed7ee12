"""`healer nodes`: the nodes according to Slurm and healer."""

import typer

from healer.commands.remote import AS_JSON, CLUSTER, Client, Column, print_list
from healer.text import joined, say


def nodes(
    q: str | None = typer.Option(None, "--search", help="Part of the name."),
    verdict: list[str] = typer.Option([], help="healthy, watch, suspect or isolate; repeat for more."),
    cluster: str | None = CLUSTER,
    lemons: bool = typer.Option(False, "--lemons", help="Only nodes that fail repeatedly, by score."),
    limit: int = typer.Option(10_000, min=1, help="Maximum number of rows."),
    json: bool = AS_JSON,
) -> None:
    """List the nodes: healer's verdict, Slurm's state, and why; or those that fail repeatedly."""
    with Client() as api:
        found = list(api.items("/nodes", limit, q=q, verdict=verdict, cluster=cluster))
    if lemons:
        scored = [node for node in found if node.get("lemon_score")]
        scored.sort(key=lambda node: -node["lemon_score"])
        print_list(scored, _LEMONS, json, clusters=True)
    else:
        print_list(found, _NODES, json, clusters=True)


_NODES: dict[str, Column] = {
    "NODE": "name",
    "VERDICT": "verdict",
    "SLURM": lambda node: "+".join(node["slurm"].get("state", [])),
    "NEW JOBS": "may_run_jobs",
    "WHY": lambda node: joined(
        [
            node["why"].rstrip(".。"),
            *(say("commands.now", text=activity["text"]) for activity in node.get("context", [])),
        ],
        "semicolon",
    ),
}
_LEMONS: dict[str, Column] = {
    "NODE": "name",
    "SCORE": lambda node: f"{node['lemon_score']:.2f}",
    "VERDICT": "verdict",
    "WHY": lambda node: joined([f"{part['text']} {part['points']:g}" for part in node["lemon"]], "semicolon"),
}
