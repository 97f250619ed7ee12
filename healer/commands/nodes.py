"""`healer nodes`: what Slurm and healer say of the nodes."""

import typer

from healer.commands.remote import AS_JSON, CLUSTER, Client, print_json, print_table, with_cluster


def register(app: typer.Typer) -> None:
    app.command("nodes")(nodes)


def nodes(
    q: str | None = typer.Option(None, "--search", help="A part of the name."),
    verdict: list[str] = typer.Option([], help="healthy, watch, suspect or isolate; repeat for more."),
    cluster: str | None = CLUSTER,
    lemons: bool = typer.Option(False, "--lemons", help="Only nodes that fail again and again, by score."),
    limit: int = typer.Option(10_000, min=1, help="Rows at most."),
    json: bool = AS_JSON,
) -> None:
    """List the nodes: healer's verdict, Slurm's state, and why; or how often each of them failed."""
    with Client() as api:
        found = list(api.items("/nodes", limit, q=q, verdict=verdict, cluster=cluster))
    if lemons:
        scored = [node for node in found if node.get("lemon_score")]
        found = sorted(scored, key=lambda node: -node["lemon_score"])
    if json:
        print_json(found)
        return
    if lemons:
        scores = [
            (
                one["name"],
                f"{one['lemon_score']:.2f}",
                one["verdict"],
                "; ".join(f"{part['text']} {part['points']:g}" for part in one["lemon"]),
            )
            for one in found
        ]
        print_table(*with_cluster(("NODE", "SCORE", "VERDICT", "WHY"), scores, found))
        return
    rows = [
        (
            one["name"],
            one["verdict"],
            "+".join(one["slurm"].get("state", [])),
            one["may_run_jobs"],
            "; ".join([one["why"], *(f"now: {going['text']}" for going in one.get("context", []))]),
        )
        for one in found
    ]
    print_table(*with_cluster(("NODE", "VERDICT", "SLURM", "JOBS", "WHY"), rows, found))
