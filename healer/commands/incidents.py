"""`healer incidents` and `healer evidence`: the list, one incident in full, and its evidence files."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer

from healer.commands import Failed, say
from healer.commands.remote import AS_JSON, CLUSTER, Client, Column, print_json, print_list, print_table
from healer.model import IncidentVerdict, JobHit
from healer.text import from_stored


def register(app: typer.Typer) -> None:
    app.command("incidents")(incidents)
    app.command("evidence")(evidence)


def incidents(
    incident: str | None = typer.Argument(None, help="An incident's id, or its first 8 characters."),
    *,
    all_: bool = typer.Option(False, "--all", help="Include resolved ones."),
    severity: list[str] = typer.Option([], help="P0, P1, P2 or P3; repeat for more."),
    node: str | None = typer.Option(None, help="Only those of this node."),
    q: str | None = typer.Option(None, "--search", help="Words to look for."),
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


def _where(root: dict) -> str:
    """The node, or the switch, device with its part, job or cluster."""
    name = root.get("node") or root.get("switch") or " ".join(
        root[word] for word in ("device", "part") if root.get(word)
    )  # fmt: skip
    return name or (f"job {root['job']}" if root.get("job") else f"cluster {root['cluster']}")


_INCIDENTS: dict[str, Column] = {
    "ID": lambda incident: incident["id"][:8],
    "SEV": "severity",
    "STATE": "state",
    "OPENED (UTC)": lambda incident: incident["opened"][:19],
    "WHERE": lambda incident: _where(incident["root"]),
    "WHAT": "title",
}
_FILES: dict[str, Column] = {
    "FILE": "id",
    "COLLECTED (UTC)": lambda file: file["at"][:19],
    "NODE": "node",
    "BYTES": lambda file: file["bundle"]["size_bytes"],
    "PARTS": lambda file: "; ".join(file["bundle"]["parts"]),
}


def _show(found: dict) -> None:
    """Prints the incident: verdict, evidence, ruled-out causes, impact, similar incidents, runs and
    timeline."""
    from healer.incidents.impact import total_loss_text  # with all detectors, and numpy

    say(f"{found['severity']} {found['state']}: {found['title']}")
    say(f"on {_where(found['root'])}, id {found['id']}, rule {found['rule']}, opened {found['opened']}")
    if found["closed_why"]:
        say(f"closed {found['closed']}: {found['closed_why']}")
    _verdict(found["verdict"])
    _listed("WHOM IT HIT", [_job(job, found) for job in found["jobs"]], total_loss_text(_hits(found)))
    _listed(
        "SIMILAR",
        [
            f"{other['id'][:8]} {_where(other['root'])} {other['opened'][:10]}: {other['ended']}"
            for other in found["similar"]
        ],
    )
    _listed("ACTION", _done(found))
    say()
    say("TIMELINE")
    rows = [(entry["at"][:23], entry["kind"], entry["by"], entry["text"]) for entry in found["timeline"]]
    print_table(("WHEN (UTC)", "WHAT", "BY", ""), rows)


def _verdict(document: dict) -> None:
    from healer.incidents.incident_verdict import certainty_text, ruled_out_text

    verdict = from_stored(document, IncidentVerdict)
    nodes = ", ".join(f"{name} {word}" for name, word in list(verdict.nodes.items())[:8]) or "none blamed"
    say()
    say(f"VERDICT: {verdict.sentence}")
    say(f"  how sure: {certainty_text(verdict.certainty)}; cause: {verdict.cause}; nodes: {nodes}")
    if verdict.retest is not None:
        say(f"  what decides: {verdict.retest.text}")
    _listed("WHY (evidence and findings)", verdict.why)
    _listed("CONSIDERED AND SET ASIDE", [ruled_out_text(alternative) for alternative in verdict.set_aside])


def _listed(title: str, rows: Sequence[str], more: str = "") -> None:
    if rows:
        say()
        say(f"{title}{f': {more}' if more else ''}")
        for row in rows:
            say(f"  - {row}")


def _hits(found: dict) -> list[JobHit]:
    return msgspec.convert(found["hit"], list[JobHit])


def _job(job: dict, found: dict) -> str:
    from healer.incidents.impact import loss_text

    hit = next((hit for hit in _hits(found) if hit.job == job["id"]), None)
    user = job.get("user") or (hit.user if hit else "")
    held = f", {hit.gpus} GPUs" if hit and hit.gpus else ""
    lost = f": {loss_text(hit)}" if hit else ""
    return f"job {job['id']}{f' of {user}' if user else ''}{held}{lost}"


def _done(found: dict) -> list[str]:
    """Its runs with their states; if there is none, why nothing is done."""
    runs = [
        f"{run['playbook']} on {run.get('node') or run.get('job')}: {run['state']}"
        + (f", asks: {run['question']}" if run.get("question") else "")
        for run in found["runs"]
    ]
    return runs or [f"nothing: {decision['why']}" for decision in found["decisions"][-1:]]


def evidence(
    incident: str | None = typer.Argument(None, help="An incident's id, or its first 8 characters."),
    *,
    run: str | None = typer.Option(None, help="Of this run instead."),
    out: Path | None = typer.Option(None, help="Write the newest file there (gzip)."),
    file: str | None = typer.Option(None, help="With --out: this file instead of the newest."),
    json: bool = AS_JSON,
) -> None:
    """List the evidence of an incident, or download a file."""
    if (incident is None) == (run is None):
        raise Failed("name an incident, or a run with --run")
    where = f"/incidents/{incident}/evidence" if incident is not None else f"/runs/{run}/evidence"
    with Client() as api:
        found = api.get(where)["items"]
        if out is None:
            print_list(found, _FILES, json)
            return
        chosen = [item for item in found if file in (None, item["id"])]
        if not chosen:
            raise Failed(
                "there is no such file"
                if file
                else "nothing was collected: see `healer run collect-evidence`"
            )
        data = api.download(f"/evidence/{chosen[-1]['id']}")
    try:
        out.write_bytes(data)
    except OSError as error:
        raise Failed(f"{out} cannot be written: {error}") from None
    say(f"{out}: {chosen[-1]['name']}, {len(data)} bytes")
