"""`healer incidents`: the list, or one of them with all that hangs on it."""

import typer

from healer.commands.remote import AS_JSON, CLUSTER, client, print_json, print_table, with_cluster


def register(app: typer.Typer) -> None:
    app.command("incidents")(incidents)


def incidents(
    incident: str | None = typer.Argument(None, help="An incident's id, or its first 8 characters."),
    *,
    all_: bool = typer.Option(False, "--all", help="Resolved ones too."),
    severity: list[str] = typer.Option([], help="P0, P1, P2 or P3; repeat for more."),
    node: str | None = typer.Option(None, help="Only those of this node."),
    q: str | None = typer.Option(None, "--search", help="Words to look for."),
    cluster: str | None = CLUSTER,
    limit: int = typer.Option(200, min=1, help="Rows at most."),
    json: bool = AS_JSON,
) -> None:
    """List the open incidents, or show one."""
    with client() as api:
        if incident is not None:
            found = api.get(f"/incidents/{incident}")
            print_json(found) if json else _show(found)
            return
        state = [] if all_ else ["open", "mitigating", "verifying"]
        listed = list(
            api.items("/incidents", limit, state=state, severity=severity, node=node, q=q, cluster=cluster)
        )
    if json:
        print_json(listed)
        return
    rows = [
        (
            one["id"][:8],
            one["severity"],
            one["state"],
            one["opened"][:19],
            _where(one["root"]),
            one["title"],
        )
        for one in listed
    ]
    print_table(*with_cluster(("ID", "SEV", "STATE", "OPENED (UTC)", "WHERE", "WHAT"), rows, listed))


def _where(root: dict) -> str:
    """The node, or what else it is about: a switch, a device with its part, a job, the cluster."""
    name = root.get("node") or root.get("switch") or " ".join(
        root[word] for word in ("device", "part") if root.get(word)
    )  # fmt: skip
    return name or (f"job {root['job']}" if root.get("job") else f"cluster {root['cluster']}")


def _show(found: dict) -> None:
    typer.echo(f"{found['severity']} {found['state']}: {found['title']}")
    typer.echo(
        f"on {_where(found['root'])}, id {found['id']}, rule {found['rule']}, opened {found['opened']}"
    )
    if found["jobs"]:
        jobs = ", ".join(f"{job['id']} {job.get('user', '')}".strip() for job in found["jobs"])
        typer.echo(f"jobs hit: {jobs}")
    if found["closed_why"]:
        typer.echo(f"closed {found['closed']}: {found['closed_why']}")
    rows = [(entry["at"][:23], entry["kind"], entry["by"], entry["text"]) for entry in found["timeline"]]
    print_table(("WHEN (UTC)", "WHAT", "BY", ""), rows)
