"""A year of a fleet in the database: rows of real shape and number, as a site's detector and worker leave.

One document of each kind is made by the product's own types; PostgreSQL repeats it with other ids and times.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres import migrate
from healer.model import (
    Component,
    Evidence,
    FaultClass,
    Incident,
    IncidentState,
    LogEntry,
    Run,
    RunState,
    Sense,
    Severity,
    StepEvent,
    Verdict,
)
from healer.text import quoted, to_stored

#: Rows for each node and day: what a fleet with 14 incidents a day and 1,000 nodes leaves.
PER_NODE_DAY = {"audit": 1.6, "inbox": 4.0, "states": 2.2, "incidents": 0.014}
#: Lines of the log of an incident's run.
STEPS = 25
#: Signals are kept so long.
INBOX_DAYS = 90

_TEXT = "repeat(md5(n::text), {})"
_AT = "now() - n * interval '1 second' * :every"
_NODE = "'gpu' || lpad((n % :nodes + 1)::text, 5, '0')"
_FILL = {
    "audit": f"""
        WITH made AS (
          INSERT INTO audit_records (cluster, actor, verb, subject, at, data)
          SELECT 'pod1', 'healer', 'run.step_done', 'node/' || {_NODE}, {_AT},
            jsonb_build_object('run', md5('r' || n), 'text', {_TEXT.format(4)}, 'attempt', 1, 'step', 'drain')
          FROM generate_series(:count, 1, -1) AS n RETURNING id)
        INSERT INTO audit_chain (cluster, seq, record, prev, hash)
        SELECT 'pod1', row_number() OVER (ORDER BY id), id,
          sha256(id::text::bytea), sha256((id + 1)::text::bytea)
        FROM made""",
    "inbox": f"""
        INSERT INTO inbox (cluster, kind, node, digest, arrived_at, doc, consumed_at)
        SELECT 'pod1', 'kernel', {_NODE}, sha256(n::text::bytea), {_AT},
          jsonb_build_object('line', {_TEXT.format(6)}, 'boot', md5((n / 100)::text), 'seq', n), now()
        FROM generate_series(1, :count) AS n""",
    "states": f"""
        INSERT INTO node_states (cluster, node, state, held_by, busy, since, until)
        SELECT 'pod1', {_NODE}, CASE n % 9 WHEN 0 THEN 'drained' ELSE 'in_service' END,
          CASE n % 9 WHEN 0 THEN 'healer' ELSE '' END, true, {_AT}, {_AT} + interval '1 hour'
        FROM generate_series(1, :count) AS n""",
    "incidents": f"""
        WITH given AS (
          SELECT n, md5('i' || n) AS id, {_NODE} AS node, {_AT} AS opened,
            CASE n % 4 WHEN 0 THEN 'gpu-degraded' ELSE 'gpu-lost' END AS rule
          FROM generate_series(1, :count) AS n), made AS (
          INSERT INTO incidents (id, cluster, rule, state, severity, node, opened, updated, closed, doc)
          SELECT id, 'pod1', rule, 'resolved', 'P2', node, opened, opened, opened + interval '2 hours',
            CAST(:incident AS jsonb) || jsonb_build_object(
              'id', id, 'rule', rule,
              'root', jsonb_build_object('cluster', 'pod1', 'node', node, 'gpu', n % 8),
              'nodes', jsonb_build_object(node, 'isolate'), 'run', md5('r' || n), 'opened', opened,
              'updated', opened, 'closed', opened + interval '2 hours', 'drained_at', opened,
              'jobs_hit', jsonb_build_array((4711 + n)::text),
              'review', CASE n % 5 WHEN 0 THEN 'true_fault' END)
          FROM given), begun AS (
          INSERT INTO runs (id, cluster, playbook, node, incident, state, shadow, created_at, ended_at, doc)
          SELECT md5('r' || n), 'pod1', 'gpu-fatal', node, id, 'done', false, opened, opened,
            CAST(:run AS jsonb) || jsonb_build_object(
              'id', md5('r' || n), 'node', node, 'incident', id, 'created_at', opened, 'ended_at', opened)
          FROM given RETURNING id, created_at)
        INSERT INTO run_log (run, at, step, event, doc)
        SELECT id, created_at, 'drain', 'done',
          CAST(:entry AS jsonb) || jsonb_build_object('run', id, 'at', created_at)
        FROM begun, generate_series(1, {STEPS})""",
}  # fmt: skip


def fill(engine: sa.Engine, nodes: int, days: int, incidents: int | None = None) -> None:
    """Makes the tables and fills them. `incidents` in all days, else as many as usual."""
    migrate.upgrade(engine)
    documents = {name: _json(one) for name, one in _documents().items()}
    for name, statement in _FILL.items():
        kept = min(days, INBOX_DAYS) if name == "inbox" else days
        count = int(PER_NODE_DAY[name] * nodes * kept)
        if name == "incidents" and incidents is not None:
            count = incidents
        values = documents | {"count": count, "nodes": nodes, "every": kept * 86_400 / count}
        with engine.begin() as conn:
            conn.execute(
                sa.text(statement), {key: value for key, value in values.items() if f":{key}" in statement}
            )
        print(f"{name}: {count:,} rows", flush=True)
    with engine.connect() as conn:
        conn.execution_options(isolation_level="AUTOCOMMIT")
        conn.execute(sa.text("TRUNCATE audit_unsealed"))
        conn.execute(sa.text("ANALYZE"))
        size = conn.scalar(sa.text("SELECT pg_database_size(current_database())")) or 0
    print(f"database: {size / 1e9:.2f} GB", flush=True)


def _json(document: Any) -> str:
    return msgspec.json.encode(document).decode()


def _documents() -> dict[str, Any]:
    """An incident, its run and a line of that run's log."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    root = Component(cluster="pod1", node="gpu00001", gpu=0)
    line = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    seen = [
        Evidence(
            digest=f"{n:064x}", component=root, at=at, text=quoted("GPU fell off the bus"), line=line,
            sense=Sense.kernel,
        )
        for n in range(12)
    ]  # fmt: skip
    incident = Incident(
        id="", cluster="pod1", rule="gpu-lost", fault="xid-79", fault_class=FaultClass.fatal,
        title=quoted("GPU fell off the bus"), root=root, opened=at, updated=at, settle_until=at,
        severity=Severity.P2, state=IncidentState.resolved, nodes={"gpu00001": Verdict.isolate},
        evidence=tuple(seen), evidence_count=len(seen),
    )  # fmt: skip
    run = Run(
        id="", cluster="pod1", playbook="gpu-fatal", state=RunState.done, by="healer",
        reason=quoted("GPU fell off the bus"), created_at=at, rule="gpu-lost",
    )  # fmt: skip
    entry = LogEntry(
        run="", at=at, epoch=1, step="drain", event=StepEvent.done, text=quoted("gpu00001 is drained. " * 6)
    )
    return {"incident": to_stored(incident), "run": to_stored(run), "entry": to_stored(entry)}
