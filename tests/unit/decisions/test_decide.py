"""From an incident to a decision and its severity."""

import msgspec
import pytest

from healer.decisions import decide, judge, severity_of
from healer.model import (
    Component,
    Decision,
    FaultClass,
    Guard,
    GuardSettings,
    IncidentState,
    Maintenance,
    Mode,
    Outcome,
    Playbook,
    Remedy,
    RemedyUse,
    Run,
    RunState,
    Severity,
    Step,
    Verb,
)
from tests.support.gate import (
    CLUSTER,
    GPU_LOST,
    LOST,
    NOW,
    TOLD,
    ago,
    facts,
    incident,
    job,
    name,
    node,
    rules,
    slot,
)

OURS = "healer:gpu-lost inc:00000001 GPU 3 fell off the bus"


def decided(known=None, site=None, about=None, rule=GPU_LOST, active=None) -> Decision | None:
    return decide(about or incident(), rule, known or facts(), site or rules(), NOW, active)


def made(known=None, site=None, about=None, rule=GPU_LOST, active=None) -> Decision:
    decision = decided(known, site, about, rule, active)
    assert decision is not None
    return decision


def fleet(first):
    return [first, *(node(n) for n in range(2, 33))]


def run(state: RunState, **fields) -> Run:
    given = {"id": "r1", "cluster": CLUSTER, "playbook": "gpu-fatal", "state": state, "by": "healer"}
    return Run(**(given | {"reason": "x", "created_at": NOW, "node": name(1)} | fields))


class TestNothingToDecide:
    def test_while_it_settles(self):
        assert decided(about=incident(settle_until=NOW)) is not None
        assert decided(about=incident(settle_until=ago(seconds=-1))) is None

    def test_when_it_is_resolved(self):
        assert decided(about=incident(state=IncidentState.resolved)) is None

    @pytest.mark.parametrize("state", [RunState.running, RunState.waiting, RunState.stuck])
    def test_while_a_run_is_under_way(self, state):
        assert decided(active=run(state)) is None


class TestNothingToDo:
    def test_no_playbook(self):
        decision = made(rule=TOLD)
        assert (decision.outcome, decision.playbook) == (Outcome.nothing, None)
        assert "told" in decision.why

    @pytest.mark.parametrize(
        ("mode", "lasts_s", "outcome"),
        [
            (Mode.auto, 181, Outcome.act),
            (Mode.auto, 100, Outcome.nothing),
            (Mode.approve, 181, Outcome.nothing),
            (Mode.shadow, 181, Outcome.nothing),
        ],
    )
    def test_without_a_playbook_a_ticket_is_opened_once_the_fault_lasts(self, mode, lasts_s, outcome):
        about = incident(remedy=(Remedy.ticket,), opened=ago(seconds=lasts_s))
        decision = made(rule=msgspec.structs.replace(TOLD, mode=mode), about=about)
        assert (decision.outcome, decision.playbook) == (outcome, None)

    def test_a_code_that_no_catalogue_explains_takes_no_node_whatever_rule_has_it(self):
        about = incident(fault="xid-333", fault_class=FaultClass.unknown)
        decision = made(about=about)
        assert (decision.outcome, decision.why) == (
            Outcome.nothing,
            "The meaning of xid-333 is unknown: healer takes nothing out of service for it "
            "unless a rule names it.",
        )
        approved = made(about=about, active=run(RunState.proposed, approved_by="ann"))
        assert approved.outcome is not Outcome.nothing

    def test_a_rule_that_names_a_code_takes_a_node_for_it_though_no_catalogue_explains_it(self):
        about = incident(fault="xid-333", fault_class=FaultClass.unknown)
        named, glob = (msgspec.structs.replace(GPU_LOST, faults=(text,)) for text in ("xid-333", "xid-*"))
        outcomes = [made(about=about, rule=rule, site=rules(rules=(rule,))).outcome for rule in (named, glob)]
        assert outcomes == [Outcome.act, Outcome.nothing]

    @pytest.mark.parametrize("mode", [Mode.suggest, Mode.approve])
    def test_a_rule_in_which_a_person_decides_still_asks_about_an_unexplained_code(self, mode):
        about = incident(fault="xid-333", fault_class=FaultClass.unknown)
        rule = msgspec.structs.replace(GPU_LOST, mode=mode)
        asked = made(about=about, rule=rule, site=rules(rules=(rule,)))
        assert (asked.outcome, asked.playbook) == (Outcome.held, rule.playbook)
        waiting = made(
            about=about, rule=rule, site=rules(rules=(rule,)), active=run(RunState.waiting_approval)
        )
        assert waiting.outcome is Outcome.held

    def test_no_node(self):
        about = incident(root=Component(cluster=CLUSTER, switch="leaf01"))
        assert made(about=about).outcome is Outcome.nothing

    def test_our_drain_is_kept(self):
        known = facts(fleet(node(1, state=("IDLE", "DRAIN"), reason=OURS)))
        decision = made(known)
        assert decision.outcome is Outcome.nothing and "inc:00000001" in decision.why

    def test_our_drain_is_under_way(self):
        assert made(facts(slots=(slot(1, incident="another"),))).outcome is Outcome.nothing


class TestProposal:
    def test_acts_with_every_answer_kept(self):
        dead = msgspec.structs.replace(LOST, unusable=True)
        decision = made(about=incident(unusable=True, evidence=(dead,)))
        assert (decision.outcome, decision.guard, decision.playbook) == (Outcome.act, None, "gpu-fatal")
        assert {one.guard for one in decision.answers} >= {Guard.floor, Guard.slots, Guard.approval}
        proposal = decision.proposal
        assert proposal is not None
        assert (proposal.verb, proposal.node, proposal.rule) == (Verb.drain, name(1), "gpu-lost")
        assert proposal.unusable and proposal.fatal
        assert decision.facts["gpu_nodes"] == 32

    def test_a_persons_drain_is_refused_with_the_owner(self):
        known = facts(fleet(node(1, state=("IDLE", "DRAIN"), reason="PSU swap", reason_user="alice")))
        decision = made(known)
        assert (decision.outcome, decision.guard) == (Outcome.refused, Guard.ownership)
        assert "alice" in decision.why

    def test_a_person_who_replaced_our_reason_owns_it_now(self):
        shown = node(1, state=("IDLE", "DRAIN"), reason="mine now", reason_user="alice")
        assert made(facts(fleet(shown), slots=(slot(1),))).guard is Guard.ownership

    def test_mode_of_the_site_of_the_rule_and_set_while_running(self):
        assert made(site=rules(default_mode=Mode.shadow)).guard is Guard.mode
        own = msgspec.structs.replace(GPU_LOST, mode=Mode.approve)
        assert made(rule=own).guard is Guard.approval
        assert made(facts(modes={"gpu-lost": Mode.auto}), rule=own).outcome is Outcome.act

    def test_an_approved_run_goes_on(self):
        own = msgspec.structs.replace(GPU_LOST, mode=Mode.approve)
        waiting = run(RunState.waiting_approval)
        assert made(rule=own, active=waiting).guard is Guard.approval
        approved = msgspec.structs.replace(waiting, approved_by="alice")
        decision = made(rule=own, active=approved)
        assert (decision.outcome, decision.run) == (Outcome.act, "r1")

    def test_a_playbook_for_jobs_asks_about_the_job(self):
        steps = (Step(id="requeue", do=Verb.requeue),)
        site = rules(playbooks={"gpu-fatal": Playbook(name="x", title="x", target="job", steps=steps)})
        of_job = incident(root=Component(cluster=CLUSTER, job="4711"), jobs_hit=("4711",))
        decision = made(facts(jobs=[job(restarts=2)]), site, of_job)
        assert decision.proposal is not None
        asked = decision.proposal
        assert (asked.verb, asked.job, asked.restarts, asked.begins) == (Verb.requeue, "4711", 2, False)
        assert made(site=site).outcome is Outcome.nothing
        unseen = made(facts(), site, of_job)
        assert (unseen.outcome, unseen.why) == (
            Outcome.nothing,
            "The Slurm snapshot does not include job 4711.",
        )

    def test_a_playbook_for_jobs_that_looks_first_begins_without_their_consent(self):
        """The restart itself asks whole."""
        steps = (Step(id="proof", check="hung"), Step(id="requeue", do=Verb.requeue))
        site = rules(playbooks={"gpu-fatal": Playbook(name="x", title="x", target="job", steps=steps)})
        of_job = incident(
            root=Component(cluster=CLUSTER, job="4711"), fault_class=FaultClass.informational, evidence=()
        )
        decision = made(facts(jobs=[job()]), site, of_job)
        assert decision.outcome is Outcome.act and decision.proposal is not None
        assert decision.proposal.begins
        later = msgspec.structs.replace(decision.proposal, begins=False)
        assert judge(later, facts(jobs=[job()]), site, NOW).guard is Guard.consent

    def test_the_first_removing_step_is_asked_about(self):
        steps = (Step(id="t", do=Verb.ticket), Step(id="w", wait="idle"), Step(id="d", do=Verb.drain))
        site = rules(playbooks={"gpu-fatal": Playbook(name="x", title="x", target="node", steps=steps)})
        decision = made(site=site)
        assert decision.proposal is not None and decision.proposal.verb is Verb.drain


class TestLadder:
    def remedy(self, *tried: Remedy, hours: float = 2) -> Remedy:
        uses = tuple(RemedyUse(node=name(1), remedy=one, rule="x", at=ago(hours=hours)) for one in tried)
        decision = made(facts(remedies=uses))
        assert decision.proposal is not None and decision.outcome is Outcome.act
        return decision.proposal.remedy

    def test_starts_at_the_rules_own(self):
        assert self.remedy() is Remedy.drain_then_reset

    def test_goes_up_when_it_was_tried_of_late(self):
        assert self.remedy(Remedy.drain_then_reset) is Remedy.reboot_node
        assert self.remedy(Remedy.drain_then_reset, Remedy.reboot_node) is Remedy.power_cycle
        assert self.remedy(Remedy.drain_then_reset, hours=7) is Remedy.drain_then_reset

    def test_ends_at_the_top_with_a_hold(self):
        tried = [Remedy.drain_then_reset, Remedy.reboot_node, Remedy.power_cycle, Remedy.replace]
        uses = tuple(RemedyUse(node=name(1), remedy=one, rule="x", at=ago(hours=1)) for one in tried)
        assert made(facts(remedies=uses)).guard is Guard.repeat


class TestSeverity:
    def of(self, known=None, site=None, **fields) -> Severity:
        about, known = incident(**fields), known or facts()
        return severity_of(about, made(known, site, about), known)

    def test_acted_on_it_is_the_rules_own_p1_at_most(self):
        assert self.of() is Severity.P1
        assert self.of(severity=Severity.P0) is Severity.P1
        assert self.of(severity=Severity.P2) is Severity.P2

    @pytest.mark.parametrize("mode", [Mode.off, Mode.shadow, Mode.suggest, Mode.approve])
    def test_dead_gpu_in_service_without_a_drain(self, mode):
        assert self.of(site=rules(default_mode=mode)) is Severity.P0

    def test_held_by_a_cap(self):
        assert self.of(facts(slots=(slot(9),))) is Severity.P0

    def test_well_again_while_it_was_held(self):
        held = made(facts(slots=(slot(9),)), None, incident())
        assert severity_of(incident(), held, facts()) is Severity.P0
        assert severity_of(incident(clear_since=ago(minutes=1)), held, facts()) is Severity.P1
        at_work = incident(clear_since=ago(minutes=1), state=IncidentState.mitigating)
        assert severity_of(at_work, held, facts()) is Severity.P0

    def test_a_warning_is_never_p0(self):
        site = rules(default_mode=Mode.shadow)
        assert self.of(site=site, fault_class=FaultClass.degraded, severity=Severity.P2) is Severity.P2
        assert self.of(site=site, fault_class=FaultClass.degraded, unusable=True) is Severity.P0

    def test_a_node_that_a_person_holds_has_its_owner(self):
        shown = node(1, state=("IDLE", "DRAIN"), reason="PSU swap", reason_user="alice")
        assert self.of(facts(fleet(shown)), jobs_hit=("4711",)) is Severity.P1

    @pytest.mark.parametrize(("reason", "severity"), [("PSU swap", Severity.P1), (OURS, Severity.P0)])
    def test_so_has_one_that_a_person_took_over_from_a_run_that_got_stuck_by_it(self, reason, severity):
        shown = node(1, state=("IDLE", "DRAIN"), reason=reason, reason_user="alice")
        about, known = incident(jobs_hit=("4711",)), facts(fleet(shown))
        why = "Reset the GPU failed after 1 attempt"
        stuck = Decision(
            at=NOW, cluster=CLUSTER, incident=about.id, playbook=None, outcome=Outcome.held, why=why
        )
        assert severity_of(about, stuck, known) is severity

    @pytest.mark.parametrize(
        ("shown", "severity"),
        [
            ({"state": "RUNNING", "nodes": (name(1), name(2))}, Severity.P0),
            ({"state": "PENDING", "nodes": ()}, Severity.P0),
            ({"state": "FAILED", "nodes": (name(1),)}, Severity.P0),
            ({"state": "RUNNING", "nodes": (name(2), name(3))}, Severity.P1),
            ({"state": "FAILED", "nodes": (name(2),)}, Severity.P1),
            (None, Severity.P1),
        ],
    )
    def test_a_run_that_got_stuck_pages_for_its_jobs_until_they_work_elsewhere(self, shown, severity):
        jobs = [job(restarts=1, **shown)] if shown else []
        known = facts(fleet(node(1, state=("IDLE", "DRAIN"), reason=OURS)), jobs=jobs)
        about = incident(jobs_hit=("4711",), jobs_hit_final=True)
        stuck = Decision(
            at=NOW, cluster=CLUSTER, incident=about.id, playbook=None, outcome=Outcome.held, why="stuck"
        )
        assert severity_of(about, stuck, known) is severity

    def test_planned_work_is_no_fault(self):
        window = Maintenance(nodes=("gpu0001",), why="x")
        assert self.of(site=rules(GuardSettings(maintenance=(window,)))) is Severity.P1

    def test_out_of_service_but_jobs_were_hit(self):
        shown = node(1, state=("DOWN", "NOT_RESPONDING"), reason="Not responding")
        site = rules(default_mode=Mode.shadow)
        assert self.of(facts(fleet(shown)), site) is Severity.P1
        assert self.of(facts(fleet(shown)), site, jobs_hit=("4711",)) is Severity.P0

    def test_without_a_decision(self):
        assert severity_of(incident(severity=Severity.P3), None, None) is Severity.P3
