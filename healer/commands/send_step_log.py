"""`healer send step-times --from-log`: the log of a training, whole or as it grows."""

import errno
import math
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from healer.commands import Failed, Misused, not_one_of, print_line
from healer.commands.remote import Client
from healer.commands.send import Total, opened, patiently
from healer.importing.local_stamps import DISORDER
from healer.signals.step_logs import APART_S, FORMATS, LINE_MAX, LogReader, LogStep
from healer.text import Said, say

#: Samples of one request.
_SAMPLES = 5_000
#: How often a growing log is read, and its steps are sent.
_LOOK_S, _SEND_S = 0.5, 2.0
_CHUNK = 1 << 20

Line = tuple[str, datetime | None]


def send(
    path: Path, form: str, outer: dict[str, Any], inner: dict[str, Any], *, follow: bool, json: bool
) -> None:
    """Sends the steps of the log as those of rank 0, because a log is about all ranks together. `outer` and
    `inner`: fields of each body and of each sample."""
    if form not in FORMATS:
        raise Misused(say("commands.of_field", field="--format", text=not_one_of(form, FORMATS)))
    if follow and str(path) == "-":
        raise Misused(say("commands.follow_needs_file"))
    outer = _of_job(outer)
    total, reader = Total("step"), LogReader(form)
    with Client() as api:
        try:
            for samples in _batches(path, reader, follow):
                body = outer | {"samples": [inner | sample for sample in samples]}
                answer = patiently(lambda body=body: api.post("/signals/step-times", body))
                total.add(answer, len(samples))
        except KeyboardInterrupt:
            if not follow:
                raise
    if not total.sent:
        print_line(_nothing(path, reader), err=True)
    total.report(json)


def _nothing(path: Path, reader: LogReader) -> Said:
    name = say("commands.standard_input") if str(path) == "-" else str(path)
    if reader.spoken:
        return say("commands.log_no_times", name=name, apart=APART_S)
    return say("commands.log_no_steps", name=name)


def _of_job(outer: dict[str, Any]) -> dict[str, Any]:
    """With the job and its restart count, by default those of the Slurm job that this runs in."""
    job = outer.get("job") or os.environ.get("SLURM_JOB_ID")
    if not job:
        raise Misused(say("commands.log_no_job"))
    restart = os.environ.get("SLURM_RESTART_COUNT", "")
    return {**outer, "job": job, "restart": int(restart) if restart.isdecimal() else 0}


def _batches(path: Path, reader: LogReader, follow: bool) -> Iterator[list[dict[str, Any]]]:
    batch, sent = [], time.monotonic()
    last: datetime | None = None
    for line in _followed(path) if follow else _whole(path):
        step = None if line is None else reader.line(*line)
        if step is not None:
            seen = line[1] if line else None
            last = seen if step.stamp is None else line_time(step.stamp, seen or last, seen)
            batch.append(_sample(step, last))
        if len(batch) >= _SAMPLES or (batch and follow and time.monotonic() - sent >= _SEND_S):
            yield batch
            batch, sent = [], time.monotonic()
    if batch:
        yield batch


def line_time(stamp: datetime, near: datetime | None, seen: datetime | None = None) -> datetime:
    """A line's own time has no zone: that of this machine is taken. An hour that comes twice in autumn is the
    second one if the first lies well before `near`: when the line was `seen` to be written, else the time of
    the line before. No line is seen before it is written."""
    first, second = (stamp.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
    if near is None or second <= first or (seen is not None and second - seen > DISORDER):
        return first
    return second if near - first > DISORDER else first


def _sample(step: LogStep, at: datetime | None) -> dict[str, Any]:
    sample = {
        "step": step.step,
        "step_s": step.step_s,
        "loss": _result(step.loss),
        "grad_norm": _result(step.grad_norm),
        "time": None if at is None else at.isoformat(),
    }
    return {name: value for name, value in sample.items() if value is not None}


def _result(value: float | None) -> float | str | None:
    return "NaN" if value is not None and math.isinf(value) else value


def _whole(path: Path) -> Iterator[Line]:
    with opened(path) as file:
        for text in _texts(iter(lambda: file.read(_CHUNK), b"")):
            yield text, None


def _texts(chunks: Iterator[bytes]) -> Iterator[str]:
    """Lines, and each redrawing of a progress bar. For a line without end, only its beginning counts."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
        rest = rest[: 4 * LINE_MAX]
        yield from (line.decode("utf-8", "replace") for line in lines)
    if rest:
        yield rest.decode("utf-8", "replace")


def _followed(path: Path) -> Iterator[Line | None]:
    """Lines as they are written, for ever; None each time there is nothing new. Lines that were there at the
    start have no time. A log that is replaced is read to its end before the new one; one that is truncated,
    from its beginning."""
    rest = b""
    file: FileIO | None = None
    at: datetime | None = None
    while True:
        chunk = b""
        try:
            if file is None:
                file = path.open("rb", buffering=0)
            chunk = file.read(_CHUNK) or b""
            if not chunk:
                about = path.stat()
                is_replaced = about.st_ino != os.fstat(file.fileno()).st_ino
                if is_replaced and not (chunk := file.read(_CHUNK) or b""):  # written since the last look
                    file.close()
                    file, rest = None, b""
                    continue
                if not is_replaced and file.tell() > about.st_size:
                    file.seek(0)
                    rest = b""
                    continue
        except OSError as error:
            if file is None and at is None:
                raise Failed(say("commands.unreadable", name=str(path), why=str(error.strerror))) from None
            if file is not None and error.errno == errno.ESTALE:  # removed on the file server
                file.close()
                file, rest = None, b""
            # It is being replaced.
        *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
        rest = rest[: 4 * LINE_MAX]
        for line in lines:
            yield line.decode("utf-8", "replace"), at
        if len(chunk) < _CHUNK:
            yield None
            time.sleep(_LOOK_S)
            at = datetime.now(UTC)
