"""What a node itself answers when it is asked."""

from datetime import datetime

import msgspec


class LastHeard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a node last spoke: by a heartbeat (the follower's), by one of Slurm's hooks. None: not of late.

    `lines_lost` are kernel lines that its follower could not deliver, in all. `clock_skew_s`: by how much the
    node's clock is ahead of healer's (below 0: behind), by the quickest of its words; None: it told no time.
    """

    heartbeat_at: datetime | None = None
    hook_at: datetime | None = None
    lines_lost: int = 0
    clock_skew_s: float | None = None


class FabricState(msgspec.Struct, frozen=True, kw_only=True):
    """NVLink fabric of a node as nvidia-smi tells it, the worst GPU's words. `healthy` only if all of
    state, status, clique and cluster UUID are good (facts: gpu_faults_and_peers.md, c.7)."""

    state: str
    status: str
    healthy: bool
    text: str = ""


class MemoryState(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a node's GPUs as nvidia-smi tells it. `gpus`: how many it shows; `faults`: a sentence for
    each whose memory is not as it should be."""

    gpus: int
    faults: tuple[str, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """A finished test of a node. `failed` names the tests that did not pass, with what they said."""

    passed: bool
    text: str
    failed: tuple[str, ...] = ()


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """Where one process stands: by thread, the innermost frame first, each `name (file:line)`."""

    pid: int
    threads: dict[str, tuple[str, ...]]


class JobStacks(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a job's processes on one node. `text` says what could not be read; empty: all was."""

    processes: int
    stacks: tuple[Stack, ...] = ()
    text: str = ""


#: A GPU that does nothing, and one that only waits for others: NCCL's kernel spins, so nvidia-smi shows full
#: use, at a fraction of the power that training draws. Our own figures.
IDLE_PERCENT, WAITING_OF_LIMIT = 5.0, 0.5


class GpuActivity(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU does now; None: nvidia-smi does not tell."""

    pci: str
    util_percent: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None


class RecorderFile(msgspec.Struct, frozen=True, kw_only=True):
    """What NCCL's flight recorder wrote for one rank, `at` by the node's clock. `data` is as the job wrote
    it, and not to be believed; None: larger than what is carried."""

    rank: int
    at: datetime
    data: bytes | None = None


class JobOnNode(msgspec.Struct, frozen=True, kw_only=True):
    """A job on one node, as it may hang there. `text` says what could not be read."""

    processes: int
    gpus: tuple[GpuActivity, ...] = ()
    dumps: tuple[RecorderFile, ...] = ()
    text: str = ""
