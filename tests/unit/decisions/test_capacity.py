"""The floor of service and the caps on slots, with their figures."""

from datetime import timedelta

import msgspec
import pytest

from healer.decisions import judge, limits
from healer.decisions.capacity import (
    floor_limit,
    hourly_limit,
    partition_limit,
    place_limit,
    slots_limit,
)
from healer.model import SLOT_GUARDS, AnswerKind, Guard, GuardSettings, Outcome
from tests.support.gate import NOW, ago, answer, drain, facts, later, name, node, rules, slot

DEFAULTS = GuardSettings()
DRAINED = ("IDLE", "DRAIN")


@pytest.mark.parametrize(
    ("nodes", "floor", "slots", "hourly", "rack"),
    [
        (1, 0, 1, 1, 1),
        (2, 1, 1, 1, 1),
        (8, 7, 1, 1, 2),
        (32, 29, 1, 1, 8),
        (1250, 1125, 10, 25, 312),
    ],
)
def test_formulas_at_the_defaults(nodes, floor, slots, hourly, rack):
    assert floor_limit(DEFAULTS, nodes) == floor
    assert slots_limit(DEFAULTS, nodes) == slots
    assert hourly_limit(DEFAULTS, nodes) == hourly
    assert place_limit(DEFAULTS.rack_share, nodes) == rack
    assert partition_limit(DEFAULTS, nodes) == min(10, rack)


def test_shares_are_decimal_not_binary():
    assert floor_limit(GuardSettings(min_service_share=0.07), 100) == 7
    assert slots_limit(GuardSettings(max_share=0.29, max_nodes=1000), 100) == 29
    assert hourly_limit(GuardSettings(share_per_hour=0.57), 100) == 57


@pytest.mark.parametrize(("share", "nodes", "limit"), [(0.0, 10, 0), (1.0, 10, 9), (1.0, 1, 0), (0.9, 0, 0)])
def test_one_node_may_always_go(share, nodes, limit):
    assert floor_limit(GuardSettings(min_service_share=share), nodes) == limit


def test_every_cap_allows_one():
    none = GuardSettings(max_share=0, max_nodes=0, share_per_hour=0, rack_share=0, partition_share=0)
    assert [slots_limit(none, 40), hourly_limit(none, 40), place_limit(0, 40), partition_limit(none, 40)] == [
        1
    ] * 4


class TestFloor:
    def fleet(self, out: int, total: int = 32, state=DRAINED):
        """The last `out` nodes are drained by a person."""
        return [
            node(
                number, state=state if number > total - out else ("IDLE",), reason="PSU", reason_user="alice"
            )
            for number in range(1, total + 1)
        ]

    @pytest.mark.parametrize(("out", "kind"), [(0, "allow"), (2, "allow"), (3, "hold"), (20, "hold")])
    def test_of_32_nodes_29_stay_regardless_of_who_took_the_others(self, out, kind):
        said = answer(Guard.floor, drain(), facts(self.fleet(out)))
        assert (said.kind, said.limit, said.used) == (kind, 29, 32 - out)

    def test_law_2_does_not_pass_it(self):
        result = judge(drain(unusable=True), facts(self.fleet(3)), rules(), NOW)
        assert (result.outcome, result.guard) == (Outcome.held, Guard.floor)

    def test_a_slot_counts_before_slurm_shows_it(self):
        known = facts(self.fleet(2), slots=(slot(5, unusable=True),))
        assert answer(Guard.floor, drain(), known).kind is AnswerKind.hold

    def test_a_node_that_is_out_already_costs_nothing(self):
        fleet = self.fleet(10)
        fleet[0] = node(1, state=("DOWN", "NOT_RESPONDING"), reason="Not responding")
        assert answer(Guard.floor, drain(), facts(fleet)).kind is AnswerKind.allow

    def test_planned_work_counts_as_in_service(self):
        fleet = self.fleet(10, state=("IDLE", "DRAIN", "MAINTENANCE"))
        assert answer(Guard.floor, drain(), facts(fleet)).used == 32

    def test_power_saving_hides_no_node_that_is_out(self):
        """It switches drained nodes off too, and no job brings those back."""
        for state in (("IDLE", "DRAIN", "POWERED_DOWN"), ("DOWN", "POWERING_DOWN")):
            assert answer(Guard.floor, drain(), facts(self.fleet(3, state=state))).kind is AnswerKind.hold
        asleep = self.fleet(10, state=("IDLE", "POWERED_DOWN"))
        assert answer(Guard.floor, drain(), facts(asleep)).used == 32

    def test_a_node_without_gpus_is_not_counted(self):
        fleet = [*self.fleet(3), node(99, name="login1", gpus=0)]
        assert answer(Guard.floor, drain(node="login1"), facts(fleet)).kind is AnswerKind.allow

    def test_a_partition_may_have_a_higher_floor(self):
        fleet = [*self.fleet(0, 28), *(node(n, partitions=("train", "prod")) for n in range(29, 33))]
        fleet[31] = msgspec.structs.replace(fleet[31], state=DRAINED, reason="x")
        site = rules(partition_guards={"prod": GuardSettings(min_service_share=0.95)})
        said = answer(Guard.floor, drain(29), facts(fleet), site)
        assert (said.kind, said.limit, said.used) == (AnswerKind.hold, 3, 3)
        assert "prod" in said.why
        assert answer(Guard.floor, drain(1), facts(fleet), site).kind is AnswerKind.allow


class TestSlots:
    def test_full(self):
        known = facts(slots=(slot(20),))
        said = answer(Guard.slots, drain(), known)
        assert (said.kind, said.limit, said.used) == (AnswerKind.hold, 1, 1)

    def test_the_number_binds_before_the_share(self):
        known = facts(1250, slots=tuple(slot(n) for n in range(2, 12)))
        assert answer(Guard.slots, drain(), known).limit == 10

    def test_law_2s_slots_are_not_counted(self):
        known = facts(slots=tuple(slot(n, unusable=True) for n in range(2, 5)))
        assert answer(Guard.slots, drain(), known).used == 0

    def test_a_node_with_its_slot_takes_no_other(self):
        known = facts(slots=(slot(1, incident="another"),))
        assert answer(Guard.slots, drain(), known).kind is AnswerKind.allow
        known = facts(slots=(slot(2),))
        assert answer(Guard.slots, drain(ride=True), known).kind is AnswerKind.allow

    def test_binds_a_person(self):
        assert judge(drain(by="alice"), facts(slots=(slot(20),)), rules(), NOW).guard is Guard.slots


class TestHourly:
    def test_frees_when_enough_have_left_the_hour(self):
        granted = (ago(minutes=50), ago(minutes=20))
        said = answer(Guard.hourly, drain(), facts(100, granted=granted))
        assert (said.limit, said.used, said.frees_at) == (2, 2, later(minutes=10))
        said = answer(Guard.hourly, drain(), facts(100, granted=(*granted, ago(minutes=5))))
        assert said.frees_at == later(minutes=40)

    def test_slot_granted_an_hour_ago_no_longer_counts(self):
        assert answer(Guard.hourly, drain(), facts(granted=(ago(hours=1),))).used == 0
        just_in = ago(hours=1) + timedelta(microseconds=1)
        assert answer(Guard.hourly, drain(), facts(granted=(just_in,))).used == 1


class TestRackAndSwitch:
    def test_a_quarter_of_the_rack(self):
        # Racks of 8: two slots. Of 640 nodes ten may go, so only the rack is in the way.
        known = facts(640, slots=(slot(2), slot(3)))
        result = judge(drain(), known, rules(), NOW)
        assert (result.guard, result.answer and result.answer.limit) == (Guard.rack, 2)
        assert judge(drain(9), known, rules(), NOW).outcome is Outcome.act

    def test_a_quarter_of_the_switch(self):
        known = facts(640, slots=tuple(slot(n) for n in (8, 9, 16, 17, 24, 25, 31, 32)))
        said = answer(Guard.switch, drain(), known)
        assert (said.kind, said.limit, said.used) == (AnswerKind.hold, 8, 8)

    def test_at_least_one(self):
        fleet = [node(n, rack=f"r{n // 3}") for n in range(1, 33)]
        assert answer(Guard.rack, drain(), facts(fleet)).limit == 1

    @pytest.mark.parametrize("guard", [Guard.rack, Guard.switch])
    def test_without_a_topology_it_does_not_bind(self, guard):
        fleet = [node(n, rack="", switch="") for n in range(1, 33)]
        assert answer(guard, drain(), facts(fleet, slots=(slot(2),))).kind is AnswerKind.allow


class TestPartition:
    def test_each_partition_of_the_node_has_its_cap(self):
        fleet = [node(n, partitions=("train", "prod") if n <= 8 else ("train",)) for n in range(1, 641)]
        known = facts(fleet, slots=(slot(2), slot(3)))
        said = answer(Guard.partition, drain(), known)
        assert (said.kind, said.limit, said.used) == (AnswerKind.hold, 2, 2)
        assert "prod" in said.why
        assert answer(Guard.partition, drain(9), known).limit == 10

    def test_its_own_share(self):
        fleet = [node(n, partitions=("debug",)) for n in range(1, 9)]
        site = rules(partition_guards={"debug": GuardSettings(partition_share=0.5)})
        assert answer(Guard.partition, drain(), facts(fleet), site).limit == 4
        site = rules(partition_guards={"debug": GuardSettings(partition_share=0.5, max_nodes=3)})
        assert answer(Guard.partition, drain(), facts(fleet), site).limit == 3


class TestLaw2:
    def full(self):
        """Every slot cap is used up: 8 of 64 nodes, all in one rack and within the hour."""
        return facts(64, slots=tuple(slot(n) for n in range(2, 5)), granted=(ago(minutes=5),) * 3)

    def test_certainly_unusable_node_passes_the_slot_caps_with_their_figures(self):
        assert judge(drain(), self.full(), rules(), NOW).outcome is Outcome.held
        result = judge(drain(unusable=True), self.full(), rules(), NOW)
        assert result.outcome is Outcome.act
        passed = {one.guard: one for one in result.answers if "certainly unusable" in one.why}
        assert passed.keys() <= SLOT_GUARDS and {Guard.slots, Guard.hourly, Guard.rack} <= passed.keys()
        assert (passed[Guard.slots].used, passed[Guard.slots].limit) == (3, 3)

    def test_without_a_picture_nothing_is_passed(self):
        result = judge(drain(unusable=True), facts(snapshot=None), rules(), NOW)
        assert {one.kind for one in result.answers if one.guard in SLOT_GUARDS} == {AnswerKind.hold}


class TestLimits:
    def test_figures_for_people(self):
        known = facts(640, slots=(slot(1), slot(2, unusable=True), slot(9)), granted=(ago(minutes=5),))
        said = {(one.guard, one.name): (one.used, one.limit) for one in limits(known, rules(), NOW)}
        assert said == {
            (Guard.slots, ""): (2, 10),
            (Guard.hourly, ""): (1, 12),
            (Guard.floor, ""): (637, 576),
            (Guard.rack, "r00"): (1, 2),
            (Guard.rack, "r01"): (1, 2),
            (Guard.switch, "leaf00"): (2, 8),
            (Guard.partition, "train"): (2, 10),
        }

    def test_before_the_first_picture(self):
        assert limits(facts(snapshot=None), rules(), NOW) == []


def test_a_person_sees_the_name_of_the_node():
    assert name(1) in answer(Guard.floor, drain(), facts(2, slots=(slot(2),))).why
