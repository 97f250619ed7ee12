"""Hangs: a job whose steps stop while Slurm shows it running, and which rank the others wait for.

Silence alone is no hang: its ranks have to report that they are stuck, or its GPUs have to be idle, or one of
its nodes has to have lost a link, a file system, a disk or memory. Where one node alone has, and its own
kernel or port says so, the node is found too: its word and the job's ranks agree.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.detection.protocol import AGAIN_AFTER, Detector, Look, Pair, new_evidence, watch_jobs
from healer.model import (
    Component,
    Detections,
    FaultClass,
    Finding,
    NodeReport,
    Remedy,
    Scope,
    Sense,
    SlurmJob,
)
from healer.model.faults import HANG, STOPPED_JOB, Trait, fault_is
from healer.model.node import IDLE_PERCENT, WAITING_OF_LIMIT
from healer.observations.step_columns import BETWEEN, COLLECTIVE, COMPUTE, RESTS, UNREPORTED
from healer.observations.steps import JobSteps, LifeKey, Places, active_job, is_of_life
from healer.observations.telemetry_windows import Telemetry
from healer.text import Said, joined, quoted, say

#: A stuck rank reports its state every 10 s; an older report is stale.
FRESH_S = 45.0
#: Silence of the other ranks means something once this share of the ranks reports a state.
SPEAK = 0.5
#: If more of the ranks than this are missing they share a cause: none is named.
NAMED_MOST = 0.25
#: A job that reports a checkpoint or an evaluation is believed for this long.
REST_MOST_S = 3600.0


@dataclass(frozen=True, slots=True)
class Standstill:
    """(n,) arrays over `ranks`. `step`: the one that the foremost are in. `missing`: not there yet."""

    ranks: NDArray[np.intp]
    doing: NDArray[np.int8]
    since_s: NDArray[np.float64]
    missing: NDArray[np.bool_]
    step: int
    #: Enough ranks report their state; else `missing` are only those that reported fewer steps.
    speaks: bool
    #: A rank reports a checkpoint or an evaluation.
    rests: bool

    @property
    def waits(self) -> NDArray[np.bool_]:
        """(n,) waits in the collective of `step`."""
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
        """The missing ranks have only not begun the step: one rank may be saving for all."""
        return bool(self.missing.any()) and bool((self.doing[self.missing] == BETWEEN).all())

    @property
    def named(self) -> NDArray[np.intp]:
        """The missing ranks, if they are few enough to be the cause."""
        few = self.missing.sum() <= NAMED_MOST * len(self.ranks)
        return self.ranks[self.missing] if few else self.ranks[:0]


def standstill(job: JobSteps, now_s: float) -> Standstill:
    """By the latest report of each rank. A report on a step that has ended since is ignored."""
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
    speaks = bool(len(ranks)) and float(fresh.mean()) >= SPEAK
    front = int(place[fresh].max() if speaks else place.max(initial=0))
    since_s = np.where(fresh, last.since_s[ranks], np.nan)
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


#: All GPUs have to be quiet for this long: a job at work pauses too.
QUIET_S = 60.0
_LIMITS = ("power_limit_enforced_w", "power_limit_w", "power_limit_default_w")


def at_rest(telemetry: Telemetry, job: SlurmJob, now: datetime) -> bool | None:
    """Whether none of the job's GPUs computed for a minute; None where that is not known of all of them."""
    rows_by_node = [_gpu_rows(telemetry, job, node) for node in job.nodes]
    if not rows_by_node or any(rows is None or not len(rows) for rows in rows_by_node):
        return None
    rows = np.concatenate([rows for rows in rows_by_node if rows is not None])

    def highest(signal: str) -> NDArray[np.float64]:
        """(n,) the highest value of the last minute, NaN where nothing came."""
        if telemetry.scope_of(signal) is None:
            return np.full(len(rows), np.nan)
        window = telemetry.window(signal, QUIET_S, now)[:, rows].astype(np.float64)
        return np.fmax.reduce(window, axis=0)

    util = np.fmax(highest("gpu_util_percent"), highest("gr_engine_active_ratio") * 100)
    power = np.fmax(highest("power_w"), highest("power_instant_w"))
    limit = np.full(len(rows), np.nan)
    for name in _LIMITS:
        limit = np.where(np.isnan(limit), telemetry.value_on(Scope.gpu, name, now)[rows], limit)
    idle, waits = util < IDLE_PERCENT, power < WAITING_OF_LIMIT * limit
    works = (util >= IDLE_PERCENT) & (power >= WAITING_OF_LIMIT * limit)
    if works.any():
        return False
    return True if bool((idle | waits).all()) else None


def _gpu_rows(telemetry: Telemetry, job: SlurmJob, node: str) -> NDArray[np.int64] | None:
    """Rows of the job's GPUs on the node; None where one of them was never heard of."""
    rows = telemetry.rows_of(node, Scope.gpu)
    allocated = job.gpus.get(node)
    if allocated is None:
        return rows
    components = telemetry.axis(Scope.gpu).components()
    by_gpu = {components[row].gpu: row for row in rows.tolist()}
    found = [by_gpu[gpu] for gpu in allocated if gpu in by_gpu]
    return np.array(found, np.int64) if len(found) == len(allocated) else None


#: A port that is down now and was up within this time has just gone down.
LOOK_S = 300.0
#: Signal, values that are up, values that are down.
_STATES = (("ib_state", (4, 5), (1, 2)), ("net_carrier", (1,), (0,)))


def ports_down(telemetry: Telemetry, nodes: Iterable[str], now: datetime) -> dict[str, NodeReport]:
    """Of these nodes, those with a port that went down within the last `LOOK_S` and is still down."""
    found: dict[str, NodeReport] = {}
    parts = telemetry.axis(Scope.link).components()
    for signal, up, down in _STATES:
        if telemetry.scope_of(signal) is not Scope.link:
            continue
        window, times = telemetry.window(signal, LOOK_S, now), telemetry.times(LOOK_S, now)
        for node in nodes:
            for row in telemetry.rows_of(node, Scope.link).tolist():
                at_s = _went_down(window[:, row], times, up, down)
                if at_s is not None and node not in found:
                    at, where = datetime.fromtimestamp(at_s, now.tzinfo), parts[row]
                    found[node] = NodeReport(at=at, text=_down_text(where))
    return found


def _down_text(where: Component) -> Said:
    if where.nic:
        return say("detection.port_down", port=where.nic)
    return say("detection.part_down", part=str(where))


def _are_measured_since(telemetry: Telemetry, nodes: Iterable[str], since: datetime, now: datetime) -> bool:
    """Whether each of these nodes whose ports are measured was measured after that."""
    for signal, _, _ in _STATES:
        if telemetry.scope_of(signal) is not Scope.link:
            continue
        heard = np.isfinite(telemetry.window(signal, LOOK_S, now))
        later = telemetry.times(LOOK_S, now) > since.timestamp()
        for node in nodes:
            rows = heard[:, telemetry.rows_of(node, Scope.link)]
            if rows.any() and not rows[later].any():
                return False
    return True


def _went_down(
    values: np.ndarray, times: np.ndarray, up: tuple[int, ...], down: tuple[int, ...]
) -> float | None:
    """When the last change from up to down was, if it is still down; (k,) slots, oldest first."""
    valid = np.flatnonzero(np.isfinite(values))
    if not len(valid) or values[valid[-1]] not in down:
        return None
    were_up = valid[np.isin(values[valid], up)]
    return float(times[valid[valid > were_up[-1]][0]]) if len(were_up) else None


_NAMED = 4
#: What a missing rank does, as in the keys of its words.
_DOES = {UNREPORTED: "nothing", COMPUTE: "compute", BETWEEN: "between"}


def _who(stand: Standstill, places: Places) -> Said:
    """Which ranks wait and which are missing, as far as ranks report it."""
    count, missing = len(stand.ranks), int(stand.missing.sum())
    if not stand.speaks and not missing:
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
    who = joined(shown, "comma")
    if len(absent) > _NAMED:
        who = say("words.and_more", names=who, n=len(absent) - _NAMED)
    return say("detection.ranks_in_step", step=stand.step, there=there, missing=who)


def _rank_at(rank: int, places: Places) -> Said:
    if rank >= len(places.node) or places.node[rank] < 0:
        return say("detection.rank", rank=rank)
    node, gpu = places.nodes[places.node[rank]], int(places.gpu[rank])
    if gpu < 0:
        return say("detection.rank_on", rank=rank, node=node)
    return say("detection.rank_on_gpu", rank=rank, node=node, gpu=gpu)


def _suspects(
    job: JobSteps, stand: Standstill, places: Places, reports: Iterable[str]
) -> tuple[Component, ...]:
    """Where missing ranks run, and nodes that lost something: where to look first; none of them is blamed."""
    found = [Component(cluster=job.cluster, node=node) for node in sorted(reports)]
    for rank in stand.named.tolist():
        if rank < len(places.node) and places.node[rank] >= 0:
            gpu = int(places.gpu[rank])
            node = places.nodes[places.node[rank]]
            found.append(Component(cluster=job.cluster, node=node, gpu=gpu if gpu >= 0 else None))
    return tuple(dict.fromkeys(found))


#: Times between ends of steps that are needed before a job can be called stuck.
GAPS_LEAST = 8
#: Ranks wait in a collective: stuck after so many of the job's median gaps, at least this, and twice its
#: longest pause. Before NCCL's ten minutes; long enough for a rank that compiles or collects garbage.
SURE_GAPS, SURE_S, SURE_PAUSES = 5.0, 60.0, 2.0
#: No rank reports that it waits; a checkpoint or an evaluation looks the same.
UNSURE_GAPS, UNSURE_S, UNSURE_PAUSES = 10.0, 180.0, 3.0
#: What a pause of the job may add to these at most: one long outage must not blind healer for the job's life.
PAUSE_SURE_S, PAUSE_UNSURE_S = 150.0, 400.0
#: One of its nodes has lost a link, and it made at most so many steps since: as soon as a step is overdue by
#: half, and at least this. A link that flaps lets a job go on.
AT_ONCE_S, AT_ONCE_STEPS, LINK_GAPS = 2.0, 1, 1.5
#: The node is taken out, and the job requeued: the job has made no step for so long.
STOPPED_GAPS, STOPPED_S, STOPPED_PAUSES = 3.0, 20.0, 1.5
#: A port that is down for less may be a link that trains again, or a switch that restarts.
PORT_STAYS = timedelta(seconds=30)
#: Losses of one place within this time of each other are the place's; elsewhere in the job within
#: `LINK_BEFORE`.
PLACE_LOSES = timedelta(minutes=5)
#: The node is reported again so soon: while its place was in trouble, nothing was done.
BLAMED_AGAIN = timedelta(seconds=5)
#: It made more steps: only once its ranks could have reported a checkpoint or an evaluation, and only for a
#: link that was lost shortly before the last step came.
LINK_S, LINK_BEFORE = 12.0, timedelta(seconds=60)
#: A gap above this quantile of the job's reporting gaps is overdue; with fewer gaps `SENDS_S` is assumed.
IN_TURN, NEWS_LEAST = 0.9, 8
#: Pace of senders. Before `HEARD_S` a rank that reported fewer steps than others is not missing yet.
SENDS_S, HEARD_S = 5.0, 15.0
#: An older snapshot of Slurm shows no job as running.
PICTURE_S = 30.0
#: Without a report by this process, a step that came this recently means that the job goes on.
GOES_ON_S = 30.0
#: Reported sooner than `AGAIN_AFTER` if other ranks are missing; and twice, if the GPUs are quiet too: two
#: such looks prove a hang.
CHANGED_AFTER, LOOKS, LOOKS_APART = timedelta(seconds=30), 2, timedelta(seconds=60)

#: Whether all GPUs of a job are idle at that moment; None: not known.
AtRest = Callable[[Telemetry, SlurmJob, datetime], bool | None]
#: The nodes of these that have lost what a job may need.
ReportsOf = Callable[[Iterable[str]], Mapping[str, NodeReport]]


@dataclass(frozen=True, slots=True)
class _Reported:
    """The step at which the job was reported as stuck, the ranks missing then, and when. `quiet`: when its
    GPUs were quiet too, as reported."""

    step: int
    missing: tuple[int, ...]
    at: datetime
    quiet: tuple[datetime, ...] = ()


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
    #: The last steps before hangs that were reported.
    hung_at: deque[int] = field(default_factory=lambda: deque(maxlen=16))
    reported: _Reported | None = None
    #: When a node was last reported as the cause of this standstill.
    blamed_at: datetime | None = None

    def follow(self, now: datetime) -> None:
        job = self.job
        if job.newest == self.newest:
            return
        if self.reported is not None:
            self.hung_at.append(self.reported.step)
        self.newest, self.moved_at, self.reported = job.newest, min(job.news_at or now, now), None
        gaps = self._gaps()
        if len(gaps) >= GAPS_LEAST:
            self.usual_s = float(np.median(gaps))
            self.longest_s = max(self.longest_s, float(gaps.max()))

    def _gaps(self) -> NDArray[np.float64]:
        """(k,) s between the ends of steps, without hangs: they are no pauses of the job's own."""
        rows = np.flatnonzero((self.job.number >= 0) & np.isfinite(self.job.at))
        rows = rows[np.argsort(self.job.number[rows])]
        return np.diff(self.job.at[rows])[~np.isin(self.job.number[rows[:-1]], self.hung_at)]

    def limit_s(self, stand: Standstill) -> float | None:
        """Seconds after which it counts as stuck; None: not by what its ranks report."""
        if not stand.speaks:
            return self.unsure_s()
        if stand.all_between:
            return None
        waits = bool(stand.waits.any()) and not stand.only_between
        return self.sure_s() if waits else self.unsure_s()

    def sure_s(self) -> float:
        pause_s = min(SURE_PAUSES * self.longest_s, SURE_S + PAUSE_SURE_S)
        return max(SURE_S, SURE_GAPS * self.usual_s, pause_s)

    def stopped_s(self) -> float:
        """Seconds after which its node is taken out for it, where that has lost something."""
        pause_s = min(STOPPED_PAUSES * self.longest_s, STOPPED_S + PAUSE_SURE_S)
        return max(STOPPED_S, STOPPED_GAPS * self.usual_s, pause_s)

    def unsure_s(self) -> float:
        pause_s = min(UNSURE_PAUSES * self.longest_s, UNSURE_S + PAUSE_UNSURE_S)
        return max(UNSURE_S, UNSURE_GAPS * self.usual_s, pause_s)

    def reports_to_blame(
        self, reports: Mapping[str, NodeReport], begun: datetime, stalled_s: float
    ) -> dict[str, NodeReport]:
        """Those of the losses that may be why it has made no step for so long."""
        news = self.job.news_s
        news_s = float(np.quantile(news, IN_TURN, method="higher")) if len(news) >= NEWS_LEAST else SENDS_S
        overdue_s = LINK_GAPS * max(self.usual_s, news_s)
        if stalled_s <= overdue_s:
            return {}
        stopped = stalled_s > self.stopped_s()
        return {
            node: report
            for node, report in reports.items()
            if (stopped or not fault_is(report.fault, Trait.may_stop_work))
            and (
                (stalled_s > LINK_S and report.at >= begun - LINK_BEFORE)
                or self._stopped_by(report, begun + timedelta(seconds=overdue_s))
            )
        }

    def _stopped_by(self, report: NodeReport, overdue_at: datetime) -> bool:
        """It was not stuck yet when the loss was reported, and made hardly a step since."""
        ended_at = self.job.at[self.job.number >= 0]
        steps = np.count_nonzero(ended_at > report.at.timestamp())
        return report.at <= overdue_at and bool(steps <= AT_ONCE_STEPS)

    def is_due(self, stand: Standstill, now: datetime) -> bool:
        """Whether to report it now; True counts as reported."""
        missing, last = tuple(stand.named.tolist()), self.reported
        if last is not None:
            after = CHANGED_AFTER if missing and missing != last.missing else AGAIN_AFTER
            if now - last.at < after:
                return False
        self.reported = _Reported(self.newest, missing, now, last.quiet if last is not None else ())
        return True

    def look_is_due(self, now: datetime) -> bool:
        """Whether GPUs that are quiet now are one look more."""
        seen = self.reported.quiet if self.reported is not None else ()
        return self.reported is not None and len(seen) < LOOKS and (not seen or now - seen[-1] >= LOOKS_APART)

    def note_quiet(self, now: datetime) -> None:
        if self.reported is not None:
            self.reported = replace(self.reported, quiet=(*self.reported.quiet, now))

    def inherit(self, before: "_Watch") -> None:
        """A restarted job keeps the pace of its life before until it has shown its own."""
        self.usual_s, self.longest_s = before.usual_s, before.longest_s


@dataclass(frozen=True, slots=True)
class _Hang:
    """`begun`: since when no step was made. `reports`: losses that may be why, of all that the job's nodes
    have `lost`. `confidence` is 0..1."""

    watch: _Watch
    stand: Standstill
    begun: datetime
    reports: Mapping[str, NodeReport]
    lost: Mapping[str, NodeReport]
    confidence: float
    #: Ranks report that they wait in a collective for others, or for its end.
    waits: bool = False

    def finding(self, look: Look, *, quiet: bool) -> Finding:
        """`quiet`: the job's GPUs agree, a second sense."""
        watch, stand, job, now = self.watch, self.stand, self.watch.job, look.now
        places = job.places(look.slurm)
        suspects = _suspects(job, stand, places, self.reports)
        losses = (_loss_text(node, report) for node, report in self.reports.items())
        text = joined((self._since_text(now), _who(stand, places), *losses), "semicolon")
        named = ",".join(str(rank) for rank in stand.named[:64].tolist()) if stand.speaks else ""
        identity = (
            f"{HANG}|{job.cluster}|{job.job}|{job.restart}|{watch.newest}|{named}|{sorted(self.reports)}"
        )
        where = Component(cluster=job.cluster, job=job.job)
        evidence = new_evidence(identity, where, min(self.begun, now), text, now, Sense.step_times)
        title = say("detection.hang", job=job.job)
        if len(suspects) == 1:
            title = say("detection.hang_waits_for", job=job.job, where=str(suspects[0]))
        found = Finding.from_evidence(
            evidence,
            fault=HANG,
            fault_class=FaultClass.informational,
            title=title,
            confidence=self.confidence,
            affected=suspects,
        )
        if not quiet:
            return found
        words = say("detection.gpus_quiet", job=job.job)
        sign = new_evidence(f"{identity}|quiet|{now.isoformat()}", where, now, words, now, Sense.metrics)
        return msgspec.structs.replace(found, evidence=(*found.evidence, sign))

    def _since_text(self, now: datetime) -> Said:
        watch = self.watch
        return say(
            "detection.no_step_since",
            job=watch.job.job,
            time=f"{self.begun:%H:%M:%S}",
            stalled=(now - self.begun).total_seconds(),
            step=watch.newest,
            usual=watch.usual_s,
        )

    def blamed(self, look: Look) -> Finding | None:
        """The node that alone has lost something, if that is sure: the kernel says so of a file system, a
        disk or memory, and a lost port has been down for a while. None: no node, or several, of the job or of
        the node's places, whichever of them the ranks wait for."""
        stalled_s = (look.now - self.begun).total_seconds()
        if len(self.reports) != 1 or stalled_s <= self.watch.stopped_s():
            return None
        ((node, report),) = self.reports.items()
        neighbours = {other.name for other in look.slurm.neighbours_of(node)} if look.slurm else set[str]()
        of_place = (
            *ports_down(look.telemetry, neighbours, look.now).values(),
            *_reported(look, neighbours).values(),
        )
        of_job = (other for name, other in self.lost.items() if name != node)
        if _is_among(report, of_place, PLACE_LOSES) or _is_among(report, of_job, LINK_BEFORE):
            return None
        job, where = self.watch.job, Component(cluster=self.watch.job.cluster, node=node)
        identity = f"{STOPPED_JOB}|{job.cluster}|{job.job}|{job.restart}|{self.watch.newest}|{node}"
        # On a shared node only the job that stopped is restarted.
        line = report.evidence
        signs = [msgspec.structs.replace(line, job=job.job)] if line is not None else []
        if not fault_is(report.fault, Trait.may_stop_work):
            port = ports_down(look.telemetry, (node,), look.now).get(node)
            if port is None or look.now - port.at < PORT_STAYS:
                return None
            if not _are_measured_since(look.telemetry, neighbours, port.at, look.now):
                return None
            signs.append(new_evidence(identity, where, port.at, port.text, look.now, Sense.metrics))
        text = joined((self._since_text(look.now), _loss_text(node, report)), "semicolon")
        steps = new_evidence(f"{identity}|steps", where, self.begun, text, look.now, Sense.step_times)
        found = Finding.from_evidence(
            signs[0],
            fault=STOPPED_JOB,
            fault_class=FaultClass.fatal,
            component=where,
            arrived_at=look.now,
            title=say("detection.stopped_job", job=job.job, loss=_at_most(report.text, 80)),
            text=text,
            confidence=self.confidence,
            unusable=signs[0].sense is Sense.kernel,
            jobs=(job.job,),
            remedy=report.remedy if report.remedy not in {None, Remedy.none} else Remedy.ticket,
        )
        return msgspec.structs.replace(found, evidence=(*signs, steps))


def _loss_text(node: str, report: NodeReport) -> Said:
    text = _at_most(report.text, 160)
    return say("detection.reported_loss", node=node, time=f"{report.at:%H:%M:%S}", text=text)


def _at_most(text: Said, characters: int) -> Said:
    """What is that long is a kernel's line, and no sentence of healer's."""
    return text if len(text) <= characters else quoted(text[:characters])


def _is_among(loss: NodeReport, others: Iterable[NodeReport], within: timedelta) -> bool:
    """Whether another one came at about its time."""
    return any(abs(other.at - loss.at) <= within for other in others)


class Hangs(Detector):
    """Follows all jobs. Its memory grows with the jobs that `StepTimes` holds."""

    def __init__(self, rests: AtRest = at_rest) -> None:
        self._rests = rests
        self._watches: dict[LifeKey, _Watch] = {}
        self._clear: dict[Pair, datetime] = {}

    def tick(self, look: Look) -> Detections:
        def lost(nodes: Iterable[str]) -> dict[str, NodeReport]:
            return ports_down(look.telemetry, nodes, look.now) | _reported(look, nodes)

        findings = tuple(self._found(look, lost, self._rests))
        pairs = [pair for pair in look.watched if pair[0] == HANG and self._is_over(pair, look)]
        self._clear = {pair: self._clear.get(pair, look.now) for pair in pairs}
        return Detections(at=look.now, findings=findings, clear_since=dict(self._clear))

    def glance(self, look: Look) -> tuple[Finding, ...]:
        """Jobs stuck because of what a node has lost. Other hangs wait for a tick, which looks at the
        GPUs."""

        def lost(nodes: Iterable[str]) -> dict[str, NodeReport]:
            return _reported(look, nodes)

        return tuple(self._found(look, lost, lambda *_: None, for_reports=True))

    def _found(
        self, look: Look, reports_of: ReportsOf, rests: AtRest, *, for_reports: bool = False
    ) -> Iterator[Finding]:
        """Hangs that are due to be reported, and nodes that caused one. `for_reports`: only hangs explained
        by what a node has lost."""
        for watch, shown in self._follow(look):
            moved_at = watch.moved_at or look.now
            begun = max(moved_at, look.listening_since or moved_at)
            if not watch.usual_s > 0 or (look.now - begun).total_seconds() <= AT_ONCE_S:
                continue
            hang = _find_hang(watch, shown, begun, look, reports_of, rests)
            if hang is None or (for_reports and not hang.reports):
                continue
            due = watch.is_due(hang.stand, look.now)
            quiet = hang.waits and watch.look_is_due(look.now)
            if quiet := quiet and rests(look.telemetry, shown, look.now) is True:
                watch.note_quiet(look.now)
            if due or quiet:
                yield hang.finding(look, quiet=quiet)
            again = watch.blamed_at is None or look.now - watch.blamed_at >= BLAMED_AGAIN
            if again and (blamed := hang.blamed(look)) is not None:
                watch.blamed_at = look.now
                yield blamed

    def _follow(self, look: Look) -> list[tuple[_Watch, SlurmJob]]:
        """Takes in new steps; the watches of jobs that Slurm shows running in the life that reported them."""
        slurm, now = look.slurm, look.now
        is_fresh = slurm is not None and (now - slurm.taken_at).total_seconds() <= PICTURE_S
        before = {watch.job.job: watch for watch in self._watches.values()}
        self._watches = watch_jobs(self._watches, look.steps, _Watch)
        live: list[tuple[_Watch, SlurmJob]] = []
        for watch in self._watches.values():
            job = watch.job
            earlier = before.get(job.job)
            if earlier is not None and earlier is not watch and earlier.job.restart < job.restart:
                watch.inherit(earlier)
            watch.follow(now)
            shown = slurm.jobs.get(job.job) if slurm is not None and is_fresh else None
            if shown is None or shown.state != "RUNNING" or "COMPLETING" in shown.flags:
                # Suspended or starting again: steps not made meanwhile were not missed.
                watch.moved_at = now if shown is not None and watch.moved_at is not None else watch.moved_at
            elif job.vouched and is_of_life(job, shown):
                live.append((watch, shown))
        return live

    def _is_over(self, pair: Pair, look: Look) -> bool:
        """The job makes steps again, or has ended."""
        job = pair[1].job or ""
        if look.slurm is not None and active_job(look.slurm, job) is None:
            return True
        watches = [watch for (name, _), watch in self._watches.items() if name == job]
        watch = max(watches, key=lambda watch: watch.job.restart, default=None)
        if watch is None or watch.moved_at is None or watch.reported is not None:
            return False
        return (look.now - watch.moved_at).total_seconds() <= GOES_ON_S


def _find_hang(
    watch: _Watch, shown: SlurmJob, begun: datetime, look: Look, reports_of: ReportsOf, rests: AtRest
) -> _Hang | None:
    stalled_s = (look.now - begun).total_seconds()
    if stalled_s <= LINK_GAPS * watch.usual_s:
        return None
    lost = reports_of(shown.nodes)
    reports = watch.reports_to_blame(lost, begun, stalled_s)
    if not reports and stalled_s <= watch.sure_s():
        return None
    stand = standstill(watch.job, look.now.timestamp())
    if stand.rests:
        return None
    if reports:
        if stalled_s <= HEARD_S and not stand.speaks:
            stand = replace(stand, missing=np.zeros_like(stand.missing))
        return _Hang(watch, stand, begun, reports, lost, 0.8)
    limit_s = watch.limit_s(stand)
    if limit_s is None or stalled_s <= limit_s:
        return None
    sure = limit_s < watch.unsure_s()
    if not sure:
        idle = rests(look.telemetry, shown, look.now)
        if idle is False or (idle is None and not stand.speaks):
            return None
    # What was lost longer ago, where the job waits for that very node.
    waits_for = {part.node for part in _suspects(watch.job, stand, watch.job.places(look.slurm), ())}
    reports = {node: report for node, report in lost.items() if node in waits_for}
    return _Hang(watch, stand, begun, reports, lost, 0.9 if sure else 0.7, waits=sure)


def _reported(look: Look, nodes: Iterable[str]) -> dict[str, NodeReport]:
    return {name: look.node_reports[name] for name in nodes if name in look.node_reports}
