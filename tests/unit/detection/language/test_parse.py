"""What is written wrong is said with its column and a hint; units and axes are checked."""

import pytest

from healer.detection.language import parse, units
from healer.detection.language.expr import ExpressionError
from healer.model import Scope
from healer.rulebook.signal_rules import UNITS
from tests.support.language_fleet import SIGNALS

SEE = "docs/rules.md lists what is supported"
NO_UNIT = "a number without a unit matches every unit"


def wrong(text: str, scope: Scope = Scope.gpu) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        parse.condition(text, SIGNALS, scope, {"limit", "power_w"})
    return caught.value


@pytest.mark.parametrize(
    ("text", "column", "says", "hint"),
    [
        ("heatt > 3", 1, "there is no signal heatt", "did you mean heat?"),
        ("work > 1 and heatt > 3", 14, "there is no signal heatt", "did you mean heat?"),
        (
            "rate(errors, 5m) > 1 and raet(errors, 5m) > 1",
            26,
            "there is no function raet",
            "did you mean rate?",
        ),
        ("rate > 3", 1, "there is no signal rate", "rate is a function: write rate(…)"),
        ("heat >", 7, "syntax error: invalid syntax", ""),
        ("heat", 1, "expected a condition, got a number", "compare it with a value, for example > 80"),
        ("heat + (work > 2) > 1", 9, "expected a number, got a condition", ""),
        ("3 > 2", 1, "no signal here, so this is always true or always false", ""),
        ("heat > 2 or 3 > 2", 13, "no signal here, so this is always true or always false", ""),
        ("heat ** 2 > 4", 1, "only + - * / are supported", ""),
        ("heat.real > 4", 1, "heat.real is not supported in expressions", SEE),
        (
            "[h for h in heat]",
            1,
            "[h for h in heat] is not supported in expressions",
            SEE,
        ),
        ("heat is 4", 9, "`is` and `is not` are not supported", "use == or !="),
        ("heat > True", 8, "True is not supported in expressions", ""),
        ("heat / 0 > 1", 8, "division by zero", ""),
        ("heat > 1e999", 8, "the number is too large", ""),
        ("rate(heat, 5m) > 1", 6, "heat is not a counter", "use delta(…)"),
        (
            "avg_over(errors, 5m) > 1",
            10,
            "avg_over needs a gauge, and errors is of kind counter",
            "use rate(…)",
        ),
        ("delta(state, 5m) > 1", 7, "state is of kind enum and cannot be used as a number", "use changed(…)"),
        ("rate(errors) > 1", 1, "expected rate(signal, window)", ""),
        ("rate(errors, 5) > 1", 14, "expected a duration such as 5m", ""),
        ("rate(errors, 1h) > 1", 14, "a window must be longer than 0 and at most 15m", ""),
        ("rate(errors + 1, 5m) > 1", 6, "expected the name of a signal", ""),
        (
            "share(share(heat > 2, 1m) > 0.5, 1m) > 0.5",
            7,
            "share cannot be applied to a constant, nor to share(…) or count_over(…)",
            "",
        ),
        ('state == "Baad"', 10, "state has no word 'Baad'", "did you mean Bad?"),
        ('state > "Bad"', 9, "text can be compared with == and != only, not with >", ""),
        ('heat == "Bad"', 9, "'Bad': only enum signals can be compared with text", ""),
        (
            "state + 1 > 2",
            1,
            "state is of kind enum and cannot be used as a number",
            "compare it with one of its words",
        ),
        (
            "reasons * 2 > 2",
            1,
            "reasons is of kind bits and cannot be used as a number",
            "test a bit with has(…)",
        ),
        ('has(reasons, "warm")', 14, "reasons has no bit 'warm'", "one of idle, hot"),
        ("heat in work", 9, "`in` needs a list of constants", "for example pcie_link_gen in (3, 4)"),
        ("heat in (1, work)", 13, "`in` takes constants only", ""),
        ('heat > spec("limitt")', 13, "no GPU model defines 'limitt'", "did you mean limit?"),
        ("temp_c + power_w > 3", 1, "the units °C and W do not match", NO_UNIT),
        (
            "use_percent > use_ratio",
            15,
            "the units % and ratio do not match",
            "% goes up to 100 and ratio up to 1: multiply the ratio by 100%",
        ),
        ("use_percent > 5s", 15, "the units % and s do not match", NO_UNIT),
        (
            "rate(slow_ns, 1m) > rate(energy_j, 1m)",
            21,
            "the units ns/s and W do not match",
            NO_UNIT,
        ),
        ("rate(errors, 1m) > 5m", 20, "the units count/s and s do not match", NO_UNIT),
        ("max(temp_c, power_w) > 3", 13, "the units °C and W do not match", NO_UNIT),
    ],
)
def test_mistakes(text: str, column: int, says: str, hint: str) -> None:
    error = wrong(text)
    assert (error.text, error.column, error.hint) == (says, column, hint)


def test_columns_count_characters_of_the_text_as_written() -> None:
    error = wrong('rate(errors, 30s) > 31/1m and "°" == state and heatt > 80%')
    assert error.text == "state has no word '°'"
    assert error.column == 31


@pytest.mark.parametrize(
    "text",
    [
        "rate(errors, 1m) > 31/1m",
        "rate(errors, 1m) * 1m > 31",
        "rate(energy_j, 1m) > power_w",
        "use_percent > 80% and use_ratio * 100% > 80%",
        "use_percent > 80 and use_ratio > 0.8",
        "abs(offset_s) > 200ms and heat > 1",
        "temp_c > first(temp_c, 87) - 5",
        "2 * temp_c - 5 > 3",
        "share(temp_c > 80, 5m) > 0.5 and peer_z(temp_c) > 3",
        'temp_c > spec("limit_c")',
        'spec("power_w") < power_w',
        "flag and not flag",
        "first(flag, not flag)",
        "0 < heat <= 3",
        'state in ("Bad", "Worse") and heat not in (1, -2)',
    ],
)
def test_conditions_with_matching_units_are_accepted(text: str) -> None:
    assert parse.condition(text, SIGNALS, Scope.gpu).truth


@pytest.mark.parametrize(
    ("text", "scope", "says"),
    [
        ("heat > 3", Scope.node, "this is measured per gpu, but the rule has scope: node"),
        ("noise > 3", Scope.job, "this is measured per link, but the rule has scope: job"),
        ("load > 3", Scope.gpu, "this is measured per node, but the rule has scope: gpu"),
        ("any_of(load > 3)", Scope.node, "any_of needs a signal measured per part of the node"),
        ("any_of(count_of(heat > 3) > 1)", Scope.node, "count_of cannot be nested inside any_of"),
        ("peers(any_of(heat > 3)) > 1", Scope.node, "expected a number, got a condition"),
        ("peers(max_of(load)) > 1", Scope.job, "only links, GPUs and nodes have peers"),
    ],
)
def test_axes(text: str, scope: Scope, says: str) -> None:
    assert wrong(text, scope).text == says


def test_larger_things_hold_for_their_parts() -> None:
    made = parse.condition("heat > load", SIGNALS, Scope.gpu)
    assert (made.scope, made.args[1].op, made.args[1].args[0].name) == (Scope.gpu, "down", "load")
    assert parse.condition("noise > 1 and load > 2", SIGNALS, Scope.link).scope is Scope.link


def test_garbage_is_an_expression_error_and_nothing_else() -> None:
    for text in (
        "",
        "(" * 500,
        "not " * 300 + "flag",
        "\0",
        "heat >\x00 3",
        "'" * 3,
        "x" * 3000,
        "-" * 90 + "1>2",
    ):
        with pytest.raises(ExpressionError):
            parse.condition(text, SIGNALS, Scope.gpu)


def test_every_unit_of_the_catalogue_can_be_reckoned_with() -> None:
    assert set(UNITS) == set(units.UNIT_WORDS)


@pytest.mark.parametrize(("text", "seconds"), [("2m", 120.0), ("200ms", 0.2), ("1.5h", 5400.0)])
def test_durations(text: str, seconds: float) -> None:
    assert parse.duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5 m", "m", "80%", "1h30m"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse.duration_s(text)
