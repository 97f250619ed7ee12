"""How each GPU-second of a job was spent, from what Slurm, the job and healer recorded.

A partition of the job's time in the queue and in its allocations, without gaps and overlaps. The classes are
those of `healer.model.goodput`."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import NamedTuple

from healer.model import HitBasis, Incident, Review
from healer.model.faults import HANG
from healer.model.goodput import HOURS_KEPT, Harm, Held, HourSpent, JobLife, Slice, Spent, Stretch

#: Steps that exceed the usual duration by this factor are slow, if an incident explains it.
_SLOW = 1.01
#: A pause of up to this many steps may be an unfinished step.
_UNFINISHED = 2.0
#: A standstill shown by samples is dated by the last sample before it, at most this long before the last
#: step.
_BETWEEN_SAMPLES = timedelta(seconds=60)
_DONE = "COMPLETED"


class _Part(NamedTuple):
    """A part of a life's time, before it is multiplied by GPUs."""

    begin: datetime
    end: datetime
    spent: Spent
    harm: Harm | None = None


class _Fate(NamedTuple):
    """Steps before `kept` are productive, steps from `lost` on are lost; those in between are uncertain."""

    kept: float
    lost: float
    harm: Harm | None = None


def partition(lives: Sequence[JobLife], now: datetime) -> list[Slice]:
    """Slices by time; slices of one moment are of different GPUs. They sum to the GPU-time from each life's
    `queued_at` to its end, or to `now`. A wait counts the GPUs that were allocated at its end, else those of
    the life before; for a job that never ran, none. Times further back than hours are kept, or in the future,
    are cut off: Slurm's clock or a record was wrong."""
    usual_s, fates = _usual_step_s(lives), _fates(lives)
    reports = any(life.stretches for life in lives)
    found: list[Slice] = []
    at, gpus, stopper = None, 0, None
    for life, its in zip(lives, fates, strict=True):
        begin = max(now - HOURS_KEPT, life.queued_at, at or life.queued_at)
        end = max(begin, min(life.ended_at or now, now))
        started = min(end, max(begin, life.started_at)) if life.started_at else end
        parts: Iterable[_Part] = ()
        if started < end:
            parts = (_allocated if reports else _without_steps)(life, its, (started, end), stopper)
        gpus = life.held[0].gpus if life.held else gpus
        if begin < started:
            found.append(_slice(_Part(begin, started, Spent.queued, stopper), gpus, life.restart))
        found += _of_gpus(life, _with_slowdowns(life, parts, usual_s))
        at, stopper = end, _stopper(life)
        gpus = life.held[-1].gpus if life.held else gpus
    return found


def by_hour(slices: Iterable[Slice]) -> list[HourSpent]:
    """The sums of each hour, UTC."""
    sums: dict[tuple[datetime, int, int | None, Spent, str, str], float] = {}
    for each in slices:
        begin = each.begin
        while begin < each.end:
            hour = begin.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
            end = min(each.end, hour + timedelta(hours=1))
            key = hour, each.restart, each.held, each.spent, each.cause, each.incident
            sums[key] = sums.get(key, 0.0) + each.gpus * (end - begin).total_seconds()
            begin = end
    return [HourSpent(*key, gpu_s) for key, gpu_s in sums.items() if gpu_s]


def harms_of(
    job: str, restart: int, incidents: Iterable[Incident], *, is_cut: bool = True
) -> tuple[Harm, ...]:
    """The incidents that hit this life. An incident that is part of another takes that one's cause and end. A
    false alarm lost only what healer itself ended for it. `is_cut`: the life ended with work undone."""
    by_id = {incident.id: incident for incident in incidents}
    found = []
    for incident in by_id.values():
        root = _root_of(incident, by_id)
        found += [
            Harm(
                incident=root.merged_into or root.id,
                cause=root.fault,
                since=min((evidence.at for evidence in incident.evidence), default=incident.opened),
                until=root.closed,
                stopped_at=hit.ended_at,
                lost_since=hit.since if hit.basis is HitBasis.checkpoint else None,
            )
            for hit in incident.hit
            if (hit.job, hit.restart) == (job, restart)
            and (root.review is not Review.false_alarm or (is_cut and hit.ended_at is not None))
        ]
    return tuple(sorted(found, key=lambda harm: harm.since))


def _root_of(incident: Incident, by_id: Mapping[str, Incident]) -> Incident:
    """The incident that it was merged into. Stops at a cycle: two people may merge two incidents into each
    other."""
    root, passed = incident, {incident.id}
    while (above := by_id.get(root.merged_into or "")) is not None and above.id not in passed:
        root = above
        passed.add(root.id)
    return root


def _slice(part: _Part, gpus: int, restart: int, held: int | None = None) -> Slice:
    cause, incident = (part.harm.cause, part.harm.incident) if part.harm else ("", "")
    return Slice(part.begin, part.end, gpus, part.spent, cause, incident, restart, held)


def _of_gpus(life: JobLife, parts: Iterable[_Part]) -> Iterator[Slice]:
    """The parts, multiplied by the GPUs that the life held at the time; spare GPUs separately."""
    all_held = life.held or (Held(life.queued_at, 0),)
    windows = [
        (at, held, None if at == 0 else held.since, after.since if after is not None else None)
        for at, (held, after) in enumerate(zip_longest(all_held, all_held[1:]))
    ]
    for part in parts:
        for number, held, since, until in windows:
            begin = part.begin if since is None else max(part.begin, since)
            end = part.end if until is None else min(part.end, until)
            if begin >= end:
                continue
            spare = min(held.spare or 0, held.gpus)
            yield _slice(part._replace(begin=begin, end=end), held.gpus - spare, life.restart, number)
            if spare:
                yield _slice(_Part(begin, end, Spent.spare), spare, life.restart, number)


def _stopper(life: JobLife) -> Harm | None:
    """The incident that ended this life, or that affected it at its end."""
    stopped = [harm for harm in life.harms if harm.stopped_at is not None]
    at_end = [harm for harm in life.harms if life.ended_at and _covers(harm, life.ended_at, life.ended_at)]
    return (stopped or at_end or [None])[-1] if life.state != _DONE else None


def _covers(harm: Harm, begin: datetime, end: datetime) -> bool:
    return harm.since <= end and (harm.until is None or harm.until >= begin)


def _covering(life: JobLife, begin: datetime, end: datetime) -> Harm | None:
    """An incident of that time; one that ended the work comes first."""
    found = [harm for harm in life.harms if _covers(harm, begin, end)]
    return next((harm for harm in found if harm.stopped_at is not None), found[0] if found else None)


def _explains(life: JobLife, begin: datetime, end: datetime, step_s: float = 0.0) -> Harm | None:
    """The incident that explains why no step was made from `begin` on, after steps of `step_s` seconds.

    It began with the pause or during it, because the job survived whatever began earlier. An incident that
    ended the work comes before one that it may have survived, and any other before a hang, which is only how
    a cause looks from the job. Of several, the one that stopped the work nearest to the last step: the others
    found it already stopped.
    """
    since = begin - max(_BETWEEN_SAMPLES, _UNFINISHED * timedelta(seconds=step_s))
    new = (harm for harm in life.harms if _covers(harm, begin, end) and _stops_at(harm) >= since)
    return min(
        new,
        key=lambda harm: (harm.stopped_at is None, harm.cause == HANG, abs(_stops_at(harm) - begin)),
        default=None,
    )


def _stops_at(harm: Harm) -> datetime:
    """When the work stopped, if this incident stopped it."""
    return harm.stopped_at or harm.since


# --- the time in an allocation


def _allocated(
    life: JobLife, fates: Sequence[_Fate], span: tuple[datetime, datetime], stopper: Harm | None
) -> Iterator[_Part]:
    """From the start to the end of the life."""
    start, end = span
    at, before = start, None
    for stretch, fate in zip(life.stretches, fates, strict=True):
        begin, until = max(at, min(stretch.begin, end)), min(stretch.end, end)
        if begin >= until:
            continue
        if before is None and at < begin:
            yield from _start_up(life, (at, begin), stopper)
        elif before is not None and at < begin:
            yield from _pause(life, before, stretch, (at, begin))
        yield from _steps(stretch, fate, (begin, until))
        at, before = until, (stretch, fate)
    if at < end:
        pause = (
            _start_up(life, (at, end), stopper) if before is None else _pause(life, before, None, (at, end))
        )
        yield from pause


def _start_up(life: JobLife, span: tuple[datetime, datetime], stopper: Harm | None) -> Iterator[_Part]:
    """The time before the first step of a life."""
    harm = _explains(life, *span)
    if harm is None:
        yield _Part(*span, Spent.starting, stopper)
    else:
        stops = min(max(span[0], _stops_at(harm)), span[1])
        yield from _hung(harm, (span[0], stops, span[1]), Spent.starting, Spent.starting)


def _hung(
    harm: Harm, moments: tuple[datetime, datetime, datetime], before: Spent, after: Spent
) -> Iterator[_Part]:
    """The time from the first moment to the last; the work stopped at the second."""
    begin, stops, end = moments
    over = end if harm.until is None else min(max(stops, harm.until), end)
    for since, until, spent in ((begin, stops, before), (stops, over, Spent.hung), (over, end, after)):
        if since < until:
            yield _Part(since, until, spent, harm)


def _steps(stretch: Stretch, fate: _Fate, span: tuple[datetime, datetime]) -> Iterator[_Part]:
    begin, end = span
    kept, lost = _moment(stretch, fate.kept, span), _moment(stretch, fate.lost, span)
    for since, until, spent in (
        (begin, kept, Spent.productive),
        (kept, lost, Spent.unsaved),
        (max(kept, lost), end, Spent.lost),
    ):
        if since < until:
            yield _Part(since, until, spent, fate.harm if spent is Spent.lost else None)


def _moment(stretch: Stretch, step: float, span: tuple[datetime, datetime]) -> datetime:
    """When this step began, within the span."""
    begin, end = span
    share = min(max((step - stretch.first) / stretch.steps, 0.0), 1.0)
    return min(max(stretch.begin + (stretch.end - stretch.begin) * share, begin), end)


def _pause(
    life: JobLife, before: tuple[Stretch, _Fate], after: Stretch | None, span: tuple[datetime, datetime]
) -> Iterator[_Part]:
    """The time between two stretches, or after the last one."""
    begin, end = span
    (stretch, fate), step = before, timedelta(seconds=before[0].step_s)
    restarted = after is not None and after.is_numbered and after.first <= stretch.last
    is_lost = stretch.last >= fate.lost
    saved_at = _saved_in(life, begin - step, end + step)
    if saved_at is not None:
        saved_at = end if end - saved_at <= _UNFINISHED * step else max(begin, saved_at)
        if begin < saved_at:
            spent, harm = (Spent.lost, fate.harm) if is_lost else (Spent.checkpointing, None)
            yield _Part(begin, saved_at, spent, harm)
        begin = saved_at
    if begin >= end:
        return
    harm = _explains(life, begin, end, stretch.step_s)
    if harm is None:
        short = after is None and life.ended_at is None and end - begin <= _UNFINISHED * step
        yield _Part(begin, end, Spent.starting if restarted else Spent.unsaved if short else Spent.unknown)
        return
    stops = min(max(begin, _stops_at(harm)), end)
    if saved_at is not None or stops - begin > _UNFINISHED * step:
        stops = begin  # no unfinished step is lost
    yield from _hung(
        harm, (begin, stops, end), Spent.lost, Spent.starting if after is not None else Spent.unknown
    )


def _saved_in(life: JobLife, begin: datetime, end: datetime) -> datetime | None:
    at = bisect_left(life.saved, begin, key=lambda saved: saved.at)
    return life.saved[at].at if at < len(life.saved) and life.saved[at].at <= end else None


def _without_steps(
    life: JobLife, _fates: object, span: tuple[datetime, datetime], _stopper: object
) -> Iterator[_Part]:
    """For a job that sends no step times, only what an incident makes certain: what was lost until the work
    ended, and that it ended."""
    start, end = span
    stopped = (harm for harm in life.harms if harm.stopped_at is not None)
    harm = next(stopped, None) if life.state != _DONE else None
    if harm is None or harm.stopped_at is None:
        yield _Part(start, end, Spent.unknown)
        return
    stops = min(max(start, harm.stopped_at), end)
    lost = min(max(start, harm.lost_since), stops) if harm.lost_since is not None else stops
    for since, until, spent in (
        (start, lost, Spent.unknown), (lost, stops, Spent.lost), (stops, end, Spent.hung),
    ):  # fmt: skip
        if since < until:
            yield _Part(since, until, spent, None if spent is Spent.unknown else harm)


# --- the fate of the steps


def _fates(lives: Sequence[JobLife]) -> list[list[_Fate]]:
    """The fate of each stretch of each life, computed from the last one back: `again` is the lowest step that
    was made after it, `proven` whether the job ever started again after it."""
    found: list[list[_Fate]] = []
    again, proven, held = math.inf, False, -1
    for life in reversed(lives):
        stopper, after = _stopper(life), None
        held = max([held, *(saved.step for saved in life.saved)])
        saved_at = life.saved[-1].at if life.saved else None
        its: list[_Fate] = []
        for stretch in reversed(life.stretches):
            if after is not None and after.first <= stretch.last:
                proven = True
                stopper = _explains(life, stretch.end, after.begin, stretch.step_s) or stopper
            if not stretch.is_numbered:
                its.append(_unnumbered(life, stretch, saved_at, stopper))
                continue
            kept = again if proven else math.inf if life.state == _DONE else held + 1.0
            is_over = _is_over(life) and not proven and held >= 0
            its.append(_Fate(kept, min(again, held + 1.0 if is_over else math.inf), stopper))
            again, after = min(again, stretch.first), stretch
        proven = proven or after is not None
        found.append(its[::-1])
    return found[::-1]


def _unnumbered(life: JobLife, stretch: Stretch, saved_at: datetime | None, stopper: Harm | None) -> _Fate:
    """The fate by time, for steps without numbers: what came before the last checkpoint is kept."""
    if life.state == _DONE:
        return _Fate(math.inf, math.inf)
    if saved_at is None:
        return _Fate(-math.inf, math.inf)
    kept = stretch.first + (saved_at - stretch.begin).total_seconds() / stretch.step_s
    return _Fate(kept, kept if _is_over(life) else math.inf, stopper)


def _is_over(life: JobLife) -> bool:
    """The life ended and its end is known. Slurm forgets jobs, and healer's last record of a forgotten job is
    that it ran."""
    return life.ended_at is not None and life.state != "RUNNING"


# --- slow steps


def _usual_step_s(lives: Sequence[JobLife]) -> float | None:
    """The median duration of steps while no incident affected the job."""
    found = sorted(
        (stretch.step_s, stretch.steps)
        for life in lives
        for stretch in life.stretches
        if _covering(life, stretch.begin, stretch.end) is None
    )
    half, passed = sum(steps for _, steps in found) / 2, 0
    for step_s, steps in found:
        passed += steps
        if passed >= half:
            return step_s
    return None


def _with_slowdowns(life: JobLife, parts: Iterable[_Part], usual_s: float | None) -> Iterator[_Part]:
    """Splits the time of slow steps: the usual duration first, then the rest."""
    begins = [stretch.begin for stretch in life.stretches]
    for part in parts:
        harm = _covering(life, part.begin, part.end) if part.spent in _MADE else None
        if harm is None or usual_s is None:
            yield part
            continue
        stretch = life.stretches[max(0, bisect_left(begins, part.end) - 1)]
        slower = stretch.step_s / usual_s if usual_s > 0 else 1.0
        if slower < _SLOW:
            yield part
            continue
        usual = part.begin + (part.end - part.begin) / slower
        yield part._replace(end=usual)
        yield _Part(usual, part.end, Spent.slowed, harm)


_MADE = frozenset({Spent.productive, Spent.unsaved})
