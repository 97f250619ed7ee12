"""What the commands of `healer send` share: patience, progress, and the sum of the answers."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import typer

from healer.commands import Failed
from healer.commands.remote import print_json

#: A server that is busy or away is asked again for this long.
PATIENCE_S = 30.0
#: Bytes in one request: far below the 8 MB that the API takes.
BATCH_BYTES = 2 * 1024 * 1024
#: How often a long sending says how far it is.
_PROGRESS_S = 2.0
_HEAPS = ("accepted", "duplicates", "unrecognised")


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
            {**one, "index": one["index"] + self.sent} for one in answer["rejected"]
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
            for one in self.sums["rejected"][:20]:
                typer.echo(f"{self.noun} {one['index'] + 1}: {one['reason']}", err=True)
        if self.sums["rejected"]:
            raise typer.Exit(1)


def _plural(noun: str) -> str:
    return noun[:-1] + "ies" if noun.endswith("y") else noun + "s"


def patiently(send: Callable[[], Any]) -> Any:
    """A repeat is harmless: what was stored is a duplicate, or the same sample again."""
    from healer.commands.client import ClientError

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
