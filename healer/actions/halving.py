"""Which of several nodes is the slow one, by tests of halves of them. Pure.

A test of a group has the figures of its slowest node, or of its worst way: what waits for all waits for
that. So a group is slow when a figure of it is well below that of other groups, and the nodes of one that is
not are well. The search is plain recursion over the answers that there are: at the first that is missing it
says which group is to be tested next, and with all of them it comes to its finding. It has no memory of its
own.

Groups that are compared are about equally large, because a collective of many nodes is slower by itself: the
smaller half is filled up with nodes that were well before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from healer.model import FIGURE_SHARE

#: Of fewer nodes no half has a partner for each.
LEAST = 4
#: What is held of a node against which something speaks already, as odds to one of which nothing is known.
NAMED_WEIGHS = 30.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a test of a group told: its figures by name, the higher the better; `failed`: what went wrong."""

    figures: dict[str, float] = {}
    failed: str = ""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The group that is to be tested next."""

    nodes: tuple[str, ...]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """`slow`: nodes, and why, in words. `between`: two groups that are well apart and not together.
    `open`: groups that are slow, of which nothing tells the nodes apart. All empty: nothing is slow."""

    slow: dict[str, str] = {}
    between: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    open: tuple[tuple[str, ...], ...] = ()
    tested: int = 0

    @property
    def clean(self) -> bool:
        return not (self.slow or self.between or self.open)


def search(
    nodes: Sequence[str],
    named: Sequence[str],
    answers: Mapping[tuple[str, ...], Answer],
    standard: Mapping[str, float] | None = None,
) -> Wanted | Found:
    """`named`: those of `nodes` against which something speaks. `answers` by the group's names, sorted.
    `standard`: figures of a good node of the kind, where they are known."""
    if len(nodes) < LEAST:
        raise ValueError("too few nodes to be halved")
    look = _Search(answers, standard or {}, {one: NAMED_WEIGHS for one in named})
    try:
        look.top(sorted(nodes, key=lambda one: one not in named))
    except _Missing as missing:
        return Wanted(nodes=missing.nodes)
    return Found(slow=look.slow, between=tuple(look.between), open=tuple(look.open), tested=len(look.seen))


class _Missing(Exception):
    def __init__(self, nodes: tuple[str, ...]) -> None:
        self.nodes = nodes


@dataclass
class _Search:
    answers: Mapping[tuple[str, ...], Answer]
    standard: Mapping[str, float]
    weights: Mapping[str, float]
    #: Answers in the order in which they were looked at, with the size of their groups.
    seen: list[tuple[int, Answer]] = field(default_factory=list)
    well: list[str] = field(default_factory=list)
    slow: dict[str, str] = field(default_factory=dict)
    between: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)
    open: list[tuple[str, ...]] = field(default_factory=list)

    def top(self, nodes: list[str]) -> None:
        # Equally large: so far there is no node that could fill the smaller one up.
        half = len(nodes) // 2
        first, rest = nodes[:half], nodes[half:]
        told = self._both(first, rest)
        if any(told):
            self._go_on((first, rest), told)
        elif self._judged(self._answer(nodes), size=0):
            self.between.append((tuple(first), tuple(rest)))

    def _halve(self, doubt: list[str]) -> None:
        """Of nodes that are slow together."""
        first, rest = self._halves(doubt)
        size = max(2, len(first), len(rest))
        groups = self._filled(first, size), self._filled(rest, size)
        if min(len(one) for one in groups) < 2:
            self.open.append(tuple(doubt))
            return
        told = self._both(*groups)
        if any(told):
            self._go_on((first, rest), told)
        else:
            self.well += [*first, *rest]
            self.between.append((tuple(first), tuple(rest)))

    def _go_on(self, halves: tuple[list[str], list[str]], told: tuple[str, str]) -> None:
        for half, why in zip(halves, told, strict=True):
            if not why:
                self.well += half
        for half, why in zip(halves, told, strict=True):
            if why and len(half) == 1:
                self.slow[half[0]] = why
            elif why:
                self._halve(half)

    def _halves(self, doubt: list[str]) -> tuple[list[str], list[str]]:
        """The likeliest that together are as likely as all others, so that the answer halves the doubt; once
        there are nodes to fill up with, halves need not be equally large."""
        whole = sum(self._weight(one) for one in doubt)
        count = weighs = 0
        while count < len(doubt) // 2 and (weighs < whole / 2 or not self.well):
            weighs += self._weight(doubt[count])
            count += 1
        return doubt[:count], doubt[count:]

    def _weight(self, node: str) -> float:
        return self.weights.get(node, 1.0)

    def _filled(self, half: list[str], size: int) -> list[str]:
        return [*half, *[one for one in self.well if one not in half][: size - len(half)]]

    def _both(self, first: list[str], rest: list[str]) -> tuple[str, str]:
        """What speaks against each. Both are tested before either is judged: each is the other's measure."""
        one, other = self._answer(first), self._answer(rest)
        return self._judged(one, size=len(first)), self._judged(other, size=len(rest))

    def _answer(self, nodes: Sequence[str]) -> Answer:
        found = self.answers.get(tuple(sorted(nodes)))
        if found is None:
            raise _Missing(tuple(nodes))
        self.seen.append((len(nodes), found))
        return found

    def _judged(self, told: Answer, *, size: int) -> str:
        """Why it is slow; empty: it is not. A larger group is no worse a measure, a smaller one is."""
        if told.failed:
            return told.failed
        for name, figure in told.figures.items():
            others = [
                one.figures[name] for many, one in self.seen if many >= size - 1 and name in one.figures
            ]
            best = max([*others, self.standard.get(name, 0.0)])
            if figure < FIGURE_SHARE * best:
                return f"{name} {figure:g}, {100 * figure / best:.0f} % of {best:g}"
        return ""
