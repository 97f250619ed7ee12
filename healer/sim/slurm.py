"""One simulated Slurm for several processes: a server on a unix socket, and its client (`healer.sim.calls`).

`python -m healer.sim.slurm --socket PATH --nodes 32` serves one until it is told to end (SIGTERM).
"""

import argparse
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from setproctitle import setproctitle

from healer.model import SlurmJob, SlurmNode, SlurmSnapshot
from healer.ports import SchedulerError, SchedulerRefused, SchedulerUnavailable, UnknownNode
from healer.sim.calls import CallClient, CallFailed, CallServer, Gone
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


class SimServer(CallServer):
    """Serves a SimScheduler on a unix socket until `stop`."""

    def __init__(self, scheduler: SimScheduler, socket_path: Path | str) -> None:
        super().__init__(scheduler, socket_path, {*_READS, *_WRITES}, (SchedulerError,))


class SimClient:
    """`ports.Scheduler`, and the calls that drive a SimScheduler, over the socket of a SimServer."""

    name = "sim"

    def __init__(self, socket_path: Path | str, timeout_s: float = 10) -> None:
        self._calls = CallClient(socket_path, timeout_s)

    def close(self) -> None:
        self._calls.close()

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
        try:
            return self._calls.call(call, _READS.get(call), *args, **kwargs)
        except Gone as error:
            raise SchedulerUnavailable(f"The simulated Slurm at {error}") from error
        except CallFailed as error:
            known = _ERRORS.get(error.kind, lambda text, _: SchedulerError(text))
            raise known(error.text, error.code) from error


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
