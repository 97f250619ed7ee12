"""Faults drawn from a seed: the same on each run, as unequal as real nodes, each with its own future."""

from datetime import timedelta

import msgspec
import numpy as np
import pytest

from healer.sim.fleet.scenario import load
from healer.sim.fleet.schedule import Chance, Fault, base_faults

NODES = [f"gpu{number:04d}" for number in range(1, 2049)]
LLAMA = load("llama3-54d")


def drawn(seed: int) -> list[Fault]:
    return base_faults(LLAMA, Chance(LLAMA, seed), NODES, seed)


@pytest.fixture(scope="module")
def faults() -> list[Fault]:
    return [one for seed in range(6) for one in drawn(seed)]


def test_the_same_seed_draws_the_same_faults_and_another_one_others() -> None:
    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_as_many_faults_as_the_scenario_says(faults: list[Fault]) -> None:
    expected = 6 * LLAMA.faults.per_node_day * len(NODES) * LLAMA.days
    assert len(faults) == pytest.approx(expected, rel=0.1)


def test_some_nodes_fail_again_and_again_and_many_never() -> None:
    """Published_figures 3: counts per node vary more than by chance alone."""
    long = msgspec.structs.replace(LLAMA, days=348.0)
    found = base_faults(long, Chance(long, 1), NODES, 1)
    counts = np.bincount([NODES.index(one.node) for one in found], minlength=len(NODES))
    assert 1.7 < counts.var() / counts.mean() < 3.2
    assert (counts == 0).mean() > 1.5 * np.exp(-counts.mean())


def test_causes_come_in_the_shares_of_the_mix(faults: list[Fault]) -> None:
    total = sum(one.count for one in LLAMA.mix)
    for row in LLAMA.mix[:4]:
        share = sum(one.cause == row.cause for one in faults) / len(faults)
        assert share == pytest.approx(row.count / total, abs=0.035)
        assert {one.way_name for one in faults if one.cause == row.cause} == set(row.ways)


def test_random_draws_of_one_fault_change_no_other() -> None:
    chance = Chance(LLAMA, 1)
    alone = chance.draw(7, LLAMA.start, "gpu0001")
    for number in range(20):
        chance.draw(number, LLAMA.start, "gpu0002")
    assert chance.draw(7, LLAMA.start, "gpu0001") == alone


def test_relapses_and_repairs_that_did_not_take_follow_the_return_of_the_node(faults: list[Fault]) -> None:
    broken = [one for one in faults if one.way.hardware]
    not_taken = [one for one in broken if not one.took]
    relapsing = [one for one in broken if one.took and one.again_s is not None]
    assert len(not_taken) / len(broken) == pytest.approx(LLAMA.faults.not_taken, abs=0.04)
    assert len(relapsing) / (len(broken) - len(not_taken)) == pytest.approx(LLAMA.faults.relapse, abs=0.04)
    chance = Chance(LLAMA, 0)
    one = next(fault for fault in drawn(0) if fault.way.hardware and not fault.took)
    returned = one.at + timedelta(days=3)
    again = chance.again(one, returned)
    assert again is not None
    assert (again.node, again.way_name, again.because) == (one.node, one.way_name, "not-taken")
    assert returned < again.at <= returned + timedelta(hours=1.1 * LLAMA.faults.not_taken_h)


def test_fault_outside_the_hardware_never_repeats(faults: list[Fault]) -> None:
    assert all(one.again_s is None and one.took for one in faults if not one.way.hardware)
