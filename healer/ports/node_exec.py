"""What healer does on a node itself."""

from typing import Protocol

from healer.model import Bundle, Diagnosis, FabricState, JobOnNode, JobStacks, MemoryState


class NodeError(Exception):
    """The node refused or could not be reached. The text is one sentence for people."""


class NodeUnavailable(NodeError):
    """No answer, or none in time: it is unknown whether anything happened. Read back before any retry.

    `sent` is False where it is certain that nothing reached the node.
    """

    def __init__(self, text: str, *, sent: bool = True) -> None:
        super().__init__(text)
        self.sent = sent


# Wide: one method for each command that `healer-node` carries out.
class NodeExec(Protocol):
    """What healer may do on a node itself. Every call is bounded in time; callers read back."""

    name: str

    def restart_service(self, node: str, service: str) -> None: ...

    def service_active(self, node: str, service: str) -> bool: ...

    def fabric_state(self, node: str) -> FabricState:
        """The NVLink fabric as nvidia-smi on the node tells it."""
        ...

    def memory_state(self, node: str) -> MemoryState:
        """Rows that wait to be remapped or could not be, by nvidia-smi on the node. NodeError where it does
        not tell."""
        ...

    def start_diagnosis(self, node: str, key: str) -> None:
        """Starts the node's tests; the same key again is nothing."""
        ...

    def diagnosis(self, node: str, key: str) -> Diagnosis | None:
        """Its result; None while it runs. Raises NodeError for a key that was never started."""
        ...

    def start_reset(self, node: str, key: str, gpu: str) -> None:
        """Begins to reset a GPU, by its PCI address as `0000:9b:00.0`, or `all`; the same key again is
        nothing. What serves the GPU stops for it and starts again. NodeError where a process holds it."""
        ...

    def reset(self, node: str, key: str) -> Diagnosis | None:
        """What came of it, as `diagnosis` tells of tests; NodeError also where it was cut short."""
        ...

    def start_collection(self, node: str, key: str) -> None:
        """Begins to put logs and NVIDIA's bug report into one file; the same key again is nothing."""
        ...

    def collection(self, node: str, key: str) -> Bundle | None:
        """The file; None while it is made. NodeError for a key that was never started or was cut short."""
        ...

    def read_collection(self, node: str, key: str, start: int) -> bytes:
        """Its bytes from there on, as many as one call brings; none at its end."""
        ...

    def job_stacks(self, node: str, job: str) -> JobStacks:
        """Where some Python processes of the job stand. None of them is stopped for it."""
        ...

    def job_on_node(self, node: str, job: str) -> JobOnNode:
        """What the node's GPUs do now, and what NCCL's flight recorder has left of the job's ranks."""
        ...
