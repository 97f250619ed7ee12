"""Playbooks within playbooks: a step `use: NAME` becomes the steps of that one. Pure.

What runs, is shown and is logged is the flat list: a run has one log, and its steps one order.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from healer.model import Playbook, Step
from healer.playbooks.advance import InputInvalid, only_place, placed, taken
from healer.playbooks.conditions import Both, ConditionError, parse, renamed, text_of

DEEPEST = 5
MOST_STEPS = 200


class Within(ValueError):
    """`index`: the step of the playbook that was read which leads there."""

    def __init__(self, index: int, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.index, self.hint = index, hint


class Flat(msgspec.Struct, frozen=True, kw_only=True):
    """`origin`: for each step the index of the one that it comes from in the playbook's own file."""

    playbook: Playbook
    origin: tuple[int, ...]


def inlined(playbook: Playbook, books: Mapping[str, Playbook]) -> Flat:
    """The playbook with all that it uses in its place. A step `test` of what the step `check` uses becomes
    `check-test`. Raises Within: a cycle, a playbook that is wrong itself, too deep, too long."""
    steps: list[Step] = []
    origin: list[int] = []
    for index, step in enumerate(playbook.steps):
        found = _steps(step, books, (playbook.name,), index)
        steps += found
        origin += [index] * len(found)
    if len(steps) > MOST_STEPS:
        raise Within(
            origin[MOST_STEPS], f"it has {len(steps)} steps with all that it uses, {MOST_STEPS} at most"
        )
    ids = [step.id for step in steps]
    for place, name in enumerate(ids):
        if name in ids[:place]:
            raise Within(origin[place], f"the step {name} stands here twice, with what is used", "rename one")
    return Flat(playbook=msgspec.structs.replace(playbook, steps=tuple(steps)), origin=tuple(origin))


def _steps(step: Step, books: Mapping[str, Playbook], path: tuple[str, ...], index: int) -> list[Step]:
    if step.use is None:
        return [step]
    if step.use in path:
        raise Within(index, f"use: {' -> '.join((*path, step.use))} goes round in a circle")
    if len(path) >= DEEPEST:
        raise Within(index, f"use: {' -> '.join((*path, step.use))} is deeper than {DEEPEST}")
    used = books.get(step.use)
    if used is None:
        raise Within(index, f"use: there is no playbook {step.use}")
    found: list[Step] = []
    for inner in used.steps:
        for one in _steps(inner, books, (*path, used.name), index):
            try:
                found.append(_placed(one, step, used))
            except (ConditionError, InputInvalid) as error:
                raise Within(index, f"use: {used.name} is wrong itself: {error}") from error
    return found


def _placed(inner: Step, outer: Step, used: Playbook) -> Step:
    given = _given(outer, used)
    conditions = [parse(outer.when)] if outer.when is not None else []
    if inner.when is not None:
        conditions.append(renamed(parse(inner.when), lambda name: f"{outer.id}-{name}", given))
    when = conditions[0] if len(conditions) == 1 else Both(tuple(conditions)) if conditions else None
    return msgspec.structs.replace(
        inner,
        id=f"{outer.id}-{inner.id}",
        title=inner.title or inner.id,
        when=text_of(when) if when is not None else None,
        input=placed(inner.input, given),
    )


def _given(outer: Step, used: Playbook) -> Mapping[str, Any]:
    """Values, and names of the outer playbook's inputs, for all inputs of the used one that have any."""
    fixed = {name: value for name, value in outer.input.items() if only_place(value) is None}
    optional = {name: msgspec.structs.replace(one, required=False) for name, one in used.inputs.items()}
    known = taken(msgspec.structs.replace(used, inputs=optional), fixed)
    return known | {name: value for name, value in outer.input.items() if only_place(value) is not None}
