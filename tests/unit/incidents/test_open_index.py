"""Open incidents are found by node, job and place, also after they changed."""

import msgspec

from healer.incidents.open_index import OpenIndex
from healer.model import Component, IncidentState
from tests.support.gate import CLUSTER, incident, name

LEAF = Component(cluster=CLUSTER, switch="leaf01")


def test_it_finds_by_node_job_and_place_the_oldest_first() -> None:
    index = OpenIndex()
    first = incident(id="b", root=Component(cluster=CLUSTER, node=name(1)), jobs_hit=("7", "8"))
    second = incident(id="a", root=LEAF, jobs_hit=("8",))
    for one in (first, second):
        index.put(None, one)
    assert index.find(name(1), (), None) == ["b"]
    assert index.find(None, ("8",), None) == ["b", "a"]
    assert index.find(name(1), ("8",), LEAF) == ["b", "a"]
    assert index.find(None, (), LEAF) == ["a"]
    assert index.find(name(2), ("9",), Component(cluster=CLUSTER)) == []


def test_a_change_moves_it_and_its_end_takes_it_out() -> None:
    index = OpenIndex()
    known = incident(id="a", root=Component(cluster=CLUSTER, node=name(1)), jobs_hit=("7",))
    index.put(None, known)
    index.put(None, incident(id="b", root=known.root))
    moved = msgspec.structs.replace(known, jobs_hit=("8",))
    index.put(known, moved)
    assert index.find(None, ("7",), None) == []
    assert index.find(name(1), ("8",), None) == ["a", "b"]
    closed = msgspec.structs.replace(moved, state=IncidentState.resolved)
    index.put(moved, closed)
    assert index.find(name(1), ("8",), None) == ["b"]
    index.put(closed, moved)
    assert index.find(name(1), (), None) == ["a", "b"]
