"""Checks of `healer doctor`: the database's growth and settings, backup, seal, and tokens that end soon."""

import shutil
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa

from healer.adapters.postgres.own_health import seal_state
from healer.adapters.postgres.read_queries import cluster_names
from healer.adapters.postgres.tables import audit_records, tokens
from healer.adapters.system_clock import SystemClock
from healer.bootstrap.doctor_checks import Look, ask_database, name_few
from healer.model.run import BACKED_UP, BACKUP
from healer.observations.seal_state import SealState, seal_problems
from healer.settings import Settings

#: A disk that is full sooner, or has less than this share free, is a fault.
FULL_WITHIN_DAYS, FREE_SHARE = 30, 0.1
#: A backup is made every night; a second night without one is a fault.
BACKUP_WITHIN = timedelta(hours=50)
ENDS_WITHIN = timedelta(days=14)
#: Setting of PostgreSQL -> values by which accepted signals may be lost, or tables grow without bound.
_WRONG = {
    "fsync": ("off",),
    "full_page_writes": ("off",),
    "synchronous_commit": ("off",),
    "autovacuum": ("off",),
}
#: The parts of one cluster hold up to so many, two clusters twice as many.
_CONNECTIONS = 100


class Size(NamedTuple):
    """`since`: of the first audit record. Of the disk: bytes; None where it is another machine's."""

    used: int
    since: datetime
    free: int | None
    disk: int | None


class _Stored(NamedTuple):
    """What the database says for these checks."""

    size: Size | None
    values: dict[str, str]
    backup: datetime | None
    sealed: list[tuple[str, SealState]]
    ending: list[Look]


def look_at_storage(settings: Settings) -> list[Look]:
    """Nothing where the database does not answer, which another check says."""
    now = SystemClock().now()

    def ask(db: sa.Engine, conn: sa.Connection) -> _Stored:
        sealed = [(name, seal_state(db, name)) for name in cluster_names(conn)]
        return _Stored(_size(conn, settings), _values(conn), _newest_backup(conn), sealed, _ending(conn, now))

    stored = ask_database(settings, ask)
    if stored is None:
        return []
    size, values, backup, sealed, ending = stored
    looks = [growth(size, now)] if size is not None else []
    looks += [postgres_settings(values), backup_age(backup, now)]
    for cluster, state in sealed:
        problems = seal_problems(state, now)
        text = " ".join(map(str, problems.values()))
        repair = "Check that the worker runs, and that the witness takes connections: docs/audit.md."
        good = f"{cluster}: every record sealed" + (
            f", {len(state.witnesses)} witnesses" * bool(state.witnesses)
        )
        looks.append(
            Look("seal", not problems, f"{cluster}: {text}" if problems else good, repair * bool(problems))
        )
    return looks + ending


def _size(conn: sa.Connection, settings: Settings) -> Size | None:
    since = conn.scalar(sa.select(audit_records.c.at).order_by(audit_records.c.id).limit(1))
    used, is_here = conn.execute(
        sa.text("SELECT pg_database_size(current_database()), inet_server_addr() IS NULL")
    ).one()
    if since is None:
        return None
    try:
        disk = shutil.disk_usage(settings.data_dir) if is_here and settings.database_url is None else None
    except OSError:
        disk = None
    return Size(used, since, disk.free if disk else None, disk.total if disk else None)


def growth(size: Size, now: datetime) -> Look:
    """At its average pace; the first day says nothing of a pace."""
    days = (now - size.since).total_seconds() / 86_400
    text = f"the database has {size.used / 1e6:,.0f} MB"
    repair = "Make room, or move the data directory to a larger disk (docs/operate.md, Retention)."
    left = None
    if days >= 1:
        pace = size.used / days
        text += f", {pace / 1e6:,.1f} MB more a day since {size.since:%Y-%m-%d}"
        left = size.free / pace if size.free is not None else None
    if size.free is None or size.disk is None:
        return Look("disk", True, f"{text}; its disk is another machine's")
    share = size.free / size.disk
    text += f"; {size.free / 1e9:,.1f} GB of {size.disk / 1e9:,.1f} GB free"
    if left is not None:
        text += f", full in {'over 1,000' if left > 1000 else f'{left:,.0f}'} days"
    well = share >= FREE_SHARE and (left is None or left >= FULL_WITHIN_DAYS)
    return Look("disk", well, text, "" if well else repair)


def _values(conn: sa.Connection) -> dict[str, str]:
    names = [*_WRONG, "max_connections"]
    rows = conn.execute(
        sa.text("SELECT name, setting FROM pg_settings WHERE name = ANY(:names)"), {"names": names}
    )
    used = conn.scalar(sa.text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"))
    return {name: value for name, value in rows} | {"used": str(used)}


def postgres_settings(values: Mapping[str, str]) -> Look:
    """`values`: of pg_settings, and `used` connections."""
    name, most = "PostgreSQL settings", int(values.get("max_connections", "0"))
    wrong = [f"{setting} = {values[setting]}" for setting in _WRONG if values.get(setting) in _WRONG[setting]]
    if wrong:
        repair = f"Set {', '.join(word.partition(' ')[0] for word in wrong)} to on, and reload PostgreSQL."
        return Look(name, False, f"{', '.join(wrong)}: what healer has accepted can be lost", repair)
    text = f"{values.get('used', '?')} of {most} connections in use, durable"
    if most < _CONNECTIONS:
        return Look(name, False, text, f"Set max_connections to {_CONNECTIONS} or more for each cluster.")
    return Look(name, True, text)


def _newest_backup(conn: sa.Connection) -> datetime | None:
    made = audit_records.c.subject == BACKUP, audit_records.c.verb == BACKED_UP
    query = sa.select(audit_records.c.at).where(*made).order_by(audit_records.c.id.desc()).limit(1)
    return conn.scalar(query)


def backup_age(newest: datetime | None, now: datetime) -> Look:
    """A site may back up by other means, so none at all is no fault."""
    repair = "Run `healer backup` every night: docs/backup.md."
    if newest is None:
        return Look("backup", True, "`healer backup` never made one", repair)
    text = f"the newest was made {newest:%Y-%m-%d %H:%M} UTC"
    well = now - newest <= BACKUP_WITHIN
    return Look("backup", well, text, "" if well else repair)


class Token(NamedTuple):
    """A token in force that ends, and is no service account's and no session's."""

    id: str
    name: str
    made: datetime
    end: datetime


def _ending(conn: sa.Connection, now: datetime) -> list[Look]:
    token = tokens.c
    lasting = sa.select(token.id, token.name, token.created_at, token.expires_at).where(
        token.revoked_at.is_(None), ~token.once, token.owner == "", token.groups.is_(None),
        token.expires_at > now,
    )  # fmt: skip
    return ending_tokens([Token(*row) for row in conn.execute(lasting)], now)


def ending_tokens(found: list[Token], now: datetime) -> list[Look]:
    """Nothing of one that has a successor of the same name, or was made for a short time."""
    lasts: dict[str, datetime] = {}
    for token in found:
        lasts[token.name or token.id] = max(token.end, lasts.get(token.name or token.id, token.end))
    soon = sorted(
        (token.end, token.name or token.id)
        for token in found
        if token.end - now < ENDS_WITHIN < token.end - token.made
        and lasts[token.name or token.id] == token.end
    )
    if not soon:
        return []
    named = name_few([f"{name} on {end:%Y-%m-%d}" for end, name in soon])
    repair = "`healer token rotate ID` makes the next one; both count for a while."
    return [Look("tokens that end soon", False, named, repair)]
