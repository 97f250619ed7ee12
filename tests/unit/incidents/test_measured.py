"""Incidents of what was measured: what joins what, what takes what in, and how they end."""

from datetime import timedelta

import msgspec

from healer.incidents.certainty import add_reports, senses_of, senses_text
from healer.model import (
    EVIDENCE_KEPT,
    BreakerState,
    CommandKind,
    Component,
    Detections,
    FaultClass,
    IncidentState,
    Mode,
    Place,
    RunState,
    Sense,
    Topology,
)
from tests.support.loop import CLUSTER, DEGRADED, LOST, beat, name, rules_in
from tests.support.slow import SlowSite, found, slow_rules

NODE = name(1)


def open_rules(site: SlowSite) -> list[str]:
    return sorted(one.rule for one in site.open_incidents)


# --- joining ---


def test_a_finding_about_a_node_that_is_known_to_be_bad_is_evidence() -> None:
    site = SlowSite()
    site.find("straggler", gpu=3)
    site.find("gpu-hot", gpu=3)
    assert open_rules(site) == ["straggler"]
    assert senses_of(site.incident, site.now) == (Sense.metrics, Sense.step_times)
    assert senses_text(senses_of(site.incident, site.now)) == "metrics and step times"


def test_a_rule_that_may_act_takes_in_one_that_never_does_with_its_evidence() -> None:
    site = SlowSite()
    site.find("gpu-clock-low", gpu=3)
    site.pass_time(60)
    site.find("straggler", gpu=3)
    assert open_rules(site) == ["straggler"]
    milder = next(one for one in site.incidents if one.rule == "gpu-clock-low")
    assert milder.merged_into == site.incident.id
    assert senses_of(site.incident, site.now) == (Sense.metrics, Sense.step_times)
    assert site.incident.evidence[0].sense is Sense.step_times, "its own opening evidence stays the first"
    assert site.incident.evidence_count == 2
    site.pass_time(1)
    assert site.run_of("slow-node").state == "running", "two senses agree"


def test_a_kernel_fault_that_may_wait_is_taken_in_as_another_sense() -> None:
    site = SlowSite()
    site.walk(*site.say(1, DEGRADED))
    site.find("straggler", gpu=3)
    assert open_rules(site) == ["straggler"]
    assert Sense.kernel in senses_of(site.incident, site.now)


def test_check_from_last_week_is_no_second_sense_today() -> None:
    site = SlowSite()
    site.find("straggler", gpu=3)
    finding = found("slower-than-fleet", site.now)
    for days, senses in ((7, (Sense.step_times,)), (0, (Sense.step_times, Sense.hook))):
        measured = site.now - timedelta(days=days)
        checks = tuple(
            msgspec.structs.replace(one, sense=Sense.hook, at=measured) for one in finding.evidence
        )
        heard = add_reports(site.incident, msgspec.structs.replace(finding, evidence=checks))
        assert senses_of(msgspec.structs.replace(site.incident, heard=heard), site.now) == senses


def test_incident_with_a_playbook_takes_the_other_in_also_in_shadow() -> None:
    site = SlowSite(rules=slow_rules(Mode.shadow, straggler=Mode.shadow))
    site.find("gpu-clock-low", gpu=3)
    site.find("straggler", gpu=3)
    assert open_rules(site) == ["straggler"]
    site.pass_time(1)
    assert site.run_of("slow-node").shadow


def test_two_rules_that_never_act_are_one_incident() -> None:
    site = SlowSite()
    site.find("gpu-clock-low", gpu=3)
    site.find("gpu-hot", gpu=3)
    assert open_rules(site) == ["gpu-clock-low"]


def test_a_mode_that_was_set_while_running_counts() -> None:
    site = SlowSite()
    site.ledger.tables.modes["fabric-manager-down"] = Mode.off
    site.find("fabric-manager-down")
    site.find("straggler", gpu=3)
    assert open_rules(site) == ["straggler"]


def test_a_run_that_waited_for_leave_goes_with_the_incident_that_is_taken_in() -> None:
    site = SlowSite(rules=slow_rules(fabric_manager_down=Mode.approve))
    site.find("fabric-manager-down")
    site.pass_time(1)
    asked = site.run_of("restart-fabric-manager").id
    assert site.ledger.tables.runs[asked].state == "waiting_approval"
    site.pause()  # so that nothing is decided before the next finding
    site.ledger.tables.modes["fabric-manager-down"] = Mode.off
    site.find("straggler", gpu=3)
    assert open_rules(site) == ["straggler"]
    assert site.ledger.tables.runs[asked].state == "rejected"


def test_an_incident_that_is_worked_on_is_not_taken_in() -> None:
    site = SlowSite()
    site.agreed(required=[NODE])
    site.find("fabric-manager-down")
    site.pass_time(5)
    site.ledger.tables.modes["fabric-manager-down"] = Mode.off
    site.find("straggler", gpu=3)
    assert open_rules(site) == ["fabric-manager-down"]
    assert site.incident.state is IncidentState.mitigating


def test_worse_news_takes_the_milder_in_but_a_dead_gpu_gets_no_wider_by_it() -> None:
    site = SlowSite()
    site.find("gpu-clock-low", node=1, gpu=5)
    site.walk(*site.say(1, LOST))
    site.find("gpu-hot", node=1)  # of the node as a whole
    assert open_rules(site) == ["gpu-lost"]
    assert site.incident.jobs_hit == ()


def test_a_fault_of_one_gpu_hits_only_its_job_also_when_the_node_is_hot() -> None:
    site = SlowSite()
    site.walk()
    mine = site.slurm.add_job(required=[NODE], gpus=4)
    other = site.slurm.add_job(required=[NODE], gpus=4)
    site.look()
    site.picture.node(NODE).gpus.inventory([{"index": 3, "pci": "0000:9b:00", "uuid": "GPU-1"}])
    site.walk(*site.say(1, LOST))
    site.find("gpu-hot", node=1)
    site.pass_time(60)
    first, second = site.slurm.job(mine), site.slurm.job(other)
    assert first is not None and second is not None
    assert (first.restarts, second.restarts) == (1, 0)


# --- unusual nodes and slow jobs ---


def test_an_unusual_node_alone_is_an_incident_of_its_own_and_nothing_is_done() -> None:
    site = SlowSite()
    site.find("unusual-node")
    site.pass_time(60)
    assert open_rules(site) == ["unusual-node"]
    assert site.runs == []


def test_an_unusual_node_that_is_known_to_be_bad_is_evidence() -> None:
    site = SlowSite()
    site.find("straggler", gpu=3)
    site.find("unusual-node")
    assert open_rules(site) == ["straggler"]
    assert senses_of(site.incident, site.now) == (Sense.step_times, Sense.forest)


def test_an_unusual_node_that_turns_out_slow_is_taken_in() -> None:
    site = SlowSite()
    site.find("unusual-node")
    site.find("straggler", gpu=3)
    assert open_rules(site) == ["straggler"]
    assert senses_of(site.incident, site.now) == (Sense.step_times, Sense.forest)


def test_slow_job_is_explained_by_its_slow_node_in_any_order() -> None:
    for order in (("job-slow", "straggler"), ("straggler", "job-slow")):
        site = SlowSite()
        job = site.agreed(required=[NODE])
        for fault in order:
            site.find(fault, node=None if fault == "job-slow" else 1, job=job)
        assert open_rules(site) == ["straggler"], order
        assert senses_of(site.incident, site.now) == (Sense.step_times,), "the job's own word is of no node"


def test_a_slow_job_whose_search_is_proposed_is_explained_by_its_slow_node() -> None:
    site = SlowSite(rules=rules_in())
    job = site.agreed(nodes=4, required=[NODE])
    site.find("job-slow", node=None, job=job)
    site.pass_time(2)
    (search,) = site.runs
    assert (search.playbook, search.state) == ("bisect", RunState.proposed)
    site.find("straggler", job=job)
    site.pass_time(2)
    assert open_rules(site) == ["straggler"]
    assert next(run for run in site.runs if run.id == search.id).state is RunState.rejected


def test_step_times_of_one_job_alone_open_neither_breaker_nor_wave() -> None:
    site = SlowSite(rules=rules_in())
    job = site.agreed(nodes=8)
    for node in range(1, 9):
        site.find("straggler", node=node, gpu=0, job=job)
    site.pass_time(10)
    assert open_rules(site) == ["straggler"] * 8
    site.walk(*site.say(20, LOST))
    site.pass_time(10)
    assert site.node(20).drain, "nothing that a job reports holds what a kernel reports"


def test_second_senses_that_come_together_are_a_storm_however_late_they_come() -> None:
    site = SlowSite(rules=rules_in())
    for node in range(1, 9):
        site.find("straggler", node=node, gpu=0)
    site.pass_time(360)
    assert site.ledger.tables.breaker.state is BreakerState.closed
    for node in range(1, 9):
        site.find("straggler", "unusual-node", node=node, gpu=0)
    site.pass_time(5)
    assert site.ledger.tables.breaker.state is BreakerState.open
    assert "wave" in open_rules(site)


def test_a_slow_job_keeps_no_other_incident_from_opening_and_none_from_acting() -> None:
    site = SlowSite()
    job = site.agreed(required=[NODE])
    site.find("job-slow", node=None, job=job)
    site.find("straggler", "gpu-hot", node=2, gpu=3)
    site.pass_time(5)
    assert open_rules(site) == ["job-slow", "straggler"]
    assert site.node(2).drain


# --- what is kept of a long story ---


def test_the_one_word_of_a_second_sense_is_not_forgotten() -> None:
    site = SlowSite()
    for index in range(200):
        site.clock.advance(1)
        site.find("gpu-hot" if index == 60 else "straggler", gpu=3)
    assert len(site.incident.evidence) <= EVIDENCE_KEPT + len(Sense)
    assert site.incident.evidence_count == 200
    assert senses_of(site.incident, site.now) == (Sense.metrics, Sense.step_times)


# --- the end ---


def test_it_ends_when_its_cause_is_known_to_be_gone_for_five_minutes() -> None:
    site = SlowSite()
    site.find("straggler", gpu=3)
    finding = found("straggler", site.now, gpu=3)
    for _ in range(30):
        site.clock.advance(3600)
        site.tick((msgspec.structs.replace(finding, arrived_at=site.now),))
    assert site.incident.evidence_count == 1
    assert site.open_incidents, "its sense still speaks: a day without new evidence does not end it"
    site.clear("straggler", gpu=3)
    site.pass_time(290)
    assert site.incident.clear_since is not None
    site.pass_time(20)
    assert site.open_incidents == []


def reset_planned() -> SlowSite:
    """A row remap waits for a reset of its GPU when the node is idle; a job keeps it busy."""
    site = SlowSite()
    site.agreed(required=[NODE])
    site.walk(*site.say(1, DEGRADED))
    site.pass_time(240, step_s=10)
    assert site.run_of("repair-when-idle").state is RunState.running
    return site


def test_a_reset_that_was_planned_is_planned_again_once_the_slowness_that_took_it_in_is_over() -> None:
    site = reset_planned()
    site.find("straggler", gpu=3)
    assert open_rules(site) == ["straggler"]
    site.clear("straggler", gpu=3)
    site.pass_time(400, step_s=10)
    assert open_rules(site) == ["gpu-degraded"]
    assert site.run_of("repair-when-idle").state is RunState.running


def known_gpu() -> SlowSite:
    """The node has said which of its GPUs is at the address of the lines; a job keeps it busy."""
    site = SlowSite()
    site.agreed(required=[NODE])
    gpus = [{"index": 3, "pci": "0000:9b:00", "uuid": "GPU-3"}]
    site.walk(beat(NODE, site.now, boot_id="b1", gpus=gpus))
    return site


def test_a_reset_that_a_line_of_the_slow_gpu_asked_for_is_planned_once_the_slowness_is_over() -> None:
    """The line joins the incident of the slowness, and comes once."""
    site = known_gpu()
    site.find("straggler", gpu=3)
    for _ in range(2):
        site.pass_time(60)
        site.walk(*site.say(1, DEGRADED, boot_id="b1"))
    assert open_rules(site) == ["straggler"] and len(site.incidents) == 2
    site.clear("straggler", gpu=3)
    site.pass_time(400, step_s=10)
    assert open_rules(site) == ["gpu-degraded"]
    assert site.run_of("repair-when-idle").state is RunState.running


def test_a_measured_end_of_what_the_line_asked_for_ends_it() -> None:
    site = known_gpu()
    site.find("gpu-remap-pending", gpu=3)
    site.walk(*site.say(1, DEGRADED, boot_id="b1"))
    site.clear("gpu-remap-pending", gpu=3)
    site.pass_time(400, step_s=10)
    assert [one.rule for one in site.incidents] == ["gpu-remap-pending"]
    assert site.open_incidents == []


def test_a_plan_that_ended_with_a_merge_begins_again_when_a_person_takes_its_incident_out() -> None:
    site = reset_planned()
    site.ledger.tables.modes["straggler"] = Mode.approve
    site.find("straggler", gpu=3)
    part = next(one for one in site.incidents if one.rule == "gpu-degraded")
    site.send_command(CommandKind.split, incident=site.incident.id, incidents=[part.id])
    site.pass_time(30, step_s=10)
    assert open_rules(site) == ["gpu-degraded", "straggler"]
    assert site.run_of("repair-when-idle").state is RunState.running


def test_what_was_measured_of_one_gpu_ends_no_reset_that_another_gpu_waits_for() -> None:
    site = SlowSite()
    site.agreed(required=[NODE])
    site.find("gpu-remap-pending", gpu=5)
    site.pass_time(240, step_s=10)
    site.walk(*site.say(1, DEGRADED))
    site.clear("gpu-remap-pending", gpu=5)
    site.pass_time(400, step_s=10)
    assert open_rules(site) == ["gpu-remap-pending"]
    assert site.run_of("repair-when-idle").state is RunState.running


def test_a_tick_that_came_long_ago_ends_nothing() -> None:
    site = SlowSite()
    site.find("straggler", gpu=3)
    site.clear("straggler", gpu=3)
    site.clock.advance(3600)
    site.walk()
    assert site.open_incidents


def test_after_a_restart_the_first_walk_ends_nothing_and_knows_what_was_known() -> None:
    site = SlowSite()
    site.find("unusual-node")
    site.clear("unusual-node")
    since = site.incident.clear_since
    site.clock.advance(1200)
    site.picture.sensed, site.picture.watched = None, frozenset()
    site.walk()
    assert site.incident.clear_since == since
    assert (site.incident.fault, site.incident.root) in site.picture.watched


def test_recurrence_opens_a_new_incident() -> None:
    site = SlowSite()
    site.find("gpu-hot", gpu=3)
    site.clear("gpu-hot", gpu=3)
    site.pass_time(310, step_s=5)
    site.clears = {}
    site.find("gpu-hot", gpu=3)
    assert len(site.incidents) == 2 and len(site.open_incidents) == 1


def test_a_clear_word_about_another_part_says_nothing() -> None:
    site = SlowSite()
    site.find("straggler", gpu=3)
    elsewhere = Component(cluster=CLUSTER, node=NODE, gpu=4)
    site.walk(
        sensed=Detections(at=site.now, clear_since={("straggler", elsewhere): site.now - timedelta(hours=1)})
    )
    assert site.incident.clear_since is None


def test_a_finding_that_names_no_node_is_no_evidence_of_one() -> None:
    site = SlowSite()
    site.find("straggler", gpu=3)
    finding = found("straggler", site.now + timedelta(seconds=1), node=None, job="7")
    site.tick((msgspec.structs.replace(finding, fault_class=FaultClass.degraded),))
    assert len(site.open_incidents) == 2


# --- places ---


def hot_rack(*nodes: int) -> SlowSite:
    """Nodes 1 to 4 stand in one rack; a GPU of each of `nodes` was measured as too hot."""
    racks = {name(number): Place(rack="r1") for number in range(1, 5)}
    site = SlowSite(rules=msgspec.structs.replace(slow_rules(), topology=Topology(places=racks)))
    for number in nodes:
        site.find("gpu-hot", node=number, gpu=3)
    return site


def test_a_place_is_over_when_all_that_was_measured_in_it_is_gone_for_five_minutes() -> None:
    site = hot_rack(1, 2, 3)
    assert open_rules(site) == ["rack-cooling"]
    site.find("gpu-hot", node=4, gpu=0)  # it is of the place: no incident of its own
    for number in (1, 2, 3):
        site.clear("gpu-hot", node=number, gpu=3)
    site.pass_time(900, step_s=5)
    assert open_rules(site) == ["rack-cooling"], "one GPU is still hot, as far as is known"
    site.clear("gpu-hot", node=4, gpu=0)
    site.pass_time(290, step_s=5)
    assert site.incident.clear_since is not None
    site.pass_time(20, step_s=5)
    assert site.open_incidents == []


def test_fault_also_reported_by_the_kernel_is_not_cleared_by_measurements() -> None:
    site = hot_rack(1, 2, 3)
    site.rules = msgspec.structs.replace(
        site.rules,
        sharings=tuple(
            msgspec.structs.replace(one, faults=(*one.faults, "xid-63"))
            if one.name == "rack-cooling"
            else one
            for one in site.rules.sharings
        ),
    )
    site.walk(*site.say(1, DEGRADED))
    for number in (1, 2, 3):
        site.clear("gpu-hot", node=number, gpu=3)
    site.pass_time(600, step_s=5)
    assert "rack-cooling" in open_rules(site)
