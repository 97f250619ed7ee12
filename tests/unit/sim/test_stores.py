"""The book of columns in memory."""

import pytest

from healer.model import Column, Part
from healer.ports.measurements import TooManyColumns
from healer.sim.stores import MemoryColumns

A, B, C = Column("a"), Column("a", Part(gpu=0)), Column("a", Part(gpu=0, link=0))


def test_a_column_keeps_its_number() -> None:
    book = MemoryColumns()
    one, two, again = book.ids([A, B, A])
    assert one == again != two
    assert book.ids([B, C, A])[::2] == [two, one]
    assert book.columns([two, 99]) == {two: B}


def test_a_full_book_numbers_nothing_more() -> None:
    book = MemoryColumns(limit=2)
    (one,) = book.ids([A])
    with pytest.raises(TooManyColumns):
        book.ids([A, B, C])
    assert book.ids([A]) == [one]
    assert book.columns(range(10)) == {one: A}
