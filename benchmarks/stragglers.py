"""A slow node among 32, found from step times: how soon, how often, and how many false alarms.

    python -m benchmarks.stragglers [--runs 100] [--days 2] [--seed 1]

One job on 32 nodes × 8 ranks, 5 s a step, in simulated time through `StepTimes` and `Stragglers` as the
detector uses them, one tick per step. Compute of a rank: own bias of its node (0.6 %) and rank (0.3 %), one
rack 1 % slower, noise of 0.4 % (equal work) or 12 % (unequal), every 100 steps a checkpoint, now and then a
pause of 0.1-0.4 s on one rank. The delay counts from the first slow step to the tick that reports the node;
a job's first five steps are never judged and count too. Goals: `docs/detection.md`.
"""

import argparse
import math
import time
from datetime import UTC, datetime, timedelta

import numpy as np

from healer.detection.protocol import TickInput
from healer.detection.stragglers import Stragglers
from healer.model import Catalogue, SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.telemetry import StepBatch
from healer.observations.steps import StepTimes
from healer.observations.telemetry_windows import Telemetry

NODES, PER, STEP_S = 32, 8, 5.0
RANKS = NODES * PER
STEPS_PER_DAY = int(86_400 / STEP_S)
START = datetime(2026, 11, 20, tzinfo=UTC)
NAMES = tuple(f"gpu{index:04}" for index in range(NODES))
#: (noise, slower by, found within s)
CASES = ((0.004, 0.05, 25.0), (0.12, 0.10, 400.0))
#: The slowness begins at this step; 0: from the start.
ONSETS = (0, 20, 200)


class Fleet:
    def __init__(self, seed: int, noise: float) -> None:
        self.random = np.random.default_rng(seed)
        bias = self.random.normal(0, 0.006, NODES).repeat(PER) + self.random.normal(0, 0.003, RANKS)
        bias[: RANKS // 8] += 0.01
        self.usual, self.noise = 4.0 * np.exp(np.clip(bias, -0.02, 0.02)), noise
        nodes = {name: SlurmNode(name=name, state=("ALLOCATED",), gpus=PER) for name in NAMES}
        job = SlurmJob(id="1", state="RUNNING", nodes=NAMES)
        self.slurm = SlurmSnapshot(cluster="pod1", taken_at=START, nodes=nodes, jobs={"1": job})
        self.steps, self.stragglers = StepTimes("pod1"), Stragglers()
        self.telemetry = Telemetry("pod1", Catalogue())
        self.rank = np.arange(RANKS, dtype=np.int32)
        self.none = np.full(RANKS, np.nan)
        self.number = 0

    def step(self, slow: float, ranks: int) -> set[str | None]:
        """One step and one tick; the nodes that are reported. The first `ranks` ranks are slower by
        `slow`."""
        self.number += 1
        at = START + timedelta(seconds=STEP_S * self.number)
        compute = self.usual * (1 + self.noise * self.random.normal(size=RANKS)).clip(0.2)
        if self.number % 100 == 0:
            compute += 3.0
        if self.random.random() < 0.2:
            compute[self.random.integers(RANKS)] += self.random.uniform(0.1, 0.4)
        compute[:ranks] *= 1 + slow
        batch = StepBatch(
            cluster="pod1",
            job="1",
            restart=0,
            arrived_at=at,
            nodes=NAMES,
            rank=self.rank,
            step=np.full(RANKS, self.number, np.int64),
            at=np.full(RANKS, at.timestamp()),
            node=self.rank // PER,
            gpu=self.rank % PER,
            stage=np.zeros(RANKS, np.int32),
            step_s=np.full(RANKS, compute.max() + 0.5),
            compute_s=compute,
            comm_s=self.none,
            data_s=self.none,
            work=np.full(RANKS, 8192.0),
            loss=self.none,
            grad_norm=self.none,
        )
        self.steps.update([batch], self.slurm, at)
        detected = self.stragglers.tick(TickInput(at, self.telemetry, self.steps, self.slurm))
        return {one.component.node for one in detected.findings if one.fault == "straggler"}


def delay_s(seed: int, noise: float, slow: float, onset: int, ranks: int) -> tuple[float, int]:
    """Seconds until the slow node is reported (inf: not within 800 s), and how many others were."""
    fleet, wrong = Fleet(seed, noise), 0
    for _ in range(onset):
        wrong += len(fleet.step(0.0, 0))
    for number in range(1, int(800 / STEP_S) + 1):
        blamed = fleet.step(slow, ranks)
        wrong += len(blamed - {NAMES[0]})
        if NAMES[0] in blamed:
            return number * STEP_S, wrong
    return math.inf, wrong


def false_alarms(seed: int, noise: float, days: float) -> int:
    fleet = Fleet(seed, noise)
    return sum(len(fleet.step(0.0, 0)) for _ in range(int(days * STEPS_PER_DAY)))


def upper_bound(count: int) -> float:
    """Of a Poisson mean, 95 %, one-sided: the mean at which so few would come with a chance of 5 %."""
    low, high = 0.0, 10.0 * (count + 1)
    for _ in range(60):
        mean = (low + high) / 2
        few = sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(count + 1))
        low, high = (mean, high) if few > 0.05 else (low, mean)
    return high


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--days", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    begun = time.process_time()
    print(f"{NODES} nodes x {PER} ranks, {STEP_S:g} s a step, {given.runs} runs each, seed {given.seed}")
    for noise, slow, within_s in CASES:
        for ranks, what in ((PER, "node"), (1, "one GPU")):
            for onset in ONSETS:
                runs = [delay_s(given.seed + n, noise, slow, onset, ranks) for n in range(given.runs)]
                delays = np.array([one[0] for one in runs])
                late = np.quantile(delays, 0.95, method="higher")
                print(
                    f"noise {noise:.1%}, {what} {slow:.0%} slower from step {onset}: found after "
                    f"{np.median(delays):.0f} s (median; 95 %: {late:.0f} s), "
                    f"recall {np.mean(delays <= 400):.3f} in 400 s (goal {within_s:.0f} s), "
                    f"wrong nodes {sum(one[1] for one in runs)}",
                    flush=True,
                )
    for noise, _, _ in CASES:
        count = false_alarms(given.seed + 10_000, noise, given.days)
        print(
            f"noise {noise:.1%}: {count} false alarms in {given.days:g} job-days "
            f"(95 % bound {upper_bound(count) / given.days:.2f} a job-day)",
            flush=True,
        )
    print(f"{time.process_time() - begun:.0f} s of CPU")


if __name__ == "__main__":
    main()
