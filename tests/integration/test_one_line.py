"""What one kernel line costs in counts: a step more on the way to a drain is seen without a stopwatch."""

import json

import pytest

from benchmarks.one_line import KEPT, NODES, measured

#: Threads that wait take turns in their own order: counts differ by one, calls by this share.
WITHIN, CALLS_WITHIN = 1, 0.03
#: Files that a line enters from its request to the wait of its run; entries of one file in the API's part.
FILES_MOST, ENTRIES_MOST = 75, 3
AGAIN = "keep the new counts with `python -m benchmarks.one_line --keep`, and say why in the commit"


@pytest.mark.parametrize("nodes", NODES)
def test_it_costs_what_is_kept(nodes: int) -> None:
    kept = json.loads(KEPT.read_text())[str(nodes)]
    every = measured(nodes)
    for name, part in every.items():
        for what, count in part.counts().items():
            within = CALLS_WITHIN * kept[name][what] if what == "calls" else WITHIN
            assert abs(count - kept[name][what]) <= within, f"{name}: {count} {what}; {AGAIN}"
    assert len(set[str]().union(*(part.entered for part in every.values()))) <= FILES_MOST
    assert max(every["API"].entered.values()) <= ENTRIES_MOST


def test_no_statement_is_added_by_a_larger_fleet() -> None:
    few, many = (json.loads(KEPT.read_text())[str(nodes)] for nodes in NODES)
    for name, part in few.items():
        assert all(
            abs(many[name][what] - count) <= WITHIN for what, count in part.items() if what != "calls"
        ), name
