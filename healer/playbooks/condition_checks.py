"""Conditions as the files hold them: what is wrong with one, and one playbook's within another's. Pure."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from healer.model import Input, InputType
from healer.playbooks.conditions import (
    FACTS,
    Both,
    Compared,
    Condition,
    Either,
    Ended,
    Fixed,
    Not,
    Told,
    truth,
)


def wrong_with(leaf: Compared | Told, inputs: Mapping[str, Input]) -> str | None:
    """What cannot be right about it, in a sentence; None where it is."""
    name = leaf.name.removeprefix("input.")
    if name == leaf.name:
        if leaf.name not in FACTS:
            return f"there is no {leaf.name}; there are {', '.join(FACTS)} and input.NAME"
        assert isinstance(leaf, Compared)
        if leaf.value not in FACTS[leaf.name]:
            return f"{leaf.name} is never {leaf.value}: it is one of {', '.join(FACTS[leaf.name])}"
        return _only_equal(leaf) if leaf.name != "severity" else None
    given = inputs.get(name)
    if given is None:
        return f"the playbook has no input {name}"
    if isinstance(leaf, Told):
        return None if given.type is InputType.bool else f"{leaf.name} is no bool: compare it"
    if given.type in (InputType.int, InputType.duration):
        return None if re.fullmatch(r"\d+", leaf.value) else f"{leaf.name} is a number, {leaf.value} is none"
    if given.type is InputType.bool and leaf.value not in ("true", "false"):
        return f"{leaf.name} is true or false"
    if given.type is InputType.choice and leaf.value not in given.choices:
        return f"{leaf.name} is never {leaf.value}: it is one of {', '.join(given.choices)}"
    return _only_equal(leaf)


def _only_equal(leaf: Compared) -> str | None:
    return None if leaf.op in ("==", "!=") else f"{leaf.name} has no order: only == and !="


def text_of(of: Condition) -> str:
    """A text that reads back as the same condition."""
    match of:
        case Ended():
            return f"{of.step}.{of.word}"
        case Fixed():
            return "true" if of.value else "false"
        case Told():
            return of.name
        case Compared():
            return f"{of.name} {of.op} {of.value}"
        case Not():
            return f"not {_bracketed(of.of)}"
        case Both():
            return " and ".join(_bracketed(part) for part in of.parts)
        case Either():
            return " or ".join(_bracketed(part) for part in of.parts)


def _bracketed(of: Condition) -> str:
    return f"({text_of(of)})" if isinstance(of, Both | Either | Not) else text_of(of)


def renamed(of: Condition, step: Callable[[str], str], given: Mapping[str, Any]) -> Condition:
    """The same where its playbook is part of another one: steps by their new ids, and its inputs as that one
    gives them, a value or another input's name as `{input.x}`."""
    match of:
        case Ended():
            return Ended(step(of.step), of.word)
        case Not():
            return Not(renamed(of.of, step, given))
        case Both():
            return Both(tuple(renamed(part, step, given) for part in of.parts))
        case Either():
            return Either(tuple(renamed(part, step, given) for part in of.parts))
        case Told() | Compared() if of.name.startswith("input."):
            value = given.get(of.name.removeprefix("input."))
            if isinstance(value, str) and (outer := re.fullmatch(r"\{(input\.\w+)\}", value)):
                return msgspec.structs.replace(of, name=outer[1])
            known = truth(of, lambda _: None, {of.name: value})
            return Fixed(known is True)
        case _:
            return of
