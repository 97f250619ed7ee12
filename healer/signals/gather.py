"""Samples that come one by one -> one report per node and moment."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np

from healer.model import Combine
from healer.model.samples import Report
from healer.signals.gpu_names import Where
from healer.signals.measured import REJECTED_TOLD, Measured
from healer.signals.values import TOO_OLD, clean, moment
from healer.signals.wire import Known, Rejected

#: Node, and the sender's time in ms since 1970 (None: the moment of arrival).
Group = tuple[Where, int | None]


def report(
    where: Where, at: datetime, now: datetime, columns: Iterable[int], values: Iterable[float], out: Measured
) -> None:
    """Adds a report; blanks are cleaned here. A column that came twice keeps its last value."""
    given = list(columns)
    numbers = list(values)
    if len(set(given)) != len(given):
        last = dict(zip(given, numbers, strict=True))
        given, numbers = list(last), list(last.values())
    array = clean(np.array(numbers, np.float64))
    samples = len(array) - int(np.count_nonzero(np.isnan(array)))
    if samples:
        out.samples += samples
        out.reports.append(Report(where[0], where[1], at, now, np.array(given, np.int32), array))


def at_ms(ms: int, now: datetime) -> datetime | None:
    """The moment that counts for a time stamp; None when it is too old, or no time at all."""
    try:
        return moment(datetime.fromtimestamp(ms / 1000, UTC), now)
    except (OverflowError, ValueError, OSError):
        return None if ms < 0 else now


def combined(how: Combine, before: float | None, value: float) -> float:
    if before is None or math.isnan(before) or how is Combine.last:
        return value
    if math.isnan(value):
        return before
    if how is Combine.sum:
        return before + value
    return max(before, value) if how is Combine.max else min(before, value)


def too_old(rejected: list[Rejected], index: int, where: Where) -> None:
    if len(rejected) < REJECTED_TOLD:
        rejected.append(Rejected(index, f"{TOO_OLD} (node {where[1]})"))


def still_known(where: Where, known: Known, seen: dict[Where, bool]) -> bool:
    """Whether the cluster still has this node: what was learned may be older than Slurm's picture."""
    if where not in seen:
        seen[where] = known(*where)
    return seen[where]
