"""Unresolved incidents as pages need them: each is decoded once per version of its row and process."""

import threading

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.tables import incidents
from healer.console.reads import OpenIncident
from healer.model import IncidentState

#: The transaction that wrote the row: another one stands there after each write.
_version: sa.ColumnElement[str] = sa.literal_column("incidents.xmin::text", sa.Text)

_decode = msgspec.json.Decoder(OpenIncident).decode

#: Id and version of each, the newest incident first.
_Heads = list[tuple[str, str]]


class OpenIncidents:
    """Of all clusters. While nothing was written the answer is the very same tuple."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[_Heads, tuple[OpenIncident, ...]]] = {}

    def read(self, conn: sa.Connection, cluster: str) -> tuple[OpenIncident, ...]:
        heads = _heads(conn, cluster)
        with self._lock:
            before, known = self._known.get(cluster, ([], ()))
        if heads == before:
            return known
        versions = dict(before)
        by_id = {one.id: one for one in known if one.id in versions}
        changed = [name for name, version in heads if versions.get(name) != version]
        by_id |= _written(conn, changed)
        # One that was resolved between the two looks is gone already.
        found = tuple(by_id[name] for name, _ in heads if name in by_id)
        found = tuple(one for one in found if one.state is not IncidentState.resolved)
        with self._lock:
            self._known[cluster] = heads, found
        return found


def _heads(conn: sa.Connection, cluster: str) -> _Heads:
    rows = conn.execute(
        sa.select(incidents.c.id, _version)
        .where(incidents.c.cluster == cluster, incidents.c.state != "resolved")
        .order_by(incidents.c.opened.desc(), incidents.c.id.desc())
    )
    return [(name, version) for name, version in rows]


def _written(conn: sa.Connection, names: list[str]) -> dict[str, OpenIncident]:
    if not names:
        return {}
    text = sa.cast(incidents.c.doc, sa.Text)
    docs = conn.execute(
        sa.select(text).where(incidents.c.id == sa.any_(sa.literal(names, sa.ARRAY(sa.Text))))
    )
    return {one.id: one for one in map(_decode, docs.scalars())}


def merged_into(conn: sa.Connection, incident: str) -> tuple[OpenIncident, ...]:
    """Those that ended as a part of this one, the oldest first."""
    docs = conn.execute(
        sa.select(sa.cast(incidents.c.doc, sa.Text))
        .where(incidents.c.state == "resolved", incidents.c.doc["merged_into"].astext == incident)
        .order_by(incidents.c.opened, incidents.c.id)
    )
    return tuple(map(_decode, docs.scalars()))
