"""The names of faults and their properties, as one table that every stage uses; and how faults repeat:
bursts, escalations, ladders.

Most names come from the driver and from `rules/`; those of healer's own code are listed here in full.
"""

import re
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache

import msgspec

from healer.model.vocabulary import Cause, FaultClass, Mode, PlaceKind, Remedy, Severity

#: Prefixes of names; then follow the rule of an alert, a check of the node's own hooks, a test (`compared`:
#: all passed, but a figure is worse than the reference node's), the fault that came too often, the name of a
#: forecast.
ALERT_FAULT = "alert:"
HOOK_FAULT = "hook:"
TEST_FAULT = "node-test:"
REPEATS = "repeats:"
FORECAST_FAULT = "forecast-"
#: Prefix of the fault of a shared place's incident; its rule's name follows.
SHARED_FAULT = "shared:"
#: The same for a wave; the rule of the single incidents follows.
WAVE_FAULT = "wave:"
WAVE_RULE = "wave"

LEMON = "lemon"
#: A job that is slow as a whole, and one that makes no step at all: reported on the job, not on a node.
JOB_SLOW, HANG = "job-slow", "hang"
#: A node's own fault with which its job stopped: the kernel and the job's ranks agree.
STOPPED_JOB = "node-stopped-job"
#: A new boot of a node while a job ran there.
REBOOTED = "rebooted-under-job"
#: The fault of a marker burst: another part is at this address now.
REPLACED = "part-replaced"
#: From `rules/kernel_lines.yaml`: a client's report that a file server is unreachable, and that it is back.
SERVER_AWAY, SERVER_BACK = "fs-server-away", "fs-server-back"
#: The kernel's report that a port of a network card lost its link, that it is back, and that it stays down.
LINK_LOST, LINK_BACK, PORT_STAYS_DOWN = "nic-link-down", "nic-link-up", "nic-stays-down"
#: Xid 154 back to None: the driver no longer requests anything.
ASKS_NOTHING = "driver-asks-none"
#: A drain by healer that no run and no incident accounts for.
HEALER_DRAIN = "healer-drain"
NODE_SILENT, SENDER_SILENT, FLEET_SILENT = "node-silent", "sender-silent", "fleet-silent"
NODE_OFFLINE, FLEET_OFFLINE = "node-offline", "fleet-offline"
#: Slurm's own drain of a node that came back with another boot.
UNEXPECTED_REBOOT = "slurm-drain:rebooted"
#: Faults of a place: its nodes went silent together, or do not respond to Slurm.
PLACES_SILENT = frozenset(f"{kind}-silent" for kind in PlaceKind)
#: Silences that several nodes share: members belong to one until the last of them is back (law 2).
OUTAGES = PLACES_SILENT | {FLEET_SILENT}
PLACES_OFFLINE = frozenset(f"{kind}-offline" for kind in PlaceKind)


def is_silent_place(fault: str) -> bool:
    """Whether nodes of a place, or of the fleet, are not heard, by their senders or by Slurm."""
    return fault in OUTAGES | PLACES_OFFLINE | {FLEET_OFFLINE}


def is_of_place(fault: str) -> bool:
    """Whether it is the fault of a place, or of the fleet, and not of the nodes there."""
    return is_silent_place(fault) or fault.startswith(SHARED_FAULT)


class Trait(StrEnum):
    """What may be true of a fault."""

    # Parts of a node of which none breaks another one. The kernel, PCIe, power and host memory, which have
    # no trait here, may be behind any of them.
    gpu = "gpu"
    network = "network"
    disk = "disk"
    # How it is reported.
    by_code = "by_code"  # healer's own code names it, no catalogue and no file of rules
    coded = "coded"  # by a number of the driver's: Xid, SXid
    driver_ask = "driver_ask"  # what the driver itself asks for (Xid 154)
    shown_ask = "shown_ask"  # the same as a gauge shows it, and shows when it is withdrawn
    gpu_line = "gpu_line"  # a kernel line of it is about one GPU, also where the address is lost
    of_one_gpu = "of_one_gpu"  # without a code, and yet a GPU's
    sampled = "sampled"  # found in samples by detectors of code; those of `rules/detection/` are their rules'
    watched = "watched"  # a condition of Slurm's picture or a drift, which a watch opens and ends
    drain = "drain"  # someone else's hold on a node
    slurm_drain = "slurm_drain"  # Slurm's own
    alert = "alert"  # another system's
    # What it does to other faults.
    root = "root"  # in a part's history it explains milder bursts near it
    sticky = "sticky"  # a part that is gone or hangs repeats it for as long as anybody asks
    lost_gpu = "lost_gpu"  # a GPU is gone: peers, switches and the driver report the consequences
    follows_lost_gpu = "follows_lost_gpu"
    breaks_links = "breaks_links"  # NVLinks elsewhere lose packets when it is fatal
    loses_packets = "loses_packets"  # such a loss
    link_down = "link_down"  # its line says that a link of the node is gone, or may be
    may_stop_work = "may_stop_work"  # a program on the node may stop for it, or continue for hours
    memory_error = (
        "memory_error"  # its line says that an error was uncorrectable, and whether it was contained
    )
    counts_errors = "counts_errors"  # a counter of such errors, which says less
    contained = "contained"  # ends the program that it hit, which Slurm learns later, or never
    waits_for_files = "waits_for_files"  # a process waits in the kernel, maybe for a file server
    # How it relates to incidents.
    of_job = "of_job"  # about a job, not about a node
    of_place = "of_place"  # a well node has it too while its place is out
    evidence = "evidence"  # no fault of its own where a hardware fault is open
    several_at_once = "several_at_once"  # many at one place, the cluster: none takes another one in
    of_past = "of_past"  # drawn from a node's history or a trend: not counted as a fault again
    lemon = "lemon"


T = Trait
#: Names, and what is true of them; `x*` is every name that begins with x. A fault has the traits of each row
#: that fits it.
_ROWS: tuple[tuple[str, set[Trait]], ...] = (
    # --- GPUs, as the driver reports them; 140 to 150: NVLink 5
    ("xid-*", {T.gpu, T.coded, T.gpu_line, T.root}),
    ("xid-14* xid-150* xid-74*", {T.follows_lost_gpu, T.breaks_links}),
    ("xid-144 xid-145 xid-146", {T.loses_packets}),
    ("xid-74 xid-149", {T.link_down}),
    ("xid-74 xid-79 xid-95 xid-119 gpu-lost", {T.sticky}),
    ("xid-79*", {T.breaks_links}),
    ("xid-79", {T.lost_gpu}),
    ("xid-94", {T.contained}),
    ("xid-48 xid-94 xid-95 memory-*", {T.memory_error}),
    ("gpu-ecc-un*", {T.counts_errors}),
    ("sxid-*", {T.gpu, T.coded, T.root, T.follows_lost_gpu, T.breaks_links}),
    ("driver-asks-*", {T.gpu, T.driver_ask, T.gpu_line, T.root, T.follows_lost_gpu}),
    ("gpu-*", {T.gpu, T.gpu_line}),
    ("gpu-recovery-*", {T.shown_ask}),
    ("gpu-lost", {T.by_code, T.root, T.lost_gpu, T.breaks_links, T.of_one_gpu}),
    ("gpu-init-failed", {T.of_one_gpu}),
    ("nvlink* fabric-*", {T.gpu}),
    (f"{REPEATS}xid-* {REPEATS}sxid-*", {T.gpu}),
    # --- other parts, named in `rules/`
    ("nic-* ib-* net-* roce-* rdma-*", {T.network}),
    ("nic-link-down bond-port-down nic-unplugged nic-lost pcie-link-down nvlink-peer-missing", {T.link_down}),
    ("fs-* disk-* host-root-* host-tmp-* host-inodes-* host-disk-* host-raid-*", {T.disk}),
    ("task-hung host-blocked", {T.waits_for_files}),
    ("fs-read-only disk-lost host-memory-uncorrected kernel-oops", {T.may_stop_work}),
    # --- silence and drains
    (f"{NODE_SILENT} {SENDER_SILENT} {FLEET_SILENT}", {T.by_code}),
    (" ".join(sorted(PLACES_SILENT)), {T.by_code}),
    ("person-drain foreign-drain:*", {T.by_code, T.drain}),
    ("slurm-drain:*", {T.by_code, T.drain, T.slurm_drain}),
    (f"{HEALER_DRAIN} {REBOOTED} {STOPPED_JOB}", {T.by_code}),
    (PORT_STAYS_DOWN, {T.by_code, T.link_down}),
    (f"{STOPPED_JOB} straggler {HOOK_FAULT}probe {HOOK_FAULT}fs-*", {T.of_place}),
    # --- samples, steps and results
    ("straggler job-creep job-memory-leak slower-than-elsewhere result-differs", {T.by_code, T.sampled}),
    (f"{JOB_SLOW} {HANG} slowness-shared loss-nan loss-spike", {T.by_code, T.sampled, T.of_job}),
    ("slower-than-fleet", {T.by_code, T.sampled, T.evidence}),
    ("unusual-node drifted", {T.by_code, T.sampled, T.evidence, T.of_past}),
    ("lemon-node", {T.by_code, T.sampled, T.of_past, T.lemon}),
    (LEMON, {T.by_code, T.of_past, T.lemon}),
    # --- watches over Slurm's picture, and drift
    ("fabric-manager-version below-configured jobs-completing planned-reboots", {T.by_code, T.watched}),
    ("controller-backlog accounting-away", {T.by_code, T.watched}),
    (f"{NODE_OFFLINE} {FLEET_OFFLINE} {' '.join(sorted(PLACES_OFFLINE))}", {T.by_code, T.watched}),
    ("jobs-waiting:* jobs-held:* drift:*", {T.by_code, T.watched, T.several_at_once}),
    # --- other programs' words, and what healer concludes
    (f"{HOOK_FAULT}* {TEST_FAULT}* {WAVE_FAULT}* {REPEATS}*", {T.by_code}),
    (f"{ALERT_FAULT}*", {T.alert}),
    (f"{FORECAST_FAULT}*", {T.of_past}),
)


def _by_name() -> dict[str, frozenset[Trait]]:
    found: dict[str, set[Trait]] = {}
    for names, traits in _ROWS:
        for name in names.split():
            found.setdefault(name, set()).update(traits)
    return {name: frozenset(traits) for name, traits in found.items()}


FAULTS = _by_name()
_HEADS = tuple((name[:-1], traits) for name, traits in FAULTS.items() if name.endswith("*"))
_CODE = re.compile(r"(?:^|:)(s?xid)-(\d+)$")


@lru_cache(maxsize=16384)
def traits_of(fault: str) -> frozenset[Trait]:
    heads = (traits for head, traits in _HEADS if fault.startswith(head))
    return frozenset().union(FAULTS.get(fault, ()), *heads)


def fault_is(fault: str, trait: Trait) -> bool:
    return trait in traits_of(fault)


@lru_cache(maxsize=16384)
def fits(fault: str, globs: tuple[str, ...]) -> bool:
    """Whether one of these names, which may be globs, is this fault's. Each walk asks it of each open
    incident, and the answers are few."""
    return any(fnmatchcase(fault, glob) for glob in globs)


def faults_with(trait: Trait) -> tuple[str, ...]:
    """Whole names, in the order of the table."""
    return tuple(name for name, traits in FAULTS.items() if trait in traits and not name.endswith("*"))


def heads_with(trait: Trait) -> tuple[str, ...]:
    """The prefixes of such faults with open-ended names."""
    return tuple(name[:-1] for name, traits in FAULTS.items() if trait in traits and name.endswith("*"))


def are_independent_parts(one_fault: str, other_fault: str) -> bool:
    """Whether the faults are in parts of a node that do not break each other."""
    parts = [traits_of(fault) & {T.gpu, T.network, T.disk} for fault in (one_fault, other_fault)]
    return all(parts) and parts[0] != parts[1]


def code_of(fault: str) -> str:
    """`Xid 79`, `SXid 20034`; empty for a fault without a number."""
    if fault_is(fault, T.driver_ask):
        return "Xid 154"
    found = _CODE.search(fault)
    return f"{'SXid' if found[1] == 'sxid' else 'Xid'} {found[2]}" if found else ""


def once(fault: str) -> str:
    """The fault itself, for one that came too often."""
    return fault.removeprefix(REPEATS)


def wave_rule(fault: str) -> str:
    """The rule of the single incidents of a wave."""
    return fault.removeprefix(WAVE_FAULT)


def check_of(fault: str) -> str | None:
    """The failed check of a node's own hooks; None for other faults."""
    return fault.removeprefix(HOOK_FAULT) if fault.startswith(HOOK_FAULT) else None


#: Measured faults that a node's own nvidia-smi confirms or denies immediately, by the names of
#: `MemoryState.shown`.
SHOWN_BY_SMI: dict[str, tuple[str, ...]] = {
    "gpu-row-remap-failed": ("failed",),
    "gpu-remap-pending": ("pending",),
    "gpu-page-pending": ("retirement",),
    "gpu-repair-pending": ("channel", "tpc"),
    "gpu-sram-threshold": ("sram",),
    "gpu-memory-unrepairable": ("unrepairable",),
    "gpu-recovery-asked": ("asks reset",),
    "gpu-recovery-reboot": ("asks reboot",),
    "gpu-recovery-drain": ("asks drain and reset",),
    "gpu-count-low": ("missing",),
}
_SILENCE = frozenset({SENDER_SILENT, NODE_SILENT})
_EXPLAINED_BY = {
    **dict.fromkeys(PLACES_SILENT, _SILENCE | {NODE_OFFLINE, FLEET_OFFLINE} | PLACES_OFFLINE | PLACES_SILENT),
    FLEET_SILENT: _SILENCE | {NODE_OFFLINE, FLEET_OFFLINE} | PLACES_OFFLINE | PLACES_SILENT,
    NODE_OFFLINE: frozenset({SENDER_SILENT}),
    # A stopped kernel sends nothing. If Slurm does not reach the node either, that is worse news of the same.
    **dict.fromkeys(("kernel-panic", "host-machine-check"), frozenset({SENDER_SILENT})),
    REBOOTED: _SILENCE | {NODE_OFFLINE},
    UNEXPECTED_REBOOT: _SILENCE | {NODE_OFFLINE, REBOOTED},
    NODE_SILENT: frozenset({NODE_OFFLINE, SENDER_SILENT}),
    **dict.fromkeys(PLACES_OFFLINE, frozenset({NODE_OFFLINE, SENDER_SILENT})),
    FLEET_OFFLINE: frozenset({NODE_OFFLINE, SENDER_SILENT, *PLACES_OFFLINE}),
}


def silences_behind(fault: str) -> frozenset[str]:
    """The silences that this fault explains: of the nodes of its place, or as worse news about a node."""
    return _EXPLAINED_BY.get(fault, frozenset())


class FaultBurst(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Lines of one fault on one part that came close together: one event, however many lines it had.

    `part`: the GPU's UUID if known, else its serial number (`SN-…`), else its PCI address, else `gpu3`, or
    another broken part (`nvswitch0`, `mlx5_0`); empty: the whole node. `pci` and `gpu`: its place at that
    time. `jobs` and `users`: those there at that time (the first 16 of each). `units`: the named units of the
    part (`GPC 2 TPC 3`, `link 4`; the first 8). `incident`: where the burst was placed.
    """

    cluster: str
    node: str
    part: str
    fault: str
    fault_class: FaultClass
    began_at: datetime
    last_at: datetime
    count: int = 1
    boot_id: str | None = None
    pci: str | None = None
    gpu: int | None = None
    jobs: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    incident: str | None = None


class Same(StrEnum):
    """Where bursts count together: on one GPU, on one unit of it (a link, a TPC), on one node, or at a place
    that several nodes share."""

    gpu = "gpu"
    unit = "unit"
    node = "node"
    switch = "switch"
    domain = "domain"
    rack = "rack"
    pdu = "pdu"


_OF_SEVERAL = frozenset({Same.switch, Same.domain, Same.rack, Same.pdu})


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """This many bursts, or this many lines in bursts, within so many hours."""

    within_h: float
    bursts: int = 0
    lines: int = 0

    @property
    def within(self) -> timedelta:
        return timedelta(hours=self.within_h)


# Wide: an entry of rules/escalations.yaml, as sites write it.
class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `repeats` in `rules/escalations.yaml`: what often enough is a fault. It is a policy too.

    `bursts` of one of `faults` (globs; `together`: of any of them), or `lines` in them, within `within_h`
    hours at the `same` place, in so many different `jobs` of so many `users`, or of so many `nodes` of a
    place that they share. `slowly`: other rates that are a fault too, over longer times. `alone`: a burst
    whose job had the same on another GPU does not count. `models` limits it to GPU models (globs over
    `rules/gpu_models.yaml`); the first entry that takes a fault at a place has it. `one_boot`: only within
    one boot of the node, as each boot does it to a link once or twice.
    """

    name: str
    title: str
    faults: tuple[str, ...]
    source: str
    bursts: int = 0
    lines: int = 0
    within_h: float = 24
    slowly: tuple[Rate, ...] = ()
    same: Same = Same.gpu
    together: bool = False
    jobs: int = 0
    users: int = 0
    nodes: int = 0
    alone: bool = False
    one_boot: bool = False
    models: tuple[str, ...] = ()
    fault_class: FaultClass = FaultClass.degraded
    severity: Severity = Severity.P2
    cause: Cause = Cause.unclear
    remedy: tuple[Remedy, ...] = (Remedy.diagnose,)
    playbook: str | None = None
    mode: Mode | None = None
    runbook: str = ""

    @property
    def place(self) -> PlaceKind | None:
        """What the nodes share; None if the bursts of one node count together."""
        return PlaceKind(self.same) if self.same in _OF_SEVERAL else None

    @property
    def rates(self) -> tuple[Rate, ...]:
        return Rate(within_h=self.within_h, bursts=self.bursts, lines=self.lines), *self.slowly


class Combination(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `combinations`: faults of one GPU that have a meaning together. It is a policy too.

    `faults` are groups of globs: one of each group must have come within `within_s` of each other.
    """

    name: str
    title: str
    faults: tuple[tuple[str, ...], ...]
    source: str
    within_s: float = 60
    fault_class: FaultClass = FaultClass.degraded
    severity: Severity = Severity.P2
    cause: Cause = Cause.unclear
    remedy: tuple[Remedy, ...] = (Remedy.none,)
    playbook: str | None = None
    mode: Mode | None = None
    runbook: str = ""

    @property
    def within(self) -> timedelta:
        return timedelta(seconds=self.within_s)


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `cancels`: a line of `by` on the same GPU ends earlier `faults` (globs)."""

    by: str
    faults: tuple[str, ...]
    text: str
    source: str


class Escalations(msgspec.Struct, frozen=True, kw_only=True):
    """All of `rules/escalations.yaml`."""

    repeats: tuple[Repeat, ...] = ()
    combinations: tuple[Combination, ...] = ()
    cancels: tuple[Cancel, ...] = ()


class GoneAfter(StrEnum):
    """What ends a fault by itself, without any repair."""

    reset = "reset"  # a reset of the GPU, so a boot too
    boot = "boot"
    seen = "seen"  # a boot after which the GPU is reported again
    test = "test"  # only a test, or another part in its place


class Retest(msgspec.Struct, frozen=True, kw_only=True):
    """What decides whether a fault is transient or permanent. `name` is a word of `rules/ladders.yaml`."""

    name: str
    text: str


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `rules/ladders.yaml`: how a family of faults is found to be transient or permanent.

    `faults` are globs, `classes` and `models` limit them; the first entry that takes a fault has it. The same
    within `repeat_h` hours after its incident ended is answered by the next of `rungs`; so many incidents of
    `lemon` on one part within `lemon_days` days make it a lemon (0: never).
    """

    name: str
    faults: tuple[str, ...]
    retest: Retest
    rungs: tuple[Remedy, ...]
    source: str
    classes: tuple[FaultClass, ...] = ()
    models: tuple[str, ...] = ()
    gone_after: GoneAfter = GoneAfter.test
    repeat_h: float = 6
    lemon: int = 3
    lemon_days: float = 7

    @property
    def repeat(self) -> timedelta:
        return timedelta(hours=self.repeat_h)

    @property
    def lemon_within(self) -> timedelta:
        return timedelta(days=self.lemon_days)


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `rules/sharing.yaml`: faults of several nodes that mean the place. It is a policy too.

    Incidents of `faults` (globs) that open within `within_s` seconds at `at_least` nodes (or ports) of one
    `place`, and at least `share` (0..1) of its nodes, are one incident of the place. `itself`: faults
    reported on the place, which explain `faults` of its nodes whatever their number. `explains`: milder
    faults of its nodes that belong to a broken place, and alone mean none.
    """

    name: str
    title: str
    place: PlaceKind
    faults: tuple[str, ...]
    source: str
    itself: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()
    at_least: int = 3
    share: float = 0.0
    within_s: float = 300
    severity: Severity = Severity.P1
    cause: Cause = Cause.unclear
    remedy: tuple[Remedy, ...] = (Remedy.notify,)
    runbook: str = ""

    @property
    def within(self) -> timedelta:
        return timedelta(seconds=self.within_s)

    @property
    def fault(self) -> str:
        return f"{SHARED_FAULT}{self.name}"
