"""Slurm read through pyslurm 23.11 to 25.11, which runs in a child process (`pyslurm_child`).

A call takes 1 to 3 ms. Errors have Slurm's numbers.
"""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from healer.adapters.slurm import parse_json, process, pyslurm_nouns
from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.slurm_reader import SlurmReader
from healer.model import Controller, Reservation, SlurmCall, SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.slurm import job_named
from healer.ports.scheduling import SchedulerError, SchedulerRefused, SchedulerUnavailable, UnknownNode
from healer.text import Said, say

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


_CHILD = Path(__file__).with_name("pyslurm_child.py")
#: The environment variables that the child gets; healer's settings and secrets are not among them.
_ENV = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "SLURM_CONF")
_NEVER = (
    SlurmCall.topology,
    SlurmCall.reboot,
    SlurmCall.cancel_reboot,
    SlurmCall.reserve,
    SlurmCall.change_reservation,
    SlurmCall.unreserve,
    SlurmCall.shrink,
)
#: The time-out of a complete list, in time-outs of one call.
_PATIENCE = 6
#: The supported releases.
_OLDEST, _NEWEST = (23, 11), (25, 11)

#: slurm_errno.h: not connected, or refused by authentication or protocol. Slurm did nothing.
_REFUSED_EARLY = frozenset({1001, 1005, 1006, 1007, 1800, 6000, 6001, 6004, 6007, 6008})
#: The node's state does not allow the change: pyslurm's number, and healer's.
_NODE_STATE, _NODE_STATE_TRANSITION = 2028, 2180


class PyslurmReads(SlurmReader):
    """`ports.SlurmReads` over pyslurm. `timeout_s` bounds one call; a snapshot may take six times as long.

    `command` and `env` start the child process, by default this Python with the current SLURM_CONF.
    """

    name = "pyslurm"
    #: The child refuses every call that changes Slurm.
    _CHILD_OPTIONS: tuple[str, ...] = ("--reads",)

    def __init__(
        self,
        timeout_s: float = 10,
        *,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        inherited = {name: os.environ[name] for name in _ENV if name in os.environ}
        started = command or (sys.executable, "-P", str(_CHILD), *self._CHILD_OPTIONS)
        self._link = PyslurmLink(started, inherited | {"LC_ALL": "C.UTF-8"} | dict(env or {}))
        self._cluster: str | None = None

    def close(self) -> None:
        """Ends the child process; the next call would start another one."""
        self._link.close()

    # --- about the adapter

    def describe(self) -> str:
        first = self._loaded()
        return f"pyslurm {first['pyslurm']}, Slurm {first['libslurm']}"

    def unavailable(self) -> Mapping[SlurmCall, str]:
        first = self._loaded()
        lacks = {call: say(f"slurm.never_{call}") for call in _NEVER}
        if "slurm_requeue" not in first["has"]:
            lacks[SlurmCall.requeue] = say("slurm.pyslurm_no_requeue", version=first["pyslurm"])
        return lacks

    def cluster_name(self) -> str:
        if self._cluster is None:
            self._cluster = str(self._ask(say("slurm.to_tell_cluster"), "cluster"))
        return self._cluster

    # --- reading

    def snapshot(self) -> SlurmSnapshot:
        cluster, taken_at = self.cluster_name(), datetime.now(UTC)
        records = self._ask(say("slurm.to_show_nodes"), "nodes", timeout_s=self._timeout_s * _PATIENCE)
        nodes = [_parsed(pyslurm_nouns.node, record) for record in records]
        if not nodes:
            raise SchedulerUnavailable(say("slurm.no_nodes"))
        return SlurmSnapshot(
            cluster=cluster,
            taken_at=taken_at,
            nodes={node.name: node for node in nodes},
            jobs=self._all_jobs(),
            reservations=self.reserved(),
        )

    def reserved(self) -> dict[str, Reservation]:
        records = self._ask(say("slurm.to_show_reservations"), "reservations")
        found = [_parsed(pyslurm_nouns.reservation, record) for record in records]
        return {reservation.name: reservation for reservation in found}

    def node(self, name: str) -> SlurmNode:
        record = self._ask(say("slurm.to_show_node", node=name), "node", name=words.checked_node(name))
        if record is None:
            raise UnknownNode(say("slurm.no_node", node=name), words.NODE_UNKNOWN)
        return _parsed(pyslurm_nouns.node, record)

    def job(self, job: str) -> SlurmJob | None:
        """By raw id, as an array task (`5_1`) or as a component (`5+1`)."""
        words.checked_job(job)
        if job.isdigit():
            try:
                record = self._ask(say("slurm.to_show_job", job=job), "job", job=int(job))
            except SchedulerRefused as error:
                if error.code == words.JOB_UNKNOWN:
                    return None
                raise
            # For an array or a heterogeneous job, Slurm may return another record of it first.
            if record["id"] == int(job):
                return _parsed(pyslurm_nouns.job, record)
        return job_named(job, self._all_jobs())

    def jobs_on(self, node: str) -> list[SlurmJob]:
        self.node(node)
        return [job for job in self._all_jobs().values() if job.active and node in job.nodes]

    def controller(self) -> Controller:
        self.cluster_name()
        begun = time.monotonic()
        figures = self._ask(say("slurm.to_tell_controller"), "controller")
        server = parse_json.Server(figures["host"], figures["role"], up=True)
        queues = parse_json.Queues(figures["threads"], figures["agent_queue"], figures["dbd_queue"])
        answer_s = time.monotonic() - begun
        return self._controller(datetime.now(UTC), self._loaded()["libslurm"], answer_s, server, queues)

    # --- helpers

    def _loaded(self) -> dict[str, Any]:
        """The child's first line. Raises SchedulerUnavailable if pyslurm cannot be used."""
        return usable(self._link.first(self._timeout_s))

    def _ask(self, action: Said, call: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        self._loaded()
        reply = self._link.call(call, arguments, timeout_s or self._timeout_s)
        if "error" in reply:
            raise error(words.not_done(action), reply["error"])
        return reply["answer"]

    def _all_jobs(self) -> dict[str, SlurmJob]:
        records = self._ask(say("slurm.to_show_jobs"), "jobs", timeout_s=self._timeout_s * _PATIENCE)
        jobs: list[SlurmJob] = [_parsed(pyslurm_nouns.job, record) for record in records]
        return {job.id: job for job in jobs}


def _parsed(make: Any, record: Mapping[str, Any]) -> Any:
    try:
        return make(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SchedulerUnavailable(say("slurm.unread_pyslurm", error=repr(error))) from error


def usable(first: dict[str, Any]) -> dict[str, Any]:
    """The child's first line. Raises SchedulerUnavailable if pyslurm cannot be used."""
    if "error" in first:
        raise SchedulerUnavailable(_not_loaded(first["error"]), sent=False)
    built, found = (_release(first[name]) for name in ("pyslurm", "libslurm"))
    if not _OLDEST <= built <= _NEWEST:
        raise SchedulerUnavailable(say("slurm.pyslurm_release", version=first["pyslurm"]), sent=False)
    if built != found:
        why = say("slurm.pyslurm_mismatch", version=first["pyslurm"], libslurm=first["libslurm"])
        raise SchedulerUnavailable(why, sent=False)
    return first


def _not_loaded(error: Mapping[str, Any]) -> Said:
    if error["kind"] == "absent":
        return say("slurm.pyslurm_absent")
    return say("slurm.pyslurm_not_loaded", error=error["text"])


def error(what: str, problem: Mapping[str, Any]) -> SchedulerError:
    """The error for a problem that the child reports. Without a number from Slurm the effect is unknown."""
    code, text = problem["code"], say("slurm.because", what=what, words=problem["text"])
    if code == words.NODE_UNKNOWN:
        return UnknownNode(text, words.NODE_UNKNOWN)
    if problem["kind"] != "slurm":
        return SchedulerRefused(text)
    if code in _REFUSED_EARLY:
        return SchedulerUnavailable(text, sent=False)
    if code is None or code < 2000 or 5000 <= code < 6000:
        return SchedulerUnavailable(text)
    return SchedulerRefused(text, _NODE_STATE_TRANSITION if code == _NODE_STATE else code)


def _release(text: str) -> tuple[int, int]:
    """`24.5.1` -> (24, 5)."""
    year, month, *_ = (*text.split("."), "0", "0")
    return int(year), int(month)
