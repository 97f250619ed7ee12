"""One simulated Slurm for several processes: a server on a unix socket, and its client.

`python -m healer.sim.slurm --socket PATH --nodes 32` serves one until it is told to end (SIGTERM). Each line
is one JSON value: `{"call": NAME, "args": [...], "kwargs": {...}}` asks, `{"ok": VALUE}` or
`{"error": KIND, "text": ..., "code": ...}` answers. Only who may open the socket (mode 0600) can use it.
"""

import argparse
import contextlib
import signal
import socket
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from setproctitle import setproctitle

from healer.model import SlurmJob, SlurmNode, SlurmSnapshot
from healer.ports import SchedulerError, SchedulerRefused, SchedulerUnavailable, UnknownNode
from healer.sim.clock import WallClock
from healer.sim.slurm_core import CRED_EXPIRE_S, SLURMD_TIMEOUT_S, SimScheduler, sim_nodes

__all__ = ["SimClient", "SimScheduler", "SimServer", "sim_nodes"]

_READS: dict[str, Any] = {
    "describe": str,
    "cluster_name": str,
    "snapshot": SlurmSnapshot,
    "node": SlurmNode,
    "job": SlurmJob | None,
    "jobs_on": list[SlurmJob],
    "submit": str,
}
_WRITES = (
    "drain", "resume", "requeue", "start_now", "cancel", "complete", "fail_job", "person_drain",
    "set_node_down", "silence", "revive", "set_maintenance", "reboot",
)  # fmt: skip
_ERRORS: dict[str, Callable[[str, int | None], Exception]] = {
    "UnknownNode": UnknownNode,
    "SchedulerRefused": SchedulerRefused,
    "SchedulerUnavailable": lambda text, _: SchedulerUnavailable(text),
    "ValueError": lambda text, _: ValueError(text),
}


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    call: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class _Reply(msgspec.Struct, omit_defaults=True):
    ok: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    text: str = ""
    code: int | None = None


class SimServer:
    """Serves a SimScheduler on a unix socket until `stop`."""

    def __init__(self, scheduler: SimScheduler, socket_path: Path | str) -> None:
        self.path = Path(socket_path)
        self.path.unlink(missing_ok=True)

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                # A client that went away is no trouble of the server's.
                with contextlib.suppress(ConnectionError):
                    for line in self.rfile:
                        self.wfile.write(_answer(scheduler, line) + b"\n")

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True
            block_on_close = False

        self._server = Server(str(self.path), Handler)
        self.path.chmod(0o600)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.path.unlink(missing_ok=True)
        self._thread.join()


class SimClient:
    """`ports.Scheduler`, and the calls that drive a SimScheduler, over the socket of a SimServer.

    Connects when it is first used and again after a failure; a failed call is never sent twice."""

    name = "sim"

    def __init__(self, socket_path: Path | str, timeout_s: float = 10) -> None:
        self._path = str(socket_path)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._file: Any = None

    def close(self) -> None:
        with self._lock:
            self._close()

    def describe(self) -> str:
        return self._call("describe")

    def cluster_name(self) -> str:
        return self._call("cluster_name")

    def snapshot(self) -> SlurmSnapshot:
        return self._call("snapshot")

    def node(self, name: str) -> SlurmNode:
        return self._call("node", name)

    def job(self, job: str) -> SlurmJob | None:
        return self._call("job", job)

    def jobs_on(self, node: str) -> list[SlurmJob]:
        return self._call("jobs_on", node)

    def drain(self, node: str, reason: str) -> None:
        self._call("drain", node, reason)

    def resume(self, node: str) -> None:
        self._call("resume", node)

    def requeue(self, job: str) -> None:
        self._call("requeue", job)

    def start_now(self, job: str) -> None:
        self._call("start_now", job)

    def submit(self, **job: Any) -> str:
        return self._call("submit", **job)

    def cancel(self, job: str) -> None:
        self._call("cancel", job)

    def complete(self, job: str) -> None:
        self._call("complete", job)

    def fail_job(self, job: str) -> None:
        self._call("fail_job", job)

    def person_drain(self, name: str, reason: str, user: str) -> None:
        self._call("person_drain", name, reason, user)

    def set_node_down(self, name: str, reason: str = "Not responding", user: str = "slurm") -> None:
        self._call("set_node_down", name, reason, user)

    def silence(self, name: str) -> None:
        self._call("silence", name)

    def revive(self, name: str) -> None:
        self._call("revive", name)

    def set_maintenance(self, name: str, on: bool) -> None:
        self._call("set_maintenance", name, on)

    def reboot(self, name: str, *, planned: bool = False) -> None:
        self._call("reboot", name, planned=planned)

    def _call(self, call: str, *args: Any, **kwargs: Any) -> Any:
        line = msgspec.json.encode(_Request(call, list(args), kwargs)) + b"\n"
        with self._lock:
            try:
                self._connect()
                self._file.write(line)
                self._file.flush()
                answer = self._file.readline()
                if not answer.endswith(b"\n"):
                    raise ConnectionError("it hung up")
            except OSError as error:
                self._close()
                raise SchedulerUnavailable(
                    f"The simulated Slurm at {self._path} did not answer: {error}."
                ) from error
        reply = msgspec.json.decode(answer, type=_Reply)
        if reply.error:
            raise _ERRORS.get(reply.error, lambda text, _: SchedulerError(text))(reply.text, reply.code)
        return msgspec.json.decode(reply.ok, type=_READS[call]) if call in _READS else None

    def _connect(self) -> None:
        if self._socket is None:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(self._timeout_s)
            try:
                connection.connect(self._path)
            except OSError:
                connection.close()
                raise
            self._socket, self._file = connection, connection.makefile("rwb")

    def _close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._socket.close()
            self._socket = self._file = None


def _answer(scheduler: SimScheduler, line: bytes) -> bytes:
    try:
        request = msgspec.json.decode(line, type=_Request)
        if request.call not in _READS and request.call not in _WRITES:
            raise ValueError(f"no call named {request.call}")
        value = getattr(scheduler, request.call)(*request.args, **request.kwargs)
        reply = _Reply(ok=msgspec.Raw(msgspec.json.encode(value)))
    except (SchedulerError, ValueError, TypeError) as error:
        kind = "ValueError" if isinstance(error, (ValueError, TypeError)) else type(error).__name__
        reply = _Reply(error=kind, text=str(error), code=getattr(error, "code", None))
    return msgspec.json.encode(reply)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="healer.sim.slurm", description="One simulated Slurm on a unix socket."
    )
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--cluster", default="pod1")
    parser.add_argument("--cred-expire-s", type=float, default=CRED_EXPIRE_S)
    parser.add_argument("--slurmd-timeout-s", type=float, default=SLURMD_TIMEOUT_S)
    options = parser.parse_args()
    setproctitle("healer sim-slurm")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    scheduler = SimScheduler(
        options.cluster,
        WallClock(),
        options.nodes,
        cred_expire_s=options.cred_expire_s,
        slurmd_timeout_s=options.slurmd_timeout_s,
    )
    server = SimServer(scheduler, options.socket)
    server.start()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.stop()


if __name__ == "__main__":
    main()
