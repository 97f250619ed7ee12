"""Local accounts. One row for each secret of codes: a reset makes a new row, and an ended one stays so."""

import json
from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.audit_rows import append
from healer.adapters.postgres.engine import reading, writing
from healer.adapters.postgres.tables import accounts, people, sessions, tokens
from healer.model import Role, audit_record
from healer.ports.account_book import Account
from healer.ports.directory import LOCAL, UNPROVEN
from healer.ports.request_errors import Conflict
from healer.text import say


class PostgresAccounts:
    """`healer.ports.account_book.AccountBook`. `cluster` gets the audit's records."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def find(self, name: str) -> tuple[Account, str] | None:
        this = sa.select(accounts).where(accounts.c.name == name, accounts.c.ended_at.is_(None))
        with reading(self._engine) as conn:
            row = conn.execute(this).first()
            return None if row is None else (_account(row), row.password)

    def all(self) -> Sequence[Account]:
        in_force = sa.select(accounts).where(accounts.c.ended_at.is_(None)).order_by(accounts.c.name)
        with reading(self._engine) as conn:
            return [_account(row) for row in conn.execute(in_force)]

    def put(self, account: Account, sealed: str) -> None:
        at, by = account.created_at, account.created_by
        role = account.role.value if account.role is not None else None
        with writing(self._engine) as conn:
            if know_locally(conn, account.name, at) != LOCAL:
                raise Conflict(say("engine.account_of_provider", name=account.name))
            ended = end_account(conn, account.name, at)
            _end_sessions(conn, account.name, at)
            row = {"id": account.id, "name": account.name, "password": sealed, "role": role}
            row |= {"groups": json.dumps(account.groups), "created_at": at, "created_by": by}
            conn.execute(sa.insert(accounts).values(row))
            verb = "account.reset" if ended else "account.created"
            data = {"role": role, "groups": account.groups, "account": account.id}
            append(conn, audit_record(self._cluster, at, by, verb, f"person/{account.name}", **data))

    def reseal(self, account: Account, sealed: str, *, keep: str, now: datetime) -> int:
        this = accounts.c.id == account.id, accounts.c.ended_at.is_(None)
        with writing(self._engine) as conn:
            if not conn.execute(sa.update(accounts).where(*this).values(password=sealed)).rowcount:
                raise Conflict(say("api.sign_in_wrong"))
            ended = _end_sessions(conn, account.name, now, keep=keep)
            data = {"account": account.id, "sessions": ended}
            subject = f"person/{account.name}"
            append(conn, audit_record(self._cluster, now, account.name, "account.password", subject, **data))
            return ended


def _end_sessions(conn: sa.Connection, name: str, now: datetime, *, keep: str = "") -> int:
    of_person = sessions.c.token.in_(sa.select(tokens.c.id).where(tokens.c.name == name))
    still_open = of_person, sessions.c.ended_at.is_(None), sessions.c.id != keep
    return conn.execute(sa.update(sessions).where(*still_open).values(ended_at=now)).rowcount


def know_locally(conn: sa.Connection, name: str, now: datetime) -> str | None:
    """Makes the name a person's of this site unless it already is a person's; returns the issuer that vouches
    for it."""
    row = {"name": name, "issuer": LOCAL, "subject": name, "groups": "[]", "created_at": now, "seen_at": now}
    conn.execute(insert(people).values(row).on_conflict_do_nothing())
    left = people.c.name == name, people.c.issuer == LOCAL, people.c.seen_at == UNPROVEN
    conn.execute(sa.update(people).where(*left).values(seen_at=now))  # a person who had left is back
    return issuer_of(conn, name)


def issuer_of(conn: sa.Connection, name: str) -> str | None:
    """The issuer that vouches for the person of this name; None: there is no such person."""
    return conn.scalar(sa.select(people.c.issuer).where(people.c.name == name))


def end_account(conn: sa.Connection, name: str, now: datetime) -> bool:
    """Ends the person's account; end the sessions after this. False: there was none."""
    this = accounts.c.name == name, accounts.c.ended_at.is_(None)
    return bool(conn.execute(sa.update(accounts).where(*this).values(ended_at=now)).rowcount)


def hold_account(conn: sa.Connection, account: str) -> None:
    """Keeps the account from ending until this transaction has opened its session. Raises Conflict if it has
    ended."""
    in_force = sa.select(accounts.c.id).where(accounts.c.id == account, accounts.c.ended_at.is_(None))
    if conn.execute(in_force.with_for_update(read=True)).first() is None:
        raise Conflict(say("api.sign_in_wrong"))


def has_account(name: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether the person of this name can prove their identity again."""
    return sa.exists().where(accounts.c.name == name, accounts.c.ended_at.is_(None))


def _account(row: sa.Row) -> Account:
    return Account(
        id=row.id,
        name=row.name,
        role=None if row.role is None else Role(row.role),
        groups=tuple(json.loads(row.groups)),
        created_at=row.created_at,
        created_by=row.created_by,
    )
