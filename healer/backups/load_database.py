"""Loads a dump into a database in one transaction, in which it is marked as half restored.

The dump goes through `pg_restore` to a `psql` that commits only at our last word. If a process dies before,
the database is as before. No healer starts on a marked one, and no part has a right to its tables.
"""

import subprocess
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Thread
from typing import IO

import sqlalchemy as sa

from healer.adapters.postgres import migrate
from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.migrate import RESTORING
from healer.adapters.postgres.roles import PARTS, ROLES
from healer.backups.archive import BackupUnusable
from healer.backups.clients import access, clients_for, first_error
from healer.model.vocabulary import UserError
from healer.text import joined, say

NAME = "healer restore"
_PORTION = 1 << 20
_OURS = "FROM pg_class WHERE relnamespace = 'public'::regnamespace"
#: Everything in the schema `public` that is ours, as an owner who may not drop the schema itself.
_DROP = f"""DO $$ DECLARE each text; BEGIN
  FOR each IN SELECT format('DROP TABLE IF EXISTS public.%I CASCADE', relname) {_OURS}
    AND relkind IN ('r', 'p')
  LOOP EXECUTE each; END LOOP;
  FOR each IN SELECT format('DROP SEQUENCE IF EXISTS public.%I CASCADE', relname) {_OURS} AND relkind = 'S'
  LOOP EXECUTE each; END LOOP;
  FOR each IN SELECT 'DROP FUNCTION ' || oid::regprocedure || ' CASCADE' FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace
  LOOP EXECUTE each; END LOOP;
END $$;
"""  # noqa: S608 - our own words
_MARK = f"UPDATE public.alembic_version SET version_num = '{RESTORING}' || version_num;\nCOMMIT;\n"  # noqa: S608


class NotEmpty(UserError):
    """The database holds an installation, or parts of healer are connected to it."""


class HalfRestored(UserError):
    """The dump could not be loaded; the database is as before."""


#: A part's connection: by its login, and by its name where all parts have the owner's login.
_BUSY = sa.text(
    "SELECT DISTINCT CASE WHEN usename = ANY(:roles) THEN usename ELSE called END FROM ("
    "SELECT usename::text, substring(application_name FROM '^healer [a-z]+') AS called FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()) AS connected"
    " WHERE usename = ANY(:roles) OR called = ANY(:names)"
)


def check_target(db: sa.Engine, *, replace: bool) -> None:
    """Raises NotEmpty where a restore would take something away, or disturb parts that run."""
    with db.connect() as conn:
        check_stopped(conn)
        revision = migrate.current(conn)
        tables = conn.scalar(sa.text("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"))
    is_ours = revision is not None and revision.startswith(RESTORING)
    if tables and not replace and not is_ours:
        raise NotEmpty(say("backups.database_empty_replace_drops"))


def check_stopped(conn: sa.Connection) -> None:
    """Raises NotEmpty while a part of healer is connected to this database."""
    names = [f"healer {part}" for part in PARTS]
    if busy := conn.scalars(_BUSY, {"roles": list(ROLES), "names": names}).all():
        raise NotEmpty(say("backups.parts_are_connected_stop", busy=joined(sorted(busy), "comma")))


def half_restored(conn: sa.Connection) -> str | None:
    """The revision of the dump that was loaded and marked; None if there is no mark."""
    revision = migrate.current(conn) or ""
    return revision.removeprefix(RESTORING) if revision.startswith(RESTORING) else None


def load(url: str, dump: Iterable[bytes], dump_bytes: int, progress: Callable[[int, int], None]) -> None:
    """Replaces the database's contents. Raises HalfRestored."""
    db = make_engine(url, name=NAME, pool_size=1)
    with db.connect() as conn:
        release = conn.scalar(sa.text("SELECT current_setting('server_version_num')::int / 10000"))
    db.dispose()
    try:
        clients, reached = clients_for(release or 0), access(url, NAME)
    except BackupUnusable as error:
        raise HalfRestored(str(error).replace("pg_dump", "pg_restore", 1)) from None
    reading = [clients.folder / "pg_restore", "--no-owner", "--no-privileges", "--file=-"]
    writing = [clients.folder / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", f"--dbname={reached.conninfo}"]
    pipe, environ = subprocess.PIPE, reached.environ
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            writing, stdin=pipe, stdout=subprocess.DEVNULL, stderr=errors, env=environ
        ) as loading,
        subprocess.Popen(reading, stdin=pipe, stdout=pipe, stderr=errors, env=environ) as unpacking,
    ):
        try:
            _pump(dump, dump_bytes, progress, unpacking, loading)
        except BrokenPipeError:
            pass  # the other side says why
        except BaseException:
            loading.kill()
            unpacking.kill()
            raise
        with suppress(BrokenPipeError):
            if loading.stdin is not None:
                loading.stdin.close()
        if unpacking.wait() or loading.wait():
            errors.seek(0)
            raise HalfRestored(say("backups.dump_cannot_loaded", why=first_error(errors.read())))


def _pump(
    dump: Iterable[bytes],
    dump_bytes: int,
    progress: Callable[[int, int], None],
    unpacking: subprocess.Popen[bytes],
    loading: subprocess.Popen[bytes],
) -> None:
    assert unpacking.stdin is not None and unpacking.stdout is not None and loading.stdin is not None
    failed: list[BaseException] = []
    feeder = Thread(target=_feed, args=(dump, dump_bytes, progress, unpacking.stdin, failed))
    feeder.start()
    try:
        loading.stdin.write(f"BEGIN;\n{_DROP}".encode())
        while portion := unpacking.stdout.read(_PORTION):
            loading.stdin.write(portion)
    except BaseException:
        unpacking.kill()
        raise
    finally:
        feeder.join()
    if failed:
        raise failed[0]
    if unpacking.wait() == 0:
        loading.stdin.write(_MARK.encode())


def _feed(
    dump: Iterable[bytes],
    dump_bytes: int,
    progress: Callable[[int, int], None],
    into: IO[bytes],
    failed: list[BaseException],
) -> None:
    done = 0
    try:
        with into:
            for portion in dump:
                into.write(portion)
                done += len(portion)
                progress(done, dump_bytes)
    except BrokenPipeError:
        pass  # pg_restore has ended, and its status says how
    except BaseException as error:
        failed.append(error)
