"""Tables with a document for each node of a cluster (`cluster`, `node`, `at`, `doc`), replaced as a whole."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, TypeVar

import msgspec
import sqlalchemy as sa


class OfNode(Protocol):
    @property
    def node(self) -> str: ...


T = TypeVar("T", bound=OfNode)


def replace(
    conn: sa.Connection, table: sa.Table, cluster: str, found: Sequence[OfNode], *, at: datetime
) -> None:
    """`found`, in place of all that were kept."""
    rows = [
        {"cluster": cluster, "node": one.node, "at": at, "doc": msgspec.to_builtins(one)} for one in found
    ]
    conn.execute(sa.delete(table).where(table.c.cluster == cluster))
    if rows:
        conn.execute(sa.insert(table), rows)


def read(
    conn: sa.Connection, table: sa.Table, kind: type[T], cluster: str, node: str | None = None
) -> dict[str, T]:
    """By node, of one or of all that have any."""
    wanted = sa.select(table.c.doc).where(table.c.cluster == cluster)
    if node is not None:
        wanted = wanted.where(table.c.node == node)
    found = (msgspec.convert(doc, kind) for doc in conn.execute(wanted).scalars())
    return {one.node: one for one in found}
