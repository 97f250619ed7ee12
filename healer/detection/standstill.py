"""Where the ranks of a job stand while it makes no step: who waits, who never came, who fell silent."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from healer.observations.in_step import BETWEEN, COLLECTIVE, RESTS, UNTOLD
from healer.observations.steps import JobSteps

#: A rank that stands still says so every 10 s; what it said longer ago is nothing of now.
FRESH_S = 45.0
#: So many of the ranks have to say where they stand before the others' silence means anything.
SPEAK = 0.5
#: More of the ranks than this missing together share a cause: none is named.
SHARED = 0.25
#: A job that saves or evaluates, as it says itself, is believed for so long.
REST_MOST_S = 3600.0


@dataclass(frozen=True, slots=True)
class Standstill:
    """(n,) arrays over `ranks`. `step`: the one that the foremost are in. `missing`: they are not there."""

    ranks: NDArray[np.intp]
    doing: NDArray[np.int8]
    since_s: NDArray[np.float64]
    missing: NDArray[np.bool_]
    step: int
    #: Enough ranks say where they stand; else `missing` is only who told fewer steps than the others.
    speaks: bool
    #: The job itself says that its steps rest.
    rests: bool

    @property
    def waits(self) -> NDArray[np.bool_]:
        """(n,) waits in the collective of `step`."""
        return (self.doing == COLLECTIVE) & ~self.missing

    @property
    def silent(self) -> NDArray[np.bool_]:
        return self.doing == UNTOLD

    @property
    def all_between(self) -> bool:
        """Nobody is in a step: data, an evaluation or the end of a training, of which nothing was told."""
        told = self.doing[~self.silent]
        return bool(len(told)) and bool((told == BETWEEN).all())

    @property
    def only_between(self) -> bool:
        """Who is missing has only not begun the step: one rank may save for all."""
        return bool(self.missing.any()) and bool((self.doing[self.missing] == BETWEEN).all())

    @property
    def named(self) -> NDArray[np.intp]:
        """The ranks that never came, where they are few enough to be the cause."""
        few = self.missing.sum() <= SHARED * len(self.ranks)
        return self.ranks[self.missing] if few else self.ranks[:0]


def standstill(job: JobSteps, now_s: float) -> Standstill:
    """By what ranks said last. A word about a step that ended since is none."""
    ranks = np.flatnonzero(job.seen)
    told, ended = job.in_step, _ended(job, ranks)
    doing, at = told.doing[ranks], told.step[ranks]
    outside = (doing == BETWEEN) | np.isin(doing, RESTS)
    fresh = (now_s - told.told_s[ranks] <= FRESH_S) & (at >= np.where(outside, ended, ended + 1))
    doing = np.where(fresh, doing, UNTOLD).astype(np.int8)
    step = np.where(fresh, at + outside, ended + 1)
    place = 2 * step + (doing == COLLECTIVE)
    speaks = bool(len(ranks)) and float(fresh.mean()) >= SPEAK
    front = int(place[fresh].max() if speaks else place.max(initial=0))
    since_s = np.where(fresh, told.since_s[ranks], np.nan)
    resting = np.isin(doing, RESTS) & (now_s - since_s < REST_MOST_S)
    return Standstill(
        ranks=ranks,
        doing=doing,
        since_s=since_s,
        missing=(place < front) | (~fresh if speaks else np.zeros(len(ranks), bool)),
        step=front // 2,
        speaks=speaks,
        rests=bool(resting.any()),
    )


def _ended(job: JobSteps, ranks: NDArray[np.intp]) -> NDArray[np.int64]:
    """(n,) the last step that each rank told, -1 where it is not kept any more."""
    told = np.isfinite(job.step_s[:, ranks])
    return np.where(told, job.number[:, None], -1).max(axis=0, initial=-1)
