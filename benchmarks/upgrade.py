"""How long an upgrade takes on a year's history of 1,250 nodes, and how long it keeps writers waiting.

    python -m benchmarks.upgrade [--nodes 1250] [--days 365] [--from 0001]

The database is filled with this version's tables and taken back to a revision; then it is upgraded while a
signal is stored every 10 ms, as the API does, and an incident is written, as the detector does. Prints the
plan, the time of each migration that takes longer than 20 ms, and the longest wait of each writer.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import sqlalchemy as sa
from alembic import command

from benchmarks._history import fill
from healer.adapters.postgres import migrate
from healer.embedded.server_alone import server_alone
from tests.support.wait import in_background

EVERY_S, SHOWN_S = 0.01, 0.02
SIGNAL = """
    INSERT INTO inbox (cluster, kind, node, digest, arrived_at, doc)
    VALUES ('pod1', 'kernel', 'gpu0001', sha256(random()::text::bytea), now(), '{}')
"""
INCIDENT = "UPDATE incidents SET updated = now() WHERE id = md5('i1')"


class Writer:
    """Writes one statement at a time, and keeps the longest wait in seconds."""

    def __init__(self, engine: sa.Engine, statement: str) -> None:
        self.longest_s, self.writes = 0.0, 0
        self._engine, self._statement = engine, sa.text(statement)

    def write(self) -> None:
        began = time.monotonic()
        with self._engine.begin() as conn:
            conn.execute(self._statement)
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        self.writes += 1


@contextmanager
def writing(engine: sa.Engine) -> Iterator[dict[str, Writer]]:
    writers = {"signals": Writer(engine, SIGNAL), "incidents": Writer(engine, INCIDENT)}
    with ExitStack() as stack:
        for writer in writers.values():
            stack.enter_context(in_background(writer.write, EVERY_S))
        time.sleep(1)
        yield writers


class Watch:
    """When the database was first seen at each revision."""

    def __init__(self, engine: sa.Engine) -> None:
        self.seen: dict[str, float] = {}
        self._engine = engine

    def look(self) -> None:
        with self._engine.connect() as conn:
            self.seen.setdefault(str(migrate.current(conn)), time.monotonic())

    def took(self) -> dict[str, float]:
        times = sorted(self.seen.items(), key=lambda item: item[1])
        return {revision: at - before for (_, before), (revision, at) in pairwise(times)}


def take_back(engine: sa.Engine, revision: str) -> None:
    with engine.begin() as conn:
        command.downgrade(migrate.alembic_config(connection=conn), revision)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql("VACUUM ANALYZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--from", dest="revision", default="0001")
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="healer-upgrade-", dir=given.folder))
    folder.chmod(0o711)
    try:
        with server_alone(folder) as url:
            engine = sa.create_engine(url)
            fill(engine, given.nodes, given.days)
            take_back(engine, given.revision)
            environ = {"HEALER_DATABASE_URL": url, "HEALER_DATA_DIR": str(folder)}
            subprocess.run(
                [sys.executable, "-m", "healer", "db", "upgrade", "--plan"], check=True, env=environ
            )
            watch = Watch(engine)
            with writing(engine) as writers, in_background(watch.look, 0.002):
                began = time.monotonic()
                before, after = migrate.upgrade(engine)
                took_s = time.monotonic() - began
            engine.dispose()
        print(f"upgrade from {before} to {after}: {took_s:.2f} s")
        for revision, migration_s in watch.took().items():
            if migration_s > SHOWN_S:
                print(f"{revision}: {migration_s:.2f} s")
        for name, writer in writers.items():
            print(f"{name}: {writer.writes} writes, longest wait {writer.longest_s:.2f} s")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
