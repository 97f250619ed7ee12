"""Faults planted in simulated telemetry with their effects on measurements, and the ways in which a broken
node shows: its kernel lines, its sensors, and what happens to a job on it.

A fault is planted by name on a node, a GPU of it, or (`fleet-warm`) on all. Its effects are plain arrays of
shape (nodes, GPUs), (nodes, ports) or (nodes,), computed again when a fault comes or goes. A cause (a row of
Llama 3's table) shows in one of several ways; their texts are those of the driver and the kernel."""

from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Fault(StrEnum):
    """Faults that can be planted."""

    #: Bad cooling: at work the GPU reaches its slowdown limit, the clock falls, its rank takes 18 % longer.
    thermal_throttle = "thermal-throttle"
    #: 18 % slower with no trace in any metric: only step times show it.
    slow_gpu = "slow-gpu"
    #: The clock is a quarter too low, without heat.
    clock_low = "clock-low"
    #: The clock is 16 % too low, and its rank takes 10 % longer.
    clock_lower = "clock-lower"
    fabric_manager_down = "fabric-manager-down"
    ecc_uncorrectable = "ecc-uncorrectable"
    remap_pending = "remap-pending"
    remap_failed = "remap-failed"
    pcie_width = "pcie-width"
    pcie_replays = "pcie-replays"
    nvlink_crc = "nvlink-crc"
    ib_errors = "ib-errors"
    gpu_missing = "gpu-missing"
    #: The node sends nothing more; the node itself is well.
    sensor_gone = "sensor-gone"
    #: The hall gets 9 °C warmer: all sensors show it, and no node is to blame.
    fleet_warm = "fleet-warm"


#: How much longer a rank on a throttled, slow or low-clocked GPU computes (published_figures 4: 5-20 %).
SLOWER = 1.18


@dataclass(frozen=True, slots=True)
class Planted:
    fault: Fault
    node: str | None
    gpu: int | None = None


# Wide: one array for each effect on measurements.
@dataclass(slots=True)
class Effects:
    """Effects of all planted faults together. Rates are per second, factors multiply."""

    throttle: Bools  # (nodes, GPUs): at work it is held at the slowdown limit
    clock: Floats  # (nodes, GPUs) factor
    compute: Floats  # (nodes, GPUs) factor on a step's compute time
    warmer_c: Floats  # (nodes, GPUs)
    ecc_uncorrectable: Floats  # (nodes, GPUs) rate
    remap_pending: Bools
    remap_failed: Bools
    pcie_width: Floats
    pcie_replays: Floats
    nvlink_crc: Floats
    missing: Bools  # (nodes, GPUs)
    ib_symbols: Floats  # (nodes, ports) rate
    ib_recoveries: Floats
    ib_receive: Floats
    ib_discards: Floats
    fabric_down: Bools  # (nodes,)
    silent: Bools  # (nodes,)


#: Values without any fault; other fields are 0 or False.
_USUAL = {"clock": 1.0, "compute": 1.0, "pcie_width": 16.0}
_OF_PORTS = ("ib_symbols", "ib_recoveries", "ib_receive", "ib_discards")
_OF_NODES = ("fabric_down", "silent")


def no_effects(nodes: int, gpus: int, ports: int) -> Effects:
    def usual(field: Field[Any]) -> NDArray[Any]:
        shape = (nodes,) if field.name in _OF_NODES else (nodes, ports if field.name in _OF_PORTS else gpus)
        return np.full(shape, _USUAL.get(field.name, 0.0), dtype=bool if field.type == Bools else float)

    return Effects(**{field.name: usual(field) for field in fields(Effects)})


_BY_GPU = {
    Fault.thermal_throttle, Fault.slow_gpu, Fault.clock_low, Fault.clock_lower, Fault.ecc_uncorrectable,
    Fault.remap_pending,
    Fault.remap_failed, Fault.pcie_width, Fault.pcie_replays, Fault.nvlink_crc, Fault.gpu_missing,
}  # fmt: skip


#: What each fault sets on its GPU, on the first port or on its node, by field of `Effects`.
_SETS: dict[Fault, dict[str, float | bool]] = {
    Fault.thermal_throttle: {"throttle": True},
    Fault.slow_gpu: {"compute": SLOWER},
    Fault.clock_low: {"clock": 0.75, "compute": SLOWER},
    Fault.clock_lower: {"clock": 0.84, "compute": 1.10},
    Fault.fabric_manager_down: {"fabric_down": True},
    Fault.ecc_uncorrectable: {"ecc_uncorrectable": 0.1},
    Fault.remap_pending: {"remap_pending": True},
    Fault.remap_failed: {"remap_failed": True},
    Fault.pcie_width: {"pcie_width": 8.0},
    Fault.pcie_replays: {"pcie_replays": 12.0},
    Fault.nvlink_crc: {"nvlink_crc": 400.0},
    # A bad cable. Thresholds of peers: facts, gpu_faults_and_peers c.8.
    Fault.ib_errors: {"ib_symbols": 60.0, "ib_recoveries": 0.5, "ib_receive": 40.0, "ib_discards": 250.0},
    Fault.gpu_missing: {"missing": True},
    Fault.sensor_gone: {"silent": True},
    Fault.fleet_warm: {"warmer_c": 9.0},
}


def effects_of(planted: Sequence[Planted], nodes: dict[str, int], gpus: int, ports: int) -> Effects:
    """`nodes` gives each node's row. A fault without a GPU is on all GPUs of its node."""
    effects = no_effects(len(nodes), gpus, ports)
    for planting in planted:
        row = slice(None) if planting.node is None else nodes[planting.node]
        gpu = slice(None) if planting.gpu is None else planting.gpu
        for field, value in _SETS[planting.fault].items():
            at = row if field in _OF_NODES else (row, 0 if field in _OF_PORTS else gpu)
            getattr(effects, field)[at] = value
    return effects


def checked(fault: str, node: str | None, gpu: int | None, nodes: dict[str, int], gpus: int) -> Planted:
    """Raises ValueError that names what is wrong."""
    try:
        which = Fault(fault)
    except ValueError as error:
        raise ValueError(f"no fault named {fault!r}; there are {', '.join(Fault)}") from error
    if node is None and which is not Fault.fleet_warm:
        raise ValueError(f"{which} needs a node")
    if node is not None and node not in nodes:
        raise ValueError(f"no node named {node!r}")
    if gpu is not None and (which not in _BY_GPU or not 0 <= gpu < gpus):
        raise ValueError(f"{which} has no GPU {gpu}")
    return Planted(which, node, gpu)


#: PCI addresses of GPU 0 … 7 on simulated nodes.
PCI = tuple(f"0000:{bus}:00" for bus in ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db"))


class Way(NamedTuple):
    """`stops`: a synchronous job on the node goes no further. `slower` multiplies its step. `hardware`: the
    node is broken until a person repairs it; otherwise the fault is over once the job has ended.

    `lines` take `{pci}`; `later`: more of them, each some seconds after the fault. `hangs`: its ranks wait in
    the kernel and do not end, so that the others wait until NCCL's watchdog. `silent`: nothing answers on the
    node. `sensors` and `port_down`: what its exporter shows. `wrong_numbers`: its rank reports another
    gradient norm than all others, and the job's own check of its loss stops it after `stops_after_s`.
    `planted`: what the node's own tests find. `checked`: a threshold check each 5 min would see it.
    """

    stops: bool = True
    slower: float = 1.0
    hardware: bool = True
    lines: tuple[str, ...] = ()
    later: tuple[tuple[float, str], ...] = ()
    hangs: bool = False
    silent: bool = False
    sensors: tuple[Fault, ...] = ()
    port_down: bool = False
    wrong_numbers: bool = False
    stops_after_s: float = 0.0
    planted: str = "broken"
    checked: bool = True


def _xid(code: int, text: str) -> str:
    return f"NVRM: Xid (PCI:{{pci}}): {code}, pid=4242, name=python3, {text}"


_DBE = _xid(48, "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer.")

WAYS: dict[str, Way] = {
    "off-the-bus": Way(lines=(_xid(79, "GPU has fallen off the bus."),)),
    "gsp-timeout": Way(
        lines=(
            _xid(119, "Timeout after 6s of waiting for RPC response from GPU3 GSP! Expected function 76."),
        )
    ),
    "pmu-halt": Way(lines=(_xid(62, "0000(0000) 00000000 00000000"),)),
    "nvlink-fatal": Way(
        lines=(_xid(74, "NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"),)
    ),
    "double-bit": Way(
        lines=(_DBE, _xid(63, "Row Remapper: New row marked for remapping, reset gpu to activate."))
    ),
    "remap-failed": Way(lines=(_DBE, _xid(64, "Failed to persist row remap table - Row Remapper error"))),
    "uncontained": Way(lines=(_xid(95, "Uncontained ECC error"),)),
    "nic-dead": Way(
        lines=(
            "mlx5_core 0000:5c:00.0: poll_health:819:(pid 0): "
            "device's health compromised - reached miss count",
        )
    ),
    # The port loses its link, and no kernel line calls that a fault: only its state shows it.
    "port-down": Way(lines=("mlx5_core 0000:5c:00.0 ib0: Link down",), port_down=True),
    # It comes back by itself; the transport had given up before (about 7 s, published_figures 0).
    "port-flap": Way(lines=("mlx5_core 0000:5c:00.0 ib0: Link down",), hardware=False, checked=False),
    "silent": Way(silent=True),
    "panic": Way(lines=("Kernel panic - not syncing: Fatal exception in interrupt",), silent=True),
    "machine-check": Way(
        lines=("mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 4: b200000000070005",)
    ),
    # The program that touched the page is killed; its node continues.
    "host-memory": Way(
        lines=(
            "mce: [Hardware Error]: Machine check events logged",
            "mce: Uncorrected hardware memory error in user-access at 1c5a3f280",
            "Memory failure: 0x1c5a3f: Sending SIGBUS to python3:4242 due to hardware memory corruption",
            "Memory failure: 0x1c5a3f: recovery action for dirty LRU page: Recovered",
            "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 "
            "page:0x1c5a3f offset:0x280 grain:32 syndrome:0x0)",
        )
    ),
    "pcie-fatal": Way(
        lines=(
            "nvidia {pci}: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), "
            "type=Transaction Layer, (Requester ID)",
        )
    ),
    # The controller does not answer: Linux waits 30 s, aborts, waits as long again, resets, and gives up.
    "disk": Way(
        hangs=True,
        later=(
            (30, "nvme nvme4: I/O tag 291 (b123) opcode 0x1 (I/O Cmd) QID 17 timeout, aborting"),
            (60, "nvme nvme4: I/O tag 291 (b123) opcode 0x1 (I/O Cmd) QID 17 timeout, reset controller"),
            (90, "nvme nvme4: Device not ready; aborting reset, CSTS=0x1"),
            (90, "nvme nvme4: Disabling device after reset failure: -19"),
            (90, "I/O error, dev nvme4n1, sector 1308098575 op 0x1:(WRITE) flags 0x800"),
            (90, "Aborting journal on device nvme4n1-8."),
            (90, "EXT4-fs (nvme4n1): Remounting filesystem read-only"),
        ),
    ),
    # Sectors that cannot be read, and a program that fails as it writes.
    "disk-errors": Way(
        lines=(
            "critical medium error, dev nvme4n1, sector 1308098575 op 0x0:(READ) flags 0x0",
            "Buffer I/O error on dev nvme4n1, logical block 163512321, async page read",
            "EXT4-fs error (device nvme4n1): ext4_find_extent:936: inode #52: comm python3: bad header",
            "EXT4-fs (nvme4n1): Remounting filesystem read-only",
        )
    ),
    "throttle": Way(stops=False, slower=1.18, sensors=(Fault.thermal_throttle,), checked=False),
    "clock-low": Way(stops=False, slower=1.18, sensors=(Fault.clock_low,), checked=False),
    "clock-lower": Way(stops=False, slower=1.10, sensors=(Fault.clock_lower,), checked=False),
    "slow": Way(stops=False, slower=1.18, sensors=(Fault.slow_gpu,), checked=False),
    # No line, no sensor: only what the ranks computed.
    "corruption": Way(checked=False, wrong_numbers=True, stops_after_s=120.0),
    # Caused by the job, or by nothing: it restarts in its allocation.
    "program": Way(
        hardware=False,
        checked=False,
        lines=(_xid(31, "Ch 0000000b, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted"),),
    ),
    "hang": Way(hardware=False, checked=False, hangs=True),
    # Urgent manual work on the host takes it out of service.
    "unplanned-work": Way(checked=False),
}

#: What the end of a job leaves on its other nodes, and harmless lines of any node at any time.
TEARDOWN = _xid(45, "Ch 00000008")
INNOCENT = (
    _xid(
        31, "Ch 0000000b, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f4b_1a000000"
    ),
    _xid(43, "Ch 00000008"),
    "mce: [Hardware Error]: Machine check events logged",
    "EDAC MC0: 3 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
    "nvidia 0000:9b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
)
