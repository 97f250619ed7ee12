"""`healer support-bundle`: what a helper needs to see of an installation, without its secrets."""

import gzip
import io
import json
import os
import platform
import sys
import tarfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from healer import __version__
from healer.adapters.postgres import migrate
from healer.adapters.postgres.node_rows import cluster_names
from healer.adapters.postgres.tables import incidents, run_log, runs
from healer.adapters.signing import KEY_FILE
from healer.adapters.token_key import KEY_FILE as TOKEN_KEY_FILE
from healer.bootstrap import database
from healer.bootstrap.all_checks import checks_of
from healer.bootstrap.doctor_checks import Check, open_database
from healer.bootstrap.pseudonyms import names_in, pseudonyms
from healer.bootstrap.scrubbing import REMOVED, Scrubber
from healer.embedded.running import unchecked_tls
from healer.embedded.user import EmbeddedError
from healer.importing.node_names import NamesInText
from healer.model import Role
from healer.ports.callers import NewToken
from healer.ports.request_errors import Conflict, Invalid, Unavailable
from healer.settings import (
    ExecutorSettings,
    SettingsError,
    own_url,
    rules_folder,
    secret_names,
    setting_name,
)

#: How much of the end of each log.
LOG_BYTES = 1_000_000
INCIDENTS = 20
_LINES_OF_RUN = 500
_FILE_MAX_BYTES = 64_000
_PACKAGES = ("alembic", "celery", "fastapi", "numpy", "psycopg", "scikit-learn", "sqlalchemy", "uvicorn")


#: Why a member may not be available.
_AWAY = (SQLAlchemyError, EmbeddedError, SettingsError, Unavailable, Conflict, Invalid, OSError)


class Wanted(NamedTuple):
    """`document`: makes the JSON of a check. `pseudonymise`: replaces persons, nodes, users and jobs."""

    document: Callable[[Check], Mapping[str, object]]
    pseudonymise: bool = False
    incidents: int = INCIDENTS


def make_bundle(settings: ExecutorSettings, target: Path, wanted: Wanted) -> list[str]:
    """Writes `target`, mode 0600, and returns the names in it. What cannot be read is said in the file of its
    name. Raises OSError where `target` cannot be written."""
    members = dict(_members(settings, wanted, Scrubber(secrets_of(settings, os.environ))))
    rename = _pseudonyms(settings) if wanted.pseudonymise else str
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, text in members.items():
            data = rename(text).encode(errors="replace")
            info = tarfile.TarInfo(f"healer-support/{name}")
            info.size, info.mode, info.mtime = len(data), 0o600, int(datetime.now(UTC).timestamp())
            tar.addfile(info, io.BytesIO(data))
    fresh = target.with_name(f".{target.name}.new")
    fresh.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(out.getvalue())
        fresh.rename(target)
    finally:
        fresh.unlink(missing_ok=True)
    return sorted(members)


def _pseudonyms(settings: ExecutorSettings) -> NamesInText:
    with open_database(settings) as db:
        return pseudonyms(names_in(db) if db is not None else {})


# --- secrets ---------------------------------------------------------------------------------------------


def secrets_of(settings: ExecutorSettings, environ: Mapping[str, str]) -> list[str]:
    """Each secret that this process can read: of settings, in files that they name, and healer's own keys."""
    found: list[str] = []
    for each in (settings, *settings.each()):
        for name in secret_names():
            value = getattr(each, name.removeprefix("HEALER_").lower(), None)
            found += [*map(str, value)] if isinstance(value, tuple) else [str(value)] if value else []
        paths = (getattr(each, name) for name in each.__struct_fields__ if name.endswith("_file"))
        found += [text for path in (*paths, each.tls_key) if isinstance(path, Path) for text in _text(path)]
    for name, value in environ.items():
        if name.startswith("HEALER_") and name.endswith("_FILE"):
            found += _text(Path(value))
    found += [environ[name] for name in ("HEALER_TOKEN", "PGPASSWORD") if environ.get(name)]
    keys = settings.data_dir / KEY_FILE, settings.token_key_file or settings.data_dir / TOKEN_KEY_FILE
    return found + [text for path in keys for text in _text(path)]


def _text(path: Path) -> list[str]:
    """The file's text; nothing of a certificate's public parts, and of what is too large for a secret."""
    with suppress(OSError, UnicodeDecodeError):
        if path.is_file() and path.stat().st_size < _FILE_MAX_BYTES and "ca_file" not in path.name:
            return [path.read_text()]
    return []


# --- members ---------------------------------------------------------------------------------------------


def _members(settings: ExecutorSettings, wanted: Wanted, scrub: Scrubber) -> Iterator[tuple[str, str]]:
    makers: dict[str, Callable[[], object]] = {
        "versions.json": lambda: _versions(settings),
        "settings.json": lambda: _settings(settings),
        "doctor.json": lambda: [wanted.document(check) for check in checks_of(settings)],
        "counts.json": lambda: _from_database(settings, _counts),
        "incidents.json": lambda: _from_database(settings, lambda conn: _incidents(conn, wanted.incidents)),
        "metrics.txt": lambda: _metrics(settings),
    }
    for name, make in makers.items():
        try:
            made = make()
        except _AWAY as error:
            made = f"not available: {type(error).__name__}: {error}"
        if name.endswith(".json"):
            plain = json.loads(json.dumps(made, default=str))
            yield name, json.dumps(scrub.document(plain), indent=1, ensure_ascii=False)
        else:
            yield name, scrub(str(made))
    for folder, paths in (
        ("logs", sorted((settings.data_dir / "log").glob("*.log"))),
        ("rules", sorted(rules_folder(settings).rglob("*.yaml"))),
    ):
        top = settings.data_dir / "log" if folder == "logs" else rules_folder(settings)
        for path in paths:
            yield f"{folder}/{path.relative_to(top)}", scrub(_end_of(path))


def _end_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_BYTES))
            data = file.read()
    except OSError as error:
        return f"not available: {error.strerror}"
    # Half a line may hold half a secret, which nothing would recognise.
    whole = data if size <= LOG_BYTES else data.partition(b"\n")[2]
    return whole.decode(errors="replace")


def _versions(settings: ExecutorSettings) -> dict[str, Any]:
    packages = {name: metadata.version(name) for name in _PACKAGES}
    return {
        "healer": __version__,
        "needs_revision": migrate.head(),
        "python": sys.version,
        "system": platform.platform(),
        "packages": packages,
        "adapters": list(settings.slurm_adapters),
        "made_at": datetime.now(UTC).isoformat(),
    }


def _settings(settings: ExecutorSettings) -> dict[str, Any]:
    def shown(each: ExecutorSettings) -> dict[str, Any]:
        secret = secret_names()
        fields = (field for field in each.__struct_fields__ if field != "clusters")
        given = {setting_name(field): getattr(each, field) for field in fields}
        return {
            name: (REMOVED if value else None) if name in secret else _plain(value)
            for name, value in given.items()
        }

    found = shown(settings)
    if settings.clusters:
        found["clusters"] = {each.cluster: shown(each) for each in settings.each()}
    return found


def _plain(value: object) -> object:
    return msgspec.to_builtins(value, enc_hook=str, str_keys=True)


def _from_database(settings: ExecutorSettings, read: Callable[[sa.Connection], object]) -> object:
    with open_database(settings) as db:
        if db is None:
            return "not available: no database"
        with db.connect() as conn:
            return read(conn)


def _counts(conn: sa.Connection) -> dict[str, Any]:
    """Rows as the planner estimates them, and bytes with indexes."""
    rows = conn.execute(
        sa.text(
            "SELECT relname, greatest(reltuples, 0)::bigint, pg_total_relation_size(oid) FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY relname"
        )
    )
    tables = {name: {"rows": count, "bytes": size} for name, count, size in rows}
    states = conn.execute(sa.select(runs.c.state, sa.func.count()).group_by(runs.c.state))
    return {
        "revision": migrate.current(conn),
        "postgres": conn.scalar(sa.text("SELECT current_setting('server_version')")),
        "clusters": sorted(cluster_names(conn)),
        "tables": tables,
        "runs": {state: count for state, count in states},
    }


def _incidents(conn: sa.Connection, most: int) -> list[dict[str, Any]]:
    """The newest, each with its runs and their logs."""
    newest = sa.select(incidents.c.id, incidents.c.doc).order_by(incidents.c.opened.desc()).limit(most)
    found = []
    for name, doc in conn.execute(newest).all():
        its_runs = conn.execute(sa.select(runs.c.id, runs.c.doc).where(runs.c.incident == name)).all()
        lines = sa.select(run_log.c.doc).where(run_log.c.run.in_([run for run, _ in its_runs]))
        log = conn.scalars(lines.order_by(run_log.c.seq).limit(_LINES_OF_RUN)).all()
        found.append({"incident": doc, "runs": [run for _, run in its_runs], "log": list(log)})
    return found


def _metrics(settings: ExecutorSettings) -> str:
    """By a token of a viewer that is made for this and revoked at once."""
    url, now = own_url(settings), datetime.now(UTC)
    if settings.database_url is None:
        from healer.embedded.running import find

        url = find(settings.data_dir).url
    new = NewToken(role=Role.viewer, name="support-bundle", expires_at=now + timedelta(minutes=5))
    with database.tokens(settings) as book:
        token = book.create(new, now=now, by="healer support-bundle")
        try:
            book.wait_for_seal(token)
            asked = urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"})  # noqa: S310
            with urllib.request.urlopen(asked, timeout=15, context=unchecked_tls()) as answer:  # noqa: S310
                return answer.read().decode(errors="replace")
        finally:
            book.revoke(token.split("_")[1], by="healer support-bundle", now=datetime.now(UTC))
