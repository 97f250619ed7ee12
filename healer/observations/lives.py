"""How many lives of jobs, and ranks of each, step times are kept of.

Anybody with a token may tell step times of any job, so there is room for what Slurm shows, and a little for
what it does not show (yet); neither grows beyond it, whatever is told.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Protocol

from healer.model import SlurmSnapshot

RANKS_MAX = 16_384
LIVES_MAX = 500
#: Over all lives: 1 KiB each, and 1 KiB more for each result (loss, gradient norm) that the job tells.
RANKS_TOTAL = 131_072
#: A job's life now, the one before, and one that Slurm does not show yet.
LIVES_OF_JOB = 3
#: Ranks of a job: at most so many on each of its GPUs.
RANKS_PER_GPU = 2
#: Of jobs that Slurm does not show, in all.
STRANGE_LIVES_MAX = 50
STRANGE_RANKS_MAX = 4096

Key = tuple[str, int]


class Life(Protocol):
    """What is asked of a life here: columns it has room for, and when it was last heard."""

    @property
    def capacity(self) -> int: ...
    @property
    def heard_at(self) -> datetime: ...


def is_shown(job: str, slurm: SlurmSnapshot | None) -> bool:
    """Without a word from Slurm every job counts as shown: nothing tells them apart."""
    return slurm is None or job in slurm.jobs


def ranks_most(job: str, slurm: SlurmSnapshot | None) -> int:
    """One more than the highest rank the job may have."""
    shown = slurm.jobs.get(job) if slurm is not None else None
    if shown is None or slurm is None:
        return RANKS_MAX if slurm is None else STRANGE_RANKS_MAX
    nodes = [(name, slurm.nodes.get(name)) for name in set(shown.nodes)]
    gpus = sum(len(shown.gpus[name]) if name in shown.gpus else node.gpus for name, node in nodes if node)
    # A job without GPUs, or one of which Slurm does not tell them.
    return min(RANKS_PER_GPU * gpus, RANKS_MAX) if gpus else RANKS_MAX


def grown(capacity: int, ranks: int, most: int) -> int:
    """Room for `ranks` columns, at most `most`: doubled, so that adding stays cheap."""
    return capacity if ranks <= capacity else min(max(ranks, 2 * capacity, 8), max(most, ranks))


def make_room(
    lives: Mapping[Key, Life], key: Key, capacity: int, slurm: SlurmSnapshot | None
) -> list[Key] | None:
    """The lives to forget so that life `key` may have `capacity` columns; None: it may not.

    The oldest lives of its own job go, then those of jobs that Slurm does not show, then the longest unheard.
    A job that Slurm does not show takes nothing from those that it shows.
    """
    away: list[Key] = []
    if key not in lives:
        own = sorted(restart for job, restart in lives if job == key[0])
        if len(own) >= LIVES_OF_JOB:
            if key[1] < own[0]:
                return None
            away.append((key[0], own[0]))
    others = {one: life for one, life in lives.items() if one != key and one not in away}
    strange = {one: life for one, life in others.items() if not is_shown(one[0], slurm)}
    if not is_shown(key[0], slurm):
        if capacity > STRANGE_RANKS_MAX:
            return None
        away.extend(_surplus(strange, STRANGE_LIVES_MAX - 1, STRANGE_RANKS_MAX - capacity, strange))
        gone = set(away)
        ranks = sum(life.capacity for one, life in others.items() if one not in gone)
        fits = len(others) - len(gone & others.keys()) < LIVES_MAX and ranks + capacity <= RANKS_TOTAL
        return away if fits else None
    if capacity > RANKS_TOTAL:
        return None
    away.extend(_surplus(others, LIVES_MAX - 1, RANKS_TOTAL - capacity, strange))
    return away


def _surplus(lives: Mapping[Key, Life], most: int, ranks: int, first: Collection[Key]) -> Iterator[Key]:
    """What has to go until at most `most` lives with `ranks` columns are left; `first` go before all."""
    count, total = len(lives), sum(life.capacity for life in lives.values())
    if count <= most and total <= ranks:
        return
    for key, life in sorted(lives.items(), key=lambda item: (item[0] not in first, item[1].heard_at)):
        if count <= most and total <= ranks:
            return
        count, total = count - 1, total - life.capacity
        yield key
