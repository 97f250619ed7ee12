"""Playbooks that use others: a step `use: NAME` is replaced by the steps of that playbook. Pure.

Runs, pages and logs have the flat list: a run has one log, and its steps one order.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from healer.model import Playbook, Step
from healer.playbooks.advance import InputInvalid, fill_values, read_inputs, sole_placeholder
from healer.playbooks.conditions import And, ConditionError, inline_condition, parse, text_of
from healer.text import NO_WORDS, Said, said_by, say

DEEPEST = 5
MOST_STEPS = 200


class InlineError(ValueError):
    """`index`: the step of the outermost playbook that leads to the error."""

    def __init__(self, index: int, text: Said, hint: Said = NO_WORDS) -> None:
        super().__init__(text)
        self.index, self.hint = index, hint


class Flat(msgspec.Struct, frozen=True, kw_only=True):
    """`origin`: for each step, the index of the step in the playbook's own file that it comes from."""

    playbook: Playbook
    origin: tuple[int, ...]


def inline_playbook(playbook: Playbook, books: Mapping[str, Playbook]) -> Flat:
    """The playbook with the playbooks that it uses inlined. A step `test` of a playbook used by the step
    `check` becomes `check-test`. Raises InlineError: a cycle, an invalid playbook, too deep, too long."""
    steps: list[Step] = []
    origin: list[int] = []
    for index, step in enumerate(playbook.steps):
        found = _steps(step, books, (playbook.name,), index)
        steps += found
        origin += [index] * len(found)
    if len(steps) > MOST_STEPS:
        raise InlineError(origin[MOST_STEPS], say("playbooks.use_too_long", n=len(steps), most=MOST_STEPS))
    ids = [step.id for step in steps]
    for place, name in enumerate(ids):
        if name in ids[:place]:
            raise InlineError(
                origin[place], say("playbooks.use_twice", step=name), say("playbooks.use_rename")
            )
    return Flat(playbook=msgspec.structs.replace(playbook, steps=tuple(steps)), origin=tuple(origin))


def _steps(step: Step, books: Mapping[str, Playbook], path: tuple[str, ...], index: int) -> list[Step]:
    if step.use is None:
        return [step]
    way = " -> ".join((*path, step.use))
    if step.use in path:
        raise InlineError(index, say("playbooks.use_circle", path=way))
    if len(path) >= DEEPEST:
        raise InlineError(index, say("playbooks.use_deep", path=way, most=DEEPEST))
    used = books.get(step.use)
    if used is None:
        raise InlineError(index, say("playbooks.use_unknown", name=step.use))
    found: list[Step] = []
    for inner in used.steps:
        for nested in _steps(inner, books, (*path, used.name), index):
            try:
                found.append(_placed(nested, step, used))
            except (ConditionError, InputInvalid) as error:
                wrong = say("playbooks.use_wrong", name=used.name, error=said_by(error))
                raise InlineError(index, wrong) from error
    return found


def _placed(inner: Step, outer: Step, used: Playbook) -> Step:
    given = _given(outer, used)
    conditions = [parse(outer.when)] if outer.when is not None else []
    if inner.when is not None:
        conditions.append(inline_condition(parse(inner.when), lambda name: f"{outer.id}-{name}", given))
    when = conditions[0] if len(conditions) == 1 else And(tuple(conditions)) if conditions else None
    return msgspec.structs.replace(
        inner,
        id=f"{outer.id}-{inner.id}",
        title=inner.title or inner.id,
        when=text_of(when) if when is not None else None,
        input=fill_values(inner.input, given),
    )


def _given(outer: Step, used: Playbook) -> Mapping[str, Any]:
    """Input of the used playbook -> its value, or a placeholder for an input of the outer playbook."""
    fixed = {name: value for name, value in outer.input.items() if sole_placeholder(value) is None}
    optional = {name: msgspec.structs.replace(spec, required=False) for name, spec in used.inputs.items()}
    fixed_inputs = read_inputs(msgspec.structs.replace(used, inputs=optional), fixed)
    return fixed_inputs | {
        name: value for name, value in outer.input.items() if sole_placeholder(value) is not None
    }
