"""Unresolved incidents as pages need them: each is decoded once per version of its row and process."""

import threading
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.tables import incidents, part_of
from healer.model import IncidentState
from healer.ports.console_answers import OpenIncident

#: The transaction that wrote the row: another one stands there after each write.
_version: sa.ColumnElement[str] = sa.literal_column("incidents.xmin::text", sa.Text)

_decode = msgspec.json.Decoder(OpenIncident).decode

#: One number for all of them and their versions: 5,000 are compared without being fetched.
_digest = sa.func.bit_xor(sa.func.hashtextextended(incidents.c.id + _version, 0))


class OpenIncidents:
    """Of all clusters. While nothing was written the answer is the very same tuple."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}

    def read(self, conn: sa.Connection, cluster: str) -> tuple[OpenIncident, ...]:
        """The newest first."""
        mine = [incidents.c.cluster == cluster, incidents.c.state != "resolved"]
        stamp = tuple(conn.execute(sa.select(sa.func.count(), _digest).where(*mine)).one())
        with self._lock:
            known = self._known.get(cluster) or _Known((), {}, ())
        if stamp == known.stamp:
            return known.found
        order = incidents.c.opened.desc(), incidents.c.id.desc()
        heads = conn.execute(sa.select(incidents.c.id, _version).where(*mine).order_by(*order))
        versions = {name: version for name, version in heads}
        by_id = {one.id: one for one in known.found}
        by_id |= _written(conn, [name for name in versions if known.versions.get(name) != versions[name]])
        # One that was resolved between two of these looks is gone already.
        found = (by_id[name] for name in versions if name in by_id)
        now = _Known(stamp, versions, tuple(one for one in found if one.state is not IncidentState.resolved))
        with self._lock:
            self._known[cluster] = now
        return now.found


class _Known(NamedTuple):
    stamp: tuple[int, ...]
    versions: dict[str, str]
    found: tuple[OpenIncident, ...]


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
        .where(incidents.c.state == "resolved", part_of == incident)
        .order_by(incidents.c.opened, incidents.c.id)
    )
    return tuple(map(_decode, docs.scalars()))
