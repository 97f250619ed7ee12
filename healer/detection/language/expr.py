"""What an expression is made of: functions, figures that are part of the meaning, the checked tree."""

from collections.abc import Iterator
from dataclasses import dataclass

from healer.detection.language.units import RATIO, Unit
from healer.model import Scope

#: The rings hold so much.
LONGEST_WINDOW_S = 900.0


@dataclass(frozen=True, slots=True)
class Function:
    takes: tuple[str, ...]
    text: str
    #: More arguments of the last kind are taken.
    more: bool = False


FUNCTIONS: dict[str, Function] = {
    "rate": Function(("signal", "window"), "increase of a counter per second"),
    "delta": Function(("signal", "window"), "increase of a counter, or newest less oldest value of a gauge"),
    "avg_over": Function(("signal", "window"), "mean of the known values"),
    "min_over": Function(("signal", "window"), "smallest known value"),
    "max_over": Function(("signal", "window"), "largest known value"),
    "median_over": Function(("signal", "window"), "median of the known values"),
    "changed": Function(("signal", "window"), "whether two different values are known"),
    "count_over": Function(("truth", "window"), "ticks at which the condition was known true"),
    "share": Function(("truth", "window"), "share of the known ticks at which the condition was true, 0..1"),
    "peers": Function(("number",), "median of the peers"),
    "peer_z": Function(("number",), "distance from the peers' median in robust standard deviations"),
    "rack_peers": Function(("number",), "median of what is alike in the same rack, of three nodes at least"),
    "node_peers": Function(("number",), "median of the GPUs of the same node"),
    "peers_at": Function(
        ("number", "number"), "what the peers have where the second number is as it is here: a robust line"
    ),
    "spec": Function(("word",), "what the GPU model is made for (`gpu_models.yaml`)"),
    "has": Function(("signal", "word"), "whether a bit of a bit mask is set"),
    "known": Function(("any",), "whether there is a value; never unknown itself"),
    "age": Function(("signal",), "seconds since the last value"),
    "first": Function(("any", "any"), "the first that is known: of numbers, or of conditions", more=True),
    "abs": Function(("number",), "without its sign"),
    "min": Function(("number", "number"), "the smaller one; unknown if one is", more=True),
    "max": Function(("number", "number"), "the larger one; unknown if one is", more=True),
    "any_of": Function(("truth",), "whether it is true of at least one part"),
    "count_of": Function(("truth",), "of how many parts it is known true"),
    "share_of": Function(("truth",), "of which share of the parts where it is known it is true, 0..1"),
    "sum_of": Function(("number",), "sum over the parts where it is known"),
    "max_of": Function(("number",), "largest of the parts"),
    "min_of": Function(("number",), "smallest of the parts"),
    "median_of": Function(("number",), "median of the parts"),
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
