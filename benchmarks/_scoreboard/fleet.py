"""What models of nodes add: subtle faults in several features of simulated nodes, and who finds them.

Sensors of `healer.sim.sim_telemetry`, read, compared and smoothed as in production; the rules that ship. No
fault here is one that the simulator plants by name: those pass rules by design. Each is mild, and moves
several features that hang together.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks._scoreboard.baselines import isolation_forest, pca_residual
from benchmarks._scoreboard.events import Span, Tally, alarms, judge
from benchmarks._scoreboard.table import Row
from healer.detection import anomaly
from healer.detection.features import NAMES, SAMPLE_S, NodeFeatures, columns
from healer.detection.forest import HOLD
from healer.detection.tick import Senses
from healer.detection.training import threshold_of, train
from healer.model import Scope, SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.feature_rows import FeatureRow
from healer.rulebook.ruleset import load
from healer.signals.translate import Translator
from healer.sim.fleet_steps import rfc3339
from healer.sim.planted_faults import Effects, no_effects
from healer.sim.sim_telemetry import FleetMetrics
from healer.sim.stores import MemoryColumns

CLUSTER, START = "sim", datetime(2026, 11, 20, tzinfo=UTC)
NODES, GPUS, PORTS, JOB_NODES = 64, 8, 2, 16
#: Samples, one each 30 s: before the first that counts, in training, and while the fleet is watched.
SETTLE, TRAIN, WATCH, ONSET = 20, 200, 120, 20
HELD = int(HOLD.total_seconds() / SAMPLE_S)
RULES = Path(__file__).parents[2] / "rules"

Floats = NDArray[np.float64]


def _paste(effects: Effects, row: int) -> None:
    """Thermal paste that dries out: one GPU 5 °C warmer, its clock 1 % lower."""
    effects.warmer_c[row, 3], effects.clock[row, 3] = 5.0, 0.99


def _airflow(effects: Effects, row: int) -> None:
    """A dusty filter: all GPUs 3 °C warmer, clocks 0.5 % lower."""
    effects.warmer_c[row], effects.clock[row] = 3.0, 0.995


def _power(effects: Effects, row: int) -> None:
    """A power supply that sags: all clocks, and so the power, 2 % lower."""
    effects.clock[row] = 0.98


def _riser(effects: Effects, row: int) -> None:
    """A riser with bad contact: some PCIe replays, and a GPU that waits a little for them."""
    effects.pcie_replays[row, 1], effects.clock[row, 1] = 0.02, 0.995


def _cable(effects: Effects, row: int) -> None:
    """A cable that ages: some symbol errors, rarely a bad packet."""
    effects.ib_symbols[row, 0], effects.ib_receive[row, 0] = 0.05, 0.005


def _link(effects: Effects, row: int) -> None:
    """NVLink that corrects now and then, on a warm GPU."""
    effects.nvlink_crc[row, 5], effects.warmer_c[row, 5] = 0.01, 3.0


FAULTS: tuple[Callable[[Effects, int], None], ...] = (_paste, _airflow, _power, _riser, _cable, _link)


@dataclass(frozen=True, slots=True, eq=False)
class Watched:
    """One fleet. `known`, `new`: (samples, nodes, features), NaN unknown; `ruled` (samples, nodes)."""

    known: Floats
    new: Floats
    ruled: NDArray[np.bool_]
    faulty: frozenset[int]
    names: tuple[str, ...]


def watched(seed: int) -> Watched:
    """Two nodes with each fault, from sample `ONSET` of the watch on."""
    random = np.random.default_rng([seed, 11])
    rows = random.permutation(NODES)[: 2 * len(FAULTS)]
    names = tuple(f"gpu{row:04}" for row in range(NODES))
    matrices, ruled = [], np.zeros((WATCH, NODES), bool)
    for number, (matrix, flagged) in enumerate(_samples(seed, names, rows)):
        if number >= SETTLE:
            matrices.append(matrix)
        if number >= SETTLE + TRAIN:
            ruled[number - SETTLE - TRAIN, [names.index(name) for name in flagged]] = True
    whole = np.stack(matrices)
    return Watched(whole[:TRAIN], whole[TRAIN:], ruled, frozenset(rows.tolist()), names)


def _samples(
    seed: int, names: tuple[str, ...], faulty: NDArray[np.int64]
) -> Iterator[tuple[Floats, set[str]]]:
    """By sample: the features of all nodes, and the nodes that a detector speaks of: all that production
    runs, but for those that live on a database."""
    rules, book = load(RULES), MemoryColumns()
    translator = Translator(rules.catalogue, book, CLUSTER)
    senses, features, slurm = Senses(CLUSTER, rules, book), NodeFeatures(), _picture(names)
    racks = [str(row // 8) for row in range(NODES)]
    chance = np.random.default_rng([seed, 12])
    fleet = FleetMetrics(racks, gpus=GPUS, ports=PORTS, start=START.timestamp(), chance=chance)
    effects, busy = no_effects(NODES, GPUS, PORTS), np.ones((NODES, GPUS))
    for number in range(SETTLE + TRAIN + WATCH):
        now = START + timedelta(seconds=SAMPLE_S * (number + 1))
        if number == SETTLE + TRAIN + ONSET:
            for place, row in enumerate(faulty.tolist()):
                FAULTS[place % len(FAULTS)](effects, row)
        fleet.advance(now.timestamp(), busy, effects)
        stamp = rfc3339(now.timestamp())
        bodies = [
            {"cluster": CLUSTER, "node": name, "time": stamp, **body}
            for name, body in zip(names, fleet.bodies(effects), strict=True)
        ]
        measured = translator.columnar(msgspec.json.encode(bodies), lambda cluster, node: True, now)
        senses.take(measured.reports, (), slurm, now)
        features.sample(senses.telemetry, now)
        flagged = {one.component.node for one in senses.tick(slurm, now, ()).findings}
        order = [senses.telemetry.rows_of(name, Scope.node)[0] for name in names]
        yield features.matrix(now)[order].astype(np.float64), {name for name in flagged if name}


def _picture(names: tuple[str, ...]) -> SlurmSnapshot:
    nodes = {name: SlurmNode(name=name, state=("ALLOCATED",), gpus=GPUS, gpu_model="h100") for name in names}
    jobs = [
        SlurmJob(id=str(first), state="RUNNING", nodes=names[first : first + JOB_NODES])
        for first in range(0, NODES, JOB_NODES)
    ]
    return SlurmSnapshot(cluster=CLUSTER, taken_at=START, nodes=nodes, jobs={job.id: job for job in jobs})


# --- methods: (samples of the watch, nodes), whether the node is called unusual


def by_model(given: Watched) -> NDArray[np.bool_]:
    """As trained in production, the threshold too. No node has a history here: only differences to the
    peers count."""
    at = [START + timedelta(seconds=SAMPLE_S * number) for number in range(TRAIN)]
    history = [
        FeatureRow(CLUSTER, "h100", "busy", when, given.names, NAMES, matrix.astype(np.float32))
        for when, matrix in zip(at, given.known, strict=True)
    ]
    model = train(history, len(history), {})
    own = np.nan_to_num(given.new[:, :, columns(model.features)]).astype(np.float32)
    above = model.scorer.score(own.reshape(-1, own.shape[2])) > model.threshold
    return held(above.reshape(own.shape[:2]))


def robust(given: Watched) -> NDArray[np.bool_]:
    """The largest feature; they are robust deviations from the peers already."""
    return _pooled(given, lambda known, new: np.abs(new).max(axis=1))


def residual(given: Watched) -> NDArray[np.bool_]:
    """Principal components of all nodes' samples together."""
    return _pooled(given, pca_residual)


def own_past(given: Watched) -> NDArray[np.bool_]:
    """Offered for any series, and run by no detector: each node against its own training."""
    known, new = np.nan_to_num(given.known), np.nan_to_num(given.new)
    scores = [anomaly.score(known[:, row], new[:, row]) for row in range(NODES)]
    return held(np.stack(scores, axis=1) >= anomaly.THRESHOLD)


def _pooled(given: Watched, scorer: Callable[[Floats, Floats], Floats]) -> NDArray[np.bool_]:
    """With a model's own way to a threshold: the quantile of training, and a margin on top."""
    known, new = (np.nan_to_num(x).reshape(-1, x.shape[2]) for x in (given.known, given.new))
    above = scorer(known, new) > threshold_of(scorer(known, known))
    return held(above.reshape(given.new.shape[:2]))


def held(above: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """For five minutes without a break, as nodes are judged in production."""
    padded = np.concatenate([np.zeros((HELD - 1, above.shape[1]), bool), above])
    return np.all(np.lib.stride_tricks.sliding_window_view(padded, HELD, axis=0), axis=2)


def tally(given: Watched, on: NDArray[np.bool_]) -> Tally:
    """By node: what it is called before its fault, or without one, is false; days are those of a node."""
    total = Tally()
    for row in range(NODES):
        events: list[Span] = [(ONSET, WATCH)] if row in given.faulty else []
        days = WATCH * SAMPLE_S / 86_400
        total += judge(alarms(on[:, row], WATCH), events, days=days, early=0)
    return total


METHODS: dict[str, Callable[[Watched], NDArray[np.bool_]]] = {
    "rules": lambda given: given.ruled,
    "forest of residuals, in force": by_model,
    "forest, raw features": lambda given: _pooled(given, isolation_forest),
    "robust deviation": robust,
    "PCA residual": residual,
    "own past (anomaly.score), not in force": own_past,
}


def board(seeds: range) -> list[Row]:
    fleets = [watched(seed) for seed in seeds]
    found = {name: [method(one) for one in fleets] for name, method in METHODS.items()}
    rules = found["rules"]
    for name in list(found)[1:]:
        found[f"rules and {name}"] = [a | b for a, b in zip(rules, found[name], strict=True)]
    rows = []
    for name, on in found.items():
        tallies = [tally(one, flagged) for one, flagged in zip(fleets, on, strict=True)]
        row = Row.of(name, np.nan, sum(tallies, Tally()), per="node-day")
        figures = {key: value for key, value in row.figures.items() if key != "threshold"}
        rows.append(Row(name, {**figures, "delay": figures["delay"] * SAMPLE_S / 60}))
    return rows
