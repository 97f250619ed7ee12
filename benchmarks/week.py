"""Does the detector's memory stay flat? A week of ticks over a small fleet whose jobs come and go.

    python -m benchmarks.week [--nodes 32] [--days 7] [--every 30]

Senses as in production (rules, forecasts, stragglers, creep, leaks, features, changed nodes, lemons) in
simulated time: 8 GPUs a node with 20 signals and the host's memory, a new set of jobs each 5 h with steps of
all ranks, some of which fail, and people who keep jobs off nodes. After each day: resident memory of this
process, what the arrays of the senses hold, and CPU time of a tick. The last day may not be more than a tenth
above the second, the first whole one after all has been seen once.
"""

import argparse
import gc
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from healer.detection.forest import Forest
from healer.detection.lemons import Lemons
from healer.detection.tick import Senses
from healer.model import Column, Part, SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.telemetry import Report, StepBatch
from healer.observations.job_marks import JobMarks
from healer.rulebook.ruleset import load
from healer.sim.stores import MemoryColumns

CLUSTER, START, GPUS, JOB_NODES = "bench", datetime(2026, 11, 1, tzinfo=UTC), 8, 8
#: Not a divisor of the day: each day sees other jobs.
JOB_LASTS = timedelta(hours=5)
SIGNALS = {
    "gpu_temp_c": 60, "memory_temp_c": 70, "power_w": 620, "power_limit_enforced_w": 700,
    "sm_clock_mhz": 1700, "gpu_util_percent": 97, "gpu_memory_total_bytes": 8e10,
    "gpu_memory_used_bytes": 6e10, "pcie_tx_bytes_per_s": 2e9, "pcie_rx_bytes_per_s": 4e9,
    "nvlink_tx_bytes_per_s": 8e10, "nvlink_rx_bytes_per_s": 8e10, "tensor_active_ratio": 0.5,
    "sm_active_ratio": 0.9, "dram_active_ratio": 0.4, "pcie_replay_total": 0,
    "ecc_sbe_volatile_total": 0, "row_remap_uncorrectable_rows": 0, "clock_event_reasons": 0,
    "power_violation_s_total": 0,
}  # fmt: skip


class Fleet:
    def __init__(self, nodes: int, book: MemoryColumns) -> None:
        self.names = [f"gpu{number:05d}" for number in range(nodes)]
        gpus = [
            (Column(name, Part(gpu=gpu)), level) for name, level in SIGNALS.items() for gpu in range(GPUS)
        ]
        host = [(Column("host_memory_available_bytes"), 1.5e12), (Column("load1"), 60.0)]
        columns = [*gpus, *host]
        self.ids = np.array(book.ids([column for column, _ in columns]), np.int32)
        self.level = np.array([level for _, level in columns])
        self.spread = np.where(self.level > 0, 0.01 * self.level, 0.0)
        self.chance = np.random.default_rng(1)

    def picture(self, at: datetime) -> SlurmSnapshot:
        """Jobs of now, and those that ended lately, each second of which failed."""
        number = int((at - START) / JOB_LASTS)
        jobs = {}
        for life, state in ((number - 1, "COMPLETED"), (number, "RUNNING")):
            for first in range(0, len(self.names), JOB_NODES):
                name = f"{life}-{first}"
                own = "FAILED" if state == "COMPLETED" and first % (2 * JOB_NODES) else state
                jobs[name] = SlurmJob(
                    id=name, state=own, nodes=tuple(self.names[first : first + JOB_NODES]),
                    user=f"u{number % 7}", excluded=(self.names[number % len(self.names)],),
                )  # fmt: skip
        nodes = {
            name: SlurmNode(name=name, state=("ALLOCATED",), gpus=GPUS, gpu_model="h100", rack=name[:7])
            for name in self.names
        }
        return SlurmSnapshot(cluster=CLUSTER, taken_at=at, nodes=nodes, jobs=jobs)

    def reports(self, at: datetime) -> list[Report]:
        values = self.level + self.spread * self.chance.normal(size=(len(self.names), len(self.level)))
        return [
            Report(CLUSTER, name, at, at, self.ids, row) for name, row in zip(self.names, values, strict=True)
        ]

    def steps(self, slurm: SlurmSnapshot, step: int, at: datetime) -> list[StepBatch]:
        found = []
        for job in (one for one in slurm.jobs.values() if one.state == "RUNNING"):
            n = GPUS * len(job.nodes)
            rank, none = np.arange(n, dtype=np.int32), np.full(n, np.nan)
            batch = StepBatch(
                cluster=CLUSTER, job=job.id, restart=0, arrived_at=at, nodes=job.nodes, rank=rank,
                step=np.full(n, step), at=np.full(n, at.timestamp()), node=rank // GPUS, gpu=rank % GPUS,
                stage=np.full(n, -1, np.int32), step_s=np.full(n, 5.0), comm_s=none, data_s=none, work=none,
                compute_s=4 + 0.02 * self.chance.normal(size=n), loss=none, grad_norm=none,
            )  # fmt: skip
            found.append(batch)
        return found


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--every", type=int, default=30)
    asked = parser.parse_args()
    rules, book = load(Path(__file__).parents[1] / "rules"), MemoryColumns()
    fleet = Fleet(asked.nodes, book)
    forest = Forest(lambda: (), lambda _: None)
    lemons = Lemons(CLUSTER, JobMarks(), lambda since, now: [], lambda found, now: None)
    senses = Senses(CLUSTER, rules, book, forest, lemons)
    every, found, resident = timedelta(seconds=asked.every), 0, []
    now, ticks = START, int(timedelta(days=1).total_seconds() / asked.every)
    for day in range(1, asked.days + 1):
        began = time.process_time()
        for _ in range(ticks):
            now += every
            slurm = fleet.picture(now)
            step = int((now - START) / every)
            senses.take(fleet.reports(now), fleet.steps(slurm, step, now), slurm, now)
            found += len(senses.tick(slurm, now, ()).findings)
        spent_ms = (time.process_time() - began) * 1e3 / ticks
        packed = sum(len(one) for one in senses.pack().values())
        gc.collect()
        resident.append(resident_mb())
        held = senses.telemetry.nbytes + sum(one.nbytes for one in senses.detectors)
        print(
            f"day {day}: {resident[-1]:.1f} MB resident, {held / 1e6:.1f} MB of arrays, "
            f"{packed / 1e6:.2f} MB packed, {len(senses.steps)} lives, {found} findings, "
            f"{spent_ms:.1f} ms CPU a tick",
            flush=True,
        )
    flat = len(resident) < 3 or resident[-1] <= 1.1 * resident[1]
    print("flat" if flat else "it grows")
    raise SystemExit(not flat)


if __name__ == "__main__":
    main()
