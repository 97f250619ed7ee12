"""`healer doctor`: checks an installation from this machine and says how to repair what is wrong."""

import json
from typing import TYPE_CHECKING

import typer

from healer.commands import say, say_json
from healer.settings import load_executor

if TYPE_CHECKING:
    from healer.bootstrap.doctor_checks import Look


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    as_json: bool = typer.Option(False, "--json", help="One JSON document."),
    fix: bool = typer.Option(False, "--fix", help="Mend what is safe to mend: modes, folders, stale notes."),
) -> None:
    """Check files, database, backup, clocks, broker, Slurm, nodes, BMCs, tickets, channels, API, TLS."""
    settings = load_executor()
    from healer.bootstrap import log_to_stderr
    from healer.bootstrap.all_checks import checks_of, mended

    log_to_stderr()
    checks = checks_of(settings)
    if fix:
        checks = [mended(check) for check in checks]
    if as_json:
        say_json(json.dumps({"ok": all(c.ok for c in checks), "checks": [document(c) for c in checks]}))
    else:
        for check in checks:
            say(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.text}")
            if check.repair:
                say(f"     -> {check.repair}{' (or --fix)' if check.fix is not None else ''}")
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


def document(check: "Look") -> dict[str, object]:
    """The check as JSON has it. `state`: ok, note or fail; `fixable`: --fix would mend it."""
    fields = {"name": check.name, "ok": check.ok, "state": check.state, "text": check.text}
    return fields | {"repair": check.repair, "fixable": check.fix is not None}
