"""The goodput ledger beside the simulator's own account: the classes differ by less than 1 % of the time."""

import pytest
from msgspec.structs import replace

from healer.bootstrap.offline import load
from healer.model.goodput import Spent
from tests.support.loop import rules_in
from tests.support.watched_work import HealedWatched, Watched


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_the_ledger_finds_what_the_simulator_knows(seed: int) -> None:
    found, truth = Watched(load("worn-512", days=6), seed).shares()
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-6)
    assert {kind: share for kind, share in found.items() if abs(share - truth[kind]) >= 0.01} == {}
    assert truth[Spent.hung] > 0.01
    assert truth[Spent.lost] > 0.001
    assert found[Spent.unknown] < 0.01


def test_a_slow_node_is_found_by_what_it_cost() -> None:
    found, truth = Watched(load("slow-node-10pct", days=0.5), 3).shares()
    assert truth[Spent.slowed] > 0.001
    assert found[Spent.slowed] == pytest.approx(truth[Spent.slowed], abs=0.01)


def test_spares_inside_the_allocation_are_a_class_of_their_own() -> None:
    scenario = load("worn-512", days=2)
    held = replace(scenario, spares=0, job=replace(scenario.job, spares=scenario.spares))
    found, truth = Watched(held, 5).shares()
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-6)
    assert truth[Spent.spare] > 0.01
    assert {kind: share for kind, share in found.items() if abs(share - truth[kind]) >= 0.01} == {}


@pytest.mark.parametrize("seed", [5, 9])
def test_time_is_counted_to_the_fault_that_cost_it(seed: int) -> None:
    """By the incidents that healer itself opened. It cannot know of planned stops and a person's work."""
    watched = HealedWatched(load("worn-512", days=3), rules_in(), seed)
    assert len(watched.by_cause()[1]) >= 3
    assert watched.attributed() > 0.9
