"""Parts of questions that lists are asked by."""

from datetime import datetime

import sqlalchemy as sa

from healer.ports.queries import decode_cursor


def after(
    statement: sa.Select, moment: sa.ColumnElement, identity: sa.ColumnElement, cursor: str | None
) -> sa.Select:
    """Newest first by (moment, identity), from behind the cursor."""
    if cursor is not None:
        at, last = decode_cursor(cursor, tuple[datetime, str])
        statement = statement.where(sa.tuple_(moment, identity) < sa.tuple_(sa.literal(at), sa.literal(last)))
    return statement.order_by(moment.desc(), identity.desc())


def contains(text: str) -> str:
    """A LIKE pattern that finds `text` anywhere, whatever it holds. Use with escape='\\\\'."""
    return "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"


def begins(column: sa.Column, text: str) -> sa.ColumnElement[bool]:
    return column.startswith(text, autoescape=True)
