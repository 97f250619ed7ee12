"""Who faults again: the lemon score against simpler orders, on the first half of a published fault trace.

stepfun-ai/InfiniteHBD-Trace, `fault_trace.json`: 400 nodes, 348 days, times in days. The second half is kept
for judging: what came after half of its time is dropped before anything looks at it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._scoreboard.table import Row
from healer.detection.lemons import LOOK_BACK, scores
from healer.model import NodeRecord

#: The whole file as published, or its first half.
WHOLE, HALF = "fault_trace.json", "fault_trace_first_half.json"
NODES, FROM_DAY, EVERY_DAYS, FIRST = 400, 40.0, 2.0, 10
HORIZONS_DAYS = (7.0, 30.0)
#: What comes within 6 h of the node's fault before is that fault under another name.
SAME_DAYS = 0.25
#: Fleets that are drawn for `ceiling`.
DRAWN = 60
#: Days that lie close share their faults: the bounds come from resampled blocks of four weeks.
BLOCK = round(28 / EVERY_DAYS)
RESAMPLED, BOUNDS = 2000, (0.05, 0.95)
_START = datetime(2024, 3, 30, tzinfo=UTC)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Starts:
    """One row a fault: when it began (days), on which of the nodes (0..), and what it was."""

    day: Floats
    node: NDArray[np.int64]
    kind: tuple[str, ...]
    last_day: float


def first_half(folder: Path) -> Starts:
    """Raises FileNotFoundError."""
    whole = folder / WHOLE
    events = json.loads((whole if whole.exists() else folder / HALF).read_text(encoding="utf-8"))
    last = max(event["event_time"] for event in events)
    if whole.exists():
        last /= 2
        events = [event for event in events if event["event_time"] <= last]
    starts = sorted((one for one in events if one["event_type"] == "fault_start"), key=_when)
    numbers = {name: number for number, name in enumerate(sorted({event["node_id"] for event in starts}))}
    day, node = np.array([_when(event) for event in starts]), [numbers[event["node_id"]] for event in starts]
    kinds = tuple(event.get("fault_type", {}).get("Desc", "") for event in starts)
    return Starts(day, np.array(node), kinds, float(last))


def _when(event: dict[str, float]) -> float:
    return event["event_time"]


def healers(starts: Starts, now: float) -> Floats:
    """(nodes,) the score, of faults alone: the trace knows no tickets and no jobs."""
    faults: dict[int, list[tuple[float, str]]] = {}
    for day, node, kind in zip(starts.day.tolist(), starts.node.tolist(), starts.kind, strict=True):
        before = faults.setdefault(node, [])
        if day <= now and (not before or day - before[-1][0] >= SAME_DAYS):
            before.append((day, kind))
    pasts = [
        NodeRecord(
            node=str(node),
            faults=tuple((_at(day), kind) for day, kind in before if timedelta(days=now - day) < LOOK_BACK),
        )
        for node, before in faults.items()
    ]
    found = np.zeros(NODES)
    for one in scores("trace", pasts, {}, _at(now)):
        found[int(one.node)] = one.score
    return found


def _at(day: float) -> datetime:
    return _START + timedelta(days=day)


def counted(starts: Starts, now: float) -> Floats:
    """(nodes,) faults so far."""
    return np.bincount(starts.node[starts.day <= now], minlength=NODES).astype(np.float64)


def fading(days: float) -> Callable[[Starts, float], Floats]:
    """(nodes,) faults so far, each worth 1/e after so many days."""

    def order(starts: Starts, now: float) -> Floats:
        before = starts.day <= now
        return np.bincount(starts.node[before], np.exp((starts.day[before] - now) / days), minlength=NODES)

    return order


def random_order(starts: Starts, now: float) -> Floats:
    return np.random.default_rng(int(now)).random(NODES)


def hindsight(starts: Starts, now: float) -> Floats:
    """(nodes,) faults of the whole half, what is to come too: no order by a node's rate is far above it."""
    return counted(starts, starts.last_day)


METHODS = {
    "healer's score": healers,
    "faults, 1/e after 14 days": fading(14.0),
    "faults, 1/e after 90 days": fading(90.0),
    "faults so far": counted,
    "random order": random_order,
    "in hindsight: faults of the half": hindsight,
}


def board(starts: Starts) -> list[Row]:
    """Precision of the first ten nodes, each second day, with bounds."""
    rows = [Row(name, _figures(starts, method)) for name, method in METHODS.items()]
    return [*rows, Row("best order in such a fleet", ceiling(starts))]


def ceiling(starts: Starts) -> dict[str, float]:
    """What an optimal order reaches where each node fails at a constant rate of its own, drawn from a gamma
    distribution with the mean and variance of the trace's counts: there the expected rate grows with the
    count so far, so no other order is better. Bounds over drawn fleets."""
    counts = np.bincount([node for _, node in episodes(starts)], minlength=NODES).astype(np.float64)
    mean, spare = counts.mean(), max(counts.var() - counts.mean(), 1e-9)
    random = np.random.default_rng(1)
    hits: dict[float, list[float]] = {horizon: [] for horizon in HORIZONS_DAYS}
    for _ in range(DRAWN):
        number = random.poisson(random.gamma(mean * mean / spare, spare / mean, NODES))
        day = random.uniform(0, starts.last_day, number.sum())
        fleet = Starts(day, np.repeat(np.arange(NODES), number), ("",) * len(day), starts.last_day)
        for horizon, found in hits.items():
            moments = np.arange(FROM_DAY, starts.last_day - horizon, EVERY_DAYS).tolist()
            found.append(float(np.mean([_hits(fleet, counted, now, horizon) for now in moments])))
    figures: dict[str, float] = {}
    for horizon, found in hits.items():
        low, high = np.quantile(found, BOUNDS).tolist()
        within = f"{horizon:g} d"
        figures |= {within: float(np.mean(found)), f"{within} from": low, f"{within} to": high}
    return figures


def episodes(starts: Starts) -> list[tuple[float, int]]:
    """(day, node) of faults that do not belong to the node's fault before."""
    found: list[tuple[float, int]] = []
    last: dict[int, float] = {}
    for day, node in zip(starts.day.tolist(), starts.node.tolist(), strict=True):
        if day - last.get(node, -np.inf) >= SAME_DAYS:
            found.append((day, node))
        last[node] = day
    return found


def _figures(starts: Starts, method: Callable[[Starts, float], Floats]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for horizon in HORIZONS_DAYS:
        moments = np.arange(FROM_DAY, starts.last_day - horizon, EVERY_DAYS)
        hits = np.array([_hits(starts, method, now, horizon) for now in moments.tolist()])
        low, high = _bounds(hits)
        within = f"{horizon:g} d"
        figures |= {within: float(hits.mean()), f"{within} from": low, f"{within} to": high}
    return figures


def _hits(starts: Starts, method: Callable[[Starts, float], Floats], now: float, horizon: float) -> float:
    soon = (starts.day > now) & (starts.day <= now + horizon)
    fails = np.bincount(starts.node[soon], minlength=NODES) > 0
    order = np.argsort(-method(starts, now), kind="stable")
    return float(fails[order[:FIRST]].mean())


def _bounds(hits: Floats) -> tuple[float, float]:
    """90 % bounds of the mean."""
    random, size = np.random.default_rng(1), min(BLOCK, len(hits))
    begins = random.integers(0, len(hits) - size + 1, (RESAMPLED, max(1, len(hits) // size)))
    means = hits[begins[:, :, None] + np.arange(size)].mean(axis=(1, 2))
    low, high = np.quantile(means, BOUNDS)
    return float(low), float(high)
