"""Hangs: a job whose steps stand still while Slurm shows it at work, and which rank the others wait for.

Silence alone is no hang: its ranks have to say that they stand, or its GPUs have to rest, or one of its nodes
has to have lost a link.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from healer.detection.hang_findings import HANG, Stood, hang
from healer.detection.standstill import Standstill, standstill
from healer.model import Component, Finding, LinkDown, Sensed, SlurmJob, SlurmSnapshot
from healer.observations.steps import JobSteps, Places, StepTimes

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

Pair = tuple[str, Component]
#: Whether all GPUs of a job rest; None: not known.
AtRest = Callable[[SlurmJob], bool | None]
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

    def finding(self, places: Places, now: datetime) -> Finding:
        stood = Stood(self.begun, self.watch.newest, self.watch.usual_s, self.confidence)
        return hang(self.watch.job, places, self.stand, stood, self.links, now)


class Hangs:
    """Follows all jobs, one thread. What it knows grows with the jobs that `StepTimes` holds."""

    def __init__(self) -> None:
        self._watches: dict[tuple[str, int], _Watch] = {}
        self._clear: dict[Pair, datetime] = {}

    def tick(
        self,
        steps: StepTimes,
        slurm: SlurmSnapshot | None,
        now: datetime,
        watched: Collection[Pair] = (),
        *,
        listening_since: datetime | None = None,
        at_rest: AtRest = lambda _: None,
        links_down: LinksDown = lambda _: {},
    ) -> Sensed:
        """New findings, and since when those of `watched` (fault, component) are known to be over.

        `listening_since`: before, healer heard nothing from anybody, and what nobody heard was not missed.
        """
        findings = self._found(steps, slurm, now, listening_since, at_rest, links_down)
        pairs = [pair for pair in watched if pair[0] == HANG and self._well(pair, slurm, now)]
        self._clear = {pair: self._clear.get(pair, now) for pair in pairs}
        return Sensed(at=now, findings=findings, clear_since=dict(self._clear))

    def look(
        self,
        steps: StepTimes,
        slurm: SlurmSnapshot | None,
        now: datetime,
        links_down: LinksDown,
        listening_since: datetime | None = None,
    ) -> tuple[Finding, ...]:
        """Between two ticks, after a link was lost: who stands for it. The rest waits for a tick, which asks
        what the GPUs do."""
        return self._found(
            steps, slurm, now, listening_since, lambda _: None, links_down, for_links_alone=True
        )

    def _found(
        self,
        steps: StepTimes,
        slurm: SlurmSnapshot | None,
        now: datetime,
        listening_since: datetime | None,
        at_rest: AtRest,
        links_down: LinksDown,
        *,
        for_links_alone: bool = False,
    ) -> tuple[Finding, ...]:
        findings: list[Finding] = []
        for watch, shown in self._follow(steps, slurm, now):
            begun = max(watch.moved_at or now, listening_since or watch.moved_at or now)
            if not watch.known or (now - begun).total_seconds() <= AT_ONCE_S:
                continue
            found = self._stands(watch, shown, begun, now, at_rest, links_down)
            if found is None or (for_links_alone and not found.links):
                continue
            if _is_due(watch, found.stand, now):
                findings.append(found.finding(watch.job.places(slurm), now))
        return tuple(findings)

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
            elif job.vouched and job.restart in (0, shown.restarts) and _is_its_life(job, shown):
                live.append((watch, shown))
        self._watches = kept
        return live

    def _stands(
        self,
        watch: _Watch,
        shown: SlurmJob,
        begun: datetime,
        now: datetime,
        at_rest: AtRest,
        links_down: LinksDown,
    ) -> _Found | None:
        stood_s = (now - begun).total_seconds()
        stand: Standstill | None = None
        links: Mapping[str, LinkDown] = {}
        if stood_s > LINK_GAPS * watch.usual_s:
            links = watch.lost(links_down(shown.nodes), begun, stood_s)
        if links or stood_s > watch.sure_s():
            stand = standstill(watch.job, now.timestamp())
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
            rest = at_rest(shown)
            if rest is False or (rest is None and not stand.speaks):
                return None
        return _Found(watch, stand, begun, links, 0.9 if sure else 0.7)

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


def _is_its_life(job: JobSteps, shown: SlurmJob) -> bool:
    """Senders that count no lives always tell 0: then its steps have to be of this life by their time."""
    if shown.start_at is None:
        return job.restart == shown.restarts
    return job.told_at > shown.start_at.timestamp()
