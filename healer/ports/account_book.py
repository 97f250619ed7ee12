"""Local accounts: persons of a site without an identity provider, who prove who they are by a password and a
one-time code."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from healer.model import Role


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Has either a role everywhere, or groups, to which `rules/access.yaml` grants roles."""

    id: str
    name: str
    role: Role | None
    groups: tuple[str, ...]
    created_at: datetime
    created_by: str


class Passwords(Protocol):
    """Slow on purpose. Raises Unavailable where too many wait."""

    def sealed(self, material: bytes) -> str:
        """The hash to keep."""
        ...

    def fits(self, material: bytes, sealed: str) -> bool: ...


class AccountBook(Protocol):
    """Raises Unavailable where the database does not answer."""

    def find(self, name: str) -> tuple[Account, str] | None:
        """The account in force with this name, and the hash of its password."""
        ...

    def all(self) -> Sequence[Account]:
        """Those in force, by name."""
        ...

    def put(self, account: Account, sealed: str) -> None:
        """Makes the account in place of the one of that name, whose sessions end. Raises Conflict where the
        name is another person's."""

    def reseal(self, account: Account, sealed: str, *, keep: str, now: datetime) -> int:
        """Keeps another hash and ends the person's sessions but `keep`; the number of them. Raises Conflict
        where the account is no longer in force."""
        ...
