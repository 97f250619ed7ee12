"""How fast training jobs go on without their bad nodes on a real Slurm, beside the requeue of such jobs.

    python -m benchmarks.swaps [--nodes 4] [--spares 1] [--faults 1] [--runs 10] [--requeues 10]
        [--harmless 0] [--at random] [--settle-s 2] [--seed N] [--slurmdbd PROGRAM --plugins FOLDER]

Each run is a job of its own: DDP over gloo under healer_steps.torchrun on `nodes` + `spares` nodes. The
kernel of a random node says one of several fatal lines; a worker there may die or freeze with it. Time is
taken from that line until the first step after it that follows a start from a checkpoint: of the other nodes
where the job is swapped, of as many as before where it is requeued. With `--faults 2` another node has a
fault some seconds after the job went on; Slurm 22.05 shrinks a job twice only with its accounting database
(`--slurmdbd`).

`--at`: the fault comes while rank 0 writes a checkpoint (`checkpoint`); while the others wait for one rank in
an all-reduce (`all-reduce`); while the agents meet again, because a worker on another node has ended
(`rendezvous`); while they meet for the first time (`start`); at any moment (`any`). `random` draws one for
each fault. How often the line, and then the order to leave, came in such a moment is counted by what the
ranks wrote. Workers that start again import torch, all at once: on a machine of few cores most of the time
until the next step is that, so their start and its CPU time are shown apart.

A requeue is that of a job without consent to a swap, by turns with one that agreed but whose batch host is
bad (Slurm cannot take that node out of a job), and one whose bad node cannot be asked what of the job is left
there. `--harmless`: jobs whose kernel tells of a fault of the job's own.

Everything counted at the end must be 0. SIGTERM and Ctrl-C end it with the report of what was done.
"""

import argparse
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks._load import quantile
from tests.support.accounting import accounting
from tests.support.breakable_slurm import BreakableSlurm
from tests.support.right_act import booting
from tests.support.slurm import cluster_in, started
from tests.support.stack import scratch_folder
from tests.support.swapping import (
    ALL_REDUCE,
    CHECKPOINT,
    FATAL,
    ITS_OWN,
    MEETING,
    REQUEUE,
    Fault,
    Swaps,
    Training,
    swapping,
)
from tests.support.wait import wait_until

#: A job that has made no step for three times so long after the line hangs, and three times so long may Slurm
#: need to show its new size; longer where there is more load.
HANGS_S, SHRINKS_S = 60.0, 60.0
#: The fault comes at any moment of so many seconds. Agents that start need twice as long until they have met.
MOMENTS_S = 6.0
#: A moment that was asked for lasts so long: the order to leave comes within it too.
LASTS_S = 6.0
#: healer decides within about 3 s of a line. From so long before the end of a worker to so long after it, the
#: line or the order falls into the meeting.
BEFORE_S, AFTER_S = 2.5, 1.0
#: A job is watched for so long after a fault of its own.
STAYS_S = 10.0
START, ANY = "start", "any"
AIMS = (CHECKPOINT, ALL_REDUCE, MEETING, START, ANY)
NO_CONSENT, BATCH_HOST, SILENT = "no consent", "its batch host", "a node that does not answer"
REQUEUES = (NO_CONSENT, BATCH_HOST, SILENT)
COUNTED = (
    "wrong node", "bad node not drained", "swapped job requeued", "not shrunk", "process left", "wrong loss",
    "wrong start", "hang", "bad end", "left for a fault of the job",
)  # fmt: skip


class Kind(NamedTuple):
    """What is measured, and the job's size."""

    name: str
    nodes: int
    least: int
    faults: int

    @property
    def consent(self) -> str:
        return f"healer:swap={self.least}"


def show(what: str, seconds: list[float]) -> None:
    if seconds:
        p50, p95, most = statistics.median(seconds), quantile(seconds, 0.95), max(seconds)
        print(f"{what}, n = {len(seconds)}: p50 {p50:.1f}, p95 {p95:.1f}, max {most:.1f} s", flush=True)


class Bench:
    """All runs, on one `healer up` after the other: `swaps` is the present one."""

    swaps: Swaps

    def __init__(self, seed: int, at: str) -> None:
        self.random, self._at = random.Random(seed), at
        self.taken = defaultdict[str, list[float]](list)
        self.wrong: Counter[str] = Counter()
        self.aimed: Counter[str] = Counter()
        self.loads: list[float] = []
        self.done: Counter[str] = Counter()

    def run(self, kind: Kind) -> None:
        """One job. What fails is counted, with all that the job said."""
        self.loads.append(os.getloadavg()[0])
        print(f"--- {kind.name} {self.done[kind.name] + 1}, load {self.loads[-1]:.1f}", flush=True)
        act: dict[str, Callable[[Kind], Training]] = {
            "swap": self._swap,
            "requeue": self._requeue,
            "harmless": self._harmless,
        }
        before = set(self._out())
        try:
            one = act[kind.name](kind)
        except AssertionError as error:  # it did not begin, or did not end
            self.wrong["hang"] += 1
            print(f"WRONG: {error}", flush=True)
            return
        out = set(self._out()) - before
        self._check("wrong node", one, out <= one.faulty, str(out))
        self._check("bad node not drained", one, one.faulty <= out, str(one.faulty))
        self.done[kind.name] += 1

    # --- what happens

    def _swap(self, kind: Kind) -> Training:
        aims = [self._aim(first=number == 0) for number in range(kind.faults)]
        with self._training(kind, kind.consent, at_work=START not in aims) as one, self._watched(one):
            for number, aim in enumerate(aims, 1):
                fault = self.random.choice(FATAL)
                self._strike(one, aim, self.random.choice(one.others[1:]), fault)
                self._goes_on(one, aim, kind.nodes - number, fault)
            self._shrinks(one)
            one.log.work(kind.nodes - kind.faults, one.others)
            for node in sorted(one.faulty):
                self._check("process left", one, not one.left_on(node), str(one.left_on(node)))
            self._check("swapped job requeued", one, one.shown()["Restarts"] == "0")
            self._ends(one)
        return one

    def _requeue(self, kind: Kind) -> Training:
        why = REQUEUES[self.done["requeue"] % len(REQUEUES)]
        consent = REQUEUE if why == NO_CONSENT else kind.consent
        with self._training(kind, consent) as one, self._watched(one):
            of = {NO_CONSENT: one.nodes, BATCH_HOST: one.nodes[:1], SILENT: one.nodes[1:]}
            node = self.random.choice(of[why])
            if why == SILENT:
                self.swaps.node(node).stop()
            self._strike(one, ANY, node, self.random.choice(FATAL))
            found = one.goes_on(kind.nodes, HANGS_S)
            self._take("line → next step, requeued", one, found["at"])
            self._take(f"line → next step, requeued: {why}", one, found["at"])
            self._ends(one)
        return one

    def _harmless(self, kind: Kind) -> Training:
        with self._training(kind, kind.consent) as one, self._watched(one):
            fault = self.random.choice(ITS_OWN)
            node = self.random.choice(one.nodes)
            time.sleep(self.random.uniform(0, MOMENTS_S))
            print(f"job {one.job}: {fault.title} on {node}", flush=True)
            one.fault(node, fault, of_node=False)
            one.log.work(kind.nodes, one.nodes)
            time.sleep(max(0.0, one.said_at + STAYS_S - time.time()))
            ordered = [name for name in one.nodes if one.is_to_leave(name)]
            stays = not ordered and one.shown()["Restarts"] == "0" and one.held() == list(one.nodes)
            self._check("left for a fault of the job", one, stays, str(ordered))
            self._ends(one)
        return one

    # --- when it happens

    def _aim(self, *, first: bool) -> str:
        aims = AIMS if first else tuple(aim for aim in AIMS if aim != START)
        return self.random.choice(aims) if self._at == "random" else self._at

    def _strike(self, one: Training, aim: str, node: str, fault: Fault) -> None:
        """The fault, at that moment."""
        print(f"job {one.job}: {fault.title} on {node}, at: {aim}", flush=True)
        if aim in (CHECKPOINT, ALL_REDUCE):
            one.bring(aim, LASTS_S, self.random.randrange(len(one.others)))
            time.sleep(self.random.uniform(0.5, 2.0))
        elif aim == MEETING:
            time.sleep(self.random.uniform(0, MOMENTS_S))
            self._strike_meeting(one, node, fault)
            return
        else:
            time.sleep(self.random.uniform(0, MOMENTS_S * (2 if aim == START else 1)))
        one.fault(node, fault)

    def _strike_meeting(self, one: Training, node: str, fault: Fault) -> None:
        other = self.random.choice([name for name in one.others if name != node])
        later_s = self.random.uniform(-BEFORE_S, AFTER_S)
        if later_s < 0:
            one.fault(node, fault)
            time.sleep(-later_s)
            one.break_off(other)
        else:
            one.break_off(other)
            time.sleep(later_s)
            one.fault(node, fault)

    def _aimed(self, one: Training, aim: str, ordered_at: float, fault: Fault) -> None:
        self.aimed[aim] += 1
        if aim == ANY:
            return
        moment = MEETING if aim == START else aim
        self.aimed[f"{aim}: line in it"] += one.was_in(moment, one.said_at)
        # A worker that died with the line has ended the checkpoint or the all-reduce of all.
        over = moment != MEETING and fault.number == signal.SIGKILL
        self.aimed[f"{aim}: order in it"] += not over and one.was_in(moment, ordered_at)

    # --- what comes of it

    def _goes_on(self, one: Training, aim: str, world: int, fault: Fault) -> None:
        wait_until(lambda: one.is_to_leave(one.bad), HANGS_S, what=f"{one.bad} is to be left", every_s=0.05)
        ordered_at = time.time()
        self._take("line → order to leave on the node", one, ordered_at)
        found = one.goes_on(world, HANGS_S)
        self._take("line → next step, swapped", one, found["at"])
        if aim != START:
            self._take("line → next step, swapped, not at the start", one, found["at"])
        self._take(f"line → next step, swapped, at: {aim}", one, found["at"])
        self._take("line → workers of that step start", one, found["born_at"])
        self.taken["CPU time of each such worker until it has its checkpoint"].append(found["cpu_s"])
        self._aimed(one, aim, ordered_at, fault)

    def _shrinks(self, one: Training) -> None:
        try:
            wait_until(one.has_shrunk, SHRINKS_S, what="it shrinks", every_s=0.1)
            self._take("line → Slurm shows the nodes that are left", one, time.time())
        except AssertionError:
            runs = [one.site.steps(run["id"]) for node in one.faulty for run in one.site.runs(node)]
            self._check("not shrunk", one, False, f"{one.shown()} {runs}")

    def _ends(self, one: Training) -> None:
        try:
            one.end()
        except AssertionError as error:
            self._check("bad end", one, False, str(error))
        for what, check in (("wrong loss", one.check_losses), ("wrong start", one.check_starts)):
            try:
                check()
            except AssertionError as error:
                self._check(what, one, False, str(error))

    def _training(
        self, kind: Kind, comment: str, *, at_work: bool = True
    ) -> AbstractContextManager[Training]:
        return self.swaps.training(comment, kind.nodes, kind.least, at_work=at_work)

    @contextmanager
    def _watched(self, one: Training) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            self._check("hang", one, False, str(error))

    def _out(self) -> list[str]:
        site = self.swaps.site
        return [name for name in site.slurm.node_names if site.drains(name) > 0]

    # --- what is printed

    def _check(self, what: str, one: Training, good: bool, why: str = "") -> None:
        if not good:
            self.wrong[what] += 1
            print(f"WRONG, job {one.job}: {what}: {why}\n{one.said()}", flush=True)

    def _take(self, what: str, one: Training, at: float) -> None:
        self.taken[what].append(at - one.said_at)
        print(f"{one.bad} of job {one.job}: {what} {at - one.said_at:.1f} s", flush=True)

    def report(self) -> None:
        print(f"runs: {dict(self.done)}")
        for what, seconds in sorted(self.taken.items()):
            show(what, seconds)
        for aim in AIMS:
            hits = (f"{what} in it {self.aimed[f'{aim}: {what} in it']}" for what in ("line", "order"))
            print(f"at: {aim}: {self.aimed[aim]} faults" + (f", {', '.join(hits)}" if aim != ANY else ""))
        print(", ".join(f"{what}: {self.wrong[what]}" for what in COUNTED))
        if self.loads:
            print(f"load: p50 {statistics.median(self.loads):.1f}, max {max(self.loads):.1f}", flush=True)


def in_turn(asked: argparse.Namespace) -> list[Kind]:
    """Turn by turn, on the same machine."""
    least, nodes = asked.nodes, asked.nodes + asked.spares
    left = {"swap": asked.runs, "requeue": asked.requeues, "harmless": asked.harmless}
    found: list[Kind] = []
    while any(left.values()):
        for name in (name for name, count in left.items() if count):
            left[name] -= 1
            found.append(Kind(name, nodes, least, asked.faults))
    return found


@contextmanager
def cluster_of(asked: argparse.Namespace) -> Iterator[BreakableSlurm]:
    if asked.slurmdbd is None:
        yield started()
        return
    folder = Path(tempfile.mkdtemp(prefix="hs-"))
    folder.chmod(0o755)  # the daemons run as a user of their own
    try:
        with accounting(folder, asked.slurmdbd, asked.plugins, asked.port) as settings:
            cluster = cluster_in(folder, **settings)
            with cluster:
                yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measured(folder: Path, asked: argparse.Namespace) -> None:
    left, bench = in_turn(asked), Bench(asked.seed, asked.at)
    with cluster_of(asked) as cluster, booting(cluster, cluster.node_names):
        try:
            for number in range(len(left)):
                if not left:
                    break
                place = folder / str(number)
                place.mkdir()
                with swapping(cluster, place, HEALER_SETTLE_S=str(asked.settle_s)) as bench.swaps:
                    while left and bench.swaps.fresh > left[0].nodes + left[0].faults:
                        bench.run(left.pop(0))
        finally:
            bench.report()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, count in (("nodes", 4), ("spares", 1), ("faults", 1), ("runs", 10), ("requeues", 10)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--harmless", type=int, default=0)
    parser.add_argument("--at", choices=[*AIMS, "random"], default="random")
    parser.add_argument("--settle-s", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--slurmdbd")
    parser.add_argument("--plugins", default="/usr/lib/x86_64-linux-gnu/slurm-wlm")
    parser.add_argument("--port", type=int, default=11829)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    print(f"seed {asked.seed}", flush=True)
    with scratch_folder() as folder:
        measured(folder, asked)


if __name__ == "__main__":
    main()
