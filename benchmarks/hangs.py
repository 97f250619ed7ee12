"""Hangs found from step times: how soon, how many, and how often a job that only pauses is called one.

    python -m benchmarks.hangs [--runs 100] [--days 2] [--seed 1] [--pace "5 s a step"]

One job of 8 nodes × 8 ranks in simulated time (`healer/sim/fleet_steps.py`) through the wire form,
`StepTimes` and `Hangs` as the detector uses them: read every second, a tick every 5 s, and a look at jobs
whose link was lost in between; each rank sends every 5 s, a fifth of them each second, as clients do. The
delay counts from the moment at which the job stalls. False alarms:
whole days of jobs with checkpoints, evaluations, pauses of single ranks, senders that die, healer away for
minutes, and requeues.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np

from benchmarks.stragglers import upper_bound
from healer.detection.hang_evidence import QUIET_S
from healer.detection.hangs import Hangs
from healer.detection.protocol import TickInput
from healer.detection.reported import REPORTS_KEPT as KEPT
from healer.model import (
    Catalogue,
    Component,
    Evidence,
    Finding,
    NodeReport,
    Sense,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
)
from healer.model.faults import STOPPED_JOB
from healer.observations.steps import StepTimes
from healer.observations.telemetry_windows import Telemetry
from healer.signals.step_times import step_batches
from healer.sim.fleet_steps import Pace, Training

CLUSTER, NODES, PER = "pod1", 8, 8
#: Healer reads, ticks; a rank sends.
READ_S, TICK_S, SENDS_S = 1.0, 5.0, 5.0
RANKS = NODES * PER
NAMES = tuple(f"gpu{index:04}" for index in range(NODES))
START = datetime(2026, 11, 20, tzinfo=UTC)
#: A GPU that is busier than this computes.
WORKS = 0.5
#: Steps of 5 s, of 1 s and of 30 s.
PACES = {
    "5 s a step": Pace(),
    "1 s a step": Pace(compute_s=0.8, collective_s=0.15, checkpoint_every=300, evaluate_every=1000),
    "30 s a step": Pace(compute_s=27.0, collective_s=2.5, checkpoint_every=20, evaluate_every=100),
}


class Fleet:
    """`words`: ranks report where they are stuck; otherwise only idle GPUs show it."""

    def __init__(self, seed: int, pace: Pace, *, words: bool = True) -> None:
        self.random = np.random.default_rng(seed)
        pace = pace if words else replace(pace, says_after_s=None)
        self.training = Training({name: row for row, name in enumerate(NAMES)}, PER, seed, pace)
        self.words, self.steps = words, StepTimes(CLUSTER)
        self.hangs, self.telemetry = Hangs(lambda *_: self.rests), Telemetry(CLUSTER, Catalogue())
        self.at_s, self.restart = 0.0, 0
        self.slower = np.ones((NODES, PER))
        #: Ranks whose senders are dead, and until when healer hears nothing.
        self.dead: frozenset[int] = frozenset()
        self.deaf_until_s = 0.0
        self.listening = START
        self.links: dict[str, NodeReport] = {}
        self.hung = False
        self._works_at_s = 0.0
        #: What was not sent yet, by the second of the round in which its rank sends.
        self._waits: list[list[dict[str, Any]]] = [[] for _ in range(int(SENDS_S / READ_S))]
        #: Sent, and not heard.
        self._unheard: list[dict[str, Any]] = []
        self._show()

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.at_s)

    def _show(self) -> None:
        nodes = {name: SlurmNode(name=name, state=("ALLOCATED",), gpus=PER) for name in NAMES}
        gpus = {name: tuple(range(PER)) for name in NAMES}
        job = SlurmJob(id="1", state="RUNNING", nodes=NAMES, gpus=gpus, restarts=self.restart)
        self.slurm = SlurmSnapshot(cluster=CLUSTER, taken_at=self.now, nodes=nodes, jobs={"1": job})
        self.training.show(self.slurm.jobs)

    def requeue(self) -> None:
        self.restart += 1
        self._show()

    def read(self) -> tuple[Finding, ...]:
        """One reading, and what the tick or the look after it found."""
        self.at_s += READ_S
        self.slurm = msgspec.structs.replace(self.slurm, taken_at=self.now)
        samples, _ = self.training.advance(self.now.timestamp(), self.slower, CLUSTER)
        if not self.hung and (self.training.work(self.now.timestamp()) > WORKS).any():
            self._works_at_s = self.at_s
        bodies = self._sent(samples)
        if self.at_s < self.deaf_until_s:
            self._unheard, bodies = self._unheard + bodies, []
        elif self.deaf_until_s:
            self.deaf_until_s, self.listening = 0.0, self.now
            bodies, self._unheard = self._unheard + bodies, []
        if bodies:
            body = msgspec.json.encode(bodies)
            batches = step_batches(body, lambda *_: True, self.now, cluster=CLUSTER).batches
            self.steps.update(batches, self.slurm, self.now)
        if self.at_s % TICK_S:
            return self.hangs.tick_early(self._look()) if self.links else ()
        return self.hangs.tick(self._look()).findings

    def _look(self) -> TickInput:
        return TickInput(
            self.now,
            self.telemetry,
            self.steps,
            self.slurm,
            node_reports=self.links,
            listening_since=self.listening,
        )

    def _sent(self, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What is sent in this second. The location of a stuck rank goes out at once."""
        rounds, bodies = len(self._waits), []
        for body in samples:
            alive = [one for one in body["samples"] if one["rank"] not in self.dead]
            at_once = [one for one in alive if "open_s" in one]
            if at_once:
                bodies.append({**body, "samples": at_once})
            for turn in range(rounds):
                mine = [one for one in alive if "open_s" not in one and one["rank"] % rounds == turn]
                if mine:
                    self._waits[turn].append({**body, "samples": mine})
        turn = int(self.at_s / READ_S) % rounds
        due, self._waits[turn] = self._waits[turn], []
        return [*due, *bodies]

    @property
    def rests(self) -> bool | None:
        """What metrics show: no GPU computed for a minute. Jobs whose ranks report their location need no
        metrics."""
        return None if self.words else self.at_s - self._works_at_s >= QUIET_S

    def hang(self, ranks: tuple[int, ...] = (), *, stopped: bool = False) -> None:
        self.hung = True
        self.training.hang("1", ranks, stopped=stopped)


@dataclass(frozen=True)
class Kind:
    """One way to hang: who never comes, whether their process is stopped, and what else there is."""

    what: str
    ranks: int = 1
    stopped: bool = False
    words: bool = True
    report: Callable[[datetime, str], NodeReport] | None = None


def link_down(at: datetime, node: str) -> NodeReport:
    return NodeReport(at=at, text="Link down")


def disk_lost(at: datetime, node: str) -> NodeReport:
    """The kernel's word, with which the node is taken out as its job stops."""
    where = Component(cluster=CLUSTER, node=node)
    line = Evidence(digest=f"{node}{at}", at=at, component=where, text="read-only", sense=Sense.kernel)
    return NodeReport(at=at, text="read-only", fault="fs-read-only", evidence=line)


KINDS = (
    Kind("one rank never comes"),
    Kind("one process is stopped", stopped=True),
    Kind("all come, it does not end", ranks=0),
    Kind("a link goes down", ranks=0, report=link_down),
    Kind("a file system is lost, until its node is blamed", ranks=0, report=disk_lost),
    Kind("no rank says anything, GPUs rest", words=False),
)


def delay_s(seed: int, pace: Pace, kind: Kind) -> tuple[float, bool, int]:
    """Seconds until it is reported (inf: not within an hour), whether the right ranks were named, and how
    many findings came before the stall."""
    fleet = Fleet(seed, pace, words=kind.words)
    before = sum(len(fleet.read()) for _ in range(int(fleet.random.integers(600, 1200))))
    missing = tuple(fleet.random.choice(RANKS, kind.ranks, replace=False).tolist())
    stalled_at, begun_s = fleet.at_s, fleet.at_s
    if kind.report is not None:
        fleet.links = {NAMES[3]: kind.report(fleet.now, NAMES[3])}
    fleet.hang(missing, stopped=kind.stopped)
    while fleet.at_s - begun_s < 3600:
        for found in fleet.read():
            if kind.report is disk_lost and found.fault != STOPPED_JOB:
                continue
            named = {(one.node, one.gpu) for one in (*found.affected, found.component) if one.node}
            wanted = {(NAMES[rank // PER], rank % PER) for rank in missing} if kind.words else set()
            wanted |= {(NAMES[3], None)} if kind.report is not None else set()
            return fleet.at_s - stalled_at, named == wanted, before
    return float("inf"), False, before


def _all_senders_die(fleet: Fleet) -> None:
    fleet.dead = frozenset(range(RANKS))


def _most_senders_die(fleet: Fleet) -> None:
    fleet.dead = frozenset(range(RANKS * 3 // 4))


def _a_nodes_senders_die(fleet: Fleet) -> None:
    fleet.dead = frozenset(range(PER))


def _healer_is_away(fleet: Fleet) -> None:
    fleet.deaf_until_s = fleet.at_s + float(fleet.random.integers(60, 900))


def _is_requeued(fleet: Fleet) -> None:
    fleet.dead = frozenset()
    fleet.requeue()


#: What happens once an hour, in turn. A link that flaps is no hang either.
TROUBLE: Mapping[str, Callable[[Fleet], None]] = {
    "a node's senders die": _a_nodes_senders_die,
    "requeue": _is_requeued,
    "healer away": _healer_is_away,
    "most senders die": _most_senders_die,
    "requeue again": _is_requeued,
    "link flaps": lambda fleet: fleet.links.update({NAMES[1]: link_down(fleet.now, NAMES[1])}),
    "all senders die": _all_senders_die,
    "requeue at last": _is_requeued,
}


def false_alarms(
    seed: int, pace: Pace, days: float, *, words: bool, flaps: bool = False
) -> tuple[int, dict[str, int]]:
    """`flaps`: nothing else, but every ten minutes a link flaps, or a node loses a file system that its job
    does not need, at random: checkpoints have a rhythm."""
    fleet, detected, by = Fleet(seed, pace, words=words), 0, dict[str, int]()
    names = list(TROUBLE)
    doing = "nothing"
    for number in range(int(days * 86_400 / READ_S)):
        if flaps and fleet.random.random() * 600 < READ_S:
            doing, report = [("link flaps", link_down), ("a disk is lost", disk_lost)][number % 2]
            fleet.links[NAMES[1]] = report(fleet.now, NAMES[1])
        elif not flaps and number and number % 3600 == 0:
            doing = names[number // 3600 % len(names)]
            TROUBLE[doing](fleet)
        fleet.links = {name: one for name, one in fleet.links.items() if fleet.now - one.at <= KEPT}
        for _ in fleet.read():
            detected += 1
            by[doing] = by.get(doing, 0) + 1
    return detected, by


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--days", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", choices=[*PACES], help="only this one")
    given = parser.parse_args()
    paces = {name: pace for name, pace in PACES.items() if given.pace in (None, name)}
    begun = time.process_time()
    print(f"{NODES} nodes x {PER} ranks, {given.runs} runs each, seed {given.seed}", flush=True)
    for name, pace in paces.items():
        for kind in KINDS if given.runs else ():
            runs = [delay_s(given.seed + n, pace, kind) for n in range(given.runs)]
            delays = np.array([one[0] for one in runs])
            print(
                f"{name}, {kind.what}: reported after {np.median(delays):.0f} s (median; 95 %: "
                f"{np.quantile(delays, 0.95, method='higher'):.0f} s), recall "
                f"{np.isfinite(delays).mean():.2f}, rightly named {np.mean([one[1] for one in runs]):.2f}, "
                f"before it stood {sum(one[2] for one in runs)}",
                flush=True,
            )
    for name, pace in paces.items():
        for words, flaps in ((True, False), (False, False), (True, True)):
            count, by = false_alarms(given.seed + 10_000, pace, given.days, words=words, flaps=flaps)
            what = "ranks say where they stand" if words else "only GPUs tell"
            what += ", a link flaps or a disk is lost every 10 minutes" if flaps else ""
            print(
                f"{name}, {what}: {count} false alarms in {given.days:g} job-days (95 % bound "
                f"{upper_bound(count) / given.days:.2f} a day){f' {by}' if by else ''}",
                flush=True,
            )
    print(f"{time.process_time() - begun:.0f} s of processor time")


if __name__ == "__main__":
    main()
