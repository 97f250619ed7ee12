"""The fire drill: a backup of a year's history of 1,250 nodes, and its restore on a machine that has nothing.

    python -m benchmarks.restore [--nodes 1250] [--days 365]

The rows have the numbers and sizes of a real year; their contents are made up, the audit's links too. Prints
sizes and times. A `healer up` afterwards is not part of it: see `benchmarks/start.py`.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa

from healer.adapters.postgres import migrate
from healer.embedded.server_alone import server_alone

#: Rows for each node and day: what a fleet with three incidents a day and 1,000 nodes leaves.
PER_NODE_DAY = {"audit": 1.6, "inbox": 4.0, "states": 2.2, "log": 0.35, "incidents": 0.003}

_TEXT = "repeat(md5(n::text), {})"
_AT = "now() - n * interval '1 second' * :every"
_NODE = "'gpu' || lpad((n % :nodes + 1)::text, 4, '0')"
FILL = {
    "audit": f"""
        WITH made AS (
          INSERT INTO audit_records (cluster, actor, verb, subject, at, data)
          SELECT 'pod1', 'healer', 'run.step_done', 'node/' || {_NODE}, {_AT},
            jsonb_build_object('run', md5(n::text), 'text', {_TEXT.format(4)}, 'attempt', 1, 'step', 'drain')
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
        SELECT 'pod1', {_NODE}, CASE n % 9 WHEN 0 THEN 'drained' ELSE 'in_service' END, '', true, {_AT},
          {_AT} + interval '1 hour' FROM generate_series(1, :count) AS n""",
    "incidents": f"""
        INSERT INTO incidents (id, cluster, rule, state, severity, node, opened, updated, closed, doc)
        SELECT md5('i' || n), 'pod1', 'gpu-lost', 'resolved', 'P2', {_NODE}, {_AT}, {_AT}, {_AT},
          jsonb_build_object('cause', 'permanent', 'fault', 'xid-79', 'hit', '[]'::jsonb, 'evidence',
            (SELECT jsonb_agg(jsonb_build_object('at', now(), 'text',
              md5((n * 100 + e)::text) || {_TEXT.format(4)}))
             FROM generate_series(1, 12) AS e))
        FROM generate_series(1, :count) AS n""",
    "log": f"""
        WITH made AS (
          INSERT INTO runs (id, cluster, playbook, node, incident, state, shadow, created_at, ended_at, doc)
          SELECT md5('r' || n), 'pod1', 'gpu-fatal', {_NODE}, md5('i' || n), 'done', false, {_AT}, {_AT},
            jsonb_build_object('id', md5('r' || n), 'reason', {_TEXT.format(3)}, 'node', {_NODE},
              'playbook', 'gpu-fatal', 'cluster', 'pod1', 'incident', md5('i' || n),
              'state', 'done', 'by', 'healer')
          FROM generate_series(1, greatest(CAST(:count AS int) / 25, 1)) AS n RETURNING id)
        INSERT INTO run_log (run, at, step, event, doc)
        SELECT id, now(), 'step', 'done',
          jsonb_build_object('text', repeat(md5(id || e), 6), 'data', '{{}}'::jsonb)
        FROM made, generate_series(1, 25) AS e""",
}  # fmt: skip


def fill(url: str, nodes: int, days: int) -> None:
    db = sa.create_engine(url)
    migrate.upgrade(db)
    for name, statement in FILL.items():
        kept = min(days, 90) if name == "inbox" else days
        count = int(PER_NODE_DAY[name] * nodes * kept)
        with db.begin() as conn:
            values = {"count": count, "nodes": nodes, "every": kept * 86_400 / count}
            needed = {key: value for key, value in values.items() if f":{key}" in statement}
            conn.execute(sa.text(statement), needed)
        print(f"{name}: {count:,} rows", flush=True)
    with db.connect() as conn:
        size = conn.scalar(sa.text("SELECT pg_database_size(current_database())")) or 0
    print(f"database: {size / 1e9:.2f} GB", flush=True)
    db.dispose()


def timed(what: str, *words: str | Path, **environ: str) -> None:
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "healer", *map(str, words)], check=True, env=os.environ | environ,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="healer-drill-", dir=given.folder))
    folder.chmod(0o711)
    try:
        secret, file = folder / "passphrase", folder / "b.tar"
        secret.write_text("the passphrase of the drill\n")
        with server_alone(folder / "one") as url:
            fill(url, given.nodes, given.days)
            environ = {"HEALER_DATABASE_URL": url, "HEALER_DATA_DIR": str(folder / "one")}
            timed("backup", "backup", file, "--passphrase-file", secret, **environ)
        print(f"file: {file.stat().st_size / 1e6:.0f} MB", flush=True)
        shutil.rmtree(folder / "one")
        timed("restore", "restore", file, "--data-dir", folder / "two", "--passphrase-file", secret)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
