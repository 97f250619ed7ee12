"""The numbers of series, in memory: for replay, simulation and tests."""

from collections.abc import Iterable, Sequence

from healer.model import Column
from healer.ports.measurements import TooManyColumns


class MemoryColumns:
    """`ports.ColumnBook` of one process. Numbers count from 1."""

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._ids: dict[Column, int] = {}
        self._columns: dict[int, Column] = {}

    def ids(self, columns: Sequence[Column]) -> list[int]:
        new = dict.fromkeys(column for column in columns if column not in self._ids)
        if len(self._ids) + len(new) > self._limit:
            raise TooManyColumns(f"more than {self._limit} different series")
        for column in new:
            number = len(self._ids) + 1
            self._ids[column] = number
            self._columns[number] = column
        return [self._ids[column] for column in columns]

    def columns(self, ids: Iterable[int]) -> dict[int, Column]:
        return {number: self._columns[number] for number in ids if number in self._columns}
