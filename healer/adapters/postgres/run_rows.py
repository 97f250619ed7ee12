"""Runs with their logs and decisions: written in batches, and read for pages."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime

import msgspec
import psycopg
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from healer.adapters.postgres import audit_rows, inbox, outbox
from healer.adapters.postgres.engine import Writes, matches, pick, read_page, reading, row_named, write_docs
from healer.adapters.postgres.tables import decisions, runs
from healer.model import (
    ENDED_RUN_STATES,
    AuditRecord,
    Command,
    Decision,
    LogEntry,
    Message,
    RemedyUse,
    Ruleset,
    Run,
    RunState,
    Slot,
    Ticket,
)
from healer.ports.answers import Page, RunRecord
from healer.ports.commanding import NodeTaken
from healer.ports.queries import RunQuery
from healer.text import from_stored, to_stored

#: As in the index `runs_active`.
ENDED = ["done", "undone", "rejected", "cancelled"]
#: Since when a run waits for a worker.
DUE_SINCE = sa.func.coalesce(runs.c.wake_at, runs.c.lease_until, runs.c.created_at)


def is_due(now: datetime) -> tuple[sa.ColumnElement[bool], ...]:
    """Of a run that waits for a worker."""
    free = sa.or_(runs.c.lease_until.is_(None), runs.c.lease_until <= now)
    ready = sa.or_(runs.c.wake_at.is_(None), runs.c.wake_at <= now)
    return runs.c.state == "running", free, ready


_ENTRIES = sa.text("""
INSERT INTO run_log (run, at, step, event, doc)
SELECT doc->>'run', (doc->>'at')::timestamptz, doc->>'step', doc->>'event', doc
FROM jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY AS given (doc, place) ORDER BY place
""")
RUNS = sa.text("""
INSERT INTO runs (id, cluster, playbook, node, job, incident, state, shadow, created_at, doc)
SELECT doc->>'id', doc->>'cluster', doc->>'playbook', doc->>'node', doc->>'job', doc->>'incident',
  doc->>'state', (doc->>'shadow')::boolean, (doc->>'created_at')::timestamptz, doc
FROM jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY AS given (doc, place) ORDER BY place
ON CONFLICT (id) DO NOTHING
""")
DECISIONS = sa.text("""
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

#: Grants one slot per node; the rows name each node once. A run takes over the slot of a run that has ended
#: or has not drained the node yet; in the latter case its time begins again.
GRANT = sa.text("""
INSERT INTO slots (cluster, node, incident, run, granted_at, unusable, drained_at)
SELECT doc->>'cluster', doc->>'node', doc->>'incident', doc->>'run', (doc->>'granted_at')::timestamptz,
  (doc->>'unusable')::boolean, (doc->>'drained_at')::timestamptz
FROM jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY AS given (doc, place) ORDER BY place
ON CONFLICT (cluster, node) WHERE released_at IS NULL DO UPDATE
SET run = excluded.run, incident = coalesce(excluded.incident, slots.incident),
  granted_at = CASE WHEN slots.drained_at IS NULL THEN excluded.granted_at ELSE slots.granted_at END,
  unusable = CASE WHEN slots.drained_at IS NULL THEN excluded.unusable
    ELSE slots.unusable OR slots.run = excluded.run AND excluded.unusable END
WHERE slots.drained_at IS NULL OR slots.run = excluded.run
  OR (SELECT state FROM runs WHERE id = slots.run) = ANY(:ended)
""")


@dataclass
class Lines:
    """The rows that one transaction of a run writes, apart from the run itself."""

    entries: list[LogEntry] = field(default_factory=list)
    audits: list[AuditRecord] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    remedies: list[RemedyUse] = field(default_factory=list)
    granted: list[Slot] = field(default_factory=list)
    #: Nodes whose drain was confirmed, and when.
    drained: list[tuple[str, datetime]] = field(default_factory=list)
    #: Released slots: node, time, reason.
    released: list[tuple[str, datetime, str]] = field(default_factory=list)
    #: Commands to the detector, each with the request name under which it is stored once.
    commands: list[tuple[Command, str]] = field(default_factory=list)
    messages: list[Message | Ticket] = field(default_factory=list)

    def then(self, later: "Lines") -> "Lines":
        """Both, `self` first."""
        both = {part.name: getattr(self, part.name) + getattr(later, part.name) for part in fields(self)}
        return Lines(**both)


def store(conn: sa.Connection, cluster: str, many: Sequence[Lines], *, at: datetime, has_sink: bool) -> None:
    """Writes these in the caller's transaction, each kind of row in the order of `many`."""
    writes = Writes()
    writes.add(_ENTRIES, [entry for lines in many for entry in lines.entries])
    writes.add(DECISIONS, [decision for lines in many for decision in lines.decisions])
    records = [audit_rows.row_of(record) for lines in many for record in lines.audits]
    writes.add(audit_rows.APPEND, records)
    writes.add(_REMEDIES, [use for lines in many for use in lines.remedies], cluster=cluster)
    drained = [{"node": node, "at": when} for lines in many for node, when in lines.drained]
    writes.add(_DRAINED, drained, cluster=cluster)
    granted = [slot for lines in many for slot in lines.granted]
    if {slot.node for slot in granted} & {row["node"] for row in drained}:
        writes.send(conn)  # one statement must not change one slot twice
    writes.add(GRANT, granted, ended=ENDED)
    writes.send(conn)
    released = [
        {"node": node, "at": when, "why": str(why)} for lines in many for node, when, why in lines.released
    ]
    write_docs(conn, _RELEASED, released, cluster=cluster)  # of a slot that this may have drained
    inbox.put_commands(conn, [command for lines in many for command in lines.commands])
    for lines in many:
        for message in lines.messages:
            outbox.queue(conn, message, at=at, has_sink=has_sink)


def write_runs(conn: sa.Connection, runs: Sequence[Run]) -> None:
    """Inserts runs; an id that exists is skipped. Raises NodeTaken if a node has a running run."""
    with node_taken(runs[0].node or "" if len(runs) == 1 else ""):
        write_docs(conn, RUNS, runs)


def write_entries(conn: sa.Connection, entries: Sequence[LogEntry]) -> None:
    write_docs(conn, _ENTRIES, entries)


def set_run_state(
    conn: sa.Connection, run: str, state: RunState, *, why: str, at: datetime, **change: object
) -> Run:
    """Sets the state in the row and the document; a worker that holds the run loses its claim. Returns the
    changed run, or the unchanged one if it has already ended.

    The lease stays: a call of that worker may be under way, and the next worker waits for its end.
    """
    doc = conn.execute(sa.select(runs.c.doc).where(runs.c.id == run).with_for_update()).scalar_one()
    before = from_stored(doc, Run)
    if before.state in ENDED_RUN_STATES:
        return before
    ended = at if state in ENDED_RUN_STATES else None
    change = {"question": None, **change}
    changed = msgspec.structs.replace(before, state=state, ended_at=ended, **change)
    values = {
        "state": state,
        "ended_at": ended,
        "wake_at": None,
        "epoch": runs.c.epoch + 1,
        "doc": to_stored(msgspec.structs.replace(changed, reason=changed.reason or why)),
    }
    with node_taken(before.node or ""):
        conn.execute(sa.update(runs).where(runs.c.id == run).values(values))
    return changed


@contextmanager
def node_taken(node: str) -> Iterator[None]:
    """Raises NodeTaken if the unique index refuses a second running run on the node."""
    try:
        yield
    except IntegrityError as error:
        cause = error.orig
        if isinstance(cause, psycopg.Error) and cause.diag.constraint_name == "runs_one_per_node":
            raise NodeTaken(node) from error
        raise


# --- read for pages

_RUN = (runs.c.doc, runs.c.state, runs.c.epoch, runs.c.wake_at, runs.c.lease_until, runs.c.ended_at)
_LOGS = sa.text("SELECT run, seq, doc FROM run_log WHERE run = ANY(:ids) ORDER BY seq")
#: States of runs that need a person.
_ASKING = ("waiting_approval", "proposed", "stuck")
#: Limited separately: in a storm, many held runs must not hide those that need a person.
_ASKING_SHOWN, _HELD_SHOWN = 200, 50


class PostgresRuns:
    """`healer.ports.queries.RunQueries`."""

    def __init__(self, engine: sa.Engine, rules: Callable[[], Ruleset]) -> None:
        self._engine, self._rules = engine, rules

    def page(self, query: RunQuery, *, limit: int, cursor: str | None = None) -> Page[Run]:
        where = [
            matches(runs.c.cluster, query.clusters),
            matches(runs.c.state, query.states or None),
            matches(runs.c.node, query.node or None),
            matches(runs.c.incident, query.incident or None),
            matches(runs.c.playbook, query.playbook or None),
        ]
        with reading(self._engine) as conn:
            return run_page(conn, where, limit, cursor)

    def find(self, run: str) -> Run | None:
        with reading(self._engine) as conn:
            return _run_named(conn, run)

    def record(self, run: str) -> RunRecord | None:
        with reading(self._engine) as conn:
            found = _run_named(conn, run)
            if found is None:
                return None
            judged = decisions_where(conn, decisions.c.run == found.id)
            log = logs_of(conn, [found.id])[found.id]
        playbook = self._rules().playbooks.get(found.playbook)
        plan = tuple(step.title or step.id for step in playbook.steps) if playbook else ()
        return RunRecord(run=found, log=tuple(log), decisions=tuple(judged), plan=plan)

    def at_work(self, ids: Sequence[str]) -> dict[str, Run]:
        """By incident: its active run, rather not a shadow run."""
        wanted = (
            sa.select(*_RUN)
            .where(runs.c.incident.in_(ids), runs.c.state.not_in(ENDED))
            .order_by(runs.c.shadow.desc(), runs.c.created_at, runs.c.id)
        )
        with reading(self._engine) as conn:
            return {run.incident: run for run in map(run_of, conn.execute(wanted)) if run.incident}


def run_page(
    conn: sa.Connection, where: Sequence[sa.ColumnElement[bool]], limit: int, cursor: str | None = None
) -> Page[Run]:
    query = sa.select(runs.c.created_at, runs.c.id, *_RUN).where(*where)
    rows, more = read_page(conn, query, (runs.c.created_at, runs.c.id), limit, cursor)
    return Page(items=[run_of(row) for row in rows], next_cursor=more)


def asking_runs(conn: sa.Connection, cluster: str) -> list[Run]:
    """Runs that need a person, and held runs, oldest first."""
    asking = sa.or_(
        runs.c.state.in_(_ASKING),
        sa.and_(runs.c.state.in_(("waiting", "running")), runs.c.doc["question"].astext.is_not(None)),
    )
    of_cluster = runs.c.cluster == cluster
    asked = run_page(conn, [of_cluster, asking], _ASKING_SHOWN).items
    held = run_page(conn, [of_cluster, runs.c.state == "held"], _HELD_SHOWN).items
    return sorted([*asked, *held], key=lambda run: (run.created_at, run.id))


def run_of(row: sa.Row) -> Run:
    """The run in a row. Claims update the columns only, so these override the document."""
    columns = pick(row, "state", "epoch", "wake_at", "lease_until", "ended_at")
    return from_stored(row.doc | columns, Run)


def locked_run(conn: sa.Connection, cluster: str, run: str) -> Run | None:
    query = sa.select(*_RUN).where(runs.c.cluster == cluster, runs.c.id == run)
    row = conn.execute(query.with_for_update()).first()
    return None if row is None else run_of(row)


def _run_named(conn: sa.Connection, run: str) -> Run | None:
    row = row_named(conn, sa.select(*_RUN), runs.c.id, run)
    return None if row is None else run_of(row)


def records_of(conn: sa.Connection, incident: str, judged: Sequence[Decision]) -> list[RunRecord]:
    """The runs of an incident, oldest first; `judged`: its decisions."""
    rows = conn.execute(
        sa.select(*_RUN).where(runs.c.incident == incident).order_by(runs.c.created_at, runs.c.id)
    )
    found = [run_of(row) for row in rows]
    logs = logs_of(conn, [run.id for run in found])
    return [
        RunRecord(
            run=run,
            log=tuple(logs[run.id]),
            decisions=tuple(decision for decision in judged if decision.run == run.id),
        )
        for run in found
    ]


def logs_of(conn: sa.Connection, names: Sequence[str]) -> dict[str, list[LogEntry]]:
    """By run: its log, oldest first."""
    logs: dict[str, list[LogEntry]] = {name: [] for name in names}
    for run, seq, doc in conn.execute(_LOGS, {"ids": list(names)}) if names else ():
        logs[run].append(log_entry(seq, doc))
    return logs


def log_entry(seq: int, doc: object) -> LogEntry:
    return msgspec.structs.replace(from_stored(doc, LogEntry), seq=seq)


def decisions_where(conn: sa.Connection, where: sa.ColumnElement[bool]) -> list[Decision]:
    """Oldest first, 200 at most."""
    rows = conn.execute(
        sa.select(decisions.c.doc, decisions.c.run).where(where).order_by(decisions.c.id.desc()).limit(200)
    )
    found = [msgspec.structs.replace(from_stored(row.doc, Decision), run=row.run) for row in rows]
    return found[::-1]
