"""The simulated nodes as healer reaches them: services, the NVLink fabric, tests. In memory or on a socket.

`python -m healer.sim.nodes --socket PATH` serves them until it is told to end (SIGTERM). Whoever plants a
fault (`plant`) asks the same server whether it still stands (`faults`): so a restart that healer makes ends
the fault for everybody.

Faults that mean something here: `fabric-manager` (its service died, the fabric is not up; a restart ends it),
`fabric` (the fabric stays broken whatever is restarted), `unreachable` (nobody answers on the node),
`service-stuck` (a restart works, and the service dies again), `gpu-hung` (the tests fail until the GPU is
reset), `reset-fails` (no reset works), `remap-pending` (a row waits to be remapped, a reset does it),
`remap-failed` (a row could not be, and no reset helps), `gpu-missing` (nvidia-smi shows one less). Any
other is a fault of the hardware that the node's tests find.
"""

import argparse
import gzip
import hashlib
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from setproctitle import setproctitle

from healer.model import Bundle, Diagnosis, FabricState, JobOnNode, JobStacks, MemoryState
from healer.ports.clock import Clock
from healer.ports.node_exec import NodeError, NodeUnavailable
from healer.sim.calls import CallClient, CallFailed, CallServer, Gone
from healer.sim.clock import WallClock

__all__ = ["NodesClient", "NodesServer", "SimNodes"]

FABRIC_MANAGER = "nvidia-fabricmanager"
#: Real ones run for minutes (`dcgmi diag -r 3`: about 15).
DIAGNOSIS_S = 10.0
#: Tests remembered per node, so that a long simulation stays small.
DIAGNOSES_KEPT = 50
#: Bytes of a collected file that one call brings: small, so that each file takes several.
CHUNK_BYTES = 64
#: What nvidia-smi tells of the memory of GPU 0.
_MEMORY = {"remap-pending": "a row waits to be remapped", "remap-failed": "a row could not be remapped"}
_NO_HARDWARE = frozenset(
    {"fabric-manager", "fabric", "unreachable", "service-stuck", "reset-fails", "gpu-missing", *_MEMORY}
)
#: The faults that a reset of the GPU ends.
HUNG = "gpu-hung"
_ENDED_BY_RESET = (HUNG, "remap-pending")


@dataclass
class _Node:
    faults: set[str] = field(default_factory=set)
    restarts: int = 0
    #: key -> when the tests began, and what they will say.
    diagnoses: dict[str, tuple[datetime, Diagnosis]] = field(default_factory=dict)
    #: Of jobs: what is seen of each.
    jobs: dict[str, tuple[JobOnNode, JobStacks]] = field(default_factory=dict)
    #: The same of resets.
    resets: dict[str, tuple[datetime, Diagnosis]] = field(default_factory=dict)
    #: key -> when its logs began to be collected, and the file.
    collections: dict[str, tuple[datetime, bytes]] = field(default_factory=dict)


class SimNodes:
    """`ports.NodeExec` over nodes in memory; any name is a node. Time passes through the clock."""

    name = "sim"

    def __init__(self, clock: Clock, *, diagnosis_s: float = DIAGNOSIS_S, gpus: int = 8) -> None:
        self._clock, self._gpus = clock, gpus
        self._takes = timedelta(seconds=diagnosis_s)
        self._nodes: dict[str, _Node] = {}
        self._lock = threading.Lock()

    # --- ports.NodeExec ---

    def restart_service(self, node: str, service: str) -> None:
        with self._lock:
            known = self._reached(node)
            known.restarts += 1
            if service == FABRIC_MANAGER:
                known.faults.discard("fabric-manager")

    def service_active(self, node: str, service: str) -> bool:
        with self._lock:
            faults = self._reached(node).faults
            return "service-stuck" not in faults and not (
                service == FABRIC_MANAGER and "fabric-manager" in faults
            )

    def fabric_state(self, node: str) -> FabricState:
        with self._lock:
            faults = self._reached(node).faults
        if "fabric-manager" in faults:
            return FabricState(
                state="In Progress",
                status="N/A",
                healthy=False,
                text="fabric In Progress: the fabric manager does not run",
            )
        if "fabric" in faults:
            return FabricState(
                state="Completed",
                status="NVLink failure",
                healthy=False,
                text="fabric Completed: NVLink failure",
            )
        return FabricState(
            state="Completed", status="Success", healthy=True, text="fabric Completed: Success"
        )

    def memory_state(self, node: str) -> MemoryState:
        with self._lock:
            faults = self._reached(node).faults
            told = tuple(f"GPU 0: {words}" for fault, words in _MEMORY.items() if fault in faults)
            return MemoryState(gpus=self._gpus - ("gpu-missing" in faults), faults=told)

    def start_diagnosis(self, node: str, key: str) -> None:
        with self._lock:
            known = self._reached(node)
            if key in known.diagnoses:
                return
            if len(known.diagnoses) >= DIAGNOSES_KEPT:
                del known.diagnoses[next(iter(known.diagnoses))]
            known.diagnoses[key] = (self._clock.now(), _outcome(known.faults - _NO_HARDWARE))

    def diagnosis(self, node: str, key: str) -> Diagnosis | None:
        with self._lock:
            known = self._reached(node)
            if key not in known.diagnoses:
                raise NodeError(f"{node} was never asked for {key}.")
            begun, outcome = known.diagnoses[key]
            return outcome if self._clock.now() - begun >= self._takes else None

    def start_reset(self, node: str, key: str, gpu: str) -> None:
        with self._lock:
            known = self._reached(node)
            if key in known.resets:
                return
            if len(known.resets) >= DIAGNOSES_KEPT:
                del known.resets[next(iter(known.resets))]
            fails = "reset-fails" in known.faults
            if not fails:
                known.faults.difference_update(_ENDED_BY_RESET)
            words = "GPU could not be reset" if fails else f"the GPU reset is done ({_of(gpu)})"
            outcome = Diagnosis(passed=not fails, text=words, failed=("gpu-reset",) if fails else ())
            known.resets[key] = (self._clock.now(), outcome)

    def reset(self, node: str, key: str) -> Diagnosis | None:
        with self._lock:
            known = self._reached(node)
            if key not in known.resets:
                raise NodeError(f"{node} was never asked for {key}.")
            begun, outcome = known.resets[key]
            return outcome if self._clock.now() - begun >= self._takes else None

    def start_collection(self, node: str, key: str) -> None:
        with self._lock:
            known = self._reached(node)
            if key in known.collections:
                return
            if len(known.collections) >= DIAGNOSES_KEPT:
                del known.collections[next(iter(known.collections))]
            told = f"===== dmesg of {node}\n{chr(10).join(sorted(known.faults))}\n"
            known.collections[key] = (self._clock.now(), gzip.compress(told.encode(), mtime=0))

    def collection(self, node: str, key: str) -> Bundle | None:
        with self._lock:
            begun, data = self._collected(node, key)
            if self._clock.now() - begun < self._takes:
                return None
            digest = hashlib.sha256(data).hexdigest()
            return Bundle(size_bytes=len(data), sha256=digest, parts=("dmesg: 1 lines",))

    def read_collection(self, node: str, key: str, start: int) -> bytes:
        with self._lock:
            return self._collected(node, key)[1][start : start + CHUNK_BYTES]

    def _collected(self, node: str, key: str) -> tuple[datetime, bytes]:
        known = self._reached(node)
        if key not in known.collections:
            raise NodeError(f"{node} was never asked for {key}.")
        return known.collections[key]

    def job_stacks(self, node: str, job: str) -> JobStacks:
        with self._lock:
            seen = self._reached(node).jobs.get(job)
        return seen[1] if seen else JobStacks(processes=0, text=f"no Python process of job {job} is here")

    def job_on_node(self, node: str, job: str) -> JobOnNode:
        with self._lock:
            seen = self._reached(node).jobs.get(job)
        return seen[0] if seen else JobOnNode(processes=0, text=f"no process of job {job} is here")

    # --- what drives them ---

    def put_job(self, node: str, job: str, shown: JobOnNode, stacks: JobStacks) -> None:
        """What is seen of the job on the node from now on."""
        with self._lock:
            self._node(node).jobs[job] = (shown, stacks)

    def plant(self, node: str, fault: str) -> None:
        with self._lock:
            self._node(node).faults.add(fault)

    def mend(self, node: str, fault: str | None = None) -> None:
        """A technician ends one fault, or all of the node's."""
        with self._lock:
            faults = self._node(node).faults
            if fault is None:
                faults.clear()
            faults.discard(fault or "")

    def faults(self, node: str) -> list[str]:
        with self._lock:
            return sorted(self._node(node).faults)

    def restarts(self, node: str) -> int:
        """How often a service was restarted on it."""
        with self._lock:
            return self._node(node).restarts

    def diagnoses(self, node: str) -> list[str]:
        """The keys of the tests that were started on it."""
        with self._lock:
            return list(self._node(node).diagnoses)

    def resets(self, node: str) -> list[str]:
        """The keys of the resets that were started on it."""
        with self._lock:
            return list(self._node(node).resets)

    def collections(self, node: str) -> list[str]:
        """The keys under which logs were collected on it."""
        with self._lock:
            return list(self._node(node).collections)

    def _node(self, name: str) -> _Node:
        return self._nodes.setdefault(name, _Node())

    def _reached(self, name: str) -> _Node:
        known = self._node(name)
        if "unreachable" in known.faults:
            raise NodeUnavailable(f"{name} does not answer.")
        return known


def _of(gpu: str) -> str:
    return "all GPUs" if gpu == "all" else gpu


def _outcome(hardware: set[str]) -> Diagnosis:
    failed = tuple(sorted(hardware))
    if failed:
        return Diagnosis(passed=False, text=f"tests failed: {', '.join(failed)}", failed=failed)
    return Diagnosis(passed=True, text="all tests passed")


_READS: dict[str, Any] = {
    "service_active": bool,
    "fabric_state": FabricState,
    "memory_state": MemoryState,
    "diagnosis": Diagnosis | None,
    "reset": Diagnosis | None,
    "resets": list[str],
    "collection": Bundle | None,
    "read_collection": bytes,
    "collections": list[str],
    "job_stacks": JobStacks,
    "job_on_node": JobOnNode,
    "faults": list[str],
    "restarts": int,
    "diagnoses": list[str],
}
_WRITES = (
    "restart_service", "start_diagnosis", "start_reset", "start_collection", "plant", "mend", "put_job",
)  # fmt: skip


class NodesServer(CallServer):
    """Serves SimNodes on a unix socket until `stop`."""

    def __init__(self, nodes: SimNodes, socket_path: Path | str) -> None:
        super().__init__(nodes, socket_path, {*_READS, *_WRITES}, (NodeError,))


class NodesClient:
    """`ports.NodeExec`, and the calls that drive SimNodes, over the socket of a NodesServer."""

    name = "sim"

    def __init__(self, socket_path: Path | str, timeout_s: float = 10) -> None:
        self._calls = CallClient(socket_path, timeout_s)

    def close(self) -> None:
        self._calls.close()

    def restart_service(self, node: str, service: str) -> None:
        self._call("restart_service", node, service)

    def service_active(self, node: str, service: str) -> bool:
        return self._call("service_active", node, service)

    def fabric_state(self, node: str) -> FabricState:
        return self._call("fabric_state", node)

    def memory_state(self, node: str) -> MemoryState:
        return self._call("memory_state", node)

    def start_diagnosis(self, node: str, key: str) -> None:
        self._call("start_diagnosis", node, key)

    def diagnosis(self, node: str, key: str) -> Diagnosis | None:
        return self._call("diagnosis", node, key)

    def start_reset(self, node: str, key: str, gpu: str) -> None:
        self._call("start_reset", node, key, gpu)

    def reset(self, node: str, key: str) -> Diagnosis | None:
        return self._call("reset", node, key)

    def job_stacks(self, node: str, job: str) -> JobStacks:
        return self._call("job_stacks", node, job)

    def job_on_node(self, node: str, job: str) -> JobOnNode:
        return self._call("job_on_node", node, job)

    def resets(self, node: str) -> list[str]:
        return self._call("resets", node)

    def start_collection(self, node: str, key: str) -> None:
        self._call("start_collection", node, key)

    def collection(self, node: str, key: str) -> Bundle | None:
        return self._call("collection", node, key)

    def read_collection(self, node: str, key: str, start: int) -> bytes:
        return self._call("read_collection", node, key, start)

    def collections(self, node: str) -> list[str]:
        return self._call("collections", node)

    def plant(self, node: str, fault: str) -> None:
        self._call("plant", node, fault)

    def put_job(self, node: str, job: str, shown: JobOnNode, stacks: JobStacks) -> None:
        self._call("put_job", node, job, shown, stacks)

    def mend(self, node: str, fault: str | None = None) -> None:
        self._call("mend", node, fault)

    def faults(self, node: str) -> list[str]:
        return self._call("faults", node)

    def restarts(self, node: str) -> int:
        return self._call("restarts", node)

    def diagnoses(self, node: str) -> list[str]:
        return self._call("diagnoses", node)

    def _call(self, call: str, *args: Any) -> Any:
        try:
            return self._calls.call(call, _READS.get(call), *args)
        except Gone as error:
            raise NodeUnavailable(f"The simulated nodes at {error}") from error
        except CallFailed as error:
            if error.kind == "ValueError":
                raise ValueError(error.text) from error
            kind = NodeUnavailable if error.kind == "NodeUnavailable" else NodeError
            raise kind(error.text) from error


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="healer.sim.nodes", description="Simulated nodes on a unix socket.")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--diagnosis-s", type=float, default=DIAGNOSIS_S)
    options = parser.parse_args(arguments)
    setproctitle("healer sim-nodes")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    server = NodesServer(SimNodes(WallClock(), diagnosis_s=options.diagnosis_s), options.socket)
    server.start()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.stop()


if __name__ == "__main__":
    main()
