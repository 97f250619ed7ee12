"""What healer does on nodes, at their BMCs and with programs of the site; where collected files are kept."""

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
from healer.text import Said


class NodeError(UserError):
    """The node refused or could not be reached. The text is one sentence for people."""

    def __init__(self, text: Said) -> None:
        super().__init__(text)


class NodeUnavailable(NodeError):
    """No answer, or none in time: it is unknown whether anything happened. Read back before any retry.

    `sent` is False where it is certain that nothing reached the node.
    """

    def __init__(self, text: Said, *, sent: bool = True) -> None:
        super().__init__(text)
        self.sent = sent


# Wide: one method for each command that `healer-node` carries out.
class NodeExec(Protocol):
    """What healer may do on a node itself. Every call is bounded in time; callers read back."""

    name: str

    def of_run(self, run: str) -> "NodeExec":
        """The same in the name of this run: nodes change nothing for others, and write the run down."""
        ...

    def restart_service(self, node: str, service: str) -> None: ...
    def service_active(self, node: str, service: str) -> bool: ...

    def fabric_state(self, node: str) -> FabricState:
        """The NVLink fabric by nvidia-smi on the node."""
        ...

    def memory_state(self, node: str, limit_s: float | None = None) -> MemoryState:
        """Rows that wait to be remapped or could not be, by nvidia-smi on the node. NodeError if it does not
        report them. The call ends within `limit_s`, where that is given.
        """
        ...

    def second_look(self, node: str, opening: str, pci: str | None, limit_s: float) -> NodeLook:
        """What the node's kernel log of this boot and nvidia-smi show of a claim. `opening`: how the record
        begins, in small letters and digits alone, 8 to 160 of them; `pci`: the GPU that is named. The call
        ends within `limit_s`.
        """
        ...

    def start_diagnosis(self, node: str, key: str) -> None: ...

    def diagnosis(self, node: str, key: str) -> Diagnosis | None:
        """Its result; None while it runs. Raises NodeError for a key that was never started."""
        ...

    def start_reset(self, node: str, key: str, gpu: str) -> None:
        """Begins to reset a GPU, by its PCI address as `0000:9b:00.0`, or `all`; the same key again is
        nothing. What serves the GPU stops for it and starts again. NodeError where a process holds it.
        """

    def reset(self, node: str, key: str) -> Diagnosis | None:
        """Its outcome, in the form of `diagnosis`; NodeError also if it was cut short."""
        ...

    def start_collection(self, node: str, key: str) -> None:
        """Begins to put logs and NVIDIA's bug report into one file; the same key again is nothing."""

    def collection(self, node: str, key: str) -> Bundle | None:
        """The file; None while it is made. NodeError for a key that was never started or was cut short."""
        ...

    def read_collection(self, node: str, key: str, start: int) -> bytes:
        """Its bytes from there on, as many as one call brings; none at its end."""
        ...

    def job_stacks(self, node: str, job: str) -> JobStacks:
        """Stacks of some Python processes of the job. None of them is stopped for it."""
        ...

    def job_on_node(self, node: str, job: str) -> JobOnNode:
        """What the node's GPUs do now, and what NCCL's flight recorder has left of the job's ranks."""
        ...


class BmcError(Exception):
    """The BMC refused, or what it said cannot be used: nothing was done. The text is for people."""


class BmcUnavailable(BmcError):
    """No answer, or none in time. `sent` is False where it is certain that nothing came of it: it was not
    reached, or said that it is busy. `after_s`: how long it asks to be left alone."""

    def __init__(self, text: Said, *, sent: bool = True, after_s: float | None = None) -> None:
        super().__init__(text)
        self.sent, self.after_s = sent, after_s


class Bmc(Protocol):
    """Every call is bounded in time. A BMC knows no key: the same reset twice is two resets."""

    name: str

    def power(self, node: str) -> Power: ...

    def reset(self, node: str, target: str, kind: ResetKind) -> str | None:
        """Asks once. `target` as `power` named it. The address of its task, where it goes on by itself."""
        ...

    def task_failed(self, node: str, task: str) -> str | None:
        """Why a task came to nothing, in the BMC's words; None: it runs, went well, or is unknown."""
        ...


class CommandFailed(Exception):
    """The command surely did not begin. One sentence."""


class SiteCommands(Protocol):
    """Programs of the site on this machine. Each is started once under a key, and outlives who asked."""

    def start(self, key: str, argv: tuple[str, ...], timeout_s: float) -> None:
        """Starts it without a shell and does not wait; the same key is nothing new. Raises CommandFailed."""

    def look(self, key: str) -> CommandSeen: ...

    def place(self) -> str:
        """Where its records lie: what was started at another place is not seen here. Raises
        CommandFailed."""
        ...


class EvidenceBroken(Exception):
    """What was stored is not the file that the node announced. It is dropped."""


class EvidenceBook(Protocol):
    """Where collected files are kept, piece by piece. Raises LedgerAway. Readers see whole files alone."""

    def stored(self, file: str) -> int:
        """How many of its bytes are here; 0 for one that was never begun."""
        ...

    def add(self, file: EvidenceFile, start: int, data: bytes) -> None:
        """Stores one piece; the same piece again is nothing. Pieces come in their order."""

    def finish(self, file: EvidenceFile) -> None:
        """All pieces are here: from now on it is shown. Again is nothing. Raises EvidenceBroken."""

    def files(self, *, incident: str | None = None, run: str | None = None) -> list[EvidenceFile]:
        """The finished ones of an incident or a run, oldest first."""
        ...

    def file(self, file: str) -> EvidenceFile | None: ...
    def content(self, file: str) -> bytes: ...
