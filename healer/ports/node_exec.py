"""Actions on nodes, through their BMCs and through programs of the site; and storage of collected files."""

from typing import Protocol

from healer.model import (
    Bundle,
    CommandSeen,
    Diagnosis,
    EvidenceFile,
    FabricState,
    JobOnNode,
    JobStacks,
    MemoryState,
    NodeLook,
    Power,
    ResetKind,
)
from healer.model.vocabulary import UserError
from healer.text import Said, SaidError


class NodeError(SaidError, UserError):
    """The node refused or could not be reached. The text is one sentence for people."""


class NodeUnavailable(NodeError):
    """No answer, or none in time: it is unknown whether anything happened. Read back before any retry.

    `sent` is False if it is certain that nothing reached the node.
    """

    def __init__(self, text: Said, *, sent: bool = True) -> None:
        super().__init__(text)
        self.sent = sent


# Wide: one method per command of `healer-node`.
class NodeExec(Protocol):
    """What healer may do on a node itself. Every call is bounded in time; callers read back."""

    name: str

    def of_run(self, run: str) -> "NodeExec":
        """The same, in the name of this run: nodes change nothing without one, and record the run."""
        ...

    def restart_service(self, node: str, service: str) -> None: ...
    def service_active(self, node: str, service: str) -> bool: ...

    def fabric_state(self, node: str) -> FabricState:
        """The NVLink fabric by nvidia-smi on the node."""
        ...

    def memory_state(self, node: str, limit_s: float | None = None) -> MemoryState:
        """Pending and failed row remaps, by nvidia-smi on the node. Raises NodeError if it does not report
        them. The call ends within `limit_s`, if given.
        """
        ...

    def second_look(self, node: str, opening: str, pci: str | None, limit_s: float) -> NodeLook:
        """What the node's kernel log of this boot and nvidia-smi show about a claim. `opening`: how the
        record begins, in lower-case letters and digits only, 8 to 160 of them; `pci`: the named GPU. The call
        ends within `limit_s`.
        """
        ...

    def start_diagnosis(self, node: str, key: str) -> None: ...

    def diagnosis(self, node: str, key: str) -> Diagnosis | None:
        """Its result; None while it runs. Raises NodeError for a key that was never started."""
        ...

    def start_reset(self, node: str, key: str, gpu: str) -> None:
        """Starts resetting a GPU, by its PCI address as `0000:9b:00.0`, or `all`; repeating the key has no
        effect. Services that use the GPU are stopped and restarted. Raises NodeError if a process holds it.
        """

    def reset(self, node: str, key: str) -> Diagnosis | None:
        """Its outcome, in the form of `diagnosis`; also raises NodeError if it was cut short."""
        ...

    def start_collection(self, node: str, key: str) -> None:
        """Starts collecting logs and NVIDIA's bug report into one file; repeating the key has no effect."""

    def collection(self, node: str, key: str) -> Bundle | None:
        """The file; None while it is being made. Raises NodeError for a key that was never started or was cut
        short."""
        ...

    def read_collection(self, node: str, key: str, start: int) -> bytes:
        """Its bytes from there on, as many as fit into one call; empty at its end."""
        ...

    def job_stacks(self, node: str, job: str) -> JobStacks:
        """Stacks of some Python processes of the job. None of them is stopped for it."""
        ...

    def job_on_node(self, node: str, job: str) -> JobOnNode:
        """What the node's GPUs do now, and the dumps of NCCL's flight recorder for the job's ranks."""
        ...


class BmcError(Exception):
    """The BMC refused, or its answer is unusable: nothing was done. The text is for people."""


class BmcUnavailable(BmcError):
    """No answer, or none in time. `sent` is False if it is certain that nothing happened: the BMC was not
    reached, or was busy. `after_s`: the delay that it asks for."""

    def __init__(self, text: Said, *, sent: bool = True, after_s: float | None = None) -> None:
        super().__init__(text)
        self.sent, self.after_s = sent, after_s


class Bmc(Protocol):
    """Every call is bounded in time. A BMC has no idempotency keys: the same reset twice is two resets."""

    name: str

    def power(self, node: str) -> Power: ...

    def reset(self, node: str, target: str, kind: ResetKind) -> str | None:
        """Sends the request once. `target` as named by `power`. Returns the address of its task, if it
        continues in the background."""
        ...

    def task_failed(self, node: str, task: str) -> str | None:
        """Why a task failed, in the BMC's words; None: it runs, succeeded, or is unknown."""
        ...


class CommandFailed(Exception):
    """The command certainly did not begin. One sentence."""


class SiteCommands(Protocol):
    """Programs of the site on this machine. Each is started once under a key, and outlives its caller."""

    def start(self, key: str, argv: tuple[str, ...], timeout_s: float) -> None:
        """Starts it without a shell and does not wait; repeating the key has no effect. Raises
        CommandFailed."""

    def look(self, key: str) -> CommandSeen: ...

    def place(self) -> str:
        """The location of its records: commands started elsewhere cannot be seen here. Raises
        CommandFailed."""
        ...


class EvidenceBroken(Exception):
    """The stored data is not the file that the node announced. It is dropped."""


class EvidenceBook(Protocol):
    """Storage of collected files, piece by piece. Raises LedgerAway. Readers see only complete files."""

    def stored(self, file: str) -> int:
        """The number of its bytes stored so far; 0 if it was never begun."""
        ...

    def add(self, file: EvidenceFile, start: int, data: bytes) -> None:
        """Stores one piece; repeating it has no effect. Pieces come in order."""

    def finish(self, file: EvidenceFile) -> None:
        """All pieces are stored: from now on the file is shown. Repeating it has no effect. Raises
        EvidenceBroken."""

    def files(self, *, incident: str | None = None, run: str | None = None) -> list[EvidenceFile]:
        """Finished files of an incident or a run, oldest first."""
        ...

    def file(self, file: str) -> EvidenceFile | None: ...
    def content(self, file: str) -> bytes: ...
