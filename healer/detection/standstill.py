"""A job that makes no step: which ranks wait, which are missing, and where those run."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from healer.model import Component
from healer.observations.step_columns import BETWEEN, COLLECTIVE, COMPUTE, RESTS, UNREPORTED
from healer.observations.steps import JobSteps, Places
from healer.text import Said, name_some, say

#: A stuck rank reports its state every 10 s; an older report is stale.
FRESH_S = 45.0
#: The silence of the other ranks is evidence once this share of the ranks reports a state.
REPORTED_LEAST = 0.5
#: If more than this share of the ranks is missing they share a cause: none is named.
NAMED_MOST = 0.25
#: A job's report of a checkpoint or an evaluation counts for this long.
REST_MOST_S = 3600.0


@dataclass(frozen=True, slots=True)
class Standstill:
    """(n,) arrays over `ranks`. `step`: the step of the foremost ranks. `missing`: not there yet."""

    ranks: NDArray[np.intp]
    doing: NDArray[np.int8]
    since_s: NDArray[np.float64]
    missing: NDArray[np.bool_]
    step: int
    #: Enough ranks report their state; otherwise `missing` are only those that reported fewer steps.
    is_reported: bool
    #: A rank reports a checkpoint or an evaluation.
    rests: bool

    @property
    def waits(self) -> NDArray[np.bool_]:
        """(n,) whether the rank waits in the collective of `step`."""
        return (self.doing == COLLECTIVE) & ~self.missing

    @property
    def silent(self) -> NDArray[np.bool_]:
        return self.doing == UNREPORTED

    @property
    def all_between(self) -> bool:
        """No rank is in a step: data loading, an unannounced evaluation, or the end of the training."""
        reported = self.doing[~self.silent]
        return bool(len(reported)) and bool((reported == BETWEEN).all())

    @property
    def only_between(self) -> bool:
        """The missing ranks merely have not begun the step: one rank may be saving for all."""
        return bool(self.missing.any()) and bool((self.doing[self.missing] == BETWEEN).all())

    @property
    def named(self) -> NDArray[np.intp]:
        """The missing ranks, if they are few enough to be the cause."""
        few = self.missing.sum() <= NAMED_MOST * len(self.ranks)
        return self.ranks[self.missing] if few else self.ranks[:0]


def standstill(job: JobSteps, now_s: float) -> Standstill:
    """By the latest report of each rank. A report about a step that has ended since is ignored."""
    ranks = np.flatnonzero(job.seen)
    last = job.in_step
    doing, at = last.doing[ranks], last.step[ranks]
    has_steps = np.isfinite(job.step_s[:, ranks])
    ended = np.where(has_steps, job.number[:, None], -1).max(axis=0, initial=-1)
    outside = (doing == BETWEEN) | np.isin(doing, RESTS)
    fresh = (now_s - last.reported_s[ranks] <= FRESH_S) & (at >= np.where(outside, ended, ended + 1))
    doing = np.where(fresh, doing, UNREPORTED).astype(np.int8)
    step = np.where(fresh, at + outside, ended + 1)
    place = 2 * step + (doing == COLLECTIVE)
    is_reported = bool(len(ranks)) and float(fresh.mean()) >= REPORTED_LEAST
    front = int(place[fresh].max() if is_reported else place.max(initial=0))
    since_s = np.where(fresh, last.since_s[ranks], np.nan)
    resting = np.isin(doing, RESTS) & (now_s - since_s < REST_MOST_S)
    return Standstill(
        ranks=ranks,
        doing=doing,
        since_s=since_s,
        missing=(place < front) | (~fresh if is_reported else np.zeros(len(ranks), bool)),
        step=front // 2,
        is_reported=is_reported,
        rests=bool(resting.any()),
    )


_NAMED = 4
#: What a missing rank does, as in the text keys.
_DOES = {UNREPORTED: "nothing", COMPUTE: "compute", BETWEEN: "between"}


def missing_text(stand: Standstill, places: Places) -> Said:
    """Which ranks wait and which are missing, as far as ranks report it."""
    count, missing = len(stand.ranks), int(stand.missing.sum())
    if not stand.is_reported and not missing:
        return say("detection.ranks_do_not_say")
    waits = int(stand.waits.sum())
    if not missing:
        if not waits:
            return say("detection.all_ranks_in_step", n=count, step=stand.step)
        last = stand.ranks[int(np.nanargmax(np.where(stand.waits, stand.since_s, np.nan)))]
        at = _rank_at(int(last), places)
        return say("detection.all_ranks_came", n=count, step=stand.step, last=at)
    if not len(stand.named):
        return say("detection.ranks_never_came", n=missing, of=count, step=stand.step)
    if waits:
        there = say("detection.ranks_wait", n=waits, of=count)
    else:
        there = say("detection.ranks_are_there", n=count - missing)
    absent = np.flatnonzero(stand.missing)
    shown = [
        say(
            f"detection.missing_rank_{_DOES.get(int(stand.doing[index]), 'elsewhere')}",
            rank=_rank_at(int(stand.ranks[index]), places),
        )
        for index in absent[:_NAMED].tolist()
    ]
    who = name_some(shown, _NAMED, len(absent))
    return say("detection.ranks_in_step", step=stand.step, there=there, missing=who)


def _rank_at(rank: int, places: Places) -> Said:
    if rank >= len(places.node) or places.node[rank] < 0:
        return say("detection.rank", rank=rank)
    node, gpu = places.nodes[places.node[rank]], int(places.gpu[rank])
    if gpu < 0:
        return say("detection.rank_on", rank=rank, node=node)
    return say("detection.rank_on_gpu", rank=rank, node=node, gpu=gpu)


def suspects_of(
    job: JobSteps, stand: Standstill, places: Places, reports: Iterable[str]
) -> tuple[Component, ...]:
    """Where missing ranks run, and nodes that lost something: where to look first. None of them is blamed."""
    found = [Component(cluster=job.cluster, node=node) for node in sorted(reports)]
    for rank in stand.named.tolist():
        if rank < len(places.node) and places.node[rank] >= 0:
            gpu = int(places.gpu[rank])
            node = places.nodes[places.node[rank]]
            found.append(Component(cluster=job.cluster, node=node, gpu=gpu if gpu >= 0 else None))
    return tuple(dict.fromkeys(found))
