"""Break-glass access: a sealed secret, kept in a safe, makes its bearer an administrator for an hour."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from healer.model import Message

LASTS = timedelta(hours=1)


class GlassState(msgspec.Struct, frozen=True, kw_only=True):
    """The latest seal, and what became of it. None of its times: it has not happened."""

    sealed_at: datetime | None = None
    sealed_by: str = ""
    used_at: datetime | None = None
    used_by: str = ""
    reason: str = ""
    until: datetime | None = None
    ended_at: datetime | None = None
    ended_by: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether a seal lies ready."""
        return self.sealed_at is not None and self.used_at is None and self.ended_at is None

    def is_open(self, now: datetime) -> bool:
        """Whether someone is an administrator by it now."""
        return self.until is not None and self.ended_at is None and now < self.until


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """An hour as an administrator: its token and session by their secrets. `name` is that of the token."""

    token: str
    cookie: str
    name: str
    reason: str
    at: datetime
    until: datetime

    @property
    def id(self) -> str:
        return self.token.split("_")[1]


class BreakGlass(Protocol):
    """The seal. Each call is one transaction with its audit record and message. Raises Unavailable."""

    def seal(self, secret: str, *, by: str, now: datetime, message: Message) -> None:
        """Creates the seal, in place of the previous one."""

    def use(self, secret: str, opening: Opening, message: Message) -> bool:
        """Breaks the seal and creates the token; False if the secret does not match a seal in force."""
        ...

    def end(
        self, *, by: str, reason: str, now: datetime, message: Callable[[GlassState], Message]
    ) -> GlassState | None:
        """Ends the present hour, its token and its sessions; None: there is none."""
        ...

    def state(self) -> GlassState: ...

    def wait_for_seal(self, secret: str) -> bool:
        """Whether the audit has sealed the record of the token's creation; waits some seconds for it."""
        ...
