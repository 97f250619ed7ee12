"""`healer doctor`: checks an installation from this machine and says how to repair what is wrong."""

import json
from typing import TYPE_CHECKING

import typer

from healer.commands import print_line, say_json
from healer.settings import load_executor
from healer.text import say

if TYPE_CHECKING:
    from healer.bootstrap.doctor_checks import Check


def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    fix: bool = typer.Option(
        False, "--fix", help="Repair what is safe to repair: file modes, folders, stale notes."
    ),
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
            words = {"name": check.name, "text": check.text}
            print_line(say("doctor.check_ok", **words) if check.ok else say("doctor.check_failed", **words))
            if check.repair:
                repair = check.repair if check.fix is None else say("doctor.or_fix", repair=check.repair)
                print_line(say("doctor.repair", text=repair))
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


def document(check: "Check") -> dict[str, object]:
    """The check as JSON has it. `state`: ok, note or fail; `fixable`: --fix would repair it."""
    fields = {"name": str(check.name), "ok": check.ok, "state": check.state, "text": str(check.text)}
    return fields | {"repair": str(check.repair), "fixable": check.fix is not None}
