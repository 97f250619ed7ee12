"""Slurm's picture in a recording: in full, repeated, and as changes."""

from datetime import UTC, datetime
from typing import Any

import pytest

from healer.sim.replay_slurm import ReplaySlurm, shown
from healer.sim.sim_clock import SimClock

START = datetime(2026, 11, 20, 3, tzinfo=UTC)


def slurm(*bodies: dict[str, Any]) -> ReplaySlurm:
    made = ReplaySlurm("pod1", SimClock(START))
    for body in bodies:
        made.show_nodes(shown(body, "nodes"))
    return made


def whole(*names: str, again: bool = False, **more: Any) -> dict[str, Any]:
    return {"nodes": [{"name": one, **more} for one in names], "again": again}


def drained(made: ReplaySlurm) -> ReplaySlurm:
    made.drain("n1", "healer:gpu-lost inc:00000000 gone")
    return made


def test_a_whole_picture_overrides_what_the_replay_did_also_where_it_says_the_same() -> None:
    made = drained(slurm(whole("n1", "n2")))
    assert [one.name for one in made.show_nodes(shown(whole("n1"), "nodes"))] == ["n1"]
    assert not made.nodes["n1"].drain
    assert set(made.nodes) == {"n1"}


def test_repeated_row_overrides_only_where_it_differs() -> None:
    made = drained(slurm(whole("n1", "n2", "n3")))
    before = made.nodes
    assert made.show_nodes(shown(whole("n1", "n2", "n3", again=True), "nodes")) == []
    assert made.nodes is before, "the same picture costs a walk nothing"
    snapshot_row = {"nodes": [{"name": "n1"}, {"name": "n2", "state": ["DOWN"]}], "again": True}
    assert [one.name for one in made.show_nodes(shown(snapshot_row, "nodes"))] == ["n2"]
    assert made.nodes["n1"].drain and made.nodes["n2"].base == "DOWN" and "n3" not in made.nodes


def test_the_first_picture_counts_though_it_is_marked() -> None:
    assert set(slurm(whole("n1", "n2", again=True)).nodes) == {"n1", "n2"}


def test_a_change_speaks_of_its_own_nodes_alone() -> None:
    made = drained(slurm(whole("n1", "n2")))
    change = {"changed": [{"name": "n2", "state": ["MIXED"]}, {"name": "n4"}], "gone": []}
    assert [one.name for one in made.show_nodes(shown(change, "nodes"))] == ["n2", "n4"]
    assert made.nodes["n1"].drain and made.nodes["n2"].base == "MIXED"
    made.show_nodes(shown({"changed": [{"name": "n1"}], "gone": ["n2"]}, "nodes"))
    assert not made.nodes["n1"].drain and set(made.nodes) == {"n1", "n4"}


def test_jobs_come_and_go_and_keep_their_life() -> None:
    made = ReplaySlurm("pod1", SimClock(START))
    job = {"id": "7", "state": "RUNNING", "nodes": ["n1"]}
    made.show_jobs(shown({"jobs": [job], "again": True}, "jobs"))
    made.requeue("7")
    made.show_jobs(shown({"changed": [job | {"nodes": ["n2"]}]}, "jobs"))
    assert (made.jobs["7"].restarts, made.jobs["7"].nodes) == (1, ("n2",))
    made.show_jobs(shown({"gone": ["7"]}, "jobs"))
    assert made.jobs == {}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "`nodes` must be a list of objects"),
        ([], "`nodes` must be a list of objects"),
        ({"nodes": [1]}, "`nodes` must be a list of objects"),
        ({"changed": {}}, "`changed` must be a list of objects"),
        ({"gone": "n1"}, "`gone` must be a list of names"),
    ],
)
def test_a_body_that_is_neither_is_said(body: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        shown(body, "nodes")
