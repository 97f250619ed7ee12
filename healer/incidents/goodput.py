"""What each GPU-second of a job was spent on, from what Slurm, the job and healer saw of it.

A partition of its time in the queue and in its allocations, without gaps and overlaps. The classes are those
of `healer.model.goodput`."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import NamedTuple

from healer.model.goodput import Harm, Held, JobLife, Slice, Spent, Stretch

#: Steps that take so much longer than usual are slow, where an incident explains it.
_SLOW = 1.01
#: A pause of up to so many steps may be an unfinished step.
_UNFINISHED = 2.0
_DONE = "COMPLETED"


class _Part(NamedTuple):
    """Of a life, before it is multiplied by GPUs."""

    begin: datetime
    end: datetime
    spent: Spent
    harm: Harm | None = None


class _Fate(NamedTuple):
    """Steps before `kept` are productive, steps from `lost` on are lost. Between them nothing is certain."""

    kept: float
    lost: float
    harm: Harm | None = None


def partition(lives: Sequence[JobLife], now: datetime) -> list[Slice]:
    """Slices by time; those of one moment are of different GPUs. They sum to the GPU-time from each life's
    `queued_at` to its end, or to `now`. A wait counts the GPUs that it ended with, or else those of the life
    before; of a job that never ran, none."""
    usual_s, fates = _usual_step_s(lives), _fates(lives)
    found: list[Slice] = []
    at, gpus, stopper = None, 0, None
    for life, its in zip(lives, fates, strict=True):
        begin = life.queued_at if at is None else max(at, life.queued_at)
        end = max(begin, life.ended_at or now)
        started = min(end, max(begin, life.started_at)) if life.started_at else end
        parts = list(_allocated(life, its, (started, end), stopper)) if started < end else []
        gpus = life.held[0].gpus if life.held else gpus
        if begin < started:
            found.append(_slice(_Part(begin, started, Spent.queued, stopper), gpus, life.restart))
        found += _of_gpus(life, _with_slowdowns(life, parts, usual_s))
        at, stopper = end, _stopper(life)
        gpus = life.held[-1].gpus if life.held else gpus
    return found


def _slice(part: _Part, gpus: int, restart: int, racks: dict[str, int] | None = None) -> Slice:
    cause, incident = (part.harm.cause, part.harm.incident) if part.harm else ("", "")
    return Slice(part.begin, part.end, gpus, part.spent, cause, incident, restart, racks)


def _of_gpus(life: JobLife, parts: Iterable[_Part]) -> Iterator[Slice]:
    """The parts by what the life held at the time; spare GPUs apart."""
    all_held = life.held or (Held(life.queued_at, 0),)
    windows = [
        (held, None if at == 0 else held.since, after.since if after is not None else None)
        for at, (held, after) in enumerate(zip_longest(all_held, all_held[1:]))
    ]
    for part in parts:
        for held, since, until in windows:
            begin = part.begin if since is None else max(part.begin, since)
            end = part.end if until is None else min(part.end, until)
            if begin >= end:
                continue
            spare = min(held.spare, held.gpus)
            yield _slice(part._replace(begin=begin, end=end), held.gpus - spare, life.restart, held.racks)
            if spare:
                yield _slice(_Part(begin, end, Spent.spare), spare, life.restart, held.racks)


def _stopper(life: JobLife) -> Harm | None:
    """The incident that ended this life, or that affected it at its end."""
    stopped = [harm for harm in life.harms if harm.stopped_at is not None]
    at_end = [harm for harm in life.harms if life.ended_at and _covers(harm, life.ended_at, life.ended_at)]
    return (stopped or at_end or [None])[-1] if life.state != _DONE else None


def _covers(harm: Harm, begin: datetime, end: datetime) -> bool:
    return harm.since <= end and (harm.until is None or harm.until >= begin)


def _explains(life: JobLife, begin: datetime, end: datetime) -> Harm | None:
    """An incident of that time; one that ended the work before others."""
    found = [harm for harm in life.harms if _covers(harm, begin, end)]
    return next((harm for harm in found if harm.stopped_at is not None), found[0] if found else None)


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
            yield _Part(at, begin, Spent.starting, stopper)
        elif before is not None and at < begin:
            yield from _pause(life, before, stretch, (at, begin))
        yield from _steps(stretch, fate, (begin, until))
        at, before = until, (stretch, fate)
    if before is None:
        yield from _without_steps(life, start, end)
    elif at < end:
        yield from _pause(life, before, None, (at, end))


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
    if math.isinf(step):
        return end if step > 0 else begin
    at = stretch.begin + (stretch.end - stretch.begin) * ((step - stretch.first) / stretch.steps)
    return min(max(at, begin), end)


def _pause(
    life: JobLife, before: tuple[Stretch, _Fate], after: Stretch | None, span: tuple[datetime, datetime]
) -> Iterator[_Part]:
    """Between two stretches, or after the last one."""
    begin, end = span
    (stretch, fate), step = before, timedelta(seconds=before[0].step_s)
    restarted = after is not None and after.is_numbered and after.first <= stretch.last
    is_lost = stretch.last >= fate.lost
    if not restarted and _has_saved(life, begin - step, end + step):
        yield _Part(begin, end, Spent.lost, fate.harm) if is_lost else _Part(begin, end, Spent.checkpointing)
        return
    harm = _explains(life, begin, end)
    if harm is None:
        short = after is None and life.ended_at is None and end - begin <= _UNFINISHED * step
        yield _Part(begin, end, Spent.starting if restarted else Spent.unsaved if short else Spent.unknown)
        return
    stops = min(max(begin, harm.stopped_at or harm.since), end)
    if stops - begin > _UNFINISHED * step or not is_lost:
        stops = begin
    over = min(harm.until, end) if harm.until is not None else end
    if begin < stops:
        yield _Part(begin, stops, Spent.lost, harm)
    if stops < over:
        yield _Part(stops, over, Spent.hung, harm)
    if max(stops, over) < end:
        goes_on = after is not None
        yield _Part(max(stops, over), end, Spent.starting if goes_on else Spent.unknown, harm)


def _has_saved(life: JobLife, begin: datetime, end: datetime) -> bool:
    at = bisect_left(life.saved, begin, key=lambda saved: saved.at)
    return at < len(life.saved) and life.saved[at].at <= end


def _without_steps(life: JobLife, start: datetime, end: datetime) -> Iterator[_Part]:
    """Only what an incident says is certain: what was lost until the work ended, and that it ended."""
    harm = next((harm for harm in life.harms if harm.stopped_at is not None), None)
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


# --- what became of the steps


def _fates(lives: Sequence[JobLife]) -> list[list[_Fate]]:
    """For each stretch of each life, from the last one back: `again` is the lowest step that was made after
    it, `proven` whether the job ever started again after it."""
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
                stopper = _explains(life, stretch.end, after.begin) or stopper
            if not stretch.is_numbered:
                its.append(_unnumbered(life, stretch, saved_at, stopper))
                continue
            kept = again if proven else math.inf if life.state == _DONE else held + 1.0
            is_over = life.ended_at is not None and not proven and held >= 0
            its.append(_Fate(kept, min(again, held + 1.0 if is_over else math.inf), stopper))
            again, after = min(again, stretch.first), stretch
        proven = proven or after is not None
        found.append(its[::-1])
    return found[::-1]


def _unnumbered(life: JobLife, stretch: Stretch, saved_at: datetime | None, stopper: Harm | None) -> _Fate:
    """By time: what came before the last checkpoint is kept."""
    if life.state == _DONE:
        return _Fate(math.inf, math.inf)
    if saved_at is None:
        return _Fate(-math.inf, math.inf)
    kept = stretch.first + (saved_at - stretch.begin).total_seconds() / stretch.step_s
    return _Fate(kept, kept if life.ended_at is not None else math.inf, stopper)


# --- slow steps


def _usual_step_s(lives: Sequence[JobLife]) -> float | None:
    """The median duration of steps while no incident affected the job."""
    found = sorted(
        (stretch.step_s, stretch.steps)
        for life in lives
        for stretch in life.stretches
        if _explains(life, stretch.begin, stretch.end) is None
    )
    half, passed = sum(steps for _, steps in found) / 2, 0
    for step_s, steps in found:
        passed += steps
        if passed >= half:
            return step_s
    return None


def _with_slowdowns(life: JobLife, parts: Iterable[_Part], usual_s: float | None) -> Iterator[_Part]:
    """Splits steps that took longer: what they usually take first, then the rest."""
    begins = [stretch.begin for stretch in life.stretches]
    for part in parts:
        harm = _explains(life, part.begin, part.end) if part.spent in _MADE else None
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
