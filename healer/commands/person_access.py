"""`healer person`: all that a person holds, and its end when the person leaves."""

from typing import Any
from urllib.parse import quote

import typer

from healer.commands import Failed, say
from healer.commands.remote import AS_JSON, Client, given, print_json, print_table


def register(app: typer.Typer) -> None:
    app.command("person")(person)


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
        raise Failed("--end requires --reason, which is recorded in the audit")
    if not end and (to or reason):
        raise Failed("--to and --reason are for --end")
    with Client() as api:
        found = api.post(f"{where}/end", given({"to": to, "reason": reason})) if end else api.get(where)
    if json:
        print_json(found)
        return
    if end:
        say(_ended(found))
    print_table(("WHAT", "ID", "OF"), _rows(found["left"] if end else found))


def _ended(found: dict[str, Any]) -> str:
    counts = f"{len(found['tokens'])} tokens and accounts, {found['sessions']} sessions"
    incidents = len(found["incidents"])
    assigned = f"; {incidents} incidents assigned to {found['to']}" if incidents else ""
    return f"ended of {found['name']}: {counts}{assigned}. What is left for others to end:"


def _rows(held: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = [
        (
            "service account" if token.get("owner") else "token",
            token["id"],
            f"{token['name']} {token['role']}",
        )
        for token in held["tokens"]
    ]
    if held.get("account"):
        rows.append(("local account", held["account"]["id"], held["account"]["name"]))
    rows += [("session", session["token"], f"until {session['expires_at']}") for session in held["sessions"]]
    rows += [("incident", incident["id"], incident["title"]) for incident in held["incidents"]]
    for run in held["runs"]:
        target = run.get("node") or run.get("job") or run["cluster"]
        rows.append(("run", run["id"], f"{run['playbook']} {target} {run['state']}"))
    return rows + [
        ("pause", pause["id"], " ".join((pause["scope"], pause["name"], pause["reason"])))
        for pause in held["pauses"]
    ]
