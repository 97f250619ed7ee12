"""Which processes of this machine are connected to the database: the name of each connection says so."""

import os
import re
import socket
from collections.abc import Iterator

import sqlalchemy as sa

#: PostgreSQL cuts the names of connections off here.
_LONGEST = 63
_PROCESS = re.compile(r"(?P<name>.+) (?P<pid>\d+)@")
_NAMES = sa.text("SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database()")


def connection_name(name: str, pid: int | None = None) -> str:
    return f"{name} {pid or os.getpid()}@{socket.gethostname()}"[:_LONGEST]


def connected_here(conn: sa.Connection) -> Iterator[tuple[str, int]]:
    """Name and process of each connection by `connection_name` from this machine."""
    for shown in conn.scalars(_NAMES):
        found = _PROCESS.match(shown or "")
        if found and shown == connection_name(found["name"], int(found["pid"])):
            yield found["name"], int(found["pid"])
