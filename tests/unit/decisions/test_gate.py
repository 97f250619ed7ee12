"""The gate as a whole."""

import pytest

from healer.decisions import ASKED, GUARDS, after_grant, is_untouched, judge, takes_canary, takes_slot_later
from healer.model import (
    REMOVING_VERBS,
    SLOT_GUARDS,
    Breaker,
    BreakerState,
    Guard,
    Mode,
    Outcome,
    Playbook,
    Run,
    RunState,
    Step,
    Verb,
)
from healer.model.slurm import is_ours, slurm_kind
from tests.support.gate import (
    CLUSTER,
    DRAIN,
    NOW,
    TICKET,
    drain,
    facts,
    job,
    name,
    node,
    propose,
    requeue,
    rules,
    slot,
)


def test_every_verb_has_its_guards_and_every_guard_of_the_contract_its_function():
    assert set(ASKED) == set(Verb)
    assert [guard for guard, _ in GUARDS][-2:] == [Guard.mode, Guard.approval]
    assert {guard for guard, _ in GUARDS} == set(Guard)


def test_taking_a_node_needs_capacity_and_returning_one_does_not():
    jobs = {Verb.shrink, Verb.requeue, Verb.cancel}
    assert {verb for verb, asked in ASKED.items() if asked >= SLOT_GUARDS} == REMOVING_VERBS - jobs
    for verb in (Verb.resume, Verb.undrain):
        assert ASKED[verb] == {Guard.pause, Guard.stale, Guard.ownership}


@pytest.mark.parametrize("verb", list(Verb))
def test_no_guard_raises_on_missing_data(verb):
    empty = propose(verb, node=None, job=None)
    for known in (facts(), facts(snapshot=None), facts([])):
        for proposal in (empty, propose(verb, 99, job="99")):
            result = judge(proposal, known, rules(), NOW)
            if verb in REMOVING_VERBS:
                assert result.outcome is not Outcome.act


def test_a_refusal_weighs_more_than_a_hold():
    known = facts([node(1, state=("DOWN",), reason="PSU", reason_user="alice")], slots=(slot(9),))
    result = judge(drain(), known, rules(), NOW)
    assert (result.outcome, result.guard) == (Outcome.refused, Guard.ownership)
    assert result.answer is not None and result.answer.why == result.why


class TestAfter:
    def test_a_granted_drain_is_seen_by_the_next(self):
        known = after_grant(facts(), drain(), "r1", NOW)
        assert (known.slots[0].node, known.slots[0].run, known.granted) == (name(1), "r1", (NOW,))
        assert known.running == {name(1): "r1"}
        assert judge(drain(2), known, rules(), NOW).outcome is Outcome.held

    def test_law_2_uses_no_slot_but_the_floor_sees_it(self):
        known = facts()
        for number in (1, 2, 3):
            assert judge(drain(number, unusable=True), known, rules(), NOW).outcome is Outcome.act
            known = after_grant(known, drain(number, unusable=True), f"r{number}", NOW)
        assert known.granted == ()
        assert judge(drain(4, unusable=True), known, rules(), NOW).guard is Guard.floor

    def test_the_same_node_again_takes_nothing_more(self):
        once = after_grant(facts(), drain(), "r1", NOW)
        assert after_grant(once, propose(Verb.reset_gpu), "r1", NOW).slots == once.slots

    def test_a_requeue_counts_once_per_life_of_the_job(self):
        known = after_grant(facts(jobs=[job()]), requeue(restarts=0), "r1", NOW)
        again = after_grant(known, requeue(restarts=0), "r2", NOW)
        assert again.requeues == known.requeues and len(known.requeues) == 1
        assert known.slots == ()
        assert len(after_grant(again, requeue(restarts=1), "r3", NOW).requeues) == 2

    def test_the_first_one_through_a_half_open_breaker_is_its_canary(self):
        half = facts(1250, breaker=Breaker(cluster=CLUSTER, state=BreakerState.half_open))
        assert takes_canary(half, drain()) and not takes_canary(half, drain(by="alice"))
        assert not takes_canary(half, propose(Verb.resume))
        known = after_grant(half, drain(), "r1", NOW)
        assert known.breaker.canary == "r1"
        assert judge(drain(300), known, rules(), NOW).guard is Guard.breaker
        assert judge(drain(run="r1", ride=True), known, rules(), NOW).outcome is Outcome.act

    def test_a_return_takes_nothing(self):
        assert after_grant(facts(), propose(Verb.resume), "r1", NOW) == facts()


def test_the_same_question_has_the_same_answer():
    known = facts(640, slots=(slot(2),))
    one, two = (judge(drain(mode=Mode.approve), known, rules(), NOW) for _ in range(2))
    assert one == two


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Kill task failed (JobId=4711 StepId=0)", "kill-task-failed"),
        ("gres/gpu count reported lower than configured (7 < 8)", "gres-count"),
        ("Node unexpectedly rebooted : reboot issued", "rebooted"),
        ("Low RealMemory (reported:1 < 100.00% of configured:2)", "low-resources"),
        ("alice: PSU : reboot issued", None),
        ("see Kill task failed", None),
        ("healer:gpu-lost inc:0000abcd Not responding", None),
        ("", None),
    ],
)
def test_slurms_own_reasons(reason, kind):
    assert slurm_kind(reason) == kind


def test_our_reasons_begin_with_our_name():
    assert is_ours("healer:gpu-lost inc:0000abcd x") and not is_ours("NHC: healer:") and not is_ours("")


class TestARunThatOnlyBegins:
    """It looks and waits first: room is asked for when it takes its node."""

    def test_it_asks_for_no_room_and_for_everything_else(self):
        full = facts(slots=[slot(2)], granted=(NOW,))
        assert judge(drain(1), full, rules(), NOW).outcome is Outcome.held
        begun = judge(drain(1, begins=True), full, rules(), NOW)
        assert begun.outcome is Outcome.act
        room = {*SLOT_GUARDS, Guard.floor, Guard.reserved}  # reserved nodes are not requested yet
        assert {one.guard for one in begun.answers} == ASKED[Verb.drain] - room

    def test_it_takes_no_slot_and_is_no_canary(self):
        half = Breaker(cluster=CLUSTER, state=BreakerState.half_open)
        before = facts(breaker=half)
        begun = after_grant(before, drain(1, begins=True), "r1", NOW)
        assert (begun.slots, begun.granted, begun.breaker.canary) == ((), (), None)
        assert begun.running == {name(1): "r1"}

    def test_only_a_playbook_that_waits_before_its_drain_takes_its_slot_later(self):
        waits = Playbook(
            name="w",
            title="w",
            target="node",
            steps=(Step(id="m", wait="empty"), Step(id="d", do=Verb.drain)),
        )
        assert takes_slot_later(waits)
        assert not takes_slot_later(DRAIN) and not takes_slot_later(TICKET) and not takes_slot_later(None)

    def test_it_is_untouched_until_its_slot_is_granted(self):
        waits = Playbook(
            name="w",
            title="w",
            target="node",
            steps=(Step(id="m", wait="empty"), Step(id="d", do=Verb.drain)),
        )
        run = Run(
            id="r1", cluster=CLUSTER, playbook="w", state=RunState.running, by="healer", reason="x",
            created_at=NOW, node=name(1),
        )  # fmt: skip
        assert is_untouched(run, waits, facts())
        assert not is_untouched(run, waits, facts(slots=[slot(1, run="r1")]))
        assert is_untouched(run, waits, facts(slots=[slot(1, run="another")]))
        assert not is_untouched(run, DRAIN, facts())
        requeues = Playbook(
            name="q", title="q", target="node",
            steps=(Step(id="q", do=Verb.requeue), Step(id="d", do=Verb.drain)),
        )  # fmt: skip
        assert not is_untouched(run, requeues, facts()), "it may have restarted jobs"
