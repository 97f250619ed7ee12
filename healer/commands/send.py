"""`healer send` and `healer signals`: what is sent; who sends, and what was not stored."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec
import typer

from healer.commands import Failed
from healer.commands.remote import AS_JSON, CLUSTER, Client, ClientError, print_json, print_table

#: A server that is busy or away is asked again for this long.
PATIENCE_S = 30.0
#: Bytes in one request: far below the 8 MB that the API takes.
BATCH_BYTES = 2 * 1024 * 1024
#: How often a long sending says how far it is.
_PROGRESS_S = 2.0
_HEAPS = ("accepted", "duplicates", "unrecognised")


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Send signals.", rich_markup_mode=None)
    group.command("kernel-log")(kernel_log)
    group.command("heartbeat")(heartbeat)
    group.command("metrics")(metrics)
    group.command("openmetrics")(openmetrics)
    group.command("remote-write")(remote_write)
    group.command("step-times")(step_times)
    group.command("checkpoints")(checkpoints)
    group.command("nvidia-smi")(nvidia_smi)
    app.add_typer(group, name="send")
    group = typer.Typer(no_args_is_help=True, help="What arrives and what is lost.", rich_markup_mode=None)
    group.command("senders")(senders)
    group.command("losses")(losses)
    group.command("unknown")(unknown)
    app.add_typer(group, name="signals")


class Total:
    """The sum of the answers, with indexes that count through the whole input. `noun` is what they count."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self.sums: dict[str, Any] = dict.fromkeys(_HEAPS, 0) | {"rejected": []}
        self.sent = 0
        self._said = time.monotonic()

    def add(self, answer: dict[str, Any], count: int) -> None:
        """`count` things were sent, and this was the answer."""
        for heap in _HEAPS:
            self.sums[heap] += answer[heap]
        self.sums["rejected"] += [
            {**entry, "index": entry["index"] + self.sent} for entry in answer["rejected"]
        ]  # fmt: skip
        if more := answer.get("rejected_more"):
            self.sums["rejected_more"] = self.sums.get("rejected_more", 0) + more
        self.went(count)

    def went(self, count: int) -> None:
        self.sent += count
        if time.monotonic() - self._said >= _PROGRESS_S:
            self._said = time.monotonic()
            things = self.noun if self.sent == 1 else _plural(self.noun)
            typer.echo(f"{self.sent} {things} sent …", err=True)

    def report(self, json: bool) -> None:
        """Prints the sums; ends with 1 when something was rejected."""
        if json:
            print_json(self.sums)
        else:
            counts = ", ".join(f"{self.sums[heap]} {heap}" for heap in _HEAPS)
            rejected = len(self.sums["rejected"]) + self.sums.get("rejected_more", 0)
            typer.echo(f"{counts}, {rejected} rejected")
            for entry in self.sums["rejected"][:20]:
                typer.echo(f"{self.noun} {entry['index'] + 1}: {entry['reason']}", err=True)
        if self.sums["rejected"]:
            raise typer.Exit(1)


def _plural(noun: str) -> str:
    return noun[:-1] + "ies" if noun.endswith("y") else noun + "s"


def patiently(send: Callable[[], Any]) -> Any:
    """A repeat is harmless: what was stored is a duplicate, or the same sample again."""
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
    """The file, or standard input for `-`."""
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise Failed(f"{path} cannot be read: {error.strerror}") from None


def lines_of(files: Iterable[Path]) -> Iterator[bytes]:
    """All lines of all files, without their ends."""
    for path in files:
        with opened(path) as file:
            for line in file:
                yield line.rstrip(b"\r\n")


def batches(lines: Iterable[bytes], *, most_lines: int | None = None) -> Iterator[list[bytes]]:
    """Lines in heaps of at most BATCH_BYTES (a longer line is a heap of its own)."""
    batch: list[bytes] = []
    size = 0
    for line in lines:
        full = size + len(line) > BATCH_BYTES or (most_lines is not None and len(batch) >= most_lines)
        if batch and full:
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line) + 1
    if batch:
        yield batch


#: One request holds at most so many objects.
_OBJECTS = 500
_JSON_FILES = typer.Argument(
    None, help="Files of one JSON document or of JSON lines; - or nothing: standard input."
)
_JOB = typer.Option(None, "--job", help="The job, where an object names none.")
_NODE = typer.Option(None, "--node", help="The node, where an object names none.")


def metrics(
    files: list[Path] = _JSON_FILES,
    node: str | None = _NODE,
    cluster: str | None = CLUSTER,
    json: bool = AS_JSON,
) -> None:
    """Send metrics, columnar by node. Ends with 1 when some were rejected."""
    _send_objects("/signals/metrics", files, {"node": node, "cluster": cluster}, "entry", json)


def step_times(
    files: list[Path] = _JSON_FILES,
    job: str | None = _JOB,
    cluster: str | None = CLUSTER,
    *,
    from_log: Path | None = typer.Option(
        None, "--from-log", help="Read the log of a training instead (- is standard input)."
    ),
    form: str = typer.Option(
        "auto", "--format", help="What wrote the log: auto, megatron, deepspeed or lightning."
    ),
    follow: bool = typer.Option(False, "--follow", help="Go on as the log grows, until Ctrl-C."),
    json: bool = AS_JSON,
) -> None:
    """Send step times of a job's ranks. Ends with 1 when some were rejected."""
    if from_log is not None:
        from healer.commands import send_step_log

        if files:
            raise Failed("--from-log and files do not go together")
        send_step_log.send(from_log, form, job, cluster, follow=follow, json=json)
        return
    if follow or form != "auto":
        raise Failed("--follow and --format go with --from-log")

    def samples(body: dict[str, Any]) -> int:
        rows = body.get("samples")
        return len(rows) if isinstance(rows, list) else 0

    _send_objects(
        "/signals/step-times", files, {"job": job, "cluster": cluster}, "sample", json, count=samples
    )  # fmt: skip


def checkpoints(
    files: list[Path] = _JSON_FILES,
    job: str | None = _JOB,
    cluster: str | None = CLUSTER,
    json: bool = AS_JSON,
) -> None:
    """Send a job's checkpoints. Ends with 1 when some were rejected."""
    _send_objects("/signals/checkpoints", files, {"job": job, "cluster": cluster}, "entry", json)


def openmetrics(
    files: list[Path] = typer.Argument(None, help="What exporters print; - or nothing: standard input."),
    node: str | None = typer.Option(None, "--node", help="The node, where no label names it."),
    cluster: str | None = CLUSTER,
    json: bool = AS_JSON,
) -> None:
    """Send metrics as exporters print them. Ends with 1 when some were rejected."""
    total = Total("line")
    with Client() as api:
        for batch in (one for path in files or [Path("-")] for one in batches(lines_of([path]))):
            content = b"\n".join(batch) + b"\n"
            answer = patiently(
                lambda content=content: api.send(
                    "/signals/openmetrics", content, "text/plain", node=node, cluster=cluster
                )
            )
            total.add(answer, len(batch))
    total.report(json)


def nvidia_smi(
    files: list[Path] = typer.Argument(
        None, help="The output of nvidia-smi -q -x, one in each file; - or nothing: standard input."
    ),
    node: str = typer.Option(..., help="The node that it is of."),
    cluster: str | None = CLUSTER,
    json: bool = AS_JSON,
) -> None:
    """Send the XML of nvidia-smi. Ends with 1 when some was rejected."""
    total = Total("file")
    with Client() as api:
        for path in files or [Path("-")]:
            content = _whole(path)
            answer = patiently(
                lambda content=content: api.send(
                    "/signals/nvidia-smi", content, "text/xml", node=node, cluster=cluster
                )
            )
            total.add(answer, 1)
    total.report(json)


def remote_write(
    files: list[Path] = typer.Argument(
        None, help="Bodies of remote_write 1.0 as Prometheus sends them, one in each file; -: standard input."
    ),
    json: bool = AS_JSON,
) -> None:
    """Send bodies of Prometheus remote_write. What it accepted stands in healer's own metrics."""
    total = Total("file")
    with Client() as api:
        for path in files or [Path("-")]:
            content = _whole(path)
            patiently(
                lambda content=content: api.send(
                    "/signals/prometheus/write", content, "application/x-protobuf", packed="snappy"
                )
            )
            total.went(1)
    if json:
        print_json({"sent": total.sent})
    else:
        typer.echo(f"{total.sent} sent")


def _whole(path: Path) -> bytes:
    with opened(path) as file:
        return file.read()


def _send_objects(
    route: str,
    files: list[Path] | None,
    outer: dict[str, str | None],
    noun: str,
    json: bool,
    *,
    count: Callable[[dict[str, Any]], int] = lambda _: 1,
) -> None:
    given = {name: value for name, value in outer.items() if value}
    total = Total(noun)
    with Client() as api:
        for batch in _batched(_objects(files or [Path("-")])):
            objects = [given | item for item in batch]
            things = sum(count(item) for item in objects)
            content = msgspec.json.encode(objects)
            answer = patiently(lambda content=content: api.send(route, content, "application/json"))
            total.add(answer, things)
    total.report(json)


def _batched(objects: Iterator[tuple[dict[str, Any], int]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    size = 0
    for item, length in objects:
        if batch and (size + length > BATCH_BYTES or len(batch) == _OBJECTS):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += length
    if batch:
        yield batch


def _objects(files: list[Path]) -> Iterator[tuple[dict[str, Any], int]]:
    """Each object with its length in bytes, whether it came as a document, in a list, or on a line."""
    for path in files:
        with opened(path) as file:
            for value, length, where in _values(file, path):
                items = value if isinstance(value, list) else [value]
                for item in items:
                    if not isinstance(item, dict):
                        raise Failed(f"{where}: expected an object, or a list of objects")
                    yield item, length // len(items) + 1


def _values(file: IO[bytes], path: Path) -> Iterator[tuple[Any, int, str]]:
    """The JSON values of a file: one by line where its first line is one, else the whole."""
    begun = False
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            yield msgspec.json.decode(line), len(line), where
        except msgspec.DecodeError as error:
            if begun:
                raise Failed(f"{where} is not JSON: {error}") from None
            whole = line + file.read()
            yield _whole_document(whole, path), len(whole), str(path)
            return
        begun = True


def _whole_document(raw: bytes, path: Path) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise Failed(f"{path} is not JSON: {error}") from None


#: Lines in one request.
_BATCH = 500


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
    with Client() as api:
        for batch in batches(lines, most_lines=_BATCH):
            entries = [{"line": line.decode("utf-8", "replace")} for line in batch]
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
    with Client() as api:
        total.add(
            patiently(lambda: api.post("/signals/heartbeat", _outer(node, cluster, boot_id))), 1
        )  # fmt: skip
    total.report(json)


def _outer(node: str, cluster: str | None, boot_id: str | None) -> dict[str, str]:
    fields = {"node": node, "cluster": cluster, "boot_id": boot_id}
    return {name: value for name, value in fields.items() if value}


_LIMIT = typer.Option(500, min=1, max=500, help="Rows at most.")


def senders(cluster: str | None = CLUSTER, limit: int = _LIMIT, json: bool = AS_JSON) -> None:
    """Show who sends what, the latest first."""
    names = ("who", "source", "node", "requests", "bytes", "last_seen")
    _show_signals("/signals/senders", names, cluster, limit, json)


def losses(cluster: str | None = CLUSTER, limit: int = _LIMIT, json: bool = AS_JSON) -> None:
    """Show what was sent and is not stored, and why: the latest first."""
    names = ("reason", "source", "who", "count", "last_seen", "example")
    _show_signals("/signals/losses", names, cluster, limit, json)


def unknown(cluster: str | None = CLUSTER, limit: int = _LIMIT, json: bool = AS_JSON) -> None:
    """Show the series that no rule can use, the most frequent first."""
    _show_signals("/signals/unknown", ("name", "why", "count", "last_seen"), cluster, limit, json)


def _show_signals(route: str, names: tuple[str, ...], cluster: str | None, limit: int, json: bool) -> None:
    with Client() as api:
        found = api.get(route, cluster=cluster, limit=limit)["items"]
    if json:
        print_json(found)
        return
    rows = [[str(one[name])[:100] for name in names] for one in found]
    print_table(tuple(name.upper() for name in names), rows)
