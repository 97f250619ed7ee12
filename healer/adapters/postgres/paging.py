"""Cursors: the sort key of the last row of a page, opaque to callers. Rows added meanwhile shift nothing."""

import base64
import binascii
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from healer.ports.request_errors import Invalid


def encode(*key: Any) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def decode(cursor: str, kind: Any) -> Any:
    """The key as a tuple of `kind`. Raises Invalid("cursor", …)."""
    try:
        raw = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        return msgspec.json.decode(raw, type=kind)
    except (binascii.Error, UnicodeEncodeError, msgspec.DecodeError, ValueError) as error:
        raise Invalid("cursor", "not one that an answer gave") from error


def after(
    statement: sa.Select, moment: sa.ColumnElement, identity: sa.ColumnElement, cursor: str | None
) -> sa.Select:
    """Newest first by (moment, identity), from behind the cursor."""
    if cursor is not None:
        at, last = decode(cursor, tuple[datetime, str])
        statement = statement.where(sa.tuple_(moment, identity) < sa.tuple_(sa.literal(at), sa.literal(last)))
    return statement.order_by(moment.desc(), identity.desc())


def contains(text: str) -> str:
    """A LIKE pattern that finds `text` anywhere, whatever it holds. Use with escape='\\\\'."""
    return "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
