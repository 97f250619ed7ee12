"""Real servers for tests: an embedded PostgreSQL for the session, a fresh migrated database per test.

`tests/conftest.py` makes the fixtures known to every test.
"""

import atexit
import contextlib
import functools
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from healer.adapters.postgres import migrate
from healer.embedded.database_logins import OWNER, SUPERUSER
from healer.embedded.guardian import Guardian
from healer.embedded.postgres import LOGINS, Postgres
from healer.embedded.user import make_data_dir, name_of

if TYPE_CHECKING:
    import httpx

    from tests.support.api import Api

_TEMPLATE = "healer"
RULES = Path(__file__).parents[2] / "rules"
_SHARED_MEMORY = "/dev/shm"
#: Each of some processes of the tests has a server, with half a gigabyte of log at most.
_PLENTY = 6 << 30
_numbers = itertools.count(1)


def make_scratch(under: str | None = None) -> Path:
    """A folder under /tmp that the servers' unprivileged user can enter, unlike pytest's own. The caller
    removes it."""
    folder = Path(tempfile.mkdtemp(prefix="healer-test-", dir=under))
    folder.chmod(0o711)
    return folder


def memory() -> str | None:
    """A folder in memory, where there is plenty: to make a database copies a thousand files, which takes a
    tenth of the time there."""
    try:
        free = shutil.disk_usage(_SHARED_MEMORY).free
        available = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    in_both = min(free, int(available[1]) * 1024) if available else 0
    return _SHARED_MEMORY if in_both > _PLENTY else None


@contextmanager
def scratch_folder(under: str | None = None) -> Iterator[Path]:
    """`make_scratch`, and gone afterwards."""
    folder = make_scratch(under)
    try:
        yield folder
    finally:
        free_shared_memory(folder)
        shutil.rmtree(folder)


def free_shared_memory(folder: Path) -> None:
    """What servers of PostgreSQL that were killed there and not started again left: System V's segment, whose
    key and id are the seventh line of their `postmaster.pid`, and files that no process has mapped."""
    killed = False
    for noted in folder.rglob("postmaster.pid"):
        lines = noted.read_text().splitlines()
        if len(lines) > 6:
            subprocess.run(["ipcrm", "-m", lines[6].split()[1]], check=False, stderr=subprocess.DEVNULL)
            killed = True
    files = set(Path(_SHARED_MEMORY).glob("PostgreSQL.*")) if killed else set[Path]()
    if files:
        for maps in Path("/proc").glob("[0-9]*/maps"):
            with contextlib.suppress(OSError):
                used = maps.read_text()
                files = {file for file in files if str(file) not in used}
    for file in files:
        file.unlink(missing_ok=True)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """`scratch_folder` for one test."""
    with scratch_folder() as folder:
        yield folder


@functools.cache
def _made() -> Path:
    """Files of a PostgreSQL that was created and migrated, and has ended: made once for all that start from
    such files, as the product does at every start but its first."""
    folder = make_scratch(memory())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with _started(folder) as server:
        engine = sa.create_engine(server.url)
        migrate.upgrade(engine)
        engine.dispose()
    return server.pgdata


def lay_database(data_dir: Path) -> None:
    """Puts a migrated database into a data directory that is yet to be used."""
    home = make_data_dir(data_dir) / "postgres"
    home.mkdir(mode=0o711, exist_ok=True)
    subprocess.run(["cp", "-a", _made(), home / "data"], check=True)


@functools.cache
def _proven() -> Path:
    """A cache in which the rules that ship are proven: once for all processes of the tests, which share their
    home."""
    from healer.rulebook.ruleset import load  # not loaded for tests that start no healer

    load(RULES)
    return Path.home() / ".cache"


def lay_proofs(data_dir: Path) -> None:
    """Puts the proofs of the shipped rules into a data directory, where `healer up` of root keeps them: every
    start but the first finds them."""
    from healer.embedded.tree import CACHE

    shutil.copytree(_proven() / "healer", make_data_dir(data_dir) / CACHE / "healer", dirs_exist_ok=True)


@contextmanager
def _started(folder: Path) -> Iterator[Postgres]:
    # A test run that is killed leaves no server behind either.
    guardian = Guardian(folder / "guardian.log")
    logins = {name_of(os.geteuid()): (*LOGINS, SUPERUSER)}
    server = Postgres(folder / "data", popen=guardian.popen, logins=logins)
    server.start()
    assert server.process is not None
    guardian.add("postgres", server.process.pid)
    try:
        yield server
    finally:
        server.stop()
        guardian.release()


@contextmanager
def running_postgres(under: str | None = None) -> Iterator[Postgres]:
    """An embedded server of its own, gone afterwards. Its database `healer` is migrated."""
    with scratch_folder(under) as folder:
        lay_database(folder / "data")
        with _started(folder) as server:
            _hurry(server)
            yield server


def _hurry(server: Postgres) -> None:
    """Nothing of these databases outlives the machine: no commit and no copy waits for the disk."""
    with _Admin(server) as admin:
        admin.execute(sa.text("ALTER SYSTEM SET fsync = off"))
        admin.execute(sa.text("SELECT pg_reload_conf()"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The session's embedded server. Its database `healer` is the template: leave it empty."""
    with running_postgres(memory()) as server:
        yield server


@pytest.fixture(scope="session")
def admin(postgres: Postgres) -> Iterator[sa.Connection]:
    """To the session's server itself: makes and drops the databases of all tests."""
    with _Admin(postgres) as connection:
        yield connection


@pytest.fixture
def fresh_database(postgres: Postgres, admin: sa.Connection) -> Iterator[sa.Engine]:
    """An engine on a new database with all tables and no rows. Its URL: `engine.url`."""
    name = f"test_{next(_numbers)}"
    admin.execute(sa.text(f"CREATE DATABASE {name} OWNER {OWNER} TEMPLATE {_TEMPLATE} STRATEGY FILE_COPY"))
    engine = sa.create_engine(postgres.url_of(name))
    yield engine
    engine.dispose()
    admin.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="session")
def postgres_engine(postgres: Postgres, admin: sa.Connection) -> Iterator[sa.Engine]:
    """One migrated database for the whole session, for tests that do not mind each other's rows."""
    admin.execute(sa.text(f"CREATE DATABASE shared OWNER {OWNER} TEMPLATE {_TEMPLATE} STRATEGY FILE_COPY"))
    engine = sa.create_engine(postgres.url_of("shared"))
    yield engine
    engine.dispose()


@pytest.fixture
def empty_database(postgres: Postgres, admin: sa.Connection) -> Iterator[sa.Engine]:
    """An engine on a new database without any table."""
    name = f"empty_{next(_numbers)}"
    admin.execute(sa.text(f"CREATE DATABASE {name} OWNER {OWNER} TEMPLATE template0"))
    engine = sa.create_engine(postgres.url_of(name))
    yield engine
    engine.dispose()
    admin.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))


class _Admin:
    """A connection to the server's own database, outside transactions."""

    def __init__(self, server: Postgres) -> None:
        self._engine = sa.create_engine(server.url_of("postgres", SUPERUSER), isolation_level="AUTOCOMMIT")

    def __enter__(self) -> sa.Connection:
        self._connection = self._engine.connect()
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._engine.dispose()


@pytest.fixture
def served(fresh_database: sa.Engine) -> Iterator["tuple[Api, httpx.Client]"]:
    from tests.support.api import serving  # the API is not loaded for tests that do not serve it

    with serving(fresh_database) as both:
        yield both
