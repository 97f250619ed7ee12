"""Caps that can never bind, and caps that always would."""

import pytest

from healer.bootstrap.doctor_checks import warn_of_bound
from healer.decisions.capacity import ineffective_limits
from healer.model import Guard, GuardSettings, SlurmNode
from tests.support.gate import NOW, facts, node, rules, slot


def odd(
    nodes: int | list[SlurmNode] = 32, *, guards: GuardSettings | None = None, **fields
) -> set[tuple[Guard, bool]]:
    return {(one.guard, one.always) for one in ineffective_limits(facts(nodes, **fields), rules(guards), NOW)}


@pytest.mark.parametrize("nodes", [2, 8, 32, 1250])
def test_the_defaults_are_sound(nodes: int) -> None:
    found = odd(nodes)
    # 3 roots make a storm at the least: two nodes cannot have one.
    assert found == ({(Guard.breaker, False)} if nodes == 2 else set())


@pytest.mark.parametrize(
    ("guards", "bound"),
    [
        (GuardSettings(max_share=1, max_nodes=100), (Guard.slots, False)),
        (GuardSettings(share_per_hour=1), (Guard.hourly, False)),
        (GuardSettings(rack_share=1), (Guard.rack, False)),
        (GuardSettings(rack_share=1), (Guard.switch, False)),
        (GuardSettings(partition_share=1, max_nodes=32), (Guard.partition, False)),
        (GuardSettings(min_service_share=0), (Guard.floor, False)),
        (GuardSettings(repeat_h=0), (Guard.repeat, False)),
        (GuardSettings(requeues_per_job=0), (Guard.requeue_cap, True)),
        (GuardSettings(reboots_per_node=0), (Guard.reboot_cap, True)),
        (GuardSettings(stale_s=1), (Guard.stale, True)),
        (GuardSettings(protected=("gpu*",)), (Guard.protected, True)),
    ],
)
def test_limits_set_too_wide_or_too_narrow_are_reported(
    guards: GuardSettings, bound: tuple[Guard, bool]
) -> None:
    assert bound in odd(guards=guards)


def test_a_floor_that_is_reached_by_others_holds_everything() -> None:
    fleet = [node(n, state=("DOWN",) if n <= 4 else ("IDLE",), reason="PSU") for n in range(1, 33)]
    assert (Guard.floor, True) in odd(fleet)
    ours = [node(n, state=("IDLE", "DRAIN") if n <= 4 else ("IDLE",)) for n in range(1, 33)]
    assert (Guard.floor, True) not in odd(ours, slots=tuple(slot(n) for n in range(1, 5)))


def test_one_node_has_caps_of_one() -> None:
    assert odd(1) == set()


def test_it_says_what_and_where_to_change_it() -> None:
    (bound,) = ineffective_limits(facts(32), rules(GuardSettings(requeues_per_job=0)), NOW)
    seen = warn_of_bound("pod1", bound)
    assert seen.ok and "requeue_cap blocks every removal" in seen.text and "requeues_per_job" in seen.repair
