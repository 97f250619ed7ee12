"""An incident's ticket from its fault to its end: filed by the run, updated, closed, reopened."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from healer.model import (
    CommandKind,
    Incident,
    IncidentState,
    LogEntry,
    Mode,
    Run,
    RunState,
    SlurmNode,
    StepEvent,
    Ticket,
    TicketStage,
)
from healer.sim.memory_ledger import MemoryClaim
from healer.sim.slurm_world import sim_nodes
from healer.telling.news import proof_text, ticket_stage, ticket_update
from tests.support.ledgers import incident as made
from tests.support.loop import CLUSTER, LOST, START, Site, later


def faulty(mode: Mode = Mode.auto, nodes: int | Sequence[SlurmNode] = 10) -> Site:
    """A fatal line on the first of ten nodes under a job; its run has filed a ticket."""
    site = Site(nodes, mode=mode)
    site.slurm.add_job(nodes=2)
    site.walk(*site.say(1, LOST))
    site.run_for(20)
    return site


def tickets(site: Site) -> list[Ticket]:
    return [one for _, one in site.ledger.tables.sent if isinstance(one, Ticket)]


def entry(number: int = 0, event: StepEvent = StepEvent.done, text: str = "") -> LogEntry:
    return LogEntry(
        run="r", at=later(number), epoch=0, step=f"s{number}", event=event, text=text or f"text {number}"
    )


def test_a_run_files_one_ticket_and_a_person_closes_it_with_what_was_done() -> None:
    site = faulty()
    (filed,) = tickets(site)
    assert (filed.stage, filed.key) == (TicketStage.opened, site.incident.id)
    assert (filed.severity, filed.since) == (site.incident.severity, site.incident.opened)
    site.send_command(CommandKind.resolve, incident=site.incident.id, reason="GPU 3 replaced")
    site.walk()
    site.run_for(5)
    closed = tickets(site)[-1]
    assert (closed.stage, closed.key) == (TicketStage.closed, filed.key)
    assert [one.stage for one in tickets(site)].count(TicketStage.closed) == 1
    for words in ("resolved by ann: GPU 3 replaced", "Actions and observations", " drain: ", " requeue:"):
        assert words in closed.text


def test_a_ticket_says_where_the_node_is_and_which_board_to_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that has fallen off the bus tells no one its serial number any more."""
    board = {"index": 3, "pci": "0000:9b:00", "uuid": "GPU-3f", "serial": "1652922"}
    monkeypatch.setattr(MemoryClaim, "reported_gpu", lambda self, root: board)
    placed = [msgspec.structs.replace(node, rack="r07", switch="leaf-3") for node in sim_nodes(10)]
    (filed,) = tickets(faulty(nodes=placed))
    lines = filed.text.split("\n")
    assert "Where: gpu0001 (0000:9b:00)" in lines
    assert "Board: serial number 1652922, GPU-3f" in lines
    assert "Place: rack r07, switch leaf-3" in lines


def test_the_nodes_return_is_part_of_the_proof_however_soon_the_detector_hears_of_it() -> None:
    site = faulty()

    def walk_then(_: str) -> None:
        site.walk()  # it walks wherever the run could be overtaken

    site.on_checkpoint = walk_then
    (waits,) = [one for one in site.runs if one.state is RunState.waiting]
    back = Run(
        id="r-resume", cluster=CLUSTER, playbook="resume", state=RunState.running, by="ann",
        reason="PSU replaced", created_at=site.now, node=waits.node, rule=waits.rule,
    )  # fmt: skip
    with site.ledger.transaction() as tx:
        tx.set_run_state(waits.id, RunState.done, why="taken over", at=site.now)
        tx.create_run(back)
    site.run_for(10)
    closed = tickets(site)[-1]
    assert closed.stage is TicketStage.closed
    assert "returned to service by ann: PSU replaced" in closed.text
    assert " resume: " in closed.text


def test_reopened_ticket_is_reported_and_closed_again() -> None:
    site = faulty()
    name = site.incident.id
    for reason in ("replaced", "replaced again"):
        site.send_command(CommandKind.resolve, incident=name, reason=reason)
        site.walk()
        site.clock.advance(60)
        site.send_command(CommandKind.reopen, incident=name, reason="it is back")
        site.walk()
        site.clock.advance(60)
    stages = [one.stage for one in tickets(site) if one.stage is not TicketStage.updated]
    assert stages == ["opened", "closed", "reopened", "closed", "reopened"]
    assert len({one.id for one in tickets(site)}) == len(tickets(site))


def test_without_a_ticket_its_end_is_not_announced() -> None:
    site = faulty(Mode.shadow)
    site.send_command(CommandKind.resolve, incident=site.incident.id, reason="looked at")
    site.walk()
    assert tickets(site) == []


# --- pure --------------------------------------------------------------------------------------------------


def incident(**fields: Any) -> Incident:
    return msgspec.structs.replace(made(), run_count=1, **fields)


def test_news_is_what_changes_the_sentence() -> None:
    before = incident()
    over = {"state": IncidentState.resolved, "closed": START, "closed_why": "well again"}
    assert ticket_stage(None, before) is None
    assert ticket_stage(before, msgspec.structs.replace(before, updated=later(9))) is None
    assert ticket_stage(before, incident(confidence=0.6)) is TicketStage.updated
    assert ticket_stage(before, incident(**over)) is TicketStage.closed
    assert ticket_stage(incident(**over), before) is TicketStage.reopened
    assert ticket_stage(incident(**over), incident(**over)) is None
    never = msgspec.structs.replace(before, run_count=0)
    assert ticket_stage(never, msgspec.structs.replace(never, **over)) is None


def test_the_same_news_is_one_delivery() -> None:
    first = ticket_update(incident(), TicketStage.updated, [], START)
    assert ticket_update(incident(), TicketStage.updated, [], later(60)).id == first.id
    other = ticket_update(incident(confidence=0.6), TicketStage.updated, [], START)
    assert other.id != first.id
    assert other.key == first.key


def test_proof_lists_effects_and_failures_and_keeps_both_ends() -> None:
    events = [StepEvent.started, StepEvent.waiting, StepEvent.failed, StepEvent.done]
    proof = proof_text(incident(), [entry(n, event) for n, event in enumerate(events)])
    assert "s2: failed: text 2" in proof and "s3: text 3" in proof
    assert "s0" not in proof and "s1" not in proof
    long = proof_text(incident(), [entry(n) for n in range(100)])
    assert "s0: " in long and "s99: " in long and "… 60 more" in long and "s50: " not in long
    assert "healer took no action" in proof_text(incident(), [])
    assert "It continues as incident abc" in proof_text(incident(merged_into="abc"), [])


# --- a fault for which nothing but a ticket is wanted -------------------------------------------------------

WORDS = "(0x00000003 0x80000000 0x0 0x0 0x0 0x0)"
REPORT_ONLY = f"NVRM: Xid (PCI:0000:1b:00): 145, RLW_CTRL Nonfatal XC0 i0 Link 10 {WORDS}"


def report_only(mode: Mode = Mode.auto) -> Site:
    site = Site(10, mode=mode)
    site.walk(*site.say(1, REPORT_ONLY))
    site.run_for(240)
    return site


def pass_hours(site: Site, hours: int) -> None:
    site.clock.advance(hours * 3600)
    site.walk()


def test_once_its_ticket_is_filed_and_its_sign_quiet_the_incident_ends_and_the_ticket_stays() -> None:
    site = report_only()
    (filed,) = tickets(site)
    assert filed.stage is TicketStage.opened
    pass_hours(site, 23)
    assert site.incident.is_open
    pass_hours(site, 2)
    assert site.open_incidents == []
    last = tickets(site)[-1]
    assert (last.stage, last.key) == (TicketStage.updated, filed.key)
    assert "stays open" in last.text
    assert TicketStage.closed not in [one.stage for one in tickets(site)]


def test_recurring_sign_restarts_the_day() -> None:
    site = report_only()
    pass_hours(site, 20)
    site.walk(*site.say(1, REPORT_ONLY))
    pass_hours(site, 20)
    assert site.incident.is_open
    pass_hours(site, 5)
    assert site.open_incidents == []


def test_without_its_ticket_it_waits_for_a_person() -> None:
    site = report_only(Mode.approve)
    assert tickets(site) == []
    pass_hours(site, 60)
    assert site.incident.is_open
