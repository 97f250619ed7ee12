"""Consent of the job, mode of the rule, approval of a person."""

from types import SimpleNamespace

import pytest

from healer.decisions import judge
from healer.decisions.consent import OPT_IN
from healer.model import AnswerKind, Guard, Mode, Outcome, RunState, StepEvent, Verb
from tests.support.gate import NOW, ago, answer, drain, facts, job, name, node, propose, requeue, rules, slot
from tests.support.loop import LOST, Site, equip

DRAINED = node(1, state=("IDLE", "DRAIN"), reason="healer:gpu-lost inc:00000001 x")
REST = [node(n) for n in range(2, 33)]


class TestShrink:
    NODES = tuple(name(n) for n in range(1, 6))

    def asked(self, number=3, by=None, approved_by=None, **fields):
        known = job(**({"comment": "healer:swap=4", "nodes": self.NODES} | fields))
        proposal = propose(
            Verb.shrink,
            number,
            job="4711",
            restarts=0,
            ride=True,
            unusable=True,
            by=by,
            approved_by=approved_by,
        )
        return answer(Guard.consent, proposal, facts(jobs=[known]))

    def test_the_jobs_own_number_agrees(self):
        said = self.asked()
        assert (said.kind, said.used, said.limit) == (AnswerKind.allow, 4, 4)

    @pytest.mark.parametrize(
        "fields",
        [
            {"comment": ""},
            {"comment": OPT_IN},
            {"comment": "healer:swap=5"},
            {"comment": "healer:swap=4 healer:keep"},
            {"batch": False},
            {"het_job": "4711"},
            {"state": "PENDING"},
            {"state": "SUSPENDED"},
            {"flags": ("COMPLETING",)},
            {"number": 1},
            {"nodes": (name(3),), "comment": "healer:swap=1"},
        ],
    )
    def test_everything_else_refuses_no_matter_who_asks(self, fields):
        for people in ({}, {"by": "ann"}, {"approved_by": "bob"}):
            assert self.asked(**fields, **people).kind is AnswerKind.refuse

    def test_a_node_that_is_no_part_of_the_job_is_nothing_to_take(self):
        assert self.asked(number=9).kind is AnswerKind.allow

    def test_unknown_job_is_refused_and_an_old_picture_holds(self):
        proposal = propose(Verb.shrink, 3, job="99", restarts=0)
        assert answer(Guard.consent, proposal, facts()).kind is AnswerKind.refuse
        held = slot(3, drained_at=ago(seconds=-1))
        assert answer(Guard.consent, proposal, facts(slots=(held,))).kind is AnswerKind.hold


class TestRequeue:
    @pytest.mark.parametrize("fields", [{"requeue": False}, {"batch": False}])
    def test_refusal_by_slurm_applies_to_every_actor(self, fields):
        known = facts(jobs=[job(**fields)])
        for proposal in (requeue(), requeue(unusable=True), requeue(by="alice")):
            result = judge(proposal, known, rules(), NOW)
            assert (result.outcome, result.guard) == (Outcome.refused, Guard.consent)

    @pytest.mark.parametrize(
        ("fields", "kind"),
        [
            ({"fatal": True}, "allow"),
            ({"fatal": False, "unusable": True}, "allow"),
            ({"fatal": False}, "refuse"),
            ({"fatal": False, "by": "alice"}, "allow"),
        ],
    )
    def test_a_dead_node_a_fatal_gpu_or_a_person(self, fields, kind):
        assert answer(Guard.consent, requeue(**fields), facts(jobs=[job()])).kind == kind

    def test_the_jobs_comment_agrees_to_more(self):
        assert (
            answer(Guard.consent, requeue(fatal=False), facts(jobs=[job(comment=f"x {OPT_IN}")])).kind
            == "allow"
        )
        assert (
            answer(Guard.consent, requeue(fatal=False), facts(jobs=[job(comment=f"no-{OPT_IN}")])).kind
            == "refuse"
        )

    def test_an_approval_of_a_run_on_the_job_is_consent_and_of_one_on_its_node_is_not(self):
        def asked(comment="", **fields):
            proposal = requeue(fatal=False, approved_by="bob", **fields)
            return answer(Guard.consent, proposal, facts(jobs=[job(comment=comment)])).kind

        assert asked(node=None) == "allow"
        assert asked(node=name(1)) == "refuse"
        assert asked(node=None, comment="healer:keep") == "refuse"

    def test_a_revival_needs_the_comment_even_after_a_fatal_fault(self):
        proposal = propose(Verb.revive, job="4711", fatal=True, unusable=True)
        assert answer(Guard.consent, proposal, facts(jobs=[job(state="FAILED")])).kind == "refuse"
        assert (
            answer(Guard.consent, proposal, facts(jobs=[job(state="FAILED", comment=OPT_IN)])).kind == "allow"
        )

    @pytest.mark.parametrize(
        ("drained_s", "kind"), [(-1, "hold"), (3, "hold"), (5, "refuse"), (60, "refuse")]
    )
    def test_a_job_that_is_gone_holds_only_until_a_picture_after_the_drain(self, drained_s, kind):
        """The picture may be older than the job, but not when it was taken after the node's drain."""
        held = slot(1, drained_at=ago(seconds=drained_s))
        assert answer(Guard.consent, requeue("99"), facts(slots=(held,))).kind == kind
        drained = slot(1, granted_at=ago(seconds=drained_s))
        assert answer(Guard.consent, requeue("99"), facts(slots=(drained,))).kind == kind

    def test_a_component_that_is_left_to_its_owner_keeps_the_whole_job(self):
        parts = [
            job("10", het_job="10", het_offset=0),
            job("11", het_job="10", het_offset=1, comment="healer:keep"),
        ]
        said = answer(Guard.consent, requeue("10", fatal=True), facts(jobs=parts))
        assert said.kind is AnswerKind.refuse and "healer:keep" in said.why

    def test_unseen_job_is_refused_without_a_drain(self):
        assert answer(Guard.consent, requeue("99"), facts()).kind is AnswerKind.refuse
        assert answer(Guard.consent, propose(Verb.revive, job="99"), facts()).kind is AnswerKind.refuse

    @pytest.mark.parametrize(("begun_s", "kind"), [(-1, "hold"), (3, "hold"), (6, "allow")])
    def test_a_persons_job_waits_for_a_picture_that_would_show_it(self, begun_s, kind):
        asked = requeue("99", by="alice", node=None, begun_at=ago(seconds=begun_s))
        assert answer(Guard.consent, asked, facts()).kind == kind

    def test_a_person_may_ask_for_a_job_that_is_younger_than_the_picture(self):
        assert answer(Guard.consent, requeue("99", by="alice"), facts()).kind is AnswerKind.allow

    def test_before_the_first_picture_it_is_held(self):
        known = facts(snapshot=None)
        assert answer(Guard.consent, requeue("99", fatal=True), known).kind is AnswerKind.hold

    def test_a_requeue_needs_no_slot(self):
        result = judge(requeue(), facts(jobs=[job()]), rules(), NOW)
        assert result.outcome is Outcome.act
        assert Guard.slots not in {one.guard for one in result.answers}


class TestEmptyNode:
    @pytest.mark.parametrize("verb", [Verb.reset_gpu, Verb.reboot, Verb.restart_service, Verb.diagnose])
    def test_a_reset_waits_for_a_drained_and_empty_node(self, verb):
        assert answer(Guard.consent, propose(verb), facts([DRAINED, *REST])).kind is AnswerKind.allow
        busy = facts([DRAINED, *REST], jobs=[job("1"), job("2"), job("3"), job("4")])
        said = answer(Guard.consent, propose(verb, by="alice"), busy)
        assert said.kind is AnswerKind.hold and "Jobs 1, 2, 3 and 1 more" in said.why
        assert answer(Guard.consent, propose(verb), facts()).kind is AnswerKind.hold

    def test_completing_node_without_a_job_holds_a_reboot(self):
        completing = node(1, state=("IDLE", "DRAIN", "COMPLETING"), reason="healer:x")
        assert answer(Guard.consent, propose(Verb.reboot), facts([completing, *REST])).kind is AnswerKind.hold


class TestMode:
    @pytest.mark.parametrize(
        ("mode", "outcome", "guard"),
        [
            (Mode.off, Outcome.refused, Guard.mode),
            (Mode.shadow, Outcome.held, Guard.mode),
            (Mode.suggest, Outcome.held, Guard.mode),
            (Mode.approve, Outcome.held, Guard.approval),
            (Mode.auto, Outcome.act, None),
        ],
    )
    def test_how_far_each_mode_goes_alone(self, mode, outcome, guard):
        result = judge(drain(mode=mode), facts(), rules(), NOW)
        assert (result.outcome, result.guard) == (outcome, guard)

    @pytest.mark.parametrize(
        ("mode", "outcome"),
        [
            (Mode.off, Outcome.refused),
            (Mode.shadow, Outcome.held),
            (Mode.suggest, Outcome.act),
            (Mode.approve, Outcome.act),
        ],
    )
    def test_with_a_persons_approval(self, mode, outcome):
        assert judge(drain(mode=mode, approved_by="alice"), facts(), rules(), NOW).outcome is outcome

    def test_a_mode_set_while_running_wins(self):
        known = facts(modes={"gpu-lost": Mode.shadow})
        assert judge(drain(mode=Mode.auto), known, rules(), NOW).guard is Guard.mode

    def test_a_person_and_a_run_under_way_are_past_it(self):
        for fields in ({"by": "alice"}, {"ride": True}):
            assert judge(drain(mode=Mode.shadow, **fields), facts(), rules(), NOW).outcome is Outcome.act

    def test_any_other_guard_is_named_first(self):
        known = facts([node(1, state=("IDLE", "DRAIN"), reason="PSU", reason_user="alice"), *REST])
        assert judge(drain(mode=Mode.off), known, rules(), NOW).guard is Guard.ownership


class TestIrreversible:
    def judged(self, verb, known, **fields):
        return answer(Guard.approval, propose(verb, job="4711", **fields), known).kind

    @pytest.mark.parametrize("verb", [Verb.power_cycle, Verb.down, Verb.cancel])
    def test_needs_two_people_on_a_node_in_use(self, verb):
        known = facts(jobs=[job()])
        assert self.judged(verb, known, mode=Mode.auto, ride=True, unusable=True) == "hold"
        assert self.judged(verb, known, by="alice") == "hold"
        assert self.judged(verb, known, by="alice", approved_by="alice") == "hold"
        assert self.judged(verb, known, by="alice", approved_by="bob") == "allow"

    def test_one_person_approves_what_healer_asks(self):
        assert self.judged(Verb.power_cycle, facts(), approved_by="bob") == "allow"

    def test_one_person_is_enough_on_a_drained_and_empty_node(self):
        assert self.judged(Verb.power_cycle, facts([DRAINED, *REST]), by="alice") == "allow"
        assert self.judged(Verb.power_cycle, facts([DRAINED, *REST])) == "hold"
        busy = facts([DRAINED, *REST], jobs=[job(nodes=(name(1),))])
        assert self.judged(Verb.power_cycle, busy, by="alice") == "hold"


def test_a_job_that_ended_and_was_forgotten_before_its_requeue_holds_no_run_up():
    site = Site(8, completing_s=0, min_job_age_s=0)
    jobs_on = site.slurm.jobs_on

    def forgotten(on: str):
        found = jobs_on(on)
        for one in found:
            site.slurm.complete(one.id)
        site.clock.advance(1)
        site.look()
        return found

    site.scheduler = SimpleNamespace(
        node=site.slurm.node,
        drain=site.slurm.drain,
        job=site.slurm.job,
        jobs_on=forgotten,
        annotate=site.slurm.annotate,
    )
    equip(site.driver, scheduler=site.scheduler)
    gone = site.slurm.add_job(nodes=1, required=[name(1)])
    site.run_for(20, *site.say(1, LOST))
    (run,) = site.runs
    assert run.state is RunState.waiting
    said = [(one.event, one.text) for one in site.log(run.id, f"requeue:{gone}")]
    assert [event for event, _ in said] == [StepEvent.held, StepEvent.skipped], said
    assert site.log(run.id, "ticket")[-1].event is StepEvent.done
