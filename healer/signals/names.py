"""From the name of an arriving series to the signals it may be; from signal and part to a number."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from healer.model import Catalogue, Column, Combine, Scope, Signal
from healer.ports.measurements import ColumnBook, TooManyColumns

#: NVLinks of one GPU that a `{link}` in an alias stands for: 18 on Hopper and Blackwell.
LINKS = 18
#: Columns whose number one process remembers; the book itself holds at most as many.
_REMEMBERED = 100_000


class Way(msgspec.Struct, frozen=True):
    """One signal that a name may be. `labels` have to match (globs); `link` is the one in the name itself,
    `part` the label of a device's part."""

    signal: Signal
    scale: float
    labels: tuple[tuple[str, str], ...] = ()
    link: int | None = None
    part: str = ""

    @property
    def nvlink(self) -> bool:
        """Of the signals of links, those of NVLinks say so in their name; the others are of ports."""
        return self.signal.scope is Scope.link and self.signal.name.startswith("nvlink")

    def takes(self, labels: dict[str, str]) -> bool:
        return all(fnmatchcase(labels.get(name, ""), form) for name, form in self.labels)


class Names:
    """The names of a catalogue. A derived signal has none: it never arrives."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._ways: dict[str, list[Way]] = {}
        for signal in catalogue.signals.values():
            if signal.derived:
                continue
            self._ways.setdefault(signal.name, []).append(Way(signal, 1.0))
            for alias in signal.aliases:
                labels = tuple(sorted(alias.labels.items()))
                if "{link}" in alias.name:
                    for link in range(LINKS):
                        name = alias.name.replace("{link}", str(link))
                        self._ways.setdefault(name, []).append(Way(signal, alias.scale, labels, link))
                else:
                    way = Way(signal, alias.scale, labels, part=alias.part)
                    self._ways.setdefault(alias.name, []).append(way)
        for ways in self._ways.values():
            ways.sort(key=lambda way: not way.labels)  # the inlet's temperature before that of any sensor

    def __contains__(self, name: str) -> bool:
        return name in self._ways

    def of_several(self) -> frozenset[str]:
        """Names, other than a signal's own, of which one series is only a part of each signal it may be."""
        return frozenset(
            name
            for name, ways in self._ways.items()
            if all(way.signal.combine is not Combine.last and way.signal.name != name for way in ways)
        )

    def ways(self, name: str) -> Sequence[Way]:
        return self._ways.get(name, ())

    def plain(self, name: str, scope: Scope, *, nvlink: bool = False) -> Way | None:
        """The way of a form without labels; the link must not stand in the name."""
        for way in self.ways(name):
            if way.signal.scope is scope and way.nvlink is nvlink and not way.labels and way.link is None:
                return way
        return None


class Numbers:
    """Numbers of columns, remembered; asks the book for those that are new."""

    def __init__(self, book: ColumnBook) -> None:
        self._book = book
        self._known: dict[Column, int] = {}

    def of(self, columns: Sequence[Column]) -> list[int]:
        """-1 for a column for which the book has no room."""
        new = list(dict.fromkeys(column for column in columns if column not in self._known))
        if new:
            if len(self._known) + len(new) > _REMEMBERED:
                self._known.clear()
                new = list(dict.fromkeys(columns))
            try:
                self._known.update(zip(new, self._book.ids(new), strict=True))
            except TooManyColumns:
                self._known.update(self._one_by_one(new))
        return [self._known.get(column, -1) for column in columns]

    def _one_by_one(self, columns: Sequence[Column]) -> dict[Column, int]:
        """The numbers of those that have one: a full book still serves what it knows."""
        found: dict[Column, int] = {}
        for column in columns:
            try:
                (found[column],) = self._book.ids([column])
            except TooManyColumns:
                continue
        return found
