"""The simulated nodes as healer reaches them: services, the NVLink fabric, tests. In memory or on a socket.

`python -m healer.sim.nodes --socket PATH` serves them until SIGTERM. Faults live in the server (`plant`,
`faults`), so that a restart by healer ends a fault for every client.

Faults with an effect: `fabric-manager` (its service died, the fabric is not up; a restart ends it),
`fabric` (the fabric stays broken whatever is restarted), `unreachable` (the node does not answer),
`service-stuck` (a restart works, and the service dies again), `gpu-hung` (the tests fail until the GPU is
reset), `reset-fails` (no reset works), `remap-pending` (a row waits to be remapped, a reset does it),
`remap-failed` (a row could not be, and no reset helps), `gpu-missing` (nvidia-smi shows one less). Any
other name is a hardware fault that the node's tests find.
"""

import argparse
import gzip
import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from setproctitle import setproctitle

from healer.adapters.system_clock import SystemClock
from healer.model import (
    Bundle,
    Diagnosis,
    FabricState,
    GpuSeen,
    JobOnNode,
    JobStacks,
    KernelRecord,
    MemoryState,
    NodeLook,
)
from healer.ports.clock import Clock
from healer.ports.node_exec import NodeError, NodeUnavailable
from healer.sim.socket_calls import CallClient, CallFailed, CallServer, Gone
from healer.text import Said, joined, quoted, said_by, say

T = TypeVar("T")
FABRIC_MANAGER = "nvidia-fabricmanager"
#: Real ones run for minutes (`dcgmi diag -r 3`: about 15).
DIAGNOSIS_S = 10.0
#: How long nodes are up that were not said to boot.
_UP = timedelta(days=30)
#: Tests remembered per node.
DIAGNOSES_KEPT = 50
#: Bytes of a collected file per call: small, so that each file takes several.
CHUNK_BYTES = 64
#: The field of nvidia-smi about the memory of GPU 0, by fault.
_MEMORY = {"remap-pending": "pending", "remap-failed": "failed"}
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
    #: When it booted, and its kernel log since then; None: that cannot be read.
    log: tuple[datetime, tuple[KernelRecord, ...]] | None = None
    #: By job: its processes and their stacks.
    jobs: dict[str, tuple[JobOnNode, JobStacks]] = field(default_factory=dict)
    #: By key: when a test, reset or collection began, and its result.
    diagnoses: dict[str, tuple[datetime, Diagnosis]] = field(default_factory=dict)
    resets: dict[str, tuple[datetime, Diagnosis]] = field(default_factory=dict)
    collections: dict[str, tuple[datetime, bytes]] = field(default_factory=dict)


# Wide: implements `ports.NodeExec`, and lets tests plant faults and see calls.
class SimNodes:
    """`ports.NodeExec` over nodes in memory; any name is a node. Time passes through the clock."""

    name = "sim"

    def __init__(self, clock: Clock, *, diagnosis_s: float = DIAGNOSIS_S, gpus: int = 8) -> None:
        self._clock, self._gpus = clock, gpus
        self._takes = timedelta(seconds=diagnosis_s)
        self._nodes: dict[str, _Node] = {}
        self._lock = threading.Lock()

    # --- ports.NodeExec ---

    def of_run(self, run: str) -> Self:
        return self

    def restart_service(self, node: str, service: str) -> None:
        with self._lock:
            state = self._reached(node)
            state.restarts += 1
            if service == FABRIC_MANAGER:
                state.faults.discard("fabric-manager")

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
            return _fabric("In Progress", "N/A", say("nodes.sim_no_fabric_manager"))
        if "fabric" in faults:
            return _fabric("Completed", "NVLink failure", quoted("NVLink failure"))
        return _fabric("Completed", "Success", quoted("Success"))

    def memory_state(self, node: str, limit_s: float | None = None) -> MemoryState:
        with self._lock:
            faults = self._reached(node).faults
            texts = tuple(
                say("nodes.memory_of_gpu", gpu="0", why=say(f"nodes.memory_is_{name}"))
                for fault, name in _MEMORY.items()
                if fault in faults
            )
            shown = {name: fault in faults for fault, name in _MEMORY.items()}
            return MemoryState(gpus=self._gpus - ("gpu-missing" in faults), faults=texts, shown=shown)

    def second_look(self, node: str, opening: str, pci: str | None, limit_s: float) -> NodeLook:
        with self._lock:
            state, now = self._reached(node), self._clock.now()
            if state.log is None:
                return NodeLook(up_s=_UP.total_seconds())
            booted_at, records = state.log
            shown = tuple(record for record in records if _plain(record.text).startswith(opening))
            lost = "gpu-missing" in state.faults
            gpu = GpuSeen.unknown if pci is None or shown else GpuSeen.lost if lost else GpuSeen.answers
            up_s = (now - booted_at).total_seconds()
            return NodeLook(up_s=up_s, log_from_s=0.0, records=shown, gpu=gpu)

    def start_diagnosis(self, node: str, key: str) -> None:
        with self._lock:
            state = self._reached(node)
            self._begin(state.diagnoses, key, lambda: _outcome(state.faults - _NO_HARDWARE))

    def diagnosis(self, node: str, key: str) -> Diagnosis | None:
        with self._lock:
            return self._ended(node, self._reached(node).diagnoses, key)

    def start_reset(self, node: str, key: str, gpu: str) -> None:
        with self._lock:
            state = self._reached(node)
            self._begin(state.resets, key, lambda: _reset(state, gpu))

    def reset(self, node: str, key: str) -> Diagnosis | None:
        with self._lock:
            return self._ended(node, self._reached(node).resets, key)

    def start_collection(self, node: str, key: str) -> None:
        with self._lock:
            state = self._reached(node)
            text = f"===== dmesg of {node}\n{chr(10).join(sorted(state.faults))}\n"
            self._begin(state.collections, key, lambda: gzip.compress(text.encode(), mtime=0))

    def collection(self, node: str, key: str) -> Bundle | None:
        with self._lock:
            data = self._ended(node, self._reached(node).collections, key)
        if data is None:
            return None
        digest = hashlib.sha256(data).hexdigest()
        return Bundle(size_bytes=len(data), sha256=digest, parts=("dmesg: 1 lines",))

    def read_collection(self, node: str, key: str, start: int) -> bytes:
        with self._lock:
            _, data = _begun(node, self._reached(node).collections, key)
            return data[start : start + CHUNK_BYTES]

    def _begin(self, begun: dict[str, tuple[datetime, T]], key: str, outcome: Callable[[], T]) -> None:
        """Once for each key."""
        if key not in begun:
            if len(begun) >= DIAGNOSES_KEPT:
                del begun[next(iter(begun))]
            begun[key] = (self._clock.now(), outcome())

    def _ended(self, node: str, begun: dict[str, tuple[datetime, T]], key: str) -> T | None:
        at, outcome = _begun(node, begun, key)
        return outcome if self._clock.now() - at >= self._takes else None

    def job_stacks(self, node: str, job: str) -> JobStacks:
        with self._lock:
            seen = self._reached(node).jobs.get(job)
        return seen[1] if seen else JobStacks(processes=0, text=say("nodes.node_no_python", job=job))

    def job_on_node(self, node: str, job: str) -> JobOnNode:
        with self._lock:
            seen = self._reached(node).jobs.get(job)
        return (
            seen[0]
            if seen
            else JobOnNode(processes=0, counted=True, text=say("nodes.node_no_process", job=job))
        )

    # --- control ---

    def keep_log(self, node: str, *records: str, booted_at: datetime | None = None) -> None:
        """From now on the node has a kernel log, with these records added now. `booted_at`: it boots then,
        and its log begins; without it a first log begins long ago."""
        with self._lock:
            state, now = self._node(node), self._clock.now()
            began, kept = state.log or (now - _UP, ())
            if booted_at is not None:
                began, kept = booted_at, ()
            at_s = (now - began).total_seconds()
            state.log = (began, (*kept, *(KernelRecord(at_s, text) for text in records)))

    def put_job(self, node: str, job: str, shown: JobOnNode, stacks: JobStacks) -> None:
        """Sets what the node shows of the job."""
        with self._lock:
            self._node(node).jobs[job] = (shown, stacks)

    def plant(self, node: str, fault: str) -> None:
        with self._lock:
            self._node(node).faults.add(fault)

    def mend(self, node: str, fault: str | None = None) -> None:
        """Removes one fault, or all of the node's."""
        with self._lock:
            faults = self._node(node).faults
            if fault is None:
                faults.clear()
            faults.discard(fault or "")

    def faults(self, node: str) -> list[str]:
        with self._lock:
            return sorted(self._node(node).faults)

    def restarts(self, node: str) -> int:
        """Number of service restarts on the node."""
        with self._lock:
            return self._node(node).restarts

    def diagnoses(self, node: str) -> list[str]:
        """Keys of the tests started on the node."""
        with self._lock:
            return list(self._node(node).diagnoses)

    def resets(self, node: str) -> list[str]:
        """Keys of the resets started on the node."""
        with self._lock:
            return list(self._node(node).resets)

    def collections(self, node: str) -> list[str]:
        """Keys of the log collections on the node."""
        with self._lock:
            return list(self._node(node).collections)

    def _node(self, name: str) -> _Node:
        return self._nodes.setdefault(name, _Node())

    def _reached(self, name: str) -> _Node:
        node = self._node(name)
        if "unreachable" in node.faults:
            raise NodeUnavailable(say("nodes.sim_silent", node=name))
        return node


def _plain(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isascii() and letter.isalnum())


def _fabric(state: str, status: str, words: Said) -> FabricState:
    text = say("nodes.sim_fabric", state=state, words=words)
    return FabricState(state=state, status=status, healthy=status == "Success", text=text)


def _begun(node: str, begun: dict[str, tuple[datetime, T]], key: str) -> tuple[datetime, T]:
    if key not in begun:
        raise NodeError(say("nodes.never_asked", node=node, key=key))
    return begun[key]


def _reset(node: _Node, gpu: str) -> Diagnosis:
    if "reset-fails" in node.faults:
        return Diagnosis(passed=False, text=say("nodes.sim_reset_failed"), failed=(quoted("gpu-reset"),))
    node.faults.difference_update(_ENDED_BY_RESET)
    what = say("nodes.reset_all_gpus") if gpu == "all" else gpu
    return Diagnosis(passed=True, text=say("nodes.reset_done", what=what))


def _outcome(hardware: set[str]) -> Diagnosis:
    failed = tuple(map(quoted, sorted(hardware)))
    if failed:
        return Diagnosis(
            passed=False, text=say("nodes.tests_failed", tests=joined(failed, "comma")), failed=failed
        )
    return Diagnosis(passed=True, text=say("nodes.sim_tests_passed"))


class NodesServer(CallServer):
    """Serves SimNodes on a unix socket until `stop`."""

    def __init__(self, nodes: SimNodes, socket_path: Path | str) -> None:
        super().__init__(nodes, socket_path, (NodeError,))


if TYPE_CHECKING:

    class _Called(SimNodes, CallClient): ...  # the client has its methods
else:
    _Called = CallClient


class NodesClient(_Called):
    """`ports.NodeExec`, and the calls that drive SimNodes, over the socket of a NodesServer."""

    name = "sim"

    def __init__(self, socket_path: Path | str, timeout_s: float = 10) -> None:
        CallClient.__init__(self, SimNodes, socket_path, timeout_s, _error_of)

    def of_run(self, run: str) -> Self:
        return self


def _error_of(error: Gone | CallFailed) -> Exception:
    if isinstance(error, Gone):
        return NodeUnavailable(say("nodes.sim_gone", error=said_by(error)))
    errors = {"ValueError": ValueError, "NodeUnavailable": NodeUnavailable}
    return errors.get(error.kind, NodeError)(error.text)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="healer.sim.nodes", description="Simulated nodes on a unix socket.")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--diagnosis-s", type=float, default=DIAGNOSIS_S)
    options = parser.parse_args(arguments)
    setproctitle("healer sim-nodes")
    NodesServer(SimNodes(SystemClock(), diagnosis_s=options.diagnosis_s), options.socket).run()


if __name__ == "__main__":
    main()
