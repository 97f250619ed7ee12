"""The queries that both the API and the pages read by: rows in, nouns out."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres import paging
from healer.adapters.postgres.tables import (
    audit_chain,
    audit_records,
    decisions,
    findings,
    incidents,
    run_log,
    runs,
    snapshots,
)
from healer.incidents.lifecycle import PROBATION
from healer.incidents.similar import MAY_BE_ALIKE, similar_to
from healer.model import (
    ENDED_RUN_STATES,
    AuditRecord,
    Decision,
    Finding,
    Incident,
    LogEntry,
    Run,
    Similar,
    SlurmSnapshot,
    StepEvent,
    Verb,
)

#: The shortest beginning of an incident's id that may stand for it (what Slurm's reason shows).
SHORT_ID = 8


def cluster_names(conn: sa.Connection) -> list[str]:
    return list(conn.execute(sa.select(snapshots.c.cluster).order_by(snapshots.c.cluster)).scalars())


def incident_named(conn: sa.Connection, name: str) -> Incident | None:
    """By id, or by its first 8 or more characters if only one fits."""
    doc = conn.execute(sa.select(incidents.c.doc).where(incidents.c.id == name)).scalar()
    if doc is None and len(name) >= SHORT_ID and name.isalnum():
        found = conn.execute(
            sa.select(incidents.c.doc).where(incidents.c.id.startswith(name, autoescape=True)).limit(2)
        )
        docs = found.scalars().all()
        doc = docs[0] if len(docs) == 1 else None
    return None if doc is None else msgspec.convert(doc, Incident)


def incidents_named(conn: sa.Connection, ids: Sequence[str]) -> list[Incident]:
    """In the order of the ids, without those that are gone."""
    rows = conn.execute(sa.select(incidents.c.id, incidents.c.doc).where(incidents.c.id.in_(ids)))
    docs = {row.id: row.doc for row in rows}
    return [msgspec.convert(docs[name], Incident) for name in ids if name in docs]


def incident_page(
    conn: sa.Connection, where: Sequence[sa.ColumnElement[bool]], limit: int, cursor: str | None
) -> tuple[list[Incident], str | None]:
    statement = sa.select(incidents.c.opened, incidents.c.id, incidents.c.doc).where(*where)
    statement = paging.after(statement, incidents.c.opened, incidents.c.id, cursor).limit(limit + 1)
    rows = conn.execute(statement).all()
    more = paging.encode(rows[limit - 1].opened, rows[limit - 1].id) if len(rows) > limit else None
    return [msgspec.convert(row.doc, Incident) for row in rows[:limit]], more


def about_node(node: str) -> sa.ColumnElement[bool]:
    """Incidents that have their root on the node or speak of it."""
    return sa.or_(incidents.c.node == node, incidents.c.doc["nodes"].has_key(node))


def holds_text(text: str) -> sa.ColumnElement[bool]:
    pattern = paging.contains(text)
    doc = incidents.c.doc
    places = [
        incidents.c.rule,
        doc["title"].astext,
        doc["fault"].astext,
        doc["nodes"].astext,
        doc["jobs_hit"].astext,
        doc["root"].astext,
    ]
    return sa.or_(
        incidents.c.id.startswith(text, autoescape=True),
        *(place.ilike(pattern, escape="\\") for place in places),
    )


def run_page(
    conn: sa.Connection, where: Sequence[sa.ColumnElement[bool]], limit: int, cursor: str | None
) -> tuple[list[Run], str | None]:
    statement = sa.select(runs.c.created_at, runs.c.id, *_RUN).where(*where)
    statement = paging.after(statement, runs.c.created_at, runs.c.id, cursor).limit(limit + 1)
    rows = conn.execute(statement).all()
    more = paging.encode(rows[limit - 1].created_at, rows[limit - 1].id) if len(rows) > limit else None
    return [run_of(row) for row in rows[:limit]], more


_RUN = (runs.c.doc, runs.c.state, runs.c.epoch, runs.c.wake_at, runs.c.lease_until, runs.c.ended_at)


def run_of(row: sa.Row) -> Run:
    """The columns are what the claims write; they stand above the document."""
    run = msgspec.convert(row.doc, Run)
    return msgspec.convert(
        msgspec.to_builtins(run)
        | {
            "state": row.state,
            "epoch": row.epoch,
            "wake_at": row.wake_at,
            "lease_until": row.lease_until,
            "ended_at": row.ended_at,
        },
        Run,
    )


def run_named(conn: sa.Connection, run: str) -> Run | None:
    row = conn.execute(sa.select(*_RUN).where(runs.c.id == run)).first()
    return None if row is None else run_of(row)


def runs_of(conn: sa.Connection, incident: str) -> list[Run]:
    """Oldest first."""
    rows = conn.execute(
        sa.select(*_RUN).where(runs.c.incident == incident).order_by(runs.c.created_at, runs.c.id)
    )
    return [run_of(row) for row in rows]


def at_work(conn: sa.Connection, ids: Sequence[str]) -> dict[str, Run]:
    """By incident: the newest run that has not ended; one that acts stands before one that only shows."""
    rows = conn.execute(
        sa.select(*_RUN)
        .where(runs.c.incident.in_(ids), runs.c.state.not_in(list(ENDED_RUN_STATES)))
        .order_by(runs.c.shadow.desc(), runs.c.created_at, runs.c.id)
    )
    return {run.incident: run for run in map(run_of, rows) if run.incident}


def logs_of(conn: sa.Connection, names: Sequence[str]) -> dict[str, list[LogEntry]]:
    """run -> its log, oldest first."""
    logs: dict[str, list[LogEntry]] = {name: [] for name in names}
    if names:
        rows = conn.execute(
            sa.select(run_log.c.seq, run_log.c.run, run_log.c.doc)
            .where(run_log.c.run.in_(names))
            .order_by(run_log.c.seq)
        )
        for row in rows:
            logs[row.run].append(msgspec.structs.replace(msgspec.convert(row.doc, LogEntry), seq=row.seq))
    return logs


def findings_of(conn: sa.Connection, incident: str) -> list[Finding]:
    rows = conn.execute(
        sa.select(findings.c.doc).where(findings.c.incident == incident).order_by(findings.c.id).limit(200)
    )
    return [msgspec.convert(doc, Finding) for doc in rows.scalars()]


def decisions_where(conn: sa.Connection, where: sa.ColumnElement[bool]) -> list[Decision]:
    """Oldest first, 200 at most."""
    rows = conn.execute(
        sa.select(decisions.c.doc, decisions.c.run).where(where).order_by(decisions.c.id.desc()).limit(200)
    )
    found = [msgspec.structs.replace(msgspec.convert(row.doc, Decision), run=row.run) for row in rows]
    return found[::-1]


#: Word for word as the index has it: a name that is a parameter would miss it.
_fault: sa.ColumnElement[str] = sa.literal_column("(incidents.doc ->> 'fault')", sa.Text)


def similar_of(conn: sa.Connection, incident: Incident, snapshot: SlurmSnapshot | None) -> list[Similar]:
    """Up to five others, as `healer.incidents.similar` ranks them: two walks down an index."""
    nodes = snapshot.nodes if snapshot is not None else {}
    alike = [_fault == incident.fault]
    if incident.root.node is not None:
        alike.append(incidents.c.node == incident.root.node)
    docs = [
        doc
        for same in alike
        for doc in conn.execute(
            sa.select(incidents.c.doc)
            .where(incidents.c.cluster == incident.cluster, same)
            .order_by(incidents.c.opened.desc())
            .limit(MAY_BE_ALIKE)
        ).scalars()
    ]
    return similar_to(
        incident,
        [msgspec.convert(doc, Incident) for doc in docs],
        lambda node: nodes[node].gpu_model if node in nodes else "",
        lambda names: _cures_of(conn, names),
    )


def _cures_of(conn: sa.Connection, names: Sequence[str]) -> dict[str, list[Verb]]:
    """By incident: the verbs that its runs did, oldest first."""
    verb = run_log.c.doc["data"]["verb"].astext
    done = conn.execute(
        sa.select(runs.c.incident, verb.label("verb"))
        .join(run_log, run_log.c.run == runs.c.id)
        .where(
            runs.c.incident.in_(names),
            runs.c.shadow.is_(False),
            run_log.c.event == str(StepEvent.done),
            verb.is_not(None),
        )
        .order_by(run_log.c.seq)
    )
    found: dict[str, list[Verb]] = {}
    for row in done:
        found.setdefault(row.incident, []).append(Verb(row.verb))
    return found


def audit_page(
    conn: sa.Connection, where: Sequence[sa.ColumnElement[bool]], limit: int, cursor: str | None
) -> tuple[list[AuditRecord], str | None]:
    """Newest first, with the place in the chain where there is one."""
    statement = (
        sa.select(audit_records, audit_chain.c.seq, audit_chain.c.prev, audit_chain.c.hash)
        .outerjoin(audit_chain, audit_chain.c.record == audit_records.c.id)
        .where(*where)
        .order_by(audit_records.c.id.desc())
        .limit(limit + 1)
    )
    if cursor is not None:
        (last,) = paging.decode(cursor, tuple[int])
        statement = statement.where(audit_records.c.id < min(last, 2**63 - 1))
    rows = conn.execute(statement).all()
    more = paging.encode(rows[limit - 1].id) if len(rows) > limit else None
    return [_record(row) for row in rows[:limit]], more


def _record(row: Any) -> AuditRecord:
    return AuditRecord(
        cluster=row.cluster,
        at=row.at,
        actor=row.actor,
        verb=row.verb,
        subject=row.subject,
        data=row.data,
        id=row.id,
        seq=row.seq,
        prev=None if row.prev is None else bytes(row.prev).hex(),
        hash=None if row.hash is None else bytes(row.hash).hex(),
    )


def begins(column: sa.Column, text: str) -> sa.ColumnElement[bool]:
    return column.startswith(text, autoescape=True)


def watched(conn: sa.Connection, clusters: Sequence[str] | None, now: datetime) -> list[Incident]:
    """Open incidents, and those whose node is still on probation."""
    where = [
        sa.or_(
            incidents.c.state != "resolved",
            sa.and_(
                incidents.c.closed > now - PROBATION,
                incidents.c.doc["probation_until"].astext > now.isoformat(),
            ),
        )
    ]
    if clusters is not None:
        where.append(incidents.c.cluster.in_(clusters))
    rows = conn.execute(sa.select(incidents.c.doc).where(*where).order_by(incidents.c.opened))
    return [msgspec.convert(doc, Incident) for doc in rows.scalars()]
