"""Open incidents are found by node, job and place, also after they changed."""

import msgspec

from healer.incidents.book import OpenIndex
from healer.model import Component, FaultClass, IncidentState
from tests.support.gate import CLUSTER, incident, name

LEAF = Component(cluster=CLUSTER, switch="leaf01")


def test_it_finds_by_node_job_and_place_the_oldest_first() -> None:
    index = OpenIndex()
    first = incident(id="b", root=Component(cluster=CLUSTER, node=name(1)), jobs_hit=("7", "8"))
    second = incident(id="a", root=LEAF, jobs_hit=("8",))
    error = incident(id="c", root=LEAF, jobs_hit=("8",), fault_class=FaultClass.application)
    for one in (first, second, error):
        index.put(one)
    assert index.find(name(1), (), None) == ["b"]
    assert index.find(None, ("8",), None) == ["c"]
    assert index.hard(None, ("8",)) == ["b", "a"]
    assert index.find(name(1), ("8",), LEAF) == ["b", "a", "c"]
    assert index.find(name(2), ("9",), Component(cluster=CLUSTER)) == []


def test_a_change_moves_it_and_its_end_takes_it_out() -> None:
    index = OpenIndex()
    known = incident(id="a", root=Component(cluster=CLUSTER, node=name(1)), jobs_hit=("7",))
    index.put(known)
    index.put(incident(id="b", root=known.root))
    moved = msgspec.structs.replace(known, jobs_hit=("8",))
    index.put(moved)
    assert index.hard(None, ("7",)) == []
    assert index.hard(name(1), ("8",)) == ["a", "b"]
    closed = msgspec.structs.replace(moved, state=IncidentState.resolved)
    index.put(closed)
    assert index.find(name(1), ("8",), None) == ["b"]
    index.put(moved)
    assert index.find(name(1), (), None) == ["a", "b"]
