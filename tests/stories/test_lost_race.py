"""A person's drain came first, and Slurm has no compare-and-set; what healer writes beside its drains."""

import json
from typing import Any

import pytest

from healer.model import Guard, LogEntry, Message, RunState, Severity, SlurmCall, StepEvent
from healer.playbooks.advance import UNDO
from healer.ports.scheduling import NotAvailable, SchedulerUnavailable
from healer.text import NO_WORDS
from tests.support.loop import LOST, Site, name
from tests.support.under_test import Written

NODE = name(1)


class Racing(Written):
    """Ann drains in the instant between healer's look and its drain, and a poll falls into that instant."""

    site: Site
    reason = "PSU"

    def drain(self, node: str, reason: str) -> None:
        if "drain" not in self.writes and self.site.node(1).reason == "":
            self.slurm.person_drain(node, self.reason, "ann")
            self.site.clock.advance(0.01)
            self.site.look()
        self.writes.append("drain")
        self.slurm.drain(node, reason)


class OfTwoLines(Racing):
    reason = "PSU\ncall me first"


def racing(slurm: type[Racing] = Racing) -> Site:
    site = Site(10, scheduler=slurm)
    slurm.site = site
    site.walk(*site.say(1, LOST))
    site.clock.advance(2)
    site.walk()
    return site


def test_overwritten_drain_reason_is_restored() -> None:
    site = racing()
    site.run_for(5)
    assert site.node(1).drain and site.node(1).reason == "PSU"
    (run,) = site.runs
    assert run.state is RunState.stuck
    assert "ann drained gpu0001 first (PSU)" in (run.question or "")
    assert site.ledger.tables.slots == {}
    assert site.audited("step.failed") == 1
    messages = [one for one in site.ledger.tables.messages.values() if one.id.endswith(":lost-race")]
    assert len(messages) == 1 and isinstance(messages[0], Message)


def test_a_reason_that_cannot_be_written_again_is_reported() -> None:
    site = racing(OfTwoLines)
    site.run_for(5)
    (run,) = site.runs
    assert run.state is RunState.stuck and "call me first" in (run.question or "")
    (message,) = (one for one in site.ledger.tables.messages.values() if one.id.endswith(":lost-race"))
    assert "call me first" in message.text


def test_retry_requests_a_new_slot_and_the_admins_reason_is_kept() -> None:
    site = racing()
    site.run_for(5)
    (run,) = site.runs
    site.retry(run.id, "drain")
    site.run_for(10)
    assert site.node(1).reason == "PSU"
    assert site.ledger.tables.slots == {}
    assert site.scheduler.writes.count("drain") == 2, "ours, and hers put back"


def test_a_drain_of_hers_that_she_lifted_before_is_no_lost_race() -> None:
    site = Site(10)
    site.slurm.person_drain(NODE, "PSU", "ann")
    site.look()
    site.slurm.resume(NODE)
    site.clock.advance(60)
    site.run_for(10, *site.say(1, LOST))
    assert site.node(1).reason.startswith("healer:gpu-lost")


def test_a_drain_of_hers_that_no_poll_has_seen_yet_ends_the_run_without_a_question() -> None:
    """As where the picture shows it: after her return the fault is history, and no one is paged for it."""
    site = Site(10)
    site.walk(*site.say(1, LOST))
    site.clock.advance(2)
    site.walk()
    (run,) = site.runs
    site.slurm.person_drain(NODE, "PSU", "ann")
    polls, site.look = site.look, lambda: None  # type: ignore[method-assign]
    site.run_for(12)
    assert [one.id for one in site.runs] == [run.id], "no run after run by a picture without her drain"
    site.look = polls  # type: ignore[method-assign]
    site.run_for(5)
    assert [(one.state, one.question) for one in site.runs] == [(RunState.done, None)]
    (lost,) = (one for one in site.incidents if one.rule == "gpu-lost")
    assert lost.held_by is Guard.ownership
    assert site.node(1).reason == "PSU" and site.ledger.tables.slots == {}
    site.slurm.resume(NODE)
    site.run_for(60)
    (lost,) = (one for one in site.incidents if one.rule == "gpu-lost")
    assert (lost.severity, lost.known_bad_in_service) == (Severity.P2, False)


def test_a_person_who_asked_for_a_drain_reads_who_was_first() -> None:
    site = Site(10)
    run = site.ask("drain", 1, by="bob")
    site.slurm.person_drain(NODE, "PSU", "ann")
    site.driver.drive(run)
    (known,) = site.runs
    assert known.state is RunState.stuck and "ann holds gpu0001" in (known.question or "")


def test_reason_seen_only_by_a_poll_is_shown_in_its_incident() -> None:
    """The poll's picture came when the drain had been read back: hers is gone, and a person must ask her."""
    site = Site(10)
    site.slurm.person_drain(NODE, "PSU", "ann")
    site.walk()
    site.slurm.drain(NODE, "healer:gpu-lost inc:00000001 x")
    site.walk()
    (hers,) = (one for one in site.incidents if one.fault == "person-drain")
    assert hers.closed_why == "healer's drain replaced the drain of ann: ask whether theirs still applies"


# --- what is written beside the drain ---


def faulty(site: Site) -> Site:
    site.run_for(20, *site.say(1, LOST))
    return site


def test_other_programs_find_the_incident_beside_the_drain_until_the_node_is_back() -> None:
    site = faulty(Site(10))
    extra = json.loads(site.node(1).extra)
    assert extra["healer"] | {"since": ""} == {
        "incident": site.incident.short_id,
        "rule": "gpu-lost",
        "since": "",
        "state": "waiting",
    }
    site.ask("resume", 1)
    site.run_for(10)
    assert site.node(1).in_service and site.node(1).extra == ""


@pytest.mark.parametrize("theirs", [None, "dead PSU", "{ours} dead PSU"], ids=["healer's", "ann's", "both's"])
def test_a_run_that_is_rolled_back_leaves_no_note(theirs: str | None) -> None:
    site = faulty(Site(10))
    assert site.node(1).extra and site.ledger.tables.slots
    reason = theirs.format(ours=site.node(1).reason) if theirs else ""
    if theirs:
        site.slurm.person_drain(NODE, reason, "ann")
    (run,) = site.runs
    entry = LogEntry(run=run.id, at=site.now, epoch=99, step=UNDO, event=StepEvent.done, text=NO_WORDS)
    site.ledger.tables.log[run.id].append(entry)
    with site.ledger.transaction() as tx:
        tx.set_run_state(run.id, RunState.running, why=NO_WORDS, at=site.now)
    site.run_for(10)
    assert site.runs[0].state is RunState.undone
    node = site.node(1)
    assert (node.drain, node.reason, node.extra) == (bool(theirs), reason, "")


def test_existing_reason_is_not_overwritten() -> None:
    site = Site(10)
    site.slurm.annotate(NODE, extra="rack key 7")
    faulty(site)
    assert site.node(1).extra == "rack key 7"
    site.ask("resume", 1)
    site.run_for(10)
    assert site.node(1).extra == "rack key 7"


class _NoExtra(Written):
    def annotate(self, node: str, **texts: Any) -> None:
        if "extra" in texts:
            raise NotAvailable(SlurmCall.annotate, "no such field")
        self.slurm.annotate(node, **texts)


class _Away(Written):
    def annotate(self, node: str, **_: Any) -> None:
        raise SchedulerUnavailable("no answer")


def test_reason_goes_to_the_comment_when_slurm_has_no_extra_field() -> None:
    site = faulty(Site(10, scheduler=_NoExtra))
    assert json.loads(site.node(1).comment)["healer"]["rule"] == "gpu-lost"
    site.ask("resume", 1)
    site.run_for(10)
    assert site.node(1).comment == ""


def test_that_it_cannot_be_written_fails_nothing() -> None:
    site = faulty(Site(10, scheduler=_Away))
    (run,) = site.runs
    assert run.state is RunState.waiting
    assert site.node(1).drain
