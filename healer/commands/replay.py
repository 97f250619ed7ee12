"""`healer replay`: what would have been done with recorded signals."""

import sys
from pathlib import Path
from typing import Any

import typer

from healer.commands import Failed
from healer.settings import guard_overrides, load, rules_folder


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)


def replay(
    recording: Path = typer.Argument(help="A recording (JSON Lines, by time); - reads standard input."),
    rules: Path | None = typer.Option(None, help="The rules to judge by, instead of those in force."),
    as_json: bool = typer.Option(False, "--json", help="Print the whole document as JSON."),
) -> None:
    """Feed recorded signals through detection and decisions in simulated time; nothing is touched."""
    import msgspec

    from healer import ruleset
    from healer.bootstrap.replay import replayed

    settings = load()
    folder = rules or rules_folder(settings)
    try:
        ruled = ruleset.load(
            folder,
            default_mode=settings.mode,
            settle_s=settings.settle_s,
            overrides=guard_overrides(settings),
        )
    except ruleset.RulesInvalid as error:
        raise Failed(str(error)) from error
    try:
        if str(recording) == "-":
            document = replayed(ruled, sys.stdin)
        else:
            with recording.open(encoding="utf-8") as lines:
                document = replayed(ruled, lines)
    except OSError as error:
        raise Failed(f"{recording} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise Failed(f"{recording}, {error}") from error
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
        return
    _print(document)


def _print(document: dict[str, Any]) -> None:
    for one in document["incidents"]:
        jobs = ", ".join(one["jobs_hit"]) or "no job"
        typer.echo(
            f"{one['opened']}  {one['severity']} {one['rule']} {one['id'][:8]}  {one['title']}  ({jobs})"
        )
    if document["merged"]:
        typer.echo(f"\n{len(document['merged'])} turned out to be parts of others")
    for one in document["merged"]:
        typer.echo(f"{one['opened']}  {one['rule']} {one['id'][:8]} into {one['into'][:8]}")
    typer.echo(f"\n{len(document['actions'])} actions")
    for row in document["actions"]:
        what = (row["job"] and f"job {row['job']}") or row["node"] or ""
        typer.echo(f"{row['at']}  {row['action']:8} {what}  {(row['incident'] or '')[:8]}")
    typer.echo(f"\n{len(document['held'])} held back")
    for row in document["held"]:
        typer.echo(
            f"{row['at']}  {row['action']:8} {row['job'] or row['node']}  {row['guard']}: {row['why']}"
        )
    if document["differences"]:
        typer.echo("\nDifferent from what was done")
        for row in document["differences"]:
            done = f"drained at {row['recorded']}" if row["recorded"] else "not drained"
            now = f"would be drained at {row['replayed']}" if row["replayed"] else "would not be drained"
            typer.echo(f"{row['node']}  then {done}, now {now}")
