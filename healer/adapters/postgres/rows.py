"""Rows as nouns, and the parts of statements that recur."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.ports.queries import decode_cursor, encode_cursor

T = TypeVar("T")


def read_docs(conn: sa.Connection, query: sa.Select, kind: type[T]) -> list[T]:
    """`query` asks for one column of documents."""
    return [msgspec.convert(doc, kind) for doc in conn.execute(query).scalars()]


def read_doc(conn: sa.Connection, query: sa.Select, kind: type[T]) -> T | None:
    doc = conn.execute(query).scalar()
    return None if doc is None else msgspec.convert(doc, kind)


def read_structs(
    conn: sa.Connection, query: sa.Executable, kind: type[T], asked: Mapping[str, Any] | None = None
) -> list[T]:
    """`query` asks for columns with the names of the fields."""
    return [kind(**row) for row in conn.execute(query, asked).mappings()]


def read_page(
    conn: sa.Connection, query: sa.Select, order: Sequence[sa.ColumnElement], limit: int, cursor: str | None
) -> tuple[Sequence[sa.Row], str | None]:
    """Rows from behind the cursor, newest first by `order` (a moment and an identity); the next cursor."""
    if cursor is not None:
        last = decode_cursor(cursor, tuple[datetime, str])
        query = query.where(sa.tuple_(*order) < sa.tuple_(*(sa.literal(part) for part in last)))
    rows = conn.execute(query.order_by(*(part.desc() for part in order)).limit(limit + 1)).all()
    if len(rows) <= limit:
        return rows, None
    return rows[:limit], encode_cursor(*(getattr(rows[limit - 1], str(part.key)) for part in order))


def pick(item: object, *names: str) -> dict[str, Any]:
    """These attributes of a row or of a noun, by name."""
    return {name: getattr(item, name) for name in names}


def write_docs(
    conn: sa.Connection, statement: sa.TextClause, rows: Sequence[object], **given: object
) -> None:
    """One statement for however many rows: they are one JSON text, and it is planned once."""
    if rows:
        conn.execute(statement, {"rows": msgspec.json.encode(rows).decode(), **given})


def upsert(table: sa.Table, key: dict[str, Any], values: dict[str, Any]) -> Any:
    made = insert(table).values(**key, **values)
    fresh = {name: made.excluded[name] for name in values}
    return made.on_conflict_do_update(index_elements=list(key), set_=fresh)


def matches(column: sa.ColumnElement, wanted: Sequence[str] | str | None) -> sa.ColumnElement[bool]:
    """The column is what is wanted, or one of those; None: whatever it is."""
    if wanted is None:
        return sa.true()
    return column == wanted if isinstance(wanted, str) else column.in_(wanted)


def contains(text: str) -> str:
    """A LIKE pattern that finds `text` anywhere, whatever it holds. Use with escape='\\\\'."""
    return "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"


def begins(column: sa.ColumnElement, text: str) -> sa.ColumnElement[bool]:
    return column.startswith(text, autoescape=True)
