"""The embedded PostgreSQL without healer's parts: for a restore, while `healer up` does not run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from healer.embedded import running
from healer.embedded.guardian import Guardian
from healer.embedded.postgres import Postgres
from healer.embedded.user import make_data_dir, usable


@contextmanager
def server_alone(data_dir: Path) -> Iterator[str]:
    """The URL of the database as its owner. The data directory is locked meanwhile. If this process is
    killed, the guardian ends the server. Raises EmbeddedError."""
    folder = make_data_dir(data_dir)
    with usable(folder):
        lock = running.lock(folder)
    try:
        with usable(folder):
            logs = folder / "log"
            logs.mkdir(mode=0o700, exist_ok=True)
            guardian = Guardian(logs / "guardian.log", hold=(lock,))
        try:
            with usable(folder):
                server = Postgres(folder, popen=guardian.popen)
                server.start()
            try:
                if server.process is not None:
                    guardian.add("postgres", server.process.pid)
                yield server.url
            finally:
                server.stop()
        finally:
            guardian.release()
    finally:
        os.close(lock)
