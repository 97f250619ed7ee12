"""One tick over a large fleet: windows filled, then samples, rules, peers and models, each by itself.

    python -m benchmarks.tick [--nodes 10000] [--signals 30] [--ticks 12] [--jobs 0]

8 GPUs per node, jobs of 16 nodes on half of the fleet, or so many jobs on all of it, of which each then
reports a step of all its ranks each tick; gauges with noise around one level, whatever they measure, so
that a rule may take it for a fault: findings are made, because their charts cost time. CPU milliseconds of
this process, the median of all ticks and the worst; memory of the windows, and the largest of the process.
The model is fitted to random rows: its time depends on its shape alone.
"""

import argparse
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from healer.detection.creep import Creep
from healer.detection.features import OWN_MARK, OWN_NAMES, NodeFeatures, OwnPast, against_own_past
from healer.detection.language import parse
from healer.detection.leaks import Leaks
from healer.detection.level_shift import Shifts
from healer.detection.measured import RuleEngine
from healer.detection.protocol import TickInput
from healer.detection.scorers import Scorer
from healer.detection.stragglers import Stragglers
from healer.model import (
    Column,
    Part,
    Ruleset,
    Scope,
    SignalKind,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Topology,
)
from healer.model.telemetry import Report, StepBatch
from healer.observations.groups import peer_median, peer_spread
from healer.observations.job_marks import JobMarks
from healer.observations.steps import StepTimes
from healer.observations.telemetry_windows import Telemetry
from healer.rulebook.ruleset import load
from healer.sim.stores import MemoryColumns

CLUSTER, START, GPUS, JOB_NODES = "bench", datetime(2026, 11, 20, 3, 0, tzinfo=UTC), 8, 16
EVERY = timedelta(seconds=5)
RULES = Path(__file__).parents[1] / "rules"


class Watch:
    """CPU time by part."""

    def __init__(self) -> None:
        self.ms: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.ms[part].append((time.process_time() - began) * 1e3)

    def print(self) -> None:
        for part, ms in self.ms.items():
            print(f"{part:34} {statistics.median(ms):9.1f} ms   worst {max(ms):9.1f} ms")


def measured(rules: Ruleset, many: int) -> list[str]:
    """GPU signals: those that rules look at first, then others of the catalogue."""
    signals = rules.catalogue.signals
    used = dict.fromkeys(
        name for rule in rules.detection for name in parse.condition(rule.when, signals, rule.scope).signals
    )
    gpu = [name for name, one in signals.items() if one.scope is Scope.gpu and not one.derived]
    return [*(name for name in gpu if name in used), *(name for name in gpu if name not in used)][:many]


class Fleet:
    """What the nodes send: gauges with noise around a level; counters and states stay constant."""

    def __init__(self, nodes: int, rules: Ruleset, signals: list[str], book: MemoryColumns) -> None:
        self.names = [f"gpu{number:05d}" for number in range(nodes)]
        columns = [Column(name, Part(gpu=gpu)) for name in signals for gpu in range(GPUS)]
        self.ids = np.array(book.ids(columns), np.int32)
        described = [rules.catalogue.signals[name] for name in signals]
        noisy = [
            one.kind is SignalKind.gauge and one.unit not in ("count", "state", "bool") for one in described
        ]
        self.noisy = np.repeat(noisy, GPUS)
        self.chance = np.random.default_rng(1)

    def picture(self, jobs: int) -> SlurmSnapshot:
        nodes = {
            name: SlurmNode(name=name, state=("ALLOCATED",), gpus=GPUS, gpu_model="h100", switch=name[:6])
            for name in self.names
        }
        size = len(self.names) // jobs if jobs else JOB_NODES
        held = [
            SlurmJob(id=str(first), state="RUNNING", nodes=tuple(self.names[first : first + size]))
            for first in range(0, size * jobs if jobs else len(self.names) // 2, size)
        ]
        return SlurmSnapshot(cluster=CLUSTER, taken_at=START, nodes=nodes, jobs={job.id: job for job in held})

    def reports(self, at: datetime) -> list[Report]:
        noise = self.chance.normal(50, 0.5, (len(self.names), len(self.ids)))
        values = np.where(self.noisy, noise, 0.0)
        return [
            Report(CLUSTER, name, at, at, self.ids, row) for name, row in zip(self.names, values, strict=True)
        ]


def steps(picture: SlurmSnapshot, step: int, at: datetime, chance: np.random.Generator) -> list[StepBatch]:
    """One step of all ranks of all jobs."""
    found = []
    for job in picture.jobs.values():
        n = GPUS * len(job.nodes)
        rank, none = np.arange(n, dtype=np.int32), np.full(n, np.nan)
        found.append(
            StepBatch(
                cluster=CLUSTER,
                job=job.id,
                restart=0,
                arrived_at=at,
                nodes=job.nodes,
                rank=rank,
                step=np.full(n, step),
                at=np.full(n, at.timestamp()),
                node=rank // GPUS,
                gpu=rank % GPUS,
                stage=np.full(n, -1, np.int32),
                step_s=np.full(n, 5.0),
                compute_s=4 + 0.02 * chance.normal(size=n),
                comm_s=none,
                data_s=none,
                work=none,
                loss=none,
                grad_norm=none,
            )
        )
    return found


def forest() -> Scorer:
    matrix = np.random.default_rng(2).normal(size=(13_000, len(OWN_NAMES))).astype(np.float32)
    return Scorer(matrix, [name + OWN_MARK for name in OWN_NAMES])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--signals", type=int, default=30)
    parser.add_argument("--ticks", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=0)
    asked = parser.parse_args()
    rules, book, watch = load(RULES), MemoryColumns(), Watch()
    signals = measured(rules, asked.signals)
    fleet = Fleet(asked.nodes, rules, signals, book)
    telemetry = Telemetry(CLUSTER, rules.catalogue, rules.gpu_models)
    engine = RuleEngine(rules.detection, rules.catalogue)
    features, fitted, past = NodeFeatures(), forest(), OwnPast(len(OWN_NAMES))
    rows = np.random.default_rng(3).normal(size=(asked.nodes, len(OWN_NAMES))).astype(np.float32)
    picture = fleet.picture(asked.jobs)
    step_times, stragglers, creep = StepTimes(CLUSTER), Stragglers(), Creep()
    leaks, shifts, marks = Leaks(), Shifts(), JobMarks()
    now = START
    with watch("Slurm's picture, all of it new"):
        telemetry.show(picture, Topology())
    telemetry.update(fleet.reports(now), book)  # makes room: once, when nodes and signals are first heard of
    found = 0
    for number in range(asked.ticks):
        # The last one comes 15 min later: then all that is slow is due.
        now += EVERY if number < asked.ticks - 1 else timedelta(minutes=15)
        reports = fleet.reports(now)
        before = sum(map(sum, watch.ms.values()))
        with watch("samples into the windows"):
            telemetry.update(reports, book)
        look = TickInput(now, telemetry, step_times, picture)
        with watch(f"{len(rules.detection)} rules"):
            found += len(engine.tick(look).findings)
        with watch("features of all nodes (each 30 s)"):
            features.sample(telemetry, now)
        with watch("changed nodes (worst: each 15 min)"):
            shifts.tick(telemetry, features, now, ())
        with watch("memory of jobs (worst: each 10 min)"):
            leaks.tick(look)
        with watch("what jobs say of nodes (each 60 s)"):
            marks.look(picture, now)
        if asked.jobs:
            batches = steps(picture, number, now, fleet.chance)
            with watch("step times taken in"):
                step_times.update(batches, picture, now)
            with watch("stragglers"):
                stragglers.tick(look)
            with watch("creeping jobs"):
                creep.tick(look)
        peers, racks = telemetry.groups(Scope.node), telemetry.rack_groups(Scope.node)
        with watch("own past, and the model's scores (each 30 s)"):
            fitted.score(past.sample(against_own_past(rows, 0 * rows, peers, racks)))
        watch.ms["all of these"].append(sum(map(sum, watch.ms.values())) - before)
        value, groups = telemetry.value(signals[0], now), telemetry.groups(Scope.gpu)
        with watch("beside: median of peers, one signal"):
            peer_median(value, groups)
        with watch("beside: median and spread"):
            peer_spread(value, groups)
        with watch("beside: a window of 15 min, read"):
            np.nansum(telemetry.window(signals[0], 900, now))
    watch.print()
    update_us = statistics.median(watch.ms["samples into the windows"]) * 1e3 / asked.nodes
    print(f"{asked.nodes} nodes x {GPUS} GPUs x {len(signals)} signals: {update_us:.1f} us per report")
    print(f"windows {telemetry.nbytes / 1e6:.0f} MB, findings {found}, {telemetry.counts}")
    print(f"the process at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")


if __name__ == "__main__":
    main()
