"""Playbooks within playbooks: one flat list, with conditions and inputs in the outer one's words."""

import pytest

from healer.model import Input, InputType, Playbook, Step, Verb
from healer.playbooks.within import DEEPEST, InlineError, inline_playbook

INNER = Playbook(
    name="check",
    title="Check",
    target="node",
    inputs={
        "script": Input(type=InputType.choice, choices=("sanity", "deep"), default="sanity"),
        "loud": Input(type=InputType.bool, default=False),
    },
    steps=(
        Step(id="test", do=Verb.diagnose, input={"script": "{input.script}"}),
        Step(id="tell", do=Verb.notify, when="test.failed and input.loud"),
    ),
)


def outer(*steps: Step, **inputs: Input) -> Playbook:
    return Playbook(name="outer", title="Outer", target="node", steps=steps, inputs=inputs)


def flat(book: Playbook, *others: Playbook) -> tuple[Step, ...]:
    return inline_playbook(book, {one.name: one for one in (book, INNER, *others)}).playbook.steps


def test_nested_steps_take_its_place_under_their_own_names() -> None:
    book = outer(Step(id="drain", do=Verb.drain), Step(id="now", use="check"), Step(id="end", do=Verb.resume))
    steps = flat(book)
    assert [one.id for one in steps] == ["drain", "now-test", "now-tell", "end"]
    assert steps[1].input == {"script": "sanity"}
    # `loud` defaults to false: fixed when the files are read.
    assert steps[2].when == "now-test.failed and false"
    assert inline_playbook(book, {"check": INNER}).origin == (0, 1, 1, 2)


def test_it_is_given_values_and_inputs_of_the_outer_one() -> None:
    use = Step(id="now", use="check", when="drain.passed", input={"script": "{input.how}", "loud": True})
    choice = Input(type=InputType.choice, choices=("sanity", "deep"), default="deep")
    steps = flat(outer(Step(id="drain", do=Verb.drain), use, how=choice))
    assert steps[1].input == {"script": "{input.how}"}
    assert steps[1].when == "drain.passed"
    assert steps[2].when == "drain.passed and (now-test.failed and true)"


def test_an_input_passed_on_to_a_condition_keeps_being_asked() -> None:
    loud = Input(type=InputType.bool, default=False)
    steps = flat(outer(Step(id="now", use="check", input={"loud": "{input.shout}"}), shout=loud))
    assert steps[1].when == "now-test.failed and input.shout"


def test_twice_the_same_is_twice_its_steps() -> None:
    steps = flat(outer(Step(id="before", use="check"), Step(id="after", use="check")))
    assert [one.id for one in steps] == ["before-test", "before-tell", "after-test", "after-tell"]


def test_a_circle_a_stranger_and_too_deep_are_said() -> None:
    round_ = Playbook(name="a", title="A", target="node", steps=(Step(id="b", use="outer"),))
    with pytest.raises(InlineError, match="outer -> a -> outer is circular"):
        flat(outer(Step(id="x", use="a")), round_)
    with pytest.raises(InlineError, match="there is no playbook none"):
        flat(outer(Step(id="x", use="none")))
    chain = [
        Playbook(name=f"n{at}", title="", target="node", steps=(Step(id="x", use=f"n{at + 1}"),))
        for at in range(DEEPEST + 1)
    ]
    with pytest.raises(InlineError, match="is nested deeper than"):
        flat(outer(Step(id="x", use="n0")), *chain)


def test_two_steps_of_one_name_are_said() -> None:
    with pytest.raises(InlineError, match="the step now-test appears twice") as caught:
        flat(outer(Step(id="now-test", do=Verb.notify), Step(id="now", use="check")))
    assert caught.value.index == 1
