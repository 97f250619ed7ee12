"""When the breaker opens, and what closes it."""

import msgspec
import pytest

from healer.decisions import after_run_news, next_breaker, reset, storm_roots
from healer.decisions.breaker import threshold
from healer.model import (
    Breaker,
    BreakerState,
    FaultClass,
    GuardSettings,
    Incident,
    IncidentState,
    Maintenance,
    Root,
    RunState,
)
from tests.support.gate import CLUSTER, GPU_LOST, NOW, TICKET, ago, facts, incident, later, name, node, rules

CLOSED = Breaker(cluster=CLUSTER)


def root(number: int, rule: str = "gpu-lost", **fields) -> Root:
    given = {"node": name(number), "rule": rule, "at": ago(minutes=1), "incident": f"{rule}{number}"}
    return Root(**(given | fields))


def look(breaker=CLOSED, roots=(), actions=(), nodes=32, site=None):
    return next_breaker(breaker, roots, actions, nodes, site or rules(), NOW)


@pytest.mark.parametrize(("nodes", "limit"), [(1, 3), (2, 3), (8, 3), (20, 3), (32, 5), (1250, 8)])
def test_threshold(nodes, limit):
    assert threshold(GuardSettings(), nodes) == limit


class TestStormRoots:
    def of(self, *incidents: Incident, known=None, site=None) -> list[str]:
        return [one.node for one in storm_roots(incidents, known or facts(), site or rules(), NOW)]

    def test_distinct_nodes_of_the_last_5_minutes(self):
        two = (incident(1), incident(1, id="other"), incident(2, opened=ago(minutes=4, seconds=59)))
        assert self.of(*two, incident(3, opened=ago(minutes=5))) == [name(2), name(1)]

    def test_held_and_resolved_ones_count(self):
        done = incident(2, state=IncidentState.resolved, closed=NOW)
        assert self.of(incident(1, held_by="slots"), done) == [name(1), name(2)]

    def test_nodes_already_out_merged_ones_and_unmanaged_ones_do_not(self):
        assert (
            self.of(incident(1, node_was_out=True), incident(2, merged_into="x"), incident(3, rule="told"))
            == []
        )
        assert self.of(incident(4, rule="no such rule")) == []

    def test_planned_work_does_not(self):
        window = Maintenance(nodes=("gpu0001",), why="x", since=ago(hours=1), until=NOW)
        site = rules(GuardSettings(maintenance=(window,)))
        fleet = [node(1), node(2, state=("IDLE", "MAINTENANCE")), *(node(n) for n in range(3, 33))]
        assert self.of(incident(1), incident(2), incident(3), known=facts(fleet), site=site) == [name(3)]

    def test_a_playbook_that_takes_nothing_away_does_not(self):
        site = rules(
            rules=(msgspec.structs.replace(GPU_LOST, playbook="ticket"),), playbooks={"ticket": TICKET}
        )
        assert self.of(incident(1), site=site) == []

    def test_a_playbook_that_is_not_loaded_counts_for_a_fatal_fault(self):
        site = rules(playbooks={})
        assert self.of(incident(1), incident(2, fault_class=FaultClass.degraded), site=site) == [name(1)]

    def test_without_a_picture(self):
        assert self.of(incident(1), known=facts(snapshot=None)) == [name(1)]

    def test_driver_and_switch_come_from_the_picture(self):
        found = storm_roots([incident(1)], facts([node(1, driver="580.65")]), rules(), NOW)
        assert (found[0].driver, found[0].switch) == ("580.65", "leaf00")


class TestStorm:
    def test_opens_at_the_threshold_of_one_rule(self):
        four = tuple(root(n) for n in range(1, 5))
        assert look(roots=four) == CLOSED
        breaker = look(roots=(*four, root(9)))
        assert breaker.state is BreakerState.open and breaker.since == NOW
        assert len(breaker.roots) == 5 and "5 nodes with gpu-lost" in breaker.why

    def test_one_node_twice_and_two_rules_are_no_storm(self):
        again = tuple(root(1, incident=f"i{n}") for n in range(9))
        mixed = (*(root(n) for n in range(1, 5)), *(root(n, "gpu-fatal") for n in range(1, 5)))
        assert look(roots=again) == CLOSED
        assert look(roots=mixed) == CLOSED

    def test_says_what_they_share(self):
        alike = tuple(root(n, driver="580.65", switch="leaf00") for n in range(1, 6))
        assert "driver 580.65" in look(roots=alike).why and "switch leaf00" in look(roots=alike).why
        assert "driver" not in look(roots=(*alike[1:], root(1, driver="575", switch="leaf00"))).why

    def test_share_1_switches_it_off(self):
        site = rules(GuardSettings(breaker_share=1.0))
        many = tuple(root(n) for n in range(1, 33))
        assert look(roots=many, actions=[False] * 10, site=site) == CLOSED

    def test_open_gathers_further_roots_and_stays_open(self):
        opened = look(roots=tuple(root(n) for n in range(1, 6)))
        more = look(opened, roots=(root(5), root(6), root(7, "gpu-fatal")))
        assert more.state is BreakerState.open
        assert [one.node for one in more.roots] == [name(n) for n in range(1, 7)]
        assert look(opened) == opened


class TestFailingActions:
    @pytest.mark.parametrize(
        ("actions", "opens"),
        [
            ([False] * 3, False),
            ([True, False, False, False], True),
            ([True, True, False, False], False),
            ([True] * 5 + [False] * 5, False),
            ([True] * 4 + [False] * 6, True),
            ([False] * 9 + [True], False),
            ([False] * 6 + [True] * 9, False),
        ],
    )
    def test_more_than_half_of_the_last_ten_the_last_one_too(self, actions, opens):
        assert (look(actions=actions).state is BreakerState.open) is opens

    def test_old_failures_do_not_stop_a_canary(self):
        half = Breaker(cluster=CLUSTER, state=BreakerState.half_open)
        assert look(half, actions=[False] * 10) == half


class TestResetAndCanary:
    def opened(self) -> Breaker:
        return look(roots=tuple(root(n) for n in range(1, 6)))

    def test_a_named_person_with_a_reason_makes_it_half_open(self):
        half = reset(self.opened(), "alice", "sensor was wrong", later(minutes=1))
        assert (half.state, half.reset_by, half.canary) == (BreakerState.half_open, "alice", None)

    @pytest.mark.parametrize(("person", "reason"), [("", "x"), ("alice", " ")])
    def test_not_without_name_and_reason(self, person, reason):
        with pytest.raises(ValueError, match="person and a reason"):
            reset(self.opened(), person, reason, NOW)

    def test_only_an_open_one_is_reset(self):
        with pytest.raises(ValueError, match="closed"):
            reset(CLOSED, "alice", "x", NOW)

    def test_the_canary_decides(self):
        half = msgspec.structs.replace(reset(self.opened(), "alice", "x", NOW), canary="r1")
        assert after_run_news(half, "r2", RunState.stuck, NOW) == half
        assert after_run_news(half, "r1", RunState.done, NOW).state is BreakerState.closed
        failed = after_run_news(half, "r1", RunState.stuck, NOW)
        assert failed.state is BreakerState.open and "canary" in failed.why

    def test_a_withdrawn_canary_makes_room(self):
        half = msgspec.structs.replace(reset(self.opened(), "alice", "x", NOW), canary="r1")
        for state in (RunState.cancelled, RunState.rejected, RunState.undone):
            assert after_run_news(half, "r1", state, NOW).canary is None
        assert after_run_news(half, "r2", RunState.cancelled, NOW) == half

    def test_the_roots_that_the_person_knew_never_open_it_again_new_ones_do(self):
        known = tuple(root(n) for n in range(1, 6))
        half = reset(self.opened(), "alice", "x", NOW)
        closed = after_run_news(msgspec.structs.replace(half, canary="r1"), "r1", RunState.done, NOW)
        for breaker in (half, closed):
            assert look(breaker, roots=known) == breaker
            assert look(breaker, roots=(*known, *(root(n) for n in range(11, 16)))).state is BreakerState.open
