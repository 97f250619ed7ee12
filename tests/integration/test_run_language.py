"""Inputs, waits, an approval within a run, going back to a step, and taking it all back, on both ledgers."""

import pytest

from healer.model import Input, InputType, Playbook, Ruleset, RunState, Step, Verb
from healer.ports.commanding import RunRequest
from healer.ports.request_errors import Conflict, Invalid
from tests.support.command_desk import Desk
from tests.support.ledgers import CLUSTER, bench_of, facts
from tests.support.loop import name, rules_in, shipped

BURN_IN = Playbook(
    name="burn-in",
    title="Let a node burn in",
    target="node",
    inputs={
        "lasts": Input(type=InputType.duration, default="10m"),
        "ask": Input(type=InputType.bool, default=True),
    },
    steps=(
        Step(id="drain", title="Drain the node", do=Verb.drain),
        Step(id="empty", wait="empty"),
        Step(id="burn", wait="time", input={"lasts_s": "{input.lasts}"}),
        Step(id="leave", title="Return the node", wait="approval", when="input.ask"),
        Step(id="resume", do=Verb.resume),
    ),
)


def rules() -> Ruleset:
    return rules_in(playbooks=shipped().playbooks | {BURN_IN.name: BURN_IN})


@pytest.fixture(params=["memory", "postgres"])
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(bench_of(request), rules)


def burn_in(**given: str | int | bool) -> RunRequest:
    return RunRequest(
        id="r1", playbook="burn-in", cluster=CLUSTER, by="ann", reason="new board", node=name(1), inputs=given
    )


def events(desk: Desk, step: str) -> list[str]:
    return [event for one, event in desk.log("r1") if one == step]


def test_inputs_set_the_wait_and_whether_the_run_asks(desk: Desk) -> None:
    started = desk.people.start(burn_in(lasts="1m", ask="false"))
    assert started.input["inputs"] == {"lasts": 60, "ask": False}
    assert desk.work("r1", 50) is RunState.running
    assert desk.slurm.node(name(1)).drain
    assert desk.work("r1", 30) is RunState.done
    assert desk.slurm.node(name(1)).in_service
    assert events(desk, "leave") == ["skipped"]


def test_a_wrong_input_starts_nothing(desk: Desk) -> None:
    with pytest.raises(Invalid, match="such as 90s") as caught:
        desk.people.start(burn_in(lasts="soon"))
    assert caught.value.field == "inputs.lasts"
    with pytest.raises(Invalid, match="has no input colour"):
        desk.people.preview(burn_in(colour="red"))
    assert desk.decisions() == [] and desk.audited() == []


def test_it_goes_on_when_a_person_approves(desk: Desk) -> None:
    desk.people.start(burn_in(lasts="5s"))
    assert desk.work("r1", 30) is RunState.waiting
    with pytest.raises(Conflict, match="only a stuck run"):
        desk.people.retry("r1", by="bob", reason="x", request="q0")
    approved = desk.people.approve("r1", by="bob", reason="it is warm", request="q1")
    assert (approved.state, approved.question) == (RunState.running, None)
    assert desk.work("r1") is RunState.done
    assert desk.slurm.node(name(1)).in_service
    assert desk.audited().count("run.approved") == 1


def test_run_goes_back_to_a_step_and_repeats_it(desk: Desk) -> None:
    desk.people.start(burn_in(lasts="30s"))
    assert desk.work("r1", 50) is RunState.waiting
    with pytest.raises(Invalid, match="burn-in has no step bake; it has drain, empty, burn, leave, resume"):
        desk.people.retry("r1", by="bob", reason="x", request="q1", step="bake")
    with pytest.raises(Conflict, match="has not reached the step resume yet"):
        desk.people.retry("r1", by="bob", reason="x", request="q2", step="resume")
    desk.people.retry("r1", by="bob", reason="once more", request="q3", step="burn")
    assert desk.work("r1", 15) is RunState.running, "it burns in for its whole time again"
    assert desk.work("r1", 30) is RunState.waiting
    assert events(desk, "drain").count("done") == 1
    assert events(desk, "burn").count("done") == 2
    assert desk.audited().count("run.retried") == 1


def test_all_of_it_is_taken_back(desk: Desk) -> None:
    desk.people.start(burn_in())
    with pytest.raises(Conflict, match="has changed nothing yet"):
        desk.people.undo("r1", by="bob", reason="x", request="q1")
    assert desk.work("r1", 20) is RunState.running
    assert [one.node for one in facts(desk).slots] == [name(1)]
    undone = desk.people.undo("r1", by="bob", reason="wrong node", request="q2")
    assert undone.state is RunState.running
    desk.people.undo("r1", by="bob", reason="wrong node", request="q2")
    assert desk.work("r1") is RunState.undone
    shown = desk.slurm.node(name(1))
    assert shown.in_service and not shown.drain
    assert facts(desk).slots == ()
    assert desk.audited().count("run.undo") == 1
    with pytest.raises(Conflict, match="is undone"):
        desk.people.retry("r1", by="bob", reason="x", request="q3", step="burn")


def test_a_drain_that_a_person_took_over_is_not_lifted(desk: Desk) -> None:
    desk.people.start(burn_in())
    desk.work("r1", 20)
    desk.slurm.person_drain(name(1), "I look at it", "bob")
    desk.poll()
    desk.people.undo("r1", by="ann", reason="wrong node", request="q1")
    desk.work("r1")
    assert desk.slurm.node(name(1)).reason == "I look at it"
    assert desk.slurm.node(name(1)).drain
