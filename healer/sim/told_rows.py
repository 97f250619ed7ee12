"""Slurm's picture in a recording: told whole, or what changed in it since the last one."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
Row = Mapping[str, Any]


class Shown(msgspec.Struct, frozen=True):
    """A body of `slurm/nodes` or `slurm/jobs`. `whole`: what it does not name is gone. `again`: the recorder
    only repeats what it told before, so that a file stands alone."""

    rows: Sequence[Row]
    gone: Sequence[str] = ()
    whole: bool = True
    again: bool = False


def shown(body: Any, name: str) -> Shown:
    """ValueError for a body that is neither `{name: [...]}` nor `{"changed": [...], "gone": [...]}`."""
    known = body if isinstance(body, dict) else {}
    if name in known or not known.keys() & {"changed", "gone"}:
        return Shown(_rows(known.get(name), name), again=known.get("again") is True)
    gone = known.get("gone", [])
    if not isinstance(gone, list):
        raise ValueError("`gone` has to be a list of names")
    return Shown(_rows(known.get("changed", []), "changed"), [str(one) for one in gone], whole=False)


def _rows(rows: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"`{name}` has to be a list of objects")
    return rows


class ToldRows:
    """What the recording told last of each node or job, apart from what the replay made of it."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._rows: dict[str, Row] = {}
        #: By the last picture: True where it was all that there is.
        self._gone: frozenset[str] = frozenset()
        self._all = False

    def take(self, shown: Shown) -> list[Row]:
        """The rows that count now. A picture overrides all that the replay did, even where it says what the
        one before said; one that is told again overrides only where it differs from that."""
        fresh = {str(row[self._key]): row for row in shown.rows}
        self._all = shown.whole and not (shown.again and self._rows)
        if not shown.whole:
            self._gone = frozenset(shown.gone)
            self._rows = {name: row for name, row in self._rows.items() if name not in self._gone} | fresh
            return list(fresh.values())
        counted = list(fresh.values())
        if not self._all:
            counted = [row for name, row in fresh.items() if self._rows.get(name) != row]
        self._gone = frozenset(self._rows.keys() - fresh.keys())
        self._rows = fresh
        return counted

    def merged(self, before: dict[str, T], fresh: dict[str, T]) -> dict[str, T]:
        """`before` with what the last picture said; itself where that says nothing new."""
        if self._all:
            return fresh
        if not fresh and not self._gone:
            return before
        return {name: one for name, one in before.items() if name not in self._gone} | fresh
