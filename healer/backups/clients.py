"""PostgreSQL's own programs for dumps: which of those installed fits the server, and how they reach it."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from healer.backups.archive import BackupUnusable
from healer.embedded.postgres import PACKAGE, TREE
from healer.text import Said, quoted, say

#: Where Debian and the PostgreSQL project put each release.
_RELEASES = (("/usr/lib/postgresql", "*/bin"), ("/usr", "pgsql-*/bin"))


class Clients(NamedTuple):
    """The folder with `pg_dump`, `pg_restore` and `psql`, and their release."""

    folder: Path
    release: int


def clients_for(server: int) -> Clients:
    """The clients of the lowest release that is not older than the server's, as a newer one's dump may say
    what an older server does not understand. Raises BackupUnusable."""
    found = [Clients(folder, release) for folder in _folders() if (release := _release(folder)) is not None]
    fitting = [clients for clients in found if clients.release >= server]
    if fitting:
        return min(fitting, key=lambda clients: clients.release)
    newest = max((clients.release for clients in found), default=None)
    have = say("backups.no_pg_dump") if newest is None else say("backups.newest_pg_dump", release=newest)
    raise BackupUnusable(say("backups.pg_dump_must_new", server=server, have=have))


def _folders() -> Iterator[Path]:
    for name in ("pg_dump", "pg_restore"):
        if (program := shutil.which(name)) is not None:
            yield Path(program).parent
    for top, pattern in _RELEASES:
        yield from sorted(Path(top).glob(pattern))
    spec = find_spec(PACKAGE)
    if spec is not None and spec.submodule_search_locations:
        yield Path(next(iter(spec.submodule_search_locations))) / TREE / "bin"


def _release(folder: Path) -> int | None:
    """The release that all three programs are of; None if one is missing or does not run."""
    releases = set()
    for name in ("pg_dump", "pg_restore", "psql"):
        try:
            done = subprocess.run(
                [folder / name, "--version"],
                capture_output=True, text=True, timeout=20, check=False, env=_ENVIRON,
            )  # fmt: skip
        except OSError:
            return None
        version = re.search(r"\) (\d+)", done.stdout)
        releases.add(int(version[1]) if version else None)
    return releases.pop() if len(releases) == 1 else None


_ENVIRON = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"}


class Access(NamedTuple):
    """What a client gets: `conninfo` for its `--dbname`, and its environment, which holds the password."""

    conninfo: str
    environ: dict[str, str]


def access(url: str, name: str) -> Access:
    """`name` appears in `pg_stat_activity`."""
    import psycopg.conninfo

    made = sa.make_url(url)
    query = {key: value if isinstance(value, str) else ",".join(value) for key, value in made.query.items()}
    words = {"host": made.host, "port": made.port, "user": made.username, "dbname": made.database, **query}
    given = {key: value for key, value in words.items() if value is not None}
    secret = {"PGPASSWORD": str(made.password)} if made.password else {}
    # A site may keep the password in ~/.pgpass.
    home = {"HOME": os.environ["HOME"]} if "HOME" in os.environ else {}
    conninfo = psycopg.conninfo.make_conninfo(**given, application_name=name)
    return Access(conninfo, {**_ENVIRON, **home, **secret})


def first_error(text: bytes) -> Said:
    """The first error that clients wrote to their standard error; later ones follow from it."""
    lines = [line.strip() for line in text.decode(errors="replace").splitlines() if line.strip()]
    wrong = [line for line in lines if re.search(r"\b(error|ERROR|FATAL):", line)]
    if not lines:
        return say("backups.no_error")
    shown = re.sub(r"^(psql:<stdin>:\d+: |\w+: error: )", "", (wrong or lines[-1:])[0])
    return quoted(shown[:300].rstrip("."))
