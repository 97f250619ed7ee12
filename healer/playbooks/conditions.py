"""The `when` of a step: a small condition over the facts of the run. Pure.

    when: validate.failed and (verdict.cause == permanent or severity <= P1)

A condition has a grammar of its own, because step ids contain dashes. Its value may be unknown: a comparison
with a missing fact is neither true nor false, and a step runs only if its condition is certainly true.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Never

import msgspec

from healer.model import Cause, FaultClass, Input, InputType, Remedy, Severity
from healer.text import Said, say

LONGEST_TEXT = 500
_DEEPEST = 20
#: Outcomes of an earlier step.
OUTCOMES = ("passed", "failed", "skipped")
#: Facts about a run's incident, and the values that they may be compared with.
FACTS: Mapping[str, tuple[str, ...]] = {
    "verdict.cause": tuple(str(word) for word in Cause),
    "verdict.remedy": tuple(str(word) for word in Remedy),
    "fault_class": tuple(str(word) for word in FaultClass),
    "severity": tuple(str(word) for word in Severity),
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

    def __init__(self, column: int, text: Said) -> None:
        super().__init__(say("playbooks.column", column=column, text=text))
        self.column = column


class StepOutcome(msgspec.Struct, frozen=True):
    """`STEP.passed`, `STEP.failed`, `STEP.skipped`."""

    step: str
    word: str


class Comparison(msgspec.Struct, frozen=True):
    """`severity <= P1`, `input.depth == 3`. `value` is as in the text."""

    name: str
    op: str
    value: str


class GivenFlag(msgspec.Struct, frozen=True):
    """`input.force`: a boolean input."""

    name: str


class Literal(msgspec.Struct, frozen=True):
    """`true` or `false`: from a playbook that passes a value to one that it uses."""

    value: bool


class Not(msgspec.Struct, frozen=True):
    of: "Condition"


class And(msgspec.Struct, frozen=True):
    parts: tuple["Condition", ...]


class Or(msgspec.Struct, frozen=True):
    parts: tuple["Condition", ...]


Condition = StepOutcome | Comparison | GivenFlag | Literal | Not | And | Or


@lru_cache(maxsize=1024)
def parse(text: str) -> Condition:
    """Raises ConditionError."""
    return _Reader(text).whole()


class _Reader:
    def __init__(self, text: str) -> None:
        if len(text) > LONGEST_TEXT:
            raise ConditionError(1, say("playbooks.condition_long", most=LONGEST_TEXT))
        self.tokens: list[tuple[str, int]] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                column = at + len(text[at:]) - len(text[at:].lstrip()) + 1
                raise ConditionError(column, say("playbooks.condition_sign", sign=text[column - 1]))
            self.tokens.append((found[found.lastgroup or ""], found.start(found.lastgroup or "") + 1))
            at = found.end()
        self.end, self.at, self.depth = end + 1, 0, 0

    def whole(self) -> Condition:
        found = self.either()
        if self.next is not None:
            self.wrong(say("playbooks.condition_unexpected", word=self.next))
        return found

    @property
    def next(self) -> str | None:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else None

    def wrong(self, text: Said, *, back: int = 0) -> Never:
        at = self.at - back
        raise ConditionError(self.tokens[at][1] if at < len(self.tokens) else self.end, text)

    def take(self) -> str:
        if self.next is None:
            self.wrong(say("playbooks.condition_ends"))
        self.at += 1
        return self.tokens[self.at - 1][0]

    def either(self) -> Condition:
        return self.joined("or", Or, lambda: self.joined("and", And, self.nested))

    def joined(self, word: str, kind: type[And] | type[Or], part: Callable[[], Condition]) -> Condition:
        parts = [part()]
        while self.next == word:
            self.take()
            parts.append(part())
        return kind(tuple(parts)) if len(parts) > 1 else parts[0]

    def nested(self) -> Condition:
        self.depth += 1
        if self.depth > _DEEPEST:
            self.wrong(say("playbooks.condition_deep", most=_DEEPEST))
        try:
            return self.term()
        finally:
            self.depth -= 1

    def term(self) -> Condition:
        word = self.take()
        if word == "not":
            return Not(self.nested())
        if word == "(":
            inner = self.either()
            if self.take() != ")":
                self.wrong(say("playbooks.condition_bracket"), back=1)
            return inner
        if word in ("true", "false"):
            return Literal(word == "true")
        if word in COMPARES or word in (")", "and", "or"):
            self.wrong(say("playbooks.condition_unexpected", word=word), back=1)
        if self.next in COMPARES:
            op, value = self.take(), self.take()
            if value in COMPARES or value in ("(", ")", "and", "or", "not"):
                self.wrong(say("playbooks.condition_no_value", op=op), back=1)
            return Comparison(word, op, value)
        return self.alone(word)

    def alone(self, word: str) -> Condition:
        head, _, tail = word.rpartition(".")
        if head == "input":
            return GivenFlag(word)
        if word in FACTS:
            example = f"{word} == {FACTS[word][0]}"
            self.wrong(say("playbooks.condition_compare", word=word, example=example), back=1)
        if not head or tail not in OUTCOMES:
            self.wrong(say("playbooks.condition_outcome", word=word), back=1)
        return StepOutcome(head, tail)


# --- names in a condition ---


def leaves(condition: Condition) -> list[StepOutcome | Comparison | GivenFlag | Literal]:
    if isinstance(condition, Not):
        return leaves(condition.of)
    if isinstance(condition, And | Or):
        return [leaf for part in condition.parts for leaf in leaves(part)]
    return [condition]


def reads(condition: Condition) -> set[str]:
    """The names other than outcomes of steps: `severity`, `input.x`."""
    return {leaf.name for leaf in leaves(condition) if isinstance(leaf, Comparison | GivenFlag)}


# --- its value ---


def truth(
    condition: Condition, outcomes: Callable[[str], str | None], knows: Mapping[str, Any]
) -> bool | None:
    """The value of the condition; None if unknown. `outcomes`: step -> its outcome; `knows`: fact ->
    value."""
    match condition:
        case StepOutcome():
            return outcomes(condition.step) == condition.word
        case Literal():
            return condition.value
        case GivenFlag():
            value = knows.get(condition.name)
            return value if isinstance(value, bool) else None
        case Comparison():
            return _compared(condition, knows.get(condition.name))
        case Not():
            inner = truth(condition.of, outcomes, knows)
            return None if inner is None else not inner
        case And():
            return _and([truth(part, outcomes, knows) for part in condition.parts])
        case Or():
            some = _and([_not(truth(part, outcomes, knows)) for part in condition.parts])
            return _not(some)


def _compared(comparison: Comparison, value: Any) -> bool | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return COMPARES[comparison.op](value, comparison.value == "true")
    if isinstance(value, int | float):
        return COMPARES[comparison.op](value, float(comparison.value))
    return COMPARES[comparison.op](str(value), comparison.value)  # P0 < P1 < …, as their texts


def _and(found: list[bool | None]) -> bool | None:
    if False in found:
        return False
    return None if None in found else True


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


# --- conditions in files: their errors, and those of a playbook used by another


def leaf_error(leaf: Comparison | GivenFlag, inputs: Mapping[str, Input]) -> Said | None:
    """What is wrong with the comparison, in a sentence; None if nothing is."""
    name = leaf.name.removeprefix("input.")
    if name == leaf.name:
        if leaf.name not in FACTS:
            return say("playbooks.condition_no_fact", name=leaf.name, facts=", ".join(FACTS))
        assert isinstance(leaf, Comparison)
        if leaf.value not in FACTS[leaf.name]:
            return _never(leaf, FACTS[leaf.name])
        return _only_equal(leaf) if leaf.name != "severity" else None
    given = inputs.get(name)
    if given is None:
        return say("playbooks.condition_no_input", name=name)
    if isinstance(leaf, GivenFlag):
        return None if given.type is InputType.bool else say("playbooks.condition_no_bool", name=leaf.name)
    if given.type in (InputType.int, InputType.duration):
        if re.fullmatch(r"\d+", leaf.value):
            return None
        return say("playbooks.condition_number", name=leaf.name, value=leaf.value)
    if given.type is InputType.bool and leaf.value not in ("true", "false"):
        return say("playbooks.condition_bool", name=leaf.name)
    if given.type is InputType.choice and leaf.value not in given.choices:
        return _never(leaf, given.choices)
    return _only_equal(leaf)


def _never(leaf: Comparison, values: Sequence[str]) -> Said:
    return say("playbooks.condition_never", name=leaf.name, value=leaf.value, values=", ".join(values))


def _only_equal(leaf: Comparison) -> Said | None:
    return None if leaf.op in ("==", "!=") else say("playbooks.condition_no_order", name=leaf.name)


def text_of(condition: Condition) -> str:
    """A text that parses to the same condition."""
    match condition:
        case StepOutcome():
            return f"{condition.step}.{condition.word}"
        case Literal():
            return "true" if condition.value else "false"
        case GivenFlag():
            return condition.name
        case Comparison():
            return f"{condition.name} {condition.op} {condition.value}"
        case Not():
            return f"not {_bracketed(condition.of)}"
        case And():
            return " and ".join(_bracketed(part) for part in condition.parts)
        case Or():
            return " or ".join(_bracketed(part) for part in condition.parts)


def _bracketed(condition: Condition) -> str:
    return f"({text_of(condition)})" if isinstance(condition, And | Or | Not) else text_of(condition)


def inline_condition(condition: Condition, step: Callable[[str], str], given: Mapping[str, Any]) -> Condition:
    """The condition of a used playbook, with the new ids of its steps, and with its inputs as `given` by the
    outer playbook: a value, or the name of an input as `{input.x}`."""
    match condition:
        case StepOutcome():
            return StepOutcome(step(condition.step), condition.word)
        case Not():
            return Not(inline_condition(condition.of, step, given))
        case And():
            return And(tuple(inline_condition(part, step, given) for part in condition.parts))
        case Or():
            return Or(tuple(inline_condition(part, step, given) for part in condition.parts))
        case GivenFlag() | Comparison() if condition.name.startswith("input."):
            value = given.get(condition.name.removeprefix("input."))
            if isinstance(value, str) and (outer := re.fullmatch(r"\{(input\.\w+)\}", value)):
                return msgspec.structs.replace(condition, name=outer[1])
            result = truth(condition, lambda _: None, {condition.name: value})
            return Literal(result is True)
        case _:
            return condition
