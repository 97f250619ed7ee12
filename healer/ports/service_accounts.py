"""Service accounts: tokens of programs. Each is named `owner/name`, where the owner is a person; it expires,
and may be restricted to groups of routes."""

import re
import secrets
import string
import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from healer.model import Role
from healer.ports.account_book import Account

#: Values of `--only`: the first part of a route's path after /api/v1, and /metrics.
ROUTE_GROUPS = (
    "audit", "break-glass", "breaker", "devices", "events", "evidence", "goodput", "incidents", "jobs",
    "messages", "metrics", "nodes", "pauses", "people", "playbooks", "reconcile", "recordings",
    "references", "rehearsals", "rules", "runs", "scrape", "signals", "stats", "tokens",
)  # fmt: skip
#: The longest lifetime of an account above viewer; and the roles that are not above it.
LASTS_AT_MOST = timedelta(days=90)
LASTS_LONGER = frozenset({Role.viewer, Role.signals})
#: How long a rotated token remains valid after the new one was created.
OVERLAP = timedelta(days=7)
#: People are informed this long before an account ends, and when it has ended.
AHEAD = (timedelta(days=14), timedelta(days=3), timedelta(0))
#: An older end is no news, such as after a long downtime of the scheduler.
ENDED_FOR = timedelta(days=2)

PREFIX, ACCOUNT_PREFIX = "heal_", "healer_sa_"
#: For a session of a command, not a browser: `healer login`.
LOGIN_PREFIX = "healer_login_"
_LETTERS = string.digits + string.ascii_letters
_SECRET_LETTERS, _SUM_LETTERS = 42, 6
_FORM = re.compile(
    rf"({ACCOUNT_PREFIX}[0-9a-f]{{8}}|{LOGIN_PREFIX}[0-9a-f]{{24}})"
    rf"_[0-9A-Za-z]{{{_SECRET_LETTERS + _SUM_LETTERS}}}"
)


def is_person(name: str) -> bool:
    """Whether an actor's name may be a person's: no person's name contains a slash."""
    return "/" not in name


def person_of(name: str) -> str:
    """The person responsible for an actor: a person themselves, the owner for a service account."""
    return name.partition("/")[0]


def account_secret(identity: str) -> str:
    """A new secret, in a form that secret scanners recognise: with its own prefix and a checksum."""
    return _secret(f"{ACCOUNT_PREFIX}{identity}_")


def login_secret(identity: str) -> str:
    """The same for the session of a command."""
    return _secret(f"{LOGIN_PREFIX}{identity}_")


def _secret(start: str) -> str:
    body = start + "".join(secrets.choice(_LETTERS) for _ in range(_SECRET_LETTERS))
    return body + _checksum(body)


def is_well_formed(secret: str) -> bool:
    """False if it cannot be a token: without our prefix, or with a wrong checksum. The database need not be
    queried then."""
    if not secret.startswith((ACCOUNT_PREFIX, LOGIN_PREFIX)):
        return secret.startswith(PREFIX)
    if _FORM.fullmatch(secret) is None:
        return False
    return secret[-_SUM_LETTERS:] == _checksum(secret[:-_SUM_LETTERS])


def id_in(secret: str) -> str:
    """The id contained in a secret; a bare id is returned unchanged."""
    return secret.removeprefix(ACCOUNT_PREFIX).removeprefix(PREFIX).partition("_")[0]


def _checksum(body: str) -> str:
    rest, letters = zlib.crc32(body.encode()), ""
    for _ in range(_SUM_LETTERS):
        rest, letter = divmod(rest, len(_LETTERS))
        letters = _LETTERS[letter] + letters
    return letters


class TokenRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token or a service account, without its secret. `owner`: the person who owns the account; empty for
    other tokens. `routes`: the groups of routes that it may use; none: all that its role may."""

    id: str
    role: Role
    name: str
    created_at: datetime
    owner: str = ""
    routes: tuple[str, ...] = ()
    node: str | None = None
    job: str | None = None
    cluster: str | None = None
    vouches: str = ""
    quota: float = 1.0
    once: bool = False
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    #: To the minute; None: never, or it is of a node or a job, whose use `/signals/senders` shows.
    last_used_at: datetime | None = None

    def is_in_force(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)

    def is_of(self, person: str) -> bool:
        """Whether this person holds it: as their own token, or as an account that they own."""
        return person in (self.owner, self.name)


class OpenSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session of the console, by the token that opened it."""

    token: str
    created_at: datetime
    expires_at: datetime


class Rotated(msgspec.Struct, frozen=True, kw_only=True):
    """The new secret, shown only once; `ends_at`: when the previous one ends."""

    token: str
    expires_at: datetime | None
    ends_at: datetime


class TokenBook(Protocol):
    """Tokens as shown to people and on pages, without those of nodes and jobs. Raises Unavailable."""

    def listed(self, *, person: str | None = None, in_force_at: datetime | None = None) -> list[TokenRow]:
        """Newest first. `person`: only what this person holds."""
        ...

    def revoke(self, identity: str, *, by: str, now: datetime, reason: str = "") -> bool:
        """Also ends its sessions. False if there is no such token, or it was revoked before."""
        ...

    def account_of(self, person: str) -> Account | None:
        """The local account with which the person signs in."""
        ...

    def sessions_of(self, person: str, now: datetime) -> list[OpenSession]:
        """Newest first."""
        ...

    def end_person(self, person: str, *, by: str, now: datetime, reason: str) -> list[TokenRow]:
        """Revokes everything that the person holds, and ends the local account and the sessions, in one
        transaction with its record. Returns what was in force."""
        ...

    def used(self, at: Mapping[str, datetime]) -> None:
        """Records when tokens were last used, by their ids."""


def ending(rows: Sequence[TokenRow], now: datetime) -> list[tuple[TokenRow, timedelta]]:
    """Accounts that end soon or ended recently, each with its due notice: the last of AHEAD that has been
    reached. No notice if one of the same name that lasts longer replaces it, or if its whole lifetime was
    shorter than the notice."""
    lasting: dict[str, datetime] = {}
    for row in rows:
        if row.owner and row.expires_at is not None and row.revoked_at is None:
            lasting[row.name] = max(row.expires_at, lasting.get(row.name, row.expires_at))
    due: list[tuple[TokenRow, timedelta]] = []
    for row in rows:
        if row.revoked_at is not None or row.expires_at is None or row.expires_at <= now - ENDED_FOR:
            continue
        if lasting.get(row.name) != row.expires_at:
            continue
        left, whole = row.expires_at - now, row.expires_at - row.created_at
        reached = [ahead for ahead in AHEAD if left <= ahead < whole]
        if reached:
            due.append((row, reached[-1]))
    return due
