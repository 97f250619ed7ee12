"""Incidents with their findings, verdicts, notes and messages, for pages."""

import threading
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.engine import (
    begins,
    contains,
    matches,
    pick,
    read_docs,
    read_page,
    read_structs,
    reading,
    row_named,
    stored_sentence,
)
from healer.adapters.postgres.evidence import collected_for
from healer.adapters.postgres.node_rows import SnapshotStore
from healer.adapters.postgres.outbox import channel_states
from healer.adapters.postgres.run_rows import decisions_where, records_of
from healer.adapters.postgres.tables import (
    decisions,
    findings,
    incidents,
    messages,
    nodes_named,
    notes,
    part_of,
    run_log,
    runs,
    verdicts,
)
from healer.model import (
    PROBATION,
    Finding,
    Incident,
    IncidentState,
    IncidentVerdict,
    Message,
    StepEvent,
    Verb,
    Verdict,
    VerdictAt,
)
from healer.model.incident import SIMILAR_MAX
from healer.ports.answers import IncidentRows, Note, OpenIncident, Page, SentMessage
from healer.ports.queries import IncidentQuery
from healer.text import from_stored, read_said


class PostgresIncidents(SnapshotStore):
    """`healer.ports.queries.IncidentQueries`."""

    def page(self, query: IncidentQuery, *, limit: int, cursor: str | None = None) -> Page[Incident]:
        where = [
            matches(incidents.c.cluster, query.clusters),
            matches(incidents.c.state, query.states or None),
            matches(incidents.c.severity, query.severities or None),
        ]
        if query.open is not None:
            resolved = incidents.c.state == "resolved"
            where.append(~resolved if query.open else resolved)
        if query.node:
            where.append(about_node(query.node))
        if query.text:
            pattern, doc = contains(query.text), incidents.c.doc
            parts = (doc[name].astext for name in ("title", "fault", "nodes", "jobs_hit", "root"))
            places = (place.ilike(pattern, escape="\\") for place in (incidents.c.rule, *parts))
            where.append(sa.or_(begins(incidents.c.id, query.text), *places))
        if query.closed_since is not None:
            where.append(incidents.c.closed >= query.closed_since)
        with reading(self._engine) as conn:
            return incident_page(conn, where, limit, cursor)

    def named(self, ids: Sequence[str]) -> list[Incident]:
        with reading(self._engine) as conn:
            rows = conn.execute(sa.select(incidents.c.id, incidents.c.doc).where(incidents.c.id.in_(ids)))
            docs = {row.id: row.doc for row in rows}
        return [from_stored(docs[name], Incident) for name in ids if name in docs]

    def find(self, incident: str) -> Incident | None:
        with reading(self._engine) as conn:
            return _incident_named(conn, incident)

    def rows(self, incident: str) -> IncidentRows | None:
        with reading(self._engine) as conn:
            found = _incident_named(conn, incident)
            if found is None:
                return None
            judged = decisions_where(conn, decisions.c.incident == found.id)
            query = sa.select(findings.c.doc).where(findings.c.incident == found.id)
            return IncidentRows(
                incident=found,
                verdicts=tuple(verdicts_of(conn, found.id)),
                findings=tuple(read_docs(conn, query.order_by(findings.c.id).limit(200), Finding)),
                decisions=tuple(judged),
                runs=tuple(records_of(conn, found.id, judged)),
                notes=tuple(_notes(conn, found.id)),
                messages=tuple(_messages(conn, found.id)),
                alike=tuple(may_be_alike(conn, found)),
                collected=tuple(collected_for(conn, incident=found.id)),
                merged=parts_of(conn, found.id),
                snapshot=self._snapshots.read(conn, found.cluster),
            )

    def cures(self, ids: Sequence[str]) -> dict[str, list[Verb]]:
        verb = run_log.c.doc["data"]["verb"].astext
        done = (
            sa.select(runs.c.incident, verb.label("verb"))
            .join(run_log, run_log.c.run == runs.c.id)
            .where(
                runs.c.incident.in_(ids),
                runs.c.shadow.is_(False),
                run_log.c.event == str(StepEvent.done),
                verb.is_not(None),
            )
            .order_by(run_log.c.seq)
        )
        found: dict[str, list[Verb]] = {}
        with reading(self._engine) as conn:
            for row in conn.execute(done):
                found.setdefault(row.incident, []).append(Verb(row.verb))
        return found


def _incident_named(conn: sa.Connection, name: str) -> Incident | None:
    row = row_named(conn, sa.select(incidents.c.doc), incidents.c.id, name)
    return None if row is None else from_stored(row.doc, Incident)


def incident_page(
    conn: sa.Connection, where: Sequence[sa.ColumnElement[bool]], limit: int, cursor: str | None = None
) -> Page[Incident]:
    query = sa.select(incidents.c.opened, incidents.c.id, incidents.c.doc).where(*where)
    rows, more = read_page(conn, query, (incidents.c.opened, incidents.c.id), limit, cursor)
    return Page(items=[from_stored(row.doc, Incident) for row in rows], next_cursor=more)


def about_node(node: str) -> sa.ColumnElement[bool]:
    """Incidents whose root is on the node or that give a verdict on it."""
    return sa.or_(incidents.c.node == node, nodes_named.has_key(node))


def watched(
    conn: sa.Connection, clusters: Sequence[str] | None, now: datetime, *those: sa.ColumnElement[bool]
) -> list[Incident]:
    """Open incidents, and those whose node is still on probation, oldest first."""
    on_probation = sa.and_(
        incidents.c.closed > now - PROBATION, incidents.c.doc["probation_until"].astext > now.isoformat()
    )
    active = sa.or_(incidents.c.state != "resolved", on_probation)
    query = sa.select(incidents.c.doc).where(*those, matches(incidents.c.cluster, clusters), active)
    return read_docs(conn, query.order_by(incidents.c.opened), Incident)


def _notes(conn: sa.Connection, incident: str) -> list[Note]:
    query = sa.select(notes.c.at, notes.c.by, notes.c.text).where(notes.c.incident == incident)
    return read_structs(conn, query.order_by(notes.c.id), Note)


def _messages(conn: sa.Connection, incident: str) -> list[SentMessage]:
    """Pages, notes and tickets; a ticket, which has no severity, counts as P3."""
    channels = channel_states(conn, incident)
    found = conn.execute(sa.select(messages).where(messages.c.incident == incident).order_by(messages.c.at))
    return [
        SentMessage(
            **pick(row, "at", "kind", "state", "reference", "page"),
            error=stored_sentence(row.error),
            message=from_stored({"severity": "P3", **row.doc}, Message),
            channels=tuple(channels.get(row.id, ())),
        )
        for row in found
    ]


#: Literal, as in the index: a parameter would not match it.
_fault: sa.ColumnElement[str] = sa.literal_column("(incidents.doc ->> 'fault')", sa.Text)


def may_be_alike(conn: sa.Connection, incident: Incident) -> list[Incident]:
    """The latest incidents of the same fault and of the same node; each query scans one index."""
    alike = [_fault == incident.fault]
    if incident.root.node is not None:
        alike.append(incidents.c.node == incident.root.node)
    query = sa.select(incidents.c.doc).where(incidents.c.cluster == incident.cluster)
    newest = query.order_by(incidents.c.opened.desc()).limit(SIMILAR_MAX)
    return [found for same in alike for found in read_docs(conn, newest.where(same), Incident)]


# --- open incidents, needed by every page: each version of a row is decoded once per process

#: The transaction that wrote the row, which differs after each write.
_version: sa.ColumnElement[str] = sa.literal_column("incidents.xmin::text", sa.Text)

_decode = msgspec.json.Decoder(OpenIncident, dec_hook=read_said).decode

#: One number for all ids and versions, so that 5,000 rows are compared without being fetched.
_digest = sa.func.bit_xor(sa.func.hashtextextended(incidents.c.id + _version, 0))


class OpenIncidents:
    """A cache of the open incidents by cluster. Until something is written, `read` returns the same tuple."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cached: dict[str, _Cached] = {}

    def read(self, conn: sa.Connection, cluster: str) -> tuple[OpenIncident, ...]:
        """Newest first."""
        is_open = [incidents.c.cluster == cluster, incidents.c.state != "resolved"]
        stamp = tuple(conn.execute(sa.select(sa.func.count(), _digest).where(*is_open)).one())
        with self._lock:
            before = self._cached.get(cluster) or _Cached((), {}, ())
        if stamp == before.stamp:
            return before.incidents
        order = incidents.c.opened.desc(), incidents.c.id.desc()
        heads = conn.execute(sa.select(incidents.c.id, _version).where(*is_open).order_by(*order))
        versions = {name: version for name, version in heads}
        by_id = {incident.id: incident for incident in before.incidents}
        by_id |= _read_open(conn, [name for name in versions if before.versions.get(name) != versions[name]])
        # An incident may have been deleted or resolved between the two queries.
        found = (by_id[name] for name in versions if name in by_id)
        still_open = tuple(incident for incident in found if incident.state is not IncidentState.resolved)
        with self._lock:
            self._cached[cluster] = _Cached(stamp, versions, still_open)
        return still_open


class _Cached(NamedTuple):
    stamp: tuple[int, ...]
    versions: dict[str, str]
    incidents: tuple[OpenIncident, ...]


def _read_open(conn: sa.Connection, names: list[str]) -> dict[str, OpenIncident]:
    if not names:
        return {}
    text = sa.cast(incidents.c.doc, sa.Text)
    docs = conn.execute(
        sa.select(text).where(incidents.c.id == sa.any_(sa.literal(names, sa.ARRAY(sa.Text))))
    )
    return {incident.id: incident for incident in map(_decode, docs.scalars())}


def open_at(conn: sa.Connection, cluster: str, at: datetime) -> tuple[OpenIncident, ...]:
    """The incidents that were open at that moment, with the verdicts of then, newest first."""
    of_then = (
        sa.select(verdicts.c.doc)
        .where(verdicts.c.incident == incidents.c.id, verdicts.c.at <= at)
        .order_by(verdicts.c.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    closed = incidents.c.closed
    query = sa.select(sa.cast(incidents.c.doc, sa.Text), of_then["nodes"]).where(
        incidents.c.cluster == cluster, incidents.c.opened <= at, sa.or_(closed.is_(None), closed > at)
    )
    return tuple(
        msgspec.structs.replace(
            _decode(doc), nodes=from_stored(nodes or {}, dict[str, Verdict]), known_bad_in_service=False
        )
        for doc, nodes in conn.execute(query.order_by(incidents.c.opened.desc(), incidents.c.id.desc()))
    )


def parts_of(conn: sa.Connection, incident: str) -> tuple[OpenIncident, ...]:
    """Incidents that were merged into this one, oldest first."""
    docs = conn.execute(
        sa.select(sa.cast(incidents.c.doc, sa.Text))
        .where(incidents.c.state == "resolved", part_of == incident)
        .order_by(incidents.c.opened, incidents.c.id)
    )
    return tuple(map(_decode, docs.scalars()))


# --- verdicts on an incident, a row for each change

VERDICTS_SHOWN = 50


def verdicts_of(conn: sa.Connection, incident: str) -> list[VerdictAt]:
    """The latest verdicts, oldest first."""
    query = sa.select(verdicts.c.at, verdicts.c.doc).where(verdicts.c.incident == incident)
    rows = conn.execute(query.order_by(verdicts.c.id.desc()).limit(VERDICTS_SHOWN)).all()
    return [VerdictAt(at=row.at, verdict=from_stored(row.doc, IncidentVerdict)) for row in reversed(rows)]
