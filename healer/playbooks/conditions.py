"""The `when` of a step: a small condition over what the run knows. Pure.

    when: validate.failed and (verdict.cause == permanent or severity <= P1)

A condition is read by a grammar of its own, as ids of steps hold dashes. Three values: an unknown fact makes
a comparison neither true nor false, and a step goes on only where its condition is surely true.
"""

import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Never

import msgspec

from healer.model import Cause, FaultClass, Input, InputType, Remedy, Severity

LONGEST_TEXT = 500
_DEEPEST = 20
#: What an earlier step can have come to.
OUTCOMES = ("passed", "failed", "skipped")
#: What a run knows of its incident, and the words that it may be compared with.
FACTS: Mapping[str, tuple[str, ...]] = {
    "verdict.cause": tuple(str(one) for one in Cause),
    "verdict.remedy": tuple(str(one) for one in Remedy),
    "fault_class": tuple(str(one) for one in FaultClass),
    "severity": tuple(str(one) for one in Severity),
}
COMPARES: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_TOKEN = re.compile(r"\s*(?:(?P<word>[A-Za-z0-9_][\w.-]*)|(?P<op>==|!=|<=|>=|<|>)|(?P<sign>[()]))")


class ConditionError(ValueError):
    """`column` counts from 1."""

    def __init__(self, column: int, text: str) -> None:
        super().__init__(f"column {column}: {text}")
        self.column = column


class Ended(msgspec.Struct, frozen=True):
    """`STEP.passed`, `STEP.failed`, `STEP.skipped`."""

    step: str
    word: str


class Compared(msgspec.Struct, frozen=True):
    """`severity <= P1`, `input.depth == 3`. `value` is as in the text."""

    name: str
    op: str
    value: str


class Told(msgspec.Struct, frozen=True):
    """`input.force`: a bool that was given."""

    name: str


class Fixed(msgspec.Struct, frozen=True):
    """`true`, `false`: what a playbook gives to one that it uses."""

    value: bool


class Not(msgspec.Struct, frozen=True):
    of: "Condition"


class Both(msgspec.Struct, frozen=True):
    parts: tuple["Condition", ...]


class Either(msgspec.Struct, frozen=True):
    parts: tuple["Condition", ...]


Condition = Ended | Compared | Told | Fixed | Not | Both | Either


@lru_cache(maxsize=1024)
def parse(text: str) -> Condition:
    """Raises ConditionError."""
    return _Reader(text).whole()


class _Reader:
    def __init__(self, text: str) -> None:
        if len(text) > LONGEST_TEXT:
            raise ConditionError(1, f"a condition has at most {LONGEST_TEXT} characters")
        self.tokens: list[tuple[str, int]] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                column = at + len(text[at:]) - len(text[at:].lstrip()) + 1
                raise ConditionError(column, f"{text[column - 1]!r} is no part of a condition")
            self.tokens.append((found[found.lastgroup or ""], found.start(found.lastgroup or "") + 1))
            at = found.end()
        self.end, self.at, self.depth = end + 1, 0, 0

    def whole(self) -> Condition:
        found = self.either()
        if self.next is not None:
            self.wrong(f"did not expect {self.next}")
        return found

    @property
    def next(self) -> str | None:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else None

    def wrong(self, text: str, *, back: int = 0) -> Never:
        at = self.at - back
        raise ConditionError(self.tokens[at][1] if at < len(self.tokens) else self.end, text)

    def take(self) -> str:
        if self.next is None:
            self.wrong("something is missing at the end")
        self.at += 1
        return self.tokens[self.at - 1][0]

    def either(self) -> Condition:
        return self.joined("or", Either, lambda: self.joined("and", Both, self.one))

    def joined(self, word: str, kind: type[Both] | type[Either], part: Callable[[], Condition]) -> Condition:
        parts = [part()]
        while self.next == word:
            self.take()
            parts.append(part())
        return kind(tuple(parts)) if len(parts) > 1 else parts[0]

    def one(self) -> Condition:
        self.depth += 1
        if self.depth > _DEEPEST:
            self.wrong(f"nested deeper than {_DEEPEST}")
        try:
            return self.term()
        finally:
            self.depth -= 1

    def term(self) -> Condition:
        word = self.take()
        if word == "not":
            return Not(self.one())
        if word == "(":
            inner = self.either()
            if self.take() != ")":
                self.wrong("a bracket is not closed", back=1)
            return inner
        if word in ("true", "false"):
            return Fixed(word == "true")
        if word in COMPARES or word in (")", "and", "or"):
            self.wrong(f"did not expect {word}", back=1)
        if self.next in COMPARES:
            op, value = self.take(), self.take()
            if value in COMPARES or value in ("(", ")", "and", "or", "not"):
                self.wrong(f"expected a value after {op}", back=1)
            return Compared(word, op, value)
        return self.alone(word)

    def alone(self, word: str) -> Condition:
        head, _, tail = word.rpartition(".")
        if head == "input":
            return Told(word)
        if word in FACTS:
            self.wrong(f"{word} has to be compared, as in {word} == {FACTS[word][0]}", back=1)
        if not head or tail not in OUTCOMES:
            self.wrong(f"{word!r} has to be STEP.passed or STEP.failed (or STEP.skipped)", back=1)
        return Ended(head, tail)


# --- what it speaks of ---


def leaves(of: Condition) -> list[Ended | Compared | Told | Fixed]:
    if isinstance(of, Not):
        return leaves(of.of)
    if isinstance(of, Both | Either):
        return [leaf for part in of.parts for leaf in leaves(part)]
    return [of]


def reads(of: Condition) -> set[str]:
    """The names that are not outcomes of steps: `severity`, `input.x`."""
    return {leaf.name for leaf in leaves(of) if isinstance(leaf, Compared | Told)}


# --- its value ---


def truth(of: Condition, outcomes: Callable[[str], str | None], knows: Mapping[str, Any]) -> bool | None:
    """None: not known. `outcomes` gives a step's word, `knows` what the run knows by its name."""
    match of:
        case Ended():
            return outcomes(of.step) == of.word
        case Fixed():
            return of.value
        case Told():
            value = knows.get(of.name)
            return value if isinstance(value, bool) else None
        case Compared():
            return _compared(of, knows.get(of.name))
        case Not():
            inner = truth(of.of, outcomes, knows)
            return None if inner is None else not inner
        case Both():
            return _all([truth(part, outcomes, knows) for part in of.parts])
        case Either():
            some = _all([_opposite(truth(part, outcomes, knows)) for part in of.parts])
            return _opposite(some)


def _compared(of: Compared, value: Any) -> bool | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return COMPARES[of.op](value, of.value == "true")
    if isinstance(value, int | float):
        return COMPARES[of.op](value, float(of.value))
    return COMPARES[of.op](str(value), of.value)  # P0 < P1 < …, as their texts


def _all(found: list[bool | None]) -> bool | None:
    if False in found:
        return False
    return None if None in found else True


def _opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


# --- as the files hold them: what is wrong with one, and one playbook's within another's


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
