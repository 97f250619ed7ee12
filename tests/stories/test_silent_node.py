"""A node that is silent for us and for Slurm: out of service, and back by an approved power cycle."""

import msgspec
import pytest

from healer.model import Guard, Incident, Mode, Run, RunState, Severity, StepEvent
from healer.sim.memory_ledger import MemoryTx
from healer.sim.sim_slurm import sim_nodes
from tests.support.loop import beat, equip, name, rules_in
from tests.support.power import PowerSite

NODE = name(1)
NODES = 10


def speak(site: PowerSite, *silent: int, seconds: int = 10) -> None:
    """All but these nodes beat now; then some time passes."""
    speaking = [number for number in range(1, NODES + 1) if number not in silent]
    site.walk(*[beat(name(number), site.now) for number in speaking])
    site.drive()
    site._pass_tests()
    site.clock.advance(seconds)


def silent(
    *, mode: Mode = Mode.auto, slurm_too: bool = True, bmc: bool = True, job: bool = False
) -> PowerSite:
    site = PowerSite(nodes=NODES, slurmd_timeout_s=60, mode=mode)
    if not bmc:
        equip(site.driver, bmc=None)
    if job:
        site.theirs = site.slurm.add_job(required=[NODE], requeue=True)
    for _ in range(4):
        speak(site)
    if slurm_too:
        site.slurm.silence(NODE)
    for _ in range(14):
        speak(site, 1)
    return site


def own(site: PowerSite) -> Run:
    (run,) = [one for one in site.runs if one.playbook == "silent-node"]
    return run


def test_it_is_drained_and_its_power_cycle_waits_for_a_person() -> None:
    site = silent(job=True)
    run = own(site)
    assert run.state is RunState.waiting
    assert "Waiting for approval: Power-cycle the node" in (run.question or "")
    assert site.node(1).drain and site.kinds() == []
    assert {"look", "drain", "jobs", "ticket", "notify", "power"} <= set(site.done(run.id))
    (look,) = site.log(run.id, "look")
    assert "is silent" in look.text and "Slurm does not reach it" in look.text
    moved = site.slurm.job(site.theirs)
    assert moved is not None and moved.restarts == 1


def test_while_it_is_silent_its_incident_is_written_four_times_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a minute of walks, one a second."""
    site = silent()
    saved: list[str] = []

    def save(tx: MemoryTx, incident: Incident) -> None:
        saved.append(incident.id)
        keep(tx, incident)

    keep = MemoryTx.save_incident
    monkeypatch.setattr(MemoryTx, "save_incident", save)
    for _ in range(60):
        speak(site, 1, seconds=1)
    assert 3 <= len(saved) <= 5


def test_approved_it_is_cycled_tested_and_returned() -> None:
    site = silent()
    run = own(site).id
    site.agree(run, "approve", by="bob")
    for _ in range(12):
        speak(site, 1)
    for _ in range(20):  # Slurm's word on the boot belongs to it, and may come minutes later
        speak(site)
    assert site.kinds() == ["PowerCycle"]
    assert site.run_named(run).state is RunState.done
    assert site.node(1).in_service
    assert "again-test" in site.done(run)
    assert site.open_incidents == []


def test_silent_again_within_hours_it_is_drained_again() -> None:
    """What a person approved is no remedy of healer's own that would hold a dead node in service."""
    site = silent()
    run = own(site).id
    site.agree(run, "approve", by="bob")
    for _ in range(12):
        speak(site, 1)
    for _ in range(60):
        speak(site)
    site.slurm.silence(NODE)
    for _ in range(40):
        speak(site, 1)
    assert site.node(1).drain
    assert [one.state for one in site.runs] == [RunState.done, RunState.waiting]


def test_no_time_ever_approves() -> None:
    site = silent()
    for _ in range(30):
        speak(site, 1, seconds=600)
    assert own(site).state is RunState.waiting and site.kinds() == []


def test_without_a_bmc_it_waits_for_the_repair() -> None:
    site = silent(bmc=False)
    run = own(site)
    assert run.state is RunState.waiting
    assert site.last(run.id).step == "repair"
    skipped = {one.step for one in site.log(run.id) if one.event is StepEvent.skipped}
    assert {"power", "approve", "again-cycle"} <= skipped


def test_a_bmc_that_does_not_answer_leaves_the_power_unknown() -> None:
    site = PowerSite(nodes=NODES, slurmd_timeout_s=60)
    site.bmc.plant(NODE, "away")
    run = site.ask("silent-node", 1)
    site.run_for(120)
    (entry,) = [one for one in site.log(run, "power") if one.event is StepEvent.skipped]
    assert "Power state unknown." in entry.text
    assert site.last(run).step == "repair"


def test_silence_alone_takes_nothing() -> None:
    site = silent(slurm_too=False)
    assert site.runs == [] and site.node(1).in_service


def test_reached_again_before_the_drain_nothing_is_done() -> None:
    """The incident goes with it: no second run begins for what is over."""
    site = PowerSite(nodes=NODES, slurmd_timeout_s=60)
    for _ in range(4):
        speak(site)
    site.slurm.silence(NODE)
    for _ in range(14):
        speaking = [beat(name(number), site.now) for number in range(2, NODES + 1)]
        if site.walk(*speaking):
            break
        site.clock.advance(10)
    site.slurm.answer(NODE)
    for _ in range(12):
        speak(site, 1)
    assert own(site).state is RunState.done
    assert site.scheduler.writes == [] and site.node(1).in_service
    assert [one.fault for one in site.open_incidents] == ["sender-silent"]


def test_a_node_that_speaks_while_slurm_does_not_reach_it_is_left_alone() -> None:
    site = PowerSite(nodes=NODES, slurmd_timeout_s=60)
    for _ in range(4):
        speak(site)
    site.slurm.silence(NODE)
    while not site.runs:
        site.walk(*[beat(name(number), site.now) for number in range(2, NODES + 1)])
        site.clock.advance(10)
    for _ in range(20):
        speak(site)
    assert "drain" not in site.scheduler.writes
    assert "has been reporting again" in site.last(own(site).id).text
    assert site.ledger.tables.slots == {}


def test_held_action_pages_a_person() -> None:
    """What would hold the drain holds the run, also with a look before it: the incident says so."""
    site = PowerSite(nodes=NODES, slurmd_timeout_s=600)
    site.slurm.add_job(required=[NODE], requeue=True)
    for _ in range(4):
        speak(site)
    site.pause()
    site.slurm.silence(NODE)
    for _ in range(14):
        speak(site, 1)
    assert "drain" not in site.scheduler.writes
    (incident,) = [one for one in site.open_incidents if one.fault == "node-silent"]
    assert (incident.held_by, incident.severity) == (Guard.pause, Severity.P0)
    site.end_pause()
    speak(site, 1)
    speak(site, 1)
    assert site.node(1).drain


def test_slurm_alone_takes_nothing_either() -> None:
    site = PowerSite(nodes=NODES, slurmd_timeout_s=60)
    for _ in range(4):
        speak(site)
    site.slurm.silence(NODE)
    for _ in range(14):
        speak(site)
    assert [one for one in site.runs if one.playbook == "silent-node"] == []
    assert "drain" not in site.scheduler.writes


def test_shadow_goes_to_the_approval_and_touches_nothing() -> None:
    site = silent(mode=Mode.shadow)
    run = own(site)
    assert run.state is RunState.done and run.shadow
    assert site.scheduler.writes == [] and site.kinds() == []


def test_the_rule_names_the_playbook() -> None:
    rules = rules_in()
    assert rules.by_name["node-silent"].playbook == "silent-node"


def test_others_of_its_place_that_slurm_loses_before_the_drain_hold_it() -> None:
    rack = [msgspec.structs.replace(one, rack="r1") for one in sim_nodes(NODES)]
    site = PowerSite(nodes=rack, slurmd_timeout_s=60)
    for _ in range(4):
        speak(site)
    site.slurm.silence(NODE)
    while not site.runs:
        site.walk(*[beat(name(number), site.now) for number in range(2, NODES + 1)])
        site.clock.advance(10)
    site.slurm.silence(name(2))
    for _ in range(6):
        speak(site, 1, 2)
    assert not site.node(1).drain
    assert "waiting for their outage to end" in site.last(own(site).id).text
    site.slurm.answer(name(2))
    for _ in range(6):
        speak(site, 1)
    assert site.node(1).drain
    assert not site.node(2).drain
