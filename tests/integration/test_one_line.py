"""What one kernel line costs in counts: a step more on the way to a drain is seen without a stopwatch."""

import json

import pytest

from benchmarks.one_line import KEPT, NODES, measured

#: Threads that wait take turns in their own order: counts differ by one, calls by this share.
WITHIN, CALLS_WITHIN = 1, 0.03
AGAIN = "keep the new counts with `python -m benchmarks.one_line --keep`, and say why in the commit"


@pytest.mark.parametrize("nodes", NODES)
def test_it_costs_what_is_kept(nodes: int) -> None:
    kept = json.loads(KEPT.read_text())[str(nodes)]
    for name, part in measured(nodes).items():
        for what, count in part.counts().items():
            within = CALLS_WITHIN * kept[name][what] if what == "calls" else WITHIN
            assert abs(count - kept[name][what]) <= within, f"{name}: {count} {what}; {AGAIN}"


def test_no_statement_is_added_by_a_larger_fleet() -> None:
    few, many = (json.loads(KEPT.read_text())[str(nodes)] for nodes in NODES)
    for name, part in few.items():
        assert all(
            abs(many[name][what] - count) <= WITHIN for what, count in part.items() if what != "calls"
        ), name
