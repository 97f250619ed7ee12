"""`when`: a small language of three values. Unknown is never true."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healer.playbooks.conditions import (
    COMPARES,
    FACTS,
    OUTCOMES,
    ConditionError,
    parse,
    reads,
    text_of,
    truth,
)

STEPS = {"test": "failed", "drain-it": "passed", "notify": "skipped"}
KNOWS: dict[str, Any] = {
    "severity": "P1",
    "verdict.cause": "permanent",
    "input.depth": 3,
    "input.fast": True,
    "input.lasts": 7200,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("test.failed", True),
        ("test.passed", False),
        ("drain-it.passed and not test.passed", True),
        ("notify.skipped", True),
        ("later.passed", False),
        ("severity <= P1", True),
        ("severity < P1", False),
        ("verdict.cause == permanent", True),
        ("verdict.cause != permanent or test.failed", True),
        ("input.depth >= 3", True),
        ("input.fast", True),
        ("not input.fast", False),
        ("input.lasts > 3600", True),
        ("fault_class == fatal", None),
        ("not fault_class == fatal", None),
        ("fault_class == fatal or test.failed", True),
        ("fault_class == fatal and test.passed", False),
        ("input.unknown", None),
        ("test.passed or (test.failed and (input.depth == 3))", True),
        # `and` binds closer than `or`.
        ("test.failed or test.failed and test.passed", True),
        ("(test.failed or test.failed) and test.passed", False),
        ("true", True),
        ("not false", True),
    ],
)
def test_conditions_evaluate_to_true_false_or_unknown(text: str, value: bool | None) -> None:
    assert truth(parse(text), STEPS.get, KNOWS) is value


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 1, "is incomplete"),
        ("test.failed and", 16, "is incomplete"),
        ("test.broken", 1, "must be STEP.passed"),
        ("severity", 1, "must be compared"),
        ("test.failed test.passed", 13, "unexpected test.passed"),
        ("(test.failed", 13, "is incomplete"),
        ("test.failed ? 1", 13, "'?' is not allowed"),
        ("severity <= and", 13, "expected a value after <="),
        ("or test.failed", 1, "unexpected or"),
        ("not " * 30 + "test.failed", 81, "nested deeper"),
        ("a" * 600, 1, "at most 500"),
    ],
)
def test_invalid_condition_is_reported_with_its_column(text: str, column: int, says: str) -> None:
    with pytest.raises(ConditionError) as caught:
        parse(text)
    assert caught.value.column == column, str(caught.value)
    assert says in str(caught.value)


_leaf = st.one_of(
    st.builds("{}.{}".format, st.sampled_from(["test", "drain-it", "a_b"]), st.sampled_from(OUTCOMES)),
    st.builds("severity {} P{}".format, st.sampled_from(list(COMPARES)), st.integers(0, 3)),
    st.builds("input.x {} {}".format, st.sampled_from(list(COMPARES)), st.integers(0, 9)),
    st.sampled_from(["input.fast", "true", "false"]),
)
_condition = st.recursive(
    _leaf,
    lambda inner: st.one_of(
        st.builds("not ({})".format, inner),
        st.builds("({}) and ({})".format, inner, inner),
        st.builds("({}) or ({})".format, inner, inner),
    ),
    max_leaves=6,
)


@given(text=_condition)
def test_its_text_reads_back_as_the_same(text: str) -> None:
    found = parse(text)
    assert parse(text_of(found)) == found


@given(text=_condition, known=st.sets(st.sampled_from(["severity", "input.x", "input.fast"])))
def test_knowing_more_never_turns_a_sure_answer_round(text: str, known: set[str]) -> None:
    full: dict[str, Any] = {"severity": "P2", "input.x": 4, "input.fast": False}
    some = {name: value for name, value in full.items() if name in known}
    less, more = (truth(parse(text), STEPS.get, facts) for facts in (some, full))
    assert less is None or less is more
    assert more is not None


def test_condition_lists_what_it_reads() -> None:
    assert reads(parse("test.failed and (severity <= P1 or not input.fast)")) == {"severity", "input.fast"}
    assert set(FACTS) == {"verdict.cause", "verdict.remedy", "fault_class", "severity"}
