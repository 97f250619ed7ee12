"""Do lemons fail again? The score against simpler ones, on a trace of faults of a real cluster.

    python -m benchmarks.lemons --trace TRACE.json [--nodes 400]

TRACE: a list of events in days, as InfiniteHBD-Trace has it: `node_id`, `event_time`, `event_type`
(fault_start or fault_end) and `fault_type` with `Desc`. What comes within 6 h of the node's fault before, or
of its end, is that fault under a new name. Each day the nodes that are up are ranked by what came before that
day, and the first k are looked at: the share of them that fault again within 7 and 30 days, as the mean over
days. Days that lie close share their faults, so the figures are rougher than their number of days says. The
weights were chosen by the first half, and the second was only measured.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from healer.detection.lemons import LIMIT, scores
from healer.model import NodeRecord

START = datetime(2024, 3, 30, tzinfo=UTC)
#: Days: what comes so soon is the fault before; how long the score is fed before anything is judged.
SAME, FED = 0.25, 21.0


@dataclass
class Node:
    """`faults`: (begin, end, what); an end that the trace does not have is never."""

    faults: list[tuple[float, float, str]] = field(default_factory=list)

    def before(self, day: float) -> list[tuple[float, float, str]]:
        return [one for one in self.faults if one[0] <= day]

    def is_down(self, day: float) -> bool:
        return any(begin <= day < end for begin, end, _ in self.faults)

    def fails(self, day: float, within: float) -> bool:
        return any(day < begin <= day + within for begin, _, _ in self.faults)


def read(path: Path) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    open_: dict[tuple[str, str], float] = {}
    whole: list[tuple[str, float, float, str]] = []
    for event in json.loads(path.read_text()):
        key = (event["node_id"], event["fault_type"]["Desc"])
        if event["event_type"] == "fault_start":
            open_[key] = event["event_time"]
        elif key in open_:
            whole.append((key[0], open_.pop(key), event["event_time"], key[1]))
    whole += [(node, begin, np.inf, what) for (node, what), begin in open_.items()]
    for name, begin, end, what in sorted(whole, key=lambda one: one[1]):
        faults = nodes.setdefault(name, Node()).faults
        if faults and begin - min(faults[-1][1], begin) < SAME:
            last = faults[-1]
            faults[-1] = (last[0], max(last[1], end), last[2])
        else:
            faults.append((begin, end, what))
    return nodes


def score(nodes: Mapping[str, Node], day: float) -> dict[str, float]:
    """healer's own."""
    pasts = []
    for name, node in nodes.items():
        told = node.before(day)
        out = sum(min(end, day) - max(begin, day - 14) for begin, end, _ in told if end > day - 14)
        faults = tuple((START + timedelta(days=begin), what) for begin, _, what in told if begin > day - 42)
        pasts.append(NodeRecord(node=name, faults=faults, out=min(1.0, max(0.0, out / 14))))
    return {one.node: one.score for one in scores("trace", pasts, {}, START + timedelta(days=day))}


def decayed(nodes: Mapping[str, Node], day: float) -> dict[str, float]:
    return {
        name: sum(np.exp(-(day - begin) / 14) for begin, _, _ in node.before(day))
        for name, node in nodes.items()
    }


def plain(days: float) -> Callable[[Mapping[str, Node], float], dict[str, float]]:
    def count(nodes: Mapping[str, Node], day: float) -> dict[str, float]:
        return {name: sum(one[0] > day - days for one in node.before(day)) for name, node in nodes.items()}

    return count


RANKINGS = {
    "the score": score,
    "faults, fading over 14 days": decayed,
    "faults of 14 days, counted": plain(14),
    "all faults, counted": plain(1e9),
}


def precision(
    nodes: Mapping[str, Node], ranked: list[tuple[float, list[str]]], k: int, within: float
) -> float:
    """Of the first k of each day."""
    hits = [nodes[name].fails(day, within) for day, names in ranked for name in names[:k]]
    return float(np.mean(hits)) if hits else float("nan")


def half(nodes: Mapping[str, Node], first: float, last: float, fleet: int) -> None:
    days = np.arange(first, last - 30, 1.0)
    chance = {
        within: np.mean([sum(one.fails(day, within) for one in nodes.values()) / fleet for day in days])
        for within in (7, 30)
    }
    print(
        f"days {first:.0f} to {last:.0f}; any node: {chance[7]:.1%} within 7 days, {chance[30]:.1%} within 30"
    )
    print(f"{'':30}" + "".join(f"{f'{within} d, first {k}':>16}" for within in (7, 30) for k in (5, 10, 20)))
    for what, ranking in RANKINGS.items():
        ranked = []
        for day in days:
            found = ranking(nodes, day)
            up = [name for name in found if found[name] > 0 and not nodes[name].is_down(day)]
            ranked.append((day, sorted(up, key=lambda name: (-found[name], name))))
        shares = [precision(nodes, ranked, k, within) for within in (7, 30) for k in (5, 10, 20)]
        print(f"{what:30}" + "".join(f"{share:16.1%}" for share in shares))
    reached = max((one for day in days for one in score(nodes, day).values()), default=0.0)
    print(f"highest score {reached:.2f}; a lemon has {LIMIT:g}")


def main() -> None:
    told = argparse.ArgumentParser()
    told.add_argument("--trace", type=Path, required=True)
    told.add_argument("--nodes", type=int, default=400)
    asked = told.parse_args()
    nodes = read(asked.trace)
    last = max(begin for one in nodes.values() for begin, _, _ in one.faults)
    count = sum(len(one.faults) for one in nodes.values())
    print(f"{count} faults on {len(nodes)} of {asked.nodes} nodes in {last:.0f} days")
    half(nodes, FED, last / 2, asked.nodes)
    half(nodes, last / 2, last, asked.nodes)


if __name__ == "__main__":
    main()
