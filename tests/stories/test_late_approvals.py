"""A missing approval within a run: people are reminded, and nothing else is done (law 8)."""

from datetime import timedelta

import msgspec
import pytest

from healer.model import APPROVAL_LASTS, Guard, Message, Mode, Playbook, Run, RunState, Severity, Step, Verb
from healer.text import from_stored, to_stored
from tests.support.loop import DEGRADED, LOST, START, Site, name, rules_in, shipped

ASKS = Playbook(
    name="gpu-fatal",
    title="Ask before the ticket",
    target="node",
    steps=(
        Step(id="drain", do=Verb.drain),
        Step(id="ask", title="File the ticket", wait="approval"),
        Step(id="ticket", do=Verb.ticket),
    ),
)


def asking() -> Site:
    site = Site(8, rules=rules_in(Mode.auto, playbooks=shipped().playbooks | {"gpu-fatal": ASKS}))
    site.run_for(6, *site.say(1, LOST))
    return site


def pages(site: Site) -> list[Message]:
    return [
        one
        for key, one in site.ledger.tables.messages.items()
        if ":approval" in key and isinstance(one, Message)
    ]


def test_people_are_reminded_once_after_half_an_hour_and_the_run_keeps_waiting() -> None:
    site = asking()
    (run,) = site.ledger.tables.runs.values()
    assert run.state is RunState.waiting and run.question == "Waiting for approval: File the ticket"
    asked_at = site.ledger.tables.log[run.id][-1].at
    assert run.approve_until == asked_at + APPROVAL_LASTS
    site.clock.set(asked_at + APPROVAL_LASTS)
    site.walk()
    assert pages(site) == []
    site.run_for(5)
    (page,) = pages(site)
    assert (page.severity, page.page) == (Severity.P1, False)
    assert page.title == f"No one has approved gpu-fatal on {name(1)}"
    assert page.text.startswith(f"{run.question}\nRequested at {asked_at:%H:%M} UTC")
    (run,) = site.ledger.tables.runs.values()
    assert run.state is RunState.waiting
    assert not any(entry.step == "ticket" for entry in site.ledger.tables.log[run.id])


@pytest.mark.parametrize(("line", "wakes"), [(LOST, True), (DEGRADED, False)])
def test_a_late_approval_wakes_people_only_for_what_cannot_wait_until_morning(line: str, wakes: bool) -> None:
    """With every rule in approve, a night of row remaps paged as P0 once for each GPU."""
    site = Site(8, rules=rules_in(Mode.approve))
    site.run_for(300, *site.say(1, line), step_s=10)
    assert [run.state for run in site.runs] == [RunState.waiting_approval]
    site.clock.set(site.now + APPROVAL_LASTS)
    site.run_for(5)
    severity = Severity.P0 if wakes else Severity.P2
    assert [(page.severity, page.page) for page in pages(site)] == [(severity, wakes)]


def test_a_wait_for_something_else_is_no_late_approval() -> None:
    site = Site(8, mode=Mode.auto)  # its playbook waits for the repair
    site.run_for(6, *site.say(1, LOST))
    (run,) = site.ledger.tables.runs.values()
    assert (run.state, run.approve_until) == (RunState.waiting, None)
    site.clock.set(START + timedelta(hours=2))
    site.run_for(5)
    assert pages(site) == []


def test_a_second_question_of_the_same_run_is_a_page_of_its_own() -> None:
    twice = msgspec.structs.replace(
        ASKS, steps=(*ASKS.steps, Step(id="again", title="Close it", wait="approval"))
    )
    site = Site(8, rules=rules_in(Mode.auto, playbooks=shipped().playbooks | {"gpu-fatal": twice}))
    site.run_for(6, *site.say(1, LOST))
    for _ in range(2):
        (run,) = site.ledger.tables.runs.values()
        assert run.approve_until is not None
        site.clock.set(run.approve_until + timedelta(seconds=1))
        site.run_for(2)
        going = msgspec.structs.replace(run, state=RunState.running, question=None, approve_until=None)
        site.ledger.tables.runs[run.id] = going
        log = site.ledger.tables.log[run.id]
        done = msgspec.structs.replace(log[-1], event="done", at=site.now, text="ann approved", data={})
        log.append(from_stored(to_stored(done), type(log[-1])))
        site.run_for(2)
    assert len(pages(site)) == 2


def test_the_decision_of_a_held_request_is_that_of_the_guard_that_holds_it_now() -> None:
    """Else the pages name a pause that is over, and not that a second person is needed."""
    cut = Playbook(name="cut", title="Cut", target="node", steps=(Step(id="cut", do=Verb.power_cycle),))
    site = Site(8, rules=rules_in(Mode.auto, playbooks=shipped().playbooks | {"cut": cut}))
    site.pause()
    run = Run(
        id="r-hand", cluster="pod1", playbook="cut", state=RunState.held, by="ann", reason="dead",
        created_at=site.now, node=name(1),
    )  # fmt: skip
    with site.ledger.transaction() as tx:
        tx.create_run(run)
    site.run_for(5)
    site.end_pause()
    site.run_for(5)
    decided = [one.guard for one in site.ledger.tables.decisions if one.run == run.id]
    assert decided == [Guard.pause, Guard.approval]
    assert site.ledger.tables.runs[run.id].state is RunState.held
