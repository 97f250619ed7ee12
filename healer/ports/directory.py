"""People as the site's identity provider knows them, or this site alone, and their sessions."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

import msgspec

from healer.model import Role

#: The issuer of persons whom this site alone knows.
LOCAL = "local"
#: A session ends when it was not used for so long, and in any case after so long.
SESSION_IDLE, SESSION_LASTS = timedelta(hours=8), timedelta(hours=12)
#: When who came by a munge credential proved who they are: never. No provider's `auth_time` is this one.
UNPROVEN = datetime(1900, 1, 1, tzinfo=UTC)


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is theirs alone, bound to the provider's subject. `groups` as of the last sign-in, `seen_at`."""

    name: str
    issuer: str
    subject: str
    groups: tuple[str, ...] = ()
    seen_at: datetime = UNPROVEN


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the provider has just vouched for. `names`: what they may be called, the best first. `sid`: the
    provider's own session, or the local account. `once`: what makes this arrival one, so that it counts a
    single time."""

    issuer: str
    subject: str
    names: tuple[str, ...]
    groups: tuple[str, ...]
    proven_at: datetime
    once: str
    sid: str = ""


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """An open session, for lists. `agent`: the browser, as it says itself."""

    id: str
    name: str
    role: Role
    created_at: datetime
    seen_at: datetime
    ends_at: datetime
    agent: str = ""


class Directory(Protocol):
    """Who is a person. Raises Unavailable where the database does not answer."""

    def find(self, name: str) -> Person | None: ...


class People(Directory, Protocol):
    """Digests are SHA-256. Raises Unavailable where the database does not answer."""

    def arrive(
        self, arrival: Arrival, session: bytes, *, token: str, role: Role, agent: str, now: datetime
    ) -> Person:
        """Opens a session; Conflict where this arrival was used before. `token`: the id to make."""
        ...

    def wait_for_seal(self, token: str) -> bool:
        """Whether an arrival counts by now; waits some seconds for it."""
        ...

    def sessions(self, now: datetime, *, name: str | None = None) -> Sequence[SessionRow]:
        """Open ones, the newest first; `name`: of this person alone."""
        ...

    def end(self, session: str, *, by: str, now: datetime, name: str | None = None) -> bool:
        """False where there is no such open session (of this person)."""
        ...

    def end_by_provider(self, issuer: str, *, subject: str, sid: str, now: datetime) -> int:
        """Ends the sessions that the provider has ended; the number of them. An empty `sid`: all of the
        subject."""
        ...
