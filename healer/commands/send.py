"""`healer send`: kernel lines and heartbeats; samples are in `send_samples`."""

from pathlib import Path

import typer

from healer.commands import send_samples
from healer.commands.remote import AS_JSON, CLUSTER, client
from healer.commands.sending import Total, batches, lines_of, patiently

#: Lines in one request.
_BATCH = 500


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Send signals.", rich_markup_mode=None)
    group.command("kernel-log")(kernel_log)
    group.command("heartbeat")(heartbeat)
    send_samples.register(group)
    app.add_typer(group, name="send")


def kernel_log(
    files: list[Path] = typer.Argument(None, help="Files of kernel lines; - or nothing: standard input."),
    node: str = typer.Option(..., help="The node that the lines are of."),
    cluster: str | None = CLUSTER,
    boot_id: str | None = typer.Option(None, "--boot-id", help="The boot that the lines are of."),
    json: bool = AS_JSON,
) -> None:
    """Send kernel lines. Ends with 1 when lines were rejected."""
    outer = _outer(node, cluster, boot_id)
    total = Total("line")
    lines = (line for line in lines_of(files or [Path("-")]) if line.strip())
    with client() as api:
        for batch in batches(lines, most_lines=_BATCH):
            entries = [{"line": one.decode("utf-8", "replace")} for one in batch]
            body = {**outer, "entries": entries}
            total.add(patiently(lambda body=body: api.post("/signals/kernel-log", body)), len(batch))
    total.report(json)


def heartbeat(
    node: str = typer.Option(..., help="The node that lives."),
    cluster: str | None = CLUSTER,
    boot_id: str | None = typer.Option(None, "--boot-id", help="Its boot."),
    json: bool = AS_JSON,
) -> None:
    """Send one heartbeat."""
    total = Total("entry")
    with client() as api:
        total.add(
            patiently(lambda: api.post("/signals/heartbeat", _outer(node, cluster, boot_id))), 1
        )  # fmt: skip
    total.report(json)


def _outer(node: str, cluster: str | None, boot_id: str | None) -> dict[str, str]:
    fields = {"node": node, "cluster": cluster, "boot_id": boot_id}
    return {name: value for name, value in fields.items() if value}
