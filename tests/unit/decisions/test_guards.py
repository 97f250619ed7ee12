"""Guards over people's word and Slurm's picture."""

import msgspec
import pytest

from healer.decisions import judge
from healer.model import (
    AnswerKind,
    Guard,
    GuardSettings,
    Maintenance,
    Outcome,
    Pause,
    Place,
    Reservation,
    Topology,
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
    slot,
    snapshot,
)

OURS = "healer:gpu-lost inc:0000abcd GPU 3 fell off the bus"


def out(reason: str, user: str = "root", *flags: str):
    return [node(1, state=("IDLE", *(flags or ("DRAIN",))), reason=reason, reason_user=user), *others()]


def others(count: int = 32):
    return [node(number) for number in range(2, count + 1)]


class TestPause:
    def pause(self, scope, name="", **fields):
        given = {
            "id": "p1",
            "scope": scope,
            "name": name,
            "by": "alice",
            "reason": "roll-out",
            "since": ago(hours=1),
        }
        return Pause(**(given | fields))

    @pytest.mark.parametrize(
        ("scope", "name"),
        [
            ("all", ""),
            ("cluster", CLUSTER),
            ("partition", "train"),
            ("node", "gpu0001"),
            ("rule", "gpu-lost"),
            ("playbook", "gpu-fatal"),
            ("something-new", "x"),
        ],
    )
    def test_every_scope_holds_and_says_who_and_why(self, scope, name):
        said = answer(Guard.pause, drain(), facts(pauses=(self.pause(scope, name),)))
        assert said.kind is AnswerKind.hold
        assert "alice" in said.why and "roll-out" in said.why

    @pytest.mark.parametrize(("scope", "name"), [("partition", "cpu"), ("node", "cpu0001")])
    def test_a_pause_of_one_component_holds_the_restart_of_the_whole_job(self, scope, name):
        parts = [
            job("10", het_job="10", het_offset=0),
            job("11", het_job="10", het_offset=1, nodes=("cpu0001",), partition="cpu"),
        ]
        known = facts(jobs=parts, pauses=(self.pause(scope, name),))
        assert answer(Guard.pause, requeue("10", node=None), known).kind is AnswerKind.hold

    def test_a_job_that_waits_in_two_partitions_is_paused_with_either(self):
        waits = job(state="PENDING", nodes=(), partition="train,debug")
        for partition in ("train", "debug"):
            known = facts(jobs=[waits], pauses=(self.pause("partition", partition),))
            asked = propose(Verb.release, job="4711", node=None)
            assert answer(Guard.pause, asked, known).kind is AnswerKind.hold

    @pytest.mark.parametrize(
        ("scope", "name"),
        [
            ("cluster", "pod2"),
            ("partition", "debug"),
            ("node", "gpu0002"),
            ("rule", "gpu-fatal"),
            ("playbook", "drain"),
        ],
    )
    def test_another_name_concerns_others(self, scope, name):
        assert answer(Guard.pause, drain(), facts(pauses=(self.pause(scope, name),))).kind is AnswerKind.allow

    def test_of_another_cluster(self):
        known = facts(pauses=(self.pause("all", cluster="pod2"),))
        assert answer(Guard.pause, drain(), known).kind is AnswerKind.allow

    def test_frees_when_the_last_one_ends(self):
        two = (self.pause("all", until=later(hours=1)), self.pause("node", "gpu0001", until=later(hours=3)))
        assert answer(Guard.pause, drain(), facts(pauses=two)).frees_at == later(hours=3)
        endless = (*two, self.pause("rule", "gpu-lost"))
        assert answer(Guard.pause, drain(), facts(pauses=endless)).frees_at is None

    def test_is_over_at_its_end(self):
        known = facts(pauses=(self.pause("all", until=NOW),))
        assert answer(Guard.pause, drain(), known).kind is AnswerKind.allow

    def test_holds_a_person_and_a_return_too(self):
        known = facts(pauses=(self.pause("all"),))
        assert judge(drain(by="bob"), known, rules(), NOW).guard is Guard.pause
        assert judge(propose(Verb.resume), known, rules(), NOW).outcome is not Outcome.act

    def test_a_requeue_is_paused_by_its_partition_or_its_node(self):
        known = facts(jobs=[job(partition="debug")], pauses=(self.pause("partition", "debug"),))
        assert answer(Guard.pause, requeue(node=None), known).kind is AnswerKind.hold
        known = facts(jobs=[job(nodes=(name(7),))], pauses=(self.pause("node", name(7)),))
        assert answer(Guard.pause, requeue(node=None), known).kind is AnswerKind.hold

    def test_people_are_notified_regardless(self):
        known = facts(pauses=(self.pause("all"),))
        assert judge(propose(Verb.notify), known, rules(), NOW).outcome is Outcome.act


class TestStale:
    def test_no_picture_holds_everything_that_needs_one_and_raises_nothing(self):
        result = judge(drain(unusable=True), facts(snapshot=None), rules(), NOW)
        assert (result.outcome, result.guard) == (Outcome.held, Guard.stale)

    @pytest.mark.parametrize(("age_s", "kind"), [(0, "allow"), (30, "allow"), (30.5, "hold"), (3600, "hold")])
    def test_bound_is_30_s(self, age_s, kind):
        known = facts(snapshot=snapshot(taken_at=ago(seconds=age_s)))
        said = answer(Guard.stale, drain(), known)
        assert (said.kind, said.limit, said.used) == (kind, 30, age_s)

    def test_a_picture_from_the_future_is_not_trusted(self):
        known = facts(snapshot=snapshot(taken_at=later(minutes=5)))
        assert "clocks" in answer(Guard.stale, drain(), known).why

    def test_binds_a_person(self):
        known = facts(snapshot=snapshot(taken_at=ago(minutes=5)))
        assert judge(drain(by="alice"), known, rules(), NOW).guard is Guard.stale

    def test_a_cluster_may_have_its_own_bound(self):
        site = rules(cluster_guards={CLUSTER: GuardSettings(stale_s=300)})
        known = facts(snapshot=snapshot(taken_at=ago(minutes=4)))
        assert answer(Guard.stale, drain(), known, site).kind is AnswerKind.allow


class TestOwnership:
    def test_a_persons_drain_is_refused_and_its_owner_named(self):
        result = judge(drain(unusable=True), facts(out("PSU swap", "alice")), rules(), NOW)
        assert (result.outcome, result.guard) == (Outcome.refused, Guard.ownership)
        assert "alice" in result.why and "PSU swap" in result.why

    @pytest.mark.parametrize("proposal", [drain(), propose(Verb.resume)], ids=["drain", "resume"])
    def test_slurms_user_is_not_named_for_a_reason_to_which_slurm_appended(self, proposal):
        known = facts(out("kernel update : reboot issued", "slurm-user"))
        why = judge(proposal, known, rules(), NOW).why
        assert "kernel update" in why and "someone" in why and "slurm-user" not in why

    def test_another_persons_reason_is_not_replaced_for_a_person_either(self):
        assert (
            judge(drain(by="bob"), facts(out("PSU swap", "alice")), rules(), NOW).outcome is Outcome.refused
        )

    @pytest.mark.parametrize("flags", [("DRAIN",), ("DOWN",), ("FAIL",)])
    def test_drain_down_and_fail_are_somebodys(self, flags):
        state = flags if flags == ("DOWN",) else ("IDLE", *flags)
        fleet = [node(1, state=state, reason="bad disk", reason_user="alice"), *others()]
        assert answer(Guard.ownership, drain(), facts(fleet)).kind is AnswerKind.refuse

    def test_a_drain_without_reason_is_somebodys(self):
        assert answer(Guard.ownership, drain(), facts(out(""))).kind is AnswerKind.refuse

    def test_a_reason_that_only_mentions_us_is_a_persons(self):
        assert answer(Guard.ownership, drain(), facts(out("see healer: no"))).kind is AnswerKind.refuse

    def test_slurms_down_may_be_drained(self):
        for reason in ("Not responding", "Node unexpectedly rebooted", ""):
            fleet = [node(1, state=("DOWN", "NOT_RESPONDING"), reason=reason, reason_user="slurm"), *others()]
            assert answer(Guard.ownership, drain(), facts(fleet)).kind is AnswerKind.allow

    def test_slurms_own_drain_is_adopted_by_a_person_only(self):
        known = facts(out("Kill task failed (JobId=4711 StepId=0)"))
        assert answer(Guard.ownership, drain(), known).kind is AnswerKind.refuse
        assert answer(Guard.ownership, drain(by="alice"), known).kind is AnswerKind.allow

    def test_our_own_drain_again_is_allowed(self):
        assert answer(Guard.ownership, drain(), facts(out(OURS))).kind is AnswerKind.allow

    def test_an_old_reason_on_a_node_in_service_has_no_author(self):
        fleet = [node(1, reason="PSU swap", reason_user="alice"), *others()]
        assert answer(Guard.ownership, drain(), facts(fleet)).kind is AnswerKind.allow

    def test_a_veto_holds_us_for_its_time_and_not_a_person(self):
        veto = Veto(node=name(1), by="alice", at=ago(hours=1), until=later(hours=23))
        known = facts(vetoes=(veto,))
        said = answer(Guard.ownership, drain(unusable=True), known)
        assert (said.kind, said.frees_at) == (AnswerKind.hold, later(hours=23))
        assert "alice" in said.why
        assert answer(Guard.ownership, drain(by="bob"), known).kind is AnswerKind.allow
        assert answer(Guard.ownership, drain(2), known).kind is AnswerKind.allow
        assert answer(Guard.ownership, drain(), known, now=later(hours=23)).kind is AnswerKind.allow

    def test_an_unknown_node_is_held(self):
        said = answer(Guard.ownership, drain(99), facts())
        assert said.kind is AnswerKind.hold and "gpu0099" in said.why

    def test_only_ours_is_lifted(self):
        for reason, user in (("PSU swap", "alice"), ("Kill task failed", "root"), ("", "bob")):
            result = judge(propose(Verb.resume, by="carol"), facts(out(reason, user)), rules(), NOW)
            assert (result.outcome, result.guard) == (Outcome.refused, Guard.ownership)

    @pytest.mark.parametrize("reason", [OURS, f"{OURS} : reboot issued"])
    def test_ours_is_lifted_also_when_slurm_appended(self, reason):
        assert judge(propose(Verb.resume), facts(out(reason, "slurm")), rules(), NOW).outcome is Outcome.act

    def test_a_picture_older_than_our_drain_does_not_stop_its_return(self):
        assert judge(propose(Verb.resume), facts(slots=(slot(1),)), rules(), NOW).outcome is Outcome.act
        replaced = facts(out("PSU swap", "alice"), slots=(slot(1),))
        assert judge(propose(Verb.resume), replaced, rules(), NOW).outcome is Outcome.refused

    def test_a_node_in_service_cannot_be_returned(self):
        assert "nothing to return" in judge(propose(Verb.resume), facts(), rules(), NOW).why


class TestProtected:
    @pytest.mark.parametrize(
        "pattern", ["gpu0001", "gpu000?", "gpu*", "gpu[0001-0004,0020]", "gpu000[1-4]", "feature:fabric*"]
    )
    def test_names_globs_hostlists_and_features_apply_to_every_actor(self, pattern):
        fleet = [node(1, features=("fabric-manager",)), *others()]
        site = rules(GuardSettings(protected=("login*", pattern)))
        for proposal in (drain(), drain(by="alice"), drain(unusable=True), propose(Verb.reboot, by="alice")):
            result = judge(proposal, facts(fleet), site, NOW)
            assert (result.outcome, result.guard) == (Outcome.refused, Guard.protected)
            assert pattern in result.why

    @pytest.mark.parametrize("pattern", ["gpu1", "gpu[0002-0004]", "feature:gpu0001", "GPU0001"])
    def test_others_are_free(self, pattern):
        site = rules(GuardSettings(protected=(pattern,)))
        assert answer(Guard.protected, drain(), facts(), site).kind is AnswerKind.allow

    def test_list_of_a_partition(self):
        site = rules(partition_guards={"train": GuardSettings(protected=("gpu0001",))})
        assert answer(Guard.protected, drain(), facts(), site).kind is AnswerKind.refuse
        assert answer(Guard.protected, drain(2), facts(), site).kind is AnswerKind.allow


class TestMaintenance:
    def site(self, **fields):
        window = Maintenance(nodes=("gpu[0001-0008]",), why="change 4711", **fields)
        return rules(GuardSettings(maintenance=(window,)))

    def test_holds_until_its_end(self):
        site = self.site(since=ago(hours=1), until=later(hours=2))
        said = answer(Guard.maintenance, drain(unusable=True), facts(), site)
        assert (said.kind, said.frees_at) == (AnswerKind.hold, later(hours=2))
        assert "change 4711" in said.why
        assert answer(Guard.maintenance, drain(9), facts(), site).kind is AnswerKind.allow

    @pytest.mark.parametrize("window", [{"since": later(seconds=1)}, {"until": NOW}])
    def test_not_outside_of_its_time(self, window):
        assert answer(Guard.maintenance, drain(), facts(), self.site(**window)).kind is AnswerKind.allow

    def test_open_bounds(self):
        assert answer(Guard.maintenance, drain(), facts(), self.site()).kind is AnswerKind.hold

    @pytest.mark.parametrize("now", [later(minutes=10), ago(minutes=10)], ids=["ahead", "behind"])
    def test_a_wrong_clock_of_the_workers_ends_and_delays_no_work(self, now):
        site, known = self.site(since=ago(minutes=5), until=later(minutes=5)), facts(read_at=NOW)
        assert answer(Guard.maintenance, drain(), known, site, now=now).kind is AnswerKind.hold
        assert answer(Guard.maintenance, drain(9), known, site, now=now).kind is AnswerKind.allow

    def test_slurms_own_flag(self):
        fleet = [node(1, state=("IDLE", "MAINTENANCE")), *others()]
        assert answer(Guard.maintenance, drain(), facts(fleet)).kind is AnswerKind.hold

    @pytest.mark.parametrize("verb", [Verb.reset_gpu, Verb.restart_service, Verb.reboot, Verb.diagnose])
    def test_work_on_a_drained_node_that_is_switched_off_waits_for_its_power(self, verb):
        said = answer(Guard.maintenance, propose(verb), facts(out(OURS, "root", "DRAIN", "POWERED_DOWN")))
        assert said.kind is AnswerKind.hold
        assert "POWER_UP" in said.why

    def test_a_test_in_our_reservation_wakes_a_node_that_is_switched_off(self):
        drained = facts(out(OURS, "root", "DRAIN", "POWERED_DOWN"))
        assert answer(Guard.maintenance, propose(Verb.reserve), drained).kind is AnswerKind.allow
        kept = Reservation(name="healer_0000abcd", nodes=(name(1),), maintenance=True)
        resumed = [node(1, state=("IDLE", "MAINTENANCE", "POWERED_DOWN")), *others()]
        shown = msgspec.structs.replace(snapshot(resumed), reservations={kept.name: kept})
        known = facts(snapshot=shown)
        assert answer(Guard.maintenance, propose(Verb.diagnose), known).kind is AnswerKind.allow

    def test_a_node_that_sleeps_until_the_next_job_is_left_asleep(self):
        fleet = [node(1, state=("IDLE", "POWERED_DOWN")), *others()]
        assert answer(Guard.maintenance, drain(), facts(fleet)).kind is AnswerKind.hold

    def test_a_person_knows_of_it(self):
        assert answer(Guard.maintenance, drain(by="alice"), facts(), self.site()).kind is AnswerKind.allow


def test_place_comes_from_slurms_picture_first_then_from_the_topology_file():
    site = rules(topology=Topology(places={name(1): Place(rack="x1", switch="s1")}))
    fleet = [node(1, rack="", switch=""), node(2, rack="x1", switch="s9"), *others(32)[1:]]
    held = facts(fleet, slots=(slot(2),))
    assert answer(Guard.rack, drain(), held, site).kind is AnswerKind.hold
    assert answer(Guard.switch, drain(), held, site).used == 0


def test_place_of_another_clusters_node_of_that_name_is_no_place_of_ours():
    domain = Place(rack="x9", domain="d9")
    file = Topology(places={name(1): domain, name(2): domain, f"{CLUSTER}/{name(1)}": Place(rack="x1")})
    site = rules(topology=file)
    fleet = [node(1, rack="", switch=""), node(2, rack="x2", switch=""), *others(32)[1:]]
    held = facts(fleet, slots=(slot(2),))
    rack = answer(Guard.rack, drain(), held, site)
    assert (rack.kind, rack.used) == (AnswerKind.allow, 0)
