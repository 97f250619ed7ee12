"""Inputs of the models of nodes: slow features of a node, each relative to the node's peers and to its own
past.

Raw values would teach a model which job runs; a difference to the peers at the same moment does not. A
feature is (value - peers' median) / max(peers' robust deviation, `floor`), clipped at ±10 and smoothed over
2.5 minutes.

Nodes of one kind differ permanently (thermal paste, place in the rack, chip quality) by more than a mild
fault changes them. So the same features are also given relative to the node's own level of the last days. A
change shared by half of a job (which has other nodes after the next start) or of a rack (where the air gets
warmer) is not the node's own, and is subtracted too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from healer.model import Contribution, Scope
from healer.model.feature_rows import FeatureRow, Floats, Matrix
from healer.observations.groups import LEAST_OF_RACK, Groups, peer_median, peer_spread
from healer.observations.telemetry_windows import Telemetry
from healer.text import Said, quoted, say

#: Seconds between samples.
SAMPLE_S = 30.0
#: Weight of the newest sample: the smoothed value follows a step to 63 % in 2.5 minutes.
WEIGHT = 0.2
#: A feature without a new sample for this long is unknown; with fewer samples since then it is not smooth
#: yet.
STALE_S = 120.0
SAMPLES_LEAST = 5
CUT = 10.0
#: Number of features named for each score.
SHOWN = 5
#: With this mean use of its GPUs or more, a node computes; with less it is idle.
BUSY_PERCENT = 20.0


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature. `signals`: the first one that is currently reported is used. `fold`: how the values of a
    node's parts become one (mean, high, low, sum). `how`: `level` (a gauge), `log` (a gauge whose ratio
    matters), `share` (a counter of seconds: share of time), `errors` (a counter of rare events: log of 1 +
    events per hour). `floor`: the smallest difference worth one unit, in the unit of the resulting value."""

    name: str
    signals: tuple[str, ...]
    fold: str
    how: str
    floor: float


def _f(name: str, signals: str, fold: str, how: str, floor: float) -> Feature:
    return Feature(name, tuple(signals.split()), fold, how, floor)


FEATURES = (
    # GPUs: temperature and power at the peers' load, clocks, use.
    _f("gpu temperature, mean", "gpu_temp_c", "mean", "level", 2.0),
    _f("gpu temperature, hottest", "gpu_temp_c", "high", "level", 2.0),
    _f("memory temperature, hottest", "memory_temp_c", "high", "level", 2.0),
    _f("gpu power, mean", "power_w", "mean", "level", 10.0),
    _f("gpu power, lowest", "power_w", "low", "level", 10.0),
    _f("SM clock, mean", "sm_clock_mhz", "mean", "level", 20.0),
    _f("SM clock, slowest", "sm_clock_mhz", "low", "level", 20.0),
    _f("gpu use, mean", "gpu_util_percent gr_engine_active_ratio", "mean", "log", 0.05),
    _f("gpu use, least", "gpu_util_percent gr_engine_active_ratio", "low", "log", 0.05),
    _f("tensor cores active, least", "tensor_active_ratio sm_active_ratio", "low", "log", 0.05),
    _f("device memory active, least", "dram_active_ratio memory_copy_util_percent", "low", "log", 0.05),
    _f("device memory used", "gpu_memory_used_bytes", "mean", "log", 0.05),
    _f("PCIe received, least", "pcie_rx_bytes_per_s", "low", "log", 0.2),
    _f("PCIe sent, least", "pcie_tx_bytes_per_s", "low", "log", 0.2),
    _f("NVLink sent, least", "nvlink_tx_bytes_per_s", "low", "log", 0.2),
    # What slows a GPU down, and the errors that it corrects.
    _f("thermal slowdown", "hw_thermal_slowdown_s_total thermal_violation_s_total", "high", "share", 0.01),
    _f("software thermal slowdown", "sw_thermal_slowdown_s_total", "high", "share", 0.01),
    _f("power brake", "hw_power_brake_s_total power_violation_s_total", "high", "share", 0.02),
    _f("corrected memory errors", "ecc_sbe_volatile_total ecc_dram_correctable_total", "sum", "errors", 1.0),
    _f("PCIe replays", "pcie_replay_total pcie_correctable_total", "sum", "errors", 1.0),
    _f("NVLink replays", "nvlink_replay_total nvlink_dl_replay_total", "sum", "errors", 1.0),
    _f("NVLink CRC errors", "nvlink_crc_flit_total nvlink_dl_crc_total", "sum", "errors", 1.0),
    # NIC ports.
    _f("network symbol errors", "ib_symbol_error_total net_phy_rx_symbol_total", "sum", "errors", 1.0),
    _f("network receive errors", "ib_rcv_error_total net_rx_error_total", "sum", "errors", 1.0),
    _f("network waiting to send", "ib_xmit_wait_total roce_cnp_handled_total", "sum", "errors", 1.0),
    _f("network resends", "ib_packet_seq_total roce_adp_retransmit_total", "sum", "errors", 1.0),
    # The host.
    _f("host load", "load1", "mean", "log", 0.2),
    _f("host memory left", "host_memory_available_bytes", "mean", "log", 0.1),
    _f("waiting for disks", "pressure_io_s_total cpu_iowait_s_total", "sum", "share", 0.02),
    _f("waiting for memory", "pressure_memory_s_total", "sum", "share", 0.01),
    _f("disks at work", "disk_io_s_total", "sum", "share", 0.05),
    _f("processor time stolen or throttled", "cpu_steal_s_total", "sum", "share", 0.02),
    _f("TCP resends", "tcp_retransmit_total", "sum", "errors", 1.0),
    _f("host temperature", "host_temp_c", "mean", "level", 2.0),
    _f("node power", "node_power_w", "mean", "log", 0.05),
)
NAMES = tuple(feature.name for feature in FEATURES)
#: Features determined by the job and not the hardware: how much memory it uses, how busy the host is.
OF_THE_JOB = frozenset({"device memory used", "host load", "host memory left", "gpu use, mean"})
#: Features that are also compared with the node's own past, and their indices among all.
OWN_NAMES = tuple(name for name in NAMES if name not in OF_THE_JOB)
OWN_COLUMNS = np.array([NAMES.index(name) for name in OWN_NAMES])
#: The same, relative to the node's own past: in a matrix of all features they follow the others. The smoothed
#: value follows a step to 63 % in 7.5 minutes, because a mild fault changes a node by less than it varies
#: from minute to minute.
OWN_WEIGHT = 1 / 15
OWN_MARK = "; own past"
ALL_NAMES = (*NAMES, *(name + OWN_MARK for name in OWN_NAMES))


def feature_words(name: str) -> Said:
    """The name of a feature in a sentence."""
    feature, mark, _ = name.partition(OWN_MARK)
    words = quoted(feature)
    return say("detection.own_past", feature=words) if mark else words


_PLACES = {name: index for index, name in enumerate(ALL_NAMES)}


#: By `how`: from the reading to the compared value, and from there to the value for people.
_SCALES: dict[str, tuple[Callable[[NDArray], NDArray], Callable[[NDArray], NDArray]]] = {
    "level": (np.asarray, np.asarray),
    "share": (np.asarray, np.asarray),
    "log": (lambda x: np.log(np.maximum(x, 0.01)), np.exp),
    "errors": (lambda x: np.log1p(3600 * np.maximum(x, 0)), np.expm1),
}


class NodeFeatures:
    """The features of all nodes of one cluster, by the rows of the node axis. Used by one thread only."""

    def __init__(self) -> None:
        count = len(FEATURES)
        #: (features, nodes): the smoothed values; and of the last sample, the node's value and the median of
        #: its peers.
        self._smooth = np.zeros((count, 0), np.float32)
        self._heard = np.zeros((count, 0))
        self._samples = np.zeros((count, 0), np.int32)
        self._values = np.zeros((count, 0), np.float32)
        self._peers = np.zeros((count, 0), np.float32)

    def sample(self, telemetry: Telemetry, now: datetime) -> None:
        """Takes one sample of all features. Call it every `SAMPLE_S`."""
        n = telemetry.axis(Scope.node).n
        self._grow(n)
        groups = telemetry.groups(Scope.node)
        folded = _Folds(telemetry)
        stamp = now.timestamp()
        for index, feature in enumerate(FEATURES):
            values = _values(feature, telemetry, folded, now)
            if values is None:
                continue
            middle, spread = peer_spread(values, groups)
            with np.errstate(invalid="ignore"):
                z = np.clip((values - middle) / np.fmax(spread, feature.floor), -CUT, CUT)
            valid = np.isfinite(z)
            old = self._smooth[index, :n]
            fresh = stamp - self._heard[index, :n] > STALE_S
            self._smooth[index, :n] = np.where(valid, np.where(fresh, z, old + WEIGHT * (z - old)), old)
            self._heard[index, :n] = np.where(valid, stamp, self._heard[index, :n])
            self._samples[index, :n] = np.where(fresh, 0, self._samples[index, :n]) + valid
            _, to_people = _SCALES[feature.how]
            self._values[index, :n], self._peers[index, :n] = to_people(values), to_people(middle)

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Resets the history of these nodes."""
        rows = rows[rows < self._heard.shape[1]]
        self._heard[:, rows] = 0
        self._samples[:, rows] = 0

    def matrix(self, now: datetime) -> Matrix:
        """(nodes, features), NaN where unknown."""
        valid = (now.timestamp() - self._heard <= STALE_S) & (self._samples >= SAMPLES_LEAST)
        return np.where(valid, self._smooth, np.nan).T.astype(np.float32)

    def latest(self, feature: str, row: int) -> tuple[float, float]:
        """A node's feature in the last sample, and the median of its peers, in the unit for people."""
        index = _PLACES[feature.removesuffix(OWN_MARK)]
        return float(self._values[index, row]), float(self._peers[index, row])

    def contributions(self, names: Sequence[str], share: Floats, row: int) -> tuple[Contribution, ...]:
        """A node's features with the largest shares, largest first."""
        return tuple(
            Contribution(feature=names[at], share=round(float(share[at]), 4), value=value, peers=peers)
            for at in largest(share)
            for value, peers in [self.latest(names[at], row)]
        )

    def _grow(self, n: int) -> None:
        more = n - self._smooth.shape[1]
        fills = {"_smooth": 0, "_heard": -np.inf, "_samples": 0, "_values": np.nan, "_peers": np.nan}
        for name, fill in fills.items() if more > 0 else ():
            setattr(self, name, np.pad(getattr(self, name), ((0, 0), (0, more)), constant_values=fill))


def largest(share: Floats) -> list[int]:
    """Indices of the largest shares of one node, largest first; none that is 0."""
    order = np.argsort(-share, kind="stable")[:SHOWN]
    return [int(at) for at in order if share[at] > 0]


class OwnPast:
    """Smoothed differences of all nodes to their own past, by the rows of the node axis. Used by one thread
    only."""

    def __init__(self, features: int) -> None:
        self._level = np.zeros((0, features), np.float32)
        self._samples = np.zeros((0, features), np.int32)

    def sample(self, away: Matrix) -> Matrix:
        """Takes one sample (nodes, features); returns the smoothed values, NaN where unknown. After a gap the
        value is the mean of the samples since, until there are enough."""
        more = len(away) - len(self._level)
        if more > 0:
            self._level = np.pad(self._level, ((0, more), (0, 0)))
            self._samples = np.pad(self._samples, ((0, more), (0, 0)))
        valid = np.isfinite(away)
        self._samples = np.where(valid, self._samples + 1, 0)
        weight = np.maximum(OWN_WEIGHT, 1 / np.maximum(self._samples, 1))
        step = weight * (np.where(valid, away, 0) - self._level)
        self._level = np.where(valid, self._level + step, 0).astype(np.float32)
        return np.where(valid, self._level, np.nan).astype(np.float32)

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Resets the history of these nodes."""
        self._samples[rows[rows < len(self._samples)]] = 0


def against_own_past(matrix: Matrix, usual: Matrix, peers: Groups, racks: Groups) -> Matrix:
    """(nodes, features), like `matrix`; `usual` is the earlier level of each, NaN where unknown.

    NaN where the past of a node or of its peers is unknown.
    """
    away = (matrix - usual).astype(np.float64)
    columns = [column if np.isnan(column).all() else _apart(column, peers, racks) for column in away.T]
    return np.clip(np.stack(columns, axis=1), -CUT, CUT).astype(np.float32)


def _apart(away: Floats, peers: Groups, racks: Groups) -> Floats:
    """The differences, less what the peers and then what the rack have in common."""
    alone = away - peer_median(away, peers)
    shared = peer_median(alone, racks, LEAST_OF_RACK)
    return alone - np.where(np.isfinite(shared), shared, 0.0)


class _Folds:
    """Aggregates parts to nodes: the rows of each axis by node, sorted once."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._sorted: dict[Scope, tuple[NDArray, NDArray, NDArray]] = {}

    def fold(self, scope: Scope, values: NDArray, how: str) -> Floats:
        """(n,) values of parts to (nodes,); NaN for a node without a known part."""
        if scope is Scope.node:
            return values
        nodes = np.full(self._telemetry.axis(Scope.node).n, np.nan)
        order, starts, names = self._by_node(scope)
        if not len(order):
            return nodes
        ordered = values[order]
        if how == "high":
            found = np.fmax.reduceat(ordered, starts)
        elif how == "low":
            found = np.fmin.reduceat(ordered, starts)
        else:
            valid = np.isfinite(ordered)
            count = np.add.reduceat(valid.astype(np.int64), starts)
            total = np.add.reduceat(np.where(valid, ordered, 0), starts)
            divisor = np.maximum(count, 1) if how == "mean" else 1
            found = np.where(count > 0, total / divisor, np.nan)
        nodes[names] = found
        return nodes

    def _by_node(self, scope: Scope) -> tuple[NDArray, NDArray, NDArray]:
        if scope not in self._sorted:
            parent = self._telemetry.axis(scope).parent(Scope.node)
            order = np.argsort(parent, kind="stable")
            order = order[np.searchsorted(parent[order], 0) :]
            nodes, starts = np.unique(parent[order], return_index=True)
            self._sorted[scope] = order, starts, nodes
        return self._sorted[scope]


def _values(feature: Feature, telemetry: Telemetry, folds: _Folds, now: datetime) -> NDArray | None:
    """(nodes,) the feature before it is compared; None if none of its signals is reported."""
    for name in feature.signals:
        scope = telemetry.scope_of(name)
        if scope is None:
            continue
        found = folds.fold(scope, _reading(feature, name, telemetry, now), feature.fold)
        if np.isfinite(found).any():
            to_compare, _ = _SCALES[feature.how]
            return to_compare(found)
    return None


def _reading(feature: Feature, name: str, telemetry: Telemetry, now: datetime) -> Floats:
    """(n,) the present gauge, or a counter's recent growth per second."""
    if feature.how in ("level", "log"):
        return telemetry.value(name, now)
    grown, covered_s = telemetry.increase(name, SAMPLE_S, now)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(covered_s > 0, grown / covered_s, np.nan)


def classes(telemetry: Telemetry, now: datetime) -> list[tuple[str, str]]:
    """By node: GPU model and load (`busy`, `idle`); load is empty if the node is neither: drained, allocated
    without computing, computing without Slurm, or unknown."""
    allocated = telemetry.value_on(Scope.node, "slurm_allocated", now)
    usable = telemetry.value_on(Scope.node, "slurm_drained", now) == 0
    folds = _Folds(telemetry)
    use = np.full(telemetry.axis(Scope.node).n, np.nan)
    for name, scale in (("gpu_util_percent", 1.0), ("gr_engine_active_ratio", 100.0)):
        if (scope := telemetry.scope_of(name)) is not None:
            mean = folds.fold(scope, telemetry.value(name, now) * scale, "mean")
            use = np.where(np.isfinite(use), use, mean)
    busy = usable & (allocated == 1) & (use >= BUSY_PERCENT)
    idle = usable & (allocated == 0) & (use < BUSY_PERCENT)
    loads = np.where(busy, "busy", np.where(idle, "idle", "")).tolist()
    return list(zip(telemetry.model_of(Scope.node), loads, strict=True))


def columns(features: Sequence[str]) -> list[int]:
    """Indices of these features in a matrix of all; KeyError for a feature that this version does not
    have."""
    return [_PLACES[name] for name in features]


def whole(row: FeatureRow) -> Matrix:
    """(nodes, all features) of this version; features that the row does not have are unknown."""
    found = np.full((len(row.nodes), len(ALL_NAMES)), np.nan, np.float32)
    names = [name for name in row.features if name in _PLACES]
    found[:, columns(names)] = row.matrix[:, [row.features.index(name) for name in names]]
    return found
