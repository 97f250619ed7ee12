"""What figures that a relay sent may do: one sender stops no healing, and an honest one is believed."""

from typing import Any

import msgspec
import pytest

from healer.decisions.accusations import budget
from healer.decisions.capacity import slots_limit
from healer.incidents.second_look import SECOND_LOOK
from healer.model import BreakerState, FaultClass, Finding, Guard, IncidentState, Severity
from healer.signals.identity import relayed_digest
from tests.stories.test_relayed_text import drained
from tests.support.loop import LOST, equip, name
from tests.support.slow import SlowSite, found, slow_rules

RELAY, OTHER = "prometheus (a1b2c3d4)", "collector (ffff0000)"
REMAP_FAILED = "gpu-row-remap-failed"


def sent(finding: Finding, by: str = RELAY) -> Finding:
    """As the tick makes it of figures that a relay sent."""
    evidence = tuple(
        msgspec.structs.replace(item, relayed_by=by, digest=relayed_digest(item.digest))
        for item in finding.evidence
    )
    return msgspec.structs.replace(finding, evidence=evidence if by else finding.evidence)


def fatal(site: SlowSite, *numbers: int, by: str = RELAY, fault: str = REMAP_FAILED) -> tuple[Finding, ...]:
    findings = (found(fault, site.now, node=number, gpu=0) for number in numbers)
    return tuple(
        sent(msgspec.structs.replace(finding, fault_class=FaultClass.fatal), by) for finding in findings
    )


def wide() -> Any:
    """No cap on slots binds: what holds is something else."""
    rules = slow_rules()
    guards = msgspec.structs.replace(
        rules.guards, max_share=1.0, max_nodes=32, share_per_hour=1.0, rack_share=1.0, partition_share=1.0
    )
    return msgspec.structs.replace(rules, guards=guards)


def breaker(site: SlowSite) -> BreakerState:
    found = site.ledger.tables.breaker
    return found.state if found is not None else BreakerState.closed


def sender_pages(site: SlowSite) -> list[Any]:
    return [one for one in site.ledger.tables.messages.values() if one.id.startswith("sender:")]


def of_node(site: SlowSite, number: int) -> Any:
    return next(one for one in site.open_incidents if one.root.node == name(number))


@pytest.mark.parametrize("looks", [True, False], ids=["nodes answer", "nobody can ask them"])
def test_lies_about_ten_nodes_open_no_breaker_and_pass_no_cap(looks: bool) -> None:
    site = SlowSite()
    if not looks:
        equip(site.driver, nodes=None)
    jobs = [site.agreed(required=[name(number)]) for number in range(1, 11)]
    for number in range(1, 11):
        site.tick(fatal(site, number))
        site.pass_time(5)
    site.pass_time(60)
    assert breaker(site) is BreakerState.closed
    assert len(drained(site)) <= slots_limit(site.rules.guards, 32)
    assert [shown.restarts for job in jobs if (shown := site.slurm.job(job))] == [0] * 10
    held = [one for one in site.open_incidents if one.root.node and RELAY in one.doubt]
    assert len(held) >= 10 - budget(32)
    (page,) = sender_pages(site)
    assert page.page and page.severity is Severity.P1 and RELAY in page.title
    site.run_for(20, *site.say(20, LOST))
    assert name(20) in drained(site)


@pytest.mark.parametrize("by", ["", RELAY], ids=["the node itself", "a relay"])
def test_an_honest_relay_s_three_true_faults_are_healed_like_the_nodes_own_word(by: str) -> None:
    site = SlowSite(rules=wide())
    jobs = [site.agreed(required=[name(number)]) for number in (1, 9, 17)]
    for number in (1, 9, 17):
        site.nodes.plant(name(number), "remap-failed")
    site.tick(fatal(site, 1, 9, 17, by=by))
    site.pass_time(60)
    assert drained(site) == [name(1), name(9), name(17)]
    assert [shown.restarts for job in jobs if (shown := site.slurm.job(job))] == [1, 1, 1]
    assert not any(one.doubt for one in site.open_incidents)
    assert sender_pages(site) == []


def test_a_true_storm_that_the_nodes_confirm_opens_the_breaker() -> None:
    site = SlowSite()
    for number in range(1, 11):
        site.nodes.plant(name(number), "remap-failed")
    site.tick(fatal(site, *range(1, 11)))
    site.pass_time(60)
    assert breaker(site) is BreakerState.open


def test_a_storm_by_figures_and_kernel_lines_opens_it_too() -> None:
    site = SlowSite()
    equip(site.driver, nodes=None)
    site.tick(fatal(site, *range(1, 11)))
    lines = [seen for number in range(1, 11) for seen in site.say(number, LOST)]
    site.run_for(20, *lines)
    assert breaker(site) is BreakerState.open


def test_drain_is_held_and_its_sender_named_when_nvidia_smi_disagrees() -> None:
    site = SlowSite()
    site.tick(fatal(site, 1))
    site.pass_time(30)
    assert drained(site) == []
    incident = of_node(site, 1)
    assert incident.held_by is Guard.approval and RELAY in incident.doubt and "denies" in incident.doubt
    (page,) = sender_pages(site)
    assert RELAY in page.title
    site.tick(fatal(site, 1, by=""))
    site.pass_time(30)
    assert drained(site) == []  # the node's own exporter against its nvidia-smi: a person decides


def test_without_a_way_to_ask_it_drains_within_the_caps_and_restarts_no_job() -> None:
    site = SlowSite()
    equip(site.driver, nodes=None)
    job = site.agreed(required=[name(1)])
    site.tick(fatal(site, 1))
    site.pass_time(60)
    assert drained(site) == [name(1)]
    shown = site.slurm.job(job)
    assert shown is not None and shown.restarts == 0


def test_a_missing_gpu_is_counted_on_the_node_itself() -> None:
    site = SlowSite(rules=wide())
    site.nodes.plant(name(1), "gpu-missing")
    site.tick(fatal(site, 1, 2, fault="gpu-count-low"))
    site.pass_time(30)
    assert drained(site) == [name(1)]
    assert "denies" in of_node(site, 2).doubt


def test_fault_that_nvidia_smi_cannot_show_needs_no_second_look() -> None:
    site = SlowSite()
    site.tick(fatal(site, 1, fault="gpu-ecc-uncorrectable"))
    site.pass_time(30)
    assert not [run for run in site.runs if run.playbook == SECOND_LOOK]
    assert drained(site) == [name(1)]


def test_the_figures_of_a_warm_fleet_make_no_honest_relay_suspect() -> None:
    """Many nodes are out of the usual, and healer would take none of them for it."""
    site = SlowSite()
    site.tick(tuple(sent(found("gpu-hot", site.now, node=number, gpu=1)) for number in range(1, 17)))
    site.pass_time(10)
    assert sender_pages(site) == []
    site.nodes.plant(name(20), "remap-failed")
    site.tick(fatal(site, 20))
    site.pass_time(30)
    assert drained(site) == [name(20)]


def test_two_relays_are_no_two_senses_and_neither_opens_the_breaker() -> None:
    site = SlowSite()
    equip(site.driver, nodes=None)
    site.tick(fatal(site, *range(1, 11)))
    site.tick(fatal(site, *range(1, 11), by=OTHER))
    site.pass_time(30)
    assert breaker(site) is BreakerState.closed
    assert len(drained(site)) <= 1


def test_the_kernel_s_own_word_frees_what_was_held() -> None:
    site = SlowSite()
    site.tick(fatal(site, 1))
    site.pass_time(20)
    assert drained(site) == []
    site.run_for(20, *site.say(1, LOST))
    assert drained(site) == [name(1)]
    assert all(not one.doubt for one in site.open_incidents if one.state is not IncidentState.resolved)
