"""`lemon`: the past of a node before a person, who alone takes it out; it stays out until it is repaired."""

from datetime import timedelta
from typing import Any

import msgspec

from healer.incidents.node_history import out_of_service, summarize_node
from healer.model import Incident, IncidentState, Mode, NodeHistory, RunState, Ticket
from tests.support.asked import approve_step, over, state_of
from tests.support.loop import START, Crash, Site, later, name, rules_in
from tests.support.under_test import TestSite
from tests.unit.actions.test_verbs import INCIDENT

NODE = name(1)


def past(number: int, fault: str = "xid-79", **fields: Any) -> Incident:
    one: dict[str, Any] = {"id": f"{number:032x}", "fault": fault, "opened": later(number * 86400)} | fields
    return msgspec.structs.replace(INCIDENT, **one)


def with_past() -> TestSite:
    """Two losses of a GPU in the last days; the first had a ticket, and the node was out for 10 and 20 h."""
    site = TestSite()
    day = timedelta(days=1)
    for number, hours in ((1, 10), (2, 20)):
        began = START - (4 - number) * day
        one = past(
            number,
            opened=began,
            drained_at=began,
            closed=began + timedelta(hours=hours),
            state=IncidentState.resolved,
        )
        site.ledger.tables.incidents[one.id] = one
    ticket = Ticket(
        id="1:ticket", cluster=site.ledger.cluster, node=NODE, incident=past(1).id, title="RMA", text=""
    )
    site.ledger.tables.messages[ticket.id] = ticket
    return site


def test_nothing_is_taken_before_a_person_has_seen_its_past_and_approved() -> None:
    site = with_past()
    run = site.ask("lemon", 1)
    site.run_for(3600, step_s=60)
    state, question = state_of(site, run)
    assert (state, question) == (
        RunState.waiting, "Waiting for approval: Take it out of service for repair"
    )  # fmt: skip
    assert site.log(run, "history")[-1].text == (
        f"{NODE} in 14 days: 2 incidents (xid-79 2x), 1 repair tickets, taken out of service "
        "0 times by others, 30.0 h out of service"
    )
    assert not site.node(1).drain and site.ledger.tables.slots == {}


def test_approved_drain_waits_for_job_end_and_stays_regardless_of_tests() -> None:
    site = with_past()
    job = site.slurm.add_job(required=[NODE])
    run = site.ask("lemon", 1)
    site.run_for(5)
    approve_step(site, run, "approve")
    site.run_for(120)
    assert not site.node(1).drain and site.slurm.job(job).state == "RUNNING"  # type: ignore[union-attr]
    site.slurm.complete(job)
    site.run_for(40)
    for _ in ("alone", "with a partner"):
        site.slurm.complete(site.running_test())
        site.run_for(40)
    assert state_of(site, run)[0] is RunState.waiting and site.log(run)[-1].step == "repair"
    assert site.node(1).drain and site.reservations() == {}
    filed = (one for one in site.ledger.tables.messages.values() if isinstance(one, Ticket))
    (ticket,) = [one for one in filed if one.title != "RMA"]
    assert "Found: gpu0001 in 14 days: 2 incidents (xid-79 2x)" in ticket.text


def test_lemon_stays_out_with_a_ticket_when_its_tests_fail() -> None:
    site = with_past()
    site.nodes.plant(NODE, "slow-gpu-3")
    run = site.ask("lemon", 1)
    site.run_for(5)
    approve_step(site, run, "approve")
    site.run_for(90)
    assert site.log(run)[-1].step == "repair" and site.node(1).drain and "ticket" in over(site, run)


def test_rule_only_asks_and_in_shadow_asks_no_one() -> None:
    for mode, state in ((Mode.auto, RunState.waiting), (Mode.shadow, RunState.done)):
        site = TestSite(rules=rules_in(mode))
        run = started_by_healer(site, mode)
        site.run_for(60)
        assert state_of(site, run)[0] is state and not site.node(1).drain
        assert over(site, run)[:1] == ["history"]


def started_by_healer(site: Site, mode: Mode) -> str:
    run = site.ask("lemon", 1)
    known = site.ledger.tables.runs[run]
    site.ledger.tables.runs[run] = msgspec.structs.replace(
        known, by="healer", mode=mode, shadow=mode is Mode.shadow, rule="lemon"
    )
    return run


def test_a_worker_that_dies_asks_once() -> None:
    site = with_past()
    run = site.ask("lemon", 1)
    died: list[str] = []

    def die(at: str) -> None:
        if at == "performed:history" and not died:
            died.append(at)
            raise Crash(at)

    site.on_checkpoint = die
    for _ in range(3):
        try:
            site.drive()
        except Crash:
            site.clock.advance(15)
    assert died and [one.step for one in site.log(run)] == ["history", "approve"]


# --- its past in words --------------------------------------------------------------------------------


def test_times_out_of_service_that_overlap_count_once_and_only_within_the_span() -> None:
    since, now = later(days=10), later(days=20)
    history = NodeHistory(
        incidents=(
            past(1, drained_at=later(days=8), closed=later(days=12)),  # two days of it
            past(2, drained_at=later(days=11), closed=later(days=13)),  # one more
            past(3, fault="person-drain", drained_at=None, owner_since=later(days=18), closed=None),
            past(4, fault="xid-63", drained_at=None, closed=later(days=14)),  # it never left
        ),
        ticketed=frozenset({past(2).id}),
    )
    assert out_of_service(history, since, now) == timedelta(days=5)
    assert summarize_node(history, NODE, since, now, but=past(1).id) == (
        f"{NODE} in 10 days: 2 incidents (xid-79 1x, xid-63 1x), 1 repair tickets, "
        "taken out of service 1 times by others, 120.0 h out of service"
    )


def test_a_node_without_a_past() -> None:
    assert summarize_node(NodeHistory(), NODE, later(0), later(days=14)) == (
        f"{NODE} in 14 days: no fault incident, 0 repair tickets, taken out of service 0 times by others, "
        "0.0 h out of service"
    )
