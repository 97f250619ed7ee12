"""Telemetry of a simulated fleet: metrics, step times and checkpoints, with planted faults.

Deterministic for a seed. All nodes are computed together, so that a thousand cost little more than thirty.
`advance` returns what the nodes send at that moment as bodies of the API: `metrics` columnar per node,
`step_times` and `checkpoints` per job.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from healer.model import SlurmSnapshot
from healer.sim.fleet_steps import SPINS, Pace, Training, rfc3339
from healer.sim.planted_faults import Effects, Fault, Floats, Planted, checked, effects_of

#: H100 SXM: figures of a busy and an idle GPU.
IDLE_W, BUSY_W, LIMIT_W = 72.0, 600.0, 700.0
#: Share of the load's power that a spinning kernel draws.
SPIN_SHARE = 0.25
IDLE_MHZ, BUSY_MHZ, MEMORY_MHZ = 345.0, 1755.0, 2619.0
SLOWDOWN_C = 87.0
#: An uncooled GPU is held at its limit; its clock is cut above the second value.
HELD_C, CUT_FROM_C = 87.0, 83.0
CUT_CLOCK, CUT_COMPUTE = 0.74, 1.18
#: °C per W between inlet and die, and the time constant of the die.
C_PER_W, LAG_S = 0.058, 20.0
#: Share of time that heat holds a throttled GPU, and that its power limit holds a busy one (normal).
HELD_SHARE, CAPPED_SHARE = 0.7, 0.02
MIB_BUSY = 71_000.0
DAY_S = 86_400.0

#: Harmless noise, per second: corrected memory errors and PCIe replays of a GPU, symbol errors of a port.
SBE_PER_S, REPLAYS_PER_S, SYMBOLS_PER_S = 2e-6, 2e-4, 0.004

#: States of nvidia-smi as the catalogue numbers them.
FABRIC_IN_PROGRESS, FABRIC_COMPLETED = 2.0, 3.0

_IDLE_BIT, _CAP_BIT, _HEAT_BITS = 0x1, 0x4, 0x8 | 0x20 | 0x40

#: Name as exporters send it -> field of `FleetMetrics`, (nodes, GPUs).
GPU_SIGNALS: dict[str, str] = {
    "DCGM_FI_DEV_GPU_TEMP": "temp_c",
    "DCGM_FI_DEV_MEMORY_TEMP": "memory_temp_c",
    "DCGM_FI_DEV_SLOWDOWN_TEMP": "slowdown_c",
    "DCGM_FI_DEV_POWER_USAGE": "power_w",
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": "limit_w",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "energy_mj",
    "DCGM_FI_DEV_SM_CLOCK": "clock_mhz",
    "DCGM_FI_DEV_MEM_CLOCK": "memory_mhz",
    "DCGM_FI_DEV_GPU_UTIL": "util",
    "DCGM_FI_DEV_FB_USED": "memory_used",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "engine",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "tensor",
    "DCGM_FI_PROF_DRAM_ACTIVE": "dram",
    "DCGM_FI_PROF_PCIE_TX_BYTES": "pcie_tx",
    "DCGM_FI_PROF_PCIE_RX_BYTES": "pcie_rx",
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": "reasons",
    "DCGM_FI_DEV_THERMAL_VIOLATION": "thermal_ns",
    "DCGM_FI_DEV_POWER_VIOLATION": "capped_ns",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": "sbe",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "dbe",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "remapped",
    "DCGM_FI_DEV_ROW_REMAP_PENDING": "remap_pending",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "remap_failed",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "replays",
    "DCGM_FI_DEV_PCIE_LINK_GEN": "pcie_gen",
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": "pcie_width",
    "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": "pcie_max_width",
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": "crc",
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": "nvlink_replays",
    "DCGM_FI_DEV_XID_ERRORS": "xid",
    "fabric_state": "fabric_state",
}
PORT_SIGNALS: dict[str, str] = {
    "node_infiniband_symbol_error_total": "ib_symbols",
    "node_infiniband_link_error_recovery_total": "ib_recoveries",
    "node_infiniband_port_errors_received_total": "ib_receive",
    "node_infiniband_port_discards_transmitted_total": "ib_discards",
    "node_infiniband_link_downed_total": "ib_downed",
    "node_infiniband_port_data_received_bytes_total": "ib_bytes",
}
#: Counters, which begin at 0 when the node boots.
_COUNTERS = (
    "energy_mj", "thermal_ns", "capped_ns", "sbe", "dbe", "replays", "crc", "nvlink_replays", "ib_symbols",
    "ib_recoveries", "ib_receive", "ib_discards", "ib_downed", "ib_bytes",
)  # fmt: skip


# Wide: one array for each signal, advanced together.
class FleetMetrics:
    """The state of all sensors."""

    def __init__(
        self, racks: Sequence[str], *, gpus: int, ports: int, start: float, chance: np.random.Generator
    ) -> None:
        nodes, self._chance, self._at = len(racks), chance, start
        shape = (nodes, gpus)
        kinds = {rack: index for index, rack in enumerate(dict.fromkeys(racks))}
        by_rack = chance.normal(0, 1.2, len(kinds)).clip(-2.5, 2.5)
        self._inlet_c = 24 + by_rack[[kinds[rack] for rack in racks]]
        self._own_c = chance.normal(0, 1.3, shape).clip(-3, 3)
        self._own_w = chance.normal(0, 9, shape).clip(-25, 25)
        self._own_mhz = chance.normal(0, 8, shape).clip(-20, 20)
        self._boot_at = start - chance.uniform(1, 20, nodes) * DAY_S
        self.busy = np.zeros(shape)
        self.temp_c: Floats = self._inlet_c[:, None] + IDLE_W * C_PER_W + self._own_c
        self.hot: NDArray[np.bool_] = np.zeros(shape, dtype=bool)
        self.slowdown_c, self.limit_w = np.full(shape, SLOWDOWN_C), np.full(shape, LIMIT_W)
        self.memory_mhz = np.full(shape, MEMORY_MHZ)
        self.pcie_max_width = np.full(shape, 16.0)
        self.remapped, self.xid = np.zeros(shape), np.zeros(shape)
        self.thermal_ns, self.capped_ns = np.zeros(shape), np.zeros(shape)
        self.sbe, self.dbe, self.replays = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.crc, self.nvlink_replays = np.zeros(shape), np.zeros(shape)
        self.ib_symbols, self.ib_recoveries = np.zeros((nodes, ports)), np.zeros((nodes, ports))
        self.ib_receive, self.ib_discards = np.zeros((nodes, ports)), np.zeros((nodes, ports))
        self.ib_downed = np.zeros((nodes, ports))
        self.energy_mj: Floats = chance.uniform(1e12, 9e12, shape).round()
        self.ib_bytes: Floats = chance.uniform(1e12, 9e13, (nodes, ports)).round()

    def reset(self, row: int, *, boot_at: float | None) -> None:
        for name in _COUNTERS:
            getattr(self, name)[row] = 0
        if boot_at is not None:
            self._boot_at[row] = boot_at

    def slower(self, effects: Effects) -> Floats:
        """(nodes, GPUs) current factor on compute time."""
        return effects.compute * np.where(self.hot, CUT_COMPUTE, 1.0)

    def advance(self, at: float, work: Floats, effects: Effects) -> None:
        """`work` (nodes, GPUs): NaN without a job, else load 0..1 (low while a checkpoint is written)."""
        dt = at - self._at
        self._at = at
        self._advance_load(work, effects)
        self._advance_heat(at, dt, effects)
        self._advance_counters(dt, effects)

    def _advance_load(self, work: Floats, effects: Effects) -> None:
        shape = work.shape
        normal = self._chance.standard_normal((4, *shape))
        held = ~np.isnan(work)
        self.busy = np.where(held, work, 0.0)
        active = self.busy > 0.5
        cut = np.where(self.hot & active, CUT_CLOCK, 1.0) * effects.clock
        self.util = np.where(active, (98 + normal[0]).clip(92, 100), self.busy * 20).round()
        clock = BUSY_MHZ * cut + self._own_mhz + normal[1] * 6
        self.clock_mhz = np.where(held, (clock / 15).round() * 15, IDLE_MHZ)
        load_w = (BUSY_W * cut + self._own_w) * np.where(self.busy == SPINS, SPIN_SHARE, 1.0)
        watts = IDLE_W + self.util / 100 * load_w + normal[2] * np.where(active, 7, 0.6)
        self.power_w = watts.round(1)
        self.engine = (self.util / 100).round(3)
        self.tensor = np.where(active, 0.62 + 0.012 * normal[3], 0.0).round(3)
        self.dram = (self.tensor * 0.8).round(3)
        self.pcie_tx = (self.util * 4e7).round()
        self.pcie_rx = (self.util * 3e7).round()
        self.memory_used = np.where(held, MIB_BUSY, 4.0)
        bits = np.where(held, np.where(normal[2] > 0.5, _CAP_BIT, 0), _IDLE_BIT)
        self.reasons = np.where(self.hot & active, _HEAT_BITS, bits)
        self.pcie_gen = np.where(held, 5.0, 1.0)  # an idle link rests in generation 1
        self.pcie_width = effects.pcie_width
        down = np.broadcast_to(effects.fabric_down[:, None], shape)
        self.fabric_state = np.where(down, FABRIC_IN_PROGRESS, FABRIC_COMPLETED)
        self.remap_pending, self.remap_failed = effects.remap_pending * 1.0, effects.remap_failed * 1.0

    def _advance_heat(self, at: float, dt: float, effects: Effects) -> None:
        swing = 1.5 * np.sin(2 * np.pi * at / DAY_S)
        target = self._inlet_c[:, None] + swing + self.power_w * C_PER_W + self._own_c + effects.warmer_c
        held = effects.throttle & (self.busy > 0.5)
        target = np.where(held, HELD_C + 1.0, target)
        self.temp_c = np.minimum(target + (self.temp_c - target) * np.exp(-dt / LAG_S), HELD_C + 0.4)
        self.hot = effects.throttle & (self.temp_c >= CUT_FROM_C)
        self.memory_temp_c = self.temp_c + 6 + self.util * 0.04

    def _advance_counters(self, dt: float, effects: Effects) -> None:
        chance, shape = self._chance, self.busy.shape
        self.energy_mj += (self.power_w * dt * 1000).round()
        active = self.busy > 0.5
        self.thermal_ns += (self.hot & active) * round(HELD_SHARE * dt * 1e9)
        self.capped_ns += active * round(CAPPED_SHARE * dt * 1e9)
        self.sbe += chance.poisson(SBE_PER_S * dt, shape)
        self.replays += chance.poisson(REPLAYS_PER_S * dt, shape) + effects.pcie_replays * dt
        self.dbe += effects.ecc_uncorrectable * dt
        self.crc += effects.nvlink_crc * dt
        self.nvlink_replays += effects.nvlink_crc * dt * 0.01
        self.ib_symbols += chance.poisson(SYMBOLS_PER_S * dt, self.ib_symbols.shape) + effects.ib_symbols * dt
        self.ib_recoveries += effects.ib_recoveries * dt
        self.ib_receive += effects.ib_receive * dt
        self.ib_discards += effects.ib_discards * dt
        self.ib_bytes += (self.busy.mean(axis=1)[:, None] * 3e10 * dt).round()

    # --- bodies

    def bodies(self, effects: Effects) -> list[dict[str, Any]]:
        """`gpu`, `host` and `ports` of each node, by row."""
        gpu = self._shown(GPU_SIGNALS)
        port = self._shown(PORT_SIGNALS)
        names, port_names = tuple(GPU_SIGNALS), tuple(PORT_SIGNALS)
        hosts = self._hosts(effects)
        found = [
            {"gpu": dict(zip(names, per_gpu, strict=True)), "host": host}
            for per_gpu, host in zip(gpu.transpose(1, 0, 2).tolist(), hosts, strict=True)
        ]
        for body, per_port in zip(found, port.transpose(1, 2, 0).tolist(), strict=True):
            body["ports"] = {
                f"mlx5_{index}/1": dict(zip(port_names, values, strict=True))
                for index, values in enumerate(per_port)
            }
        for row in np.flatnonzero(effects.missing.any(axis=1)).tolist():
            _lose(found[row]["gpu"], effects.missing[row].tolist())
        return found

    def _shown(self, signals: dict[str, str]) -> NDArray[np.float64]:
        """(signals, nodes, …), rounded as sensors do: temperatures and counts are whole numbers."""
        shown = np.stack([getattr(self, name) for name in signals.values()])
        whole = [index for index, name in enumerate(signals.values()) if name not in _FRACTIONS]
        shown[whole] = np.floor(shown[whole] + 1e-9)
        return shown

    def _hosts(self, effects: Effects) -> list[dict[str, Any]]:
        nodes, gpus = self.busy.shape
        load = (2 + 12 * self.busy.sum(axis=1) + self._chance.normal(0, 0.5, nodes)).clip(0.1).round(2)
        free = (1.9e12 - 9e10 * (self.busy > 0).sum(axis=1)).round()
        count = gpus - effects.missing.sum(axis=1)
        return [
            {
                "node_load1": one_load,
                "node_memory_MemTotal_bytes": 2.1e12,
                "node_memory_MemAvailable_bytes": one_free,
                "node_boot_time_seconds": boot,
                "gpu_count": visible,
                "fabric_manager_active": 0 if down else 1,
            }
            for one_load, one_free, boot, visible, down in zip(
                load.tolist(), free.tolist(), self._boot_at.round().tolist(), count.tolist(),
                effects.fabric_down.tolist(), strict=True,
            )
        ]  # fmt: skip


_FRACTIONS = frozenset({"power_w", "engine", "tensor", "dram"})


def _lose(gpu: dict[str, list[float | None]], missing: list[bool]) -> None:
    """Removes the values of missing GPUs."""
    for name, values in gpu.items():
        gpu[name] = [None if gone else value for value, gone in zip(values, missing, strict=True)]


#: Shares of scrapes that are lost, and that come one round late.
LOST_SHARE = 0.0005
LATE_SHARE = 0.0005
#: InfiniBand ports of a node.
PORTS = 2
#: Seconds in which a booting node sends nothing.
BOOT_S = 30.0


@dataclass(slots=True)
class Sent:
    """What a fleet sends at one moment: bodies of three routes."""

    at: datetime
    metrics: list[dict[str, Any]] = field(default_factory=list)
    step_times: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)


class SimTelemetry:
    """The senders of one simulated cluster. Not thread-safe.

    Inlet temperatures differ by rack, of eight nodes each.
    """

    def __init__(
        self,
        cluster: str,
        nodes: Iterable[str],
        *,
        start: datetime,
        seed: int = 0,
        gpus: int = 8,
        pace: Pace | None = None,
    ) -> None:
        self.cluster = cluster
        self.names = list(nodes)
        self._rows = {name: row for row, name in enumerate(self.names)}
        self._gpus = gpus
        #: True: no scrape is ever lost or late.
        self.quiet = False
        self._chance = np.random.default_rng([seed, 1])
        rack_of = [str(row // 8) for row in range(len(self.names))]
        self._fleet = FleetMetrics(
            rack_of, gpus=gpus, ports=PORTS, start=start.timestamp(), chance=np.random.default_rng([seed, 2])
        )
        self._training = Training(self._rows, gpus, seed, pace or Pace())
        self._planted: list[Planted] = []
        self._effects = effects_of((), self._rows, gpus, PORTS)
        self._late: list[dict[str, Any]] = []
        #: Row -> Unix seconds until which that node sends nothing.
        self._dark: dict[int, float] = {}
        self._now = start.timestamp()

    # --- faults

    @property
    def planted(self) -> Sequence[Planted]:
        return tuple(self._planted)

    def plant(self, fault: str, node: str | None = None, gpu: int | None = None) -> None:
        """Raises ValueError for a fault, node or GPU that does not exist."""
        planting = checked(fault, node, gpu, self._rows, self._gpus)
        if planting not in self._planted:
            self._change([*self._planted, planting])

    def mend(self, node: str | None = None, fault: str | None = None) -> None:
        """Removes the faults of the node (None: of all), or only that fault."""

        which = None if fault is None else Fault(fault)

        def stays(planting: Planted) -> bool:
            return node not in {None, planting.node} or which not in {None, planting.fault}

        self._change([planting for planting in self._planted if stays(planting)])

    def _change(self, planted: list[Planted]) -> None:
        self._planted = planted
        self._effects = effects_of(planted, self._rows, self._gpus, PORTS)

    def reboot(self, node: str) -> None:
        """Resets counters; the node sends nothing for a while."""
        row = self._rows[node]
        self._fleet.reset(row, boot_at=self._now)
        self._dark[row] = self._now + BOOT_S

    def restart_exporter(self, node: str) -> None:
        """Resets the exporter's counters; one scrape is missing."""
        row = self._rows[node]
        self._fleet.reset(row, boot_at=None)
        self._dark[row] = self._now + 8.0

    # --- jobs and time

    def show(self, snapshot: SlurmSnapshot) -> None:
        """Sets the running jobs. Cheap when they are the same as before."""
        self._training.show(snapshot.jobs)

    def hang(self, job: str, ranks: Sequence[int] = (), *, stopped: bool = False) -> None:
        """The job makes no step until it is restarted: `ranks` never reach its collective; `stopped`: they
        report nothing either."""
        self._training.hang(job, ranks, stopped=stopped)

    def go_on(self, job: str) -> None:
        """Ends the hang."""
        self._training.go_on(job)

    def advance(self, now: datetime) -> Sent:
        """What the fleet sends at `now`, which must not decrease."""
        at = now.timestamp()
        if at < self._now:
            raise ValueError(f"time cannot go back to {now}")
        sent = Sent(now)
        work = self._training.work(at)
        self._fleet.advance(at, work, self._effects)
        slower = self._fleet.slower(self._effects)
        sent.step_times, sent.checkpoints = self._training.advance(at, slower, self.cluster)
        self._now = at
        self._collect(sent, at)
        return sent

    def _collect(self, sent: Sent, at: float) -> None:
        stamp = rfc3339(at)
        bodies = self._fleet.bodies(self._effects)
        lost, late = self._harm()
        sent.metrics, self._late = self._late, []
        for row, body in enumerate(bodies):
            if row in lost or self._effects.silent[row] or self._is_dark(row, at):
                continue
            whole = {"cluster": self.cluster, "node": self.names[row], "time": stamp, **body}
            (self._late if row in late else sent.metrics).append(whole)

    def _harm(self) -> tuple[set[int], set[int]]:
        """Rows whose scrape is lost, and rows whose scrape comes late."""
        drawn = self._chance.random(len(self.names))
        if self.quiet:
            return set(), set()
        lost = np.flatnonzero(drawn < LOST_SHARE).tolist()
        late = np.flatnonzero((drawn >= LOST_SHARE) & (drawn < LOST_SHARE + LATE_SHARE)).tolist()
        return set(lost), set(late)

    def _is_dark(self, row: int, at: float) -> bool:
        until = self._dark.get(row)
        if until is None:
            return False
        if at >= until:
            del self._dark[row]
        return at < until
