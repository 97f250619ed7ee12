"""Jobs that are slow without a straggler: how many are reported, why, and how many healthy ones are.

    python -m benchmarks.slow_jobs [--runs 20] [--days 4] [--seed 1]

The whole path in simulated time (`tests/support/stepping.py`): step times in the wire form, senses, walk,
gate, and groups of nodes that are tested by halves; 32 nodes × 2 ranks, 5 s a step, noise of 0.4 %, ranks
that differ by 0.3 %, checkpoints, evaluations and pauses of single ranks. False alarms: job-days in which
nothing is wrong, a quarter of them with whole steps only.
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np

from benchmarks.stragglers import upper_bound
from healer.model import RunState
from tests.support.loop import name
from tests.support.stepping import Stepping, Trains

WELL_S = 360.0
#: What grows on all ranks of a job, by so many seconds at the least and the most.
SHARED = {
    "the network": ("collective_s", 0.6),
    "storage": ("data_s", 0.05),
    "all ranks compute": ("compute_s", 4.1),
}
WORDS = {"the network": "the network", "storage": "storage", "all ranks compute": "all ranks compute longer"}


def shared(seed: int, what: str) -> tuple[float | None, bool, int]:
    """Seconds until it was reported (None: not in 10 minutes), whether correctly, how many nodes were
    blamed."""
    site, random = Stepping(seed=seed), np.random.default_rng(seed)
    jobs = [site.begin(range(first, first + 8)) for first in (1, 9)]
    site.train(WELL_S + 5 * int(random.integers(0, 100)))
    hit = jobs[int(random.integers(0, 2))]
    part, before = SHARED[what]
    hit.change(**{part: before + float(random.uniform(0.9, 2.5))})
    began = site.now
    incident = site.train_until_found("slowness-shared", 600)
    right = incident is not None and incident.root.job == hit.id and WORDS[what] in incident.evidence[0].text
    return (site.now - began).total_seconds() if incident else None, right, len(site.blamed())


def elsewhere(seed: int) -> tuple[float | None, bool, int]:
    """Two of four nodes are slow from the start of their job; two other jobs ran before."""
    site, random = Stepping(seed=seed), np.random.default_rng(seed)
    for first in (1, 5):
        site.begin(range(first, first + 4))
    site.train(WELL_S)
    slow = sorted(int(one) for one in random.choice(range(9, 13), 2, replace=False))
    for one in slow:
        site.slow(one, 1 + float(random.uniform(0.08, 0.2)))
    site.begin(range(9, 13))
    began = site.now
    incident = site.train_until_found("slower-than-elsewhere", 600)
    took = (site.now - began).total_seconds() if incident else None
    site.train(300)
    named = {name(one) for one in slow}
    return took, bool(site.blamed() & named), len(site.blamed() - named)


def suspected(seed: int) -> tuple[int, bool, bool, float]:
    """Jobs one after the other, one bad node in each: after how many of them it is the first suspect (0: not
    after four), whether alone, whether the search by halves named it and no other, and in how many groups."""
    site, random = Stepping(seed=seed), np.random.default_rng(seed)
    bad, after, alone = int(random.integers(1, 33)), 0, False
    for count in range(1, 5):
        others = random.choice([one for one in range(1, 33) if one != bad], 7, replace=False)
        job = site.begin(sorted([bad, *(int(one) for one in others)]), whole=True)
        site.train(WELL_S)
        site.slow(bad, 1 + float(random.uniform(0.15, 0.4)))
        incident = site.train_until_found("job-slow", 300)
        if incident is not None and incident.affected and incident.affected[0].node == name(bad):
            after, alone = after or count, len(incident.affected) == 1
        if after or count == 4:
            return after, alone, *_halved(site, job, bad)
        site.end(job)
        site.slow(bad)
        site.train(420)
    raise AssertionError


def _halved(site: Stepping, job: Trains, bad: int) -> tuple[bool, float]:
    runs = [one.id for one in site.runs if one.playbook == "bisect" and one.state is RunState.proposed]
    if not runs:
        return False, 0.0
    site.approve(runs[-1])
    site.train(10)
    site.end(job)
    site.train(600)
    if site.run_named(runs[-1]).state is not RunState.done:
        return False, float(len(site.groups()))
    groups = sum(1 for one in site.log(runs[-1], "halves") if one.data.get("group"))
    return site.verdict(runs[-1])["slow"] == [name(bad)], float(groups)


def well(seed: int, days: float) -> Counter[str]:
    """What was reported in so many job-days of eight jobs of four nodes, none of which is slow."""
    site = Stepping(seed=seed)
    for index in range(8):
        first = 1 + 4 * index
        site.begin(range(first, first + 4), "whole" if index % 4 == 3 else "pretrain", whole=index % 4 == 3)
    site.train(days / 8 * 86_400)
    return Counter(one.fault for one in site.found)


def _print(what: str, runs: Sequence[tuple[float | None, bool, int]]) -> None:
    delays = [one[0] for one in runs if one[0] is not None]
    middle = (
        f"{np.median(delays):.0f} s (95 %: {np.quantile(delays, 0.95, method='higher'):.0f} s)"
        if delays
        else "never"
    )
    print(
        f"{what}: recall {len(delays) / len(runs):.2f}, reported after {middle}, rightly "
        f"{np.mean([one[1] for one in runs]):.2f}, other nodes blamed {sum(one[2] for one in runs)}",
        flush=True,
    )


def _measure(seeds: Sequence[int]) -> None:
    for what in SHARED:
        _print(f"slowness-shared, {what}", [shared(seed, what) for seed in seeds])
    _print("slower-than-elsewhere", [elsewhere(seed) for seed in seeds])
    found = [suspected(seed) for seed in seeds]
    first = Counter(one[0] for one in found)
    alone, named, groups = (np.mean([one[place] for one in found]) for place in (1, 2, 3))
    print(
        f"suspects: the bad node is first after {dict(sorted(first.items()))} jobs (0: never of four), alone "
        f"{alone:.2f}; by halves it alone is named {named:.2f}, in {groups:.1f} groups",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--days", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    begun = time.process_time()
    if given.runs:
        _measure(range(given.seed, given.seed + given.runs))
    alarms = well(given.seed + 10_000, given.days)
    bound = {
        fault: f"{alarms[fault]} (at most {upper_bound(alarms[fault]) / given.days:.2f} a job-day)"
        for fault in ("slowness-shared", "slower-than-elsewhere", "job-slow")
    }
    print(f"{given.days:g} job-days with nothing wrong: {bound}; in all: {dict(alarms)}")
    print(f"{time.process_time() - begun:.0f} s of processor time")


if __name__ == "__main__":
    main()
