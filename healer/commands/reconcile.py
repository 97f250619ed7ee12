"""`healer reconcile`: differences between healer's book and Slurm, and their repair."""

import typer

from healer.commands import Misused, print_line
from healer.commands.remote import AS_JSON, CLUSTER, Client, Column, given, print_list, second_of
from healer.text import say


def reconcile(
    *,
    repair: bool = typer.Option(False, "--repair", help="Repair what is healer's own."),
    reason: str = typer.Option("", "--reason", help="Reason, recorded in the audit. Required with --repair."),
    cluster: str | None = CLUSTER,
    json: bool = AS_JSON,
) -> None:
    """Show where healer's records and Slurm differ; with --repair fix what is healer's own."""
    if repair and not reason:
        raise Misused(say("commands.repair_reason"))
    with Client() as api:
        if not repair:
            found = api.get("/reconcile", cluster=cluster)["items"]
        else:
            body = given({"reason": reason, "cluster": cluster})
            found = api.post("/reconcile", body, once=True)["items"]
    if found or json:
        print_list(found, _REPAIRS if repair else _DIFFERENCES, json)
    else:
        print_line(say("commands.reconciled"))


_DIFFERENCES: dict[str, Column] = {
    "KIND": "kind",
    "ON": lambda difference: difference["node"] or difference["name"],
    "SINCE (UTC)": second_of("since"),
    "WHAT": "what",
    "REPAIR": "would",
}
_REPAIRS: dict[str, Column] = {
    "ON": lambda repair: repair["drift"]["node"] or repair["drift"]["name"],
    "DONE": "done",
    "": "text",
}
