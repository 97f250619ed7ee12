"""The checked tree of an expression: each node knows its kind, unit and axis. Equal trees are equal."""

from collections.abc import Iterator
from dataclasses import dataclass

from healer.detection.language.units import RATIO, Unit
from healer.model import Scope

#: A row of an axis belongs to one of each axis to its right, so far as it is known. Devices are beside nodes
#: and all that holds nodes: the language lets no expression speak of both.
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

    def walk(self) -> Iterator["Expr"]:
        yield self
        for arg in self.args:
            yield from arg.walk()

    @property
    def signals(self) -> frozenset[str]:
        return frozenset(one.name for one in self.walk() if one.name and one.op != "spec")


def finer(one: Scope, other: Scope) -> bool:
    """Whether rows of `one` are parts of rows of `other`."""
    return FINEST_FIRST.index(one) < FINEST_FIRST.index(other)
