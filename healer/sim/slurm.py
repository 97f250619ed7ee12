"""One simulated Slurm for several processes: a server on a unix socket, and its client (`healer.sim.calls`).

`python -m healer.sim.slurm --socket PATH --nodes 32` serves one until it is told to end (SIGTERM).
"""

import argparse
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from setproctitle import setproctitle

from healer.model import Controller, Reservation, SlurmCall, SlurmJob, SlurmNode, SlurmSnapshot, Submission
from healer.ports.slurm import Nodes, SchedulerError, SchedulerRefused, SchedulerUnavailable, UnknownNode
from healer.sim.calls import CallClient, CallFailed, CallServer, Gone
from healer.sim.clock import WallClock
from healer.sim.slurm_core import CRED_EXPIRE_S, SLURMD_TIMEOUT_S, SimScheduler, sim_nodes

__all__ = ["SimClient", "SimScheduler", "SimServer", "sim_nodes"]

#: A served cluster has nobody who ends healer's own test jobs.
TEST_S = 10.0

_READS: dict[str, Any] = {
    "describe": str,
    "cluster_name": str,
    "snapshot": SlurmSnapshot,
    "reserved": dict[str, Reservation],
    "node": SlurmNode,
    "job": SlurmJob | None,
    "jobs_on": list[SlurmJob],
    "controller": Controller,
    "topology": dict[str, tuple[str, ...]],
    "submit": str,
    "add_job": str,
    "heard": list[str],
}
_WRITES = (
    "drain", "undrain", "resume", "down", "reboot", "cancel_reboot", "annotate", "reserve",
    "change_reservation", "unreserve", "requeue", "revive", "start_now", "hold", "release", "exclude",
    "signal", "notify", "remark", "cancel", "complete", "fail_job", "fail_launch", "person_drain",
    "set_node_down", "silence", "answer", "stick", "fail_launches", "boot",
)  # fmt: skip
_ERRORS: dict[str, Callable[[str, int | None], Exception]] = {
    "UnknownNode": UnknownNode,
    "SchedulerRefused": SchedulerRefused,
    "SchedulerUnavailable": lambda text, _: SchedulerUnavailable(text),
    "ValueError": lambda text, _: ValueError(text),
}


class _Served:
    """A SimScheduler whose nouns arrive as JSON."""

    def __init__(self, scheduler: SimScheduler) -> None:
        self._scheduler = scheduler

    def __getattr__(self, call: str) -> Any:
        return getattr(self._scheduler, call)

    def reserve(self, reservation: Any) -> None:
        self._scheduler.reserve(msgspec.convert(reservation, Reservation))

    def submit(self, submission: Any) -> str:
        return self._scheduler.submit(msgspec.convert(submission, Submission))


class SimServer(CallServer):
    """Serves a SimScheduler on a unix socket until `stop`."""

    def __init__(self, scheduler: SimScheduler, socket_path: Path | str) -> None:
        super().__init__(_Served(scheduler), socket_path, {*_READS, *_WRITES}, (SchedulerError,))


class SimClient:
    """`ports.Scheduler`, and the calls that drive a SimScheduler, over the socket of a SimServer."""

    name = "sim"

    def __init__(self, socket_path: Path | str, timeout_s: float = 10) -> None:
        self._calls = CallClient(socket_path, timeout_s)

    def close(self) -> None:
        self._calls.close()

    # --- ports.Scheduler

    def describe(self) -> str:
        return self._call("describe")

    def unavailable(self) -> Mapping[SlurmCall, str]:
        return {}

    def cluster_name(self) -> str:
        return self._call("cluster_name")

    def snapshot(self) -> SlurmSnapshot:
        return self._call("snapshot")

    def reserved(self) -> Mapping[str, Reservation]:
        return self._call("reserved")

    def node(self, name: str) -> SlurmNode:
        return self._call("node", name)

    def job(self, job: str) -> SlurmJob | None:
        return self._call("job", job)

    def jobs_on(self, node: str) -> list[SlurmJob]:
        return self._call("jobs_on", node)

    def controller(self) -> Controller:
        return self._call("controller")

    def topology(self) -> Mapping[str, tuple[str, ...]]:
        return self._call("topology")

    def drain(self, nodes: Nodes, reason: str) -> None:
        self._call("drain", nodes, reason)

    def undrain(self, nodes: Nodes) -> None:
        self._call("undrain", nodes)

    def resume(self, nodes: Nodes) -> None:
        self._call("resume", nodes)

    def down(self, nodes: Nodes, reason: str) -> None:
        self._call("down", nodes, reason)

    def reboot(self, nodes: Nodes, reason: str) -> None:
        self._call("reboot", nodes, reason)

    def cancel_reboot(self, nodes: Nodes) -> None:
        self._call("cancel_reboot", nodes)

    def annotate(self, node: str, *, comment: str | None = None, extra: str | None = None) -> None:
        self._call("annotate", node, comment=comment, extra=extra)

    def reserve(self, reservation: Reservation) -> None:
        self._call("reserve", reservation)

    def change_reservation(self, name: str, nodes: Sequence[str]) -> None:
        self._call("change_reservation", name, nodes)

    def unreserve(self, name: str) -> None:
        self._call("unreserve", name)

    def requeue(self, job: str) -> None:
        self._call("requeue", job)

    def revive(self, job: str) -> None:
        self._call("revive", job)

    def start_now(self, job: str) -> None:
        self._call("start_now", job)

    def hold(self, job: str) -> None:
        self._call("hold", job)

    def release(self, job: str) -> None:
        self._call("release", job)

    def exclude(self, job: str, nodes: Sequence[str]) -> None:
        self._call("exclude", job, nodes)

    def signal(self, job: str, name: str) -> None:
        self._call("signal", job, name)

    def notify(self, job: str, text: str) -> None:
        self._call("notify", job, text)

    def remark(self, job: str, text: str) -> None:
        self._call("remark", job, text)

    def submit(self, submission: Submission) -> str:
        return self._call("submit", submission)

    def cancel(self, job: str) -> None:
        self._call("cancel", job)

    # --- driving it

    def add_job(self, **job: Any) -> str:
        return self._call("add_job", **job)

    def complete(self, job: str) -> None:
        self._call("complete", job)

    def fail_job(self, job: str, exit_code: str = "1") -> None:
        self._call("fail_job", job, exit_code)

    def fail_launch(self, job: str) -> None:
        self._call("fail_launch", job)

    def heard(self, job: str) -> list[str]:
        return self._call("heard", job)

    def person_drain(self, name: str, reason: str, user: str) -> None:
        self._call("person_drain", name, reason, user)

    def set_node_down(self, name: str, reason: str = "Not responding", user: str = "slurm") -> None:
        self._call("set_node_down", name, reason, user)

    def silence(self, name: str) -> None:
        self._call("silence", name)

    def answer(self, name: str) -> None:
        self._call("answer", name)

    def stick(self, name: str, stuck: bool = True) -> None:
        self._call("stick", name, stuck)

    def fail_launches(self, name: str, fails: bool = True) -> None:
        self._call("fail_launches", name, fails)

    def boot(self, name: str, *, planned: bool = False) -> None:
        self._call("boot", name, planned=planned)

    def _call(self, call: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._calls.call(call, _READS.get(call), *args, **kwargs)
        except Gone as error:
            raise SchedulerUnavailable(f"The simulated Slurm at {error}", sent=error.sent) from error
        except CallFailed as error:
            known = _ERRORS.get(error.kind, lambda text, _: SchedulerError(text))
            raise known(error.text, error.code) from error


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="healer.sim.slurm", description="One simulated Slurm on a unix socket."
    )
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--cluster", default="pod1")
    parser.add_argument("--cred-expire-s", type=float, default=CRED_EXPIRE_S)
    parser.add_argument("--slurmd-timeout-s", type=float, default=SLURMD_TIMEOUT_S)
    options = parser.parse_args(arguments)
    setproctitle("healer sim-slurm")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    scheduler = SimScheduler(
        options.cluster,
        WallClock(),
        options.nodes,
        cred_expire_s=options.cred_expire_s,
        slurmd_timeout_s=options.slurmd_timeout_s,
        test_s=TEST_S,
    )
    server = SimServer(scheduler, options.socket)
    server.start()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.stop()


if __name__ == "__main__":
    main()
