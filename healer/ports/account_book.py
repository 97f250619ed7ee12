"""Local accounts: people of a site without an identity provider, who sign in with a password and a one-time
code."""

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
    """Slow on purpose. Raises Unavailable if too many requests wait."""

    def sealed(self, material: bytes) -> str:
        """The hash to store."""
        ...

    def fits(self, material: bytes, sealed: str) -> bool: ...


class AccountBook(Protocol):
    """Raises Unavailable if the database does not answer."""

    def find(self, name: str) -> tuple[Account, str] | None:
        """The account in force with this name, and the hash of its password."""
        ...

    def all(self) -> Sequence[Account]:
        """Accounts in force, by name."""
        ...

    def put(self, account: Account, sealed: str) -> None:
        """Stores the account in place of the one with that name, whose sessions end. Raises Conflict if the
        name belongs to another person."""

    def reseal(self, account: Account, sealed: str, *, keep: str, now: datetime) -> int:
        """Replaces the hash and ends the person's sessions except `keep`; returns their number. Raises
        Conflict if the account is no longer in force."""
        ...
