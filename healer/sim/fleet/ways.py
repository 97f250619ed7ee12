"""How faults show: what a node says, shows and falls silent of, and what a job on it comes to.

A cause (a row of Llama 3's table) shows in one of several ways. The texts are those of the driver and the
kernel; whether a way stops a job, and for how long a passing one lasts, is told here as well.
"""

from typing import NamedTuple

from healer.sim.faults import Fault


class Way(NamedTuple):
    """`stops`: a synchronous job on the node goes no further. `slower` multiplies its step. `hardware`: the
    node is broken until somebody repairs it; otherwise the fault is over once the job has ended.

    `lines` take `{pci}`. `silent`: nothing answers on the node. `sensors` and `port_down`: what its exporter
    shows. `wrong_numbers`: its rank tells another gradient norm than all others, and the job's own check of
    its loss stops it after `stops_after_s`. `planted`: what the node's own tests find. `checked`: a threshold
    check each 5 min would see it.
    """

    stops: bool = True
    slower: float = 1.0
    hardware: bool = True
    lines: tuple[str, ...] = ()
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
    # The port loses its link and nothing in the kernel calls that a fault: its state alone tells.
    "port-down": Way(lines=("mlx5_core 0000:5c:00.0 ib0: Link down",), port_down=True),
    # It comes back by itself; the transport had given up before (about 7 s, published_figures 0).
    "port-flap": Way(lines=("mlx5_core 0000:5c:00.0 ib0: Link down",), hardware=False, checked=False),
    "silent": Way(silent=True),
    "panic": Way(lines=("Kernel panic - not syncing: Fatal exception in interrupt",), silent=True),
    "machine-check": Way(
        lines=("mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 4: b200000000070005",)
    ),
    "host-memory": Way(lines=("Memory failure: 0x1c5a3f: recovery action for dirty LRU page: Failed",)),
    "pcie-fatal": Way(
        lines=(
            "nvidia {pci}: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), "
            "type=Transaction Layer, (Requester ID)",
        )
    ),
    "disk": Way(lines=("EXT4-fs (md0): Remounting filesystem read-only",)),
    "throttle": Way(stops=False, slower=1.18, sensors=(Fault.thermal_throttle,), checked=False),
    "clock-low": Way(stops=False, slower=1.18, sensors=(Fault.clock_low,), checked=False),
    "clock-lower": Way(stops=False, slower=1.10, sensors=(Fault.clock_lower,), checked=False),
    "slow": Way(stops=False, slower=1.18, sensors=(Fault.slow_gpu,), checked=False),
    # No line, no sensor: only what the ranks computed.
    "corruption": Way(checked=False, wrong_numbers=True, stops_after_s=120.0),
    # The job's own doing, or nobody's: it starts anew in its allocation.
    "program": Way(
        hardware=False,
        checked=False,
        lines=(_xid(31, "Ch 0000000b, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted"),),
    ),
    "hang": Way(hardware=False, checked=False),
    # Somebody has to work on the host and takes it away now.
    "unplanned-work": Way(checked=False),
}

#: What the end of a job leaves on its other nodes, and lines that mean nothing, on any node at any time.
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
