"""The connection to the pyslurm process (`pyslurm_child`): one call at a time, bounded in time."""

import contextlib
import json
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from healer.adapters.slurm import process
from healer.ports.scheduling import SchedulerUnavailable
from healer.text import say

#: Loading pyslurm may take this long on a busy machine; calls meanwhile fail without being sent.
_START_S = 30.0
_MOST_BYTES = 512 * 1024 * 1024
_TAIL = 2000


class PyslurmLink:
    """Starts the process on first use, and again if it ended or hung. Safe for threads."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._command, self._env = list(command), dict(env)
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._first: dict[str, Any] | None = None
        self._begun = 0.0
        self._stderr_tail = b""

    def first(self, timeout_s: float) -> dict[str, Any]:
        """The process's first line. Raises SchedulerUnavailable while there is none."""
        with self._held(timeout_s) as deadline:
            return self._started(deadline)

    def call(self, name: str, given: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer. A process that does not answer in time is killed, and the effect of the call is
        unknown."""
        with self._held(timeout_s) as deadline:
            self._started(deadline)
            assert self._child is not None and self._child.stdin is not None
            line = json.dumps({"call": name, "given": dict(given)}).encode() + b"\n"
            try:
                os.write(self._child.stdin.fileno(), line)
            except OSError as error:
                why = say("slurm.pyslurm_ended", words=self._end())
                raise SchedulerUnavailable(why, sent=False) from error
            try:
                return self._line(deadline)
            except TimeoutError:
                self._end()
                raise SchedulerUnavailable(say("slurm.pyslurm_silent", timeout_s=timeout_s)) from None
            except EOFError as error:
                raise SchedulerUnavailable(say("slurm.pyslurm_ended", words=self._end())) from error

    def close(self) -> None:
        with self._lock:
            self._end()

    @contextlib.contextmanager
    def _held(self, timeout_s: float) -> Iterator[float]:
        timeout_s = process.left_s(timeout_s)
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise SchedulerUnavailable(say("slurm.pyslurm_busy", timeout_s=timeout_s), sent=False)
        try:
            yield deadline
        finally:
            self._lock.release()

    def _started(self, deadline: float) -> dict[str, Any]:
        if self._child is not None and self._child.poll() is not None and self._first is not None:
            self._end()
        if self._child is None:
            self._start()
        if self._first is None:
            try:
                self._first = self._line(deadline)
            except TimeoutError:
                is_stuck = time.monotonic() - self._begun > _START_S
                message = self._end() if is_stuck else self._last_message()
                why = say("slurm.pyslurm_loading", words=message)
                raise SchedulerUnavailable(why, sent=False) from None
            except EOFError as error:
                why = say("slurm.pyslurm_died", words=self._end())
                raise SchedulerUnavailable(why, sent=False) from error
        return self._first

    def _start(self) -> None:
        try:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._env,
            )
        except OSError as error:
            why = say("slurm.not_started", program=self._command[0], error=str(error))
            raise SchedulerUnavailable(why, sent=False) from error
        self._begun, self._stderr_tail = time.monotonic(), b""

    def _line(self, deadline: float) -> dict[str, Any]:
        """The next line of output. Standard error is read too, and its tail is kept."""
        assert self._child is not None and self._child.stdout is not None and self._child.stderr is not None
        out, err = self._child.stdout.fileno(), self._child.stderr.fileno()
        chunks: list[bytes] = []
        size = 0
        with selectors.PollSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            selector.register(err, selectors.EVENT_READ)
            while not (chunks and chunks[-1].endswith(b"\n")):
                ready = {key.fd for key, _ in selector.select(max(0.0, deadline - time.monotonic()))}
                if not ready:
                    raise TimeoutError
                if err in ready:
                    chunk = os.read(err, 1 << 16)
                    self._stderr_tail = (self._stderr_tail + chunk)[-_TAIL:]
                    if not chunk:
                        selector.unregister(err)
                if out in ready:
                    chunk = os.read(out, 1 << 20)
                    size += len(chunk)
                    if not chunk or size > _MOST_BYTES:
                        raise EOFError
                    chunks.append(chunk)
        return json.loads(b"".join(chunks))

    def _end(self) -> str:
        """Ends the process and returns its last message."""
        child, self._child, self._first = self._child, None, None
        if child is None:
            return ""
        if child.poll() is None:
            child.kill()
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        with contextlib.suppress(OSError):
            self._stderr_tail += child.stderr.read()
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            with contextlib.suppress(OSError):
                pipe.close()
        return self._last_message()

    def _last_message(self) -> str:
        lines = self._stderr_tail.decode("utf-8", "replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), say("slurm.said_nothing"))
