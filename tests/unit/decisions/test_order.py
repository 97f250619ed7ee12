"""Who goes first when several wait for the same capacity: severity, size of the job hit, age."""

from datetime import datetime

import pytest

from healer.decisions import judge
from healer.incidents import by_urgency
from healer.incidents.impact import urgency_of
from healer.model import Guard, GuardSettings, JobHit, Outcome, Severity, Urgency, Verb
from healer.model.gate import Waiting
from healer.model.vocabulary import HitBasis
from tests.support.gate import (
    NOW,
    ago,
    drain,
    facts,
    incident,
    job,
    name,
    node,
    propose,
    rules,
    slot,
    snapshot,
)

#: Two nodes at once, and nothing else that binds.
TWO = GuardSettings(max_share=1, max_nodes=2, share_per_hour=1, rack_share=1, partition_share=1)


def urgency(severity=Severity.P2, size=1, since: datetime = NOW) -> Urgency:
    return Urgency(severity=severity, size=size, since=since)


def waits(number: int, **fields) -> Waiting:
    given = {"run": f"w{number}", "node": name(number), "guard": Guard.slots, "severity": Severity.P1}
    return Waiting(**(given | {"since": ago(minutes=5)} | fields))


def test_severity_then_size_then_age() -> None:
    seen = snapshot(jobs=[job("big", nodes=(name(1), name(2))), job("small")])
    order = [
        incident(1, severity=Severity.P1),
        incident(2, severity=Severity.P2, jobs_hit=("big",)),
        incident(3, severity=Severity.P2, jobs_hit=("small",), opened=ago(hours=1)),
        incident(4, severity=Severity.P2, jobs_hit=("small",), opened=ago(minutes=1)),
        incident(5, severity=Severity.P2, opened=ago(hours=2)),
    ]
    assert [one.id for one in by_urgency(reversed(order), seen)] == [one.id for one in order]


def test_a_job_that_slurm_has_forgotten_keeps_its_size() -> None:
    hit = JobHit(job="gone", basis=HitBasis.start, nodes=64)
    assert urgency_of(incident(1, jobs_hit=("gone",), hit=(hit,)), snapshot()).size == 64


@pytest.mark.parametrize(
    ("mine", "goes"),
    [
        (urgency(Severity.P0), True),
        (urgency(Severity.P1, size=2), True),
        (urgency(Severity.P1, size=0, since=ago(minutes=6)), True),
        (urgency(Severity.P1, size=0, since=ago(minutes=4)), False),
        (urgency(Severity.P2, size=512), False),
    ],
)
def test_the_last_slot_is_the_more_urgent_ones(mine: Urgency, goes: bool) -> None:
    known = facts(slots=(slot(9),), waiting=(waits(2),))
    result = judge(drain(urgency=mine), known, rules(TWO), NOW)
    assert (result.outcome is Outcome.act) is goes
    if not goes:
        assert result.guard is Guard.slots
        assert f"P1 on {name(2)} waits for the same slot and goes first" in result.why


def test_with_room_for_both_neither_waits() -> None:
    assert judge(drain(urgency=urgency()), facts(waiting=(waits(2),)), rules(TWO), NOW).outcome is Outcome.act


def test_run_that_already_has_a_slot_no_longer_waits() -> None:
    known = facts(slots=(slot(2),), waiting=(waits(2),))
    assert judge(drain(urgency=urgency()), known, rules(TWO), NOW).outcome is Outcome.act


@pytest.mark.parametrize(
    "asked", [{"by": "bob"}, {"unusable": True}, {"run": "w2"}, {"ride": True}, {"urgency": None}]
)
def test_runs_without_a_place_in_the_queue_yield_to_no_other(asked: dict) -> None:
    known = facts(slots=(slot(9),), waiting=(waits(2),))
    assert judge(drain(**({"urgency": urgency()} | asked)), known, rules(TWO), NOW).outcome is Outcome.act


def test_another_racks_cap_is_not_this_ones() -> None:
    one = GuardSettings(max_share=1, max_nodes=100, share_per_hour=1, rack_share=0, partition_share=1)
    here, there = waits(2, guard=Guard.rack), waits(10, guard=Guard.rack)
    result = judge(drain(urgency=urgency()), facts(waiting=(here,)), rules(one), NOW)
    assert (result.outcome, result.guard) == (Outcome.held, Guard.rack)
    assert judge(drain(urgency=urgency()), facts(waiting=(there,)), rules(one), NOW).outcome is Outcome.act


def test_the_floor_has_an_order_too() -> None:
    """Of 32 nodes 29 stay: three may go, and three that go first wait for it."""
    site = rules(GuardSettings(max_share=1, max_nodes=100, share_per_hour=1, rack_share=1, partition_share=1))
    first = tuple(waits(number, guard=Guard.floor) for number in (2, 3, 4))
    result = judge(drain(urgency=urgency()), facts(waiting=first), site, NOW)
    assert (result.outcome, result.guard) == (Outcome.held, Guard.floor)
    assert "and 2 more" in result.why
    assert judge(drain(urgency=urgency()), facts(waiting=first[:2]), site, NOW).outcome is Outcome.act


def test_a_run_that_its_own_partition_keeps_takes_no_room_of_the_others() -> None:
    """Of 32 nodes one more may go; of the four in prod none, so that the run there waits for one of prod."""
    prod = {"partitions": ("train", "prod")}
    out = {"state": ("IDLE", "DRAIN"), "reason": "PSU", "reason_user": "ann"}
    fleet = [*(node(number) for number in range(1, 28)), node(28, **out)]
    fleet += [*(node(number, **prod) for number in range(29, 32)), node(32, **prod, **out)]
    wide = {"max_share": 1, "max_nodes": 100, "share_per_hour": 1, "rack_share": 1, "partition_share": 1}
    of_prod = GuardSettings(**wide, min_service_share=0.95)
    site = rules(GuardSettings(**wide), partition_guards={"prod": of_prod})
    kept = waits(29, guard=Guard.floor)
    assert judge(drain(29), facts(fleet), site, NOW).guard is Guard.floor
    result = judge(drain(urgency=urgency()), facts(fleet, waiting=(kept,)), site, NOW)
    assert result.outcome is Outcome.act, result.why
    other = waits(2, guard=Guard.floor)
    assert judge(drain(urgency=urgency()), facts(fleet, waiting=(other,)), site, NOW).guard is Guard.floor


def test_a_requeue_needs_no_room() -> None:
    known = facts(jobs=[job()], slots=(slot(1),), waiting=(waits(2),))
    asked = propose(Verb.requeue, job="4711", restarts=0, urgency=urgency())
    assert judge(asked, known, rules(TWO), NOW).outcome is Outcome.act
