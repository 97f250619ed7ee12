"""What is written wrong is said with its column and a hint; units and axes are checked."""

import pytest

from healer.detection.language import parse, units
from healer.detection.language.expr import ExpressionError
from healer.model import Scope
from healer.rulebook.signal_rules import UNITS
from tests.support.language_fleet import SIGNALS


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
        ("rate > 3", 1, "there is no signal rate", "rate(…) is a function"),
        ("heat >", 7, "not readable: invalid syntax", ""),
        ("heat", 1, "expected a condition, this is a number", "compare it with something"),
        ("heat + (work > 2) > 1", 9, "expected a number, this is a condition", ""),
        ("3 > 2", 1, "this names no signal: it is always true or never", ""),
        ("heat > 2 or 3 > 2", 13, "this names no signal: it is always true or never", ""),
        ("heat ** 2 > 4", 1, "only + - * / are part of the language", ""),
        ("heat.real > 4", 1, "heat.real is not part of the language", "docs/rules.md lists what is"),
        (
            "[h for h in heat]",
            1,
            "[h for h in heat] is not part of the language",
            "docs/rules.md lists what is",
        ),
        ("heat is 4", 9, "is and is not are not part of the language", "write == or !="),
        ("heat > True", 8, "True is not part of the language", ""),
        ("heat / 0 > 1", 8, "divides by zero", ""),
        ("heat > 1e999", 8, "the number is too large", ""),
        ("rate(heat, 5m) > 1", 6, "heat is no counter", "delta(…) works on gauges"),
        ("avg_over(errors, 5m) > 1", 10, "errors is a counter", "rate(…)"),
        ("delta(state, 5m) > 1", 7, "state is no quantity (enum)", "changed(…)"),
        ("rate(errors) > 1", 1, "rate takes (signal, window)", ""),
        ("rate(errors, 5) > 1", 14, "expected a duration such as 5m here", ""),
        ("rate(errors, 1h) > 1", 14, "a window is longer than nothing and at most 15m", ""),
        ("rate(errors + 1, 5m) > 1", 6, "expected the name of a signal here", ""),
        (
            "share(share(heat > 2, 1m) > 0.5, 1m) > 0.5",
            7,
            "share of a share or of a constant says nothing",
            "",
        ),
        ('state == "Baad"', 10, "state has no word 'Baad'", "did you mean Bad?"),
        ('state > "Bad"', 9, "a word cannot be compared by >", ""),
        ('heat == "Bad"', 9, "'Bad': only an enum is compared with words", ""),
        ("state + 1 > 2", 1, "state is no quantity (enum)", "compare it with its words"),
        ("reasons * 2 > 2", 1, "reasons is no quantity (bits)", 'has(reasons, "…")'),
        ('has(reasons, "warm")', 14, "reasons has no bit 'warm'", "one of idle, hot"),
        ("heat in work", 9, "in needs a list of literals", "for example pcie_link_gen in (3, 4)"),
        ("heat in (1, work)", 13, "in takes literals only", ""),
        ('heat > spec("limitt")', 13, "no GPU model has 'limitt'", "did you mean limit?"),
        ("temp_c + power_w > 3", 1, "°C and W do not go together", "a plain number fits every unit"),
        (
            "use_percent > use_ratio",
            15,
            "% and ratio do not go together",
            "one counts to 100, the other to 1: multiply the ratio by 100%",
        ),
        ("use_percent > 5s", 15, "% and s do not go together", "a plain number fits every unit"),
        (
            "rate(slow_ns, 1m) > rate(energy_j, 1m)",
            21,
            "ns/s and W do not go together",
            "a plain number fits every unit",
        ),
        ("rate(errors, 1m) > 5m", 20, "count/s and s do not go together", "a plain number fits every unit"),
        ("max(temp_c, power_w) > 3", 13, "°C and W do not go together", "a plain number fits every unit"),
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
def test_what_fits(text: str) -> None:
    assert parse.condition(text, SIGNALS, Scope.gpu).truth


@pytest.mark.parametrize(
    ("text", "scope", "says"),
    [
        ("heat > 3", Scope.node, "this speaks of GPUs, and the rule is about nodes"),
        ("noise > 3", Scope.job, "this speaks of links, and the rule is about jobs"),
        ("load > 3", Scope.gpu, "this says nothing of GPUs"),
        ("any_of(load > 3)", Scope.node, "any_of needs something of the parts of nodes"),
        ("any_of(count_of(heat > 3) > 1)", Scope.node, "count_of inside any_of: one of them is enough"),
        ("peers(any_of(heat > 3)) > 1", Scope.node, "expected a number, this is a condition"),
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
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        parse.duration_s(text)
