"""Step times of running jobs: per job and life a ring of steps × ranks. State owned by its caller."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from healer.model import SlurmJob, SlurmSnapshot
from healer.observations.figure_senders import either_of
from healer.observations.report_order import timely
from healer.observations.step_columns import COLUMNS, InStep, Results, StepParts, only, vouched

if TYPE_CHECKING:
    from healer.model.telemetry import StepBatch

STEPS = 128
#: How long a job that Slurm no longer shows, and an earlier life, are kept.
FORGET_AFTER = timedelta(minutes=10)
#: Times between reports of a job that are kept.
NEWS = 32
#: A step counts once this share of the ranks reported it.
ENOUGH = 0.8
#: Reports later than this are not waited for.
LATE_AFTER_S = 10.0
#: A step this far back with newer times: the job went back to a checkpoint within the same life.
REWIND = 16
#: A rank reported by another node has moved once its own node has reported nothing about it for this long.
#: Until then, the other node's reports about it are dropped.
MOVED_AFTER_S = 30.0


# --- how many lives of jobs, and ranks of each, are kept -------------------------------------------------
# Every token with the role `signals` may report step times of any job. So there is room for the jobs that
# Slurm shows, and a little for those that it does not show (yet); neither grows beyond that, whatever is
# sent.

RANKS_MAX = 16_384
LIVES_MAX = 500
#: Ranks over all lives: 1 KiB each, and 1 KiB more per result (loss, gradient norm) that the job reports.
RANKS_TOTAL = 131_072
#: Lives per job: the present one, the one before, and one that Slurm does not show yet.
LIVES_OF_JOB = 3
#: The most ranks on each of a job's GPUs.
RANKS_PER_GPU = 2
#: Limit for all jobs together that Slurm does not show.
UNSHOWN_LIVES_MAX = 50
UNSHOWN_RANKS_MAX = 4096

#: Job and restart count.
LifeKey = tuple[str, int]


class Life(Protocol):
    """What is needed of a life here: columns it has room for, and when it was last reported."""

    @property
    def capacity(self) -> int: ...
    @property
    def heard_at(self) -> datetime: ...


def active_job(slurm: SlurmSnapshot | None, job: str) -> SlurmJob | None:
    """The job, if Slurm shows it as active; None if it does not, or no snapshot is known."""
    shown = slurm.whole(job) if slurm is not None else None
    return shown if shown is not None and shown.active else None


def is_shown(job: str, slurm: SlurmSnapshot | None) -> bool:
    """Without a Slurm snapshot every job counts as shown, because nothing can be checked."""
    return slurm is None or job in slurm.jobs


def ranks_most(job: str, slurm: SlurmSnapshot | None) -> int:
    """One more than the highest rank the job may have."""
    if slurm is None:
        return RANKS_MAX
    shown = slurm.whole(job)
    if shown is None:
        return UNSHOWN_RANKS_MAX
    nodes = [(name, slurm.nodes.get(name)) for name in set(shown.nodes)]
    gpus = sum(len(shown.gpus[name]) if name in shown.gpus else node.gpus for name, node in nodes if node)
    # Otherwise a job without GPUs, or one whose GPUs Slurm does not report.
    return min(RANKS_PER_GPU * gpus, RANKS_MAX) if gpus else RANKS_MAX


def grown(capacity: int, ranks: int, most: int) -> int:
    """Room for `ranks` columns, at most `most`; doubled, so that growing stays cheap."""
    return capacity if ranks <= capacity else min(max(ranks, 2 * capacity, 8), max(most, ranks))


def make_room(
    lives: Mapping[LifeKey, Life], key: LifeKey, capacity: int, slurm: SlurmSnapshot | None
) -> list[LifeKey] | None:
    """The lives to forget so that life `key` may have `capacity` columns; None: it may not.

    First go the oldest lives of its own job, then those of jobs that Slurm does not show, then those that
    have not reported for longest. A job that Slurm does not show takes nothing from those that it shows.
    """
    away: list[LifeKey] = []
    if key not in lives:
        restarts = sorted(restart for job, restart in lives if job == key[0])
        if len(restarts) >= LIVES_OF_JOB:
            if key[1] < restarts[0]:
                return None
            away.append((key[0], restarts[0]))
    others = {other: life for other, life in lives.items() if other != key and other not in away}
    unshown = {other: life for other, life in others.items() if not is_shown(other[0], slurm)}
    if not is_shown(key[0], slurm):
        if capacity > UNSHOWN_RANKS_MAX:
            return None
        away.extend(_surplus(unshown, UNSHOWN_LIVES_MAX - 1, UNSHOWN_RANKS_MAX - capacity, unshown))
        rest = {other: life for other, life in others.items() if other not in away}
        ranks = sum(life.capacity for life in rest.values())
        return away if len(rest) < LIVES_MAX and ranks + capacity <= RANKS_TOTAL else None
    if capacity > RANKS_TOTAL:
        return None
    return [*away, *_surplus(others, LIVES_MAX - 1, RANKS_TOTAL - capacity, unshown)]


def _surplus(
    lives: Mapping[LifeKey, Life], most: int, ranks: int, first: Collection[LifeKey]
) -> Iterator[LifeKey]:
    """The lives to drop until at most `most` with `ranks` columns are left; those in `first` go before all
    others."""
    count, total = len(lives), sum(life.capacity for life in lives.values())
    if count <= most and total <= ranks:
        return
    for key, life in sorted(lives.items(), key=lambda item: (item[0] not in first, item[1].heard_at)):
        if count <= most and total <= ranks:
            return
        count, total = count - 1, total - life.capacity
        yield key


# --- the steps of one life ---


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where ranks run: `node` (R,) index into `nodes`, `gpu` (R,) index on its node; -1 unknown."""

    nodes: tuple[str, ...]
    node: NDArray[np.int32]
    gpu: NDArray[np.int32]


# Wide: one life of a job is a set of arrays over the same steps and ranks, which grow, rewind and forget
# together.
class JobSteps:
    """One life of one job. Arrays are (STEPS, R) and (R,); rows are `step % STEPS`, columns are ranks."""

    def __init__(self, cluster: str, job: str, restart: int, at: datetime) -> None:
        self.cluster, self.job, self.restart = cluster, job, restart
        self.heard_at = at
        #: The tokens that have sent it so far.
        self.sent_by = ""
        self.gone_at: datetime | None = None
        #: Slurm showed the job running for everything that was stored. Until it does, any sender may report
        #: it.
        self.vouched = False
        #: How often the job went back: what was learnt from later steps no longer counts.
        self.rewound = 0
        self.newest = -1
        #: When it was reported, and the times between reports, s.
        self.news_at: datetime | None = None
        self.news_s: deque[float] = deque(maxlen=NEWS)
        #: Step number by row, -1 empty; and the sender's newest time of it, s since 1970.
        self.number = np.full(STEPS, -1, np.int64)
        self.at = np.full(STEPS, np.nan)
        self.capacity = 0
        #: `compute` and `step_s`.
        self._seconds = np.zeros((2, STEPS, 0), np.float32)
        self.results = Results(STEPS)
        #: The parts of the steps, mean over the ranks.
        self.parts = StepParts(STEPS)
        #: Reports of ranks that have ended no step for a while.
        self.in_step = InStep()
        self.seen = np.zeros(0, bool)
        #: The number of used columns: the highest rank reported, plus one.
        self.ranks = 0
        #: By rank: its node and GPU, its stage, and whether it reports its work.
        self._own = np.zeros((4, 0), np.int32)
        #: When the rank was last reported by its own node, s since 1970.
        self._placed_s = np.zeros(0)
        self._names: dict[str, int] = {}
        self._places: tuple[object, Places] | None = None
        self._peers: list[NDArray[np.intp]] | None = None
        #: Ranks that reported each step; and what was ready at the last call, until more comes.
        self._rank_count = np.zeros(STEPS, np.int64)
        self._ready: tuple[tuple[int, bool], list[int]] | None = None

    @property
    def key(self) -> LifeKey:
        return self.job, self.restart

    @property
    def compute(self) -> NDArray[np.float32]:
        """Seconds of compute per unit of work (1 where work is not reported)."""
        return self._seconds[0]

    @property
    def step_s(self) -> NDArray[np.float32]:
        """Seconds of the whole step."""
        return self._seconds[1]

    @property
    def stage(self) -> NDArray[np.int32]:
        return self._own[2]

    @property
    def with_work(self) -> NDArray[np.bool_]:
        """(capacity,) whether the rank reports its work."""
        return self._own[3] > 0

    @property
    def ended_at(self) -> float:
        """When the newest step ended, by its senders, s since 1970."""
        return float(self.at[self.newest % STEPS]) if self.newest >= 0 else -np.inf

    def row(self, step: int) -> int | None:
        """The row of the step, None if it is not (or no longer) here."""
        row = step % STEPS
        return row if self.number[row] == step else None

    def ready(self, after: int, now: datetime) -> list[int]:
        """Steps later than `after` that enough ranks reported and that need no longer wait for more."""
        if self.newest <= after:
            return []
        waited = (now - self.heard_at).total_seconds() > LATE_AFTER_S
        if self._ready is None or self._ready[0] != (after, waited):
            self._ready = (after, waited), self._found_ready(after, waited=waited)
        return list(self._ready[1])

    def _found_ready(self, after: int, *, waited: bool) -> list[int]:
        rows = np.flatnonzero(self.number > after)
        rows = rows[np.argsort(self.number[rows])]
        share = self._rank_count[rows] / np.count_nonzero(self.seen)
        enough = share >= ENOUGH
        # The late rank may be the slow one: a step waits for all, until most are at a later step.
        later = np.append(np.logical_or.accumulate(enough[::-1])[::-1][1:], False)
        return self.number[rows[enough & ((share >= 1.0) | later | waited)]].tolist()

    def peers(self) -> list[NDArray[np.intp]]:
        """Ranks that are comparable: of one stage, and alike in whether they report their work."""
        if self._peers is None:
            ranks = np.flatnonzero(self.seen)
            keys = self.stage[ranks].astype(np.int64) * 2 + self.with_work[ranks]
            order = np.argsort(keys, kind="stable")
            cuts = np.flatnonzero(np.diff(keys[order])) + 1
            self._peers = [ranks[part] for part in np.split(order, cuts)] if len(ranks) else []
        return self._peers

    def places(self, slurm: SlurmSnapshot | None) -> Places:
        """As reported by the senders, if Slurm agrees that the job holds that node; else by Slurm's order."""
        jobs = slurm.jobs if slurm is not None else None
        if self._places is not None and self._places[0] is jobs:
            return self._places[1]
        found = self._reported_places(slurm)
        shown = slurm.whole(self.job) if slurm is not None else None
        if shown is not None and slurm is not None and not (found.node >= 0).any():
            found = _by_slurm(self.ranks, shown, slurm) or found
        self._places = jobs, found
        return found

    def _reported_places(self, slurm: SlurmSnapshot | None) -> Places:
        shown = slurm.whole(self.job) if slurm is not None else None
        allowed = set(shown.nodes) if shown is not None else set(slurm.nodes) if slurm is not None else set()
        fits = np.array([name in allowed for name in self._names], bool)
        n = self.ranks
        node, gpu = self._own[0, :n].copy(), self._own[1, :n]
        node[~self.seen[:n]] = -1
        placed = node >= 0
        node[placed] = np.where(fits[node[placed]], node[placed], -1) if len(fits) else -1
        return Places(tuple(self._names), node, np.where(node >= 0, gpu, -1).astype(np.int32))

    # --- storing ---

    def take(self, batch: "StepBatch", most: int = RANKS_MAX) -> int:
        """Stores one batch; returns how many rows were of no use (late, no rank below `most`, or of another
        node than the rank's)."""
        given = len(batch.rank)
        fine = (batch.rank >= 0) & (batch.rank < most) & (batch.step >= 0)
        if not fine.any():
            return given
        batch = only(batch, fine)
        self._grow(grown(self.capacity, int(batch.rank.max()) + 1, most))
        place = self._node_numbers(batch)
        fine = self._by_its_node(batch.rank, place, batch.arrived_at.timestamp())
        if not fine.any():
            return given
        batch, place = only(batch, fine), place[fine]
        self._notice_rewind(batch.step, batch.at)
        self._make_rows(batch.step)
        here = self.number[batch.step % STEPS] == batch.step
        newest = int(batch.step.max())
        # The first report counts: a repeat adds nothing, and a later report of the same step is no better.
        batch, place = only(batch, here), place[here]
        self._identity(batch, place)
        self._put(batch)
        if newest > self.newest:
            self._note_news(newest, batch.arrived_at)
        self.heard_at = max(self.heard_at, batch.arrived_at)
        self.sent_by = either_of((self.sent_by, batch.sent_by))
        self._ready = None
        return given - len(batch.rank)

    def _note_news(self, newest: int, at: datetime) -> None:
        if self.news_at is not None:
            self.news_s.append((at - self.news_at).total_seconds())
        self.newest, self.news_at = newest, at

    def _make_rows(self, step: NDArray[np.int64]) -> None:
        """Makes room for these steps."""
        first, last = int(step.min()), int(step.max())
        # The ring holds no more: a batch of a million steps must not cost a million rounds.
        for number in [last] if first == last else np.unique(step)[-STEPS:].tolist():
            if number > self.number[number % STEPS]:
                self._clear(number)

    def _put(self, batch: "StepBatch") -> None:
        """Stores rows whose steps are here."""
        rank, row = batch.rank, batch.step % STEPS
        np.fmax.at(self.at, row, batch.at)
        values = np.empty((2, len(rank)))
        values[0], values[1] = batch.compute_s, batch.step_s
        if not (no_work := np.isnan(batch.work)).all():
            with np.errstate(divide="ignore", invalid="ignore"):
                values[0] /= np.where(no_work, 1.0, batch.work)
        good = np.isfinite(values) & (values > 0) & np.isnan(self._seconds[:, row, rank])
        kind, line = np.nonzero(good)
        self._seconds[kind, row[line], rank[line]] = values[kind, line]
        for at in set(row.tolist()):
            self._rank_count[at] = np.count_nonzero(np.isfinite(self.step_s[at]))
        self.results.put(batch, row, rank)
        self.parts.add(batch, row)

    def hear(self, batch: "StepBatch") -> int:
        """Ranks that have reported steps report their present state; returns how many rows were of no use."""
        fine = (batch.rank >= 0) & (batch.rank < self.capacity)
        fine[fine] = self.seen[batch.rank[fine]]
        place = self._node_numbers(batch)
        arrived_s = batch.arrived_at.timestamp()
        fine[fine] = self._by_its_node(batch.rank[fine], place[fine], arrived_s)
        index = np.flatnonzero(fine)
        rank = batch.rank[index]
        self._placed_s[rank[place[index] >= 0]] = arrived_s
        if batch.doing is not None:
            since_s = batch.at[index] - batch.step_s[index]
            self.in_step.put(rank, batch.step[index], batch.doing[index], since_s, arrived_s)
        return len(batch.rank) - len(index)

    def _notice_rewind(self, step: NDArray[np.int64], at: NDArray[np.float64]) -> None:
        """Most of the new steps are far back and yet later than the newest: the steps are run again."""
        row = self.row(self.newest) if self.newest >= 0 else None
        if row is None or step.min() >= self.newest - REWIND:
            return
        back = (step < self.newest - REWIND) & (at > self.at[row])
        if back.mean() > 0.5:
            self.number[:], self.newest = -1, -1
            self.in_step.forget()
            self.rewound += 1
            # It may continue with fewer nodes than before.
            self._keep_ranks(np.zeros(self.capacity, bool))
            self.ranks = 0

    def _keep_ranks(self, kept: NDArray[np.bool_]) -> None:
        """Forgets all other ranks, as if never reported."""
        self.seen &= kept
        self._places = self._peers = None

    def _clear(self, number: int) -> None:
        row = number % STEPS
        if row == 0 and self.newest >= 0:
            # A rank that is no longer in any step has left the job: the rest must not wait for it forever.
            self._keep_ranks(np.asarray(np.isfinite(self.step_s).any(axis=0)))
        self.number[row], self.at[row], self._rank_count[row] = number, np.nan, 0
        self._seconds[:, row] = np.nan
        self.results.clear(row)
        self.parts.clear(row)

    def _node_numbers(self, batch: "StepBatch") -> NDArray[np.int32]:
        """(n,) this life's numbers of the nodes in the batch, -1 where none is named."""
        return np.array([*map(self._named, batch.nodes), -1], np.int32)[batch.node]

    def _by_its_node(
        self, rank: NDArray[np.int32], node: NDArray[np.int32], arrived_s: float
    ) -> NDArray[np.bool_]:
        """(n,) rows of their rank's own node: the one it runs on, or else the first that names it."""
        place = np.where(arrived_s - self._placed_s > MOVED_AFTER_S, -1, self._own[0])
        unplaced = np.flatnonzero((node >= 0) & (place[rank] < 0))
        if len(unplaced):
            new, first = np.unique(rank[unplaced], return_index=True)
            place[new] = node[unplaced[first]]
        return (node < 0) | (node == place[rank])

    def _identity(self, batch: "StepBatch", node: NDArray[np.int32]) -> None:
        """Stores what else the rows report about their ranks."""
        rank, placed = batch.rank, node >= 0
        self._placed_s[rank[placed]] = batch.arrived_at.timestamp()
        old = self._own[:, rank]
        new = np.empty_like(old)
        new[0], new[1], new[2], new[3] = node, batch.gpu, batch.stage, np.isfinite(batch.work)
        if not placed.all():
            # A row without a place does not contradict the known one.
            new[:2] = np.where(placed, new[:2], old[:2])
        if self.seen[rank].all() and (new == old).all():
            return
        self._own[:, rank] = new
        self.seen[rank] = True
        self.ranks = max(self.ranks, int(rank.max()) + 1)
        self._places = self._peers = None

    def _named(self, name: str) -> int:
        """The node's number; -1 once there are more names than a job can have ranks."""
        if name not in self._names and len(self._names) >= RANKS_MAX:
            return -1
        return self._names.setdefault(name, len(self._names))

    def _grow(self, capacity: int) -> None:
        more = capacity - self.capacity
        if more <= 0:
            return
        empty = np.full((2, STEPS, more), np.nan, np.float32)
        self._seconds = np.concatenate([self._seconds, empty], axis=2)
        blank = np.array([[-1], [-1], [-1], [0]], np.int32)
        self._own = np.concatenate([self._own, np.repeat(blank, more, axis=1)], axis=1)
        self.seen = np.concatenate([self.seen, np.zeros(more, bool)])
        self._placed_s = np.concatenate([self._placed_s, np.full(more, -np.inf)])
        self.capacity += more
        self.results.grow(self.capacity)
        self.in_step.grow(self.capacity)


class StepTimes:
    """All jobs of one cluster; for how many lives and ranks are kept, see `healer.observations.steps`."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        #: Rows of no use: repeated far too late, of a rank that no job has, or that the Slurm snapshot does
        #: not confirm.
        self.dropped = 0
        self._lives: dict[LifeKey, JobSteps] = {}

    def update(self, batches: Sequence["StepBatch"], slurm: SlurmSnapshot | None, now: datetime) -> None:
        """Stores the batches, and forgets jobs that are over."""
        by_life: dict[LifeKey, list[StepBatch]] = {}
        for batch in batches:
            if batch.cluster == self.cluster and len(batch.rank) and batch.doing is None:
                by_life.setdefault((batch.job, batch.restart), []).append(batch)
        self._drop_unvouched(slurm)
        for key, parts in by_life.items():
            self._take(key, timely(joined(parts), now), slurm)
        for batch in batches:
            if batch.cluster == self.cluster and batch.doing is not None:
                self._hear(timely(batch, now), slurm)
        self._forget(slurm, now)

    def _take(self, key: LifeKey, batch: "StepBatch", slurm: SlurmSnapshot | None) -> None:
        fine, life = vouched(batch, slurm), self._lives.get(key)
        if fine is None and life is not None and life.vouched:
            fine = np.zeros(len(batch.rank), bool)  # the job is over, or the Slurm snapshot is stale
        if fine is not None:
            self.dropped += int(np.count_nonzero(~fine))
            batch = only(batch, fine)
        if not len(batch.rank):
            return
        life, most = self._life(key, batch, slurm)
        if life is None:
            self.dropped += len(batch.rank)
            return
        life.vouched = fine is not None
        self.dropped += life.take(batch, most)

    def _hear(self, batch: "StepBatch", slurm: SlurmSnapshot | None) -> None:
        life, fine = self._lives.get((batch.job, batch.restart)), vouched(batch, slurm)
        if life is None or not life.vouched or fine is None:
            self.dropped += len(batch.rank)
            return
        self.dropped += int(np.count_nonzero(~fine)) + life.hear(only(batch, fine))

    def _drop_unvouched(self, slurm: SlurmSnapshot | None) -> None:
        """Drops lives reported before Slurm showed the job running: the sender may have made them up."""
        self._lives = {
            key: life
            for key, life in self._lives.items()
            if life.vouched or active_job(slurm, life.job) is None
        }

    def _life(
        self, key: LifeKey, batch: "StepBatch", slurm: SlurmSnapshot | None
    ) -> tuple[JobSteps | None, int]:
        """The life, allowed to grow as the batch needs, and the limit of its ranks; None: no room."""
        most, life = ranks_most(key[0], slurm), self._lives.get(key)
        ranks = batch.rank[batch.rank < most]
        if not len(ranks) or ranks.max() < 0:
            return life, most
        had = life.capacity if life is not None else 0
        capacity = grown(had, int(ranks.max()) + 1, most)
        if life is None or capacity > had:
            away = make_room(self._lives, key, capacity, slurm)
            if away is None:
                return life, had
            for other in away:
                del self._lives[other]
        if life is None:
            life = self._lives[key] = JobSteps(self.cluster, *key, batch.arrived_at)
        return life, most

    def jobs(self) -> Iterator[JobSteps]:
        """The latest life of each job."""
        latest = self._latest()
        return (life for life in self._lives.values() if life.restart == latest[life.job])

    def job(self, name: str) -> JobSteps | None:
        latest = self._latest().get(name)
        return None if latest is None else self._lives[name, latest]

    def __len__(self) -> int:
        return len(self._lives)

    def _latest(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for job, restart in self._lives:
            found[job] = max(restart, found.get(job, restart))
        return found

    def _forget(self, slurm: SlurmSnapshot | None, now: datetime) -> None:
        latest = self._latest()
        for key, life in list(self._lives.items()):
            there = slurm is None or active_job(slurm, life.job) is not None
            if there and life.restart == latest[life.job]:
                life.gone_at = None
                continue
            life.gone_at = life.gone_at or now
            if now - max(life.gone_at, life.heard_at) > FORGET_AFTER:
                del self._lives[key]


def joined(parts: "Sequence[StepBatch]") -> "StepBatch":
    """Several batches of one life as one, because each rank may have its own sender."""
    if len(parts) == 1:
        return parts[0]
    names: dict[str, int] = {}
    nodes = []
    for part in parts:
        index = np.array([names.setdefault(name, len(names)) for name in part.nodes] or [-1], np.int32)
        nodes.append(np.where(part.node >= 0, index[part.node], -1).astype(np.int32))
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
    columns["node"] = np.concatenate(nodes)
    return replace(
        parts[0],
        **columns,
        nodes=tuple(names),
        arrived_at=max(part.arrived_at for part in parts),
        sent_by=either_of(part.sent_by for part in parts),
    )


def _by_slurm(ranks: int, job: SlurmJob, slurm: SlurmSnapshot) -> Places | None:
    """Block distribution over the job's nodes in Slurm's order, if the number of ranks fits the GPUs or the
    number of nodes. None if not: a guess would blame the wrong node."""
    gpus: list[Iterable[int]] = []
    for name in job.nodes:
        shown = slurm.nodes.get(name)
        gpus.append(job.gpus[name] if name in job.gpus else range(shown.gpus if shown else 0))
    flat = [(node, gpu) for node, indexes in enumerate(gpus) for gpu in indexes]
    if ranks and len(flat) != ranks:
        flat = [(node, -1) for node in range(len(gpus))]
    if not ranks or len(flat) != ranks:
        return None
    node, gpu = np.array(flat, np.int32).T
    return Places(job.nodes, node, gpu)


def is_of_life(job: JobSteps, shown: SlurmJob) -> bool:
    """Whether it is the life that Slurm shows: until the new life of a requeued job has reported a step, the
    job is known by the old one, whose ranks ran elsewhere.

    Senders that do not count lives always report 0.
    """
    if shown.start_at is None:
        return job.restart == shown.restarts
    return job.restart in (0, shown.restarts) and job.ended_at > shown.start_at.timestamp()
