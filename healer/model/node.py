"""Answers of a node that is asked directly, and what is stored about nodes."""

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from healer.model.slurm import SlurmNode
from healer.text import Said, no_words


class LastContact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a node was last heard: by a heartbeat of its follower, by a Slurm hook. None: not recently.

    `lines_lost` are kernel lines that its follower could not deliver, in all. `clock_skew_s`: how far the
    node's clock is ahead of healer's (below 0: behind), by its fastest message; None: it sent no time.
    """

    heartbeat_at: datetime | None = None
    hook_at: datetime | None = None
    lines_lost: int = 0
    clock_skew_s: float | None = None


class FabricState(msgspec.Struct, frozen=True, kw_only=True):
    """NVLink fabric of a node by nvidia-smi, the worst GPU's words. `healthy` only if state, status, clique
    and cluster UUID are all good (facts: gpu_faults_and_peers.md, c.7)."""

    state: str
    status: str
    healthy: bool
    text: Said = msgspec.field(default_factory=no_words)


class MemoryState(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a node's GPUs by nvidia-smi. `gpus`: how many it shows; `faults`: a sentence for each whose
    memory is faulty; `shown`: by the kind of fault whether one of them has it, without those kinds that one
    of them does not report."""

    gpus: int
    faults: tuple[Said, ...] = ()
    shown: dict[str, bool] = {}


class GpuSeen(StrEnum):
    """A GPU by nvidia-smi on its node. `lost`: the driver has it, and nvidia-smi does not reach it."""

    answers = "answers"
    lost = "lost"
    unknown = "unknown"


class KernelRecord(msgspec.Struct, frozen=True):
    """One record of a node's own kernel log; `at_s`: seconds since the boot."""

    at_s: float
    text: str


class NodeLook(msgspec.Struct, frozen=True, kw_only=True):
    """What a node shows of a claim. `up_s`: seconds since its boot; `log_from_s`: the oldest record that its
    kernel log of this boot still has, None where it cannot be read; `records`: those with the claim's words;
    `gpu`: the GPU that is named, where the log had none of them."""

    up_s: float
    log_from_s: float | None = None
    records: tuple[KernelRecord, ...] = ()
    gpu: GpuSeen = GpuSeen.unknown


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """A finished test of a node. `failed` names the tests that did not pass, with what they said."""

    passed: bool
    text: Said
    failed: tuple[Said, ...] = ()


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """Stack of one process: by thread, the innermost frame first, each `name (file:line)`."""

    pid: int
    threads: dict[str, tuple[str, ...]]


class JobStacks(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a job's processes on one node. `text` says what could not be read; empty: all was."""

    processes: int
    stacks: tuple[Stack, ...] = ()
    text: Said = msgspec.field(default_factory=no_words)


#: An idle GPU, and one that only waits for others: NCCL's kernel spins, so nvidia-smi shows full use, at a
#: fraction of the power that training draws. Our own figures.
IDLE_PERCENT, WAITING_OF_LIMIT = 5.0, 0.5


class GpuActivity(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU does now; None: not reported by nvidia-smi."""

    pci: str
    util_percent: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None


class RecorderFile(msgspec.Struct, frozen=True, kw_only=True):
    """The dump of NCCL's flight recorder for one rank, `at` by the node's clock. `data` is as written by the
    job, so not to be trusted; None: too large to transfer."""

    rank: int
    at: datetime
    data: bytes | None = None


class JobOnNode(msgspec.Struct, frozen=True, kw_only=True):
    """A job on one node, where it may hang. `text` says what could not be read. `counted`: Slurm itself says
    that these are all of its processes there."""

    processes: int
    counted: bool = False
    gpus: tuple[GpuActivity, ...] = ()
    dumps: tuple[RecorderFile, ...] = ()
    text: Said = msgspec.field(default_factory=no_words)


#: Facts that are compared; `words.fact_*` names them. Each value is a text; for several GPUs or cards all
#: different values, sorted and joined by a comma.
FACTS = (
    "driver", "cuda", "vbios", "gsp_firmware", "inforom", "fabric_manager", "nic_firmware", "nic_driver",
    "bios", "bmc", "kernel", "os", "mtu", "nccl", "container", "slurm", "nvlink_domain", "gpu",
)  # fmt: skip
#: A node's place, which differs between racks; and what its kind already implies.
NOT_COMPARED = frozenset({"nvlink_domain", "gpu"})
#: Maximum length of one value, in characters.
FACT_MAX = 128
#: Test results that are compared with the reference node's figure, by the end of their name.
FIGURES = ("_per_s", "_count")
#: A rate must reach this share of the reference node's.
FIGURE_SHARE = 0.9
_NUMBER = re.compile(r"\d{1,18}(\.\d{1,9})?")


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """What nodes of one kind (a GPU model as Slurm names it) should be, taken from one that is good.

    `by` is who took it. A fact that is not in it is not compared. `figures` are what the node's newest test
    that passed measured, by the name of the result.
    """

    cluster: str
    kind: str
    node: str
    at: datetime
    by: str
    facts: dict[str, str]
    figures: dict[str, float] = {}


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """What a node reported of itself, and when any of it last changed.

    `changed`: the new value of a fact and when healer saw it change. `earlier`: changes before those, over a
    year, which the store keeps. `booted_at`: when healer heard of a new boot; None: of none since it began to
    look. `worked_until`: when planned work on the node ended last; `in_work`: Slurm showed it in planned
    work then; `in_window`: it was in a window of the site's list.
    """

    node: str
    at: datetime
    facts: dict[str, str]
    changed: dict[str, tuple[str, datetime]] = {}
    earlier: list[tuple[str, str, datetime]] = []
    booted_at: datetime | None = None
    worked_until: datetime | None = None
    in_work: bool = False
    in_window: bool = False


def figures_in(results: Mapping[str, str]) -> dict[str, float]:
    """The results of a test that are compared, by name; non-numbers are left out."""
    return {
        name: float(value)
        for name, value in results.items()
        if name.endswith(FIGURES) and _NUMBER.fullmatch(value)
    }


def rates_in(results: Mapping[str, str]) -> dict[str, float]:
    """The results of a test that are rates (higher is better), by name."""
    return {name: value for name, value in figures_in(results).items() if name.endswith("_per_s")}


def node_kind(gpu_model: str) -> str:
    """The kind of a node, by which references are stored; nodes without GPUs are of the kind `cpu`."""
    return gpu_model.lower() or "cpu"


def merged_facts(shown: SlurmNode | None, reported: Mapping[str, str] | None) -> dict[str, str]:
    """Facts of a node: those that it reported, and the driver from the Slurm snapshot."""
    by_slurm = {"driver": shown.driver} if shown is not None and shown.driver else {}
    return by_slurm | dict(reported or {})


def differences(facts: Mapping[str, str], reference: Reference) -> dict[str, str]:
    """Facts where the node differs from the reference, with the node's value."""
    wanted = reference.facts
    compared = wanted.keys() - NOT_COMPARED
    return {name: value for name, value in facts.items() if name in compared and value != wanted[name]}


#: `PowerState` of Redfish's ComputerSystem; a vendor's additional states count as neither on nor off.
ON, OFF = "On", "Off"


class ResetKind(StrEnum):
    """The values of Redfish's `ResetType` that healer uses."""

    power_cycle = "PowerCycle"
    force_off = "ForceOff"
    on = "On"


class Power(msgspec.Struct, frozen=True, kw_only=True):
    """`state`: the BMC's own word, empty if it gives none. `system`: the Redfish system that was asked.
    `target`: the URL for a reset. `kinds`: the resets it accepts; empty if it does not say."""

    state: str
    system: str
    target: str
    kinds: tuple[str, ...] = ()


class CommandKind(StrEnum):
    acknowledge = "acknowledge"
    assign = "assign"  # as acknowledged by another person
    resolve = "resolve"
    reopen = "reopen"
    merge = "merge"
    split = "split"  # pyright: ignore[reportAssignmentType] - a word of the contract
    review = "review"
    run_changed = "run_changed"  # a run started, waits, ended, got stuck
    jobs_hit = "jobs_hit"  # listed after the drain was read back
    node_returned = "node_returned"
    test_failed = "test_failed"  # a sweep's test of a node in service


class Command(msgspec.Struct, frozen=True, kw_only=True):
    kind: CommandKind
    cluster: str
    at: datetime
    by: str
    incident: str | None = None
    reason: Said = msgspec.field(default_factory=no_words)
    data: dict[str, Any] = {}


class SiteCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One of a fixed list. `argv`: the program and its arguments, with placeholders like `{node}`; nothing is
    interpreted as by a shell. `takes_capacity`: it ends or slows work on the node, which must be drained and
    empty first.
    """

    name: str
    title: str
    argv: tuple[str, ...]
    timeout_s: float
    takes_capacity: bool = False


class CommandSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command that was started under a key.

    `state`: `never` (no record of it here), `running`, `ended` (then `code` is its exit status, below 0 the
    signal that ended it), `timed_out` (it was killed), `lost` (cut short at an unknown point).
    `output`: the end of what it printed.
    """

    state: str
    code: int | None = None
    output: str = ""


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A node's record of the last weeks: `faults` of its hardware (when it began, its name), repair `tickets`
    (when), and the share of the last two weeks, 0..1, that it was `out` of service for a fault."""

    node: str
    faults: tuple[tuple[datetime, str], ...] = ()
    tickets: tuple[datetime, ...] = ()
    out: float = 0.0


class Figure(msgspec.Struct, frozen=True):
    """A rate that a test measured (`gemm_tflop_per_s`): the higher the better."""

    value: float
    at: datetime


class NodeFigures(msgspec.Struct, frozen=True):
    """The newest figure by name."""

    node: str
    figures: dict[str, Figure]


class FleetFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure compared with `nodes` nodes of its model: their `median`, and their `spread` (a robust
    standard deviation). `low`: too far below the median."""

    name: str
    value: float
    at: datetime
    median: float
    spread: float
    nodes: int
    low: bool = False


class NodeComparison(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is the model of its GPUs. The figures by name."""

    cluster: str
    node: str
    kind: str
    figures: tuple[FleetFigure, ...]


class LemonPart(msgspec.Struct, frozen=True, kw_only=True):
    """What one signal adds: `count` as far as it has faded, and the `points` for it; `text` for people."""

    signal: str
    count: float
    points: float
    text: Said


class LemonScore(msgspec.Struct, frozen=True, kw_only=True):
    """`score` is the sum of the points of `parts`; a fault of today alone is 1."""

    cluster: str
    node: str
    score: float
    parts: tuple[LemonPart, ...] = ()


class DriftKind(StrEnum):
    """`docs/concepts.md` explains them."""

    forgotten_drain = "forgotten_drain"
    idle_slot = "idle_slot"
    left_reservation = "left_reservation"
    left_note = "left_note"
    left_exclusion = "left_exclusion"
    unknown_node = "unknown_node"


class Repair(StrEnum):
    """How a drift is repaired. What changes Slurm is a run: the gate judges it, and a worker does it."""

    validate = "validate"
    release = "release"
    free_slot = "free_slot"
    end_reservation = "end_reservation"
    clear_note = "clear_note"
    cancel_run = "cancel_run"


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """`what` and `would` are sentences for people; `name` is the reservation, job or run that it is about."""

    kind: DriftKind
    cluster: str
    what: Said
    would: Said
    repair: Repair
    node: str | None = None
    name: str = ""
    since: datetime | None = None


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one repair. `done` False: nothing was done, and `text` says why."""

    drift: Drift
    done: bool
    text: Said
    run: str | None = None
