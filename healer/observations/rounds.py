"""Reports in rounds: of a node at most one in each, so that no series comes twice in a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from healer.model.samples import Report

#: Moments of one node that are looked at in one call; who sends more must not hold up the others.
MOMENTS_MAX = 8

Dated = tuple[float, Report]


@dataclass(slots=True)
class Round:
    """Reports of different nodes: `nodes` are their rows, `times` in s since 1970."""

    nodes: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)


@dataclass(slots=True)
class Rounds:
    """Oldest first. `repeated`: samples told twice of one moment. `surplus`: those of older moments than the
    newest 8 of their node."""

    rounds: list[Round] = field(default_factory=list)
    repeated: int = 0
    surplus: int = 0


def in_rounds(told: Mapping[int, list[Dated]]) -> Rounds:
    """`told` are the reports by row of the node. What several reports tell of one moment is one report: a
    scrape comes in many pieces through a sharded remote_write."""
    made = Rounds()
    for node, reports in told.items():
        moments = reports if len(reports) == 1 else _moments(reports, made)
        for number, (at_s, report) in enumerate(moments):
            if number == len(made.rounds):
                made.rounds.append(Round())
            one = made.rounds[number]
            one.nodes.append(node)
            one.times.append(at_s)
            one.reports.append(report)
    return made


def _moments(reports: list[Dated], made: Rounds) -> list[Dated]:
    moments = [(at_s, list(same)) for at_s, same in groupby(sorted(reports, key=_time), key=_time)]
    made.surplus += sum(len(one.values) for _, same in moments[:-MOMENTS_MAX] for _, one in same)
    return [(at_s, _joined([one for _, one in same], made)) for at_s, same in moments[-MOMENTS_MAX:]]


def _time(dated: Dated) -> float:
    return dated[0]


def _joined(reports: list[Report], made: Rounds) -> Report:
    """The first word on a series counts."""
    if len(reports) == 1:
        return reports[0]
    columns = np.concatenate([one.columns for one in reports])
    values = np.concatenate([one.values for one in reports])
    told = np.isfinite(values)
    columns, first = np.unique(columns[told], return_index=True)
    made.repeated += int(np.count_nonzero(told)) - len(columns)
    return replace(reports[0], columns=columns, values=values[told][first])
