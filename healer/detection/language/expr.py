"""What an expression is made of: functions, figures that are part of the meaning, the checked tree."""

from collections.abc import Iterator
from dataclasses import dataclass

from healer.detection.language.units import RATIO, Unit
from healer.model import Scope

#: The rings hold so much.
LONGEST_WINDOW_S = 900.0


@dataclass(frozen=True, slots=True)
class Function:
    """`more`: more arguments of the last kind are taken."""

    takes: tuple[str, ...]
    more: bool = False


#: What each returns is in docs/rules.md.
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

#: These look at the parts of a row: the GPUs of a node, the nodes of a job.
OVER_PARTS = frozenset({"any_of", "count_of", "share_of", "sum_of", "max_of", "min_of", "median_of"})


#: One tick, and one slot of the rings.
TICK_S = 5.0
#: What was seen speaks for the time since the tick before, if that is not longer ago.
SPEAKS_FOR_S = 30.0
#: `share` is known when this share of its window is.
KNOWN_SHARE = 0.5
#: A median or spread of fewer peers says nothing.
LEAST_PEERS = 4
#: Peers that are all but equal would make a hair's breadth a huge distance: the robust standard deviation
#: counts as at least this share of the median.
LEAST_SPREAD = 0.01


def slots_of(seconds: float) -> int:
    """How many ticks a window holds."""
    return max(1, -int(-seconds // TICK_S))


#: A row of an axis belongs to one of each axis to its right, so far as it is known. Devices are apart from
#: nodes and all that holds nodes: the language lets no expression speak of both.
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
    """`op` is a word of `parse` or `functions`; `scope` None is a constant.

    `name` is a signal or a spec; `number` a constant or a bit mask; `numbers` the literals of `in`;
    `seconds` a window. `truth`: a condition, else a number in `unit`. The op `down` brings its argument from
    a larger axis to `scope`.
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
        """`scope`, of what is no constant."""
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
