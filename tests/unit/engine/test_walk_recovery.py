"""The walk after something went wrong: news that is on its way, forgotten drains, gone nodes, the canary."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from healer.decisions import COOLDOWN, reset
from healer.engine.command import Commands
from healer.engine.command import Site as Where
from healer.engine.permission import free_slots_of
from healer.engine.walk import walk
from healer.model import (
    ENDED_RUN_STATES,
    Breaker,
    BreakerState,
    CommandKind,
    GateFacts,
    Guard,
    IncidentState,
    LogEntry,
    Mode,
    Outcome,
    Playbook,
    Run,
    RunState,
    Severity,
    SlurmNode,
    Step,
    StepEvent,
    Verb,
)
from healer.playbooks.advance import UNDO
from healer.ports.commanding import RunRequest
from healer.ports.scheduling import SchedulerRefused
from healer.sim import memory_ledger
from healer.sim.ledger_tables import gate_facts
from healer.sim.sim_slurm import SimScheduler
from tests.support.loop import CLUSTER, FATAL, LOST, Site, name, rules_in
from tests.unit.engine.test_drive import Watched, fail


def drained(site: Site, node: int = 1) -> str:
    """The node is drained for a lost GPU and waits for its repair; the incident's id."""
    site.walk(*site.say(node, LOST))
    site.run_for(5)
    assert site.node(node).drain
    return site.incident.id


def test_an_incident_that_news_is_on_its_way_for_is_left_to_the_next_walk() -> None:
    """A return ended after the batch was read: the node looks free, its incident still open."""
    site = Site(10)
    one = drained(site)
    runs = len(site.runs)
    site.slurm.resume(name(1))
    site.ledger.tables.slots.clear()
    for run in site.runs:
        site.ledger.tables.runs[run.id] = msgspec.structs.replace(run, state=RunState.done)
    site.send_command(CommandKind.node_returned, incident=one, node=name(1))
    site.look()
    walk(site.ledger, site.rules, site.picture, [], site.now)  # a batch from before the news
    assert len(site.runs) == runs
    site.run_for(5)
    assert site.incidents[0].state is IncidentState.resolved
    assert len(site.runs) == runs
    assert not site.node(1).drain


def test_a_drain_that_nothing_speaks_for_becomes_an_incident_and_ends_with_it() -> None:
    site = Site(10)
    one = drained(site)
    site.send_command(CommandKind.resolve, incident=one, reason="looks fine")
    site.run_for(300, step_s=5)
    site.ledger.tables.slots.clear()
    site.run_for(120, step_s=5)
    forgotten = site.incident
    assert (forgotten.rule, forgotten.root.node, forgotten.severity) == (
        "forgotten-drain",
        name(1),
        Severity.P2,
    )
    assert site.node(1).reason in forgotten.title
    site.slurm.resume(name(1))
    site.run_for(30)
    assert site.open_incidents == []


def test_a_node_that_was_returned_since_slurm_was_read_is_not_forgotten() -> None:
    site = Site(10)
    one = drained(site)
    site.clock.advance(600)
    site.look()
    site.slurm.resume(name(1))
    for run in site.runs:
        site.ledger.tables.runs[run.id] = msgspec.structs.replace(run, state=RunState.done)
    site.ledger.tables.slots.clear()
    site.send_command(CommandKind.node_returned, incident=one, node=name(1))
    walk(site.ledger, site.rules, site.picture, site.ledger.take_commands(), site.now)
    assert site.open_incidents == []
    site.run_for(60, step_s=5)
    assert site.open_incidents == []


def test_a_forgotten_drain_is_over_only_once_slurm_shows_the_node_without_it() -> None:
    """Its node was recorded as returned by a clock an hour ahead: the incident was closed, and its drain kept
    for good."""
    site = Site(10)
    one = drained(site)
    site.send_command(CommandKind.resolve, incident=one, reason="looks fine")
    site.run_for(300, step_s=5)
    site.ledger.tables.slots.clear()
    site.run_for(120, step_s=5)
    assert site.incident.rule == "forgotten-drain"
    site.picture.clear(name(1), site.now + timedelta(hours=1))
    site.run_for(60, step_s=5)
    assert [each.rule for each in site.open_incidents] == ["forgotten-drain"]


def test_a_drain_that_is_spoken_for_is_not_forgotten() -> None:
    site = Site(10)
    drained(site)
    site.run_for(600, step_s=5)
    assert site.incident.rule == "gpu-lost"


def test_the_slot_of_a_node_that_slurm_no_longer_knows_is_freed() -> None:
    site = Site(10)
    drained(site)
    assert list(site.ledger.tables.slots) == [name(1)]
    site.run_for(5)
    fleet = {one: node for one, node in site.slurm.snapshot().nodes.items() if one != name(1)}
    site.clock.advance(5)
    shown = msgspec.structs.replace(site.slurm.snapshot(), nodes=fleet)
    site.picture.show(shown)
    site.ledger.snapshot = shown
    free_slots_of(site.ledger, site.now)
    assert site.ledger.tables.slots == {}


def test_the_slot_of_a_drain_whose_run_was_cancelled_before_its_line_is_kept() -> None:
    site = Site(10)
    site.walk(*site.say(1, LOST))
    site.clock.advance(3)
    site.walk()
    site.drive_to("done:drain")
    site.ledger._claimed.clear()
    site.cancel(site.runs[0].id)
    walk(site.ledger, site.rules, site.picture, [], site.now)  # by a picture from before the drain
    assert list(site.ledger.tables.slots) == [name(1)]
    site.run_for(60, step_s=5)
    assert site.node(1).drain
    assert list(site.ledger.tables.slots) == [name(1)]
    site.slurm.resume(name(1))
    site.run_for(10)
    assert site.ledger.tables.slots == {}


def test_a_slot_whose_run_was_cancelled_before_its_drain_is_freed() -> None:
    site = Site(10)
    site.walk(*site.say(1, LOST))
    site.clock.advance(3)
    site.walk()
    site.drive_to("started:drain")
    site.ledger._claimed.clear()
    site.cancel(site.runs[0].id)
    site.run_for(30)
    assert list(site.ledger.tables.slots) == [name(1)], "its call may still be on its way"
    site.run_for(40)
    assert not site.node(1).drain
    assert site.ledger.tables.slots == {}


def test_a_run_that_cannot_drain_its_node_blocks_no_other() -> None:
    """One slot at a time and in an hour: what took nothing uses up neither."""
    site = Site(32, scheduler=Watched)
    site.walk(*site.say(1, FATAL))
    site.clock.advance(3)
    site.walk()
    site.scheduler.before = lambda call: fail(call, "drain", SchedulerRefused("Invalid user id", 2010))
    site.drive()
    site.scheduler.before = lambda _: None
    (run,) = site.runs
    assert run.state is RunState.stuck
    assert site.ledger.tables.slots == {} and site.ledger.facts().granted == ()
    site.run_for(30, *site.say(9, FATAL))
    assert site.node(9).drain
    site.retry(run.id, "drain")
    site.run_for(10)
    assert not site.node(1).drain, "it asks for a new slot, and the other has it"
    assert "slots" in (site.ledger.tables.runs[run.id].question or "")


def test_a_run_that_waits_for_room_ends_where_a_person_takes_its_node() -> None:
    site = Site(32)
    site.walk(*site.say(1, FATAL))
    site.clock.advance(3)
    site.walk()
    site.slurm.person_drain(name(1), "RMA", "ann")
    site.run_for(60)
    first = site.runs[0]
    assert (first.state, first.question) == (RunState.done, None), (
        "the run that took the node is asked nothing"
    )
    assert site.ledger.tables.slots == {}
    (about,) = [one for one in site.open_incidents if one.rule != "person-drain"]
    assert about.run is None
    assert about.held_by is Guard.ownership
    assert site.node(1).reason == "RMA"
    assert len([one for one in site.runs if one.node == name(1)]) == 1, "no run is begun again and again"


def test_node_certainly_unusable_later_updates_a_stopped_incident() -> None:
    site = Site(10)
    site.walk(*site.say(1, FATAL))
    site.run_for(1)
    site.pause()
    site.run_for(5)
    site.cancel(site.runs[0].id, RunState.rejected)
    site.end_pause()
    site.run_for(60)
    assert site.node(1).in_service
    site.walk(*site.say(1, LOST))
    site.run_for(10)
    assert site.node(1).drain
    assert {one.rule for one in site.open_incidents} == {"gpu-fatal", "gpu-lost"}


def test_an_undrain_of_a_node_that_is_down_is_no_return() -> None:
    site = Site(10)
    one = drained(site)
    with site.ledger.transaction() as tx:
        tx.set_run_state(site.runs[0].id, RunState.done, why="taken over", at=site.now)
    site.slurm.silence(name(1))
    site.run_for(400, step_s=5)
    assert site.node(1).base == "DOWN"
    site.ask("undrain", 1)
    site.run_for(20)
    assert not site.node(1).drain
    assert site.ledger.tables.incidents[one].is_open
    assert list(site.ledger.tables.slots) == [name(1)]
    assert site.ledger.tables.vetoes == []


def test_a_return_ends_all_that_was_open_on_the_node() -> None:
    """Two incidents of one node: the return must not leave the other one to drain it again."""
    site = Site(10)
    change = "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"
    asked = f"NVRM: Xid (PCI:0000:9b:00): 154, {change}"
    site.walk(*site.say(1, asked))
    site.run_for(5)
    site.clock.advance(300)
    site.walk(*site.say(1, LOST))
    site.run_for(1)
    assert site.open_incidents
    (one,) = site.open_incidents
    site.slurm.resume(name(1))
    site.ledger.tables.slots.clear()
    site.send_command(CommandKind.node_returned, incident=one.id, node=name(1))
    site.run_for(60)
    assert site.open_incidents == []
    assert not site.node(1).drain


def half_open(site: Site, canary: str | None) -> None:
    site.ledger.tables.breaker = Breaker(
        cluster=CLUSTER, state=BreakerState.half_open, reset_by="ann", reset_reason="seen", canary=canary
    )


def test_the_breaker_closes_by_its_canarys_state_without_any_news() -> None:
    site = Site(10)
    drained(site)
    half_open(site, site.runs[0].id)
    site.ledger.tables.commands.clear()
    site.walk()
    assert site.ledger.tables.breaker is not None
    assert site.ledger.tables.breaker.state is BreakerState.half_open  # it waits on its drained node
    site.clock.advance(COOLDOWN.total_seconds())
    site.look()
    site.walk()
    assert site.ledger.tables.breaker.state is BreakerState.closed


def test_a_breaker_that_a_clock_ahead_closed_counts_failures_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Failures are counted by the clocks of the workers: those of the next hour would not count."""
    site = Site(10)
    drained(site)
    half_open(site, site.runs[0].id)
    site.ledger.tables.commands.clear()
    site.clock.advance(COOLDOWN.total_seconds())  # the canary's drain has lasted
    site.look()
    right = site.now - timedelta(hours=1)

    def by_two_clocks(*known: Any) -> GateFacts:
        return msgspec.structs.replace(gate_facts(*known), read_at=right)

    monkeypatch.setattr(memory_ledger, "gate_facts", by_two_clocks)
    site.walk()
    breaker = site.ledger.tables.breaker
    assert breaker is not None
    assert (breaker.state, breaker.since) == (BreakerState.closed, right)


def test_a_canary_that_was_resolved_away_lets_the_next_one_try() -> None:
    site = Site(10, mode=Mode.auto)
    half_open(site, "gone")
    site.walk(*site.say(1, LOST))
    site.run_for(5)
    assert site.node(1).drain


def test_a_canary_that_found_nothing_to_take_lets_the_next_one_try() -> None:
    """Slurm's own drain was lifted between the gate's answer and the step: no removal has shown anything."""
    rules = rules_in()
    adopts = [
        msgspec.structs.replace(rule, mode=Mode.auto) if rule.playbook == "adopt-slurm-drain" else rule
        for rule in rules.rules
    ]
    site = Site(10, rules=rules_in(rules=tuple(adopts)))
    site.slurm.person_drain(name(1), "Kill task failed", "slurm")

    def lift(at: str) -> None:
        if at == "started:drain":
            site.slurm.resume(name(1))

    site.on_checkpoint = lift
    half_open(site, None)
    site.run_for(20)
    (run,) = site.runs
    assert run.state is RunState.done and not site.node(1).drain
    breaker = site.ledger.tables.breaker
    assert breaker is not None
    assert (breaker.state, breaker.canary) == (BreakerState.half_open, None)


def test_after_a_canary_that_a_person_undid_the_next_node_is_the_canary() -> None:
    site = Site(10)
    drained(site)
    run = site.runs[0].id
    half_open(site, run)
    entry = LogEntry(run=run, at=site.now, epoch=99, step=UNDO, event=StepEvent.done, text="ann: no")
    site.ledger.tables.log[run].append(entry)
    with site.ledger.transaction() as tx:
        tx.set_run_state(run, RunState.running, why="ann: no", at=site.now)
    site.run_for(30)
    assert site.ledger.tables.runs[run].state is RunState.undone and not site.node(1).drain
    site.run_for(5, *site.say(2, LOST))
    assert site.node(2).drain


def test_after_a_canary_failures_from_before_the_reset_do_not_open_the_breaker_again() -> None:
    site = Site(100, scheduler=Watched)

    def refuse(call: str) -> None:
        if call == "drain":
            raise SchedulerRefused("Slurm refuses")

    def fails(node: int) -> None:
        site.scheduler.before = refuse
        site.walk(*site.say(node, LOST))
        site.run_for(400)

    def state() -> BreakerState | None:
        breaker = site.ledger.tables.breaker
        return breaker.state if breaker is not None else None

    for node in range(1, 5):
        fails(node)
    assert state() is BreakerState.open
    opened = site.ledger.tables.breaker
    assert opened is not None
    site.ledger.tables.breaker = reset(opened, "ann", "the right is back", site.now)
    site.scheduler.before = lambda _: None
    site.run_for(COOLDOWN.total_seconds() + 60, *site.say(5, LOST))
    assert state() is BreakerState.closed
    fails(6)
    assert state() is BreakerState.closed


def test_only_one_run_is_the_canary_however_many_were_granted_before() -> None:
    """Two runs were granted; then the breaker opened, and was reset, before a worker took them."""
    site = Site(20)
    site.walk(*site.say(1, LOST), *site.say(2, LOST))
    site.clock.advance(3)
    site.walk()
    assert [run.state for run in site.runs] == [RunState.running, RunState.running]
    half_open(site, None)
    site.drive()
    assert [site.node(1).drain, site.node(2).drain].count(True) == 1
    held = [one for one in site.ledger.tables.decisions if one.outcome is Outcome.held]
    assert [one.guard for one in held] == ["breaker"]


def test_a_requeue_on_a_node_that_is_out_already_proves_nothing_for_the_breaker() -> None:
    site = Site(10)
    site.slurm.add_job(required=[name(1)])
    site.walk(*site.say(1, LOST))
    site.clock.advance(3)
    site.walk()
    site.drive_to("performed:jobs")
    half_open(site, None)
    site.run_for(20)
    assert site.audited("job.requeued") == 1
    assert site.ledger.tables.breaker is not None
    assert site.ledger.tables.breaker.state is BreakerState.half_open


def test_a_playbook_that_takes_nothing_takes_no_slot_and_runs_once() -> None:
    tell = Playbook(name="tell", title="Tell", target="node", steps=(Step(id="notify", do=Verb.notify),))
    rules = rules_in(Mode.auto)
    changed = [msgspec.structs.replace(one, playbook="tell") if one.playbook else one for one in rules.rules]
    rules = msgspec.structs.replace(rules, rules=tuple(changed), playbooks={**rules.playbooks, "tell": tell})
    site = Site(10, rules=rules)
    site.walk(*site.say(1, LOST))
    site.run_for(120)
    assert [run.state for run in site.runs] == [RunState.done]
    assert site.ledger.tables.slots == {}
    assert site.ledger.tables.granted == []


def test_ended_run_does_not_run_again() -> None:
    site = Site(10)
    drained(site)
    site.cancel(site.runs[0].id)
    with site.ledger.transaction() as tx:
        tx.set_run_state(site.runs[0].id, RunState.running, why="late", at=site.now)
    assert site.runs[0].state is RunState.cancelled


def test_a_merged_incident_takes_its_waiting_run_along() -> None:
    site = Site(10, mode=Mode.approve)
    site.walk(*site.say(1, LOST), *site.say(2, LOST))
    site.run_for(5)
    first, second = site.open_incidents
    site.send_command(CommandKind.merge, incident=first.id, into=second.id)
    site.run_for(5)
    assert site.ledger.tables.runs[first.run or ""].state is RunState.cancelled


@pytest.mark.parametrize("mode", [Mode.approve, Mode.suggest])
def test_a_persons_run_that_comes_to_nothing_leaves_healers_proposal_to_approve(mode: Mode) -> None:
    site = Site(10, mode=mode)
    site.slurm.add_job(required=[name(1)])
    site.run_for(5, *site.say(1, FATAL))
    people = Commands(
        {CLUSTER: Where(site.ledger, site.slurm, lambda _: None)}, lambda: site.rules, site.clock
    )
    asked = RunRequest(
        id="r-ann", playbook="slow-node", cluster=CLUSTER, by="ann", reason="slow", node=name(1)
    )
    assert people.start(asked).state is RunState.running
    site.run_for(5)
    assert [run.state for run in site.runs] == [RunState.done, RunState.running]
    people.cancel("r-ann", by="ann", reason="the wrong node", request="q1")
    site.run_for(5)
    (again,) = [run for run in site.runs if run.state not in ENDED_RUN_STATES]
    assert (again.playbook, again.state, again.id) == ("gpu-fatal", ASKS[mode], site.incident.run)


ASKS = {Mode.approve: RunState.waiting_approval, Mode.suggest: RunState.proposed}


def test_a_pause_holds_a_return_that_has_not_begun() -> None:
    site = Site(10)
    one = drained(site)
    run = Run(
        id="back",
        cluster=CLUSTER,
        playbook="resume",
        state=RunState.running,
        by="ann",
        reason="mended",
        created_at=site.now + timedelta(minutes=5),
        node=name(1),
        incident=one,
    )
    site.clock.advance(300)
    with site.ledger.transaction() as tx:
        tx.set_run_state(site.runs[0].id, RunState.done, why="taken over", at=site.now)
        tx.create_run(run)
    site.pause()
    site.run_for(30)
    assert site.node(1).drain
    site.end_pause()
    site.run_for(30)
    assert not site.node(1).drain


class _NotRegistered:
    """A node that has not registered as configured: Slurm would refuse its return."""

    def __init__(self, slurm: SimScheduler) -> None:
        self.slurm, self.amiss = slurm, True

    def __getattr__(self, call: str) -> Any:
        return getattr(self.slurm, call)

    def node(self, node: str) -> SlurmNode:
        shown = self.slurm.node(node)
        state = (*shown.state, "INVALID_REG") if self.amiss else shown.state
        return msgspec.structs.replace(shown, state=state)


def test_a_pause_holds_a_return_that_was_granted_before_and_waits() -> None:
    site = Site(10, scheduler=_NotRegistered)
    site.scheduler.amiss = False
    drained(site)
    with site.ledger.transaction() as tx:
        tx.set_run_state(site.runs[0].id, RunState.done, why="taken over", at=site.now)
    site.scheduler.amiss = True
    back = site.ask("resume", 1)
    site.run_for(10)
    assert site.log(back)[-1].text.endswith("INVALID_REG")
    site.pause()
    site.run_for(2)
    site.scheduler.amiss = False
    site.run_for(30)
    assert site.node(1).drain
    assert "Paused" in (site.ledger.tables.runs[back].question or "")
    site.end_pause()
    site.run_for(30)
    assert site.node(1).in_service
    assert site.ledger.tables.runs[back].state is RunState.done


def test_a_resolution_by_a_person_is_recorded_once() -> None:
    site = Site(10)
    one = drained(site)
    site.send_command(CommandKind.resolve, incident=one, reason="seen")
    site.run_for(5)
    assert site.audited("incident.resolved") == 1


def test_a_hold_at_the_worker_is_paged_after_ten_seconds() -> None:
    site = Site(10)
    site.walk(*site.say(1, LOST))
    site.clock.advance(3)
    site.walk()
    site.pause()
    site.run_for(8)
    assert site.pages == []
    site.run_for(10)
    assert [page.id for page in site.pages] == [f"{site.incident.id}:p0:20261120T03"]
    assert site.incident.known_bad_in_service
    assert timedelta(0) < site.now - site.incident.opened
