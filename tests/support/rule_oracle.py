"""What the language means, for one row, in plain Python: the reference that `compile` is held against.

None is unknown. Nothing here is fast: it is read by people and run by tests.
"""

import math
import operator
import statistics
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from healer.detection.language.expr import (
    KNOWN_SHARE,
    LEAST_PEERS,
    LEAST_SPREAD,
    SPEAKS_FOR_S,
    TICK_S,
    Expr,
    slots_of,
)
from healer.observations.groups import LEAST_OF_LINE, LEAST_SPAN

if TYPE_CHECKING:
    from healer.observations.telemetry_windows import Telemetry

Value = float | bool | None

_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "min": min,
    "max": max,
}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
#: Makes the median absolute deviation of a normal distribution its standard deviation.
_MAD_TO_SIGMA = 1.4826


class Memory:
    """What conditions inside `share` and `count_over` were, by condition, row and tick."""

    def __init__(self) -> None:
        self.seen: dict[tuple[Expr, int], list[tuple[int, Value]]] = {}

    def keep(self, condition: Expr, row: int, at_s: float, value: Value) -> None:
        slot = int(at_s // TICK_S)
        samples = self.seen.setdefault((condition, row), [])
        if samples and samples[-1][0] == slot:
            samples.pop()
        # A slower tick speaks for the time since the one before it.
        if samples and (slot - samples[-1][0]) * TICK_S <= SPEAKS_FOR_S:
            samples.extend((one, value) for one in range(samples[-1][0] + 1, slot))
        samples.append((slot, value))

    def window(self, condition: Expr, row: int, at_s: float, seconds: float) -> list[Value]:
        """The known values of the window."""
        oldest = int(at_s // TICK_S) - slots_of(seconds)
        samples = self.seen.get((condition, row), [])
        return [value for slot, value in samples if slot > oldest and value is not None]


class Scalar:
    """The values of one moment. Call `remember` once per tick and expression, before `value`."""

    def __init__(self, telemetry: "Telemetry", now: datetime, memory: Memory) -> None:
        self.telemetry, self.now, self.memory = telemetry, now, memory

    def remember(self, root: Expr) -> None:
        """Writes down the conditions whose past is asked for."""
        conditions = {one.args[0] for one in root.walk() if one.op in ("share", "count_over")}
        for condition in conditions:
            assert condition.scope is not None
            for row in range(self.telemetry.axis(condition.scope).n):
                self.memory.keep(condition, row, self.now.timestamp(), self.value(condition, row))

    def value(self, expr: Expr, row: int) -> Value:
        """Of one row of the expression's axis."""
        op, args = expr.op, expr.args
        match op:
            case "number":
                return expr.number
            case "signal":
                return _or_none(self.telemetry.value(expr.name, self.now)[row])
            case "spec":
                return _or_none(self.telemetry.spec(expr.name, _axis(expr))[row])
            case "age":
                return _or_none(self.telemetry.age_s(expr.name, self.now)[row])
            case "rate" | "increase":
                return self._growth(expr, row)
            case "avg_over" | "median_over" | "min_over" | "max_over" | "delta" | "changed":
                return self._over_time(expr, row)
            case "share" | "count_over":
                return self._past(expr, row)
            case "and" | "or":
                return _kleene(op, [self.value(arg, row) for arg in args])
            case "not":
                value = self.value(args[0], row)
                return None if value is None else not value
            case "known":
                return self.value(args[0], row) is not None
            case "down":
                parent = int(self.telemetry.axis(_axis(expr)).parent(_axis(args[0]))[row])
                return None if parent < 0 else self.value(args[0], parent)
            case "first":
                values = (self.value(arg, row) for arg in args)
                return next((value for value in values if value is not None), None)
            case "peers" | "peer_z" | "rack_peers" | "node_peers":
                return self._peers(expr, row)
            case "peers_at":
                return self._peers_at(expr, row)
        if op.endswith("_of"):
            return self._over_parts(expr, row)
        return self._of_values(expr, [self.value(arg, row) for arg in args])

    def _of_values(self, expr: Expr, values: Sequence[Any]) -> Value:
        """Operators that are unknown when anything in them is."""
        if any(value is None for value in values):
            return None
        if expr.op in _COMPARE:
            return _COMPARE[expr.op](*values)
        if expr.op == "in":
            return values[0] in expr.numbers
        if expr.op == "has":
            return int(values[0]) & int(expr.number) != 0
        if expr.op == "neg":
            return -values[0]
        if expr.op == "abs":
            return abs(values[0])
        if expr.op == "/":
            return None if values[1] == 0 else values[0] / values[1]
        found = values[0]
        for value in values[1:]:
            found = _ARITHMETIC[expr.op](found, value)
        return found

    def _silent(self, expr: Expr, row: int) -> bool:
        return _or_none(self.telemetry.value(expr.name, self.now)[row]) is None

    def _growth(self, expr: Expr, row: int) -> Value:
        increase, covered = self.telemetry.increase(expr.name, expr.seconds, self.now)
        grew, seen_s = _or_none(increase[row]), _or_none(covered[row])
        if grew is None or not seen_s or self._silent(expr, row):
            return None
        if expr.op == "increase" and grew > 0:
            return grew
        if seen_s < KNOWN_SHARE * expr.seconds:
            return None
        return grew / seen_s if expr.op == "rate" else grew

    def _over_time(self, expr: Expr, row: int) -> Value:
        column = self.telemetry.window(expr.name, expr.seconds, self.now)[:, row]
        known = [float(value) for value in column if not math.isnan(value)]
        if not known or self._silent(expr, row):
            return None
        match expr.op:
            case "avg_over":
                return statistics.fmean(known)
            case "median_over":
                return statistics.median(known)
            case "min_over":
                return min(known)
            case "max_over":
                return max(known)
        if len(known) < 2:
            return None
        return known[-1] - known[0] if expr.op == "delta" else len(set(known)) > 1

    def _past(self, expr: Expr, row: int) -> Value:
        known = self.memory.window(expr.args[0], row, self.now.timestamp(), expr.seconds)
        if not known or (expr.op == "share" and len(known) < KNOWN_SHARE * slots_of(expr.seconds)):
            return None
        true = float(known.count(True))
        return true / len(known) if expr.op == "share" else true

    def _peers(self, expr: Expr, row: int) -> Value:
        groups = {"rack_peers": self.telemetry.rack_groups, "node_peers": self.telemetry.node_groups}
        ids = groups.get(expr.op, self.telemetry.groups)(_axis(expr)).ids
        if ids[row] < 0:
            return None
        group = [one for one in range(len(ids)) if ids[one] == ids[row]]
        known = [float(value) for one in group if (value := self.value(expr.args[0], one)) is not None]
        if len(known) < LEAST_PEERS:
            return None
        median = statistics.median(known)
        if expr.op != "peer_z":
            return median
        own = self.value(expr.args[0], row)
        if own is None:
            return None
        spread = _MAD_TO_SIGMA * statistics.median(abs(value - median) for value in known)
        spread = max(spread, LEAST_SPREAD * abs(median))
        if spread == 0:
            return 0.0 if own == median else None
        return (own - median) / spread

    def _peers_at(self, expr: Expr, row: int) -> Value:
        ids = self.telemetry.groups(_axis(expr)).ids
        own = self.value(expr.args[1], row)
        if ids[row] < 0 or own is None:
            return None
        pairs = [
            (float(at), float(value))
            for one in range(len(ids))
            if ids[one] == ids[row]
            and (value := self.value(expr.args[0], one)) is not None
            and (at := self.value(expr.args[1], one)) is not None
        ]
        if len(pairs) < LEAST_OF_LINE:
            return None
        pairs.sort(key=lambda pair: pair[0])
        third = len(pairs) // 3
        low, high = pairs[:third], pairs[-third:]
        low_at, high_at = (statistics.median(at for at, _ in part) for part in (low, high))
        least = LEAST_SPAN * abs(statistics.median(at for at, _ in pairs))
        slope = 0.0
        if high_at - low_at > least:
            rise = statistics.median(value for _, value in high) - statistics.median(
                value for _, value in low
            )
            slope = rise / (high_at - low_at)
        reach = max(high_at - low_at, least)
        if not low_at - reach <= own <= high_at + reach:
            return None
        return statistics.median(value - slope * at for at, value in pairs) + slope * float(own)

    def _over_parts(self, expr: Expr, row: int) -> Value:
        part = expr.args[0]
        parents = self.telemetry.axis(_axis(part)).parent(_axis(expr))
        values = [self.value(part, one) for one in range(len(parents)) if parents[one] == row]
        known = [value for value in values if value is not None]
        if expr.op == "any_of":
            return _kleene("or", values) if values else None
        if not known:
            return None
        match expr.op:
            case "count_of":
                return float(known.count(True))
            case "share_of":
                return known.count(True) / len(known)
            case "sum_of":
                return math.fsum(known)
            case "max_of":
                return max(known)
            case "min_of":
                return min(known)
        return statistics.median(known)


def _axis(expr: Expr) -> Any:
    assert expr.scope is not None
    return expr.scope


def _or_none(value: Any) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number


def _kleene(op: str, values: Sequence[Value]) -> Value:
    decides = op == "or"
    if any(value is decides for value in values):
        return decides
    return None if any(value is None for value in values) else not decides
