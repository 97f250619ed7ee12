"""Checks of `healer doctor`: the database's growth and settings, backup, seal, and tokens that end soon."""

import re
import shutil
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa

from healer.adapters.postgres.node_rows import cluster_names
from healer.adapters.postgres.own_health import seal_state
from healer.adapters.postgres.tables import audit_records, tokens
from healer.adapters.system_clock import SystemClock
from healer.bootstrap.doctor_checks import NAMED, Check, ask_database, unreadable
from healer.embedded.postgres import connections_needed
from healer.model.run import BACKED_UP, BACKUP
from healer.observations.seal_state import SealState, seal_problems
from healer.settings import Settings
from healer.text import NO_WORDS, Said, joined, name_some, say

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
_SEVERAL = re.compile(r"\s*(?:(?:FIRST|ANY)\s+)?(?P<count>\d+)\s*\((?P<names>.*)\)\s*", re.I | re.S)
#: Anyone can see the names; anything else about a standby needs privileges.
_STANDBYS = sa.text(
    "SELECT application_name FROM pg_stat_activity JOIN pg_stat_get_wal_senders() AS sender USING (pid)"
)


class Size(NamedTuple):
    """`since`: of the first audit record, else now. Of the disk: bytes; None if it is elsewhere."""

    used: int
    since: datetime
    free: int | None
    disk: int | None


class _Stored(NamedTuple):
    """What the database says for these checks."""

    size: Size
    values: dict[str, str]
    standbys: list[str]
    backup: datetime | None
    sealed: list[tuple[str, SealState]]
    ending: list[Check]


def check_storage(settings: Settings) -> list[Check]:
    """Empty if the database does not answer, which another check reports."""
    now = SystemClock().now()

    def ask(db: sa.Engine, conn: sa.Connection) -> _Stored:
        sealed = [(name, seal_state(db, name)) for name in cluster_names(conn)]
        return _Stored(
            size=_size(conn, settings, now), values=_values(conn), standbys=list(conn.scalars(_STANDBYS)),
            backup=_newest_backup(conn), sealed=sealed,
            ending=[] if unreadable(conn) else _ending(conn, now),
        )  # fmt: skip

    stored = ask_database(settings, ask)
    if stored is None:
        return []
    results = [growth(stored.size, now), postgres_settings(stored.values, len(settings.each()))]
    results += [*standby_checks(stored.values, stored.standbys), backup_age(stored.backup, now)]
    for cluster, state in stored.sealed:
        problems = seal_problems(state, now)
        text = joined(list(problems.values()), "space") if problems else _sealed(state)
        repair = say("doctor.seal_check") if problems else NO_WORDS
        whole = say("words.labelled", label=cluster, text=text)
        results.append(Check(say("doctor.seal"), not problems, whole, repair))
    return results + stored.ending


def _sealed(state: SealState) -> Said:
    witnesses = len(state.witnesses)
    return say("doctor.sealed_witnessed", count=witnesses) if witnesses else say("doctor.sealed")


def _size(conn: sa.Connection, settings: Settings, now: datetime) -> Size:
    since = conn.scalar(sa.select(audit_records.c.at).order_by(audit_records.c.id).limit(1))
    used, is_here = conn.execute(
        sa.text("SELECT pg_database_size(current_database()), inet_server_addr() IS NULL")
    ).one()
    try:
        disk = shutil.disk_usage(settings.data_dir) if is_here and settings.database_url is None else None
    except OSError:
        disk = None
    return Size(used, since or now, disk.free if disk else None, disk.total if disk else None)


def growth(size: Size, now: datetime) -> Check:
    """At its average pace; the first day says nothing of a pace."""
    days = (now - size.since).total_seconds() / 86_400
    name, texts, left = say("doctor.disk"), [say("doctor.database_size", mb=size.used / 1e6)], None
    if days >= 1:
        pace = size.used / days
        texts.append(say("doctor.database_pace", mb=pace / 1e6, since=f"{size.since:%Y-%m-%d}"))
        left = size.free / pace if size.free is not None else None
    if size.free is None or size.disk is None:
        return Check(name, True, joined([*texts, say("doctor.disk_elsewhere")], "semicolon"))
    share = size.free / size.disk
    texts.append(say("doctor.disk_free", free=size.free / 1e9, size=size.disk / 1e9))
    if left is not None:
        texts.append(say("doctor.full_late") if left > 1000 else say("doctor.full_in", count=round(left)))
    well = share >= FREE_SHARE and (left is None or left >= FULL_WITHIN_DAYS)
    return Check(name, well, joined(texts, "semicolon"), NO_WORDS if well else say("doctor.disk_repair"))


def _values(conn: sa.Connection) -> dict[str, str]:
    names = [*_WRONG, "max_connections", "synchronous_standby_names"]
    rows = conn.execute(
        sa.text("SELECT name, setting FROM pg_settings WHERE name = ANY(:names)"), {"names": names}
    )
    used = conn.scalar(sa.text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"))
    return {name: value for name, value in rows} | {"used": str(used)}


def postgres_settings(values: Mapping[str, str], clusters: int = 1) -> Check:
    """`values`: of pg_settings, and `used` connections."""
    name, most = say("doctor.postgres_settings"), int(values.get("max_connections", "0"))
    wrong = [f"{setting} = {values[setting]}" for setting in _WRONG if values.get(setting) in _WRONG[setting]]
    if wrong:
        names = joined([word.partition(" ")[0] for word in wrong], "comma")
        text = say("doctor.not_durable", settings=joined(wrong, "comma"))
        return Check(name, False, text, say("doctor.not_durable_repair", settings=names))
    text = say("doctor.connections", used=values.get("used", "?"), most=most)
    least = connections_needed(clusters)
    if most < least:
        return Check(name, False, text, say("doctor.connections_repair", least=least))
    return Check(name, True, text)


def standby_checks(values: Mapping[str, str], connected: list[str]) -> list[Check]:
    """`connected`: the names of the standbys that receive from this database. Nothing where there is neither
    a standby nor a name of one."""
    name, given = say("doctor.standbys"), values.get("synchronous_standby_names", "").strip()
    if not given:
        lone = say("doctor.standbys_asynchronous", names=joined(sorted(connected), "comma"))
        return [Check(name, True, lone, say("doctor.standbys_name"))] if connected else []
    wanted, count = synchronous_names(given)
    waits_for = sorted(each for each in connected if "*" in wanted or each.lower() in wanted)
    if len(waits_for) < count:
        there = joined(sorted(connected), "comma") if connected else say("doctor.none")
        text = say(
            "doctor.standbys_missing", given=given, wanted=count, count=len(waits_for), connected=there
        )
        return [Check(name, False, text, say("doctor.standbys_repair"))]
    if values.get("synchronous_commit") == "local":
        return [Check(name, True, say("doctor.standbys_local"), say("doctor.standbys_local_repair"))]
    return [Check(name, True, say("doctor.standbys_well", names=joined(waits_for, "comma")))]


def synchronous_names(given: str) -> tuple[set[str], int]:
    """The names in `synchronous_standby_names`, in small letters, and how many of them a commit waits for:
    `a, b`, `2 (a, b)`, `FIRST 1 (a)`, `ANY 1 (*)`."""
    several = _SEVERAL.fullmatch(given)
    listed = several["names"] if several else given
    names = {name.strip().strip('"').lower() for name in listed.split(",")}
    return names, int(several["count"]) if several else 1


def _newest_backup(conn: sa.Connection) -> datetime | None:
    made = audit_records.c.subject == BACKUP, audit_records.c.verb == BACKED_UP
    query = sa.select(audit_records.c.at).where(*made).order_by(audit_records.c.id.desc()).limit(1)
    return conn.scalar(query)


def backup_age(newest: datetime | None, now: datetime) -> Check:
    """A site may back up by other means, so none at all is no fault."""
    name, repair = say("doctor.backup"), say("doctor.backup_repair")
    if newest is None:
        return Check(name, True, say("doctor.backup_none"), repair)
    text = say("doctor.backup_newest", at=f"{newest:%Y-%m-%d %H:%M} UTC")
    well = now - newest <= BACKUP_WITHIN
    return Check(name, well, text, NO_WORDS if well else repair)


class Token(NamedTuple):
    """A token in force that ends, and is no service account's and no session's."""

    id: str
    name: str
    made: datetime
    end: datetime


def _ending(conn: sa.Connection, now: datetime) -> list[Check]:
    token = tokens.c
    lasting = sa.select(token.id, token.name, token.created_at, token.expires_at).where(
        token.revoked_at.is_(None), ~token.once, token.owner == "", token.groups.is_(None),
        token.expires_at > now,
    )  # fmt: skip
    return ending_tokens([Token(*row) for row in conn.execute(lasting)], now)


def ending_tokens(found: list[Token], now: datetime) -> list[Check]:
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
    named = name_some([say("doctor.token_on", name=name, day=f"{end:%Y-%m-%d}") for end, name in soon], NAMED)
    return [Check(say("doctor.tokens_end"), False, named, say("doctor.tokens_end_repair"))]
