"""`healer doctor`: checks an installation from this machine and says how to repair what is wrong."""

import json

import typer

from healer.settings import load


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(as_json: bool = typer.Option(False, "--json", help="One JSON document.")) -> None:
    """Check database, clocks, broker, Slurm, rules, nodes, BMCs, guards, tickets, channels, API; repairs."""
    settings = load()
    from healer.bootstrap import log_to_stderr
    from healer.bootstrap.doctor_checks import LOOKS

    log_to_stderr()
    checks = [check for look in LOOKS for check in look(settings)]
    if as_json:
        typer.echo(json.dumps({"ok": all(c.ok for c in checks), "checks": [c._asdict() for c in checks]}))
    else:
        for check in checks:
            typer.echo(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.text}")
            if check.repair:
                typer.echo(f"     -> {check.repair}")
    if not all(check.ok for check in checks):
        raise typer.Exit(1)
