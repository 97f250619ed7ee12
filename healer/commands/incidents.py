"""`healer incidents` and `healer evidence`: the list, one incident in full, and its evidence files."""

from datetime import datetime
from pathlib import Path

import typer

from healer.commands import Failed, Misused, print_line, reading
from healer.commands.phrases import incident_lines, timeline_title, where
from healer.commands.remote import (
    AS_JSON,
    CLUSTER,
    Client,
    Column,
    print_json,
    print_list,
    print_table,
    second_of,
)
from healer.text import quoted, say


def incidents(
    incident: str | None = typer.Argument(None, help="An incident's id, or its first 8 characters."),
    *,
    all_: bool = typer.Option(False, "--all", help="Include resolved ones."),
    severity: list[str] = typer.Option([], help="P0, P1, P2 or P3; repeat for more."),
    node: str | None = typer.Option(None, help="Only those of this node."),
    q: str | None = typer.Option(None, "--search", help="Text to search for."),
    cluster: str | None = CLUSTER,
    limit: int = typer.Option(200, min=1, help="Maximum number of rows."),
    json: bool = AS_JSON,
) -> None:
    """List the open incidents, or show one."""
    with Client() as api:
        if incident is not None:
            found = api.get(f"/incidents/{incident}")
            print_json(found) if json else _show(found)
            return
        state = [] if all_ else ["open", "mitigating", "verifying"]
        listed = list(
            api.items("/incidents", limit, state=state, severity=severity, node=node, q=q, cluster=cluster)
        )
    print_list(listed, _INCIDENTS, json, clusters=True)


_INCIDENTS: dict[str, Column] = {
    "ID": lambda incident: incident["id"][:8],
    "SEV": "severity",
    "STATE": "state",
    "OPENED (UTC)": second_of("opened"),
    "WHERE": lambda incident: where(incident["root"]),
    "WHAT": "title",
}
_FILES: dict[str, Column] = {
    "FILE": "id",
    "COLLECTED (UTC)": second_of("at"),
    "NODE": "node",
    "BYTES": lambda file: file["bundle"]["size_bytes"],
    "PARTS": lambda file: "; ".join(file["bundle"]["parts"]),
}


def _show(found: dict) -> None:
    for line in incident_lines(found):
        print_line(line)
    print_line()
    print_line(timeline_title())
    rows = [
        (_to_the_millisecond(entry["at"]), quoted(entry["kind"]), entry["by"], entry["text"])
        for entry in found["timeline"]
    ]
    print_table(("WHEN (UTC)", "WHAT", "BY", ""), rows)


def _to_the_millisecond(at: str) -> str:
    return datetime.fromisoformat(at).isoformat(" ", "milliseconds")[:23]


def evidence(
    incident: str | None = typer.Argument(None, help="An incident's id, or its first 8 characters."),
    *,
    run: str | None = typer.Option(None, help="Evidence of this run instead."),
    out: Path | None = typer.Option(None, help="Write the newest file there (gzip)."),
    file: str | None = typer.Option(None, help="With --out: this file instead of the newest."),
    json: bool = AS_JSON,
) -> None:
    """List the evidence of an incident, or download a file."""
    if (incident is None) == (run is None):
        raise Misused(say("commands.evidence_which"))
    where = f"/incidents/{incident}/evidence" if incident is not None else f"/runs/{run}/evidence"
    with Client() as api:
        found = api.get(where)["items"]
        if out is None:
            print_list(found, _FILES, json)
            return
        chosen = [item for item in found if file in (None, item["id"])]
        if not chosen:
            raise Failed(say("commands.evidence_no_file" if file else "commands.evidence_none"))
        data = api.download(f"/evidence/{chosen[-1]['id']}")
    with reading(out, writes=True):
        out.write_bytes(data)
    print_line(say("commands.downloaded", file=str(out), name=chosen[-1]["name"], count=len(data)))
