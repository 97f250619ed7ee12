"""Tokens and sessions: rows that hold only SHA-256 digests. Secrets of 256 bits need no slow hash."""

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.audit_rows import append
from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.tables import sessions, tokens
from healer.model import Role, audit_record
from healer.ports.callers import Caller, Enrolled
from healer.ports.request_errors import Conflict, Forbidden, TooMany

_CALLER = (
    tokens.c.id,
    tokens.c.name,
    tokens.c.role,
    tokens.c.node,
    tokens.c.job,
    tokens.c.cluster,
    tokens.c.quota,
)

#: How long an enrolled token lasts (the follower renews it long before), and those before it still do.
ENROLLED_FOR = timedelta(days=90)
GRACE = timedelta(minutes=10)
#: Enrolments of one node in an hour; of a job as many, or this for each of its nodes.
ENROLMENTS_PER_H = 10
JOB_ENROLMENTS_PER_NODE = 4
#: How long a job's own token lasts: whoever still runs gets a new one, and nobody does after the job's end.
JOB_ENROLLED_FOR = timedelta(days=1)
#: What is deleted of such tokens when one is made: as many, ended that long ago. Their audit stays.
_OLD_JOBS, _ENDED_FOR = 1_000, timedelta(days=1)


class PostgresTokens:
    """`healer.ports.callers.Tokens`, and what `healer token` does."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        """`cluster` is where the audit records of tokens bound to no cluster go."""
        self._engine = engine
        self._cluster = cluster

    def by_token(self, digest: bytes, now: datetime) -> Caller | None:
        statement = sa.select(*_CALLER).where(
            tokens.c.digest == digest, tokens.c.once.is_(False), *_in_force(now)
        )
        return self._find(statement)

    def by_session(self, digest: bytes, now: datetime) -> Caller | None:
        """A session lasts until its own end, and ends at once with its token's revocation."""
        statement = (
            sa.select(*_CALLER)
            .join(sessions, sessions.c.token == tokens.c.id)
            .where(
                sessions.c.digest == digest,
                sessions.c.ended_at.is_(None),
                sessions.c.expires_at > now,
                tokens.c.revoked_at.is_(None),
            )
        )
        return self._find(statement)

    def sign_in(self, digest: bytes, session: bytes, *, now: datetime, until: datetime) -> Caller | None:
        """Uses up a one-time link and opens a session in one transaction, so only one of two presses wins."""
        with translated(), self._engine.begin() as conn:
            row = conn.execute(
                sa.update(tokens)
                .where(
                    tokens.c.digest == digest,
                    tokens.c.once.is_(True),
                    tokens.c.used_at.is_(None),
                    *_in_force(now),
                )
                .values(used_at=now)
                .returning(*_CALLER)
            ).first()
            if row is None:
                return None
            conn.execute(
                sa.insert(sessions).values(digest=session, token=row.id, created_at=now, expires_at=until)
            )
            caller = _caller(row)
            self._record(conn, "session.opened", caller.id, by=caller.name, at=now, cluster=caller.cluster)
            return caller

    def sign_out(self, session: bytes, now: datetime) -> None:
        with translated(), self._engine.begin() as conn:
            conn.execute(
                sa.update(sessions)
                .where(sessions.c.digest == session, sessions.c.ended_at.is_(None))
                .values(ended_at=now)
            )

    def create(
        self,
        *,
        role: Role,
        name: str,
        now: datetime,
        by: str,
        node: str | None = None,
        job: str | None = None,
        cluster: str | None = None,
        expires_at: datetime | None = None,
        once: bool = False,
        quota: float = 1.0,
    ) -> str:
        """Makes a token and returns it: the only moment at which its secret is known."""
        identity = secrets.token_hex(4)
        name = name or f"{role.value}-{identity}"
        secret = f"heal_{identity}_{secrets.token_urlsafe(32)}"
        with translated(), self._engine.begin() as conn:
            conn.execute(
                sa.insert(tokens).values(
                    id=identity,
                    digest=hashlib.sha256(secret.encode()).digest(),
                    role=role.value,
                    name=name,
                    node=node,
                    job=job,
                    cluster=cluster,
                    created_at=now,
                    expires_at=expires_at,
                    once=once,
                    quota=quota,
                )
            )
            bound = {"node": node, "job": job, "cluster": cluster}
            data = {"role": role.value, "name": name, "once": once} | {k: v for k, v in bound.items() if v}
            if quota != 1:
                data["quota"] = quota
            self._record(conn, "token.created", identity, by=by, at=now, cluster=cluster, data=data)
        return secret

    def enroll(self, cluster: str, node: str, *, nonce: str, by: str, now: datetime) -> Enrolled:
        """One transaction. The id follows from the nonce: the primary key refuses it a second time."""
        identity = hashlib.sha256(f"enroll\0{cluster}\0{node}\0{nonce}".encode()).hexdigest()[:24]
        secret = f"heal_{identity}_{secrets.token_urlsafe(32)}"
        until, name = now + ENROLLED_FOR, f"node {cluster}/{node}"
        own = (tokens.c.cluster == cluster, tokens.c.node == node, tokens.c.role == Role.signals.value)
        with translated(), self._engine.begin() as conn:
            made = sa.select(tokens.c.revoked_at, tokens.c.created_at, tokens.c.name).where(*own)
            rows = conn.execute(made.order_by(tokens.c.created_at.desc()).limit(100)).all()
            if rows and rows[0].revoked_at is not None:
                raise Forbidden(
                    f"the token of {node} was revoked by a person; one who wants it back makes a new one: "
                    f"healer token create --role signals --node {node} --cluster {cluster}"
                )
            hour = sum(row.name == name and row.created_at > now - timedelta(hours=1) for row in rows)
            if hour >= ENROLMENTS_PER_H:
                raise TooMany(f"{node} has enrolled {hour} times within an hour", 600)
            new = insert(tokens).values(
                id=identity, digest=hashlib.sha256(secret.encode()).digest(), role=Role.signals.value,
                name=name, node=node, cluster=cluster, created_at=now, expires_at=until,
            )  # fmt: skip
            once = new.on_conflict_do_nothing(index_elements=["id"]).returning(tokens.c.id)
            if conn.execute(once).first() is None:
                raise Conflict("this credential was used before; each attempt needs a new one")
            older = (*own, tokens.c.name == name, tokens.c.id != identity, tokens.c.expires_at > now + GRACE)
            conn.execute(sa.update(tokens).where(*older).values(expires_at=now + GRACE))
            data = {"role": Role.signals.value, "name": name, "node": node, "cluster": cluster}
            self._record(conn, "token.enrolled", identity, by=by, at=now, cluster=cluster, data=data)
        return Enrolled(token=secret, expires_at=until)

    def enroll_job(
        self, cluster: str, job: str, *, nodes: int, nonce: str, by: str, now: datetime
    ) -> Enrolled:
        """Like `enroll`; the job's other tokens stay, because each of its nodes has one."""
        identity = hashlib.sha256(f"enroll job\0{cluster}\0{job}\0{nonce}".encode()).hexdigest()[:24]
        secret = f"heal_{identity}_{secrets.token_urlsafe(32)}"
        until, name = now + JOB_ENROLLED_FOR, f"job {cluster}/{job}"
        own = (tokens.c.cluster == cluster, tokens.c.job == job, tokens.c.name == name)
        hour = sa.func.count().filter(tokens.c.created_at > now - timedelta(hours=1))
        with translated(), self._engine.begin() as conn:
            made, revoked = conn.execute(sa.select(hour, sa.func.max(tokens.c.revoked_at)).where(*own)).one()
            if revoked is not None:
                raise Forbidden(f"a token of the job {job} was revoked by a person: it gets no other")
            if made >= max(ENROLMENTS_PER_H, JOB_ENROLMENTS_PER_NODE * nodes):
                raise TooMany(f"the job {job} has enrolled {made} times within an hour", 600)
            new = insert(tokens).values(
                id=identity, digest=hashlib.sha256(secret.encode()).digest(), role=Role.signals.value,
                name=name, job=job, cluster=cluster, created_at=now, expires_at=until,
            )  # fmt: skip
            once = new.on_conflict_do_nothing(index_elements=["id"]).returning(tokens.c.id)
            if conn.execute(once).first() is None:
                raise Conflict("this credential was used before; each attempt needs a new one")
            old = (
                sa.select(tokens.c.id)
                .where(tokens.c.job.is_not(None), tokens.c.name.like("job %/%"), tokens.c.role == "signals")
                .where(tokens.c.expires_at < now - _ENDED_FOR, tokens.c.revoked_at.is_(None))
                .where(tokens.c.once.is_(False))
                .limit(_OLD_JOBS)
            )
            conn.execute(sa.delete(tokens).where(tokens.c.id.in_(old)))
            data = {"role": Role.signals.value, "name": name, "job": job, "cluster": cluster}
            self._record(conn, "token.enrolled", identity, by=by, at=now, cluster=cluster, data=data)
        return Enrolled(token=secret, expires_at=until)

    def all(self) -> list[sa.RowMapping]:
        """Every token but its digest, newest first."""
        columns = [column for column in tokens.c if column.name != "digest"]
        with translated(), self._engine.connect() as conn:
            rows = conn.execute(sa.select(*columns).order_by(tokens.c.created_at.desc()))
            return list(rows.mappings())

    def revoke(self, identity: str, *, by: str, now: datetime) -> bool:
        """False when there is no such token, or it was revoked before."""
        with translated(), self._engine.begin() as conn:
            row = conn.execute(
                sa.update(tokens)
                .where(tokens.c.id == identity, tokens.c.revoked_at.is_(None))
                .values(revoked_at=now)
                .returning(tokens.c.cluster)
            ).first()
            if row is not None:
                self._record(conn, "token.revoked", identity, by=by, at=now, cluster=row.cluster)
            return row is not None

    def _record(
        self,
        conn: sa.Connection,
        verb: str,
        token: str,
        *,
        by: str,
        at: datetime,
        cluster: str | None,
        data: dict[str, Any] | None = None,
    ) -> None:
        where, subject = cluster or self._cluster, f"token/{token}"
        append(conn, audit_record(where, at, by, verb, subject, **(data or {})))

    def _find(self, statement: sa.Select) -> Caller | None:
        with translated(), self._engine.connect() as conn:
            row = conn.execute(statement).first()
        return None if row is None else _caller(row)


def _in_force(now: datetime) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        tokens.c.revoked_at.is_(None),
        sa.or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > now),
    )


def _caller(row: sa.Row) -> Caller:
    return Caller(
        id=row.id, name=row.name, role=Role(row.role), node=row.node, job=row.job, cluster=row.cluster,
        quota=row.quota,
    )  # fmt: skip
