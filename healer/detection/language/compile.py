"""Checked trees to numpy over whole columns. Subexpressions that two rules share are computed once per tick.

Numbers are float64 columns with NaN for unknown (constants stay plain floats), conditions uint8 columns of
`truth`. A column has one value per row of its expression's axis.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from healer.detection.language.expr import KNOWN_SHARE, LEAST_PEERS, LEAST_SPREAD, Expr
from healer.detection.language.truth_columns import (
    FALSE,
    NOTHING_KEPT,
    OVER_PARTS,
    TRUE,
    UNKNOWN,
    UNREPORTED,
    Kept,
    Past,
    Truth,
    is_same,
    truth_of,
)
from healer.model import Scope
from healer.observations.groups import peer_line, peer_median, peer_spread

if TYPE_CHECKING:
    from healer.observations.telemetry_windows import Telemetry

Numbers = NDArray[np.float64]
#: A window of at most this many numbers is read whole; a larger one in blocks of rows that fit into the
#: processor's cache.
_BLOCK = 1 << 18


class _Node:
    """An expression with a slot in the memory of a tick, and the last tick's result."""

    __slots__ = ("args", "expr", "index", "kept", "nan", "past")

    def __init__(self, expr: Expr, args: "Sequence[_Node]", index: int) -> None:
        self.expr, self.args, self.index = expr, args, index
        self.past: Past | None = None
        self.kept = NOTHING_KEPT
        #: A value, and where it is unknown.
        self.nan: tuple[Any, Any] = (None, None)


class Program:
    """All expressions that are evaluated together. Holds the past that `share` and `count_over` need."""

    def __init__(self, roots: Iterable[Expr], before: "Program | None" = None) -> None:
        self._nodes: dict[Expr, _Node] = {}
        self.pasts: dict[tuple[Expr, float], Past] = {}
        # Looked up by identity first, because the hash of a tree is recomputed each time.
        self._roots = {id(root): (root, self._add(root, before)) for root in roots}
        self._conditions = [(self._nodes[condition], past) for (condition, _), past in self.pasts.items()]

    def _add(self, expr: Expr, before: "Program | None") -> _Node:
        if expr in self._nodes:
            return self._nodes[expr]
        args = [self._add(arg, before) for arg in expr.args]
        node = self._nodes[expr] = _Node(expr, args, len(self._nodes))
        if expr.op in ("share", "count_over"):
            key = (expr.args[0], expr.seconds)
            kept = before.pasts.get(key) if before is not None else None
            node.past = self.pasts[key] = kept or self.pasts.get(key) or Past(expr.seconds)
        return node

    @property
    def signals(self) -> frozenset[str]:
        return frozenset(name for expr in self._nodes for name in expr.signals)

    def tick(self, telemetry: "Telemetry", now: datetime) -> "Moment":
        """The values of this moment. Call it once per tick, because it also writes the past."""
        moment = Moment(self, telemetry, now)
        at_s = now.timestamp()
        for condition, past in self._conditions:
            past.push(at_s, moment.of(condition))
        return moment

    def forget(self, rows: Mapping[Scope, NDArray[np.int64]]) -> None:
        """Discards the past of these rows."""
        for (condition, _), past in self.pasts.items():
            if condition.scope is not None and condition.scope in rows:
                past.forget(rows[condition.scope])

    def node(self, expr: Expr) -> _Node:
        found = self._roots.get(id(expr))
        return found[1] if found else self._nodes[expr]

    def __len__(self) -> int:
        return len(self._nodes)


class Moment:
    """One tick: each value is computed on demand, and only once."""

    def __init__(self, program: Program, telemetry: "Telemetry", now: datetime) -> None:
        self.program, self.telemetry, self.now = program, telemetry, now
        self._values: list[Any] = [None] * len(program)
        self.layout = telemetry, telemetry.layout
        self._parents: dict[tuple[Scope, Scope], NDArray[np.int32]] = {}
        self._silent: dict[str, NDArray[np.bool_]] = {}
        self._gone: dict[Scope, NDArray[np.bool_] | None] = {}

    def truth(self, expr: Expr) -> Truth:
        """(n,) of the expression's axis."""
        return self.of(self.program.node(expr))

    def number(self, expr: Expr) -> Numbers | float:
        """(n,) of the expression's axis; a constant is a float."""
        return self.of(self.program.node(expr))

    def of(self, node: _Node) -> Any:
        with np.errstate(all="ignore"):
            return self.get(node)

    def gone(self, scope: Scope) -> NDArray[np.bool_] | None:
        """Where Slurm no longer shows a row's node; None: nowhere."""
        if scope not in self._gone:
            gone = self.parent(scope, Scope.fabric) < 0
            self._gone[scope] = gone if gone.any() else None
        return self._gone[scope]

    # --- one node ----------------------------------------------------------------------------------------

    def get(self, node: _Node) -> Any:
        value = self._values[node.index]
        if value is None:
            value = self._values[node.index] = self._evaluated(node)
        return value

    def _evaluated(self, node: _Node) -> Any:
        """The node's value. If all inputs are the very objects of the last tick, so is the result: most of a
        fleet's counters and states do not change from one tick to the next."""
        kept, args = node.kept, node.args
        if not args or node.past is not None:
            return self._read(node, kept)
        if kept.layout == self.layout and all(
            self.get(arg) is before for arg, before in zip(args, kept.inputs, strict=False)
        ):
            return kept.value
        value = _OPS[node.expr.op](self, node)
        # `and` and `or` stop when the rest changes nothing.
        inputs = tuple(takewhile(_is_there, (self._values[arg.index] for arg in args)))
        node.kept = Kept(self.layout, inputs, value) if inputs else NOTHING_KEPT
        return value

    def _read(self, node: _Node, kept: Kept) -> Any:
        """A measured value: read in each tick, except signals that were never reported."""
        unreported = node.past is None and node.expr.name not in self.telemetry.reported_signals
        if unreported and kept.inputs is UNREPORTED and kept.layout == self.layout:
            return kept.value
        value = _OPS[node.expr.op](self, node)
        if is_same(kept.value, value):
            value = kept.value
        node.kept = Kept(self.layout, UNREPORTED if unreported else (), value)
        return value

    def rows(self, expr: Expr) -> int:
        return self.telemetry.axis(expr.axis).n

    def unknown(self, node: _Node) -> NDArray[np.bool_] | None:
        """Where a number is unknown; None for a constant."""
        if node.expr.scope is None:
            return None
        value = self.get(node)
        if node.nan[0] is not value:
            node.nan = value, np.isnan(value)
        return node.nan[1]

    def either_unknown(self, node: _Node) -> NDArray[np.bool_] | None:
        left, right = (self.unknown(arg) for arg in node.args)
        if left is None or right is None:
            return right if left is None else left
        return left | right

    def parent(self, scope: Scope, of_scope: Scope) -> NDArray[np.int32]:
        """(n of `scope`,) rows on the larger axis, -1 unknown."""
        key = (scope, of_scope)
        if key not in self._parents:
            self._parents[key] = self.telemetry.axis(scope).parent(of_scope)
        return self._parents[key]

    def signal(self, name: str) -> Numbers:
        value = self.telemetry.value(name, self.now)
        if name not in self._silent:
            self._silent[name] = np.isnan(value)
        return value

    def silent(self, signal: str) -> NDArray[np.bool_]:
        """Where a signal is unknown now: then its last minutes are unknown too."""
        if signal not in self._silent:
            self._silent[signal] = np.isnan(self.telemetry.value(signal, self.now))
        return self._silent[signal]


# --- leaves ------------------------------------------------------------------------------------------


def _rate(moment: Moment, node: _Node) -> Numbers:
    increase, covered = moment.telemetry.increase(node.expr.name, node.expr.seconds, moment.now)
    return _heard(moment, node, increase / np.where(covered > 0, covered, np.nan), covered)


def _increase(moment: Moment, node: _Node) -> Numbers:
    increase, covered = moment.telemetry.increase(node.expr.name, node.expr.seconds, moment.now)
    # Growth that has been seen counts, however short the time; only "nothing yet" needs half the window.
    seen = np.where(increase > 0, node.expr.seconds, covered)
    return _heard(moment, node, increase.astype(np.float64), seen)


def _heard(moment: Moment, node: _Node, found: Numbers, covered: Numbers) -> Numbers:
    # Not `covered < half`: where nothing is covered it is NaN.
    found[~(covered >= KNOWN_SHARE * node.expr.seconds)] = np.nan
    found[moment.silent(node.expr.name)] = np.nan
    return found


# --- over time ---------------------------------------------------------------------------------------


def _over_time(moment: Moment, node: _Node) -> Any:
    reduce = _OVER_TIME[node.expr.op]
    window = moment.telemetry.window(node.expr.name, node.expr.seconds, moment.now)
    slots, rows = window.shape
    found = np.empty(rows, np.float64)
    step = max(1, _BLOCK // max(slots, 1))
    for begin in range(0, rows, step):
        found[begin : begin + step] = reduce(window[:, begin : begin + step])
    found[moment.silent(node.expr.name)] = np.nan
    if not node.expr.truth:
        return found
    return truth_of(found > 0, np.isnan(found))


def _share(moment: Moment, node: _Node) -> Numbers:
    past = node.past
    assert past is not None
    rows = moment.rows(node.expr)
    count = past.known[:rows].astype(np.float64)
    found = past.true[:rows] / count
    found[count < KNOWN_SHARE * past.slots] = np.nan
    return found


def _count_over(moment: Moment, node: _Node) -> Numbers:
    past = node.past
    assert past is not None
    rows = moment.rows(node.expr)
    found = past.true[:rows].astype(np.float64)
    found[past.known[:rows] == 0] = np.nan
    return found


# --- arithmetic --------------------------------------------------------------------------------------


def _two(moment: Moment, node: _Node) -> tuple[Any, Any]:
    return moment.get(node.args[0]), moment.get(node.args[1])


def _divide(moment: Moment, node: _Node) -> Numbers:
    above, below = _two(moment, node)
    found = np.asarray(above / np.asarray(below, np.float64), np.float64)
    if not isinstance(below, float):
        found[below == 0] = np.nan
    return found


def _folded(moment: Moment, function: Callable[[Any, Any], Any], node: _Node) -> Numbers:
    found = moment.get(node.args[0])
    for arg in node.args[1:]:
        found = function(found, moment.get(arg))
    return found


# --- conditions --------------------------------------------------------------------------------------


def _equal(moment: Moment, node: _Node) -> Truth:
    left, right = _two(moment, node)
    return truth_of(left == right, moment.either_unknown(node))


def _in(moment: Moment, node: _Node) -> Truth:
    value = moment.get(node.args[0])
    found = np.zeros(len(value), np.bool_)
    for number in node.expr.numbers:
        found |= value == number
    return truth_of(found, moment.unknown(node.args[0]))


def _has(moment: Moment, node: _Node) -> Truth:
    value, unknown = moment.get(node.args[0]), moment.unknown(node.args[0])
    bits = np.nan_to_num(value).astype(np.int64)
    return truth_of((bits & int(node.expr.number)) != 0, unknown)


def _is_known(moment: Moment, node: _Node) -> Truth:
    arg = node.args[0]
    unknown = moment.get(arg) == UNKNOWN if arg.expr.truth else moment.unknown(arg)
    assert unknown is not None
    return truth_of(~unknown, None)


def _first(moment: Moment, node: _Node) -> Any:
    found = moment.get(node.args[0])
    for arg in node.args[1:]:
        unknown = found == UNKNOWN if node.expr.truth else np.isnan(found)
        if not unknown.any():
            break
        found = np.where(unknown, moment.get(arg), found)
    return found


def _joined(function: Callable[[Any, Any], Truth], decided: int) -> Callable[[Moment, _Node], Truth]:
    """`and`, or `or`: where the column is `decided` everywhere, the rest changes nothing."""

    def run(moment: Moment, node: _Node) -> Truth:
        found = moment.get(node.args[0])
        for arg in node.args[1:]:
            if len(found) and (found == decided).all():
                break
            found = function(found, moment.get(arg))
        return found

    return run


# --- axes and peers ----------------------------------------------------------------------------------


def _down(moment: Moment, node: _Node) -> Any:
    arg = node.args[0]
    value = moment.get(arg)
    parent = moment.parent(node.expr.axis, arg.expr.axis)
    nothing = UNKNOWN if node.expr.truth else np.nan
    if not len(value):
        return np.full(len(parent), nothing, value.dtype)
    found = value[parent]
    found[parent < 0] = nothing
    return found


def _peers(moment: Moment, node: _Node) -> Numbers:
    telemetry = moment.telemetry
    groups = {"rack_peers": telemetry.rack_groups, "node_peers": telemetry.node_groups}
    found = groups.get(node.expr.op, telemetry.groups)(node.expr.axis)
    return peer_median(moment.get(node.args[0]), found, LEAST_PEERS)


def _peers_at(moment: Moment, node: _Node) -> Numbers:
    return peer_line(*_two(moment, node), moment.telemetry.groups(node.expr.axis))


def _peer_z(moment: Moment, node: _Node) -> Numbers:
    value = moment.get(node.args[0])
    median, spread = peer_spread(value, moment.telemetry.groups(node.expr.axis), LEAST_PEERS)
    spread = np.maximum(spread, LEAST_SPREAD * np.abs(median))
    found = (value - median) / np.where(spread > 0, spread, np.nan)
    return np.where((spread == 0) & (value == median), 0.0, found)


def _over_parts(moment: Moment, node: _Node) -> Any:
    arg = node.args[0]
    parent = moment.parent(arg.expr.axis, node.expr.axis)
    return OVER_PARTS[node.expr.op](moment.get(arg), parent, moment.rows(node.expr))


def _is_there(value: Any) -> bool:
    return value is not None


def _compare(function: Callable[[Any, Any], NDArray[np.bool_]]) -> Callable[[Moment, _Node], Truth]:
    def run(moment: Moment, node: _Node) -> Truth:
        return truth_of(function(*_two(moment, node)), moment.either_unknown(node))

    return run


def _numbers(function: Callable[[Any, Any], Any]) -> Callable[[Moment, _Node], Numbers]:
    return lambda moment, node: _folded(moment, function, node)


def _mean(window: NDArray[np.float32]) -> Numbers:
    valid = ~np.isnan(window)
    total = np.add.reduce(window, axis=0, dtype=np.float64, where=valid)
    return total / np.where((count := valid.sum(axis=0)) > 0, count, np.nan)


def _median(window: NDArray[np.float32]) -> Numbers:
    ranked = np.sort(window, axis=0).astype(np.float64)  # NaN last
    count = (~np.isnan(window)).sum(axis=0)
    rows = np.arange(window.shape[1])
    low = ranked[np.maximum((count - 1) // 2, 0), rows]
    return (low + ranked[np.minimum(count // 2, len(window) - 1), rows]) / 2


def _ends(window: NDArray[np.float32]) -> Numbers:
    """Newest minus oldest known value; unknown with fewer than two."""
    valid = ~np.isnan(window)
    rows = np.arange(window.shape[1])
    oldest = np.argmax(valid, axis=0)
    newest = len(window) - 1 - np.argmax(valid[::-1], axis=0)
    found = window[newest, rows].astype(np.float64) - window[oldest, rows]
    found[newest <= oldest] = np.nan
    return found


def _moved(window: NDArray[np.float32]) -> Numbers:
    """The range of the values; unknown with fewer than two."""
    low, high = np.fmin.reduce(window, axis=0), np.fmax.reduce(window, axis=0)
    found = (high != low).astype(np.float64)
    found[(~np.isnan(window)).sum(axis=0) < 2] = np.nan
    return found


_OVER_TIME: dict[str, Callable[[NDArray[np.float32]], Numbers]] = {
    "avg_over": _mean,
    "median_over": _median,
    "min_over": lambda window: np.fmin.reduce(window, axis=0).astype(np.float64),
    "max_over": lambda window: np.fmax.reduce(window, axis=0).astype(np.float64),
    "delta": _ends,
    "changed": _moved,
}

_OPS: dict[str, Callable[[Moment, _Node], Any]] = {
    "number": lambda _, node: node.expr.number,
    "signal": lambda moment, node: moment.signal(node.expr.name),
    "spec": lambda moment, node: moment.telemetry.spec(node.expr.name, node.expr.axis),
    "age": lambda moment, node: moment.telemetry.age_s(node.expr.name, moment.now),
    "rate": _rate,
    "increase": _increase,
    **dict.fromkeys(_OVER_TIME, _over_time),
    "share": _share,
    "count_over": _count_over,
    "neg": lambda moment, node: -moment.get(node.args[0]),
    "abs": lambda moment, node: np.abs(moment.get(node.args[0])),
    "+": _numbers(np.add),
    "-": _numbers(np.subtract),
    "*": _numbers(np.multiply),
    "/": _divide,
    "min": _numbers(np.minimum),
    "max": _numbers(np.maximum),
    "first": _first,
    "<": _compare(np.less),
    "<=": _compare(np.less_equal),
    ">": _compare(np.greater),
    ">=": _compare(np.greater_equal),
    "==": _equal,
    "!=": lambda moment, node: np.uint8(2) - _equal(moment, node),
    "in": _in,
    "has": _has,
    "known": _is_known,
    "and": _joined(np.minimum, FALSE),
    "or": _joined(np.maximum, TRUE),
    "not": lambda moment, node: np.uint8(2) - moment.get(node.args[0]),
    "down": _down,
    "peer_z": _peer_z,
    **dict.fromkeys(("peers", "rack_peers", "node_peers"), _peers),
    "peers_at": _peers_at,
    **dict.fromkeys(OVER_PARTS, _over_parts),
}
