"""The roles of the embedded PostgreSQL, made in single-user mode: its superuser has no login.

A database of an earlier healer, whose one role was a superuser, is handed over to its owner here, once.
"""

import hashlib
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from healer.adapters.postgres import roles
from healer.embedded.user import EmbeddedError
from healer.text import say

#: Owns healer's tables; only migrations and commands of root connect as it.
OWNER = "healer"
SUPERUSER = "postgres"
DATABASE = "healer"
#: In the data directory: the roles that were created. Without it, or with a different text, they are checked
#: again.
MARK = "healer-roles"

#: Was the superuser `healer`, as in earlier versions: another renames it, as a session cannot rename itself.
_HAND_OVER = (
    "CREATE ROLE healer_renames SUPERUSER",
    "SET SESSION AUTHORIZATION healer_renames",
    f"ALTER ROLE {OWNER} RENAME TO {SUPERUSER}",
    "RESET SESSION AUTHORIZATION",
)
_OWNED = f"""DO $$ DECLARE each record; BEGIN
 FOR each IN SELECT format('TABLE public.%I', relname) AS what FROM pg_class
  WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')
 UNION ALL SELECT format('SEQUENCE public.%I', relname) FROM pg_class
  WHERE relnamespace = 'public'::regnamespace AND relkind = 'S'
  AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_class.oid AND deptype IN ('a', 'i'))
 UNION ALL SELECT 'FUNCTION ' || oid::regprocedure FROM pg_proc WHERE pronamespace = 'public'::regnamespace
 LOOP EXECUTE 'ALTER ' || each.what || ' OWNER TO {OWNER}'; END LOOP; END $$""".replace("\n", "")  # noqa: S608 - our own words


def statements() -> list[str]:
    """What makes the owner, the roles of the parts and the database."""
    return [
        f"CREATE ROLE {OWNER} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION",
        *roles.creation({}),
        # How full the disk with the data directory is: the scheduler tidies by it, the API shows it.
        "GRANT pg_read_all_settings TO healer_scheduler, healer_api WITH INHERIT TRUE",
        f"ALTER ROLE {roles.BROKER} SET search_path = {roles.BROKER}",
        f"CREATE DATABASE {DATABASE} OWNER {OWNER}",
        f"ALTER DATABASE {DATABASE} OWNER TO {OWNER}",
    ]


def digest() -> str:
    return hashlib.sha256("\n".join(statements()).encode()).hexdigest()


def are_made(pgdata: Path) -> bool:
    mark = pgdata / MARK
    return mark.exists() and mark.read_text() == digest()


def make(postgres: Path, pgdata: Path, popen: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """Creates what is missing in a data directory that no server uses. Raises EmbeddedError."""

    def run(database: str, wanted: Sequence[str]) -> str:
        return _execute([postgres, "--single", "-D", pgdata, database], wanted, popen, environ)

    if f'rolname = "{OWNER}"' in run("postgres", ["SELECT rolname FROM pg_roles WHERE oid = 10"]):
        run("postgres", _HAND_OVER)
    run("postgres", ["DROP ROLE IF EXISTS healer_renames", *statements()])
    run(DATABASE, [_OWNED])


def _execute(
    command: Sequence[str | Path], wanted: Sequence[str], popen: Mapping[str, Any], environ: Mapping[str, str]
) -> str:
    done = subprocess.run(
        command,
        input="".join(f"{statement}\n" for statement in wanted),
        capture_output=True,
        text=True,
        cwd="/",
        env=environ,
        check=False,
        **popen,
    )
    wrong = list(_errors(done.stderr))
    if done.returncode or wrong:
        text = " ".join(wrong) or " ".join(done.stderr.split())[-400:]
        raise EmbeddedError(say("embedded.roles_embedded_postgresql_cannot", text=text))
    return done.stdout


def _errors(log: str) -> Iterator[str]:
    """Errors, except about existing objects, as after an interrupted start."""
    for line in log.splitlines():
        if re.search(r"\b(ERROR|FATAL|PANIC):", line) and "already exists" not in line:
            yield line.strip()


def ident_map(logins: Mapping[str, Sequence[str]]) -> str:
    """pg_ident.conf: which user of the machine may be which roles."""
    return "".join(f"healer {user} {role}\n" for user in sorted(logins) for role in logins[user])
