"""`healer doctor`: checks an installation from this machine and says how to repair what is wrong."""

import json

import typer

from healer.commands import say, say_json
from healer.settings import load_executor


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(as_json: bool = typer.Option(False, "--json", help="One JSON document.")) -> None:
    """Check database, clocks, broker, Slurm, rules, nodes, BMCs, guards, tickets, channels, API, TLS."""
    settings = load_executor()
    from healer.bootstrap import log_to_stderr
    from healer.bootstrap.access_checks import look_at_access
    from healer.bootstrap.doctor_checks import LOOKS
    from healer.bootstrap.listener_checks import look_at_listener

    log_to_stderr()
    checks = [check for look in (*LOOKS, look_at_access, look_at_listener) for check in look(settings)]
    if as_json:
        say_json(json.dumps({"ok": all(c.ok for c in checks), "checks": [c._asdict() for c in checks]}))
    else:
        for check in checks:
            say(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.text}")
            if check.repair:
                say(f"     -> {check.repair}")
    if not all(check.ok for check in checks):
        raise typer.Exit(1)
