"""The column form gives what the scalar form gives, for whatever can be written and measured."""

from datetime import timedelta
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings

from healer.detection.language import parse
from healer.detection.language.compile import Program
from healer.detection.language.expr import Expr
from healer.detection.language.truth_columns import FALSE, TRUE, UNKNOWN
from healer.model import OF_DEVICES, Part, Scope
from tests.support.language_fleet import SIGNALS, Fleet
from tests.support.rule_oracle import Memory, Scalar

pytestmark = pytest.mark.heavy

WINDOWS = st.sampled_from(["10s", "30s", "1m", "90s"])
#: Gauges, counters and odd ones that live on a scope or above it.
GAUGES = {Scope.link: ["noise", "heat", "load"], Scope.gpu: ["heat", "work", "load"], Scope.node: ["load"]}
COUNTERS = {Scope.link: ["errors", "crashes"], Scope.gpu: ["errors", "crashes"], Scope.node: ["crashes"]}
FINER = {
    Scope.gpu: [Scope.link],
    Scope.node: [Scope.gpu, Scope.link],
    Scope.job: [Scope.node, Scope.gpu],
    Scope.switch: [Scope.gpu, Scope.node],
    Scope.rack: [Scope.gpu, Scope.node],
    Scope.fabric: [Scope.gpu, Scope.link, Scope.node],
}


def whole(scope: Scope, depth: int, parts: bool) -> st.SearchStrategy[str]:
    """Numbers that stay whole (or halves): sums and medians of them are exact in whatever order."""
    windows = st.sampled_from(GAUGES[scope]).flatmap(
        lambda name: st.sampled_from(["delta", "min_over", "max_over"]).flatmap(
            lambda over: WINDOWS.map(lambda window: f"{over}({name}, {window})")
        )
    )
    growth = st.tuples(st.sampled_from(COUNTERS[scope]), WINDOWS).map(
        lambda one: f"delta({one[0]}, {one[1]})"
    )
    leaves = [
        st.sampled_from(GAUGES[scope]),
        st.sampled_from(COUNTERS[scope]),
        st.integers(-3, 6).map(str),
        windows,
        growth,
    ]
    if depth == 0:
        return st.one_of(leaves)
    inner = whole(scope, depth - 1, parts)
    named = st.sampled_from(GAUGES[scope])
    pairs = st.tuples(inner, inner)
    return st.one_of(
        *leaves,
        pairs.flatmap(lambda two: st.sampled_from("+-*").map(lambda op: f"({two[0]} {op} {two[1]})")),
        st.tuples(named, inner).flatmap(
            lambda two: st.sampled_from(["min", "max", "first"]).map(lambda f: f"{f}({two[0]}, {two[1]})")
        ),
        named.map(lambda name: f"abs(-{name})"),
        st.tuples(condition(scope, depth - 1, parts), WINDOWS).map(
            lambda one: f"count_over({one[0]}, {one[1]})"
        )
        if not parts
        else named,
    )


def number(scope: Scope, depth: int, parts: bool) -> st.SearchStrategy[str]:
    kept = whole(scope, depth, parts)
    named = st.sampled_from(GAUGES[scope])
    found = [
        kept,
        st.tuples(kept, kept).map(lambda two: f"(({two[0]}) / ({two[1]} + 0 * {GAUGES[scope][0]}))"),
        st.tuples(st.sampled_from(COUNTERS[scope]), WINDOWS).map(lambda one: f"rate({one[0]}, {one[1]})"),
        st.tuples(named, WINDOWS).map(lambda one: f"avg_over({one[0]}, {one[1]})"),
        st.tuples(named, WINDOWS).map(lambda one: f"median_over({one[0]}, {one[1]})"),
        named.map(lambda name: f"peers({name} * 2)"),
        named.map(lambda name: f"peer_z({name} - 1)"),
        named.map(lambda name: f"rack_peers({name} + 1)"),
        st.tuples(named, named).map(lambda two: f"peers_at({two[0]}, {two[1]} + 1)"),
        *([named.map(lambda name: f"node_peers({name} - {GAUGES[scope][0]})")] if scope is Scope.gpu else []),
        st.just('spec("limit")'),
        named.map(lambda name: f"age({name})"),
    ]
    return st.one_of(found)


def condition(scope: Scope, depth: int, parts: bool = False) -> st.SearchStrategy[str]:
    if scope not in GAUGES:
        return over_parts(scope, depth)
    named = st.sampled_from(GAUGES[scope])
    ops = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    numbers = number(scope, max(depth - 1, 0), parts)
    leaves: list[st.SearchStrategy[str]] = [
        st.tuples(named, ops, numbers).map(" ".join),
        st.tuples(numbers, named).map(lambda two: f"{two[0]} <= {two[1]} < 5"),
        named.map(lambda name: f"known({name})"),
        named.map(lambda name: f"{name} in (1, 2, 5)"),
        st.tuples(named, WINDOWS).map(lambda one: f"changed({one[0]}, {one[1]})"),
    ]
    if scope is not Scope.node:
        leaves += [
            st.sampled_from(['state == "Bad"', 'state != "Good"', 'state not in ("Bad", "Worse")']),
            st.sampled_from(['has(reasons, "hot")', "flag", "not flag"]),
        ]
    if depth == 0:
        return st.one_of(leaves)
    inner = condition(scope, depth - 1, parts)
    more = [
        inner.map(lambda one: f"not ({one})"),
        st.tuples(inner, inner).flatmap(
            lambda two: st.sampled_from(["and", "or"]).map(lambda op: f"({two[0]} {op} {two[1]})")
        ),
        inner.map(lambda one: f"known({one})"),
        st.tuples(inner, inner).map(lambda two: f"first({two[0]}, {two[1]})"),
    ]
    if not parts and scope in FINER:
        more.append(over_parts(scope, depth - 1))
    if not parts:
        more.append(
            st.tuples(condition(scope, 0, True), WINDOWS).map(lambda one: f"share({one[0]}, {one[1]}) >= 0.5")
        )
    return st.one_of(*leaves, *more)


def over_parts(scope: Scope, depth: int) -> st.SearchStrategy[str]:
    def of(finer: Scope) -> st.SearchStrategy[str]:
        conditions = condition(finer, max(depth, 0), True).filter(lambda text: mentions(text, finer))
        numbers = whole(finer, max(depth, 0), True).filter(lambda text: mentions(text, finer))
        return st.one_of(
            conditions.map(lambda one: f"any_of({one})"),
            conditions.map(lambda one: f"count_of({one}) >= 2"),
            conditions.map(lambda one: f"share_of({one}) > 0.5"),
            st.tuples(st.sampled_from(["sum_of", "max_of", "min_of", "median_of"]), numbers).map(
                lambda one: f"{one[0]}({one[1]}) > 3"
            ),
        )

    return st.sampled_from(FINER[scope]).flatmap(of)


def mentions(text: str, scope: Scope) -> bool:
    """Whether it speaks of that scope itself, and not only of larger ones."""
    own = {name for name, one in SIGNALS.items() if one.scope is scope}
    return any(name in text for name in own)


def rule(scope: Scope, text: str) -> tuple[Scope, str, Expr]:
    # Units have tests of their own: here everything may be compared with everything.
    with mock.patch.object(parse, "fits", lambda _one, _other: True):
        return scope, text, parse.condition(text, SIGNALS, scope, {"limit"})


@st.composite
def rules(draw: st.DrawFn) -> tuple[Scope, str, Expr]:
    scope = draw(st.sampled_from([one for one in Scope if one not in OF_DEVICES]))
    text = draw(condition(scope, 2))
    if scope in GAUGES and not mentions(text, scope):
        text = f"({text}) and {GAUGES[scope][0]} > 1"
    return rule(scope, text)


def send_some(fleet: Fleet, chance: np.random.Generator) -> None:
    """What comes within one tick: most nodes, most signals, some of them unknown."""

    def value() -> float:
        return float("nan") if chance.random() < 0.1 else float(chance.integers(0, 7))

    for node in fleet.names:
        values: dict[tuple[str, Part], float] = {("load", Part()): value(), ("crashes", Part()): value()}
        for gpu in range(fleet.gpus):
            part = Part(gpu=gpu)
            values |= {(name, part): value() for name in ("heat", "work", "errors", "flag", "reasons")}
            values[("state", part)] = float(chance.integers(0, 3))
            values[("noise", Part(gpu=gpu, link=0))] = value()
        values[("noise", Part(port="mlx5_0/1"))] = value()
        kept = {name: one for name, one in values.items() if chance.random() < 0.8}
        if kept and chance.random() < 0.8:
            fleet.send(node, kept)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 1 << 32),
    after_s=st.lists(st.sampled_from([5, 5, 5, 10, 20, 45, 120]), min_size=1, max_size=8),
    found=st.lists(rules(), min_size=1, max_size=4),
)
# A link first heard of after a slower tick has no past; and a tick may be slower than a window is long.
@example(0, [5, 20, 20], [rule(Scope.link, "known(share(known(noise), 30s) >= 0.5)")])
@example(0, [5, 20, 10], [rule(Scope.gpu, "count_over(heat > 2, 10s) + 0 * heat > 1")])
def test_columns_equal_the_scalar_form(
    seed: int, after_s: list[int], found: list[tuple[Scope, str, Expr]]
) -> None:
    fleet, chance = Fleet(), np.random.default_rng(seed)
    program, memory = Program([expr for _, _, expr in found]), Memory()
    for seconds in after_s:
        fleet.after(seconds)
        send_some(fleet, chance)
        moment = program.tick(fleet.telemetry, fleet.now)
        scalar = Scalar(fleet.telemetry, fleet.now, memory)
        for expr in {expr for _, _, expr in found}:
            scalar.remember(expr)
        for scope, text, expr in found:
            columns = moment.truth(expr).tolist()
            assert len(columns) == fleet.telemetry.axis(scope).n
            expected = [scalar.value(expr, row) for row in range(len(columns))]
            words = {True: TRUE, False: FALSE, None: UNKNOWN}
            assert columns == [words[value] for value in expected], text  # type: ignore[index]


def test_signals_that_two_rules_share_are_read_once() -> None:
    fleet = Fleet()
    fleet.send_gpus("n1", heat=[1, 2, 3, 4], work=[1, 1, 1, 1])
    asked: list[str] = []
    value = fleet.telemetry.value

    def counted(name: str, now: object) -> np.ndarray:
        asked.append(name)
        return value(name, now)  # type: ignore[arg-type]

    fleet.telemetry.value = counted  # type: ignore[method-assign]
    one = parse.condition("heat > 2 and work > 0", SIGNALS, Scope.gpu)
    other = parse.condition("heat > 2 or known(heat)", SIGNALS, Scope.gpu)
    moment = Program([one, other]).tick(fleet.telemetry, fleet.now)
    assert moment.truth(one).tolist()[:4] == [FALSE, FALSE, TRUE, TRUE]
    assert moment.truth(other).tolist()[:4] == [TRUE] * 4
    assert sorted(asked) == ["heat", "work"]


def test_the_past_of_a_condition_is_carried_over_to_changed_rules() -> None:
    fleet = Fleet()
    share = parse.condition("share(heat > 2, 1m) > 0.9", SIGNALS, Scope.gpu)
    program = Program([share])
    for _ in range(12):
        fleet.send_gpus("n1", heat=[5, 5, 5, 5])
        program.tick(fleet.telemetry, fleet.now)
        fleet.after(5)
    fleet.send_gpus("n1", heat=[5, 5, 5, 5])
    parsed_again = parse.condition("share(heat > 2, 1m) > 0.5", SIGNALS, Scope.gpu)
    assert (
        Program([parsed_again]).tick(fleet.telemetry, fleet.now).truth(parsed_again).tolist()[:4]
        == [UNKNOWN] * 4
    )
    assert (
        Program([parsed_again], program).tick(fleet.telemetry, fleet.now).truth(parsed_again).tolist()[:4]
        == [TRUE] * 4
    )


def test_nothing_is_known_of_the_minutes_of_a_signal_that_fell_silent() -> None:
    fleet = Fleet()
    avg = parse.condition("avg_over(heat, 5m) > 2", SIGNALS, Scope.gpu)
    program = Program([avg])
    for _ in range(12):
        fleet.send_gpus("n1", heat=[5, 5, 5, 5])
        fleet.after(5)
    assert program.tick(fleet.telemetry, fleet.now).truth(avg).tolist()[:4] == [TRUE] * 4
    later = fleet.now + timedelta(seconds=SIGNALS["heat"].stale_s + 1)
    assert program.tick(fleet.telemetry, later).truth(avg).tolist()[:4] == [UNKNOWN] * 4


def test_a_line_through_peers_is_the_same_in_both_forms_and_follows_the_sound_ones() -> None:
    fleet, chance = Fleet([f"n{number}" for number in range(8)]), np.random.default_rng(5)
    expr = parse.number("heat - peers_at(heat, work)", SIGNALS, Scope.gpu)
    for moment in range(20):
        fleet.after(200)  # the previous value is stale
        for node in fleet.names:
            work = chance.integers(400, 720 if moment % 2 else 410, fleet.gpus).astype(float)
            heat = 20 + work / 16
            heat[0] += 40 * (node in ("n3", "n4"))  # two of 24 are hot
            heat[chance.random(fleet.gpus) < 0.1] = np.nan
            fleet.send_gpus(node, heat=heat.tolist(), work=work.tolist())
        program = Program([expr])
        columns = np.asarray(program.tick(fleet.telemetry, fleet.now).number(expr))
        scalar = Scalar(fleet.telemetry, fleet.now, Memory())
        expected = [scalar.value(expr, row) for row in range(len(columns))]
        wanted = [np.nan if value is None else float(value) for value in expected]
        np.testing.assert_array_equal(columns, np.array(wanted))
        known = columns[np.isfinite(columns)]
        assert len(known) >= 15
        # The line lies on the sound ones; where all work alike there is no slope to find.
        assert int((known > 30).sum()) <= 2
        assert float(np.abs(known[known < 30]).max()) < (0.8 if moment % 2 else 2.0)


def test_no_line_for_few_peers_nor_far_away_from_them() -> None:
    expr = parse.number("peers_at(heat, work)", SIGNALS, Scope.gpu)
    few = Fleet()
    for node in few.names:
        few.send_gpus(node, heat=[1] * 4, work=[2] * 4)
    assert np.isnan(Program([expr]).tick(few.telemetry, few.now).number(expr)).all()
    many = Fleet([f"n{number}" for number in range(6)])
    for node in many.names:
        many.send_gpus(node, heat=[60] * 4, work=[600, 600, 600, 100 if node == "n3" else 600])
    values = np.asarray(Program([expr]).tick(many.telemetry, many.now).number(expr))
    components = many.telemetry.axis(Scope.gpu).components()
    of_n3 = [row for row, one in enumerate(components) if one.node == "n3"]
    assert many.telemetry.groups(Scope.gpu).ids[of_n3[0]] == many.telemetry.groups(Scope.gpu).ids[of_n3[3]]
    assert np.isnan(values[of_n3[3]])  # at 100 W it has no peer
    assert values[of_n3[0]] == 60.0
