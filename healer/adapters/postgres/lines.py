"""What runs write, many at once: one statement a kind, its rows as one JSON text.

So a step's line costs the same whether one run writes it or fifty, and PostgreSQL plans each statement once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres import audit_rows as audit
from healer.adapters.postgres import inbox, outbox
from healer.model import (
    AuditRecord,
    Command,
    Decision,
    LogEntry,
    Message,
    RemedyUse,
    Run,
    Ticket,
)

_encode = msgspec.json.Encoder().encode

_ENTRIES = sa.text("""
INSERT INTO run_log (run, at, step, event, doc)
SELECT doc->>'run', (doc->>'at')::timestamptz, doc->>'step', doc->>'event', doc
FROM jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY AS given (doc, place) ORDER BY place
""")
_RUNS = sa.text("""
INSERT INTO runs (id, cluster, playbook, node, job, incident, state, shadow, created_at, doc)
SELECT doc->>'id', doc->>'cluster', doc->>'playbook', doc->>'node', doc->>'job', doc->>'incident',
  doc->>'state', (doc->>'shadow')::boolean, (doc->>'created_at')::timestamptz, doc
FROM jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY AS given (doc, place) ORDER BY place
ON CONFLICT (id) DO NOTHING
""")
_DECISIONS = sa.text("""
INSERT INTO decisions (cluster, incident, run, at, outcome, doc)
SELECT doc->>'cluster', doc->>'incident', doc->>'run', (doc->>'at')::timestamptz, doc->>'outcome', doc
FROM jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY AS given (doc, place) ORDER BY place
""")
_REMEDIES = sa.text("""
INSERT INTO remedies (cluster, node, remedy, rule, incident, at)
SELECT :cluster, doc->>'node', doc->>'remedy', doc->>'rule', doc->>'incident', (doc->>'at')::timestamptz
FROM jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY AS given (doc, place) ORDER BY place
""")
_DRAINED = sa.text("""
UPDATE slots SET drained_at = (doc->>'at')::timestamptz
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS given (doc)
WHERE slots.cluster = :cluster AND slots.node = doc->>'node' AND slots.released_at IS NULL
""")
_RELEASED = sa.text("""
UPDATE slots SET released_at = (doc->>'at')::timestamptz, released_why = doc->>'why'
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS given (doc)
WHERE slots.cluster = :cluster AND slots.node = doc->>'node' AND slots.released_at IS NULL
""")
_COMMANDS = sa.text("""
INSERT INTO inbox (cluster, kind, digest, arrived_at, doc)
SELECT doc #>> '{command,cluster}', 'command', decode(doc->>'digest', 'hex'),
  (doc #>> '{command,at}')::timestamptz, doc->'command'
FROM jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY AS given (doc, place) ORDER BY place
ON CONFLICT (digest) DO NOTHING
""")


@dataclass
class Lines:
    """What one transaction of a run writes beside the run itself."""

    entries: list[LogEntry] = field(default_factory=list)
    audits: list[AuditRecord] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    remedies: list[RemedyUse] = field(default_factory=list)
    #: Nodes whose drain by us was read back.
    drained: list[tuple[str, datetime]] = field(default_factory=list)
    #: Slots given back: node, when, why.
    released: list[tuple[str, datetime, str]] = field(default_factory=list)
    #: For the detector, each with the name under which it comes once.
    commands: list[tuple[Command, str]] = field(default_factory=list)
    messages: list[Message | Ticket] = field(default_factory=list)

    def then(self, later: "Lines") -> "Lines":
        """Both, these first."""
        both = {one.name: getattr(self, one.name) + getattr(later, one.name) for one in fields(self)}
        return Lines(**both)


def store(conn: sa.Connection, cluster: str, many: Sequence[Lines], *, at: datetime, has_sink: bool) -> None:
    """Writes these in the caller's transaction, each kind in the order of `many`."""
    write_entries(conn, [one for lines in many for one in lines.entries])
    write_decisions(conn, [one for lines in many for one in lines.decisions])
    audit.append_many(conn, [one for lines in many for one in lines.audits])
    _run(conn, _REMEDIES, [one for lines in many for one in lines.remedies], cluster=cluster)
    drained = [{"node": node, "at": moment} for lines in many for node, moment in lines.drained]
    _run(conn, _DRAINED, drained, cluster=cluster)
    released = [
        {"node": node, "at": when, "why": why} for lines in many for node, when, why in lines.released
    ]
    _run(conn, _RELEASED, released, cluster=cluster)
    put_commands(conn, [one for lines in many for one in lines.commands])
    for message in (one for lines in many for one in lines.messages):
        outbox.queue(conn, message, at=at, has_sink=has_sink)


def write_runs(conn: sa.Connection, runs: Sequence[Run]) -> None:
    """Inserts them; one of the same id again is nothing. IntegrityError when a node has a running run."""
    _run(conn, _RUNS, runs)


def write_entries(conn: sa.Connection, entries: Sequence[LogEntry]) -> None:
    _run(conn, _ENTRIES, entries)


def write_decisions(conn: sa.Connection, decisions: Sequence[Decision]) -> None:
    _run(conn, _DECISIONS, decisions)


def put_commands(conn: sa.Connection, commands: Sequence[tuple[Command, str]]) -> None:
    """Puts commands into the inbox; one of the same name again is nothing. The NOTIFY leaves with the
    commit."""
    if commands:
        rows = [{"digest": inbox.command_digest(one, name).hex(), "command": one} for one, name in commands]
        _run(conn, _COMMANDS, rows)
        conn.execute(inbox.TELL)


def _run(conn: sa.Connection, statement: sa.TextClause, rows: Sequence[object], **given: str) -> None:
    if rows:
        conn.execute(statement, {"rows": _encode(rows).decode(), **given})
