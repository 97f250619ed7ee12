"""`foreign-drain`: an owner is asked ever more seldom, and the drain stays theirs."""

import msgspec
import pytest

from healer.model import CommandKind, Message, Mode, Ruleset, RunState, StepEvent
from tests.support.asked import over, state_of
from tests.support.loop import Site, name, rules_in, shipped
from tests.support.under_test import TestSite

pytestmark = pytest.mark.heavy

DAY_S = 86400


def chasing(mode: Mode | None = Mode.auto) -> Ruleset:
    """The shipped rules, with the chase in this mode; None: as they ship."""
    if mode is None:
        return rules_in(Mode.auto)
    chase = tuple(
        msgspec.structs.replace(rule, mode=mode, playbook="foreign-drain")
        if rule.name in {"person-drain", "foreign-drain"}
        else rule
        for rule in shipped().rules
    )
    return rules_in(Mode.auto, rules=chase)


def drained(mode: Mode | None = Mode.auto, words: str = "replacing PSU") -> tuple[TestSite, str]:
    site = TestSite(4, rules=chasing(mode))
    site.run_for(2)
    site.slurm.person_drain(name(1), words, "ann")
    site.run_for(5)
    (run,) = site.runs
    return site, run.id


def asked(site: Site) -> list[Message]:
    return [
        one for one in site.ledger.tables.messages.values() if "ask" in one.id and isinstance(one, Message)
    ]


def wait_days(site: Site, days: float) -> None:
    site.run_for(days * DAY_S, step_s=1800)


def test_it_asks_after_a_day_two_days_and_a_week_and_then_no_more() -> None:
    site, run = drained()
    counts = []
    for days in (0.9, 0.2, 1.8, 0.3, 6.7, 0.4, 20):
        wait_days(site, days)
        counts.append(len(asked(site)))
    assert counts == [0, 1, 1, 2, 2, 3, 3]
    assert "Held by ann since 2026-11-20 03:00 UTC (24 h)" in asked(site)[0].text
    assert "(10 days)" in asked(site)[-1].text
    assert state_of(site, run)[0] is RunState.running
    assert (site.node(1).reason, site.scheduler.writes) == ("replacing PSU", [])


def test_it_ends_when_the_drain_is_lifted_and_the_incident_with_it() -> None:
    site, run = drained()
    wait_days(site, 1.1)
    site.slurm.resume(name(1))
    site.run_for(60)
    assert state_of(site, run)[0] is RunState.done and site.open_incidents == []
    assert len(site.runs) == 1 and len(asked(site)) == 1


def test_an_owner_who_writes_a_new_reason_has_answered() -> None:
    site, _ = drained()
    wait_days(site, 0.9)
    site.slurm.resume(name(1))
    site.slurm.person_drain(name(1), "PSU arrives on Friday", "ann")
    wait_days(site, 0.9)
    assert asked(site) == []
    wait_days(site, 0.2)
    assert len(asked(site)) == 1


def test_person_who_acknowledged_the_incident_is_not_reminded() -> None:
    site, run = drained()
    site.send_command(CommandKind.acknowledge, incident=site.incident.id)
    wait_days(site, 3)
    assert asked(site) == [] and state_of(site, run)[0] is RunState.running
    assert site.log(run)[-1].text == "ann took it: healer asks no one else"


def test_default_rules_ask_for_no_approval() -> None:
    site = TestSite(4, rules=chasing(None))
    site.run_for(2)
    site.slurm.person_drain(name(1), "replacing PSU", "ann")
    wait_days(site, 2)
    assert list(site.runs) == [] and asked(site) == [] and len(site.open_incidents) == 1


def test_in_shadow_it_is_only_watched() -> None:
    site, run = drained(Mode.shadow)
    assert site.runs[0].shadow
    wait_days(site, 11)
    assert asked(site) == []
    would = [one.text for one in site.log(run) if one.event is StepEvent.done and "would" in one.text]
    assert would == ["shadow: would notify gpu0001"] * 3
    assert site.scheduler.writes == []
    site.slurm.resume(name(1))
    site.run_for(60)
    assert state_of(site, run)[0] is RunState.done and site.open_incidents == []


def test_a_persons_run_on_the_node_goes_first() -> None:
    """The chase waits for weeks: it keeps the node from no job."""
    site, run = drained()
    site.slurm.resume(name(1))
    other = site.ask("validate", 1)
    site.run_for(5)
    assert "drain" in over(site, other)
    site.run_for(60)
    assert state_of(site, run)[0] is RunState.done


@pytest.mark.parametrize("words", ["healer:hand inc:0a1b2c3d PSU", "Kill task failed"])
def test_a_drain_that_is_healers_or_slurms_by_now_is_not_chased(words: str) -> None:
    site, run = drained()
    site.slurm.resume(name(1))
    site.slurm.person_drain(name(1), words, "root")
    site.run_for(60)
    assert state_of(site, run)[0] is RunState.done
    assert all("PSU" not in one.title for one in asked(site))
