"""`healer recordings`: what lies in the folder of HEALER_RECORDING."""

import typer

from healer.commands.remote import AS_JSON, CLUSTER, print_json, print_table
from healer.settings import load


def register(app: typer.Typer) -> None:
    app.command("recordings")(recordings)


def recordings(cluster: str | None = CLUSTER, json: bool = AS_JSON) -> None:
    """List recordings on this machine: their span, what they hold, their size, what was lost."""
    import msgspec

    from healer.bootstrap.recordings import recordings_of

    found = recordings_of(load().of(cluster))
    if json:
        files = msgspec.to_builtins(found.files)
        print_json({"on": found.on, "folder": found.folder, "problem": found.problem, "files": files})
        return
    if not found.on:
        typer.echo("Nothing is recorded: HEALER_RECORDING is not set.")
        return
    typer.echo(found.problem or f"{found.folder}: {len(found.files)} files, {found.bytes / 1e6:.1f} MB")
    names = ("FILE", "FROM", "TO", "ENTRIES", "MB", "LOST", "ROUTES")
    rows = [
        (
            one.file,
            f"{one.first:%Y-%m-%d %H:%M:%S}",
            f"{one.last:%Y-%m-%d %H:%M:%S}",
            one.lines,
            f"{one.bytes / 1e6:.2f}",
            one.lost or "",
            ", ".join(f"{route} {count}" for route, count in sorted(one.routes.items())),
        )
        for one in found.files
    ]
    if rows:
        print_table(names, rows)
