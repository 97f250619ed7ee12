"""A primary and its synchronous standby, two real servers; a commit's wait for the standby can be cut."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from healer.embedded.database_logins import OWNER, SUPERUSER
from healer.embedded.postgres import Postgres, working_in
from tests.support.stack import free_shared_memory, lay_database, memory, scratch_folder
from tests.support.wait import in_background, wait_until

#: Their places in the list of hosts of a URL: a port each, in one folder of sockets.
PRIMARY, STANDBY = 5433, 5434


class Server:
    """One server on `pgdata`, which answers at `port` in the folder of sockets."""

    def __init__(self, launcher: Postgres, pgdata: Path, port: int) -> None:
        self._launcher, self.pgdata, self.port = launcher, pgdata, port
        self.binaries = launcher._binaries()
        self.process: subprocess.Popen[Any] | None = None

    def popen(self) -> dict[str, Any]:
        return {"cwd": "/", **self._launcher.user.popen()}

    def start(self) -> None:
        (self.pgdata / "postmaster.pid").unlink(missing_ok=True)
        (self.pgdata / "pg_hba.conf").write_text("local all all trust\nlocal replication all trust\n")
        settings = {
            "port": self.port,
            "listen_addresses": "",
            "unix_socket_directories": self._launcher.sockets,
            "fsync": "off",
            "wal_sender_timeout": 0,
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.pgdata.parent / f"{self.port}.log").open("ab") as log:
            command = [self.binaries / "postgres", "-D", self.pgdata, *words]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, **self.popen())
        wait_until(self.answers, what=f"the server at {self.port}")

    def answers(self) -> bool:
        try:
            self.ask("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """As a machine that loses its power: no process of it sends anything more."""
        if self.process is not None:
            for pid in working_in(self.pgdata):
                with suppress(ProcessLookupError):  # it ended by itself, or with the process before it
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def conninfo(self, user: str = SUPERUSER) -> dict[str, Any]:
        return {"host": str(self._launcher.sockets), "port": self.port, "user": user, "dbname": "healer"}

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(**self.conninfo(), autocommit=True)

    def ask(self, statement: str) -> Any:
        """The first column of the first row."""
        with self.connect() as conn:
            cursor = conn.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    def url(self, *ports: int) -> str:
        """As the owner of healer's database, of this server or of those at these ports."""
        ports = ports or (self.port,)
        hosts = ",".join([str(self._launcher.sockets)] * len(ports))
        return f"postgresql://{OWNER}@/healer?host={hosts}&port={','.join(map(str, ports))}"


class Pair:
    """`primary` waits with each commit for `standby`."""

    def __init__(self, primary: Server, standby: Server) -> None:
        self.primary, self.standby = primary, standby
        self._frozen: int | None = None

    def freeze(self) -> None:
        """From now on the primary sends the standby nothing."""
        sender = self._frozen = self.primary.ask("SELECT pid FROM pg_stat_replication")
        os.kill(sender, signal.SIGSTOP)

    def thaw(self) -> None:
        if self._frozen is not None:
            os.kill(self._frozen, signal.SIGCONT)
            self._frozen = None

    @contextmanager
    def cutting(self, how: str = "pg_cancel_backend") -> Iterator[None]:
        """Whatever commits does not wait: by this function of the server, as a person or a tool calls it."""
        cut = f"SELECT count({how}(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'".encode()
        with self.primary.connect() as conn, in_background(lambda: conn.execute(cut), 0.01):
            yield

    def fail_over(self) -> None:
        self.primary.kill()
        self._frozen = None
        self.standby.ask("SELECT pg_promote()")


@contextmanager
def replicated() -> Iterator[Pair]:
    with scratch_folder(memory()) as folder:
        lay_database(folder / "data")
        launcher = Postgres(folder / "data")
        launcher.user.folder(launcher.pgdata)
        copy = launcher.pgdata.with_name("standby")
        primary, standby = Server(launcher, launcher.pgdata, PRIMARY), Server(launcher, copy, STANDBY)
        try:
            primary.start()
            launcher.user.folder(copy)
            made = [primary.binaries / "pg_basebackup", "-D", copy, "-R", "-c", "fast", "-X", "stream"]
            source = ["-h", launcher.sockets, "-p", str(PRIMARY), "-U", SUPERUSER]
            subprocess.run([*made, *source], check=True, capture_output=True, **primary.popen())
            standby.start()
            primary.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
            primary.ask("SELECT pg_reload_conf()")
            is_sync = "SELECT bool_or(sync_state = 'sync') FROM pg_stat_replication"
            wait_until(partial(primary.ask, is_sync), what="the standby is synchronous")
            yield Pair(primary, standby)
        finally:
            for server in (standby, primary):
                server.kill()
            free_shared_memory(copy)
            shutil.rmtree(copy, ignore_errors=True)
