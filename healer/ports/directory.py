"""People as known by the site's identity provider, or only by this site, and their sessions."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

import msgspec

from healer.model import Role

#: The issuer of people known only by this site.
LOCAL = "local"
#: A session ends when it was unused for this long, and in any case after this long.
SESSION_IDLE, SESSION_LASTS = timedelta(hours=8), timedelta(hours=12)
#: The proof time of someone who came with a munge credential: never. No provider's `auth_time` equals it.
UNPROVEN = datetime(1900, 1, 1, tzinfo=UTC)


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """`name` belongs to this person alone, bound to the provider's subject. `groups` as of the last sign-in,
    `seen_at`."""

    name: str
    issuer: str
    subject: str
    groups: tuple[str, ...] = ()
    seen_at: datetime = UNPROVEN


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A person for whom the provider has just vouched. `names`: possible names, best first. `sid`: the
    provider's own session, or the local account. `once`: identifies this arrival, so that it is valid only
    once."""

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
    """Looks up people. Raises Unavailable if the database does not answer."""

    def find(self, name: str) -> Person | None: ...


class People(Directory, Protocol):
    """Digests are SHA-256. Raises Unavailable if the database does not answer."""

    def arrive(
        self, arrival: Arrival, session: bytes, *, token: str, role: Role, agent: str, now: datetime
    ) -> Person:
        """Opens a session; raises Conflict if this arrival was used before. `token`: the id to create."""
        ...

    def wait_for_seal(self, token: str) -> bool:
        """Whether an arrival is valid by now; waits some seconds for it."""
        ...

    def sessions(self, now: datetime, *, name: str | None = None) -> Sequence[SessionRow]:
        """Open sessions, newest first; `name`: only of this person."""
        ...

    def end(self, session: str, *, by: str, now: datetime, name: str | None = None) -> bool:
        """False if there is no such session (of this person). One that is over stays as it is."""
        ...

    def end_by_provider(self, issuer: str, *, subject: str, sid: str, now: datetime) -> int:
        """Ends the sessions that the provider has ended; returns their number. An empty `sid`: all of the
        subject."""
        ...
