"""A power cycle: asked for once under its key, proven by boot and power, tested before the return."""

from datetime import timedelta
from typing import Any

import pytest

from healer.model import Remedy, RemedyUse, ResetKind, RunState, StepEvent
from healer.model.person_names import glass_name
from tests.support.loop import START, Crash, equip, name
from tests.support.power import PowerSite

NODE = name(1)


def asked(*faults: str, **fields: Any) -> tuple[PowerSite, str]:
    site = PowerSite(**fields)
    for fault in faults:
        site.bmc.plant(NODE, fault)
    return site, site.ask("power-cycle", 1)


def test_it_is_cycled_once_tested_and_returned() -> None:
    site, run = asked()
    site.finish()
    assert site.run_named(run).state is RunState.done
    assert site.kinds() == ["PowerCycle"]
    assert site.node(1).in_service and site.reservations() == {}
    assert (site.ledger.tables.slots, site.ledger.tables.vetoes) == ({}, [])
    assert site.audited("node.power_cycled") == 1
    assert [use.remedy for use in site.ledger.tables.remedies] == [Remedy.power_cycle]
    skipped = [one.step for one in site.log(run) if one.event is StepEvent.skipped]
    assert skipped == ["free", "agree", "out", "ticket", "repair"]


def test_log_line_precedes_each_reset() -> None:
    site, run = asked()
    seen: list[list[Any]] = []
    reset = site.bmc.reset

    def noted(node: str, target: str, kind: ResetKind) -> str | None:
        seen.append([one.data["asks"] for one in site.log(run, "cycle") if "asks" in one.data])
        return reset(node, target, kind)

    site.bmc.reset = noted  # type: ignore[method-assign]
    site.finish()
    assert seen == [["PowerCycle"]]


def test_without_power_cycle_it_is_forced_off_and_put_on() -> None:
    site, run = asked("no-cycle")
    site.finish()
    assert site.kinds() == ["ForceOff", "On"]
    assert site.run_named(run).state is RunState.done


def test_a_node_that_is_off_is_only_put_on() -> None:
    site = PowerSite()
    site.bmc.reset(NODE, "", ResetKind.force_off)
    run = site.ask("power-cycle", 1)
    site.finish()
    assert site.kinds() == ["ForceOff", "On"]
    assert site.run_named(run).state is RunState.done


def test_power_that_stays_off_asks_a_person_and_is_not_cycled_again() -> None:
    site, run = asked("stays-off")
    site.run_for(2400, step_s=20)
    found = site.run_named(run)
    assert found.state is RunState.stuck and "its power is Off" in (found.question or "")
    assert site.kinds() == ["PowerCycle"]
    assert site.node(1).drain


def test_busy_bmc_is_retried_because_it_did_nothing() -> None:
    site, run = asked("busy")
    site.run_for(60)
    assert site.kinds() == []
    site.bmc.mend(NODE, "busy")
    site.finish()
    assert site.kinds() == ["PowerCycle"]
    assert site.run_named(run).state is RunState.done
    assert len(site.ledger.tables.remedies) == 1


def test_an_answer_that_never_came_is_followed_by_no_second_reset() -> None:
    site, run = asked("hangs")
    site.finish()
    assert site.kinds() == ["PowerCycle"]
    assert site.run_named(run).state is RunState.done


def test_unreachable_bmc_is_retried_and_then_a_person_is_asked() -> None:
    site, run = asked("away")
    site.run_for(2400, step_s=20)
    found = site.run_named(run)
    assert found.state is RunState.stuck and "cannot be reached" in (found.question or "")
    site.bmc.mend(NODE, "away")
    site.retry(run, "cycle")
    site.finish()
    assert site.kinds() == ["PowerCycle"]


@pytest.mark.parametrize(("fault", "words"), [("refuses", "account"), ("task-fails", "power supply said no")])
def test_a_refusal_asks_a_person_at_once(fault: str, words: str) -> None:
    site, run = asked(fault)
    site.run_for(60)
    found = site.run_named(run)
    assert found.state is RunState.stuck and words in (found.question or "")
    assert site.node(1).drain


def test_without_a_bmc_a_person_is_asked() -> None:
    site, run = asked()
    equip(site.driver, bmc=None)
    site.run_for(30)
    assert "HEALER_BMC_URL is not set" in (site.run_named(run).question or "")


def test_node_taken_over_by_a_person_is_not_power_cycled() -> None:
    site, run = asked()
    site.on_checkpoint = lambda at: (
        site.slurm.person_drain(NODE, "PSU 2", "carl") if at == "started:cycle" else None
    )
    site.run_for(30)
    assert site.kinds() == []
    assert "PSU 2" in (site.run_named(run).question or "")


def test_a_test_that_fails_after_it_is_a_ticket() -> None:
    site, run = asked()
    site.nodes.plant(NODE, "slow-gpu-3")
    site.run_for(120)
    assert site.run_named(run).state is RunState.waiting
    assert "ticket" in site.done(run) and site.node(1).drain and site.reservations() == {}


def test_jobs_end_by_themselves_first() -> None:
    site = PowerSite()
    job = site.slurm.add_job(required=[NODE], requeue=False)
    site.ask("power-cycle", 1)
    site.run_for(600, step_s=5)
    assert site.kinds() == []
    site.slurm.complete(job)
    site.finish()
    assert site.kinds() == ["PowerCycle"]


def test_with_jobs_on_it_a_second_person_agrees() -> None:
    site = PowerSite()
    site.slurm.add_job(required=[NODE], requeue=False)
    run = site.ask("power-cycle", 1, inputs={"now": True})
    site.run_for(60)
    assert site.run_named(run).state is RunState.waiting
    site.agree(run, "agree", by="ann")  # who asked is no second person
    site.run_for(30)
    assert site.kinds() == []
    held = [one for one in site.log(run, "cycle") if one.event is StepEvent.held]
    assert held[-1].data["guard"] == "approval" and "second approval" in held[-1].text
    site.agree(run, "agree", by=glass_name("bob"))  # who broke the glass may be ann
    site.run_for(30)
    assert site.kinds() == []
    site.agree(run, "agree", by="bob")
    site.finish()
    assert site.kinds() == ["PowerCycle"]
    assert site.run_named(run).state is RunState.done


def test_the_cap_counts_it_with_the_reboots() -> None:
    site = PowerSite()
    for hours in range(3):
        use = RemedyUse(node=NODE, remedy=Remedy.reboot_node, rule="x", at=START - timedelta(hours=7 + hours))
        site.ledger.tables.remedies.append(use)
    run = site.ask("power-cycle", 1)
    site.finish(60)
    assert site.kinds() == []
    assert "limit 3" in (site.run_named(run).question or "")


def test_a_pause_after_it_still_drains_the_node_again() -> None:
    """Slurm may take the drain away at a boot; DOWN alone may end by itself."""
    site, run = asked()
    site.bmc_boots = lambda node: (site.slurm.boot(node), site.slurm.undrain(node))
    site.on_checkpoint = lambda at: site.pause() if at == "performed:cycle" and site.kinds() else None
    site.run_for(60)
    assert site.node(1).drain
    assert site.run_named(run).state is RunState.running


def test_shadow_only_says_what_it_would() -> None:
    site = PowerSite()
    run = site.ask("power-cycle", 1, shadow=True)
    site.run_for(60)
    assert site.run_named(run).state is RunState.done
    assert site.kinds() == [] and site.scheduler.writes == []
    assert [one.text for one in site.log(run, "cycle")][-1] == f"shadow: would power_cycle {NODE}"


def test_a_node_that_came_back_late_is_not_cycled_again() -> None:
    """Whether the first came through was not known; by the time that a person resumes it, a boot shows it."""
    site, run = asked("stays-off")
    site.run_for(2400, step_s=20)
    assert site.run_named(run).state is RunState.stuck
    site.bmc.mend(NODE, "stays-off")
    site.bmc.reset(NODE, "", ResetKind.on)  # at the BMC's own page
    site.bmc.power(NODE)
    site.retry(run, "cycle")
    site.finish()
    assert site.kinds() == ["PowerCycle", "On"]
    assert site.run_named(run).state is RunState.done


def test_its_time_counts_from_the_reset() -> None:
    site, run = asked("busy")
    site.run_for(1700, step_s=20)
    site.bmc.mend(NODE, "busy")
    site.bmc_boots = lambda _: None  # its firmware takes long
    site.run_for(600, step_s=20)
    assert site.kinds() == ["PowerCycle"]
    assert site.run_named(run).state is RunState.running
    site.slurm.boot(NODE)
    site.finish()
    assert site.run_named(run).state is RunState.done


MOMENTS = [f"{at}:cycle" for at in ("started", "done", "performed")]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("nth", [1, 2])
def test_a_death_at_any_moment_never_cycles_twice(moment: str, nth: int) -> None:
    """What may have come through is only looked for. Where nothing did a person is asked: a new key."""
    site, run = asked()
    seen = []

    def die(where: str) -> None:
        if where == moment:
            seen.append(where)
            if len(seen) == nth:
                raise Crash(where)

    site.on_checkpoint = die
    site.survive(2600, step_s=10)
    assert len(seen) >= nth
    assert site.kinds() in ([], ["PowerCycle"])
    found = site.run_named(run)
    if site.kinds():
        assert found.state is RunState.done
        return
    assert found.state is RunState.stuck and "not confirmed within 1800 s" in (found.question or "")
    site.on_checkpoint = lambda _: None
    site.retry(run, "cycle")
    site.finish()
    assert site.kinds() == ["PowerCycle"]
    assert site.run_named(run).state is RunState.done


def test_a_worker_that_dies_between_the_reset_and_its_line_does_not_repeat_it() -> None:
    site, run = asked()
    reset = site.bmc.reset
    died = []

    def dies(node: str, target: str, kind: ResetKind) -> str | None:
        reset(node, target, kind)
        died.append(kind)
        raise Crash("behind the reset")

    site.bmc.reset = dies  # type: ignore[method-assign]
    site.survive(200)
    assert len(died) == 1 and site.kinds() == ["PowerCycle"]
    assert site.run_named(run).state is RunState.done
