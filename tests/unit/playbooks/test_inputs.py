"""What a person gives a playbook: read by its type, refused with the input's name."""

from typing import Any

import pytest

from healer.model import Input, InputType, Playbook, Step, Verb
from healer.playbooks.advance import InputInvalid, fill_step, read_inputs

BOOK = Playbook(
    name="book",
    title="A book",
    target="node",
    steps=(),
    inputs={
        "service": Input(type=InputType.choice, choices=("slurmd", "nvidia-dcgm"), required=True),
        "lasts": Input(type=InputType.duration, default="10m"),
        "depth": Input(type=InputType.int),
        "fast": Input(type=InputType.bool, default=False),
        "note": Input(type=InputType.str, help="what the ticket says"),
    },
)


def test_omitted_inputs_get_defaults_and_durations_become_seconds() -> None:
    assert read_inputs(BOOK, {"service": "slurmd"}) == {"service": "slurmd", "lasts": 600, "fast": False}


def test_a_command_line_may_give_texts() -> None:
    given = {"service": "nvidia-dcgm", "lasts": "2h", "depth": "-3", "fast": "true", "note": "it hums"}
    assert read_inputs(BOOK, given) == given | {"lasts": 7200, "depth": -3, "fast": True}


@pytest.mark.parametrize(
    ("given", "name", "says"),
    [
        ({}, "service", "book requires service"),
        ({"service": "sshd"}, "service", "one of slurmd, nvidia-dcgm"),
        ({"service": "slurmd", "lasts": "soon"}, "lasts", "such as 90s"),
        ({"service": "slurmd", "lasts": "999999999d"}, "lasts", "at most 365 days"),
        ({"service": "slurmd", "depth": "1.5"}, "depth", "a whole number"),
        ({"service": "slurmd", "depth": True}, "depth", "a whole number"),
        ({"service": "slurmd", "fast": "yes"}, "fast", "true or false"),
        ({"service": "slurmd", "note": "two\nlines"}, "note", "one line"),
        ({"service": "slurmd", "note": "x" * 300}, "note", "at most 256"),
        ({"service": "slurmd", "force": "1"}, "force", "has no input force"),
    ],
)
def test_a_wrong_one_is_named(given: dict[str, Any], name: str, says: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        read_inputs(BOOK, given)
    assert caught.value.name == name
    assert says in str(caught.value)


def test_a_step_gets_them_with_their_own_type_or_within_a_text() -> None:
    values = {
        "lasts_s": "{input.lasts}",
        "text": "{input.note} after {input.lasts} s",
        "n": 1,
        "gone": "{input.x}",
    }
    step = Step(id="s", do=Verb.notify, input=values)
    knows = {"input.lasts": 600, "input.note": "hums"}
    assert fill_step(step, knows).input == {"lasts_s": 600, "text": "hums after 600 s", "n": 1}
