"""The loop that drives a run: one effect each, whatever happens on the way."""

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from healer.model import (
    BreakerState,
    CommandKind,
    Component,
    GuardSettings,
    LogEntry,
    Mode,
    Observation,
    RequeueUse,
    Run,
    RunState,
    SlurmJob,
    SlurmNode,
    StepEvent,
)
from healer.playbooks import UNDO, Do, Finish, RecordFacts, Skip, Sleep, advance
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable
from healer.ports.transactions import LedgerAway
from healer.sim.memory_ledger import MemoryClaim, Tables
from healer.sim.sim_slurm import SimScheduler
from tests.support.loop import FATAL, LOST, START, Crash, Site, later, name, rules_in

NODE = name(1)


class Watched:
    """Between healer and Slurm: counts what changes something, and fails when a test says so."""

    def __init__(self, slurm: SimScheduler) -> None:
        self.slurm = slurm
        self.name = slurm.name
        self.writes: list[str] = []
        #: Called before each write with its name; what it raises is Slurm's answer.
        self.before: Callable[[str], None] = lambda _: None
        #: The same after the write has happened: an answer that is lost.
        self.after: Callable[[str], None] = lambda _: None

    def __getattr__(self, call: str) -> Any:
        return getattr(self.slurm, call)

    def drain(self, node: str, reason: str) -> None:
        self._write("drain", self.slurm.drain, node, reason)

    def resume(self, node: str) -> None:
        self._write("resume", self.slurm.resume, node)

    def requeue(self, job: str) -> None:
        self._write("requeue", self.slurm.requeue, job)

    def start_now(self, job: str) -> None:
        self._write("start_now", self.slurm.start_now, job)

    def _write(self, call: str, do: Callable[..., None], *args: str) -> None:
        self.before(call)
        do(*args)
        self.writes.append(call)
        self.after(call)


def faulty(*, mode: Mode = Mode.auto, line: str = LOST, **job: Any) -> tuple[Site, str]:
    """A job on the first two nodes of ten, and a fatal line of the first; its run has just begun."""
    site = Site(10, mode=mode, scheduler=Watched)
    given: dict[str, Any] = {"nodes": 2, **job}
    running = site.slurm.add_job(**given)
    site.walk(*site.say(1, line))
    site.clock.advance(2)
    site.walk()
    return site, running


def only_run(site: Site) -> Run:
    (run,) = site.runs
    return run


def job_of(site: Site, job: str) -> SlurmJob:
    found = site.slurm.job(job)
    assert found is not None
    return found


#: It waits for the end of the reports, or repairs already.
_UNDER_WAY = frozenset({RunState.waiting, RunState.running})


def ended_well(site: Site, job: str, *, paged: bool = False) -> None:
    """What every way must lead to: one drain, one requeue, one ticket, and the wait for the repair."""
    run = only_run(site)
    assert run.state in _UNDER_WAY and run.question is None, (run.state, run.question)
    node = site.node(1)
    assert node.drain
    assert node.reason.startswith(f"healer:gpu-lost inc:{site.incident.short_id} ")
    assert paged or node.reason_at == later(2)  # a reboot gives its reason once more
    shown = job_of(site, job)
    assert (shown.restarts, shown.state) == (1, "RUNNING")
    assert NODE not in shown.nodes
    assert site.scheduler.writes.count("drain") == 1
    done = [one.step for one in site.log(run.id) if one.event is StepEvent.done]
    first = ["begin", "drain", "jobs", f"requeue:{job}", "ticket", "notify", f"owner:{job}", "leave"]
    assert done[: len(first)] == first
    assert len(site.ledger.tables.slots) == 1
    uses = [(one.job, one.restarts) for one in site.ledger.tables.requeues]
    assert uses == [(job, 0)]
    expected = ["notify", "p0:20261120T03", "ticket"] if paged else ["notify", "ticket"]
    assert sorted(site.ledger.tables.messages) == [f"{site.incident.id}:{one}" for one in expected]
    assert site.audited("node.drained") == site.audited("job.requeued") == 1


# --- the way without trouble --------------------------------------------------------------------------------


def test_drained_listed_requeued_notified_and_waiting() -> None:
    site, job = faulty()
    site.run_for(20)
    ended_well(site, job)
    assert site.incident.jobs_hit == (job,)
    assert site.incident.jobs_hit_final
    assert list(dict.fromkeys(site.scheduler.writes)) == ["drain", "requeue", "start_now"]


def test_a_run_that_waits_is_not_due_and_not_driven() -> None:
    site, _ = faulty()
    site.run_for(20)
    before = list(site.log(only_run(site).id))
    site.run_for(240, step_s=60)
    assert site.log(only_run(site).id) == before


def test_shadow_goes_to_the_wait_and_touches_nothing() -> None:
    site, job = faulty(mode=Mode.shadow)
    site.run_for(30)
    assert site.scheduler.writes == []
    assert not site.node(1).drain
    run = only_run(site)
    assert (run.state, run.shadow) == (RunState.done, True)
    texts = [one.text for one in site.log(run.id) if one.text.startswith("shadow: would")]
    assert texts[0] == f"shadow: would drain {NODE}"
    assert f"shadow: would requeue {job}" in texts
    assert site.ledger.tables.slots == {}
    assert [one for one in site.ledger.tables.messages.values() if not getattr(one, "page", False)] == []
    # Nothing was drained: the incident must not say so, nor take its list of jobs for final.
    assert site.incident.drained_at is None
    assert not site.incident.jobs_hit_final


# --- the gate -----------------------------------------------------------------------------------------------


def test_a_pause_before_the_first_step_holds_the_drain_and_ends_within_a_second() -> None:
    site, job = faulty()
    site.pause("node", NODE)
    site.run_for(300)
    assert site.scheduler.writes == []
    run = only_run(site)
    assert site.log(run.id)[-1].event is StepEvent.held
    assert "hands off" in site.log(run.id)[-1].text
    site.end_pause()
    site.run_for(1)
    assert site.node(1).drain
    site.run_for(20)
    assert job_of(site, job).restarts == 1
    assert only_run(site).state in _UNDER_WAY


def test_a_pause_between_drain_and_requeue_of_any_length_does_no_harm() -> None:
    site, job = faulty()
    site.drive_to("performed:jobs")
    site.pause()
    site.run_for(600, step_s=5)
    assert site.scheduler.writes == ["drain"]
    site.end_pause()
    site.run_for(30)
    # Its job sat on a dead GPU for ten minutes and healer might not act: a person was paged.
    ended_well(site, job, paged=True)
    # The hour of the pause is no attempt that failed.
    assert [one for one in site.log(only_run(site).id) if one.event is StepEvent.failed] == []


def stopped_at(site: Site, where: str, monkeypatch: pytest.MonkeyPatch, *pause: str) -> None:
    """The worker is stopped there for 12 s, a pause may come; its claim is proven again when it goes on."""
    aged = []

    def stop(at: str) -> None:
        if at == where and not site.checkpoints:
            site.checkpoints.append(at)
            aged.append(at)
            if pause:
                site.pause(*pause)
            site.clock.advance(12)

    monkeypatch.setattr(MemoryClaim, "fence", lambda _: bool(aged and aged.pop()))
    site.on_checkpoint = stop


@pytest.mark.parametrize("pause", [("all",), ("node", NODE), ("rule", "gpu-lost")])
def test_a_worker_that_was_stopped_before_its_effect_sees_the_pause_that_came(
    pause: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, job = faulty()
    stopped_at(site, "started:drain", monkeypatch, *pause)
    site.run_for(60)
    assert site.checkpoints == ["started:drain"]
    assert site.scheduler.writes == []
    assert site.log(only_run(site).id)[-1].event is StepEvent.held
    site.end_pause()
    site.run_for(2)
    assert site.scheduler.writes[0] == "drain"
    assert only_run(site).node == NODE
    assert site.node(1).drain
    site.run_for(20)
    assert job_of(site, job).restarts == 1


@pytest.mark.parametrize("pause", [(), ("node", name(2)), ("playbook", "gpu-reset")])
def test_a_worker_that_was_stopped_goes_on_where_no_pause_of_its_own_came(
    pause: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, _ = faulty()
    stopped_at(site, "started:drain", monkeypatch, *pause)
    site.drive()
    assert site.checkpoints == ["started:drain"]
    assert site.scheduler.writes[0] == "drain"


def take_back(site: Site, run: str) -> None:
    entry = LogEntry(run=run, at=site.now, epoch=99, step=UNDO, event=StepEvent.done, text="bob: no")
    site.ledger.tables.log[run].append(entry)
    with site.ledger.transaction() as tx:
        tx.set_run_state(run, RunState.running, why="bob: no", at=site.now)


def test_a_worker_that_was_stopped_before_it_takes_back_sees_the_pause_that_came() -> None:
    """It has just written that it begins, so its claim is fresh."""
    site, _ = faulty()
    site.run_for(20)
    take_back(site, only_run(site).id)

    def stop(at: str) -> None:
        if at == "undoing:drain" and not site.ledger.tables.pauses:
            site.pause()

    site.on_checkpoint = stop
    site.run_for(60)
    assert site.ledger.tables.pauses and site.node(1).drain
    site.on_checkpoint = lambda _: None
    site.end_pause()
    site.run_for(30)
    assert not site.node(1).drain and only_run(site).state is RunState.undone


def test_a_drain_that_a_person_took_over_with_words_of_their_own_is_not_taken_back() -> None:
    site, _ = faulty()
    site.run_for(20)
    run, words = only_run(site).id, f"{site.node(1).reason} RMA 4711"
    site.slurm.person_drain(NODE, words, "ann")
    take_back(site, run)
    site.run_for(30)
    assert site.node(1).drain and site.node(1).reason == words
    assert any("ann holds" in one.text and "RMA 4711" in one.text for one in site.log(run))


def test_the_decision_that_holds_is_stored_once() -> None:
    site, _ = faulty()
    stored = len(site.ledger.tables.decisions)
    site.pause()
    site.run_for(60)
    assert len(site.ledger.tables.decisions) == stored + 1
    assert site.ledger.tables.decisions[-1].guard == "pause"


@pytest.mark.parametrize(
    ("job", "words"),
    [({"requeue": False}, "forbids requeueing"), ({"batch": False}, "cannot requeue it")],
)
def test_a_job_that_may_not_be_requeued_is_skipped_and_it_is_said_why(
    job: dict[str, Any], words: str
) -> None:
    site, running = faulty(**job)
    site.run_for(20)
    (entry,) = site.log(only_run(site).id, f"requeue:{running}")
    assert entry.event is StepEvent.skipped
    assert words in entry.text
    assert job_of(site, running).restarts == 0
    assert only_run(site).state is RunState.waiting


def test_a_third_requeue_within_a_day_is_skipped_and_it_is_said_why() -> None:
    site = Site(10, scheduler=Watched)
    job = site.slurm.add_job(required=[NODE])
    site.ledger.tables.requeues += [
        RequeueUse(job=job, restarts=-1, at=later(-3600)),
        RequeueUse(job=job, restarts=-2, at=later(-7200)),
    ]
    site.walk(*site.say(1, LOST))
    site.run_for(20)
    (entry,) = site.log(only_run(site).id, f"requeue:{job}")
    assert (entry.event, entry.data["guard"]) == (StepEvent.skipped, "requeue_cap")
    assert "requeued 2 times in 24 h" in entry.text
    assert "requeue" not in site.scheduler.writes


def test_job_life_is_requeued_once_regardless_of_requester() -> None:
    site, job = faulty()
    site.ledger.tables.requeues.append(RequeueUse(job=job, restarts=0, at=START))
    site.run_for(20)
    (entry,) = site.log(only_run(site).id, f"requeue:{job}")
    assert entry.event is StepEvent.skipped
    assert "requeue" not in site.scheduler.writes


def asked_requeue(site: Site, job: str) -> str:
    """Ann asks for the requeue of a job, and a worker takes the run up before the next picture of Slurm."""
    run = Run(
        id="r-ann", cluster="pod1", playbook="requeue", state=RunState.running, by="ann", reason="because",
        created_at=site.now, job=job, rule="requeue", input={"restarts": 0},
    )  # fmt: skip
    with site.ledger.transaction() as tx:
        tx.create_run(run)
    site.driver.drive(run.id)
    return run.id


def test_a_job_of_a_protected_qos_that_is_younger_than_the_picture_is_left_alone() -> None:
    guards = GuardSettings(protected_qos=("production",))
    site = Site(4, rules=rules_in(guards=guards), scheduler=Watched)
    site.look()
    site.clock.advance(1)
    run = asked_requeue(site, site.slurm.add_job(qos="production"))
    site.run_for(30)
    assert site.scheduler.writes == []
    assert "production" in site.log(run)[-1].text


def test_a_job_of_another_qos_that_is_younger_than_the_picture_is_requeued_with_the_next() -> None:
    site = Site(4, scheduler=Watched)
    site.look()
    site.clock.advance(1)
    job = site.slurm.add_job(qos="normal")
    asked_requeue(site, job)
    site.run_for(30)
    assert job_of(site, job).restarts == 1


# --- other people -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["drain", "down", "drain without a reason"])
def test_a_person_who_is_faster_keeps_their_reason(state: str) -> None:
    site, _ = faulty()

    def person(where: str) -> None:
        if where == "started:drain":
            if state == "down":
                site.slurm.set_node_down(NODE, "dead PSU", "ann")
            else:
                site.slurm.person_drain(NODE, "dead PSU" if state == "drain" else "", "ann")

    site.on_checkpoint = person
    site.run_for(20)
    assert "drain" not in site.scheduler.writes
    assert (site.node(1).reason, site.node(1).reason_user) == (
        "" if state == "drain without a reason" else "dead PSU",
        "ann",
    )
    run = next(one for one in site.runs if one.node == NODE)
    assert (run.state, run.question) == (RunState.done, None), "it is theirs: they are asked nothing"
    assert "ann holds" in site.log(run.id, "drain")[-1].text


def test_a_node_that_slurm_itself_set_down_may_be_drained() -> None:
    """Its DOWN ends by itself when the node registers: our drain costs no one anything."""
    site, _ = faulty()
    site.on_checkpoint = lambda where: (
        site.slurm.set_node_down(NODE) if where == "started:drain" and site.node(1).base != "DOWN" else None
    )
    site.run_for(20)
    assert site.node(1).drain
    assert site.node(1).reason.startswith("healer:")


def test_a_cancelled_run_stops_before_its_next_write() -> None:
    site, job = faulty()
    run = only_run(site).id
    site.on_checkpoint = lambda where: site.cancel(run) if where == "performed:drain" else None
    site.run_for(20)
    assert only_run(site).state is RunState.cancelled
    assert job_of(site, job).restarts == 0
    assert "requeue" not in site.scheduler.writes


def test_a_job_that_its_owner_restarted_meanwhile_is_left_alone() -> None:
    site, job = faulty()
    site.on_checkpoint = lambda where: (
        site.slurm.requeue(job)
        if where == f"started:requeue:{job}" and job_of(site, job).restarts == 0
        else None
    )
    site.run_for(200)
    assert job_of(site, job).restarts == 1
    assert "requeue" not in site.scheduler.writes


# --- Slurm fails --------------------------------------------------------------------------------------------


def test_slurm_that_refuses_is_asked_again_then_a_person_is_and_a_retry_goes_on() -> None:
    site, job = faulty()

    def refuse(call: str) -> None:
        if call == "drain":
            raise SchedulerRefused("Slurm says: socket timed out", 9)

    site.scheduler.before = refuse
    site.run_for(60)
    run = only_run(site)
    assert run.state is RunState.stuck
    assert "socket timed out" in (run.question or "")
    assert len(site.log(run.id, "drain")) == 1 + 5  # started, and as many failures as there are attempts
    site.scheduler.before = lambda _: None
    site.clock.advance(3600)
    site.look()
    # One step that failed for good, however often it was tried, is one failed action: the breaker is closed.
    assert site.ledger.tables.breaker is not None
    assert site.ledger.tables.breaker.state is BreakerState.closed
    site.retry(run.id, "drain")
    site.run_for(20)
    assert only_run(site).state in _UNDER_WAY
    assert job_of(site, job).restarts == 1
    assert site.scheduler.writes.count("drain") == 1


def test_an_account_that_lacks_the_right_is_not_tried_again_a_person_is_asked_at_once() -> None:
    site, job = faulty()
    site.scheduler.before = lambda call: fail(call, "drain", SchedulerRefused("Invalid user id (2010)", 2010))
    site.run_for(5)
    run = only_run(site)
    assert (run.state, len(site.log(run.id, "drain"))) == (RunState.stuck, 2)
    (incident,) = site.open_incidents
    assert incident.known_bad_in_service
    assert incident.jobs_hit == (job,)
    assert site.scheduler.writes == []


def test_a_requeue_that_got_stuck_is_really_tried_again() -> None:
    site, job = faulty()
    site.scheduler.before = lambda call: fail(call, "requeue", SchedulerRefused("Slurm says: busy", 9))
    site.run_for(120)
    run = only_run(site)
    assert run.state is RunState.stuck
    site.scheduler.before = lambda _: None
    site.clock.advance(7200)
    site.look()
    site.retry(run.id, f"requeue:{job}")
    site.run_for(30)
    assert job_of(site, job).restarts == 1
    assert only_run(site).state in _UNDER_WAY
    assert len(site.ledger.tables.requeues) == 1


def fail(call: str, wanted: str, error: Exception) -> None:
    if call == wanted:
        raise error


@pytest.mark.parametrize("call", ["drain", "requeue", "start_now"])
def test_an_answer_that_is_lost_is_read_back_and_nothing_is_done_twice(call: str) -> None:
    site, job = faulty()
    site.scheduler.after = lambda done: fail(done, call, SchedulerUnavailable("timed out"))
    site.run_for(30)
    ended_well(site, job)


def test_slurm_away_for_a_while_is_waited_for() -> None:
    site, job = faulty()
    for call in ("drain", "requeue"):
        site.scheduler.before = lambda done, call=call: fail(done, call, SchedulerUnavailable("no route"))
        site.run_for(10)
    site.scheduler.before = lambda _: None
    site.run_for(60)
    assert only_run(site).state is RunState.waiting
    assert job_of(site, job).restarts == 1
    assert site.scheduler.writes.count("drain") == 1


class SlurmAway(Site):
    """A site whose Slurm answers no one while `away`: no poll either."""

    away = False

    def look(self) -> None:
        if not self.away:
            super().look()


class Mute(Watched):
    """No call has an answer while `away`, and each error has other words."""

    away, port = False, 40_000

    def __getattr__(self, call: str) -> Any:
        if self.away:
            self.port += 1
            raise SchedulerUnavailable(f"no answer from port {self.port}")
        return super().__getattr__(call)


@pytest.mark.parametrize("begun", ["drain", "requeue"])
def test_slurm_away_for_longer_than_all_attempts_take_leaves_no_dead_gpu_in_service(begun: str) -> None:
    """The gate holds the step as soon as the snapshot is too old, and the run goes on when Slurm is back."""
    site = SlurmAway(10, scheduler=Mute)
    job = site.slurm.add_job(nodes=2)
    site.walk(*site.say(1, LOST))

    def leaves(call: str) -> None:
        site.away = site.scheduler.away = site.scheduler.away or call == begun
        if site.away:
            raise SchedulerUnavailable("no answer in 4 s")

    site.scheduler.before = leaves
    site.run_for(600, step_s=4)
    run = only_run(site)
    assert run.state is RunState.running and "the limit is 30 s" in (run.question or ""), run.question
    breaker = site.ledger.tables.breaker
    assert breaker is not None and breaker.state is BreakerState.closed
    site.scheduler.before = lambda _: None
    site.away = site.scheduler.away = False
    site.run_for(180, step_s=2)
    ended_well(site, job, paged=True)


@pytest.mark.parametrize("begun", ["drain", "requeue"])
def test_a_worker_that_alone_has_no_answer_of_slurm_goes_on_when_it_has(begun: str) -> None:
    """The poller's snapshots stay fresh, so no guard holds the step."""
    site = Site(10, scheduler=Mute)
    job = site.slurm.add_job(nodes=2)
    site.walk(*site.say(1, LOST))

    def leaves(call: str) -> None:
        site.scheduler.away = site.scheduler.away or call == begun
        if site.scheduler.away:
            raise SchedulerUnavailable("no answer in 4 s")

    site.scheduler.before = leaves
    site.run_for(600, step_s=4)
    run = only_run(site)
    assert run.state is RunState.running and "no answer from port" in (run.question or ""), run.question
    assert [one.event for one in site.log(run.id) if one.event is StepEvent.held] == [StepEvent.held]
    breaker = site.ledger.tables.breaker
    assert breaker is None or breaker.state is BreakerState.closed
    site.scheduler.before = lambda _: None
    site.scheduler.away = False
    site.run_for(180, step_s=2)
    ended_well(site, job, paged=True)


def test_a_drain_that_was_done_and_not_recorded_is_not_repeated_against_a_person(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site, _ = faulty()
    write, away = MemoryClaim.write, [LedgerAway("the disk of the database is full")]

    def write_unless_away(claim: MemoryClaim, entry: LogEntry, **more: Any) -> None:
        if away and (entry.step, entry.event) == ("drain", StepEvent.done):
            raise away.pop()
        write(claim, entry, **more)

    monkeypatch.setattr(MemoryClaim, "write", write_unless_away)
    site.drive()
    assert not away and site.node(1).drain
    site.slurm.resume(NODE)
    site.run_for(30)
    assert site.scheduler.writes.count("drain") == 1 and not site.node(1).drain


# --- it dies ------------------------------------------------------------------------------------------------


def checkpoints() -> list[str]:
    site, _ = faulty()
    site.run_for(20)
    return list(dict.fromkeys(site.checkpoints))


@pytest.mark.parametrize("where", checkpoints())
def test_after_a_crash_at_any_line_each_effect_happens_once(where: str) -> None:
    site, job = faulty()
    died = []

    def die(at: str) -> None:
        if at == where and not died:
            died.append(at)
            raise Crash(at)

    site.on_checkpoint = die
    with pytest.raises(Crash):
        site.run_for(20)
    site.run_for(20)
    ended_well(site, job)


@pytest.mark.heavy
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lives=st.lists(st.integers(1, 12), max_size=6), lost=st.sets(st.sampled_from(["drain", "requeue"])))
def test_after_any_number_of_crashes_each_effect_happens_once(lives: list[int], lost: set[str]) -> None:
    """`lives`: after how many checkpoints each life ends; `lost`: whose first answer is lost on the way."""
    site, job = faulty()
    left = [0]
    open_answers = set(lost)

    def die(at: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Crash(at)

    def lose(call: str) -> None:
        if call in open_answers:
            open_answers.discard(call)
            raise SchedulerUnavailable("timed out")

    site.on_checkpoint, site.scheduler.after = die, lose
    for life in [*lives, 0]:
        left[0] = life
        try:
            site.run_for(6)
        except Crash:
            site.clock.advance(1)
    left[0] = 0
    site.run_for(30)
    node = site.node(1)
    assert node.drain
    assert job_of(site, job).restarts == 1
    assert site.scheduler.writes.count("drain") == site.scheduler.writes.count("requeue") == 1
    assert only_run(site).state is RunState.waiting
    done = [one.step for one in site.log(only_run(site).id) if one.event is StepEvent.done]
    first = ["begin", "drain", "jobs", f"requeue:{job}", "ticket", "notify", f"owner:{job}", "leave"]
    assert done[: len(first)] == first


@pytest.mark.heavy
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cut=st.integers(0, 1000))
def test_a_log_cut_anywhere_ends_the_same(cut: int) -> None:
    """The ledger as it was after any of its commits, Slurm as it is now: driving on ends the same."""
    site, job = faulty()
    commits = kept_commits(site)
    site.run_for(20)
    tables = commits[cut % len(commits)]
    playbook = site.rules.playbooks[only_run(site).playbook]
    for prefix in range(len(site.log(only_run(site).id)) + 1):
        assert isinstance(
            advance(playbook, site.log(only_run(site).id)[:prefix], site.now),
            Do | Skip | Sleep | Finish | RecordFacts,
        )
    site.ledger.tables = tables
    site.run_for(60)
    assert only_run(site).state in _UNDER_WAY
    assert site.node(1).drain
    assert job_of(site, job).restarts == 1
    assert site.scheduler.writes.count("drain") == site.scheduler.writes.count("requeue") == 1


def kept_commits(site: Site) -> list[Tables]:
    """What the ledger held at each checkpoint: all that a crash there leaves."""
    kept: list[Tables] = []
    site.on_checkpoint = lambda _: kept.append(copy.deepcopy(site.ledger.tables))
    return kept


# --- back to service ----------------------------------------------------------------------------------------


def resume_run(site: Site, by: str = "ann") -> Run:
    """A person's `resume`, as the API makes it: it takes over the run that waits for the repair."""
    (old,) = [run for run in site.runs if run.state is RunState.waiting]
    run = Run(
        id="r-resume",
        cluster="pod1",
        playbook="resume",
        state=RunState.running,
        by=by,
        reason="PSU replaced",
        created_at=site.now,
        node=NODE,
        incident=old.incident,
        rule=old.rule,
    )
    with site.ledger.transaction() as tx:
        tx.set_run_state(old.id, RunState.done, why="taken over", at=site.now)
        tx.create_run(run)
    return run


def test_a_resume_returns_the_node_ends_the_incident_and_frees_the_slot() -> None:
    site, _ = faulty()
    site.run_for(60)
    incident = site.incident.id
    resume_run(site)
    site.run_for(5)
    assert site.node(1).in_service
    assert site.node(1).reason == ""
    assert site.ledger.tables.slots == {}
    closed = site.ledger.tables.incidents[incident]
    assert closed.closed_why == "returned to service by ann: PSU replaced"
    assert closed.probation_until is not None
    assert site.audited("node.resumed") == 1
    assert site.ledger.tables.vetoes == []


def test_lines_from_before_the_return_are_history_after_it() -> None:
    site, _ = faulty()
    site.run_for(60)
    resume_run(site)
    site.run_for(5)
    site.run_for(60, *site.say(1, FATAL, event_at=later(30)))
    assert site.open_incidents == []
    assert site.node(1).in_service


@pytest.mark.parametrize("state", ["drain", "down", "drain without a reason"])
def test_a_resume_never_lifts_what_a_person_put_in_its_place(state: str) -> None:
    site, _ = faulty()
    site.run_for(60)
    resume_run(site)

    def person(where: str) -> None:
        if where == "started:resume" and site.node(1).reason.startswith("healer:"):
            site.slurm.resume(NODE)
            if state == "down":
                site.slurm.set_node_down(NODE, "RMA 17", "ann")
            else:
                site.slurm.person_drain(NODE, "RMA 17" if state == "drain" else "", "ann")

    site.on_checkpoint = person
    site.run_for(20)
    assert "resume" not in site.scheduler.writes
    assert not site.node(1).in_service
    (run,) = [one for one in site.runs if one.playbook == "resume"]
    assert run.state in {RunState.stuck, RunState.cancelled}


def test_a_node_that_does_not_answer_is_not_returned() -> None:
    site, _ = faulty()
    site.run_for(60)
    site.slurm.silence(NODE)
    resume_run(site)
    site.run_for(120)
    assert not site.node(1).in_service
    (run,) = [one for one in site.runs if one.playbook == "resume"]
    assert run.state is RunState.stuck


def test_a_new_fault_line_since_the_repair_keeps_the_node_out() -> None:
    site, _ = faulty()
    site.run_for(60)
    resume_run(site)
    site.clock.advance(1)
    site.walk(*site.say(1, FATAL))
    site.run_for(30)
    assert site.node(1).drain
    (run,) = [one for one in site.runs if one.playbook == "resume"]
    assert run.state is RunState.stuck
    assert "new fault line" in (run.question or "")


# --- which jobs ---------------------------------------------------------------------------------------------


def test_on_a_shared_node_only_the_job_on_the_faulty_gpu_is_requeued() -> None:
    site = Site(10, scheduler=Watched)
    first = site.slurm.add_job(gpus=4, required=[NODE])
    second = site.slurm.add_job(gpus=4, required=[NODE])
    seen = [
        msgspec.structs.replace(one, component=Component(cluster="pod1", node=NODE, gpu=5))
        for one in site.say(1, LOST)
    ]
    site.walk(*seen)
    site.run_for(30)
    assert (job_of(site, first).restarts, job_of(site, second).restarts) == (0, 1)
    assert job_of(site, first).nodes == (NODE,)


def shared() -> tuple[Site, list[str]]:
    """Two jobs share the node: one has its first four GPUs, the other the rest."""
    site = Site(10, scheduler=Watched)
    return site, [site.slurm.add_job(gpus=4, required=[NODE]) for _ in range(2)]


def lost(site: Site, gpu: int) -> list[Observation]:
    return on_gpu(gpu, site.say(1, LOST))


def on_gpu(gpu: int, lines: list[Observation]) -> list[Observation]:
    component = Component(cluster="pod1", node=NODE, gpu=gpu)
    return [msgspec.structs.replace(one, component=component) for one in lines]


def test_a_gpu_lost_before_the_detector_knows_the_listed_jobs_requeues_its_job_too() -> None:
    """The run lists the jobs that are hit; the detector reads the next line before it reads that list."""
    site, jobs = shared()
    site.walk(*lost(site, 5))
    site.clock.advance(2)
    site.walk()
    site.drive()
    listed = site.ledger.take_commands()
    site.clock.advance(1)
    site.walk(*lost(site, 1))
    site.walk(*listed)
    site.run_for(30)
    assert [job_of(site, job).restarts for job in jobs] == [1, 1]
    assert sorted(site.incident.jobs_hit) == sorted(jobs)


def test_a_job_younger_than_the_fault_of_its_gpu_is_not_hit_by_a_later_one_of_another_gpu() -> None:
    """The line about its GPU comes late, together with one about the other job's."""
    site = Site(10, scheduler=Watched)
    site.clock.advance(3600)
    first, second = (site.slurm.add_job(gpus=4, required=[NODE]) for _ in range(2))
    site.walk()
    site.clock.advance(1200)
    before = on_gpu(1, site.say(1, FATAL, event_at=later(minutes=40), boot_id="b1"))
    site.run_for(20, *before, *on_gpu(5, site.say(1, FATAL, boot_id="b1")), step_s=2)
    assert (job_of(site, first).restarts, job_of(site, second).restarts) == (0, 1)


@pytest.mark.parametrize("word", ["resolve", "cancel", "resume"])
def test_a_restart_that_a_pause_holds_ends_with_a_persons_word_on_its_incident(word: str) -> None:
    """They say that it was a false alarm, stop healer, or return the node: its job is left alone too."""
    site, jobs = shared()
    site.run_for(5, *lost(site, 5))
    site.pause()
    site.run_for(2, *lost(site, 1))
    (own,) = [run for run in site.runs if run.playbook == "gpu-fatal"]
    if word == "resolve":
        site.send_command(CommandKind.resolve, incident=own.incident)
    elif word == "cancel":
        site.cancel(own.id)
    else:
        site.slurm.resume(NODE)
    site.run_for(10, step_s=5)
    site.end_pause()
    site.run_for(20, step_s=5)
    assert [job_of(site, job).restarts for job in jobs] == [0, 1]
    assert [run.state for run in site.runs if run.playbook == "requeue"] == [RunState.cancelled]


def test_a_later_run_of_the_incident_forgets_neither_its_jobs_nor_its_drain() -> None:
    site, job = faulty()
    site.run_for(20)
    before = site.incident
    site.cancel(only_run(site).id)
    site.clock.advance(3600)
    site.ask("validate", 1, incident=before.id)
    site.run_for(120)
    (again,) = [run for run in site.runs if run.playbook == "validate"]
    assert [one.event for one in site.log(again.id, "jobs")] == [StepEvent.done]
    assert (site.incident.jobs_hit, before.jobs_hit) == ((job,), (job,))
    assert [hit.job for hit in site.incident.hit] == [job]
    assert site.incident.drained_at == before.drained_at


def test_unknown_hit_job_requeues_none_and_says_so() -> None:
    site = Site(10, scheduler=Watched)
    jobs = [site.slurm.add_job(gpus=4, required=[NODE]) for _ in range(2)]
    site.walk(*site.say(1, LOST))
    site.run_for(30)
    assert [job_of(site, job).restarts for job in jobs] == [0, 0]
    (listed,) = [one for one in site.log(only_run(site).id, "jobs") if one.event is StepEvent.done]
    assert "cannot tell" in listed.text
    assert only_run(site).state is RunState.waiting


def test_run_ended_by_another_is_not_driven() -> None:
    site, _ = faulty()
    run = only_run(site).id
    site.cancel(run)
    site.driver.drive(run)
    assert site.scheduler.writes == []
    assert site.log(run) == []


def test_the_node_type_of_the_simulated_slurm_is_the_real_one() -> None:
    site, _ = faulty()
    assert isinstance(site.node(1), SlurmNode)
