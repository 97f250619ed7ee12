"""`healer send` of samples: metrics in four wire forms, step times, checkpoints."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import typer

from healer.commands import Failed
from healer.commands.remote import AS_JSON, CLUSTER, client, print_json
from healer.commands.sending import BATCH_BYTES, Total, batches, lines_of, opened, patiently

#: One request holds at most so many objects.
_OBJECTS = 500
_JSON_FILES = typer.Argument(
    None, help="Files of one JSON document or of JSON lines; - or nothing: standard input."
)
_JOB = typer.Option(None, "--job", help="The job, where an object names none.")
_NODE = typer.Option(None, "--node", help="The node, where an object names none.")


def register(group: typer.Typer) -> None:
    for name, command in (
        ("metrics", metrics),
        ("openmetrics", openmetrics),
        ("remote-write", remote_write),
        ("step-times", step_times),
        ("checkpoints", checkpoints),
        ("nvidia-smi", nvidia_smi),
    ):
        group.command(name)(command)


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

    def samples(one: dict[str, Any]) -> int:
        told = one.get("samples")
        return len(told) if isinstance(told, list) else 0

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
    with client() as api:
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
    with client() as api:
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
    with client() as api:
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
    with client() as api:
        for batch in _batched(_objects(files or [Path("-")])):
            told = [given | one for one in batch]
            things = sum(count(one) for one in told)
            content = msgspec.json.encode(told)
            answer = patiently(lambda content=content: api.send(route, content, "application/json"))
            total.add(answer, things)
    total.report(json)


def _batched(objects: Iterator[tuple[dict[str, Any], int]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    size = 0
    for one, length in objects:
        if batch and (size + length > BATCH_BYTES or len(batch) == _OBJECTS):
            yield batch
            batch, size = [], 0
        batch.append(one)
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
