"""People and their sessions."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.account_rows import hold_account
from healer.adapters.postgres.audit_rows import append
from healer.adapters.postgres.engine import reading, writing
from healer.adapters.postgres.tables import people, sessions, tokens
from healer.adapters.postgres.tokens import PostgresTokens, keyed, open_at, session_row
from healer.model import Role, audit_record
from healer.ports.directory import LOCAL, SESSION_LASTS, UNPROVEN, Arrival, Person, SessionRow
from healer.ports.request_errors import Conflict
from healer.text import say


class PostgresPeople:
    """`healer.ports.directory.People`. `cluster` gets the audit's records."""

    def __init__(self, engine: sa.Engine, cluster: str, key: bytes) -> None:
        self._engine, self._cluster, self._key = engine, cluster, key

    def find(self, name: str) -> Person | None:
        with reading(self._engine) as conn:
            row = conn.execute(sa.select(people).where(people.c.name == name)).first()
            return None if row is None else _person(row)

    def arrive(
        self, arrival: Arrival, session: bytes, *, token: str, role: Role, agent: str, now: datetime
    ) -> Person:
        """The session's token has no secret that anybody holds: its record in the audit says whose it is, by
        which groups. Its id is the arrival's, so that the primary key refuses the second use of one."""
        groups, until = json.dumps(sorted(set(arrival.groups))), now + SESSION_LASTS
        # A local account without groups has its role by itself, as a token has.
        granting = None if arrival.issuer == LOCAL and not arrival.groups else groups
        with writing(self._engine) as conn:
            if arrival.issuer == LOCAL:
                hold_account(conn, arrival.sid)
            person = self._bound(conn, arrival, groups, now)
            row = {"id": token, "digest": keyed(self._key, b"no secret " + session), "role": role.value}
            row |= {"name": person.name, "groups": granting}
            row |= {"once": True, "created_at": now, "used_at": now, "expires_at": until}
            made = insert(tokens).values(row).on_conflict_do_nothing(index_elements=["id"])
            if conn.execute(made.returning(tokens.c.id)).first() is None:
                raise Conflict(say("api.sign_in_used_before"))
            data = {"role": role.value, "name": person.name, "groups": granting, "once": True}
            data |= {"issuer": arrival.issuer, "subject": arrival.subject}
            self._append(conn, now, person.name, "token.created", f"token/{token}", **data)
            opened = session_row(keyed(self._key, session), token, now, until)
            opened |= {"proven_at": arrival.proven_at, "sid": arrival.sid, "agent": agent}
            conn.execute(sa.insert(sessions).values(opened))
            self._append(conn, now, person.name, "session.opened", f"token/{token}", session=opened["id"])
            return person

    def _bound(self, conn: sa.Connection, arrival: Arrival, groups: str, now: datetime) -> Person:
        """The subject's person; a new subject gets the first of its names that is free."""
        this = people.c.issuer == arrival.issuer, people.c.subject == arrival.subject
        if arrival.proven_at == UNPROVEN:  # no word of the provider on the groups
            return _person(conn.execute(sa.select(people).where(*this)).one())
        seen = sa.update(people).where(*this).values(groups=groups, seen_at=now).returning(*people.c)
        row = conn.execute(seen).first()
        for name in arrival.names if row is None else ():
            values = {"name": name, "issuer": arrival.issuer, "subject": arrival.subject, "groups": groups}
            new = insert(people).values(values | {"created_at": now, "seen_at": now})
            row = conn.execute(new.on_conflict_do_nothing().returning(*people.c)).first()
            row = row or conn.execute(seen).first()  # the same subject may arrive twice at once
            if row is not None:
                data = {"issuer": arrival.issuer, "subject": arrival.subject}
                self._append(conn, now, row.name, "person.arrived", f"person/{row.name}", **data)
                break
        if row is None:
            raise Conflict(say("api.sign_in_names_taken", names=", ".join(arrival.names)))
        return _person(row)

    def wait_for_seal(self, token: str) -> bool:
        return PostgresTokens(self._engine, self._cluster, self._key).wait_for_seal(f"heal_{token}_")

    def sessions(self, now: datetime, *, name: str | None = None) -> Sequence[SessionRow]:
        of_person = [tokens.c.name == name] if name is not None else []
        columns = (sessions.c.id, tokens.c.name, tokens.c.role, sessions.c.created_at, sessions.c.seen_at)
        found = sa.select(*columns, sessions.c.expires_at, sessions.c.agent)
        found = found.join(tokens, tokens.c.id == sessions.c.token)
        found = found.where(*open_at(now), tokens.c.revoked_at.is_(None), *of_person)
        with reading(self._engine) as conn:
            rows = conn.execute(found.order_by(sessions.c.created_at.desc()).limit(1000))
            return [
                SessionRow(
                    id=row.id, name=row.name, role=Role(row.role), created_at=row.created_at,
                    seen_at=row.seen_at, ends_at=row.expires_at, agent=row.agent,
                )
                for row in rows
            ]  # fmt: skip

    def end(self, session: str, *, by: str, now: datetime, name: str | None = None) -> bool:
        of_person = [tokens.c.name == name] if name is not None else []
        if self._end([sessions.c.id == session, *of_person], by, now):
            return True
        found = sa.select(sessions.c.id).join(tokens, tokens.c.id == sessions.c.token)
        with reading(self._engine) as conn:
            return conn.scalar(found.where(sessions.c.id == session, *of_person)) is not None

    def end_by_provider(self, issuer: str, *, subject: str, sid: str, now: datetime) -> int:
        of_issuer = sa.select(people.c.name).where(people.c.issuer == issuer)
        these = [sessions.c.sid == sid] if sid else []
        if subject or not sid:
            of_issuer = of_issuer.where(people.c.subject == subject)
        return self._end([*these, tokens.c.name.in_(of_issuer), tokens.c.groups.is_not(None)], issuer, now)

    def _end(self, these: list[sa.ColumnElement[bool]], by: str, now: datetime) -> int:
        wanted = sa.and_(sessions.c.token == tokens.c.id, *open_at(now), *these)
        ending = sa.update(sessions).where(wanted).values(ended_at=now)
        with writing(self._engine) as conn:
            rows = conn.execute(ending.returning(sessions.c.id, tokens.c.id, tokens.c.name)).all()
            for session, token, name in rows:
                data = {"session": session, "of": name}
                self._append(conn, now, by, "session.ended", f"token/{token}", **data)
            return len(rows)

    def _append(
        self, conn: sa.Connection, now: datetime, who: str, verb: str, about: str, **data: Any
    ) -> None:
        append(conn, audit_record(self._cluster, now, who, verb, about, **data))


def _person(row: sa.Row) -> Person:
    groups = tuple(json.loads(row.groups))
    return Person(name=row.name, issuer=row.issuer, subject=row.subject, groups=groups, seen_at=row.seen_at)
