"""Slow nodes in step times: simulated jobs, and the noise of a real one with slowness put in.

`trace-SE.parquet` is published by ByteDance-Seed/StragglerAnalysis: 43 sampled steps of 64 ranks with
sequences of unequal length, where no rank is slow. AR and ST are kept for judging.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._scoreboard.events import Tally, alarms, judge
from benchmarks._scoreboard.table import Row
from healer.detection import stragglers
from healer.detection.protocol import TickInput
from healer.detection.step_findings import STRAGGLER
from healer.detection.stragglers import Stragglers
from healer.model import Catalogue, SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.telemetry import StepBatch
from healer.observations.steps import StepTimes
from healer.observations.telemetry_windows import Telemetry
from healer.sim.fleet_steps import Pace, Training

TRACE = "trace-SE.parquet"
START = datetime(2026, 11, 20, tzinfo=UTC)
NODES, PER, STEP_S = 32, 8, 5.0
HISTORY, STEPS, ONSET = 200, 600, 300
#: Noise of a rank's step, and how much slower the node is: equal work, and unequal.
CASES = ((0.004, 0.05), (0.12, 0.10))
#: Of the real job: the first sampled steps are history; slowness begins three steps later.
SE_HISTORY, SE_ONSET, SLOWER = 10, 3, (1.2, 1.5, 2.35)
GAP, EARLY = 10, 0

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """`times` (steps, nodes); from step `onset` of the stream on, `slow` is slow. None: no node is."""

    times: Floats
    history: int
    slow: int | None
    onset: int
    days: float


def simulated(seeds: range) -> Iterator[Run]:
    """One run with a slow node and one without, of each noise and seed; the mean of a node's ranks."""
    for seed in seeds:
        for noise, slower in CASES:
            for slow in (seed % NODES, None):
                times = _job(seed, noise, slow, 1 + slower)
                yield Run(times, HISTORY, slow, ONSET - HISTORY, (STEPS - HISTORY) * STEP_S / 86_400)


def _job(seed: int, noise: float, slow: int | None, factor: float) -> Floats:
    names = [f"gpu{row:04}" for row in range(NODES)]
    training = Training({name: row for row, name in enumerate(names)}, PER, seed, Pace(noise=noise))
    training.show({"1": SlurmJob(id="1", state="RUNNING", nodes=tuple(names))})
    found, at = np.full((STEPS, NODES * PER), np.nan), 0.0
    slower = np.ones((NODES, PER))
    done = 0
    while done < STEPS:
        if slow is not None and done >= ONSET:
            slower[slow] = factor
        at += 1.0
        for body in training.advance(at, slower, "sim")[0]:
            for sample in body["samples"]:
                done = sample["step"]
                if done <= STEPS and "compute_s" in sample:
                    found[done - 1, sample["rank"]] = sample["compute_s"]
    return found.reshape(STEPS, NODES, PER).mean(axis=2)


def real(file: Path) -> Iterator[Run]:
    """As it was, and once for each slowness and each fourth rank. Raises ImportError without pyarrow."""
    times = _compute(file)
    yield Run(times, SE_HISTORY, None, 0, 1)
    for factor in SLOWER:
        for rank in range(0, times.shape[1], 4):
            changed = times.copy()
            changed[SE_HISTORY + SE_ONSET :, rank] *= factor
            yield Run(changed, SE_HISTORY, rank, SE_ONSET, 1)


def _compute(file: Path) -> Floats:
    """(steps, ranks) forward and backward seconds of all micro-batches."""
    from pyarrow import parquet

    with file.open("rb") as opened:  # pyarrow's own error for a missing file does not name it
        table = parquet.read_table(opened, columns=["rank", "step", "optype", "duration"])
    kind = np.array(table["optype"].to_pylist())
    computes = np.isin(kind, ["forward-compute", "backward-compute"])
    steps, step = np.unique(table["step"].to_numpy(), return_inverse=True)
    ranks, rank = np.unique(table["rank"].to_numpy(), return_inverse=True)
    found = np.zeros((len(steps), len(ranks)))
    np.add.at(found, (step[computes], rank[computes]), table["duration"].to_numpy()[computes])
    return found


# --- baselines: (history, stream) -> (steps, nodes)


def peers(history: Floats, stream: Floats) -> Floats:
    """Each step by itself: the log ratio to the median, in robust deviations of that step."""
    x = np.log(stream)
    away = x - np.median(x, axis=1, keepdims=True)
    return away / np.maximum(1.4826 * np.median(np.abs(away), axis=1, keepdims=True), 1e-4)


def own_past(history: Floats, stream: Floats) -> Floats:
    """The log ratio to the step's median against the node's own mean and deviation in history."""
    before, now = np.log(history), np.log(stream)
    before -= np.median(before, axis=1, keepdims=True)
    now -= np.median(now, axis=1, keepdims=True)
    return (now - before.mean(axis=0)) / np.maximum(before.std(axis=0), 1e-4)


def own_past_five(history: Floats, stream: Floats) -> Floats:
    """The same, median of the last five steps."""
    z = own_past(history, stream)
    padded = np.concatenate([np.zeros((4, z.shape[1])), z])
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, 5, axis=0), axis=2)


BASELINES = {
    "peers of the step": peers,
    "own past": own_past,
    "own past, median of five": own_past_five,
}


def tally(runs: list[Run], scores: list[Floats], threshold: float) -> Tally:
    total = Tally()
    for run, score in zip(runs, scores, strict=True):
        for node in range(score.shape[1]):
            events = [(run.onset, len(score))] if node == run.slow else []
            raised = alarms(score[:, node] >= threshold, GAP)
            days = run.days if node == 0 else 0.0
            total += judge(raised, events, days=days, early=EARLY)
    return total


def in_force(run: Run) -> Floats:
    """(steps of the stream, nodes) 1 from the finding of the detector that production runs until it is over,
    with one rank on each node, whose steps are reported as they end."""
    nodes = tuple(f"gpu{row:04}" for row in range(run.times.shape[1]))
    job = SlurmJob(id="1", state="RUNNING", nodes=nodes)
    slurm = SlurmSnapshot(
        cluster="sim",
        taken_at=START,
        nodes={name: SlurmNode(name=name, state=("ALLOCATED",), gpus=1) for name in nodes},
        jobs={"1": job},
    )
    steps, detector, telemetry = StepTimes("sim"), Stragglers(), Telemetry("sim", Catalogue())
    slow, found = set[str | None](), np.zeros(run.times.shape)
    for number, compute_s in enumerate(run.times):
        now = START + timedelta(seconds=STEP_S * (number + 1))
        steps.update([_batch(nodes, number, compute_s, now)], slurm, now)
        detected = detector.tick(TickInput(now, telemetry, steps, slurm))
        slow |= {one.component.node for one in detected.findings if one.fault == STRAGGLER}
        slow -= {where.node for fault, where in detected.clear_since if fault == STRAGGLER}
        found[number] = [name in slow for name in nodes]
    return found[run.history :]


def _batch(nodes: tuple[str, ...], number: int, compute_s: Floats, now: datetime) -> StepBatch:
    ranks, none = np.arange(len(nodes), dtype=np.int32), np.full(len(nodes), np.nan)
    return StepBatch(
        cluster="sim",
        job="1",
        restart=0,
        arrived_at=now,
        nodes=nodes,
        rank=ranks,
        step=np.full(len(nodes), number, np.int64),
        at=np.full(len(nodes), now.timestamp()),
        node=ranks,
        gpu=np.zeros_like(ranks),
        stage=np.zeros_like(ranks),
        step_s=np.full(len(nodes), np.nanmax(compute_s) + 0.5),
        compute_s=compute_s,
        comm_s=none,
        data_s=none,
        work=none,
        loss=none,
        grad_norm=none,
    )


def board(runs: list[Run], per: str = "day") -> list[Row]:
    """All runs with one setting; the baselines' threshold is the best in hindsight."""
    rows = [Row.of("healer, as it runs", 1.0, tally(runs, [in_force(run) for run in runs], 1.0), per)]
    own = [stragglers.score(run.times[: run.history], run.times[run.history :]) for run in runs]
    rows.append(Row.of("stragglers.score, 1 is an alarm", 1.0, tally(runs, own, 1.0), per))
    for name, scorer in BASELINES.items():
        scores = [scorer(run.times[: run.history], run.times[run.history :]) for run in runs]
        levels = np.quantile(
            np.concatenate([score.ravel() for score in scores]), 1 - np.geomspace(0.1, 1e-5, 25)
        )
        tallies = [(float(level), tally(runs, scores, level)) for level in levels]
        rows.append(Row.of(f"{name}; best in hindsight", *max(tallies, key=lambda one: one[1].f1), per))
    return rows
