"""Which relays recently sent the figures of each node: a conclusion from them is not the node's own report
(law 2).

Stored per signal of a node, not per sample, because a node's GPUs are reported together. A figure from the
node's own exporter does not hide an earlier one from a relay, which stays in the windows until they have
passed.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from healer.observations.rings import WINDOW_S, larger

#: Separator between the names of relays, any of which may be the sender.
OR = " or "
#: Limits on relays named together, and on numbered sets of them: anything beyond is `SEVERAL`.
NAMED_MOST, SETS_MOST = 4, 4096
SEVERAL = "several senders"
#: A relay that sends the figures of this many nodes can shift the level that the others are compared with.
SHIFTS_PEERS = 0.25


def names_in(senders: Iterable[str]) -> set[str]:
    """The individual relays in these names."""
    return {name for sender in senders for name in sender.split(OR) if name}


def either_of(senders: Iterable[str]) -> str:
    """The relays, one of which is the sender, as one name; empty if everything came from the nodes
    themselves."""
    names = sorted(names_in(senders))
    return OR.join(names) if len(names) <= NAMED_MOST and SEVERAL not in names else SEVERAL


class FigureSenders:
    """By ring, signal and node row: the relays that sent it in the quarter of an hour of the latest sample
    from anyone, and in the one before. A relay that stops sending is forgotten after two."""

    def __init__(self) -> None:
        self._names = [""]
        self._numbers = {"": 0}
        #: By ring, (signals, nodes): numbers of senders in both quarters, and s since 1970.
        self._by: dict[int, NDArray[np.int16]] = {}
        self._earlier: dict[int, NDArray[np.int16]] = {}
        self._at: dict[int, NDArray[np.float64]] = {}

    @property
    def nbytes(self) -> int:
        arrays = (*self._by.values(), *self._earlier.values(), *self._at.values())
        return sum(array.nbytes for array in arrays)

    def number(self, sender: str) -> int:
        """0: the node itself, or healer's scraper."""
        found = self._numbers.get(sender)
        if found is None:
            if len(self._names) >= SETS_MOST and sender != SEVERAL:
                return self.number(SEVERAL)
            found = self._numbers[sender] = len(self._names)
            self._names.append(sender)
        return found

    def put(self, ring: int, signal: NDArray, node: NDArray, by: NDArray, at_s: NDArray) -> None:
        """Records who sent samples; the arrays broadcast to one shape. `by`: as returned by `number`."""
        if not by.any():
            return
        signal, node, by, at_s = np.broadcast_arrays(signal, node, by, at_s)
        if not by.all():
            there = by > 0
            signal, node, by, at_s = signal[there], node[there], by[there], at_s[there]
        self._reserve(ring, int(signal.max()) + 1, int(node.max()) + 1)
        before, sent_s = self._by[ring][signal, node], self._at[ring][signal, node]
        quarters = np.floor(at_s / WINDOW_S) - np.floor(sent_s / WINDOW_S)
        turned = quarters > 0
        if turned.any():
            last = np.where(quarters == 1, before, np.int16(0))
            self._earlier[ring][signal, node] = np.where(turned, last, self._earlier[ring][signal, node])
        others = (before != by) & (before > 0) & ~turned
        if others.any():
            by = by.copy()
            for old, new in {*zip(before[others].tolist(), by[others].tolist(), strict=True)}:
                both = self.number(either_of((self._names[old], self._names[new])))
                by[others & (before == old) & (by == new)] = both
        self._by[ring][signal, node] = by
        self._at[ring][signal, node] = np.maximum(sent_s, at_s)

    def forget(self, node: int, until_s: float) -> None:
        for ring, at_s in self._at.items():
            over = at_s[:, node : node + 1] <= until_s
            for numbers in (self._by[ring], self._earlier[ring]):
                numbers[:, node : node + 1][over] = 0

    def of(self, ring: int, signal: int | None, node: int, since_s: float) -> set[str]:
        """The senders of that signal of the node since then; None: of any signal of the ring."""
        fresh = self._fresh(ring, signal, since_s, slice(node, node + 1))
        return {self._names[number] for number in np.unique(np.stack(fresh)).tolist()}

    def of_peers(self, ring: int, signal: int, since_s: float, nodes: int) -> set[str]:
        """The senders of that signal for so many of its `nodes` that they can shift the usual level."""
        found: set[str] = set()
        for fresh in self._fresh(ring, signal, since_s, slice(None)):
            numbers, counts = np.unique(fresh, return_counts=True)
            most = SHIFTS_PEERS * nodes
            found |= {self._names[number] for number in numbers[counts >= most].tolist() if number}
        return found

    def _fresh(self, ring: int, signal: int | None, since_s: float, nodes: slice) -> list[NDArray[np.int16]]:
        """For both quarters, (signals, nodes) numbers of senders, 0 if none is recent enough."""
        if ring not in self._by:
            return [np.zeros((0, 0), np.int16)]
        signals = slice(None) if signal is None else slice(signal, signal + 1)
        is_new = self._at[ring][signals, nodes] >= since_s
        return [
            np.where(is_new, numbers[ring][signals, nodes], np.int16(0))
            for numbers in (self._by, self._earlier)
        ]

    def _reserve(self, ring: int, signals: int, nodes: int) -> None:
        nothing = np.zeros((0, 0), np.int16)
        by, earlier = self._by.get(ring, nothing), self._earlier.get(ring, nothing)
        at_s = self._at.get(ring, np.zeros((0, 0)))
        had = by.shape[1]
        if signals > by.shape[0] or nodes > had:
            shape = max(signals, by.shape[0]), max(nodes, had + had // 2) if nodes > had else had
            self._by[ring], self._earlier[ring] = larger(by, shape, 0), larger(earlier, shape, 0)
            self._at[ring] = larger(at_s, shape, -np.inf)
