"""`healer send` and `healer signals`: sends signals; shows the senders, and what was not stored."""

import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import typer

from healer.commands import Failed, Misused, due_every, print_line, reading
from healer.commands.remote import (
    AS_JSON,
    CLUSTER,
    Client,
    ClientError,
    Column,
    add_group,
    given,
    print_json,
    print_list,
)
from healer.text import say

T = TypeVar("T")

#: Retries while the server is busy or away last this long.
PATIENCE_S = 30.0
#: Bytes in one request: far below the 8 MB that the API takes.
BATCH_BYTES = 2 * 1024 * 1024
_OUTCOMES = ("accepted", "duplicates", "unrecognised")


def register(app: typer.Typer) -> None:
    commands = {
        "kernel-log": kernel_log,
        "heartbeat": heartbeat,
        "metrics": metrics,
        "openmetrics": openmetrics,
        "remote-write": remote_write,
        "step-times": step_times,
        "checkpoints": checkpoints,
        "nvidia-smi": nvidia_smi,
    }
    add_group(app, "send", "Send signals.", commands)
    reports = {"senders": senders, "losses": losses, "unknown": unknown}
    add_group(app, "signals", "What arrives and what is lost.", reports)


class Total:
    """The sum of all answers, with indexes of rejected items in the whole input. `noun` names an item."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self.sums: dict[str, Any] = dict.fromkeys(_OUTCOMES, 0) | {"rejected": []}
        self.sent = 0
        self._is_due = due_every(2.0)

    def add(self, answer: dict[str, Any], count: int) -> None:
        """Adds the answer to a request of `count` items."""
        for outcome in _OUTCOMES:
            self.sums[outcome] += answer[outcome]
        for entry in answer["rejected"]:
            self.sums["rejected"].append({**entry, "index": entry["index"] + self.sent})
        if more := answer.get("rejected_more"):
            self.sums["rejected_more"] = self.sums.get("rejected_more", 0) + more
        self.count_sent(count)

    def count_sent(self, count: int) -> None:
        self.sent += count
        if self._is_due():
            things = say(f"commands.things_{self.noun}", count=self.sent)
            print_line(say("commands.sent_so_far", things=things), err=True)

    def report(self, json: bool) -> None:
        """Prints the sums; ends with 1 when something was rejected."""
        if json:
            print_json(self.sums)
        else:
            counts = {outcome: self.sums[outcome] for outcome in _OUTCOMES}
            rejected = len(self.sums["rejected"]) + self.sums.get("rejected_more", 0)
            print_line(say("commands.sent_counts", **counts, rejected=rejected))
            for entry in self.sums["rejected"][:20]:
                words = {"n": entry["index"] + 1, "why": entry["reason"]}
                print_line(say(f"commands.rejected_{self.noun}", **words), err=True)
        if self.sums["rejected"]:
            raise typer.Exit(1)


def patiently(send: Callable[[], Any]) -> Any:
    """Sends, and retries while the server is busy. Harmless, because repeats are duplicates."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return send()
        except ClientError as error:
            if error.problem.get("status") not in {429, 503} or time.monotonic() > deadline:
                raise
            time.sleep(1)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file, or standard input for `-`: unpacked, and as UTF-8, as `healer import` reads it."""
    from healer.importing.source_text import text_file

    with reading(path), text_file(str(path)) as file:
        yield file


def lines_of(files: Iterable[Path]) -> Iterator[bytes]:
    """All lines of all files, without their ends."""
    for path in files:
        with opened(path) as file:
            for line in file:
                yield line.rstrip(b"\r\n")


def batches(items: Iterable[tuple[T, int]], most: int | None = None) -> Iterator[list[T]]:
    """Items by their sizes in bytes, in batches of at most BATCH_BYTES and `most` items; a larger item is a
    batch of its own."""
    batch: list[T] = []
    size = 0
    for item, length in items:
        if batch and (size + length > BATCH_BYTES or len(batch) == most):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += length
    if batch:
        yield batch


def _sized(lines: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Lines with their sizes, ends included."""
    return ((line, len(line) + 1) for line in lines)


#: Most objects or lines of one request.
_MOST = 500
_JSON_FILES = typer.Argument(
    None, help="Files with a JSON document or JSON lines; - or none: standard input."
)
_JOB = typer.Option(None, "--job", help="The job, for objects without one.")
_NODE = typer.Option(None, "--node", help="The node, for objects without one.")
_NODE_OF_SAMPLES = typer.Option(None, "--node", help="The node, for samples without one.")


def metrics(
    files: list[Path] = _JSON_FILES,
    node: str | None = _NODE,
    cluster: str | None = CLUSTER,
    json: bool = AS_JSON,
) -> None:
    """Send metrics, columnar by node. Exits with 1 if some were rejected."""
    _send_objects("metrics", files, _filled(node=node, cluster=cluster), "entry", json)


def step_times(
    files: list[Path] = _JSON_FILES,
    job: str | None = _JOB,
    cluster: str | None = CLUSTER,
    *,
    node: str | None = _NODE_OF_SAMPLES,
    from_log: Path | None = typer.Option(
        None, "--from-log", help="Read the log of a training instead (- is standard input)."
    ),
    form: str = typer.Option(
        "auto", "--format", help="What wrote the log: auto, megatron, deepspeed or lightning."
    ),
    follow: bool = typer.Option(False, "--follow", help="Follow the log as it grows, until Ctrl-C."),
    json: bool = AS_JSON,
) -> None:
    """Send step times of a job's ranks. Exits with 1 if some were rejected."""
    if from_log is not None:
        from healer.commands import send_step_log

        if files:
            raise Misused(say("commands.log_or_files"))
        outer = given({"job": job, "cluster": cluster})
        send_step_log.send(from_log, form, outer, given({"node": node}), follow=follow, json=json)
        return
    if follow or form != "auto":
        raise Misused(say("commands.needs_from_log"))

    def samples(body: dict[str, Any]) -> int:
        rows = body.get("samples")
        return len(rows) if isinstance(rows, list) else 0

    around, inside = _filled(job=job, cluster=cluster), _filled(node=node)

    def filled(body: dict[str, Any]) -> dict[str, Any]:
        if not samples(body):
            return around(body)
        rows = [inside(row) if isinstance(row, dict) else row for row in body["samples"]]
        return around(body) | {"samples": rows}

    _send_objects("step-times", files, filled, "sample", json, count=samples)


def checkpoints(
    files: list[Path] = _JSON_FILES,
    job: str | None = _JOB,
    cluster: str | None = CLUSTER,
    json: bool = AS_JSON,
) -> None:
    """Send a job's checkpoints. Exits with 1 if some were rejected."""
    _send_objects("checkpoints", files, _filled(job=job, cluster=cluster), "entry", json)


def openmetrics(
    files: list[Path] = typer.Argument(None, help="Exporter output; - or none: standard input."),
    node: str | None = typer.Option(None, "--node", help="The node, for series without a node label."),
    cluster: str | None = CLUSTER,
    json: bool = AS_JSON,
) -> None:
    """Send metrics in exporter text format. Exits with 1 if some were rejected."""
    total = Total("line")
    with Client() as api:
        for path in files or [Path("-")]:
            for lines in batches(_sized(lines_of([path]))):
                content = b"\n".join(lines) + b"\n"
                total.add(
                    _post(api, "openmetrics", content, "text/plain", node=node, cluster=cluster), len(lines)
                )
    total.report(json)


def nvidia_smi(
    files: list[Path] = typer.Argument(
        None, help="Output of nvidia-smi -q -x, one per file; - or none: standard input."
    ),
    node: str = typer.Option(..., help="The node it came from."),
    cluster: str | None = CLUSTER,
    json: bool = AS_JSON,
) -> None:
    """Send nvidia-smi XML. Exits with 1 if some was rejected."""
    total = Total("file")
    with Client() as api:
        for path in files or [Path("-")]:
            content = _whole(path)
            total.add(_post(api, "nvidia-smi", content, "text/xml", node=node, cluster=cluster), 1)
    total.report(json)


def remote_write(
    files: list[Path] = typer.Argument(
        None, help="Bodies of remote_write 1.0 as Prometheus sends them, one in each file; -: standard input."
    ),
    json: bool = AS_JSON,
) -> None:
    """Send Prometheus remote_write bodies. healer's own metrics show what was accepted."""
    total = Total("file")
    with Client() as api:
        for path in files or [Path("-")]:
            _post(api, "prometheus/write", _as_it_is(path), "application/x-protobuf", packed="snappy")
            total.count_sent(1)
    if json:
        print_json({"sent": total.sent})
    else:
        print_line(say("commands.sent", n=total.sent))


def _post(api: Client, route: str, content: bytes, kind: str, **more: Any) -> Any:
    return patiently(lambda: api.send(f"/signals/{route}", content, kind, **more))


def _whole(path: Path) -> bytes:
    with opened(path) as file:
        return file.read()


def _as_it_is(path: Path) -> bytes:
    with reading(path):
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()


_Fill = Callable[[dict[str, Any]], dict[str, Any]]


def _filled(**values: str | None) -> _Fill:
    """Gives an object those of these fields that it lacks."""
    fields = given(values)
    return lambda item: fields | item


def _send_objects(
    route: str,
    files: list[Path] | None,
    fill: _Fill,
    noun: str,
    json: bool,
    *,
    count: Callable[[dict[str, Any]], int] = lambda _: 1,
) -> None:
    total = Total(noun)
    with Client() as api:
        for batch in batches(_objects(files or [Path("-")]), _MOST):
            objects = [fill(item) for item in batch]
            content = msgspec.json.encode(objects)
            answer = _post(api, route, content, "application/json")
            total.add(answer, sum(map(count, objects)))
    total.report(json)


def _objects(files: list[Path]) -> Iterator[tuple[dict[str, Any], int]]:
    """Each object with its length in bytes, whether it came as a document, in a list, or on a line."""
    for path in files:
        with opened(path) as file:
            for value, length, where in _values(file, path):
                items = value if isinstance(value, list) else [value]
                for item in items:
                    if not isinstance(item, dict):
                        raise Failed(say("commands.no_object", where=where))
                    yield item, length // len(items) + 1


def _values(file: IO[bytes], path: Path) -> Iterator[tuple[Any, int, str]]:
    """The JSON values of a file: one per line if its first line is one, else the whole file."""
    begun = False
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        where = say("commands.at_line", file=str(path), number=number)
        try:
            yield msgspec.json.decode(line), len(line), where
        except ValueError as error:  # also texts that are not UTF-8
            if begun:
                raise Failed(say("commands.no_json", where=where, why=str(error))) from None
            whole = line + file.read()
            yield _whole_document(whole, path), len(whole), str(path)
            return
        begun = True


def _whole_document(raw: bytes, path: Path) -> Any:
    try:
        return msgspec.json.decode(raw)
    except ValueError as error:
        raise Failed(say("commands.no_json", where=str(path), why=str(error))) from None


_RECORDS = "application/x-ndjson"


def kernel_log(
    files: list[Path] = typer.Argument(None, help="Files of kernel lines; - or none: standard input."),
    node: str = typer.Option(..., help="The node the lines came from."),
    cluster: str | None = CLUSTER,
    boot_id: str | None = typer.Option(None, "--boot-id", help="The boot ID of the lines."),
    json: bool = AS_JSON,
) -> None:
    """Send kernel lines, also of journalctl -o json. Exits with 1 if some were rejected."""
    from healer.importing.journal_text import is_record, without_mark

    outer = given({"node": node, "cluster": cluster, "boot_id": boot_id})
    total = Total("line")
    lines = (without_mark(line) for line in lines_of(files or [Path("-")]) if line.strip())
    with Client() as api:
        for records, run in itertools.groupby(lines, is_record):
            for batch in batches(_sized(run), _MOST):
                if records:
                    content = b"\n".join(batch)
                    answer = _post(api, "logs", content, _RECORDS, node=node, cluster=cluster)
                else:
                    entries = [{"line": line.decode("utf-8", "replace")} for line in batch]
                    body = {**outer, "entries": entries}
                    answer = patiently(lambda body=body: api.post("/signals/kernel-log", body))
                total.add(answer, len(batch))
    total.report(json)


def heartbeat(
    node: str = typer.Option(..., help="The node that sends the heartbeat."),
    cluster: str | None = CLUSTER,
    boot_id: str | None = typer.Option(None, "--boot-id", help="Its boot ID."),
    json: bool = AS_JSON,
) -> None:
    """Send one heartbeat."""
    body = given({"node": node, "cluster": cluster, "boot_id": boot_id})
    total = Total("entry")
    with Client() as api:
        total.add(patiently(lambda: api.post("/signals/heartbeat", body)), 1)
    total.report(json)


_LIMIT = typer.Option(500, min=1, max=500, help="Maximum number of rows.")


def senders(cluster: str | None = CLUSTER, limit: int = _LIMIT, json: bool = AS_JSON) -> None:
    """Show the senders and what they send, latest first."""
    names = ("who", "source", "node", "requests", "bytes", "last_seen")
    _show_signals("/signals/senders", names, cluster, limit, json)


def losses(cluster: str | None = CLUSTER, limit: int = _LIMIT, json: bool = AS_JSON) -> None:
    """Show rejected data and why, latest first."""
    names = ("reason", "source", "who", "count", "last_seen", "example")
    _show_signals("/signals/losses", names, cluster, limit, json)


def unknown(cluster: str | None = CLUSTER, limit: int = _LIMIT, json: bool = AS_JSON) -> None:
    """Show the series that no rule can use, the most frequent first."""
    _show_signals("/signals/unknown", ("name", "why", "count", "last_seen"), cluster, limit, json)


_HEADINGS, _LETTERS = {"last_seen": "LAST SEEN (UTC)"}, {"last_seen": 19}


def _show_signals(route: str, names: tuple[str, ...], cluster: str | None, limit: int, json: bool) -> None:
    with Client() as api:
        found = api.get(route, cluster=cluster, limit=limit)["items"]
    columns: dict[str, Column] = {
        _HEADINGS.get(name, name.upper()): lambda item, name=name: str(item[name])[: _LETTERS.get(name, 100)]
        for name in names
    }
    print_list(found, columns, json)
