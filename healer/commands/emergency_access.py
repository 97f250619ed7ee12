"""`healer break-glass`: the sealed administrator for when signing in is impossible."""

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from healer.commands import local, person, print_line, reading
from healer.commands.remote import AS_JSON, Client, ClientError, add_group, print_json
from healer.settings import load
from healer.text import quoted, say

_REASON = typer.Option(..., help="Reason, recorded in the audit and included in the page.")
#: The token counts once its record is sealed.
_WAITS_S, _AGAIN_S = 10.0, 0.2


def register(app: typer.Typer) -> None:
    commands = {"seal": seal, "use": use, "end": end, "status": status}
    add_group(app, "break-glass", "The sealed administrator, for when signing in is impossible.", commands)


def seal(json: bool = AS_JSON) -> None:
    """Print a new secret for the safe, on healer's machine. It is shown once and replaces the last one."""
    from healer.bootstrap.database import emergency

    with emergency(load()) as glass:
        secret = glass.seal(by=person())
    if json:
        print_json({"secret": secret})
    else:
        print_line(secret)
        print_line(say("commands.glass_made"), err=True)


def use(
    *,
    reason: str = _REASON,
    name: str = typer.Option("", help="Who you are. Default: your login."),
    secret_file: Path | None = typer.Option(
        None, help="Read the secret from this file; - is standard input. Default: a prompt."
    ),
    json: bool = AS_JSON,
) -> None:
    """Become an administrator for an hour: pages everyone, and prints a token for HEALER_TOKEN."""
    body = {"secret": _secret(secret_file), "person": name or person(), "reason": reason}
    with Client(anonymous=True) as api:
        opened = api.post("/break-glass/open", body)
    if not _counts(opened["token"]):
        print_line(say("commands.glass_not_sealed"), err=True)
    if json:
        print_json(opened)
    else:
        print_line(opened["token"])
        print_line(say("commands.glass_until", at=_moment(opened["expires_at"])), err=True)


def _secret(file: Path | None) -> str:
    if file is None:
        return typer.prompt(local(say("commands.glass_secret")), hide_input=True, err=True)
    if str(file) == "-":
        return sys.stdin.readline().strip()
    with reading(f"--secret-file {file}"):
        return file.read_text("utf-8").strip()


def _counts(token: str) -> bool:
    """Whether the token counts by now."""
    until = time.monotonic() + _WAITS_S
    with Client({**os.environ, "HEALER_TOKEN": token}) as api:
        while True:
            try:
                api.get("/break-glass")
            except ClientError as error:
                if error.problem.get("code") != "not_sealed":
                    raise
                if time.monotonic() >= until:
                    return False
                time.sleep(_AGAIN_S)
            else:
                return True


def end(reason: str = _REASON, json: bool = AS_JSON) -> None:
    """End break-glass access immediately, with its token and its sessions."""
    with Client() as api:
        ended = api.post("/break-glass/end", {"reason": reason})
    _show(ended, json)


def status(json: bool = AS_JSON) -> None:
    """Show whether a seal is ready, and whether break-glass access is active."""
    with Client() as api:
        found = api.get("/break-glass")
    _show(found, json)


def _show(state: dict[str, Any], json: bool) -> None:
    if json:
        print_json(state)
    elif state["sealed_at"] is None:
        print_line(say("commands.glass_none"))
    elif state["used_at"] is not None:
        until = state["ended_at"] or state["until"]
        used = {"at": _moment(state["used_at"]), "who": state["used_by"], "reason": quoted(state["reason"])}
        print_line(say("commands.glass_used", **used))
        is_over = state["ended_at"] is not None or datetime.fromisoformat(until) <= datetime.now(UTC)
        print_line(say("commands.glass_ended" if is_over else "commands.glass_ends", at=_moment(until)))
    else:
        sealed = {"at": _moment(state["sealed_at"]), "who": state["sealed_by"]}
        print_line(say("commands.glass_sealed", **sealed))


def _moment(text: str) -> str:
    return f"{text[:16].replace('T', ' ')} UTC"
