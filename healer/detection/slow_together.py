"""A job that is slow with nobody to blame: what all its ranks share, by the figures that they tell."""

from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from healer.detection.pace import Pace
from healer.detection.step_findings import finding_at
from healer.model import Component, Finding
from healer.observations.step_parts import PARTS
from healer.observations.steps import JobSteps, Places

SLOWNESS_SHARED = "slowness-shared"
#: One part of the step made so much of what it grew by: that part is named.
MOST = 0.6
#: Steps before it, and since, that have to be kept to compare.
LEAST = 3
_NODES_NAMED = 4
_MEANS = {
    "compute_s": "all ranks compute longer: clocks, power, cooling, or another phase of the training",
    "comm_s": "all wait longer for each other: the network",
    "data_s": "all wait longer for data: storage, or what prepares it",
}


@dataclass(frozen=True, slots=True)
class Together:
    """After which step it began, and in words."""

    since: int
    text: str

    def finding(self, job: JobSteps, now: datetime) -> Finding:
        title = f"Job {job.job} is slow as a whole"
        where = Component(cluster=job.cluster, job=job.job)
        return finding_at(job, where, self.since, now, fault=SLOWNESS_SHARED, text=self.text, title=title)


def slower_parts(job: JobSteps, pace: Pace) -> Together | None:
    """Which part of the step grew on all ranks, where they tell their parts; nobody is slow alone."""
    known = np.flatnonzero(job.number >= 0)
    before = known[job.number[known] < pace.since]
    since = known[job.number[known] >= pace.since]
    if len(before) < LEAST or len(since) < LEAST:
        return None
    was, now = job.parts.mean(before), job.parts.mean(since)
    if not np.isfinite(was[0]) or not np.isfinite(now[0]):
        return None  # whole step times alone
    grown = np.clip(np.nan_to_num(now - was), 0, None)
    if not grown.sum():
        return None
    part = int(np.argmax(grown))
    share = grown[part] / grown.sum()
    what = _MEANS[PARTS[part]] if share >= MOST else "several parts of the step grew together"
    figures = ", ".join(
        f"{name.removesuffix('_s')} {was[index]:.3g} to {now[index]:.3g} s"
        for index, name in enumerate(PARTS)
        if np.isfinite(was[index]) and np.isfinite(now[index])
    )
    more = f"{pace.now_s / pace.before_s - 1:.0%}".replace("%", " %")
    text = (
        f"job {job.job}: {pace.now_s:.3g} s a step since step {pace.since}, {more} more than before, and no "
        f"rank is slower than the others; {what} ({figures}, mean over its ranks)"
    )
    return Together(pace.since - 1, text)


def slow_many(
    job: JobSteps, places: Places, slow: NDArray[np.bool_], height: NDArray[np.float64], since: float
) -> Together:
    """More of the ranks than could be one part's doing compute longer than the rest. `slow` (R,), `height`
    (R,) logs of their ratios."""
    ranks = np.flatnonzero(slow)
    node = places.node[ranks[ranks < len(places.node)]]
    names = [places.nodes[one] for one in np.unique(node[node >= 0]).tolist()]
    more = f" and {len(names) - _NODES_NAMED} more" if len(names) > _NODES_NAMED else ""
    where = f" on {', '.join(names[:_NODES_NAMED])}{more}" if names else ""
    known = height[ranks][np.isfinite(height[ranks])]
    share = f" {np.expm1(np.median(known)):.0%}".replace("%", " %") if len(known) else ""
    text = (
        f"job {job.job}: {len(ranks)} of {int(job.seen.sum())} ranks{where} compute{share} longer than the "
        f"others since step {int(since) + 1}; so many together share a cause (power, cooling, storage, their "
        "work), and none of them is blamed"
    )
    return Together(int(since), text)
