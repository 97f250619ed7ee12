"""What a loop wrote can be read back from a store. A sentence in a field for plain text could be written, and
no process could read that row again."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import msgspec
import pytest

from healer.sim.ledger_tables import Tables
from healer.text import from_stored, stored_json


@pytest.fixture
def written_is_readable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[Tables] = []
    first = Tables.__init__

    def init(self: Tables, *args: Any, **more: Any) -> None:
        first(self, *args, **more)
        made.append(self)

    monkeypatch.setattr(Tables, "__init__", init)
    yield
    for tables in made:
        for row in (row for field in fields(tables) for row in _rows(getattr(tables, field.name))):
            from_stored(msgspec.json.decode(stored_json(row)), type(row))


def _rows(value: Any) -> Iterator[msgspec.Struct]:
    if isinstance(value, msgspec.Struct):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _rows(part)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for part in value:
            yield from _rows(part)
