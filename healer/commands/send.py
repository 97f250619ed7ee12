"""`healer send`: files or standard input as signals."""

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from healer.commands import Failed
from healer.commands.remote import AS_JSON, CLUSTER, client, print_json

#: Lines in one request: far below the 8 MB that the API takes, whatever the lines.
_BATCH = 500
#: A server that is busy or away is asked again for this long.
_PATIENCE_S = 30.0
_HEAPS = ("accepted", "duplicates", "unrecognised")


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Send signals.", rich_markup_mode=None)
    group.command("kernel-log")(kernel_log)
    group.command("heartbeat")(heartbeat)
    app.add_typer(group, name="send")


def kernel_log(
    files: list[Path] = typer.Argument(None, help="Files of kernel lines; - or nothing: standard input."),
    node: str = typer.Option(..., help="The node that the lines are of."),
    cluster: str | None = CLUSTER,
    boot_id: str | None = typer.Option(None, "--boot-id", help="The boot that the lines are of."),
    json: bool = AS_JSON,
) -> None:
    """Send kernel lines. Ends with 1 when lines were rejected."""
    outer = (
        {"node": node} | ({"cluster": cluster} if cluster else {}) | ({"boot_id": boot_id} if boot_id else {})
    )
    total: dict[str, Any] = dict.fromkeys(_HEAPS, 0) | {"rejected": []}
    with client() as api:
        sent = 0
        for batch in _batches(_lines(files or [Path("-")])):
            answer = _patiently(
                api, "/signals/kernel-log", {**outer, "entries": [{"line": one} for one in batch]}
            )
            _add(total, answer, sent)
            sent += len(batch)
    _report(total, json)


def heartbeat(
    node: str = typer.Option(..., help="The node that lives."),
    cluster: str | None = CLUSTER,
    boot_id: str | None = typer.Option(None, "--boot-id", help="Its boot."),
    json: bool = AS_JSON,
) -> None:
    """Send one heartbeat."""
    body = (
        {"node": node} | ({"cluster": cluster} if cluster else {}) | ({"boot_id": boot_id} if boot_id else {})
    )
    with client() as api:
        answer = _patiently(api, "/signals/heartbeat", body)
    _report(answer, json)


def _lines(files: Iterable[Path]) -> Iterator[str]:
    for path in files:
        if str(path) == "-":
            yield from (line.rstrip("\r\n") for line in sys.stdin)
            continue
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                yield from (line.rstrip("\r\n") for line in file)
        except OSError as error:
            raise Failed(f"{path} cannot be read: {error.strerror}") from None


def _batches(lines: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for line in lines:
        if line.strip():
            batch.append(line)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _patiently(api: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A repeat is harmless: what was stored is a duplicate."""
    from healer.client import ClientError

    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return api.post(path, body)
        except ClientError as error:
            if error.problem.get("status") not in {429, 503} or time.monotonic() > deadline:
                raise
            time.sleep(1)


def _add(total: dict[str, Any], answer: dict[str, Any], before: int) -> None:
    for heap in _HEAPS:
        total[heap] += answer[heap]
    total["rejected"] += [{**one, "index": one["index"] + before} for one in answer["rejected"]]


def _report(total: dict[str, Any], json: bool) -> None:
    if json:
        print_json(total)
    else:
        counts = ", ".join(f"{total[heap]} {heap}" for heap in _HEAPS)
        typer.echo(f"{counts}, {len(total['rejected'])} rejected")
        for one in total["rejected"][:20]:
            typer.echo(f"line {one['index'] + 1}: {one['reason']}", err=True)
    if total["rejected"]:
        raise typer.Exit(1)
