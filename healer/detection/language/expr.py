"""The parts of an expression: functions, constants that belong to the meaning, the checked tree."""

from collections.abc import Iterator
from dataclasses import dataclass

from healer.detection.language.units import RATIO, Unit
from healer.model import Scope

#: The length of the rings.
LONGEST_WINDOW_S = 900.0


@dataclass(frozen=True, slots=True)
class Function:
    """`more`: further arguments of the last kind are accepted."""

    takes: tuple[str, ...]
    more: bool = False


#: docs/rules.md says what each one returns.
FUNCTIONS: dict[str, Function] = {
    **dict.fromkeys(
        ("rate", "delta", "avg_over", "min_over", "max_over", "median_over", "changed"),
        Function(("signal", "window")),
    ),
    **dict.fromkeys(("count_over", "share"), Function(("condition", "window"))),
    **dict.fromkeys(("peers", "peer_z", "rack_peers", "node_peers", "abs"), Function(("number",))),
    "peers_at": Function(("number", "number")),
    "spec": Function(("name",)),
    "has": Function(("signal", "name")),
    "known": Function(("any",)),
    "age": Function(("signal",)),
    "first": Function(("any", "any"), more=True),
    **dict.fromkeys(("min", "max"), Function(("number", "number"), more=True)),
    **dict.fromkeys(("any_of", "count_of", "share_of"), Function(("condition",))),
    **dict.fromkeys(("sum_of", "max_of", "min_of", "median_of"), Function(("number",))),
}

#: These evaluate the parts of a row: the GPUs of a node, the nodes of a job.
OVER_PARTS = frozenset({"any_of", "count_of", "share_of", "sum_of", "max_of", "min_of", "median_of"})


#: One tick, and one slot of the rings.
TICK_S = 5.0
#: A value covers the time since the tick before, if that is at most this long.
SPEAKS_FOR_S = 30.0
#: `share` is known if this share of its window is known.
KNOWN_SHARE = 0.5
#: A median or spread of fewer peers says nothing.
LEAST_PEERS = 4
#: Nearly equal peers would turn a tiny difference into a huge distance, so the robust standard deviation is
#: at least this share of the median.
LEAST_SPREAD = 0.01


def slots_of(seconds: float) -> int:
    """The number of ticks in a window."""
    return max(1, -int(-seconds // TICK_S))


#: A row of an axis belongs to one row of each axis to its right, as far as known. Devices are separate from
#: nodes and from everything that contains nodes: the language does not mix them in one expression.
FINEST_FIRST = (
    Scope.link, Scope.gpu, Scope.node, Scope.job, Scope.switch, Scope.rack,
    Scope.device_part, Scope.device, Scope.fabric,
)  # fmt: skip


class ExpressionError(Exception):
    """What is wrong in an expression. `column` counts from 1; `hint` may be empty."""

    def __init__(self, column: int, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.column, self.text, self.hint = column, text, hint


@dataclass(frozen=True, slots=True)
class Expr:
    """`op` is a word of `parse` or `functions`; `scope` is None for a constant.

    `name`: a signal or a spec; `number`: a constant or a bit mask; `numbers`: the literals of `in`;
    `seconds`: a window. `truth`: a condition, else a number in `unit`. The op `down` broadcasts its argument
    from a larger axis to `scope`.
    """

    op: str
    args: tuple["Expr", ...] = ()
    scope: Scope | None = None
    truth: bool = False
    unit: Unit = RATIO
    name: str = ""
    number: float = 0.0
    numbers: tuple[float, ...] = ()
    seconds: float = 0.0

    @property
    def axis(self) -> Scope:
        """The `scope` of a non-constant expression."""
        assert self.scope is not None
        return self.scope

    def walk(self) -> Iterator["Expr"]:
        yield self
        for arg in self.args:
            yield from arg.walk()

    @property
    def signals(self) -> frozenset[str]:
        return frozenset(expr.name for expr in self.walk() if expr.name and expr.op != "spec")


def finer(part: Scope, whole: Scope) -> bool:
    """Whether rows of `part` are parts of rows of `whole`."""
    return FINEST_FIRST.index(part) < FINEST_FIRST.index(whole)
