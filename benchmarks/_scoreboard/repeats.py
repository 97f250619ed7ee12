"""Who faults again within a week: the first half of a published fault trace.

stepfun-ai/InfiniteHBD-Trace, `fault_trace.json`: 400 nodes, 348 days, times in days. The second half is kept
for judging: what came after half of its time is dropped before anything looks at it.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._scoreboard.table import Row

#: The whole file as published, or its first half.
WHOLE, HALF = "fault_trace.json", "fault_trace_first_half.json"
NODES, HORIZON_DAYS, FROM_DAY, EVERY_DAYS = 400, 7.0, 60.0, 7.0
AT_K = (5, 10, 20)
HALF_LIFE_DAYS = 14.0
#: As `lemon_days` in `rules/ladders.yaml` where nothing else is said.
LEMON_DAYS = 7.0

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Starts:
    """One row a fault: when it began (days), and on which of the nodes (0..)."""

    day: Floats
    node: NDArray[np.int64]
    last_day: float


def first_half(folder: Path) -> Starts:
    """Raises FileNotFoundError."""
    whole = folder / WHOLE
    events = json.loads((whole if whole.exists() else folder / HALF).read_text(encoding="utf-8"))
    last = max(event["event_time"] for event in events)
    if whole.exists():
        last /= 2
        events = [event for event in events if event["event_time"] <= last]
    starts = [event for event in events if event["event_type"] == "fault_start"]
    numbers = {name: number for number, name in enumerate(sorted({event["node_id"] for event in starts}))}
    day = np.array([event["event_time"] for event in starts])
    return Starts(day, np.array([numbers[event["node_id"]] for event in starts]), float(last))


def counted(starts: Starts, now: float) -> Floats:
    """(nodes,) faults so far."""
    return np.bincount(starts.node[starts.day <= now], minlength=NODES).astype(np.float64)


def decayed(starts: Starts, now: float) -> Floats:
    """(nodes,) faults so far, each half as much after two weeks."""
    before = starts.day <= now
    weight = 0.5 ** ((now - starts.day[before]) / HALF_LIFE_DAYS)
    return np.bincount(starts.node[before], weight, minlength=NODES).astype(np.float64)


def lemon(starts: Starts, now: float) -> Floats:
    """(nodes,) faults within healer's own window for lemons, then of all time."""
    lately = (starts.day <= now) & (starts.day > now - LEMON_DAYS)
    return np.bincount(starts.node[lately], minlength=NODES) + 1e-3 * counted(starts, now)


def random_order(starts: Starts, now: float) -> Floats:
    return np.random.default_rng(int(now)).random(NODES)


METHODS = {
    "healer's lemons: faults of a week": lemon,
    "faults, half as much after two weeks": decayed,
    "faults so far": counted,
    "random order": random_order,
}


def board(starts: Starts) -> list[Row]:
    """Precision of the first k nodes at each week's end, and the mean share of faults that they foresaw."""
    moments = np.arange(FROM_DAY, starts.last_day - HORIZON_DAYS, EVERY_DAYS)
    rows = []
    for name, method in METHODS.items():
        hits = {k: [] for k in AT_K}
        caught = []
        for now in moments:
            soon = (starts.day > now) & (starts.day <= now + HORIZON_DAYS)
            fails = np.zeros(NODES, bool)
            fails[starts.node[soon]] = True
            order = np.argsort(-method(starts, now), kind="stable")
            for k in AT_K:
                hits[k].append(fails[order[:k]].mean())
            caught.append(np.isin(starts.node[soon], order[:10]).mean() if soon.any() else np.nan)
        figures = {f"precision at {k}": float(np.mean(hits[k])) for k in AT_K}
        rows.append(Row(name, {**figures, "caught by 10": float(np.nanmean(caught))}))
    return rows
