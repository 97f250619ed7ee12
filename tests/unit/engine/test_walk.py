"""The one walk, by the law of safety: modes, severity, pages, the breaker, vetoes, and what people say."""

import copy
from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from healer.decisions import COOLDOWN, reset
from healer.engine.command import Order, reset_breaker
from healer.engine.walk import walk
from healer.model import (
    Breaker,
    BreakerState,
    CommandKind,
    GateFacts,
    Guard,
    GuardSettings,
    Incident,
    IncidentState,
    Maintenance,
    Message,
    Mode,
    Observation,
    Outcome,
    Reference,
    Run,
    RunState,
    Severity,
    Stage,
    Ticket,
    TicketStage,
)
from healer.model.slurm import Reservation
from healer.observations import Picture
from healer.ports.scheduling import SchedulerRefused
from healer.signals.wire import kernel_log_observations
from healer.sim.memory_ledger import MemoryTx
from healer.sim.sim_slurm import SimScheduler
from healer.telling.news import about_incident
from healer.text import say
from tests.support.loop import (
    APPLICATION,
    CLUSTER,
    DEGRADED,
    FATAL,
    LOST,
    REMAP,
    START,
    Site,
    beat,
    later,
    name,
    rules_in,
    shipped,
)
from tests.support.slow import SlowSite
from tests.unit.engine.test_drive import Watched, fail

REFERENCE = Reference(cluster=CLUSTER, kind="h100", node=name(1), at=START, by="ann", facts={})
OTHER_GPU = FATAL.replace("9b:00", "ab:00")
CARD = "mlx5_core 0000:5e:00.0: poll_health:800: device's health compromised - reached miss count"


def lost(site: Site, number: int = 1) -> None:
    site.walk(*site.say(number, LOST))


def settled(site: Site, seconds: float = 2) -> None:
    site.clock.advance(seconds)
    site.walk()


# --- settling -----------------------------------------------------------------------------------------------


def test_a_clock_set_back_an_hour_delays_no_decision() -> None:
    """The detector's host was an hour ahead when it opened the incident, and another host has taken over."""
    site = Site(10)
    site.look()
    walk(site.ledger, site.rules, site.picture, site.say(1, LOST), site.now + timedelta(hours=1))
    assert site.incident.settle_until > site.now + timedelta(minutes=59)
    site.run_for(5)
    assert site.node(1).drain
    assert site.incident.settle_until <= site.now


def test_nothing_is_decided_before_the_settling_time_and_all_is_after_it() -> None:
    site = Site(10)
    lost(site)
    assert site.runs == []
    settled(site, 1.999)
    assert site.runs == []
    settled(site, 0.001)
    assert [run.state for run in site.runs] == [RunState.running]


def test_the_settling_time_may_be_none() -> None:
    site = Site(10, rules=rules_in(settle_s=0.0))
    lost(site)
    assert len(site.runs) == 1


# --- modes --------------------------------------------------------------------------------------------------


def after_a_fault(mode: Mode) -> Site:
    site = Site(10, mode=mode)
    site.slurm.add_job(nodes=2)
    lost(site)
    site.run_for(20)
    return site


@pytest.mark.parametrize(
    ("mode", "state"),
    [
        (Mode.off, None),
        (Mode.shadow, RunState.done),
        (Mode.suggest, RunState.proposed),
        (Mode.approve, RunState.waiting_approval),
        (Mode.auto, RunState.waiting),
    ],
)
def test_each_mode_handles_a_fatal_fault_in_its_own_way(mode: Mode, state: RunState | None) -> None:
    site = after_a_fault(mode)
    assert [run.state for run in site.runs] == ([state] if state else [])
    assert site.node(1).drain is (mode is Mode.auto)
    assert [slot.node for slot in site.ledger.tables.slots.values()] == (
        [name(1)] if mode is Mode.auto else []
    )
    assert site.incident.held_by == {
        Mode.off: Guard.mode,
        Mode.shadow: Guard.mode,
        Mode.suggest: Guard.mode,
        Mode.approve: Guard.approval,
        Mode.auto: None,
    }.get(mode)


def test_a_mode_set_while_running_wins() -> None:
    site = Site(10, mode=Mode.auto)
    site.ledger.tables.modes["gpu-lost"] = Mode.shadow
    lost(site)
    site.run_for(20)
    assert not site.node(1).drain
    assert [run.shadow for run in site.runs] == [True]


@pytest.mark.parametrize("before", [Mode.suggest, Mode.approve])
@pytest.mark.parametrize("after", [Mode.shadow, Mode.off])
def test_a_rule_set_back_takes_what_waited_with_it(before: Mode, after: Mode) -> None:
    site = after_a_fault(before)
    site.ledger.tables.modes["gpu-lost"] = after
    site.run_for(20)
    assert not site.node(1).drain
    assert site.ledger.tables.slots == {}
    assert {run.state for run in site.runs if not run.shadow} == {RunState.rejected}


def test_held_run_does_not_start_after_its_rule_goes_to_shadow() -> None:
    site = Site(10)
    site.pause()
    lost(site)
    settled(site)
    assert [run.state for run in site.runs] == [RunState.held]
    site.ledger.tables.modes["gpu-lost"] = Mode.shadow
    site.end_pause()
    site.run_for(20)
    assert not site.node(1).drain


def test_a_rule_made_automatic_acts_on_what_is_open() -> None:
    site = after_a_fault(Mode.shadow)
    site.ledger.tables.modes["gpu-lost"] = Mode.auto
    site.run_for(20)
    assert site.node(1).drain


def test_an_approval_lets_it_go_once() -> None:
    site = after_a_fault(Mode.approve)
    (run,) = site.runs
    site.approve(run.id)
    site.run_for(20)
    assert site.node(1).drain
    assert [one.state for one in site.runs] == [RunState.waiting]


def test_an_approved_run_is_held_by_no_guard() -> None:
    """Its incident asked for approval until the run ended: in the queue, and by buttons of later messages."""
    site = after_a_fault(Mode.approve)
    (run,) = site.runs
    with site.ledger.transaction() as tx:
        tx.set_run_state(run.id, RunState.running, why="bob approved", at=site.now, approved_by="bob")
    site.run_for(20)
    assert (site.incident.run, site.incident.held_by) == (run.id, None)
    assert about_incident(site.incident, Stage.acknowledged).run == ""


def test_time_never_approves() -> None:
    site = after_a_fault(Mode.approve)
    site.run_for(48 * 3600, step_s=3600)
    assert not site.node(1).drain
    assert site.ledger.tables.slots == {}


def test_shadow_goes_through_an_incident_once() -> None:
    site = after_a_fault(Mode.shadow)
    decisions = len(site.ledger.tables.decisions)
    site.run_for(600, step_s=10)
    assert len(site.runs) == 1
    assert len(site.ledger.tables.decisions) == decisions


# --- severity and pages -------------------------------------------------------------------------------------


def test_fault_that_healer_may_not_repair_pages_once_after_ten_seconds() -> None:
    site = Site(10, mode=Mode.suggest)
    site.slurm.add_job(nodes=2)
    lost(site)
    settled(site)
    assert site.incident.severity is Severity.P0
    settled(site, 9)
    assert site.pages == []
    settled(site, 1)
    assert [page.id for page in site.pages] == [f"{site.incident.id}:p0:20261120T03"]
    site.run_for(3600, step_s=60)
    assert len(site.pages) == 1


def test_incident_that_is_open_again_and_p0_pages_again_within_the_hour() -> None:
    """Its end was announced: the pager has closed it."""
    site = Site(10, mode=Mode.suggest)
    site.slurm.add_job(nodes=2)
    lost(site)
    settled(site)
    settled(site, 10)
    known = site.incident
    site.send_command(CommandKind.acknowledge, incident=known.id)
    site.send_command(CommandKind.resolve, incident=known.id)
    site.run_for(5)
    site.send_command(CommandKind.reopen, incident=known.id)
    site.run_for(20)
    assert len(site.pages) == 2
    assert site.pages[1].id.startswith(f"{known.id}:p0:20261120T03:")
    assert site.incident.acknowledged_by is None, "who looked after it may have gone home"


def test_self_healing_fault_is_p1_and_pages_no_one() -> None:
    site = after_a_fault(Mode.auto)
    site.run_for(120)
    assert site.incident.severity is Severity.P1
    assert site.pages == []


def test_p0_ends_when_healer_may_act_after_all() -> None:
    site = Site(10)
    site.pause()
    lost(site)
    settled(site)
    assert site.incident.severity is Severity.P0
    site.end_pause()
    settled(site, 1)
    assert site.incident.severity is Severity.P1
    site.run_for(60)
    assert site.pages == []


def test_a_drain_that_does_not_work_is_p0_and_pages() -> None:
    """The run is stuck: healer cannot act, and the node still takes jobs."""
    site = Site(10, scheduler=Watched)
    site.scheduler.before = lambda call: fail(call, "drain", SchedulerRefused("Invalid user id", 2010))
    lost(site)
    settled(site)
    site.run_for(15)
    assert [run.state for run in site.runs] == [RunState.stuck]
    assert site.incident.severity is Severity.P0
    assert site.incident.known_bad_in_service
    assert [page.id for page in site.pages] == [f"{site.incident.id}:p0:20261120T03"]
    assert "Invalid user id" in site.pages[0].text


@pytest.mark.parametrize(
    ("line", "severity"), [(DEGRADED, Severity.P2), (APPLICATION, Severity.P3), (FATAL, Severity.P1)]
)
def test_otherwise_the_severity_of_the_rule_applies(line: str, severity: Severity) -> None:
    site = Site(10)
    site.walk(*site.say(1, line))
    site.run_for(20)
    assert site.incident.severity is severity
    assert site.pages == []


def test_an_unusable_node_that_must_stay_is_known_bad_in_service() -> None:
    site = Site(10)
    site.pause()
    lost(site)
    settled(site)
    assert site.incident.known_bad_in_service
    site.end_pause()
    site.run_for(10)
    assert not site.incident.known_bad_in_service


def test_the_most_urgent_gets_the_last_slot() -> None:
    """Two wait for one slot: the incident whose job is hit goes first, though its name comes later."""
    one_slot = GuardSettings(max_nodes=1, min_service_share=0.0, breaker_share=1.0)
    site = Site(10, rules=rules_in(guards=one_slot))
    site.slurm.add_job(required=[name(9)])
    site.walk(*site.say(1, FATAL), *site.say(9, FATAL))
    settled(site)
    assert [run.node for run in site.runs if run.state is RunState.running] == [name(9)]
    (held,) = [one for one in site.open_incidents if one.root.node == name(1)]
    assert held.held_by is Guard.slots


# --- unknown is never bad -----------------------------------------------------------------------------------


def test_a_clock_set_back_a_day_leaves_no_new_reference_unread() -> None:
    site = Site(4)
    site.picture.references_at = later(86_400)
    site.ledger.tables.references[REFERENCE.kind] = REFERENCE
    site.walk()
    assert list(site.picture.references.values()) == [REFERENCE]


def test_unknown_xid_drains_nothing() -> None:
    site = Site(10)
    site.walk(*site.say(1, LOST.replace("79", "991")))
    site.run_for(60)
    assert (site.incident.rule, site.runs) == ("xid-unknown", [])
    assert site.node(1).in_service


def test_a_stale_picture_of_slurm_holds_everything() -> None:
    site = Site(10)
    lost(site)
    site.clock.advance(31)
    walk(site.ledger, site.rules, site.picture, [], site.now)
    assert site.incident.held_by is Guard.stale
    assert not any(run.state is RunState.running for run in site.runs)


def test_a_silent_sender_on_a_node_that_slurm_reaches_touches_nothing() -> None:
    site = Site(10)
    for _ in range(4):
        site.walk(*[beat(name(number), site.now) for number in range(1, 11)])
        site.clock.advance(10)
    for _ in range(10):
        site.walk(*[beat(name(number), site.now) for number in range(2, 11)])
        site.clock.advance(10)
    assert site.incident.fault == "sender-silent"
    assert site.runs == []
    site.walk(beat(name(1), site.now))
    assert site.open_incidents == []


def test_a_silent_node_that_slurm_gave_up_is_drained() -> None:
    site = Site(10, slurmd_timeout_s=60)
    for _ in range(4):
        site.walk(*[beat(name(number), site.now) for number in range(1, 11)])
        site.clock.advance(10)
    site.slurm.silence(name(1))
    for _ in range(10):
        site.walk(*[beat(name(number), site.now) for number in range(2, 11)])
        site.drive()
        site.clock.advance(10)
    assert site.node(1).drain
    assert "node-silent" in {one.fault for one in site.open_incidents}


def test_a_cause_that_is_gone_takes_what_waited_for_leave_with_it() -> None:
    """A node held by a pause speaks again: nothing may drain it when the pause ends."""
    site = Site(10)
    for _ in range(4):
        site.walk(*[beat(name(number), site.now) for number in range(1, 11)])
        site.clock.advance(10)
    site.pause()
    site.slurm.silence(name(1))
    for _ in range(8):
        site.walk(*[beat(name(number), site.now) for number in range(2, 11)])
        site.clock.advance(10)
    assert [run.state for run in site.runs] == [RunState.held]
    site.slurm.answer(name(1))
    for _ in range(3):
        site.walk(*[beat(name(number), site.now) for number in range(1, 11)])
        site.clock.advance(10)
    assert site.open_incidents == []
    assert [run.state for run in site.runs] == [RunState.rejected]
    site.end_pause()
    site.run_for(10)
    assert site.node(1).in_service


def test_a_fault_outside_the_picture_of_slurm_is_held() -> None:
    site = Site(10)
    site.walk(*site.say("gpu9999", LOST))
    site.run_for(5)
    assert site.incident.held_by is Guard.ownership
    assert not any(run.state is RunState.running for run in site.runs)


# --- the breaker --------------------------------------------------------------------------------------------


def test_a_storm_opens_the_breaker_with_one_page_and_nothing_more_goes() -> None:
    site = Site(20)
    site.walk(*[seen for number in range(1, 4) for seen in site.say(number, LOST)])
    site.run_for(60)
    assert site.ledger.tables.breaker is not None
    assert site.ledger.tables.breaker.state is BreakerState.open
    assert not any(site.node(number).drain for number in range(1, 4))
    (wave,) = [one for one in site.open_incidents if one.rule == "wave"]
    # Held one by one, they are part of the wave: one incident for people to decide. Law 2 is reported there
    # too.
    assert site.open_incidents == [wave]
    assert wave.severity is Severity.P0
    assert wave.folded == wave.bad_nodes == tuple(name(number) for number in range(1, 4))
    kept = {one.guard for one in site.ledger.tables.decisions if one.outcome is Outcome.held}
    assert kept == {Guard.breaker}
    assert len(site.pages) == 1
    assert site.pages[0].id.startswith("breaker:pod1:")
    assert site.audited("breaker.opened") == 1


def test_a_dead_gpu_outside_the_storm_pages_though_the_open_breaker_holds_it() -> None:
    """Law 3: an open breaker still pages. The storm's page was hours ago, and named other nodes."""
    site = Site(20)
    site.walk(*[seen for number in range(1, 4) for seen in site.say(number, LOST)])
    site.run_for(60)
    site.clock.advance(7200)
    site.run_for(60, *site.say(9, FATAL))
    (alone,) = [one for one in site.open_incidents if one.rule != "wave"]
    assert (alone.root.node, alone.held_by, alone.severity) == (name(9), Guard.breaker, Severity.P0)
    storm, page = site.pages
    assert storm.id.startswith("breaker:") and page.incident == alone.id


def test_what_the_open_breaker_holds_has_its_ticket_to_which_the_run_adds_later() -> None:
    """Law 3: an open breaker still tickets."""
    site = Site(20)
    site.ledger.tables.breaker = Breaker(cluster=CLUSTER, state=BreakerState.open, since=site.now)
    site.run_for(60, *site.say(9, FATAL))
    (alone,) = site.open_incidents
    (filed,) = _tickets(site, alone)
    assert (filed.stage, alone.held_by) == (TicketStage.opened, Guard.breaker)
    site.ledger.tables.breaker = Breaker(cluster=CLUSTER)
    site.run_for(60)
    assert site.node(9).drain
    (run,) = site.runs
    added = [one for one in _tickets(site, alone) if one.id == f"{filed.id}:{run.id}"]
    assert [one.stage for one in added] == [TicketStage.updated]
    assert [one.stage for one in _tickets(site, alone)].count(TicketStage.opened) == 1


def test_what_waits_for_the_canary_of_the_breaker_has_no_ticket_yet() -> None:
    """The person has reset the breaker: what is left is the canary's to show."""
    site = Site(20)
    site.ledger.tables.breaker = Breaker(cluster=CLUSTER, state=BreakerState.half_open, since=site.now)
    site.run_for(10, *site.say(8, FATAL))
    site.run_for(10, *site.say(9, FATAL))
    waits = next(one for one in site.open_incidents if one.root.node == name(9))
    assert waits.held_by is Guard.breaker
    assert _tickets(site, waits) == []


def test_what_the_floor_holds_pages_and_has_its_ticket_to_which_the_run_adds_later() -> None:
    """Law 2: a node that must stay in service pages; a person needs the ticket to get it repaired."""
    site = Site(20)
    for number in (1, 2):
        site.slurm.drain(name(number), "power supply")
    site.run_for(60, *site.say(9, FATAL))
    incident = next(one for one in site.open_incidents if one.root.node == name(9))
    assert (incident.held_by, incident.severity) == (Guard.floor, Severity.P0)
    assert [page.incident for page in site.pages] == [incident.id]
    (filed,) = _tickets(site, incident)
    assert filed.stage is TicketStage.opened
    site.slurm.resume(name(1))
    site.run_for(60)
    assert site.node(9).drain
    assert [one.stage for one in _tickets(site, incident)].count(TicketStage.opened) == 1


def test_what_the_floor_holds_at_its_drain_has_its_ticket_too() -> None:
    """Other nodes left service between the decision and the drain: a page went out, and no ticket."""
    site = Site(20)
    site.walk(*site.say(9, FATAL))
    site.clock.advance(3)
    site.walk()
    (run,) = site.runs
    assert run.state is RunState.running
    for number in (1, 2):
        site.slurm.drain(name(number), "power supply")
    site.run_for(60)
    incident = next(one for one in site.open_incidents if one.root.node == name(9))
    assert (site.node(9).in_service, incident.severity) == (True, Severity.P0)
    assert [page.incident for page in site.pages] == [incident.id]
    assert [one.stage for one in _tickets(site, incident)] == [TicketStage.opened]
    site.slurm.resume(name(1))
    site.run_for(60)
    assert site.node(9).drain
    assert [one.stage for one in _tickets(site, incident)].count(TicketStage.opened) == 1


@pytest.mark.parametrize("begun", [False, True])
def test_a_hold_by_the_floor_for_seconds_opens_no_ticket_and_no_page(begun: bool) -> None:
    site = Site(20)
    if begun:
        site.walk(*site.say(9, FATAL))
        site.clock.advance(3)
        site.walk()
    for number in (1, 2):
        site.slurm.drain(name(number), "power supply")
    site.run_for(7, *([] if begun else site.say(9, FATAL)))
    incident = next(one for one in site.open_incidents if one.root.node == name(9))
    assert incident.severity is Severity.P0
    assert (_tickets(site, incident), site.pages) == ([], [])
    site.slurm.resume(name(1))
    site.run_for(5)
    assert site.node(9).drain and not site.pages


def test_a_hold_by_the_floor_for_seconds_opens_no_ticket_for_a_plan_that_waited_before() -> None:
    site = SlowSite(20, rules=rules_in())
    job = site.slurm.add_job(required=[name(9)])
    site.look()

    def goes_on(seconds: int, step_s: int = 1) -> None:
        for _ in range(seconds // step_s):
            site.clock.advance(step_s)
            site.find("straggler", "gpu-hot", node=9, gpu=0)
            site.drive()

    goes_on(600, step_s=30)
    for number in (1, 2):
        site.slurm.drain(name(number), "power supply")
    site.slurm.complete(job)
    goes_on(9)
    (run,) = site.runs
    assert "capacity floor" in (run.question or "")
    slow = next(one for one in site.open_incidents if one.rule == "straggler")
    assert (slow.severity, _tickets(site, slow)) == (Severity.P2, [])
    goes_on(10)
    assert [one.stage for one in _tickets(site, slow)] == [TicketStage.opened]


def test_an_open_breaker_opens_no_ticket_for_a_rule_that_only_suggests() -> None:
    site = Site(20, mode=Mode.suggest)
    site.ledger.tables.breaker = Breaker(cluster=CLUSTER, state=BreakerState.open, since=site.now)
    site.run_for(60, *site.say(9, FATAL))
    assert _tickets(site, site.incident) == []


def _tickets(site: Site, incident: Incident) -> list[Ticket]:
    sent = [one for _, one in site.ledger.tables.sent if isinstance(one, Ticket)]
    return [one for one in sent if one.incident == incident.id]


def test_faults_during_maintenance_are_no_storm_when_it_ends() -> None:
    site = Site(60)
    under_work = tuple(name(number) for number in range(1, 6))
    site.slurm.reserve(Reservation(name="firmware", nodes=under_work, users=("root",), maintenance=True))
    site.run_for(1)
    site.walk(*[seen for number in range(1, 6) for seen in site.say(number, LOST)])
    site.run_for(30)
    site.slurm.unreserve("firmware")
    site.run_for(10)
    site.run_for(60, *site.say(9, LOST))
    assert site.ledger.tables.breaker is None or site.ledger.tables.breaker.state is BreakerState.closed
    assert site.node(9).drain


def test_after_a_persons_reset_one_canary_goes_and_its_success_closes_the_breaker() -> None:
    site = Site(20)
    site.walk(*[seen for number in range(1, 4) for seen in site.say(number, LOST)])
    site.run_for(10)
    breaker = site.ledger.tables.breaker
    assert breaker is not None
    site.clock.advance(3600)
    site.ledger.tables.breaker = reset(breaker, "ann", "driver rolled back", site.now)
    site.walk()
    assert sum(run.state is RunState.running for run in site.runs) == 1
    (canary,) = [one for one in site.open_incidents if one.rule != "wave"]
    (wave,) = [one for one in site.open_incidents if one.rule == "wave"]
    assert canary.root.node == name(1)
    assert wave.folded == (name(2), name(3))
    site.run_for(20)
    assert site.ledger.tables.breaker.state is BreakerState.half_open
    site.run_for(COOLDOWN.total_seconds())  # its drain lasted that long: the repair may take hours
    assert site.ledger.tables.breaker.state is BreakerState.closed
    # All are incidents of their own again: the floor of service keeps the last of them, known bad.
    own = {one.root.node: one for one in site.open_incidents if one.rule != "wave"}
    assert set(own) == {name(1), name(2), name(3)}
    assert sorted(site.node(number).drain for number in (2, 3)) == [False, True]
    assert [one.held_by for one in own.values() if one.held_by] == [Guard.floor]
    (wave,) = [one for one in site.open_incidents if one.rule == "wave"]
    assert (wave.folded, wave.bad_nodes, wave.severity) == ((), (), Severity.P1)
    assert len(site.pages) <= 1 + len(site.open_incidents)


def test_a_canary_that_fails_opens_the_breaker_with_a_page_of_its_own() -> None:
    """Who reset it may be gone; until the next reset nothing more is drained."""
    site = Site(20)
    site.walk(*[seen for number in range(1, 4) for seen in site.say(number, LOST)])
    site.run_for(10)
    site.clock.advance(3600)
    with site.ledger.command() as tx:
        reset_breaker(tx, Order(CLUSTER, "ann", "driver rolled back", "q1", site.clock))
    site.walk()
    (canary,) = [run for run in site.runs if run.state is RunState.running]
    site.drive()
    with site.ledger.transaction() as tx:
        tx.set_run_state(canary.id, RunState.stuck, why="the drain failed", at=site.now)
    site.run_for(10)
    assert site.ledger.tables.breaker is not None
    assert site.ledger.tables.breaker.state is BreakerState.open
    first, second = [one for one in site.pages if one.id.startswith("breaker:")]
    assert first.id != second.id and canary.id[:8] in second.text
    assert site.audited("breaker.opened") == 2


def test_a_reset_resolves_the_page_of_the_breaker() -> None:
    site = Site(20)
    site.walk(*[seen for number in range(1, 4) for seen in site.say(number, LOST)])
    site.run_for(10)
    (page,) = site.pages
    with site.ledger.command() as tx:
        reset_breaker(tx, Order(CLUSTER, "ann", "driver rolled back", "q1", site.clock))
    (news,) = [one for _, one in site.ledger.tables.sent if one.id.endswith(":reset")]
    assert isinstance(news, Message)
    assert (news.thread, news.about.stage, news.page) == (page.thread, Stage.resolved, False)
    assert "ann" in news.title and news.text == "driver rolled back"


def test_more_findings_in_a_wave_open_nothing_and_a_person_closes_all() -> None:
    site = Site(20)
    site.walk(*[seen for number in range(1, 4) for seen in site.say(number, FATAL)])
    site.run_for(10)
    (wave,) = site.open_incidents
    before = wave.evidence_count
    site.walk(*site.say(2, FATAL))
    site.run_for(5)
    (wave,) = site.open_incidents
    assert wave.evidence_count == before + 1
    site.walk(*site.say(2, LOST))  # certainly unusable now: law 2 is reported
    site.run_for(5)
    assert [one.bad_nodes for one in site.open_incidents if one.bad_nodes] == [(name(2),)]
    for one in site.open_incidents:
        site.send_command(CommandKind.resolve, incident=one.id)
    site.run_for(5)
    assert site.open_incidents == []
    breaker = site.ledger.tables.breaker
    assert breaker is not None
    site.ledger.tables.breaker = reset(breaker, "ann", "all of them were rebooted", site.now)
    site.run_for(20)
    assert site.open_incidents == []
    assert not any(site.node(number).drain for number in (1, 2, 3))


def test_links_that_go_down_one_node_after_another_drain_not_even_the_first() -> None:
    """Its report comes first only because one had to: what they share is seen within the settling time."""
    site = Site(72)
    for number in range(1, 10):
        down = f"NVRM: Xid (PCI:0008:01:00): 155, NVLINK: Link {number} brought down"
        site.run_for(0.1, *site.say(number, down))
    site.run_for(30)
    assert [one.rule for one in site.open_incidents] == ["wave"]
    assert not any(site.node(number).drain for number in range(1, 10))


def test_two_nodes_are_no_storm() -> None:
    site = Site(100)
    site.walk(*site.say(1, LOST), *site.say(2, LOST))
    site.run_for(20)
    assert site.node(1).drain
    assert site.node(2).drain
    assert site.pages == []


def test_a_person_takes_a_node_out_of_a_wave_and_it_stays_its_own() -> None:
    site = Site(20)
    site.walk(*[seen for number in range(1, 4) for seen in site.say(number, FATAL)])
    site.run_for(10)
    (wave,) = site.open_incidents
    part = next(one for one in site.incidents if one.root.node == name(2))
    site.send_command(
        CommandKind.split, incident=wave.id, incidents=[part.id], reason="this one has a burnt slot"
    )
    site.run_for(30)
    left, own = sorted(site.open_incidents, key=lambda one: one.rule != "wave")
    assert (left.folded, own.id) == ((name(1), name(3)), part.id)
    assert (own.held_by, own.merged_into, own.acknowledged_by) == (Guard.breaker, None, "ann")


def test_a_wave_lasts_as_long_as_the_breaker_holds_its_parts() -> None:
    """Three dead GPUs on a Friday evening; the breaker is reset on Monday."""
    site = Site(20)
    site.walk(*[seen for number in range(1, 4) for seen in site.say(number, LOST)])
    site.run_for(60)
    site.run_for(60 * 3600, step_s=1800)
    (wave,) = site.open_incidents
    assert wave.bad_nodes == tuple(name(number) for number in range(1, 4))
    assert site.ledger.tables.breaker is not None
    site.ledger.tables.breaker = reset(site.ledger.tables.breaker, "ann", "driver rolled back", site.now)
    site.run_for(60)
    (canary,) = [one for one in site.open_incidents if one.rule != "wave"]
    assert (canary.root.node, canary.state) == (name(1), IncidentState.mitigating)


# --- a person's word ----------------------------------------------------------------------------------------


def test_a_persons_resume_of_our_drain_is_a_veto_for_a_day() -> None:
    site = after_a_fault(Mode.auto)
    site.slurm.resume(name(1))
    site.run_for(10)
    (veto,) = site.ledger.tables.vetoes
    assert veto.node == name(1)
    assert 24 * 3600 - 10 <= (veto.until - site.now).total_seconds() <= 24 * 3600
    assert site.open_incidents == []
    assert site.ledger.tables.slots == {}
    assert [run.state for run in site.runs] == [RunState.cancelled]
    site.walk(*site.say(1, FATAL))
    site.run_for(10)
    assert not site.node(1).drain
    assert site.incident.held_by is Guard.ownership
    site.run_for(25 * 3600, step_s=600)
    assert site.audited("node.drained") == 2


class Poller:
    """Shows the walk what Slurm showed at the last `poll`, dated by a clock that is `ahead_s` ahead."""

    def __init__(self, site: Site, ahead_s: float) -> None:
        self.site, self.ahead = site, timedelta(seconds=ahead_s)
        self.poll()
        site.look = self.look  # type: ignore[method-assign]

    def poll(self) -> None:
        self.seen = self.site.slurm.snapshot()

    def look(self) -> None:
        shown = msgspec.structs.replace(self.seen, taken_at=self.site.now + self.ahead)
        self.site.picture.show(shown, self.site.now)
        self.site.ledger.snapshot = shown


def test_a_picture_from_before_the_drain_shows_no_resume_of_it_whatever_its_clock_says() -> None:
    site = Site(10)
    poller = Poller(site, ahead_s=20)
    site.run_for(10, *site.say(1, LOST))
    assert site.node(1).drain
    assert site.ledger.tables.vetoes == []
    poller.poll()
    site.run_for(2)
    site.slurm.resume(name(1))
    poller.poll()
    site.run_for(2)
    (veto,) = site.ledger.tables.vetoes
    assert veto.node == name(1)


def test_a_resume_that_came_before_any_picture_showed_the_drain_is_a_veto_after_a_minute() -> None:
    site = Site(10)
    poller = Poller(site, ahead_s=0)
    site.run_for(3, *site.say(1, LOST))
    assert site.node(1).drain
    site.slurm.resume(name(1))
    for _ in range(70):
        poller.poll()
        site.run_for(1)
    assert [veto.node for veto in site.ledger.tables.vetoes] == [name(1)]


def drained_and_dead() -> Site:
    """Node 1 is drained, a picture shows it, and the worker died before it recorded the drain."""
    site = Site(10)
    site.walk(*site.say(1, LOST))
    site.clock.advance(2)
    site.walk()
    site.drive_to("done:drain")
    site.clock.advance(3)
    site.walk()
    assert site.node(1).drain and [slot.drained_at for slot in site.ledger.tables.slots.values()] == [None]
    return site


def test_a_drain_that_its_worker_did_not_live_to_record_is_a_persons_to_lift() -> None:
    site = drained_and_dead()
    site.slurm.resume(name(1))
    site.clock.advance(3)
    site.run_for(60)
    assert [veto.node for veto in site.ledger.tables.vetoes] == [name(1)]
    assert [run.state for run in site.runs] == [RunState.cancelled]
    assert (site.node(1).drain, site.open_incidents, site.ledger.tables.slots) == (False, [], {})
    assert (site.audited("node.drained"), site.audited("node.vetoed")) == (0, 1)


def test_a_drain_that_its_worker_did_not_live_to_record_is_recorded_by_the_next_one() -> None:
    site = drained_and_dead()
    site.clock.advance(15)
    site.run_for(10)
    assert site.node(1).drain and site.ledger.tables.vetoes == []
    assert site.audited("node.drained") == 1


def test_a_worker_that_takes_over_drains_no_node_that_a_person_returned_since_the_last_picture() -> None:
    site = drained_and_dead()
    poller = Poller(site, ahead_s=0)
    site.slurm.resume(name(1))
    site.clock.advance(15)
    site.drive()
    assert not site.node(1).drain
    poller.poll()
    site.run_for(60)
    assert [veto.node for veto in site.ledger.tables.vetoes] == [name(1)]
    assert (site.node(1).drain, site.open_incidents) == (False, [])


def test_a_veto_of_a_walk_whose_clock_is_behind_the_workers_frees_the_slot() -> None:
    site = after_a_fault(Mode.auto)
    (slot,) = site.ledger.tables.slots.values()
    ahead = msgspec.structs.replace(slot, drained_at=site.now + timedelta(seconds=30))
    site.ledger.tables.slots[name(1)] = ahead
    site.look()
    site.walk()
    site.slurm.resume(name(1))
    poller = Poller(site, ahead_s=40)
    for _ in range(5):
        poller.poll()
        site.run_for(1)
    assert (site.audited("node.vetoed"), site.audited("run.cancelled")) == (1, 1)
    assert site.ledger.tables.slots == {}


def test_a_return_that_is_written_while_the_walk_reads_is_no_persons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen under kills: the walk read the slots, the run wrote its end, then the walk read the runs."""
    site = after_a_fault(Mode.auto)
    site.ask("resume", 1)
    stale = list[GateFacts]()

    def look(where: str) -> None:
        if where.startswith("performed:") and not site.node(1).drain and not stale:
            site.look()
            stale.append(site.ledger.facts())

    site.on_checkpoint = look
    while RunState.running in {run.state for run in site.runs if run.playbook == "resume"}:
        site.clock.advance(1)
        site.drive()
    assert stale[0].slots and site.ledger.tables.slots == {}
    monkeypatch.setattr(MemoryTx, "lock_gate", lambda _: stale[0])
    site.walk()
    assert site.ledger.tables.vetoes == []
    assert site.audited("node.vetoed") == 0
    # Nor does the slot that is free pass for one that its node has: a drain asks for one of its own.
    site.walk(*site.say(1, FATAL))
    answers = site.ledger.tables.decisions[-1].answers
    assert [one.why for one in answers if "already" in one.why] == []


class Removal:
    """Node 1 is removed from Slurm, then put back; Slurm drops its drain. `flags`: of its state then."""

    def __init__(self, site: Site, *flags: str) -> None:
        self.site, self.look, self.gone, self.flags = site, site.look, False, flags
        site.look = self.without  # type: ignore[method-assign]

    def without(self) -> None:
        self.look()
        shown = self.site.ledger.snapshot
        assert shown is not None
        nodes = {node: known for node, known in shown.nodes.items() if node != name(1)}
        if not self.gone:
            first = shown.nodes[name(1)]
            nodes |= {name(1): msgspec.structs.replace(first, state=(*first.state, *self.flags))}
        self.site.ledger.snapshot = msgspec.structs.replace(shown, nodes=nodes)
        self.site.picture.show(self.site.ledger.snapshot)

    def take_out(self) -> None:
        self.gone = True
        self.site.run_for(10)

    def put_back(self) -> None:
        self.site.slurm.resume(name(1))
        self.gone = False
        self.site.run_for(10)


def removed_and_put_back(*flags: str) -> Site:
    site = Site(10)
    removal = Removal(site, *flags)
    site.run_for(400, *site.say(1, REMAP), step_s=2)
    (run,) = site.runs
    assert run.state is RunState.waiting
    removal.take_out()
    assert site.ledger.tables.slots == {}
    removal.put_back()
    return site


def test_a_faulty_dynamic_node_that_was_removed_and_registers_again_is_drained_again() -> None:
    """Seen on 22.05: the run waited for a repair while jobs started there."""
    site = removed_and_put_back("DYNAMIC_NORM")
    assert (site.node(1).drain, site.ledger.tables.vetoes) == (True, [])
    site.run_for(400, step_s=2)
    assert [run.state for run in site.runs] == [RunState.cancelled, RunState.waiting]
    assert site.incident.state is IncidentState.mitigating and list(site.ledger.tables.slots) == [name(1)]
    site.slurm.resume(name(1))
    site.run_for(10)
    assert [veto.node for veto in site.ledger.tables.vetoes] == [name(1)], "a person's word counts as before"


def test_a_node_that_a_person_put_back_into_slurm_conf_is_judged_by_what_it_reports_from_then_on() -> None:
    site = removed_and_put_back()
    site.run_for(400, step_s=2)
    assert [run.state for run in site.runs] == [RunState.cancelled]
    assert (site.node(1).in_service, site.open_incidents) == (True, [])
    site.run_for(400, *site.say(1, REMAP), step_s=2)
    assert [run.state for run in site.runs] == [RunState.cancelled, RunState.waiting] and site.node(1).drain


class NoDrains:
    """Slurm refuses every drain."""

    def __init__(self, slurm: SimScheduler) -> None:
        self._slurm = slurm

    def __getattr__(self, call: str) -> object:
        return getattr(self._slurm, call)

    def drain(self, nodes: object, reason: str) -> None:
        raise SchedulerRefused(say("actions.drain_not_shown"))


def test_a_run_of_a_reopened_incident_that_could_not_drain_its_node_lost_no_drain() -> None:
    """The incident was drained once before; its node was never removed from Slurm."""
    site = Site(10)
    site.run_for(400, *site.say(1, REMAP), step_s=2)
    known = site.incident.id
    site.ask("resume", 1)
    site.run_for(60, step_s=2)
    assert site.open_incidents == [] and site.node(1).in_service
    site.driver.tools = msgspec.structs.replace(site.driver.tools, scheduler=NoDrains(site.slurm))
    site.send_command(CommandKind.reopen, incident=known)
    site.run_for(120, step_s=2)
    (run,) = [run for run in site.runs if run.state is RunState.stuck]
    assert (site.incident.run, site.incident.is_open, site.incident.severity) == (run.id, True, Severity.P0)


def test_a_persons_drain_in_place_of_ours_is_no_veto() -> None:
    site = after_a_fault(Mode.auto)
    site.slurm.person_drain(name(1), "dead PSU", "ann")
    site.run_for(60)
    assert site.ledger.tables.vetoes == []
    assert site.node(1).reason == "dead PSU"
    (persons,) = [one for one in site.open_incidents if one.rule == "person-drain"]
    assert persons.owner == "ann"


@pytest.mark.parametrize("state", [RunState.cancelled, RunState.rejected])
def test_incident_stopped_by_a_person_stays_stopped_until_reopened(state: RunState) -> None:
    site = after_a_fault(Mode.approve)
    (run,) = site.runs
    site.cancel(run.id, state)
    site.run_for(3600, step_s=60)
    assert site.incident.stopped_by == "ann"
    assert [one.state for one in site.runs] == [state]
    site.send_command(CommandKind.reopen, incident=site.incident.id)
    site.run_for(5)
    assert site.incident.stopped_by is None
    assert sorted(one.state for one in site.runs) == sorted([state, RunState.waiting_approval])


def test_a_second_reopen_does_not_end_the_run_that_the_first_one_let_begin() -> None:
    site = after_a_fault(Mode.auto)
    known = site.incident.id
    site.send_command(CommandKind.resolve, incident=known)
    site.run_for(5)
    for person in ("ann", "bob"):
        site.send_command(CommandKind.reopen, incident=known, by=person)
        site.run_for(10)
    assert [run.state for run in site.runs] == [RunState.cancelled, RunState.waiting]


def test_what_was_not_seen_after_planned_work_stays_open_once_a_person_reopens_it() -> None:
    site = Site(20)
    site.slurm.reserve(Reservation(name="firmware", nodes=(name(1),), users=("root",), maintenance=True))
    site.run_for(1)
    site.run_for(30, *site.say(1, FATAL))
    site.slurm.unreserve("firmware")
    site.run_for(2400, step_s=60)
    (known,) = site.incidents
    assert "was not seen" in (known.closed_why or "")
    site.send_command(CommandKind.reopen, incident=known.id)
    site.run_for(10)
    assert site.incident.id == known.id
    assert site.node(1).drain


def restart(site: Site) -> None:
    """Another detector begins, with what the first one stored."""
    site.picture = Picture(CLUSTER, watching_since=site.now)
    site.look()
    site.picture.load_inventories(list(site.ledger.tables.inventories.values()))


def test_planned_work_that_ended_while_no_detector_ran_explains_what_was_logged_under_it() -> None:
    """The follower delivers late what the node logged; its GPU was pulled out by plan."""
    site = Site(20)
    site.slurm.reserve(Reservation(name="firmware", nodes=(name(1),), users=("root",), maintenance=True))
    site.run_for(5)
    site.clock.advance(600)
    logged_at = site.now
    site.clock.advance(60)
    site.slurm.unreserve("firmware")
    site.clock.advance(600)
    restart(site)
    site.run_for(60, *site.say(1, LOST, event_at=logged_at))
    assert site.incident.severity is Severity.P3
    assert not site.node(1).drain
    site.run_for(30, *site.say(1, f"{LOST} again"))
    assert site.node(1).drain, "what comes after the work is a fault"


def test_a_window_of_the_sites_list_that_ended_hours_before_the_restart_explains_its_lines_too() -> None:
    window = Maintenance(nodes=(name(1),), why="new GPUs", until=START + timedelta(minutes=30))
    site = Site(20, rules=rules_in(guards=msgspec.structs.replace(shipped().guards, maintenance=(window,))))
    site.walk(beat(name(1), site.now, boot_id="b1"))
    site.clock.advance(4 * 3600)
    restart(site)
    site.walk(beat(name(1), site.now, boot_id="b1"))
    site.run_for(60, *site.say(1, LOST, boot_id="b1", event_at=START + timedelta(minutes=10)))
    assert site.incident.severity is Severity.P3
    assert not site.node(1).drain


@pytest.mark.parametrize("word", ["cancel", "resolve"])
def test_a_reopened_incident_goes_on_from_the_drain_that_is_still_in_place(word: str) -> None:
    site = after_a_fault(Mode.auto)
    known = site.incident
    if word == "cancel":
        site.cancel(site.runs[0].id)
    else:
        site.send_command(CommandKind.resolve, incident=known.id)
    site.run_for(30, step_s=5)
    assert site.node(1).drain and len(site.runs) == 1
    site.send_command(CommandKind.reopen, incident=known.id)
    site.run_for(20, step_s=5)
    first, second = site.runs
    assert (first.state, second.state) == (RunState.cancelled, RunState.waiting)
    (incident,) = [one for one in site.open_incidents if one.id == known.id]
    assert incident.run == second.id
    assert [slot.run for slot in site.ledger.tables.slots.values()] == [second.id]


def test_more_evidence_starts_nothing_that_a_person_stopped() -> None:
    site = after_a_fault(Mode.approve)
    site.cancel(site.runs[0].id)
    site.walk(*site.say(1, FATAL))
    site.run_for(10)
    assert len(site.runs) == 1


def test_resolving_ends_incident_and_run() -> None:
    site = after_a_fault(Mode.approve)
    known = site.incident.id
    site.send_command(CommandKind.resolve, incident=known, reason="false alarm")
    site.run_for(5)
    assert site.ledger.tables.incidents[known].closed_why == "resolved by ann: false alarm"
    assert [run.state for run in site.runs] == [RunState.cancelled]
    assert site.audited("incident.resolved") == 1


def test_a_late_line_does_not_open_again_what_a_person_resolved() -> None:
    """What was logged before and comes after, of the same fault. A later line is news."""
    site = after_a_fault(Mode.off)
    known = site.incident.id
    site.clock.advance(60)
    site.send_command(CommandKind.resolve, incident=known, reason="reseated")
    site.run_for(5)
    assert site.open_incidents == []
    site.walk(*site.say(1, LOST, event_at=START))
    site.run_for(5)
    assert site.open_incidents == []
    site.clock.advance(600)
    site.walk(*site.say(1, LOST))
    site.run_for(5)
    assert [one.id != known for one in site.open_incidents] == [True]


def test_a_late_line_of_another_fault_is_news() -> None:
    site = after_a_fault(Mode.off)
    site.clock.advance(60)
    site.send_command(CommandKind.resolve, incident=site.incident.id, reason="reseated")
    site.run_for(5)
    site.walk(*site.say(1, FATAL, event_at=START))
    site.run_for(5)
    assert [one.fault for one in site.open_incidents] == ["xid-95"]


def test_acknowledge_and_review_stay_with_the_incident() -> None:
    site = after_a_fault(Mode.auto)
    known = site.incident.id
    site.send_command(CommandKind.acknowledge, incident=known)
    site.send_command(CommandKind.review, incident=known, review="true_fault", cause="riser")
    site.run_for(2)
    one = site.ledger.tables.incidents[known]
    assert (one.acknowledged_by, one.review, one.review_cause) == ("ann", "true_fault", "riser")
    site.send_command(CommandKind.assign, incident=known, to="bob")
    site.run_for(2)
    assert site.ledger.tables.incidents[known].acknowledged_by == "bob"


def test_of_two_acknowledgements_at_once_the_first_keeps_the_incident() -> None:
    site = after_a_fault(Mode.auto)
    for person in ("ann", "bob"):
        site.send_command(CommandKind.acknowledge, by=person, incident=site.incident.id)
    site.run_for(2)
    assert site.incident.acknowledged_by == "ann"


def test_merge_ends_the_one_and_names_the_other() -> None:
    site = Site(10, mode=Mode.off)
    lost(site, 1)
    lost(site, 2)
    first, second = site.open_incidents
    site.send_command(CommandKind.merge, incident=second.id, into=first.id)
    site.run_for(3)
    assert site.incident.id == first.id
    assert site.ledger.tables.incidents[second.id].merged_into == first.id


def test_two_people_who_merge_two_incidents_into_each_other_leave_one_open() -> None:
    """The second order was judged before the detector had taken the first."""
    site = after_a_fault(Mode.auto)
    site.clock.advance(60)
    site.run_for(10, *hurt_card(site))
    first, second = site.open_incidents
    site.send_command(CommandKind.merge, incident=first.id, into=second.id)
    site.send_command(CommandKind.merge, incident=second.id, into=first.id, by="bob")
    site.run_for(10)
    assert site.incident.id == second.id
    assert [slot.incident for slot in site.ledger.tables.slots.values()] == [second.id]


def test_a_later_fault_of_the_node_hides_no_forgotten_drain() -> None:
    """A person resolved the incident of the drain; that of the later fault only says that the node is out."""
    site = after_a_fault(Mode.auto)
    site.send_command(CommandKind.resolve, incident=site.incident.id)
    site.run_for(120, *site.say(1, OTHER_GPU), step_s=10)
    assert sorted(one.rule for one in site.open_incidents) == ["forgotten-drain", "gpu-fatal"]
    assert (site.node(1).drain, len(site.runs)) == (True, 1)


def hurt_card(site: Site) -> Sequence[Observation]:
    entry = {"line": CARD, "time": site.now.isoformat()}
    body = {"cluster": CLUSTER, "node": name(1), "entries": [entry]}
    book = site.rules.kernel_lines
    return kernel_log_observations(body, lambda *_: True, site.now, cluster=CLUSTER, book=book).observations


def merged_by_a_person() -> tuple[Site, str, str]:
    """Two faults of different parts of a node; a person has merged that of the drain into the later one."""
    site = after_a_fault(Mode.auto)
    site.clock.advance(60)
    site.run_for(10, *hurt_card(site))
    first, second = site.open_incidents
    assert (first.rule, second.rule, len(site.runs)) == ("gpu-lost", "nic-lost", 1)
    site.send_command(CommandKind.merge, incident=first.id, into=second.id)
    site.run_for(10)
    return site, first.id, second.id


def test_a_merge_by_a_person_leaves_the_drain_to_the_other_incident_of_the_node() -> None:
    site, _, second = merged_by_a_person()
    before, after = site.runs
    assert (before.state, after.state) == (RunState.cancelled, RunState.waiting)
    assert (after.incident, site.incident.run) == (second, after.id)
    assert [(slot.run, slot.incident) for slot in site.ledger.tables.slots.values()] == [(after.id, second)]


def test_what_a_person_splits_from_the_other_incident_of_its_node_stays_apart() -> None:
    site, first, second = merged_by_a_person()
    site.send_command(CommandKind.split, incident=second, incidents=[first])
    site.run_for(10)
    assert {one.id for one in site.open_incidents} == {first, second}


def test_a_returned_node_ends_its_incident_and_is_watched_for_a_week() -> None:
    site = after_a_fault(Mode.auto)
    known = site.incident.id
    site.clock.advance(60)
    site.slurm.resume(name(1))
    site.ledger.tables.slots.clear()
    site.send_command(CommandKind.node_returned, incident=known, node=name(1), reason="new GPU")
    site.walk()
    one = site.ledger.tables.incidents[known]
    assert one.state is IncidentState.resolved
    assert one.closed_why == "returned to service by ann: new GPU"
    assert one.probation_until is not None
    assert (one.probation_until - site.now).total_seconds() == 7 * 24 * 3600
    site.walk(*site.say(1, FATAL, event_at=START))
    assert site.open_incidents == []
    site.clock.advance(1)
    site.walk(*site.say(1, FATAL))
    assert len(site.open_incidents) == 1


def test_command_for_an_unknown_incident_is_ignored() -> None:
    site = Site(10)
    site.send_command(CommandKind.resolve, incident="f" * 32)
    site.walk()
    assert site.incidents == []


# --- a person's own run beside healer's ---------------------------------------------------------------------


def test_a_person_at_work_on_the_node_does_not_break_the_walk() -> None:
    """One run per node: whatever healer wanted to start there waits, and other nodes go on."""
    site = Site(100)
    run = Run(
        id="r-ann",
        cluster="pod1",
        playbook="drain",
        state=RunState.running,
        by="ann",
        reason="fan",
        created_at=START,
        node=name(1),
        wake_at=later(600),
    )
    with site.ledger.transaction() as tx:
        tx.create_run(run)
    site.walk(*site.say(1, LOST), *site.say(2, LOST))
    for _ in range(10):
        settled(site, 1)
        assert [one.id for one in site.runs if one.node == name(1)] == ["r-ann"]
        site.drive()
    assert site.node(2).drain
    with site.ledger.transaction() as tx:
        tx.set_run_state("r-ann", RunState.cancelled, why="done", at=site.now)
    site.run_for(5)
    assert site.node(1).drain


# --- nothing twice, nothing half ----------------------------------------------------------------------------


def test_the_same_batch_twice_changes_nothing() -> None:
    site = Site(10)
    batch = site.say(1, LOST)
    site.walk(*batch)
    settled(site)
    before = copy.deepcopy(site.ledger.tables)
    site.walk(*batch)
    after = site.ledger.tables
    assert (after.incidents, after.runs, after.slots) == (before.incidents, before.runs, before.slots)
    assert len(after.decisions) == len(before.decisions)
    assert len(after.audit) == len(before.audit)
    assert len(after.findings) == len(before.findings)


def test_a_walk_that_fails_leaves_nothing() -> None:
    site = Site(10)
    bad = msgspec.structs.replace(site.rules, rules=())
    site.rules = bad
    site.slurm.person_drain(name(1), "PSU", "ann")
    site.walk(*site.say(1, LOST))
    assert site.incidents == []
    site.rules = rules_in()
    lost(site, 2)
    kept = copy.deepcopy(site.ledger.tables)
    site.send_command(CommandKind.review, incident=site.open_incidents[0].id, review="no such word")
    with pytest.raises(ValueError, match="no such word"):
        site.walk(*site.say(3, LOST))
    assert site.ledger.tables.incidents == kept.incidents


def test_every_decision_is_stored_with_every_guards_answer() -> None:
    site = after_a_fault(Mode.auto)
    (first, *_) = site.ledger.tables.decisions
    assert first.outcome is Outcome.act
    assert {answer.guard for answer in first.answers} >= {Guard.pause, Guard.floor, Guard.slots, Guard.mode}
    assert all(answer.why for answer in first.answers)


def test_a_decision_that_says_the_same_is_stored_once() -> None:
    site = Site(10, mode=Mode.suggest)
    lost(site)
    site.run_for(300)
    assert [one.outcome for one in site.ledger.tables.decisions] == [Outcome.held]


def test_opening_deciding_and_closing_are_audited() -> None:
    site = Site(10, mode=Mode.suggest)
    lost(site)
    site.run_for(5)
    site.send_command(CommandKind.resolve, incident=site.incident.id)
    site.walk()
    verbs = [one.verb for one in site.ledger.tables.audit]
    assert verbs == ["incident.opened", "decision.held", "incident.resolved"]


def test_a_persons_held_run_says_what_holds_it_now() -> None:
    """First the cap of the hour, then a pause; the text stays as long as the same guard holds it."""
    site = Site(40)
    site.ask("drain", 1)
    site.run_for(5)
    second = site.ask("drain", 2)
    site.run_for(3)
    assert "hourly slots used" in (site.ledger.tables.runs[second].question or "")
    epoch = site.ledger.tables.runs[second].epoch
    site.run_for(5)
    assert site.ledger.tables.runs[second].epoch == epoch
    site.pause()
    site.run_for(3)
    held = site.ledger.tables.runs[second]
    assert (held.state, "hands off" in (held.question or "")) == (RunState.held, True), held.question
