"""Tokens, accounts and sessions of the sample site."""

from datetime import datetime, timedelta
from typing import cast

from healer.engine.controls import IncidentCommands
from healer.engine.leavers import Leavers
from healer.model import Role
from healer.ports.account_book import Account
from healer.ports.clock import Clock
from healer.ports.queries import Queries
from healer.ports.service_accounts import OpenSession, TokenBook, TokenRow

DAY = timedelta(days=1)


class SampleBook:
    """What a `TokenBook` reads."""

    def __init__(self, now: datetime) -> None:
        made, used = now - 76 * DAY, now - timedelta(minutes=4)
        accounts = {"owner": "mara", "created_at": made, "last_used_at": used}
        self._now = now
        self._rows = [
            TokenRow(id="0a0a0a01", name="mara", role=Role.admin, created_at=now - DAY, last_used_at=used),
            TokenRow(
                id="0a0a0a02", name="mara/night-ci", role=Role.operator, routes=("nodes", "runs"),
                expires_at=now + 14 * DAY, **accounts,
            ),
            TokenRow(
                id="0a0a0a03", name="mara/board", role=Role.viewer, expires_at=now + timedelta(hours=9),
                **accounts,
            ),
            TokenRow(
                id="0a0a0a04", name="jon", role=Role.responder, created_at=made, revoked_at=now - DAY,
                cluster="pod1",
            ),
            TokenRow(
                id="0a0a0a05", name="jon/old", owner="jon", role=Role.viewer, created_at=made,
                expires_at=now - DAY,
            ),
        ]  # fmt: skip

    def listed(self, *, person: str | None = None, in_force_at: datetime | None = None) -> list[TokenRow]:
        rows = [row for row in self._rows if person is None or row.is_of(person)]
        return [row for row in rows if in_force_at is None or row.is_in_force(in_force_at)]

    def account_of(self, person: str) -> Account | None:
        if person != "jon":
            return None
        return Account(
            id="0b0b0b0b", name=person, role=Role.responder, groups=(),
            created_at=self._rows[0].created_at, created_by="root",
        )  # fmt: skip

    def sessions_of(self, person: str, now: datetime) -> list[OpenSession]:
        hour = timedelta(hours=1)
        return [OpenSession(token="0a0a0a01", created_at=now - hour, expires_at=now + 11 * hour)]


class _At:
    def __init__(self, now: datetime) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now


def leavers(queries: Queries, now: datetime) -> Leavers:
    """Nothing is ended on the sample site."""
    return Leavers(
        cast(TokenBook, SampleBook(now)), queries, cast(IncidentCommands, None), cast(Clock, _At(now))
    )
