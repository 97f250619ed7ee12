"""`healer reconcile`: where healer's book and Slurm do not agree, and what repairs it."""

import secrets

import typer

from healer.commands import Failed
from healer.commands.remote import AS_JSON, CLUSTER, Client, print_json, print_table


def register(app: typer.Typer) -> None:
    app.command("reconcile")(reconcile)


def reconcile(
    *,
    repair: bool = typer.Option(False, "--repair", help="Repair what is healer's own."),
    reason: str = typer.Option("", "--reason", help="Why: it stands in the audit. Needed with --repair."),
    cluster: str | None = CLUSTER,
    json: bool = AS_JSON,
) -> None:
    """Show where healer's book and Slurm do not agree; with --repair mend what is healer's own."""
    if repair and not reason:
        raise Failed("a repair needs --reason")
    with Client() as api:
        if not repair:
            found = api.get("/reconcile", cluster=cluster)["items"]
        else:
            body = {"reason": reason} | ({"cluster": cluster} if cluster else {})
            found = api.post("/reconcile", body, key=secrets.token_hex(16))["items"]
    if json:
        print_json(found)
    elif not found:
        typer.echo("healer's book and Slurm agree")
    elif repair:
        rows = [(one["drift"]["node"] or one["drift"]["name"], one["done"], one["text"]) for one in found]
        print_table(("ON", "DONE", ""), rows)
    else:
        rows = [
            (one["kind"], one["node"] or one["name"], (one["since"] or "")[:19], one["what"], one["would"])
            for one in found
        ]
        print_table(("KIND", "ON", "SINCE (UTC)", "WHAT", "REPAIR"), rows)
