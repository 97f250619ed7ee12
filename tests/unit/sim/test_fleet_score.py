"""What counts as a fault that healer has found."""

from datetime import timedelta
from typing import Any

import pytest

from healer.model import Component, FaultClass
from healer.sim.fleet.scenario import load
from healer.sim.fleet.schedule import Chance
from healer.sim.fleet.score import finds
from tests.support.gate import CLUSTER, NOW, incident

FAULT = Chance(load("llama3-54d"), 1).draw(1, NOW, "gpu0007", way="corruption")
PROGRAM = Chance(load("llama3-54d"), 1).draw(2, NOW, "gpu0007", way="program")
HERE = Component(cluster=CLUSTER, node="gpu0007")


@pytest.mark.parametrize("of_it", [{"root": HERE}, {"affected": (HERE,)}])
def test_an_incident_that_names_the_node_has_found_its_fault(of_it: dict[str, Any]) -> None:
    assert finds(incident(opened=NOW, fault_class=FaultClass.degraded, **of_it), FAULT)


def test_an_older_incident_or_one_of_another_node_has_not() -> None:
    before = NOW - timedelta(seconds=1)
    assert not finds(incident(opened=before, fault_class=FaultClass.degraded, root=HERE), FAULT)
    elsewhere = Component(cluster=CLUSTER, node="gpu0008")
    assert not finds(incident(opened=NOW, fault_class=FaultClass.degraded, root=elsewhere), FAULT)


def test_the_error_of_a_program_finds_a_program_and_no_broken_node() -> None:
    error = incident(opened=NOW, fault_class=FaultClass.application, root=HERE)
    assert finds(error, PROGRAM)
    assert not finds(error, FAULT)
