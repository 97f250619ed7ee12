"""Hangs: a job whose steps stand still while Slurm shows it at work, and which rank the others wait for.

Silence alone is no hang: its ranks have to say that they stand, or its GPUs have to rest, or one of its nodes
has to have lost a link.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from healer.detection.protocol import Detector, Look, Pair
from healer.model import (
    Component,
    Detections,
    Evidence,
    FaultClass,
    Finding,
    LinkDown,
    Scope,
    Sense,
    SlurmJob,
    SlurmSnapshot,
)
from healer.model.node import IDLE_PERCENT, WAITING_OF_LIMIT
from healer.observations.step_columns import BETWEEN, COLLECTIVE, COMPUTE, RESTS, UNTOLD
from healer.observations.steps import JobSteps, Places, StepTimes, is_of_life
from healer.observations.telemetry_windows import Telemetry

#: A rank that stands still says so every 10 s; what it said longer ago is nothing of now.
FRESH_S = 45.0
#: So many of the ranks have to say where they stand before the others' silence means anything.
SPEAK = 0.5
#: More of the ranks than this missing together share a cause: none is named.
NAMED_MOST = 0.25
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
        few = self.missing.sum() <= NAMED_MOST * len(self.ranks)
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


#: All of it quiet for so long: a job that works pauses too.
QUIET_S = 60.0
_LIMITS = ("power_limit_enforced_w", "power_limit_w", "power_limit_default_w")


def at_rest(telemetry: Telemetry, job: SlurmJob, now: datetime) -> bool | None:
    """None of the job's GPUs computed for a minute; None: not known of all of them."""
    rows = [_rows(telemetry, job, node) for node in job.nodes]
    if not rows or any(one is None or not len(one) for one in rows):
        return None
    own = np.concatenate([one for one in rows if one is not None])
    util = _most(telemetry, "gpu_util_percent", own, now)
    share = _most(telemetry, "gr_engine_active_ratio", own, now) * 100
    util = np.fmax(util, share)
    power = np.fmax(_most(telemetry, "power_w", own, now), _most(telemetry, "power_instant_w", own, now))
    limit = np.full(len(own), np.nan)
    for name in _LIMITS:
        limit = np.where(np.isnan(limit), _last(telemetry, name, own, now), limit)
    idle, waits = util < IDLE_PERCENT, power < WAITING_OF_LIMIT * limit
    works = (util >= IDLE_PERCENT) & (power >= WAITING_OF_LIMIT * limit)
    if works.any():
        return False
    return True if bool((idle | waits).all()) else None


def _rows(telemetry: Telemetry, job: SlurmJob, node: str) -> NDArray[np.int64] | None:
    """Rows of the job's GPUs on the node; None where one of them was never heard of."""
    rows = telemetry.rows_of(node, Scope.gpu)
    own = job.gpus.get(node)
    if own is None:
        return rows
    known = telemetry.axis(Scope.gpu).components()
    by_gpu = {known[row].gpu: row for row in rows.tolist()}
    found = [by_gpu[gpu] for gpu in own if gpu in by_gpu]
    return np.array(found, np.int64) if len(found) == len(own) else None


def _most(telemetry: Telemetry, signal: str, rows: NDArray[np.int64], now: datetime) -> NDArray[np.float64]:
    """(n,) the highest value of the last minute, NaN where nothing came."""
    if telemetry.scope_of(signal) is None:
        return np.full(len(rows), np.nan)
    window = telemetry.window(signal, QUIET_S, now)[:, rows].astype(np.float64)
    return np.fmax.reduce(window, axis=0)


def _last(telemetry: Telemetry, signal: str, rows: NDArray[np.int64], now: datetime) -> NDArray[np.float64]:
    if telemetry.scope_of(signal) is None:
        return np.full(len(rows), np.nan)
    return telemetry.value(signal, now)[rows]


#: A port that is down now and was up within this went down just now.
LOOK_S = 300.0
#: Signal, values that are up, values that are down.
_STATES = (("ib_state", (4, 5), (1, 2)), ("net_carrier", (1,), (0,)))


def ports_down(telemetry: Telemetry, nodes: Iterable[str], now: datetime) -> dict[str, LinkDown]:
    """Of these nodes, those with a port that went down within the last minutes and is down now."""
    found: dict[str, LinkDown] = {}
    axis = telemetry.axis(Scope.link)
    for signal, up, down in _STATES:
        if telemetry.scope_of(signal) is not Scope.link:
            continue
        window, times = telemetry.window(signal, LOOK_S, now), telemetry.times(LOOK_S, now)
        parts = axis.components()
        for node in nodes:
            for row in telemetry.rows_of(node, Scope.link).tolist():
                at_s = _went_down(window[:, row], times, up, down)
                if at_s is not None and node not in found:
                    at = datetime.fromtimestamp(at_s, now.tzinfo)
                    found[node] = LinkDown(at=at, text=f"{_port(parts[row])} went down")
    return found


def _went_down(
    values: np.ndarray, times: np.ndarray, up: tuple[int, ...], down: tuple[int, ...]
) -> float | None:
    """When the last change from up to down was, where it is still down; (k,) slots, oldest first."""
    known = np.flatnonzero(np.isfinite(values))
    if not len(known) or values[known[-1]] not in down:
        return None
    were_up = known[np.isin(values[known], up)]
    if not len(were_up):
        return None
    return float(times[known[known > were_up[-1]][0]])


def _port(where: Component) -> str:
    return f"port {where.nic}" if where.nic else str(where)


HANG = "hang"
_NAMED = 4
_DOES = {UNTOLD: "says nothing any more", COMPUTE: "still computes", BETWEEN: "has not begun it"}


class Stood(NamedTuple):
    """Since when, at which step, how long one takes (s), and how sure that is (0..1)."""

    since: datetime
    step: int
    usual_s: float
    confidence: float


def hang(
    job: JobSteps,
    places: Places,
    stand: Standstill,
    stood: Stood,
    links: Mapping[str, LinkDown],
    now: datetime,
) -> Finding:
    where = Component(cluster=job.cluster, job=job.job)
    suspects = _suspects(job, stand, places, links)
    stood_s = (now - stood.since).total_seconds()
    words = [
        f"job {job.job}: no step since {stood.since:%H:%M:%S} UTC, for {stood_s:.0f} s; the last was step "
        f"{stood.step}, and one takes {stood.usual_s:.3g} s",
        _who(stand, places),
        *(f"{node} lost a link at {one.at:%H:%M:%S} UTC ({one.text[:160]})" for node, one in links.items()),
    ]
    text = "; ".join(words)
    named = ",".join(str(rank) for rank in stand.named[:64].tolist()) if stand.speaks else ""
    identity = f"{HANG}|{job.cluster}|{job.job}|{job.restart}|{stood.step}|{named}|{sorted(links)}"
    evidence = Evidence(
        digest=sha256(identity.encode()).hexdigest(),
        at=min(stood.since, now),
        component=where,
        text=text,
        arrived_at=now,
        job=job.job,
        sense=Sense.step_times,
    )
    for_whom = f": it waits for {suspects[0]}" if len(suspects) == 1 else ""
    return Finding.from_evidence(
        evidence,
        fault=HANG,
        fault_class=FaultClass.informational,
        title=f"Job {job.job} makes no step any more{for_whom}",
        confidence=stood.confidence,
        affected=suspects,
    )


def _who(stand: Standstill, places: Places) -> str:
    """Who waits and who never came, as far as ranks say it."""
    count, missing = len(stand.ranks), int(stand.missing.sum())
    if not stand.speaks and not missing:
        return "its ranks do not say where they stand"
    waits = int(stand.waits.sum())
    there = f"{waits} of {count} ranks wait in its collective" if waits else f"{count - missing} are there"
    if not missing:
        if not waits:
            return f"all {count} ranks are in step {stand.step}, and none ends it"
        last = stand.ranks[int(np.nanargmax(np.where(stand.waits, stand.since_s, np.nan)))]
        at = _rank_at(int(last), places)
        came = f"all {count} ranks came to the collective of step {stand.step}, {at} last"
        return f"{came}, and it does not end: the network, or a GPU"
    if not len(stand.named):
        return f"{missing} of {count} ranks never came to step {stand.step}: none of them is named"
    shown = [
        f"{_rank_at(int(rank), places)} {_DOES.get(int(stand.doing[index]), 'is not there')}"
        for index, rank in enumerate(stand.ranks)
        if stand.missing[index]
    ]
    more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return f"step {stand.step}: {there}; {', '.join(shown[:_NAMED])}{more}"


def _rank_at(rank: int, places: Places) -> str:
    if rank >= len(places.node) or places.node[rank] < 0:
        return f"rank {rank}"
    gpu = f", GPU {places.gpu[rank]}" if places.gpu[rank] >= 0 else ""
    return f"rank {rank} ({places.nodes[places.node[rank]]}{gpu})"


def _suspects(
    job: JobSteps, stand: Standstill, places: Places, links: Mapping[str, LinkDown]
) -> tuple[Component, ...]:
    """Where those run that never came, and who lost a link: looked at first, and nobody is blamed."""
    found = [Component(cluster=job.cluster, node=node) for node in sorted(links)]
    ranks: NDArray[np.intp] = stand.named
    for rank in ranks.tolist():
        if rank < len(places.node) and places.node[rank] >= 0:
            gpu = int(places.gpu[rank])
            node = places.nodes[places.node[rank]]
            found.append(Component(cluster=job.cluster, node=node, gpu=gpu if gpu >= 0 else None))
    return tuple(dict.fromkeys(found))


#: Times between ends of steps that have to be known before a job can stand still.
GAPS_LEAST = 8
#: Ranks wait in a collective: it stands after so many of its own median gaps, at least this, and twice its
#: own longest pause. Before NCCL's ten minutes; long enough for a rank that compiles or collects garbage.
SURE_GAPS, SURE_S, SURE_PAUSES = 5.0, 60.0, 2.0
#: Nobody says that somebody waits; a checkpoint or an evaluation looks the same.
UNSURE_GAPS, UNSURE_S, UNSURE_PAUSES = 10.0, 180.0, 3.0
#: What a pause of the job may add to these at most: one long outage must not blind healer for the job's life.
PAUSE_SURE_S, PAUSE_UNSURE_S = 150.0, 400.0
#: One of its nodes has lost a link, and it made at most so many steps since: as soon as a step is overdue by
#: half, and at least this. A link that flaps lets a job go on.
AT_ONCE_S, AT_ONCE_STEPS, LINK_GAPS = 2.0, 1, 1.5
#: It made more steps: only once its ranks could have said that they save or evaluate, and only of a link that
#: was lost so shortly before the last step came.
LINK_S, LINK_BEFORE = 12.0, timedelta(seconds=60)
#: What is longer than so many of the times between its news is out of turn; fewer times say nothing.
IN_TURN, NEWS_LEAST = 0.9, 8
#: Senders tell so often. Before the second, a rank that told fewer steps than others is not missing yet.
SENDS_S, HEARD_S = 5.0, 15.0
#: An older picture of Slurm shows nothing at work.
PICTURE_S = 30.0
#: Where this process does not know what it told, a step that came so lately says that the job goes on.
GOES_ON_S = 30.0
#: What stands is told again after this; who is missing may change sooner.
AGAIN_AFTER, ANEW_AFTER = timedelta(minutes=5), timedelta(seconds=30)

#: Whether all GPUs of a job rest at that moment; None: not known.
AtRest = Callable[[Telemetry, SlurmJob, datetime], bool | None]
#: The nodes of these that have lost a link.
LinksDown = Callable[[Iterable[str]], Mapping[str, LinkDown]]


@dataclass(slots=True, eq=False)
class _Watch:
    """What is followed of one life of a job."""

    job: JobSteps
    rewound: int
    newest: int = -1
    #: When the newest step was heard of.
    moved_at: datetime | None = None
    usual_s: float = float("nan")
    longest_s: float = 0.0
    #: The last steps before hangs that were told.
    stood: deque[int] = field(default_factory=lambda: deque(maxlen=16))
    #: The step at which it was told to stand, who was missing then, and when.
    told: tuple[int, tuple[int, ...], datetime] | None = None

    def follow(self, now: datetime) -> None:
        job = self.job
        if job.newest == self.newest:
            return
        if self.told is not None:
            self.stood.append(self.told[0])
        self.newest, self.moved_at, self.told = job.newest, min(job.news_at or now, now), None
        gaps = self._gaps()
        if len(gaps) >= GAPS_LEAST:
            self.usual_s = float(np.median(gaps))
            self.longest_s = max(self.longest_s, float(gaps.max()))

    def _gaps(self) -> NDArray[np.float64]:
        """(k,) s between the ends of steps, without those that were hangs: they are no pauses of its own."""
        rows = np.flatnonzero((self.job.number >= 0) & np.isfinite(self.job.at))
        rows = rows[np.argsort(self.job.number[rows])]
        own = ~np.isin(self.job.number[rows[:-1]], self.stood)
        return np.diff(self.job.at[rows])[own]

    @property
    def known(self) -> bool:
        return self.usual_s > 0

    def sure_s(self) -> float:
        pause_s = min(SURE_PAUSES * self.longest_s, SURE_S + PAUSE_SURE_S)
        return max(SURE_S, SURE_GAPS * self.usual_s, pause_s)

    def unsure_s(self) -> float:
        pause_s = min(UNSURE_PAUSES * self.longest_s, UNSURE_S + PAUSE_UNSURE_S)
        return max(UNSURE_S, UNSURE_GAPS * self.usual_s, pause_s)

    def lost(self, links: Mapping[str, LinkDown], begun: datetime, stood_s: float) -> dict[str, LinkDown]:
        """Those of the links for which it may stand that long."""
        news = self.job.news_s
        news_s = float(np.quantile(news, IN_TURN, method="higher")) if len(news) >= NEWS_LEAST else SENDS_S
        overdue_s = LINK_GAPS * max(self.usual_s, news_s)
        if stood_s <= overdue_s:
            return {}
        return {
            node: one
            for node, one in links.items()
            if (stood_s > LINK_S and one.at >= begun - LINK_BEFORE)
            or self._stopped_by(one, begun + timedelta(seconds=overdue_s))
        }

    def _stopped_by(self, link: LinkDown, overdue_at: datetime) -> bool:
        """It did not stand yet when the link went, and made hardly a step since."""
        ended_at = self.job.at[self.job.number >= 0]
        steps = np.count_nonzero(ended_at > link.at.timestamp())
        return link.at <= overdue_at and bool(steps <= AT_ONCE_STEPS)


@dataclass(frozen=True, slots=True)
class _Found:
    watch: _Watch
    stand: Standstill
    begun: datetime
    links: Mapping[str, LinkDown]
    confidence: float

    def finding(self, look: Look) -> Finding:
        job, stood = self.watch.job, Stood(self.begun, self.watch.newest, self.watch.usual_s, self.confidence)
        return hang(job, job.places(look.slurm), self.stand, stood, self.links, look.now)


class Hangs(Detector):
    """Follows all jobs. What it knows grows with the jobs that `StepTimes` holds."""

    def __init__(self, rests: AtRest = at_rest) -> None:
        self._rests = rests
        self._watches: dict[tuple[str, int], _Watch] = {}
        self._clear: dict[Pair, datetime] = {}

    def tick(self, look: Look) -> Detections:
        def lost(nodes: Iterable[str]) -> dict[str, LinkDown]:
            return ports_down(look.telemetry, nodes, look.now) | _lost_by_lines(look, nodes)

        findings = [found.finding(look) for found in self._found(look, lost, self._rests)]
        pairs = [pair for pair in look.watched if pair[0] == HANG and self._well(pair, look.slurm, look.now)]
        self._clear = {pair: self._clear.get(pair, look.now) for pair in pairs}
        return Detections(at=look.now, findings=tuple(findings), clear_since=dict(self._clear))

    def glance(self, look: Look) -> tuple[Finding, ...]:
        """Who stands for a lost link. The rest waits for a tick, which asks what the GPUs do."""
        found = self._found(look, lambda nodes: _lost_by_lines(look, nodes), lambda *_: None, for_links=True)
        return tuple(one.finding(look) for one in found)

    def _found(
        self, look: Look, links_down: LinksDown, rests: AtRest, *, for_links: bool = False
    ) -> Iterator[_Found]:
        """What stands and was not told lately. `for_links`: for a lost link alone."""
        now, heard = look.now, look.listening_since
        for watch, shown in self._follow(look.steps, look.slurm, now):
            begun = max(watch.moved_at or now, heard or watch.moved_at or now)
            if not watch.known or (now - begun).total_seconds() <= AT_ONCE_S:
                continue
            found = _stands(watch, shown, begun, look, links_down, rests)
            if found is None or (for_links and not found.links):
                continue
            if _is_due(watch, found.stand, now):
                yield found

    def _follow(
        self, steps: StepTimes, slurm: SlurmSnapshot | None, now: datetime
    ) -> list[tuple[_Watch, SlurmJob]]:
        """Takes in new steps; the watches of jobs that Slurm shows running, in the life that told them."""
        kept: dict[tuple[str, int], _Watch] = {}
        live: list[tuple[_Watch, SlurmJob]] = []
        fresh = slurm is not None and (now - slurm.taken_at).total_seconds() <= PICTURE_S
        for job in steps.jobs():
            key = job.job, job.restart
            watch = self._watches.get(key)
            if watch is None or watch.job is not job or watch.rewound != job.rewound:
                watch = _Watch(job, job.rewound)
            kept[key] = watch
            watch.follow(now)
            shown = slurm.jobs.get(job.job) if slurm is not None and fresh else None
            if shown is None or shown.state != "RUNNING" or "COMPLETING" in shown.flags:
                # Suspended or starting anew: what it did not do meanwhile was not missed.
                watch.moved_at = now if shown is not None and watch.moved_at is not None else watch.moved_at
            elif job.vouched and is_of_life(job, shown):
                live.append((watch, shown))
        self._watches = kept
        return live

    def _well(self, pair: Pair, slurm: SlurmSnapshot | None, now: datetime) -> bool:
        """The job makes steps again, or it is over."""
        job = pair[1].job or ""
        shown = slurm.jobs.get(job) if slurm is not None else None
        if slurm is not None and (shown is None or not shown.active):
            return True
        own = [watch for (name, _), watch in self._watches.items() if name == job]
        watch = max(own, key=lambda one: one.job.restart, default=None)
        if watch is None or watch.moved_at is None or watch.told is not None:
            return False
        return (now - watch.moved_at).total_seconds() <= GOES_ON_S


def _stands(
    watch: _Watch, shown: SlurmJob, begun: datetime, look: Look, links_down: LinksDown, rests: AtRest
) -> _Found | None:
    stood_s = (look.now - begun).total_seconds()
    stand: Standstill | None = None
    links: Mapping[str, LinkDown] = {}
    if stood_s > LINK_GAPS * watch.usual_s:
        links = watch.lost(links_down(shown.nodes), begun, stood_s)
    if links or stood_s > watch.sure_s():
        stand = standstill(watch.job, look.now.timestamp())
        if stood_s <= HEARD_S and not stand.speaks:
            stand = replace(stand, missing=np.zeros_like(stand.missing))
    if stand is None or stand.rests:
        return None
    if links:
        return _Found(watch, stand, begun, links, 0.8)
    limit_s = _limit_s(watch, stand)
    if limit_s is None or stood_s <= limit_s:
        return None
    sure = limit_s < watch.unsure_s()
    if not sure:
        rest = rests(look.telemetry, shown, look.now)
        if rest is False or (rest is None and not stand.speaks):
            return None
    return _Found(watch, stand, begun, links, 0.9 if sure else 0.7)


def _lost_by_lines(look: Look, nodes: Iterable[str]) -> dict[str, LinkDown]:
    return {name: look.links_down[name] for name in nodes if name in look.links_down}


def _limit_s(watch: _Watch, stand: Standstill) -> float | None:
    """After how long it stands; None: not by what its ranks say."""
    if not stand.speaks:
        return watch.unsure_s()
    if stand.all_between:
        return None
    waits = bool(stand.waits.any()) and not stand.only_between
    return watch.sure_s() if waits else watch.unsure_s()


def _is_due(watch: _Watch, stand: Standstill, now: datetime) -> bool:
    named = tuple(stand.named.tolist())
    if watch.told is not None:
        _, before, at = watch.told
        after = ANEW_AFTER if named and named != before else AGAIN_AFTER
        if now - at < after:
            return False
    watch.told = watch.newest, named, now
    return True
