"""Reports in rounds: of a node at most one in each, so that no series comes twice in a round."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.model.samples import Report

#: Moments of one node that are looked at in one call; who sends more must not hold up the others.
MOMENTS_MAX = 8


@dataclass(slots=True)
class Round:
    """Reports of different nodes: `nodes` are their rows, ascending, `times` in s since 1970."""

    nodes: NDArray[np.int32]
    times: NDArray[np.float64]
    reports: list[Report]


@dataclass(slots=True)
class Rounds:
    """Oldest first. `repeated`: samples told twice of one moment. `surplus`: those of older moments than the
    newest 8 of their node."""

    rounds: list[Round] = field(default_factory=list)
    repeated: int = 0
    surplus: int = 0


def in_rounds(nodes: NDArray[np.int32], times: NDArray[np.float64], reports: Sequence[Report]) -> Rounds:
    """`nodes` are rows. What several reports tell of one moment is one report: a scrape comes in many pieces
    through a sharded remote_write."""
    made = Rounds()
    if not len(reports):
        return made
    order = np.lexsort((times, nodes))
    node, at_s = nodes[order], times[order]
    moments = np.flatnonzero(np.r_[True, (np.diff(node) != 0) | (np.diff(at_s) != 0)])
    ends = np.r_[moments[1:], len(order)]
    # Which moment of its node, the oldest that counts is 0.
    firsts = np.flatnonzero(np.r_[True, np.diff(node[moments]) != 0])
    each = np.diff(np.r_[firsts, len(moments)])
    turn = np.arange(len(moments)) - np.repeat(firsts + np.maximum(each - MOMENTS_MAX, 0), each)
    for one in np.flatnonzero(turn < 0).tolist():
        made.surplus += sum(len(reports[at].values) for at in order[moments[one] : ends[one]].tolist())
    alone = ends - moments == 1
    for number in range(int(turn.max()) + 1):
        some = np.flatnonzero(turn == number)
        told = [reports[at] for at in order[moments[some]].tolist()]
        for place in np.flatnonzero(~alone[some]).tolist():
            pieces = order[moments[some[place]] : ends[some[place]]].tolist()
            told[place] = _joined([reports[at] for at in pieces], made)
        made.rounds.append(Round(node[moments[some]], at_s[moments[some]], told))
    return made


def _joined(reports: list[Report], made: Rounds) -> Report:
    """The first word on a series counts."""
    columns = np.concatenate([one.columns for one in reports])
    values = np.concatenate([one.values for one in reports])
    told = np.isfinite(values)
    columns, first = np.unique(columns[told], return_index=True)
    made.repeated += int(np.count_nonzero(told)) - len(columns)
    return msgspec.structs.replace(reports[0], columns=columns, values=values[told][first])
