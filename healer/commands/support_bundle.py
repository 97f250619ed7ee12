"""`healer support-bundle`: one file for a helper."""

import json
from datetime import UTC, datetime
from pathlib import Path

import typer

from healer.commands import check_output, print_line, reading, say_json
from healer.settings import load_executor
from healer.text import say


def support_bundle(
    output: Path | None = typer.Option(
        None, "--output", help="The file to write. Default: named by the time."
    ),
    *,
    pseudonymise: bool = typer.Option(
        False, "--pseudonymise", help="Replace the names of persons, nodes, users and jobs."
    ),
    incidents: int = typer.Option(
        20, "--incidents", min=0, max=500, help="How many of the newest incidents."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Collect versions, settings, checks, logs, rules, counts, metrics and incidents, without secrets."""
    settings = load_executor()
    from healer.bootstrap import log_to_stderr
    from healer.bootstrap.bundle_members import Wanted, make_bundle
    from healer.commands.doctor import document

    log_to_stderr()
    target = (output or Path(f"healer-support-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")).absolute()
    check_output(target)
    with reading(target, writes=True):
        names = make_bundle(settings, target, Wanted(document, pseudonymise, incidents))
    if as_json:
        say_json(json.dumps({"file": str(target), "bytes": target.stat().st_size, "members": names}))
        return
    print_line(say("commands.bundle", file=str(target), mb=target.stat().st_size / 1e6, count=len(names)))
    print_line(say("commands.bundle_scrubbed"))
