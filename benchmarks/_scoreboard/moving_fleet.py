"""A simulated fleet in which nodes change jobs, for judging what is compared with a node's own past.

Its sensors are those of `fleet.py`, and its features what production makes of them (a test compares both),
but reckoned for hours at once: half a day is learnt and half a day is watched in seconds. Every few hours all
nodes are dealt into new jobs, each with clocks of its own (another power, another heat), and for some hours
one rack is warmer. None of that is a fault.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks._scoreboard.fleet import FAULTS, GPUS, JOB_NODES, NODES, PORTS, START, Floats
from healer.detection.features import (
    CUT,
    FEATURES,
    OWN_COLUMNS,
    OWN_NAMES,
    SAMPLE_S,
    SAMPLES_LEAST,
    WEIGHT,
    OwnPast,
)
from healer.detection.level_shift import (
    JOB_NEAR_S,
    JOB_OUTLIVED_S,
    POINT_S,
    RELEARN_AFTER_S,
    SHARED_ALL,
    SHARED_LEAST,
    SHARED_PLACE,
    Levels,
)
from healer.detection.level_shift import LEARN as LEARN_POINTS
from healer.model.feature_rows import Matrix
from healer.observations.groups import MAD_TO_SIGMA
from healer.sim.planted_faults import no_effects
from healer.sim.sim_telemetry import FleetMetrics

#: Samples of 30 s: before the watch (15 h) and in it (12 h).
LEARN, WATCH = 1800, 1440
#: New jobs after so many samples (3 h 20 min to 7 h 30 min); a rack is warmer for 3 h.
DEAL_LEAST, DEAL_MOST = 400, 900
WARM, WARM_C = 360, 2.0
RACK_NODES = 8
JOBS = NODES // JOB_NODES
#: A job's clocks as a share of the highest.
CLOCKS = (0.93, 1.0)
_POINT = round(POINT_S / SAMPLE_S)
_LOOK = 2  # samples

_FOLDS: dict[str, Callable[[Floats], Floats]] = {
    "mean": lambda x: x.mean(axis=1),
    "high": lambda x: x.max(axis=1),
    "low": lambda x: x.min(axis=1),
    "sum": lambda x: x.sum(axis=1),
}
#: Signal -> field of the sensors, and the unit that it is sent in.
_FIELDS = {
    "gpu_temp_c": ("temp_c", 1.0), "memory_temp_c": ("memory_temp_c", 1.0), "power_w": ("power_w", 1.0),
    "sm_clock_mhz": ("clock_mhz", 1.0), "gpu_util_percent": ("util", 1.0),
    "tensor_active_ratio": ("tensor", 1.0), "dram_active_ratio": ("dram", 1.0),
    "gpu_memory_used_bytes": ("memory_used", 1048576.0), "pcie_rx_bytes_per_s": ("pcie_rx", 1.0),
    "pcie_tx_bytes_per_s": ("pcie_tx", 1.0), "thermal_violation_s_total": ("thermal_ns", 1e-9),
    "power_violation_s_total": ("capped_ns", 1e-9), "ecc_sbe_volatile_total": ("sbe", 1.0),
    "pcie_replay_total": ("replays", 1.0), "nvlink_replay_total": ("nvlink_replays", 1.0),
    "nvlink_crc_flit_total": ("crc", 1.0), "ib_symbol_error_total": ("ib_symbols", 1.0),
    "ib_rcv_error_total": ("ib_receive", 1.0), "load1": ("load", 1.0),
    "host_memory_available_bytes": ("free", 1.0),
}  # fmt: skip
_EXACT = frozenset({"power_w", "tensor", "dram", "load", "free"})


@dataclass(frozen=True, slots=True, eq=False)
class Moving:
    """One fleet. `peers`: (samples, nodes, features) differences to the peers, `own` those of `OWN_NAMES` to
    the own past, `now` the same not yet smooth, NaN unknown; `drifted`: (watch, nodes) where `drifted`
    would be reported; `onset`, `fault`: by faulty row, the sample of the watch and the number of the
    fault."""

    peers: Matrix
    own: Matrix
    now: Matrix
    drifted: NDArray[np.bool_]
    onset: dict[int, int]
    fault: dict[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Deal:
    """From sample `begin` on the nodes of `order` form jobs, one after the other, with these clocks."""

    begin: int
    order: NDArray[np.int64]
    clocks: Floats


def moving(seed: int, learn: int = LEARN, watch: int = WATCH) -> Moving:
    """Two nodes with each fault, each from a sample in the first half of the watch on."""
    chance = np.random.default_rng([seed, 21])
    rows = chance.permutation(NODES)[: 2 * len(FAULTS)].tolist()
    onset = {row: int(chance.integers(watch // 10, watch // 2)) for row in rows}
    fault = {row: place % len(FAULTS) for place, row in enumerate(rows)}
    deals = dealt(chance, learn + watch)
    at = {learn + onset[row]: [] for row in rows}
    for row in rows:
        at[learn + onset[row]].append((row, fault[row]))
    warm = learn + int(chance.integers(0, max(1, watch - WARM))), int(chance.integers(NODES // RACK_NODES))
    raw = measured(seed, learn + watch, deals, at, warm)
    peers = smoothed(against_peers(raw, deals))
    now, above = against_past(peers, deals)
    past = OwnPast(len(OWN_NAMES))
    own = np.stack([past.sample(one) for one in now])
    return Moving(peers, own, now, above[learn:], onset, fault)


def dealt(chance: np.random.Generator, samples: int) -> list[Deal]:
    found, begin = [], 0
    while begin < samples:
        order = chance.permutation(NODES)
        clocks = np.ones(NODES)
        clocks[order] = np.repeat(chance.uniform(*CLOCKS, JOBS), JOB_NODES)
        found.append(Deal(begin, order, clocks))
        begin += int(chance.integers(DEAL_LEAST, DEAL_MOST))
    return found


def measured(
    seed: int,
    samples: int,
    deals: list[Deal],
    faults: dict[int, list[tuple[int, int]]],
    warm: tuple[int, int],
) -> Floats:
    """(samples, nodes, features) of each node's parts, folded and made comparable as in production. `faults`:
    by sample, the rows and numbers that begin then; `warm`: from when on which rack is."""
    racks = [str(row // RACK_NODES) for row in range(NODES)]
    chance = np.random.default_rng([seed, 23])
    fleet = FleetMetrics(racks, gpus=GPUS, ports=PORTS, start=START.timestamp(), chance=chance)
    effects, busy = no_effects(NODES, GPUS, PORTS), np.ones((NODES, GPUS))
    found = np.full((samples, NODES, len(FEATURES)), np.nan)
    before: dict[str, Floats] = {}
    clocks = np.ones(NODES)
    begins = {deal.begin: deal for deal in deals}
    in_rack = slice(warm[1] * RACK_NODES, (warm[1] + 1) * RACK_NODES)
    for number in range(samples):
        if number in begins:
            effects.clock *= (begins[number].clocks / clocks)[:, np.newaxis]
            clocks = begins[number].clocks
        if number in (warm[0], warm[0] + WARM):
            effects.warmer_c[in_rack] += WARM_C if number == warm[0] else -WARM_C
        for row, kind in faults.get(number, ()):
            clock, warmer = effects.clock[row].copy(), effects.warmer_c[row].copy()
            effects.clock[row], effects.warmer_c[row] = 1.0, 0.0
            FAULTS[kind](effects, row)
            effects.clock[row] *= clock
            effects.warmer_c[row] += warmer
        fleet.advance(START.timestamp() + SAMPLE_S * (number + 1), busy, effects)
        found[number], before = _node_values(fleet, effects, before)
    return found


def _node_values(fleet: FleetMetrics, effects: object, before: dict[str, Floats]) -> tuple[Floats, dict]:
    hosts = fleet._hosts(effects)  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    host = {
        "load": np.array([[one["node_load1"]] for one in hosts]),
        "free": np.array([[one["node_memory_MemAvailable_bytes"]] for one in hosts]),
    }
    found, now = np.full((NODES, len(FEATURES)), np.nan), {}
    for column, feature in enumerate(FEATURES):
        signal = next((name for name in feature.signals if name in _FIELDS), None)
        if signal is None:
            continue
        field, scale = _FIELDS[signal]
        value = host[field] if field in host else getattr(fleet, field)
        shown = scale * (value if field in _EXACT else np.floor(value + 1e-9))
        if feature.how in ("share", "errors"):
            now[signal] = shown
            if signal not in before:
                continue
            shown = (shown - before[signal]) / SAMPLE_S
        value = _FOLDS[feature.fold](shown)
        if feature.how == "log":
            value = np.log(np.maximum(value, 0.01))
        elif feature.how == "errors":
            value = np.log1p(3600 * np.maximum(value, 0))
        found[:, column] = value
    return found, now


def against_peers(raw: Floats, deals: list[Deal]) -> Matrix:
    """Robust deviations from the job's nodes, cut."""
    floors = np.array([feature.floor for feature in FEATURES])
    found = np.full(raw.shape, np.nan, np.float32)
    for part, order in _stretches(deals, len(raw)):
        jobs = raw[part][:, order].reshape(-1, JOBS, JOB_NODES, raw.shape[2])
        away = jobs - np.median(jobs, axis=2, keepdims=True)
        spread = MAD_TO_SIGMA * np.median(np.abs(away), axis=2, keepdims=True)
        z = np.clip(away / np.fmax(spread, floors), -CUT, CUT)
        found[part, order] = z.reshape(-1, NODES, raw.shape[2])
    return found


def smoothed(z: Matrix) -> Matrix:
    found, level, heard = np.full_like(z, np.nan), np.full(z.shape[1:], np.nan, np.float32), 0
    heard = np.zeros(z.shape[1:], np.int64)
    for number, one in enumerate(z):
        known = np.isfinite(one)
        level = np.where(known, np.where(heard > 0, level + WEIGHT * (one - level), one), level)
        heard += known
        found[number] = np.where(heard >= SAMPLES_LEAST, level, np.nan)
    return found


def against_past(peers: Matrix, deals: list[Deal]) -> tuple[Matrix, NDArray[np.bool_]]:
    """Each node's difference to where it lay (`healer.detection.features`), and which stand above the sums of
    `drifted` (`healer.detection.level_shift`), point by point as there."""
    x = peers[:, :, OWN_COLUMNS]
    levels = Levels(OWN_NAMES)
    levels.reserve(NODES)
    begins = np.array([deal.begin for deal in deals])
    away = np.full(x.shape, np.nan, np.float32)
    above = np.zeros(x.shape[:2], bool)
    for begin in range(0, len(x), _POINT):
        usual = np.where(levels.points >= LEARN_POINTS, levels.level, np.nan).T
        part = slice(begin, begin + _POINT)
        away[part] = x[part] - usual
        looked = x[part][::_LOOK]
        known = np.isfinite(looked).all(axis=0)
        point = np.where(known, looked.mean(axis=0), np.nan).T.astype(np.float64)
        at_s = (begin + _POINT) * SAMPLE_S
        deal = int(np.searchsorted(begins, begin, "right")) - 1
        since_s = begins[deal] * SAMPLE_S
        levels.relearn(at_s, RELEARN_AFTER_S)
        near = np.full(NODES, at_s - POINT_S - since_s <= JOB_NEAR_S)
        over = levels.step(point, at_s, np.full(NODES, float(deal + 1)), near)
        outlived = (deal + 1 > levels.epoch) & (at_s - since_s >= JOB_OUTLIVED_S)
        shifted = over & ((levels.new_job == 0) | outlived)
        together = shifted.sum(axis=1)
        shifted[(together >= SHARED_LEAST) & (together > SHARED_ALL * NODES)] = False
        racks = shifted.reshape(len(OWN_NAMES), -1, RACK_NODES)
        beside = racks.sum(axis=2, keepdims=True)
        shared = (beside >= SHARED_LEAST) & (beside > SHARED_PLACE * RACK_NODES)
        shifted = (racks & ~shared).reshape(shifted.shape)
        above[begin + _POINT : begin + 2 * _POINT] = shifted.any(axis=0)
    for part, order in _stretches(deals, len(x)):
        jobs = away[part][:, order].reshape(-1, JOBS, JOB_NODES, x.shape[2])
        own = jobs - np.median(jobs, axis=2, keepdims=True)
        away[part, order] = own.reshape(-1, NODES, x.shape[2])
    racks = away.reshape(len(x), -1, RACK_NODES, x.shape[2])
    own = np.clip(racks - np.median(racks, axis=2, keepdims=True), -CUT, CUT)
    return own.reshape(x.shape), above


def _stretches(deals: list[Deal], samples: int) -> list[tuple[slice, NDArray[np.int64]]]:
    ends = [deal.begin for deal in deals[1:]] + [samples]
    return [(slice(deal.begin, end), deal.order) for deal, end in zip(deals, ends, strict=True)]
