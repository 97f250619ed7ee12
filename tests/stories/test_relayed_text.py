"""What a relay's text alone may do: take a node within the caps, and nothing else (law 2 and 3)."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from healer.decisions.accusations import budget
from healer.decisions.capacity import slots_limit
from healer.model import BreakerState, Guard, Observation, RunState, Severity
from healer.signals.identity import digest_of
from tests.support.loop import DEGRADED, FATAL, LOST, REMAP, Site, name, rules_in

RELAY = "relay-3 (a1b2c3d4)"


def relayed(seen: list[Observation], by: str = RELAY) -> list[Observation]:
    """As the API stores it of a token that vouches for nothing."""
    return [
        msgspec.structs.replace(one, relayed_by=by, digest=digest_of("relayed", one.digest)) for one in seen
    ]


def say(site: Site, *numbers: int, line: str = LOST, by: str = RELAY, **fields: Any) -> list[Observation]:
    return [seen for number in numbers for seen in relayed(site.say(number, line, **fields), by)]


def drained(site: Site) -> list[str]:
    return sorted(node.name for node in site.slurm.snapshot().nodes.values() if node.drain)


def test_it_takes_a_node_within_the_caps_and_its_job_runs_on() -> None:
    site = Site(32)
    job = site.slurm.add_job(nodes=1)
    site.run_for(20, *say(site, 1))
    assert drained(site) == [name(1)]
    assert not site.ledger.tables.slots[name(1)].unusable
    shown = site.slurm.job(job)
    assert shown is not None and (shown.state, shown.restarts) == ("RUNNING", 0)


def test_not_even_a_job_that_agreed_to_restarts_is_restarted_for_it() -> None:
    site = Site(32)
    job = site.slurm.add_job(nodes=1, comment="healer:requeue")
    site.run_for(20, *say(site, 1))
    shown = site.slurm.job(job)
    assert shown is not None and (shown.state, shown.restarts) == ("RUNNING", 0)


def test_the_nodes_own_word_acts_as_ever() -> None:
    site = Site(32)
    job = site.slurm.add_job(nodes=1)
    site.run_for(20, *site.say(1, LOST))
    shown = site.slurm.job(job)
    assert site.ledger.tables.slots[name(1)].unusable
    assert shown is not None and shown.restarts == 1


@pytest.mark.parametrize("line", [LOST, FATAL])
def test_later_report_of_the_node_itself_requeues_the_job(line: str) -> None:
    """This holds even for the same line, which would be a repeat from another sender."""
    site = Site(32)
    job = site.slurm.add_job(nodes=1)
    own = site.say(1, line, boot_id="b1", first_seq=7)
    site.run_for(20, *relayed(own))
    shown = site.slurm.job(job)
    assert shown is not None and shown.restarts == 0
    site.run_for(20, *own)
    shown = site.slurm.job(job)
    assert shown is not None and shown.restarts == 1
    assert [incident.doubt for incident in site.open_incidents] == [""]


def test_a_relays_copy_of_the_nodes_line_changes_nothing() -> None:
    site = Site(32)
    own = site.say(1, LOST, boot_id="b1", first_seq=7)
    site.run_for(5, *own)
    before = site.incident
    site.run_for(5, *relayed(own))
    assert site.incident.evidence == before.evidence


def test_a_sender_past_its_budget_is_held_and_named_on_one_page() -> None:
    site = Site(32)
    site.run_for(20, *say(site, *range(1, 8)))
    assert budget(32) == 3
    assert drained(site) == []
    assert {incident.held_by for incident in site.open_incidents if incident.root.node} == {Guard.approval}
    assert all(RELAY in incident.doubt for incident in site.open_incidents if incident.root.node)
    pages = [message for message in site.ledger.tables.messages.values() if message.id.startswith("sender:")]
    (page,) = pages
    assert page.page and page.severity is Severity.P1 and RELAY in page.title
    assert "accused 7 nodes" in page.text


def test_within_its_budget_the_caps_bind_and_more_makes_it_suspect() -> None:
    site = Site(32)
    site.run_for(20, *say(site, 1, 2, 3))
    assert len(drained(site)) == slots_limit(site.rules.guards, 32) == 1
    site.run_for(20, *say(site, 4, 5))
    assert len(drained(site)) == 1
    later = next(incident for incident in site.open_incidents if incident.root.node == name(5))
    assert "accused 5 nodes" in later.doubt


def test_a_person_may_approve_what_is_held() -> None:
    site = Site(32)
    site.run_for(20, *say(site, *range(1, 8)))
    (run,) = [run for run in site.runs if run.node == name(2) and not run.alongside]
    assert run.state is RunState.waiting_approval
    site.approve(run.id)
    site.run_for(10)
    assert drained(site) == [name(2)]


def test_no_storm_of_it_opens_the_breaker_and_the_nodes_own_word_heals_on() -> None:
    site = Site(32)
    site.run_for(20, *say(site, *range(1, 17)))
    assert site.ledger.tables.breaker.state is BreakerState.closed
    site.run_for(20, *site.say(20, LOST))
    assert drained(site) == [name(20)]


def test_two_relays_are_no_two_senses() -> None:
    site = Site(32)
    first = site.say(1, LOST)
    site.run_for(20, *relayed(first), *relayed(site.say(1, REMAP), by="relay-4 (ffff0000)"))
    assert not site.ledger.tables.slots[name(1)].unusable


def test_a_minor_word_of_the_node_proves_no_worse_one_of_a_relay() -> None:
    site = Site(32)
    job = site.slurm.add_job(nodes=1)
    site.run_for(5, *site.say(1, DEGRADED))
    site.run_for(20, *say(site, 1))
    assert not any(slot.unusable for slot in site.ledger.tables.slots.values())
    shown = site.slurm.job(job)
    assert shown is not None and shown.restarts == 0


LINES = st.sampled_from([LOST, FATAL, REMAP, DEGRADED])
TEXTS = st.lists(st.tuples(st.integers(1, 40), LINES, st.integers(0, 90)), min_size=1, max_size=60)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(TEXTS)
def test_no_text_of_one_relay_opens_the_breaker_passes_a_cap_or_restarts_a_job(
    texts: list[tuple[int, str, int]],
) -> None:
    site = Site(40, rules=rules_in(settle_s=0.0))
    jobs = [site.slurm.add_job(nodes=4) for _ in range(5)]
    for number, line, wait_s in texts:
        site.run_for(wait_s, *say(site, number, line=line), step_s=30)
        held = site.ledger.tables.slots.values()
        assert not any(slot.unusable for slot in held)
        assert len(held) <= slots_limit(site.rules.guards, 40)
        assert site.ledger.tables.breaker.state is BreakerState.closed
    shown = [site.slurm.job(job) for job in jobs]
    assert [job.restarts for job in shown if job is not None] == [0] * len(jobs)
