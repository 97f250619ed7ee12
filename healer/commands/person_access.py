"""`healer person`: all that a person holds, and its end when the person leaves."""

from typing import Any
from urllib.parse import quote

import typer

from healer.commands import Misused, print_line
from healer.commands.phrases import moment
from healer.commands.remote import AS_JSON, Client, given, print_json, print_table
from healer.text import Said, joined, say


def person(
    name: str = typer.Argument(help="The person's name, as in the audit."),
    *,
    end: bool = typer.Option(
        False, "--end", help="Revoke tokens and accounts, end the sessions, assign the incidents to another."
    ),
    to: str | None = typer.Option(None, help="With --end: the new owner of the incidents."),
    reason: str | None = typer.Option(None, help="With --end: reason, recorded in the audit."),
    json: bool = AS_JSON,
) -> None:
    """Show what a person holds: tokens, service accounts, sessions, incidents, runs that wait, pauses."""
    where = f"/people/{quote(name, safe='')}"
    if end and not reason:
        raise Misused(say("commands.person_reason"))
    if not end and (to or reason):
        raise Misused(say("commands.person_end"))
    with Client() as api:
        found = api.post(f"{where}/end", given({"to": to, "reason": reason})) if end else api.get(where)
    if json:
        print_json(found)
        return
    if end:
        print_line(_ended(found))
    print_table(("WHAT", "ID", "OF"), _rows(found["left"] if end else found))


def _ended(found: dict[str, Any]) -> Said:
    counts = [
        say("commands.count_tokens", count=len(found["tokens"])),
        say("commands.count_sessions", count=found["sessions"]),
    ]
    parts = joined(counts, "comma")
    if incidents := len(found["incidents"]):
        assigned = say("commands.person_assigned", count=incidents, to=found["to"])
        parts = joined([parts, assigned], "semicolon")
    return say("commands.person_ended", name=found["name"], parts=parts)


def _rows(held: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            say("commands.service_account") if token.get("owner") else say("commands.token"),
            token["id"],
            f"{token['name']} {token['role']}",
        )
        for token in held["tokens"]
    ]
    if held.get("account"):
        rows.append((say("commands.local_account"), held["account"]["id"], held["account"]["name"]))
    rows += [
        (say("commands.session"), session["token"], say("commands.until", at=moment(session["expires_at"])))
        for session in held["sessions"]
    ]
    rows += [
        (say("commands.held_incident"), incident["id"], incident["title"]) for incident in held["incidents"]
    ]
    for run in held["runs"]:
        target = run.get("node") or run.get("job") or run["cluster"]
        rows.append((say("commands.held_run"), run["id"], f"{run['playbook']} {target} {run['state']}"))
    return rows + [
        (say("commands.held_pause"), pause["id"], " ".join((pause["scope"], pause["name"], pause["reason"])))
        for pause in held["pauses"]
    ]
