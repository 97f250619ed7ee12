"""Incidents, and all that hangs on one of them."""

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
    read_doc,
    read_docs,
    read_page,
    read_structs,
    reading,
)
from healer.adapters.postgres.evidence import collected_for
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.outbox import channels_told
from healer.adapters.postgres.run_rows import decisions_where, records_of
from healer.adapters.postgres.tables import (
    decisions,
    findings,
    incidents,
    messages,
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
    VerdictAt,
)
from healer.model.incident import SIMILAR_MAX
from healer.ports.answers import IncidentRows, Note, OpenIncident, Page, SentMessage
from healer.ports.queries import IncidentQuery

#: The shortest beginning of an incident's id that may stand for it (what Slurm's reason shows).
SHORT_ID = 8


class PostgresIncidents:
    """`healer.ports.queries.IncidentQueries`."""

    def __init__(self, engine: sa.Engine, snapshots: PostgresSnapshots) -> None:
        self._engine, self._snapshots = engine, snapshots

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
            where.append(_holds_text(query.text))
        if query.closed_since is not None:
            where.append(incidents.c.closed >= query.closed_since)
        with reading(self._engine) as conn:
            return incident_page(conn, where, limit, cursor)

    def named(self, ids: Sequence[str]) -> list[Incident]:
        with reading(self._engine) as conn:
            rows = conn.execute(sa.select(incidents.c.id, incidents.c.doc).where(incidents.c.id.in_(ids)))
            docs = {row.id: row.doc for row in rows}
        return [msgspec.convert(docs[name], Incident) for name in ids if name in docs]

    def find(self, incident: str) -> Incident | None:
        with reading(self._engine) as conn:
            return _incident_named(conn, incident)

    def rows(self, incident: str) -> IncidentRows | None:
        with reading(self._engine) as conn:
            found = _incident_named(conn, incident)
            if found is None:
                return None
            judged = decisions_where(conn, decisions.c.incident == found.id)
            return IncidentRows(
                incident=found,
                verdicts=tuple(verdicts_of(conn, found.id)),
                findings=tuple(_findings_of(conn, found.id)),
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
    doc = sa.select(incidents.c.doc)
    found = read_doc(conn, doc.where(incidents.c.id == name), Incident)
    if found is None and len(name) >= SHORT_ID and name.isalnum():
        some = read_docs(conn, doc.where(begins(incidents.c.id, name)).limit(2), Incident)
        return some[0] if len(some) == 1 else None
    return found


def incident_page(
    conn: sa.Connection, where: Sequence[sa.ColumnElement[bool]], limit: int, cursor: str | None = None
) -> Page[Incident]:
    query = sa.select(incidents.c.opened, incidents.c.id, incidents.c.doc).where(*where)
    rows, more = read_page(conn, query, (incidents.c.opened, incidents.c.id), limit, cursor)
    return Page(items=[msgspec.convert(row.doc, Incident) for row in rows], next_cursor=more)


def about_node(node: str) -> sa.ColumnElement[bool]:
    """Incidents that have their root on the node or speak of it."""
    return sa.or_(incidents.c.node == node, incidents.c.doc["nodes"].has_key(node))


def _holds_text(text: str) -> sa.ColumnElement[bool]:
    pattern, doc = contains(text), incidents.c.doc
    parts = (doc[name].astext for name in ("title", "fault", "nodes", "jobs_hit", "root"))
    places = (place.ilike(pattern, escape="\\") for place in (incidents.c.rule, *parts))
    return sa.or_(begins(incidents.c.id, text), *places)


def watched(
    conn: sa.Connection, clusters: Sequence[str] | None, now: datetime, *those: sa.ColumnElement[bool]
) -> list[Incident]:
    """Open incidents, and those whose node is still on probation, the oldest first."""
    on_probation = sa.and_(
        incidents.c.closed > now - PROBATION, incidents.c.doc["probation_until"].astext > now.isoformat()
    )
    mine = matches(incidents.c.cluster, clusters), sa.or_(incidents.c.state != "resolved", on_probation)
    query = sa.select(incidents.c.doc).where(*those, *mine).order_by(incidents.c.opened)
    return read_docs(conn, query, Incident)


def _findings_of(conn: sa.Connection, incident: str) -> list[Finding]:
    mine = sa.select(findings.c.doc).where(findings.c.incident == incident)
    return read_docs(conn, mine.order_by(findings.c.id).limit(200), Finding)


def _notes(conn: sa.Connection, incident: str) -> list[Note]:
    mine = sa.select(notes.c.at, notes.c.by, notes.c.text).where(notes.c.incident == incident)
    return read_structs(conn, mine.order_by(notes.c.id), Note)


def _messages(conn: sa.Connection, incident: str) -> list[SentMessage]:
    """Pages, notes and tickets alike: a ticket has no severity of its own."""
    channels = channels_told(conn, incident)
    found = conn.execute(sa.select(messages).where(messages.c.incident == incident).order_by(messages.c.at))
    return [
        SentMessage(
            **pick(row, "at", "kind", "state", "error", "reference", "page"),
            message=msgspec.convert({"severity": "P3", **row.doc}, Message),
            channels=tuple(channels.get(row.id, ())),
        )
        for row in found
    ]


#: Word for word as the index has it: a name that is a parameter would miss it.
_fault: sa.ColumnElement[str] = sa.literal_column("(incidents.doc ->> 'fault')", sa.Text)


def may_be_alike(conn: sa.Connection, incident: Incident) -> list[Incident]:
    """Two walks down an index."""
    alike = [_fault == incident.fault]
    if incident.root.node is not None:
        alike.append(incidents.c.node == incident.root.node)
    mine = sa.select(incidents.c.doc).where(incidents.c.cluster == incident.cluster)
    newest = mine.order_by(incidents.c.opened.desc()).limit(SIMILAR_MAX)
    return [found for same in alike for found in read_docs(conn, newest.where(same), Incident)]


# --- open ones, as every page needs them: each is decoded once per version of its row and process

#: The transaction that wrote the row: another one after each write.
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
            before = self._known.get(cluster) or _Known((), {}, ())
        if stamp == before.stamp:
            return before.found
        order = incidents.c.opened.desc(), incidents.c.id.desc()
        heads = conn.execute(sa.select(incidents.c.id, _version).where(*mine).order_by(*order))
        versions = {name: version for name, version in heads}
        by_id = {incident.id: incident for incident in before.found}
        by_id |= _written(conn, [name for name in versions if before.versions.get(name) != versions[name]])
        # One that was resolved between two of these looks is gone already.
        found = (by_id[name] for name in versions if name in by_id)
        now = _Known(
            stamp,
            versions,
            tuple(incident for incident in found if incident.state is not IncidentState.resolved),
        )
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
    return {incident.id: incident for incident in map(_decode, docs.scalars())}


def parts_of(conn: sa.Connection, incident: str) -> tuple[OpenIncident, ...]:
    """Those that ended as a part of this one, the oldest first."""
    docs = conn.execute(
        sa.select(sa.cast(incidents.c.doc, sa.Text))
        .where(incidents.c.state == "resolved", part_of == incident)
        .order_by(incidents.c.opened, incidents.c.id)
    )
    return tuple(map(_decode, docs.scalars()))


# --- what healer held to be true of an incident, a row for each change

#: The newest of them that an answer shows.
VERDICTS_SHOWN = 50


def add_verdict(conn: sa.Connection, incident: str, verdict: IncidentVerdict, at: datetime) -> None:
    conn.execute(sa.insert(verdicts).values(incident=incident, at=at, doc=msgspec.to_builtins(verdict)))


def verdicts_of(conn: sa.Connection, incident: str) -> list[VerdictAt]:
    """Oldest first."""
    mine = sa.select(verdicts.c.at, verdicts.c.doc).where(verdicts.c.incident == incident)
    rows = conn.execute(mine.order_by(verdicts.c.id.desc()).limit(VERDICTS_SHOWN)).all()
    return [VerdictAt(at=row.at, verdict=msgspec.convert(row.doc, IncidentVerdict)) for row in reversed(rows)]
