"""What people see of tokens and service accounts, and what ends or replaces them."""

from collections.abc import Callable, Mapping
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from healer.adapters.postgres.account_rows import PostgresAccounts, end_account
from healer.adapters.postgres.audit_rows import append
from healer.adapters.postgres.engine import pick, reading, writing
from healer.adapters.postgres.tables import people, sessions, tokens
from healer.adapters.postgres.tokens import PostgresTokens, in_force
from healer.model import Role, audit_record
from healer.model.grants import ACTING, OWNED
from healer.model.person_names import broke_glass
from healer.ports.account_book import Account
from healer.ports.callers import NewToken
from healer.ports.directory import LOCAL, UNPROVEN
from healer.ports.request_errors import NotFound
from healer.ports.service_accounts import ENDED_FOR, OpenSession, Rotated, TokenRow, id_in
from healer.text import say

_FIELDS = (
    "id", "name", "node", "job", "cluster", "quota", "vouches", "owner", "once", "created_at", "expires_at",
    "revoked_at", "last_used_at",
)  # fmt: skip
_ROW = tuple(tokens.c[name] for name in (*_FIELDS, "role", "routes"))
#: What the scheduler may read.
_ENDING = ("id", "name", "owner", "cluster", "created_at", "expires_at", "revoked_at")


class PostgresTokenBook(PostgresTokens):
    """`healer.ports.service_accounts.TokenBook`, and what `healer token` does with tokens."""

    def listed(self, *, person: str | None = None, in_force_at: datetime | None = None) -> list[TokenRow]:
        of_people = sa.select(*_ROW).where(tokens.c.node.is_(None), tokens.c.job.is_(None))
        if person is not None:
            of_people = of_people.where(sa.or_(tokens.c.name == person, tokens.c.owner == person))
        if in_force_at is not None:
            of_people = of_people.where(*in_force(in_force_at))
        with reading(self._engine) as conn:
            return [_row(row) for row in conn.execute(of_people.order_by(tokens.c.created_at.desc()))]

    def all(self) -> list[TokenRow]:
        """Those of nodes and jobs too, newest first."""
        with reading(self._engine) as conn:
            return [_row(row) for row in conn.execute(sa.select(*_ROW).order_by(tokens.c.created_at.desc()))]

    def revoke(self, identity: str, *, by: str, now: datetime, reason: str = "") -> bool:
        with writing(self._engine) as conn:
            return bool(self._revoke(conn, tokens.c.id == identity, by, now, reason))

    def revoke_accounts(self, owner: str, *, by: str, now: datetime, reason: str = "") -> list[TokenRow]:
        """All service accounts of this person that were in force."""
        with writing(self._engine) as conn:
            these = sa.and_(tokens.c.owner == owner, *in_force(now))
            _await_rotations(conn, tokens.c.owner == owner)
            return self._revoke(conn, these, by, now, reason)

    def account_of(self, person: str) -> Account | None:
        found = PostgresAccounts(self._engine, self._cluster).find(person)
        return None if found is None else found[0]

    def sessions_of(self, person: str, now: datetime) -> list[OpenSession]:
        columns = sessions.c.token, sessions.c.created_at, sessions.c.expires_at
        is_open = sessions.c.ended_at.is_(None), sessions.c.expires_at > now, tokens.c.revoked_at.is_(None)
        wanted = sa.select(*columns).join(tokens, tokens.c.id == sessions.c.token)
        wanted = wanted.where(tokens.c.name == person, *is_open).order_by(sessions.c.created_at.desc())
        with reading(self._engine) as conn:
            return [OpenSession(**row) for row in conn.execute(wanted).mappings()]

    def end_person(self, person: str, *, by: str, now: datetime, reason: str) -> list[TokenRow]:
        of_person = sa.or_(tokens.c.name == person, tokens.c.owner == person)
        with writing(self._engine) as conn:
            # Used sign-in links too: a session lasts as long as its token is not revoked. The account ends in
            # the same transaction: no sign-in comes between.
            _await_rotations(conn, of_person)
            rows = self._revoke(conn, of_person, by, now, reason)
            had_account = end_account(conn, person, now)
            # The provider's last information about a person who left no longer counts: see `healer login
            # --munge`.
            conn.execute(sa.update(people).where(people.c.name == person).values(seen_at=UNPROVEN))
            held = sa.select(tokens.c.id).where(of_person)
            opened = sessions.c.token.in_(held), sessions.c.ended_at.is_(None)
            ended = conn.execute(sa.update(sessions).where(*opened).values(ended_at=now)).rowcount
            data = {"reason": reason, "tokens": [row.id for row in rows], "sessions": ended}
            if had_account:
                data["account"] = person
            if rows or ended or had_account:
                append(conn, audit_record(self._cluster, now, by, "person.ended", f"person/{person}", **data))
            return [row for row in rows if row.expires_at is None or row.expires_at > now]

    def _revoke(
        self, conn: sa.Connection, which: sa.ColumnElement[bool], by: str, now: datetime, reason: str
    ) -> list[TokenRow]:
        revoking = sa.update(tokens).where(which, tokens.c.revoked_at.is_(None)).values(revoked_at=now)
        rows = sorted(map(_row, conn.execute(revoking.returning(*_ROW))), key=lambda row: row.id)
        why = {"reason": reason} if reason else {}
        for row in rows:
            where, subject = row.cluster or self._cluster, f"token/{row.id}"
            append(conn, audit_record(where, now, by, "token.revoked", subject, **why))
        return rows

    def rotate(
        self,
        identity: str,
        succeed: Callable[[TokenRow], NewToken],
        *,
        by: str,
        now: datetime,
        ends: datetime,
    ) -> Rotated:
        """Makes the token that `succeed` answers, and lets this one end then, in one transaction. Raises
        NotFound."""
        with writing(self._engine) as conn:
            this = sa.select(*_ROW).where(tokens.c.id == identity).with_for_update()
            found = conn.execute(this).first()
            if found is None:
                raise NotFound(say("engine.no_token", token=identity))
            row = _row(found)
            new = succeed(row)
            secret = self.create_in(conn, new, by, now)
            ends_at = min(ends, row.expires_at or ends)
            conn.execute(sa.update(tokens).where(tokens.c.id == identity).values(expires_at=ends_at))
            data = {"by_token": id_in(secret), "ends_at": ends_at.isoformat()}
            where, subject = row.cluster or self._cluster, f"token/{identity}"
            append(conn, audit_record(where, now, by, "token.rotated", subject, **data))
            return Rotated(token=secret, expires_at=new.expires_at, ends_at=ends_at)

    def used(self, at: Mapping[str, datetime]) -> None:
        ids, moments = list(at), list(at.values())
        used = sa.select(
            sa.func.unnest(sa.cast(ids, ARRAY(sa.Text))).label("id"),
            sa.func.unnest(sa.cast(moments, ARRAY(sa.DateTime(timezone=True)))).label("at"),
        ).subquery("used")
        latest = sa.func.greatest(tokens.c.last_used_at, used.c.at)
        with writing(self._engine) as conn:
            conn.execute(sa.update(tokens).where(tokens.c.id == used.c.id).values(last_used_at=latest))


def _await_rotations(conn: sa.Connection, which: sa.ColumnElement[bool]) -> None:
    """A statement that waits for a rotation does not see the token that the rotation makes: the next one
    does."""
    conn.execute(sa.select(tokens.c.id).where(which).with_for_update())


def accounts_ending(engine: sa.Engine, now: datetime) -> list[TokenRow]:
    """What the scheduler may read of the service accounts that are in force or ended lately, newest first.
    Raises Unavailable."""
    columns = [tokens.c[name] for name in (*_ENDING, "role")]
    wanted = sa.select(*columns).where(tokens.c.owner != "", *in_force(now - ENDED_FOR))
    with reading(engine) as conn:
        rows = conn.execute(wanted.order_by(tokens.c.created_at.desc()))
        return [TokenRow(**pick(row, *_ENDING), role=Role(row.role)) for row in rows]


def tokens_of_no_person(engine: sa.Engine, now: datetime, *, provided: bool) -> list[str]:
    """Names of the tokens above viewer that may only read: they are no person's and no service account's.
    `provided`: an identity provider says who is a person. Raises Unavailable."""
    person = sa.select(people.c.name).where(*[people.c.issuer != LOCAL] if provided else ())
    wanted = sa.select(tokens.c.name).where(
        tokens.c.role.in_([role.value for role in ACTING]), tokens.c.once.is_(False), *in_force(now),
        tokens.c.name.not_like(f"%{OWNED}%"), tokens.c.name.not_in(person),
    )  # fmt: skip
    with reading(engine) as conn:
        return [name for name in conn.scalars(wanted.order_by(tokens.c.name)) if not broke_glass(name)]


def _row(row: sa.Row) -> TokenRow:
    values = pick(row, *_FIELDS)
    return TokenRow(**values, role=Role(row.role), routes=tuple(row.routes.split()))
