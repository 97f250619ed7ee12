"""`healer evidence`: what was collected on the node of an incident, and its files."""

from pathlib import Path

import typer

from healer.commands import Failed
from healer.commands.remote import AS_JSON, client, print_json, print_table


def register(app: typer.Typer) -> None:
    app.command("evidence")(evidence)


def evidence(
    incident: str | None = typer.Argument(None, help="An incident's id, or its first 8 characters."),
    *,
    run: str | None = typer.Option(None, help="Of this run instead."),
    out: Path | None = typer.Option(None, help="Write the newest file there (gzip)."),
    file: str | None = typer.Option(None, help="With --out: this file instead of the newest."),
    json: bool = AS_JSON,
) -> None:
    """List what was collected for an incident, or take a file of it."""
    if (incident is None) == (run is None):
        raise Failed("name an incident, or a run with --run")
    where = f"/incidents/{incident}/evidence" if incident is not None else f"/runs/{run}/evidence"
    with client() as api:
        found = api.get(where)["items"]
        if out is None:
            print_json(found) if json else _show(found)
            return
        chosen = [one for one in found if file in (None, one["id"])]
        if not chosen:
            raise Failed(
                "there is no such file"
                if file
                else "nothing was collected: see `healer run collect-evidence`"
            )
        data = api.download(f"/evidence/{chosen[-1]['id']}")
    try:
        out.write_bytes(data)
    except OSError as error:
        raise Failed(f"{out} cannot be written: {error}") from None
    typer.echo(f"{out}: {chosen[-1]['name']}, {len(data)} bytes")


def _show(found: list[dict]) -> None:
    rows = [
        (
            one["id"],
            one["at"][:19],
            one["node"],
            one["bundle"]["size_bytes"],
            "; ".join(one["bundle"]["parts"]),
        )
        for one in found
    ]
    print_table(("FILE", "COLLECTED (UTC)", "NODE", "BYTES", "PARTS"), rows)
