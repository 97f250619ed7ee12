"""Each verb alone on the simulated Slurm: look, do, read back, take back."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from healer.actions import (
    CHECKS,
    VERBS,
    WAITS,
    Action,
    Again,
    Context,
    Done,
    Failed,
    Result,
    Skipped,
    StepClaim,
    Toolbox,
)
from healer.actions.base import reason_of
from healer.model import (
    Command,
    Component,
    Evidence,
    FaultClass,
    Guard,
    Incident,
    LogEntry,
    Message,
    Run,
    RunState,
    Sense,
    Severity,
    SlurmNode,
    Step,
    StepEvent,
    Ticket,
    Verb,
)
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable
from healer.ports.transactions import LeaseLost
from healer.sim.sim_clock import SimClock
from healer.sim.sim_slurm import SimScheduler
from tests.support.loop import CLUSTER, START, name
from tests.support.under_test import Written

NODE = name(1)
INCIDENT = Incident(
    id="0123456789abcdef0123456789abcdef",
    cluster=CLUSTER,
    rule="gpu-lost",
    fault="xid-79",
    fault_class=FaultClass.fatal,
    title="Xid 79: GPU fell off the bus",
    root=Component(cluster=CLUSTER, node=NODE),
    opened=START,
    updated=START,
    settle_until=START,
    severity=Severity.P1,
)
RUN = Run(
    id="r1",
    cluster=CLUSTER,
    playbook="gpu-fatal",
    state=RunState.running,
    by="healer",
    reason="x",
    created_at=START,
    node=NODE,
    incident=INCIDENT.id,
    rule="gpu-lost",
)
REASON = "healer:gpu-lost inc:01234567 Xid 79: GPU fell off the bus"


class Desk:
    """A simulated Slurm and a context; what the action hands out is kept."""

    def __init__(self, **context: Any) -> None:
        self.clock = SimClock(START)
        self.slurm = SimScheduler(CLUSTER, self.clock, 4)
        self.queued: list[Message | Ticket] = []
        self.commands_sent: list[Command] = []
        self.released: list[str] = []
        given: dict[str, Any] = {
            "run": RUN,
            "step": Step(id="step"),
            "item": None,
            "restarts": None,
            "incident": INCIDENT,
            "began_at": START,
            "now": self.clock.now,
            "scheduler": self.slurm,
            "fence": lambda: None,
            "queue": self.queued.append,
            "tell_detector": self.commands_sent.append,
            "release_slot": self.released.append,
            "earlier_now": self.clock.now,
        }
        given |= context
        boxes: dict[str, Any] = {
            name: box(**{key: given.pop(key) for key in box.__struct_fields__ if key in given})
            for name, box in (("tools", Toolbox), ("claim", StepClaim))
        }
        self.ctx = Context(**given, **boxes)

    def use(self, **tools: Any) -> None:
        """Other tools from here on."""
        self.ctx = msgspec.structs.replace(self.ctx, tools=msgspec.structs.replace(self.ctx.tools, **tools))

    def act(self, action: Action) -> Result:
        """As the driver does it: look, do, read back."""
        return action.probe(self.ctx) or action.do(self.ctx) or action.verify(self.ctx)


class Away:
    """Slurm does not answer at all."""

    name = "away"

    def __getattr__(self, call: str) -> Callable[..., Any]:
        def fail(*_: object) -> None:
            raise SchedulerUnavailable("no route to slurmctld")

        return fail


DRAIN, RESUME, REQUEUE = VERBS[Verb.drain], VERBS[Verb.resume], VERBS[Verb.requeue]


# --- drain --------------------------------------------------------------------------------------------------


def test_a_drain_is_done_when_our_reason_is_read_back() -> None:
    desk = Desk()
    assert DRAIN.probe(desk.ctx) is None
    done = desk.act(DRAIN)
    assert isinstance(done, Done)
    assert done.data["reason"] == REASON == desk.slurm.node(NODE).reason
    again = DRAIN.probe(desk.ctx)
    assert isinstance(again, Done)


def test_a_drain_of_another_incident_of_ours_is_enough() -> None:
    desk = Desk()
    desk.slurm.drain(NODE, "healer:gpu-fatal inc:ffffffff x")
    done = desk.act(DRAIN)
    assert isinstance(done, Done)
    assert done.data["other"]
    assert desk.slurm.node(NODE).reason == "healer:gpu-fatal inc:ffffffff x"


def test_a_drain_is_undone_only_while_it_is_ours() -> None:
    desk = Desk()
    assert DRAIN.undo is not None
    desk.act(DRAIN)
    desk.slurm.person_drain(NODE, "PSU", "ann")
    assert isinstance(DRAIN.undo(desk.ctx), Done)
    assert desk.slurm.node(NODE).reason == "PSU"
    assert desk.released == []
    desk.slurm.drain(NODE, REASON)
    assert isinstance(DRAIN.undo(desk.ctx), Done)
    assert desk.slurm.node(NODE).in_service
    assert len(desk.released) == 1


def test_an_undo_frees_no_slot_of_a_drain_of_another_incident() -> None:
    """It begins again after a worker's death; the drain that this run found in place is not its own."""
    desk = Desk(asked=True)
    assert DRAIN.undo is not None
    desk.slurm.drain(NODE, "healer:gpu-fatal inc:ffffffff x")
    left = DRAIN.undo(desk.ctx)
    assert isinstance(left, Done) and "inc:ffffffff" in str(left.text)  # it says that healer's drain stays
    assert desk.slurm.node(NODE).drain and desk.released == []
    desk.slurm.resume(NODE)
    assert isinstance(DRAIN.undo(desk.ctx), Done)
    assert len(desk.released) == 1


@pytest.mark.parametrize("action", [DRAIN, RESUME])
def test_a_node_that_slurm_does_not_have_is_a_question_at_once(action: Action) -> None:
    desk = Desk(run=msgspec.structs.replace(RUN, node="gone"))
    failed = desk.act(action)
    assert isinstance(failed, Failed)
    assert failed.final


# --- nothing without leave ----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [Verb.drain, Verb.resume, Verb.requeue])
def test_a_worker_whose_lease_is_over_touches_nothing(verb: Verb) -> None:
    def over() -> None:
        raise LeaseLost("over")

    desk = Desk(fence=over)
    job = desk.slurm.add_job(required=[NODE])
    ctx = msgspec.structs.replace(desk.ctx, item=job, restarts=0)
    if verb is not Verb.drain:
        desk.slurm.drain(NODE, REASON)
    before = desk.slurm.snapshot()
    with pytest.raises(LeaseLost):
        VERBS[verb].do(ctx)
    assert desk.slurm.snapshot() == before


@pytest.mark.parametrize(
    "action",
    [DRAIN, RESUME, REQUEUE, CHECKS["jobs_hit"], CHECKS["node_answers"]],
    ids=["drain", "resume", "requeue", "jobs_hit", "node_answers"],
)
def test_slurm_that_does_not_answer_is_waited_for(action: Action) -> None:
    desk = Desk(scheduler=Away(), item="1", restarts=0)
    assert isinstance(desk.act(action), Again)


# --- requeue ------------------------------------------------------------------------------------------------


def requeuing(**job: Any) -> Desk:
    desk = Desk()
    number = desk.slurm.add_job(required=[NODE], **job)
    desk.slurm.drain(NODE, REASON)
    desk.ctx = msgspec.structs.replace(desk.ctx, item=number, restarts=0)
    return desk


def finish(desk: Desk, seconds: float = 30) -> Result:
    result: Result = Again(text="", after_s=0)
    for _ in range(int(seconds * 4)):
        result = desk.act(REQUEUE)
        if not isinstance(result, Again):
            return result
        desk.clock.advance(0.25)
    return result


def test_a_requeue_is_done_when_nothing_but_the_queue_keeps_the_job_from_starting() -> None:
    desk = requeuing()
    assert isinstance(desk.act(REQUEUE), Again)  # it is still completing
    done = finish(desk)
    assert isinstance(done, Done)
    assert done.data["restarts"] == 1
    # Well before the two minutes that Slurm's begin time alone would have cost.
    assert desk.clock.now() - START < timedelta(seconds=10)


def test_a_job_that_was_restarted_meanwhile_is_not_requeued_again() -> None:
    desk = requeuing()
    desk.slurm.requeue(desk.ctx.job)
    assert isinstance(finish(desk), Done)
    found = desk.slurm.job(desk.ctx.job)
    assert found is not None
    assert found.restarts == 1


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (SimScheduler.complete, "ended COMPLETED"),
        (SimScheduler.fail_job, "ended FAILED"),
        (SimScheduler.cancel, "ended CANCELLED"),
    ],
)
def test_a_job_that_ended_before_is_left_alone_and_that_is_said(
    end: Callable[[SimScheduler, str], None], words: str
) -> None:
    desk = requeuing()
    end(desk.slurm, desk.ctx.job)
    skipped = finish(desk)
    assert isinstance(skipped, Skipped)
    assert words in skipped.text
    found = desk.slurm.job(desk.ctx.job)
    assert found is not None
    assert found.restarts == 0


def test_a_job_that_slurm_no_longer_knows_is_skipped() -> None:
    desk = Desk(item="999", restarts=0)
    assert isinstance(desk.act(REQUEUE), Skipped)


@pytest.mark.parametrize("job", [{"requeue": False}, {"batch": False}])
def test_a_job_that_cannot_be_requeued_is_skipped(job: dict[str, bool]) -> None:
    assert isinstance(finish(requeuing(**job)), Skipped)


def test_without_a_restart_count_nothing_is_requeued() -> None:
    desk = requeuing()
    desk.ctx = msgspec.structs.replace(desk.ctx, restarts=None)
    failed = desk.act(REQUEUE)
    assert isinstance(failed, Failed)
    assert failed.final


# --- resume -------------------------------------------------------------------------------------------------


def test_resume_frees_the_slot_after_notifying_the_detector() -> None:
    order: list[str] = []
    desk = Desk(
        tell_detector=lambda command: order.append(command.kind),
        release_slot=lambda _: order.append("slot"),
    )
    desk.slurm.drain(NODE, REASON)
    assert isinstance(desk.act(RESUME), Done)
    assert desk.slurm.node(NODE).in_service
    assert order == ["node_returned", "slot"]


def test_a_node_in_service_already_is_returned() -> None:
    desk = Desk()
    assert isinstance(RESUME.probe(desk.ctx), Done)


class Asleep:
    """Power saving has switched the drained node off; the states are those of a real 22.05 and 24.11."""

    def __init__(self, slurm: SimScheduler) -> None:
        self.slurm = slurm

    def __getattr__(self, call: str) -> Any:
        return getattr(self.slurm, call)

    def node(self, node: str) -> SlurmNode:
        shown = self.slurm.node(node)
        state = (*shown.state, "POWERED_DOWN", *(() if shown.drain else ("NOT_RESPONDING",)))
        return msgspec.structs.replace(shown, state=state)

    def resume(self, node: str) -> None:
        if not self.slurm.node(node).drain:
            raise SchedulerRefused("Invalid node state specified", 2180)
        self.slurm.resume(node)


@pytest.mark.parametrize("verb", [Verb.resume, Verb.undrain, Verb.reserve])
def test_a_node_that_power_saving_has_switched_off_is_returned_too(verb: Verb) -> None:
    desk = Desk()
    desk.slurm.drain(NODE, REASON)
    desk.use(scheduler=Asleep(desk.slurm))
    results = [desk.act(VERBS[verb]) for _ in range(3)]
    assert isinstance(results[-1], Done), results
    assert len(desk.released) == (0 if verb is Verb.reserve else len(results))


# --- looking ------------------------------------------------------------------------------------------------


def test_the_jobs_hit_are_listed_with_their_restarts() -> None:
    desk = Desk()
    job = desk.slurm.add_job(required=[NODE])
    listed = desk.act(CHECKS["jobs_hit"])
    assert isinstance(listed, Done)
    assert listed.data["jobs"] == {job: 0}
    assert desk.commands_sent[0].data["jobs"] == [job]


def test_without_an_incident_no_job_owner_is_notified() -> None:
    desk = Desk(run=msgspec.structs.replace(RUN, incident=None), incident=None)
    job = desk.slurm.add_job(required=[NODE])
    listed = desk.act(CHECKS["jobs_hit"])
    assert isinstance(listed, Done)
    assert listed.data["jobs"] == {job: 0}
    assert desk.commands_sent == []


def test_two_gpus_of_a_shared_node_hit_two_jobs() -> None:
    first, second = (Component(cluster=CLUSTER, node=NODE, gpu=gpu) for gpu in (0, 6))
    evidence = tuple(
        Evidence(digest=str(one.gpu), at=START, component=one, text="x", sense=Sense.kernel)
        for one in (first, second)
    )
    known = msgspec.structs.replace(INCIDENT, root=first, affected=(second,), evidence=evidence)
    desk = Desk(incident=known)
    jobs = [desk.slurm.add_job(gpus=gpus, required=[NODE]) for gpus in (2, 2, 4)]
    listed = desk.act(CHECKS["jobs_hit"])
    assert isinstance(listed, Done)
    assert {jobs[0], jobs[2]} <= set(listed.data["jobs"])


def test_an_answering_node_without_new_faults_is_fit() -> None:
    assert isinstance(Desk().act(CHECKS["node_answers"]), Done)


@pytest.mark.parametrize("flag", ["POWERED_DOWN", "POWERING_DOWN"])
def test_a_node_that_power_saving_switched_off_is_not_said_to_respond(flag: str) -> None:
    """As Slurm 22.05 shows a drained node once SuspendTime is over. A person may return it: its next job
    wakes it."""

    class Asleep(Written):
        def node(self, name: str) -> SlurmNode:
            return msgspec.structs.replace(self.slurm.node(name), state=("IDLE", "DRAIN", flag))

    desk = Desk()
    desk.slurm.drain(NODE, reason_of(desk.ctx))
    desk.use(scheduler=Asleep(desk.slurm))
    answer = desk.act(CHECKS["node_answers"])
    assert isinstance(answer, Done) and "responds" not in answer.text and flag in answer.text


def test_evidence_of_before_the_run_is_no_new_fault() -> None:
    def run_for(seconds: float) -> Result:
        one = Evidence(
            digest="d",
            at=START + timedelta(seconds=seconds),
            component=INCIDENT.root,
            text="Xid 79",
            sense=Sense.kernel,
        )
        desk = Desk(incident=msgspec.structs.replace(INCIDENT, evidence=(one,)))
        return desk.act(CHECKS["node_answers"])

    assert isinstance(run_for(0), Done)
    assert isinstance(run_for(1), Failed)


def test_a_repair_is_waited_for_without_end() -> None:
    waits = Desk().act(WAITS["repair"])
    assert isinstance(waits, Again)
    assert waits.after_s is None


# --- messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [Verb.ticket, Verb.notify])
def test_message_has_a_stable_id_and_the_story(verb: Verb) -> None:
    desk = Desk(incident=msgspec.structs.replace(INCIDENT, jobs_hit=("4711",)))
    for _ in range(2):
        assert isinstance(desk.act(VERBS[verb]), Done)
    first, again = desk.queued
    assert first == again
    assert first.id.startswith(INCIDENT.id)
    assert "4711" in first.text
    assert INCIDENT.title in first.title


@pytest.mark.parametrize("verb", [Verb.ticket, Verb.notify])
def test_a_later_run_of_the_incident_sends_a_message_of_its_own(verb: Verb) -> None:
    """With the same id it was dropped, and the step said that it was queued."""
    first, later = (
        Desk(),
        Desk(
            run=msgspec.structs.replace(RUN, id="r2"), incident=msgspec.structs.replace(INCIDENT, run_count=2)
        ),
    )
    for desk in (first, later):
        desk.act(VERBS[verb])
    assert first.queued[0].id != later.queued[0].id


def test_a_message_of_an_approved_run_asks_for_no_approval() -> None:
    """The detector has not read yet that the run was approved."""
    before = msgspec.structs.replace(INCIDENT, run=RUN.id, held_by=Guard.approval)
    desk = Desk(incident=before)
    desk.act(VERBS[Verb.notify])
    other = Desk(incident=msgspec.structs.replace(before, run="r2"))
    other.act(VERBS[Verb.notify])
    asked = [message.about.run for message in (*desk.queued, *other.queued) if isinstance(message, Message)]
    assert asked == ["", "r2"]


@pytest.mark.parametrize("verb", [Verb.ticket, Verb.notify])
def test_a_run_that_was_held_until_now_pages_no_one_as_p0(verb: Verb) -> None:
    """The detector has not read yet that it goes on: the drained node paged again, its alert stayed P0."""
    held = msgspec.structs.replace(INCIDENT, run=RUN.id, severity=Severity.P0, held_by=Guard.cooldown)
    desk, other = Desk(incident=held), Desk(incident=msgspec.structs.replace(held, run="r2"))
    for one in (desk, other):
        one.act(VERBS[verb])
    assert [one.queued[0].severity for one in (desk, other)] == [Severity.P1, Severity.P0]
    assert [one.queued[0].title[:2] for one in (desk, other)] == ["P1", "P0"]


def test_people_read_of_each_job_hit_whether_it_was_restarted() -> None:
    requeued = LogEntry(
        run=RUN.id,
        step="requeue:4711",
        event=StepEvent.done,
        at=START,
        epoch=1,
        text="Job 4711 was requeued (restart 1) and waits for Slurm's next scheduling pass",
    )
    desk = Desk(incident=msgspec.structs.replace(INCIDENT, jobs_hit=("4711", "4712")), log=(requeued,))
    desk.act(VERBS[Verb.ticket])
    (ticket,) = desk.queued
    assert requeued.text in ticket.text
    assert "Job 4712: not restarted by this run" in ticket.text


def test_approval_request_lists_the_jobs_on_the_node() -> None:
    desk = Desk(step=Step(id="agree", title="Power-cycle it"))
    asks = desk.act(WAITS["approval"])
    assert asks.text == "Waiting for approval: Power-cycle it"
    jobs = [desk.slurm.add_job(required=[NODE], gpus=4) for _ in range(2)]
    asks = desk.act(WAITS["approval"])
    assert asks.text == f"Waiting for approval: Power-cycle it. Jobs running there: {', '.join(jobs)}"
    desk.use(scheduler=Away())
    assert desk.act(WAITS["approval"]).text == "Waiting for approval: Power-cycle it"


def test_every_step_of_every_shipped_playbook_can_be_done() -> None:
    from tests.support.loop import shipped

    for playbook in shipped().playbooks.values():
        for step in playbook.steps:
            assert step.do in VERBS or (step.check in CHECKS) or (step.wait in WAITS)
