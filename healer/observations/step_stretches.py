"""Stretches of steps without a pause, from the step times that a job sends, for the goodput ledger."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from healer.model.goodput import Stretch
from healer.model.telemetry import StepBatch

#: A stretch ends after this long, so that steps that got slower form one of their own.
MOST_S = 300.0
#: A gap between steps longer than usual by this is a pause.
_PAUSE_S, _PAUSE_SHARE = 0.2, 0.05
#: Ranks make one step no further apart than this many steps: a host runs ahead of its GPU.
_APART = 2.0

#: If a job sends no step numbers, the second of a step's end takes their place.
_SECONDS = 10**9


class _Step(NamedTuple):
    number: int
    begin: float
    end: float


def stretches(last: Stretch | None, batches: Sequence[StepBatch]) -> list[Stretch]:
    """The stretches that these batches of one life add. The first one replaces `last` if it continues it.

    Steps that `last` already contains change nothing, so batches may be read twice. A step is identified by
    its number; if a job sends none, the steps of its lowest rank count.
    """
    steps = _steps(batches)
    gaps = [after.begin - before.end for before, after in pairwise(steps)]
    usual_s = max(0.0, float(np.median(gaps))) if gaps else 0.0
    found = [last] if last is not None else []
    for step in steps:
        now = found[-1] if found else None
        grown = _grown(now, step, usual_s) if now is not None else None
        if grown is not None:
            found[-1] = grown
        elif now is None or step.end > now.end.timestamp() + 1e-6:
            found.append(_stretch(step, now))
    return found if last is None or (found and found[0] != last) else found[1:]


def _stretch(step: _Step, before: Stretch | None) -> Stretch:
    begin = max(step.begin, before.end.timestamp()) if before is not None else step.begin
    first = step.number if step.number >= 0 else -1
    return Stretch(_time(begin), _time(max(step.end, begin + 1e-6)), first, first)


def _grown(now: Stretch, step: _Step, usual_s: float) -> Stretch | None:
    """The stretch with this step; unchanged if it contains the step already; None: a new one begins."""
    begin, end = now.begin.timestamp(), now.end.timestamp()
    if now.is_numbered != (step.number >= 0):
        return None
    if now.is_numbered and step.number <= now.last:
        return now if step.begin < end - _PAUSE_S else None
    if not now.is_numbered and step.end <= end + 1e-6:
        return now
    more = step.number - now.last if now.is_numbered else 1
    each_s = step.end - step.begin
    # Unreported steps, as in a log of every tenth step, each took equally long.
    gap = step.end - more * each_s - end
    if gap > usual_s + max(_PAUSE_S, _PAUSE_SHARE * each_s) or step.end - begin > MOST_S:
        return None
    return Stretch(now.begin, _time(step.end), now.first, now.last + more)


def _steps(batches: Sequence[StepBatch]) -> list[_Step]:
    """Finished steps by their ends: a numbered one from its earliest to its latest rank."""
    parts = list(_columns(batches))
    if not parts:
        return []
    numbers, ranks, ends, spans = (np.concatenate(column) for column in zip(*parts, strict=True))
    numbered = (numbers >= 0) & (numbers < _SECONDS)
    if not numbered.any():
        begins = ends - spans
        its = ranks == ranks.min()
        order = np.argsort(ends[its], kind="stable")
        rows = zip(begins[its][order].tolist(), ends[its][order].tolist(), strict=True)
        return [_Step(-1, begin, end) for begin, end in rows]
    numbers, ranks, ends, spans = (column[numbered] for column in (numbers, ranks, ends, spans))
    usual_s = float(np.median(spans))
    ends = _by_one_clock(numbers, ranks, ends, usual_s)
    slack_s = max(_PAUSE_S, _APART * usual_s)
    return sorted(_numbered(numbers, ranks, ends - spans, ends, slack_s), key=lambda step: step.end)


def _by_one_clock(numbers: np.ndarray, ranks: np.ndarray, ends: np.ndarray, usual_s: float) -> np.ndarray:
    """The ends of steps by the clock of the lowest rank. Ranks make a step together: a rank whose steps
    usually end further from its ends than a step takes has a different clock, and made none of them a second
    time."""
    _, first = np.unique((ranks.astype(np.int64) << 32) | numbers, return_index=True)  # by rank and number
    lowest = first[ranks[first] == ranks.min()]
    same = lowest[np.minimum(np.searchsorted(numbers[lowest], numbers[first]), len(lowest) - 1)]
    shared = numbers[same] == numbers[first]
    off_s, whose = (ends[first] - ends[same])[shared], ranks[first][shared]
    by_rank = np.lexsort((off_s, whose))
    names, starts, counts = np.unique(whose[by_rank], return_index=True, return_counts=True)
    middle_s = off_s[by_rank][starts + counts // 2]
    place = np.minimum(np.searchsorted(names, ranks), len(names) - 1)
    wrong = (names[place] == ranks) & (np.abs(middle_s[place]) > usual_s)
    return ends - np.where(wrong, middle_s[place], 0.0)


def _columns(batches: Sequence[StepBatch]) -> Iterator[tuple[np.ndarray, ...]]:
    for batch in batches:
        if batch.doing is None:
            good = np.isfinite(batch.step_s) & (batch.step_s > 0) & np.isfinite(batch.at)
            yield batch.step[good], batch.rank[good], batch.at[good], batch.step_s[good]


def _numbered(
    numbers: np.ndarray, ranks: np.ndarray, begins: np.ndarray, ends: np.ndarray, slack_s: float
) -> Iterator[_Step]:
    """A step that is repeated after a restart within the same life has the same number, but is another step:
    a rank makes it a second time, or ranks make it further apart than `slack_s`."""
    times = _times(numbers, ranks, begins, ends)
    order = np.lexsort((ends, numbers))
    numbers, begins, ends, times = (column[order] for column in (numbers, begins, ends, times))
    gaps = begins[1:] - ends[:-1]
    apart = np.empty(numbers.size, np.bool_)
    apart[:1] = True
    apart[1:] = (numbers[1:] != numbers[:-1]) | (gaps > 0) & ((times[1:] > times[:-1]) | (gaps > slack_s))
    starts = np.flatnonzero(apart)
    firsts, lasts = np.minimum.reduceat(begins, starts), np.maximum.reduceat(ends, starts)
    for number, begin, end in zip(numbers[starts].tolist(), firsts.tolist(), lasts.tolist(), strict=True):
        yield _Step(number, begin, end)


def _times(numbers: np.ndarray, ranks: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(n,) how often the row's rank had made a step of that number before."""
    order = np.lexsort((ends, numbers, ranks))
    numbers, ranks, begins, ends = (column[order] for column in (numbers, ranks, begins, ends))
    same = (numbers[1:] == numbers[:-1]) & (ranks[1:] == ranks[:-1])
    again = np.append(0, np.cumsum(same & (begins[1:] > ends[:-1])))
    first = np.maximum.accumulate(np.append(0, np.where(same, 0, np.arange(1, same.size + 1))))
    times = np.empty_like(again)
    times[order] = again - again[first]
    return times


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
