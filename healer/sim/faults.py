"""Faults that are planted in simulated telemetry, and what each does to what is measured.

A fault is planted by name on a node, a GPU of it, or (`fleet-warm`) on all. Its effects are plain arrays of
shape (nodes, GPUs), (nodes, ports) or (nodes,), computed anew when a fault comes or goes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Fault(StrEnum):
    """What may be planted."""

    #: Bad cooling: at work the GPU reaches its slowdown limit, the clock falls, its rank takes 18 % longer.
    thermal_throttle = "thermal-throttle"
    #: 18 % slower with no trace in any metric: only step times tell.
    slow_gpu = "slow-gpu"
    #: The clock stands a quarter too low, without heat.
    clock_low = "clock-low"
    #: A little less of that: the clock stands 16 % too low, and its rank takes 10 % longer.
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
    #: Nothing comes from the node any more; the node itself is well.
    sensor_gone = "sensor-gone"
    #: The hall gets 9 °C warmer: everybody's sensors say so, and no node is to blame.
    fleet_warm = "fleet-warm"


#: How much longer a rank on a throttled, slow or low-clocked GPU computes (published_figures 4: 5-20 %).
SLOWER = 1.18


@dataclass(frozen=True, slots=True)
class Planted:
    fault: Fault
    node: str | None
    gpu: int | None = None


@dataclass(slots=True)
class Effects:
    """What all planted faults together do. Rates are per second, factors multiply."""

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


def no_effects(nodes: int, gpus: int, ports: int) -> Effects:
    def zero() -> Floats:
        return np.zeros((nodes, gpus))

    def no() -> Bools:
        return np.zeros((nodes, gpus), dtype=bool)

    def port() -> Floats:
        return np.zeros((nodes, ports))

    return Effects(
        throttle=no(), clock=zero() + 1, compute=zero() + 1, warmer_c=zero(), ecc_uncorrectable=zero(),
        remap_pending=no(), remap_failed=no(), pcie_width=zero() + 16, pcie_replays=zero(),
        nvlink_crc=zero(), missing=no(), ib_symbols=port(), ib_recoveries=port(), ib_receive=port(),
        ib_discards=port(), fabric_down=np.zeros(nodes, dtype=bool), silent=np.zeros(nodes, dtype=bool),
    )  # fmt: skip


_At = tuple[int | slice, int | slice]
_BY_GPU = {
    Fault.thermal_throttle, Fault.slow_gpu, Fault.clock_low, Fault.clock_lower, Fault.ecc_uncorrectable,
    Fault.remap_pending,
    Fault.remap_failed, Fault.pcie_width, Fault.pcie_replays, Fault.nvlink_crc, Fault.gpu_missing,
}  # fmt: skip


def _clock_low(effects: Effects, at: _At) -> None:
    effects.clock[at] = 0.75
    effects.compute[at] = SLOWER


def _clock_lower(effects: Effects, at: _At) -> None:
    effects.clock[at] = 0.84
    effects.compute[at] = 1.10


def _setter(field: str, value: float | bool) -> Callable[[Effects, _At], None]:
    def put(effects: Effects, at: _At) -> None:
        getattr(effects, field)[at] = value

    return put


def _node_setter(field: str) -> Callable[[Effects, _At], None]:
    def put(effects: Effects, at: _At) -> None:
        getattr(effects, field)[at[0]] = True

    return put


def _ib_errors(effects: Effects, at: _At) -> None:
    """A bad cable on the first port. Thresholds of peers: facts, gpu_faults_and_peers c.8."""
    effects.ib_symbols[at[0], 0] = 60.0
    effects.ib_recoveries[at[0], 0] = 0.5
    effects.ib_receive[at[0], 0] = 40.0
    effects.ib_discards[at[0], 0] = 250.0


_APPLY: dict[Fault, Callable[[Effects, _At], None]] = {
    Fault.thermal_throttle: _setter("throttle", True),
    Fault.slow_gpu: _setter("compute", SLOWER),
    Fault.clock_low: _clock_low,
    Fault.clock_lower: _clock_lower,
    Fault.fabric_manager_down: _node_setter("fabric_down"),
    Fault.ecc_uncorrectable: _setter("ecc_uncorrectable", 0.1),
    Fault.remap_pending: _setter("remap_pending", True),
    Fault.remap_failed: _setter("remap_failed", True),
    Fault.pcie_width: _setter("pcie_width", 8.0),
    Fault.pcie_replays: _setter("pcie_replays", 12.0),
    Fault.nvlink_crc: _setter("nvlink_crc", 400.0),
    Fault.ib_errors: _ib_errors,
    Fault.gpu_missing: _setter("missing", True),
    Fault.sensor_gone: _node_setter("silent"),
    Fault.fleet_warm: _setter("warmer_c", 9.0),
}


def effects_of(planted: Sequence[Planted], nodes: dict[str, int], gpus: int, ports: int) -> Effects:
    """`nodes` gives each node's row. A fault without a GPU is on all GPUs of its node."""
    effects = no_effects(len(nodes), gpus, ports)
    for one in planted:
        row = slice(None) if one.node is None else nodes[one.node]
        gpu = slice(None) if one.gpu is None else one.gpu
        _APPLY[one.fault](effects, (row, gpu))
    return effects


def checked(fault: str, node: str | None, gpu: int | None, nodes: dict[str, int], gpus: int) -> Planted:
    """ValueError that names what is wrong."""
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
