"""How fast a training job goes on without a bad node on a real Slurm, beside the requeue of such a job.

    python -m benchmarks.swaps [--runs 10] [--requeues 10] [--settle-s 2] [--seed N]

Each run is a job of its own: DDP over gloo under healer_steps.torchrun on five nodes, and four are enough.
At a random moment the kernel of a random node, never the batch host, says that a GPU is gone. Time is taken
from that line until the first step after it that follows a start from a checkpoint: of the four others where
the job is swapped, of all five where it is requeued. Wrong nodes, swapped jobs that were requeued or that did
not shrink, and hangs must be 0.
"""

import argparse
import random
import statistics
import time
from collections import Counter, defaultdict
from pathlib import Path

from tests.support.right_act import booting
from tests.support.slurm import started
from tests.support.stack import scratch_folder
from tests.support.swapping import LEAST, NODES, REQUEUE, SWAP, Swaps, Training, swapping
from tests.support.wait import wait_until

#: A job that has made no step for so long after the line hangs; so long may Slurm need to show its new size.
HANGS_S, SHRINKS_S = 120.0, 60.0
#: The fault comes at any moment of so many seconds.
MOMENTS_S = 6.0
COUNTED = ("wrong node", "swapped job requeued", "not shrunk", "wrong loss", "hang")


def told(what: str, seconds: list[float]) -> None:
    if seconds:
        in_order = sorted(seconds)
        p95 = in_order[min(len(in_order) - 1, int(len(in_order) * 0.95))]
        p50, most = statistics.median(in_order), in_order[-1]
        print(f"{what}, n = {len(seconds)}: p50 {p50:.1f}, p95 {p95:.1f}, max {most:.1f} s", flush=True)


class Bench:
    def __init__(self, swaps: Swaps, seed: int) -> None:
        self.swaps, self.random = swaps, random.Random(seed)
        self.bad = set[str]()
        self.taken = defaultdict[str, list[float]](list)
        self.wrong: Counter[str] = Counter()

    def run(self, comment: str) -> None:
        with self.swaps.training(comment) as one:
            time.sleep(self.random.uniform(0, MOMENTS_S))
            one.fault(self.random.choice(one.nodes[1:]))
            self.bad.add(one.bad)
            try:
                self._swapped(one) if comment == SWAP else self._requeued(one)
            except AssertionError as error:
                self.wrong["hang"] += 1
                print(f"{error}\n{one.said()}")
            out = {name for name in self.swaps.site.slurm.node_names if self._is_out(name)}
            self.wrong["wrong node"] += bool(out - self.bad)

    def _is_out(self, name: str) -> bool:
        return self.swaps.site.drains(name) > 0

    def _take(self, what: str, one: Training, at: float) -> None:
        self.taken[what].append(at - one.said_at)
        print(f"{one.bad} of job {one.job}: {what} {at - one.said_at:.1f} s", flush=True)

    def _requeued(self, one: Training) -> None:
        self._take("line → next step, requeued", one, one.goes_on(NODES, HANGS_S)["at"])
        self._losses(one)

    def _swapped(self, one: Training) -> None:
        file = one.folder / f"{one.bad}.verdict"
        wait_until(lambda: '"leave"' in file.read_text(), HANGS_S, what="the node knows it", every_s=0.05)
        self._take("line → verdict on the node", one, time.time())
        self._take("line → next step, swapped", one, one.goes_on(LEAST, HANGS_S)["at"])
        try:
            wait_until(one.has_shrunk, SHRINKS_S, what="it shrinks", every_s=0.1)
            self._take("line → Slurm shows four nodes", one, time.time())
        except AssertionError:
            self.wrong["not shrunk"] += 1
            print([one.site.steps(run["id"]) for run in one.site.runs(one.bad)])
        one.told.work(LEAST, one.others)
        self.wrong["swapped job requeued"] += one.shown()["Restarts"] != "0"
        self._losses(one)

    def _losses(self, one: Training) -> None:
        try:
            one.check_losses()
        except AssertionError as error:
            self.wrong["wrong loss"] += 1
            print(error)

    def report(self) -> None:
        for what, seconds in sorted(self.taken.items()):
            told(what, seconds)
        print(", ".join(f"{what}: {self.wrong[what]}" for what in COUNTED), flush=True)


def measured(folder: Path, asked: argparse.Namespace) -> None:
    cluster = started()
    left = {SWAP: asked.runs, REQUEUE: asked.requeues}
    with (
        booting(cluster, cluster.node_names),
        swapping(cluster, folder, HEALER_SETTLE_S=str(asked.settle_s)) as swaps,
    ):
        bench = Bench(swaps, asked.seed)
        try:
            while any(left.values()):  # turn by turn, on the same machine
                for comment in [one for one, count in left.items() if count]:
                    left[comment] -= 1
                    bench.run(comment)
        finally:
            bench.report()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--requeues", type=int, default=10)
    parser.add_argument("--settle-s", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    with scratch_folder() as folder:
        measured(folder, asked)


if __name__ == "__main__":
    main()
