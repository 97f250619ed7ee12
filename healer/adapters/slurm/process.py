"""Runs one command without a shell, bounded in time and output, and bounds the time of a whole call.

Nested bounds only get narrower. Without one, only the time-out of each request applies.
"""

import contextlib
import math
import os
import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import IO

import msgspec

from healer.ports.scheduling import SchedulerUnavailable
from healer.text import say

#: 10,000 nodes are 12 MB of text; a job in JSON takes 5 kB, and more with many nodes.
MOST_BYTES = 512 * 1024 * 1024

#: The deadline of the current call with all its commands, requests and adapters, on the monotonic clock.
_UNTIL: ContextVar[float] = ContextVar("until", default=math.inf)


@contextlib.contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Bounds all waits inside to `limit_s` from now."""
    before = _UNTIL.set(min(_UNTIL.get(), time.monotonic() + limit_s))
    try:
        yield
    finally:
        _UNTIL.reset(before)


def left_s(most_s: float | None) -> float:
    """Seconds left of the call's bound, at most `most_s` (None: no further limit); 0 if it has expired."""
    return max(0.0, min(math.inf if most_s is None else most_s, _UNTIL.get() - time.monotonic()))


class Output(msgspec.Struct, frozen=True):
    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "replace")

    @property
    def words(self) -> str:
        """The error message; Slurm writes it to either stream."""
        return (self.err + b" " + self.out[:2000]).decode("utf-8", "replace").strip()


def run(
    command: Sequence[str],
    env: Mapping[str, str],
    timeout_s: float,
    *,
    stdin: bytes = b"",
    most_bytes: int = MOST_BYTES,
) -> Output:
    """Raises SchedulerUnavailable if the command cannot start, takes too long or prints too much. It is
    killed then, and its effect is unknown."""
    name = os.path.basename(command[0])  # noqa: PTH119 - a string is all that is needed on the hot path
    timeout_s = left_s(timeout_s)
    if not timeout_s:
        raise SchedulerUnavailable(say("slurm.no_time_to_run", program=name), sent=False)
    try:
        with _source(stdin) as source:
            child = subprocess.Popen(
                command, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
            )
    except OSError as error:
        why = say("slurm.not_started", program=name, error=str(error))
        raise SchedulerUnavailable(why, sent=False) from error
    try:
        out, err = _read(child, name, time.monotonic() + timeout_s, timeout_s, most_bytes)
        return Output(child.wait(timeout=1), out, err)
    except subprocess.TimeoutExpired as error:
        raise SchedulerUnavailable(say("slurm.did_not_end", program=name)) from error
    finally:
        with contextlib.suppress(OSError):
            if child.poll() is None:
                child.kill()
        child.wait()
        for pipe in (child.stdout, child.stderr):
            if pipe:
                pipe.close()


def _source(data: bytes) -> IO[bytes]:
    """An in-memory file as standard input: unlike a pipe, writing it never blocks."""
    if not data:
        return open(os.devnull, "rb")  # noqa: PTH123 - as cheap as can be on the hot path
    source = os.fdopen(os.memfd_create("stdin", os.MFD_CLOEXEC), "w+b")
    source.write(data)
    source.seek(0)
    return source


def _read(
    child: subprocess.Popen[bytes], name: str, deadline: float, timeout_s: float, most_bytes: int
) -> tuple[bytes, bytes]:
    assert child.stdout is not None and child.stderr is not None
    chunks: dict[int, list[bytes]] = {child.stdout.fileno(): [], child.stderr.fileno(): []}
    size = 0
    with selectors.PollSelector() as selector:
        for fd in chunks:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise SchedulerUnavailable(say("slurm.no_answer", program=name, timeout_s=timeout_s))
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 20)
                if not chunk:
                    selector.unregister(key.fd)
                chunks[key.fd].append(chunk)
                size += len(chunk)
            if size > most_bytes:
                raise SchedulerUnavailable(say("slurm.printed_too_much", program=name, most=most_bytes))
    out, err = (b"".join(parts) for parts in chunks.values())
    return out, err
