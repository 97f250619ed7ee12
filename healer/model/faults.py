"""The names of faults, and what is true of them: one table that every stage asks.

Most names come from the driver and from `rules/`; those that healer's own code gives are here in full.
"""

import re
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache

from healer.model.places import WAVE_FAULT, PlaceKind

#: What names of a kind begin with: the rule of an alert follows, a check of the node's own hooks, the fault
#: that came too often, the name of a forecast.
ALERT_FAULT = "alert:"
HOOK_FAULT = "hook:"
REPEATS = "repeats:"
FORECAST_FAULT = "forecast-"

LEMON = "lemon"
#: A job that is slow as a whole, and one that makes no step at all: told of no node.
JOB_SLOW, HANG = "job-slow", "hang"
#: Of `rules/kernel_lines.yaml`: a client's word that a file server is away, and that it is back.
SERVER_AWAY, SERVER_BACK = "fs-server-away", "fs-server-back"
#: Xid 154 back to None: the driver asks for nothing any more.
ASKS_NOTHING = "driver-asks-none"
#: A drain of ours that no run and no incident accounts for.
HEALER_DRAIN = "healer-drain"
NODE_SILENT, SENDER_SILENT, FLEET_SILENT = "node-silent", "sender-silent", "fleet-silent"
NODE_OFFLINE, FLEET_OFFLINE = "node-offline", "fleet-offline"
#: Faults of a place: its nodes went silent together, or do not answer Slurm.
PLACES_SILENT = frozenset(f"{kind}-silent" for kind in PlaceKind)
PLACES_OFFLINE = frozenset(f"{kind}-offline" for kind in PlaceKind)


class Trait(StrEnum):
    """What may be true of a fault."""

    # Parts of a node of which none breaks another one. The kernel, PCIe, power and host memory, which have
    # no trait here, may be behind any of them.
    gpu = "gpu"
    network = "network"
    disk = "disk"
    # How it is told.
    by_code = "by_code"  # healer's own code names it, no catalogue and no file of rules
    coded = "coded"  # by a number of the driver's: Xid, SXid
    driver_ask = "driver_ask"  # what the driver itself asks for (Xid 154)
    gpu_line = "gpu_line"  # a kernel line of it is about one GPU, also where the address is lost
    of_one_gpu = "of_one_gpu"  # without a code, and yet a GPU's
    sampled = "sampled"  # found in samples by detectors of code; those of `rules/detection/` are their rules'
    watched = "watched"  # a condition of Slurm's picture or a drift, which a watch opens and ends
    drain = "drain"  # somebody else's hold on a node
    slurm_drain = "slurm_drain"  # Slurm's own
    alert = "alert"  # another system's
    # What it does to other faults.
    root = "root"  # in a part's history it explains milder bursts near it
    sticky = "sticky"  # a part that is gone or hangs repeats it for as long as anybody asks
    lost_gpu = "lost_gpu"  # a GPU is gone: peers, switches and the driver tell of what follows
    follows_lost_gpu = "follows_lost_gpu"
    breaks_links = "breaks_links"  # NVLinks elsewhere lose packets when it is fatal
    loses_packets = "loses_packets"  # such a loss
    link_down = "link_down"  # its line says that a link of the node is gone, or may be
    contained = "contained"  # ends the program that it hit, which Slurm learns later, or never
    waits_for_files = "waits_for_files"  # a process waits in the kernel, maybe for a file server
    # How it stands among incidents.
    of_job = "of_job"  # told of a job, and of no node
    evidence = "evidence"  # beside a fault of hardware no fault of its own
    several_at_once = "several_at_once"  # many at one place, the cluster: none takes another one in
    of_past = "of_past"  # says what the past or a trend tells of a node: no fault that counts again
    lemon = "lemon"


T = Trait
#: Names, and what is true of them; `x*` is every name that begins with x. A fault has the traits of each row
#: that fits it.
_ROWS: tuple[tuple[str, set[Trait]], ...] = (
    # --- GPUs, as the driver tells; 140 to 150: NVLink 5
    ("xid-*", {T.gpu, T.coded, T.gpu_line, T.root}),
    ("xid-14* xid-150* xid-74*", {T.follows_lost_gpu, T.breaks_links}),
    ("xid-144 xid-145 xid-146", {T.loses_packets}),
    ("xid-74 xid-149", {T.link_down}),
    ("xid-74 xid-79 xid-95 xid-119 gpu-lost", {T.sticky}),
    ("xid-79*", {T.breaks_links}),
    ("xid-79", {T.lost_gpu}),
    ("xid-94", {T.contained}),
    ("sxid-*", {T.gpu, T.coded, T.root, T.follows_lost_gpu, T.breaks_links}),
    ("driver-asks-*", {T.gpu, T.driver_ask, T.gpu_line, T.root, T.follows_lost_gpu}),
    ("gpu-*", {T.gpu, T.gpu_line}),
    ("gpu-lost", {T.by_code, T.root, T.lost_gpu, T.breaks_links, T.of_one_gpu}),
    ("gpu-init-failed", {T.of_one_gpu}),
    ("nvlink* fabric-*", {T.gpu}),
    (f"{REPEATS}xid-* {REPEATS}sxid-*", {T.gpu}),
    # --- other parts, named in `rules/`
    ("nic-* ib-* net-* roce-* rdma-*", {T.network}),
    ("nic-link-down bond-port-down nic-unplugged nic-lost pcie-link-down nvlink-peer-missing", {T.link_down}),
    ("fs-* disk-* host-root-* host-tmp-* host-inodes-* host-disk-* host-raid-*", {T.disk}),
    ("task-hung host-blocked", {T.waits_for_files}),
    # --- silence and drains
    (f"{NODE_SILENT} {SENDER_SILENT} {FLEET_SILENT}", {T.by_code}),
    (" ".join(sorted(PLACES_SILENT)), {T.by_code}),
    ("person-drain foreign-drain:*", {T.by_code, T.drain}),
    ("slurm-drain:*", {T.by_code, T.drain, T.slurm_drain}),
    (HEALER_DRAIN, {T.by_code}),
    # --- samples, steps and results
    ("straggler job-creep job-memory-leak slower-than-elsewhere result-differs", {T.by_code, T.sampled}),
    (f"{JOB_SLOW} {HANG} slowness-shared loss-nan loss-spike", {T.by_code, T.sampled, T.of_job}),
    ("slower-than-fleet", {T.by_code, T.sampled, T.evidence}),
    ("unusual-node drifted", {T.by_code, T.sampled, T.evidence, T.of_past}),
    ("lemon-node", {T.by_code, T.sampled, T.of_past, T.lemon}),
    (LEMON, {T.by_code, T.of_past, T.lemon}),
    # --- watches over Slurm's picture, and drift
    ("fabric-manager-version below-configured jobs-completing", {T.by_code, T.watched}),
    ("controller-backlog accounting-away", {T.by_code, T.watched}),
    (f"{NODE_OFFLINE} {FLEET_OFFLINE} {' '.join(sorted(PLACES_OFFLINE))}", {T.by_code, T.watched}),
    ("jobs-waiting:* jobs-held:* drift:*", {T.by_code, T.watched, T.several_at_once}),
    # --- other programs' words, and what healer concludes
    (f"{HOOK_FAULT}* node-test:* {WAVE_FAULT}* {REPEATS}*", {T.by_code}),
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
    """What names with an open tail begin with."""
    return tuple(name[:-1] for name, traits in FAULTS.items() if trait in traits and name.endswith("*"))


def are_of_other_parts(one: str, other: str) -> bool:
    """Whether the faults are of parts of a node that do not break each other."""
    parts = [traits_of(fault) & {T.gpu, T.network, T.disk} for fault in (one, other)]
    return all(parts) and parts[0] != parts[1]


def code_of(fault: str) -> str:
    """`Xid 79`, `SXid 20034`; empty for a fault without a number."""
    if fault_is(fault, T.driver_ask):
        return "Xid 154"
    found = _CODE.search(fault)
    return f"{'SXid' if found[1] == 'sxid' else 'Xid'} {found[2]}" if found else ""


def once(fault: str) -> str:
    """The fault itself, of one that came too often."""
    return fault.removeprefix(REPEATS)


def wave_rule(fault: str) -> str:
    """The rule of the single incidents of a wave."""
    return fault.removeprefix(WAVE_FAULT)


def check_of(fault: str) -> str | None:
    """The check of a node's own hooks that failed; None of other faults."""
    return fault.removeprefix(HOOK_FAULT) if fault.startswith(HOOK_FAULT) else None


_SILENCE = frozenset({SENDER_SILENT, NODE_SILENT})
_EXPLAINED_BY = {
    **dict.fromkeys(PLACES_SILENT, _SILENCE | {NODE_OFFLINE} | PLACES_OFFLINE),
    FLEET_SILENT: _SILENCE,
    NODE_SILENT: frozenset({NODE_OFFLINE, SENDER_SILENT}),
    **dict.fromkeys(PLACES_OFFLINE, frozenset({NODE_OFFLINE})),
    FLEET_OFFLINE: frozenset({NODE_OFFLINE, *PLACES_OFFLINE}),
}


def silences_behind(fault: str) -> frozenset[str]:
    """The silences that this fault explains: of the nodes of its place, or as worse news of a node."""
    return _EXPLAINED_BY.get(fault, frozenset())
