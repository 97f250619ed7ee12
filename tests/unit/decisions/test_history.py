"""Guards over what was done before."""

import msgspec
import pytest

from healer.decisions import judge
from healer.model import (
    AnswerKind,
    Breaker,
    BreakerState,
    Guard,
    GuardSettings,
    Outcome,
    Pause,
    Remedy,
    RemedyUse,
    RequeueUse,
    Root,
    Verb,
    Veto,
)
from tests.support.gate import (
    CLUSTER,
    NOW,
    ago,
    answer,
    drain,
    facts,
    job,
    later,
    name,
    node,
    propose,
    requeue,
    rules,
)


def breaker(state: BreakerState, **fields) -> Breaker:
    return Breaker(cluster=CLUSTER, state=state, **fields)


def roots(*minutes: float) -> tuple[Root, ...]:
    return tuple(
        Root(node=name(n), rule="gpu-lost", at=ago(minutes=m), incident=f"i{n}")
        for n, m in enumerate(minutes, 1)
    )


def drained(number: int = 1):
    return node(number, state=("IDLE", "DRAIN"), reason="healer:gpu-lost inc:00000001 x")


class TestBreaker:
    def test_open_holds_what_healer_starts_law_2_too(self):
        known = facts(breaker=breaker(BreakerState.open, why="5 nodes with gpu-lost"))
        for proposal in (drain(unusable=True), drain(ride=True), requeue()):
            said = answer(Guard.breaker, proposal, known)
            assert said.kind is AnswerKind.hold and "5 nodes" in said.why

    @pytest.mark.parametrize("state", [BreakerState.open, BreakerState.half_open])
    def test_a_named_person_passes(self, state):
        known = facts(breaker=breaker(state, canary="r9"))
        assert answer(Guard.breaker, drain(by="alice"), known).kind is AnswerKind.allow

    def test_open_breaker_still_returns_nodes_and_notifies_people(self):
        known = facts([drained(), *(node(n) for n in range(2, 33))], breaker=breaker(BreakerState.open))
        for verb in (Verb.resume, Verb.ticket, Verb.notify):
            assert judge(propose(verb), known, rules(), NOW).outcome is Outcome.act

    def test_half_open_lets_one_canary_through_with_all_its_steps(self):
        known = facts(breaker=breaker(BreakerState.half_open))
        assert answer(Guard.breaker, drain(), known).kind is AnswerKind.allow
        known = facts(breaker=breaker(BreakerState.half_open, canary="r1"))
        assert answer(Guard.breaker, drain(run="r1"), known).kind is AnswerKind.allow
        assert answer(Guard.breaker, drain(run="r2"), known).kind is AnswerKind.hold
        assert answer(Guard.breaker, drain(run=None), known).kind is AnswerKind.hold


class TestCooldown:
    def test_ten_minutes_after_the_last_root(self):
        known = facts(breaker=breaker(BreakerState.closed, roots=roots(9, 4)))
        said = answer(Guard.cooldown, drain(), known)
        assert (said.kind, said.frees_at) == (AnswerKind.hold, later(minutes=6))
        assert answer(Guard.cooldown, drain(), known, now=later(minutes=6)).kind is AnswerKind.allow

    def test_cooldown_does_not_hold_requests_of_people_or_running_work(self):
        known = facts(breaker=breaker(BreakerState.closed, roots=roots(4)))
        for proposal in (drain(by="alice"), drain(ride=True)):
            assert answer(Guard.cooldown, proposal, known).kind is AnswerKind.allow


class TestRepeat:
    def known(self, hours: float, remedy=Remedy.drain_then_reset, incident="inc0"):
        use = RemedyUse(node=name(1), remedy=remedy, rule="gpu-lost", at=ago(hours=hours), incident=incident)
        return facts(remedies=(use,))

    def test_same_remedy_on_the_same_node_within_6_h(self):
        proposal = drain(remedy=Remedy.drain_then_reset)
        said = answer(Guard.repeat, proposal, self.known(2))
        assert (said.kind, said.frees_at) == (AnswerKind.hold, later(hours=4))
        assert answer(Guard.repeat, proposal, self.known(6)).kind is AnswerKind.allow

    def test_another_remedy_or_node_is_no_repeat(self):
        assert answer(Guard.repeat, drain(remedy=Remedy.reboot_node), self.known(2)).kind is AnswerKind.allow
        assert answer(Guard.repeat, drain(2, remedy=Remedy.drain_then_reset), self.known(2)).kind == "allow"

    def test_a_person_may(self):
        proposal = drain(remedy=Remedy.drain_then_reset, by="alice")
        assert answer(Guard.repeat, proposal, self.known(2)).kind is AnswerKind.allow

    def test_a_later_step_of_the_same_incident_is_the_same_try(self):
        proposal = propose(Verb.reset_gpu, remedy=Remedy.drain_then_reset, ride=True, incident="inc1")
        assert answer(Guard.repeat, proposal, self.known(2, incident="inc1")).kind is AnswerKind.allow
        assert answer(Guard.repeat, proposal, self.known(2, incident="inc0")).kind is AnswerKind.hold

    def test_a_run_that_has_begun_may_drain(self):
        proposal = drain(remedy=Remedy.drain_then_reset, ride=True)
        assert answer(Guard.repeat, proposal, self.known(2)).kind is AnswerKind.allow

    def test_the_hours_of_the_strictest_partition(self):
        site = rules(partition_guards={"train": GuardSettings(repeat_h=12)})
        proposal = drain(remedy=Remedy.drain_then_reset)
        assert answer(Guard.repeat, proposal, self.known(8), site).frees_at == later(hours=4)


class TestRebootCap:
    def known(self, *hours: float):
        uses = (
            RemedyUse(node=name(1), remedy=Remedy.reboot_node, rule="x", at=ago(hours=h), incident="i")
            for h in hours
        )
        return facts([drained(), *(node(n) for n in range(2, 33))], remedies=tuple(uses))

    def test_three_in_24_h_regardless_of_requester(self):
        for proposal in (propose(Verb.reboot, by="alice"), propose(Verb.power_cycle)):
            said = answer(Guard.reboot_cap, proposal, self.known(23, 9, 7))
            assert (said.kind, said.limit, said.used) == (AnswerKind.refuse, 3, 3)
            assert said.frees_at == later(hours=1)

    def test_older_ones_and_drains_do_not_count(self):
        assert answer(Guard.reboot_cap, propose(Verb.reboot), self.known(24, 9, 7)).used == 2
        assert answer(Guard.reboot_cap, drain(), self.known(9, 8, 7)).kind is AnswerKind.allow


class TestRequeueCap:
    def known(self, *uses: tuple[int, float], **fields):
        made = (RequeueUse(job="4711", restarts=r, at=ago(hours=h)) for r, h in uses)
        return facts(jobs=[job(**fields)], requeues=tuple(made))

    def test_two_in_24_h_regardless_of_requester(self):
        for proposal in (
            requeue(restarts=2),
            requeue(restarts=2, by="alice"),
            requeue(restarts=2, unusable=True),
        ):
            result = judge(proposal, self.known((0, 20), (1, 3)), rules(), NOW)
            assert (result.outcome, result.guard) == (Outcome.refused, Guard.requeue_cap)
            assert result.answer is not None
            assert (result.answer.limit, result.answer.used) == (2, 2)
            assert result.answer.frees_at == later(hours=4)

    def test_the_requeue_of_this_life_of_the_job_is_this_one(self):
        once = answer(Guard.requeue_cap, requeue(restarts=1), self.known((0, 20), (1, 3)))
        assert once.used == 1 and "requeued once in 24 h, limit" in once.why

    def test_a_day_later_it_is_free(self):
        assert answer(Guard.requeue_cap, requeue(restarts=2), self.known((0, 24), (1, 3))).used == 1

    def test_its_partitions_own_limit(self):
        site = rules(partition_guards={"train": GuardSettings(requeues_per_job=1)})
        assert answer(Guard.requeue_cap, requeue(restarts=1), self.known((0, 3)), site).kind == "refuse"


class TestAClockAhead:
    """What ends by time ends by the later of both clocks: the worker's, and the one of the ledger."""

    AHEAD = later(hours=30)

    def test_a_pause_and_a_veto_hold_until_both_clocks_are_past_them(self):
        ends = later(hours=1)
        pause = Pause(id="p", scope="all", name="", by="ann", reason="x", since=ago(hours=1), until=ends)
        veto = Veto(node=name(1), by="ann", at=ago(hours=1), until=ends)
        for guard in (Guard.pause, Guard.ownership):
            known = facts(pauses=(pause,), vetoes=(veto,), read_at=NOW)
            assert answer(guard, drain(), known, now=self.AHEAD).kind is AnswerKind.hold
            own_clock = msgspec.structs.replace(known, read_at=None)
            assert answer(guard, drain(), own_clock, now=self.AHEAD).kind is AnswerKind.allow

    def test_what_was_done_counts_until_both_clocks_are_past_it(self):
        boots = tuple(
            RemedyUse(node=name(1), remedy=Remedy.reboot_node, rule="x", at=ago(hours=h)) for h in (1, 2, 3)
        )
        requeues = tuple(RequeueUse(job="4711", restarts=n, at=ago(hours=n)) for n in (1, 2, 3))
        known = facts(
            [drained(), *(node(number) for number in range(2, 33))],
            jobs=[job()],
            remedies=boots,
            requeues=requeues,
            granted=tuple(ago(minutes=n) for n in range(1, 31)),
            breaker=breaker(BreakerState.closed, roots=roots(1)),
            read_at=NOW,
        )
        asked = {
            Guard.repeat: drain(remedy=Remedy.reboot_node),
            Guard.reboot_cap: propose(Verb.reboot),
            Guard.requeue_cap: requeue(restarts=9),
            Guard.hourly: drain(2),
            Guard.cooldown: drain(2),
        }
        for guard, proposal in asked.items():
            assert answer(guard, proposal, known, now=self.AHEAD).kind is not AnswerKind.allow, guard

    def test_the_age_of_slurms_picture_is_by_the_workers_own_clock(self):
        assert answer(Guard.stale, drain(), facts(read_at=NOW), now=later(hours=1)).kind is AnswerKind.hold
