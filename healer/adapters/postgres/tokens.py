"""Tokens and sessions, of which only digests are kept, and answers kept for the repeat of a request."""

import hashlib
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import Insert, insert

from healer.adapters.postgres.audit_rows import append
from healer.adapters.postgres.engine import PostgresStore, pick, request_errors
from healer.adapters.postgres.tables import idempotency, sessions, tokens
from healer.model import Role, audit_record
from healer.ports.callers import Caller, Enrolled, Kept, KeyInFlight, KeyReused, NewToken
from healer.ports.request_errors import Conflict, Forbidden, TooMany

_CALLER = tuple(tokens.c[name] for name in ("id", "name", "role", "node", "job", "cluster", "quota"))

#: How long an enrolled token lasts (the follower renews it long before), and those before it still do.
ENROLLED_FOR = timedelta(days=90)
GRACE = timedelta(minutes=10)
#: Enrolments of one node in an hour; of a job as many, or this for each of its nodes.
ENROLMENTS_PER_H = 10
JOB_ENROLMENTS_PER_NODE = 4
#: How long a job's own token lasts: whoever still runs gets a new one, and none is given after the job's end.
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
        mine = tokens.c.digest == digest, tokens.c.once.is_(False), *_in_force(now)
        return self._find(sa.select(*_CALLER).where(*mine))

    def by_session(self, digest: bytes, now: datetime) -> Caller | None:
        """A session lasts until its own end, and ends at once with its token's revocation."""
        mine = sessions.c.digest == digest, sessions.c.ended_at.is_(None), sessions.c.expires_at > now
        wanted = sa.select(*_CALLER).join(sessions, sessions.c.token == tokens.c.id)
        return self._find(wanted.where(*mine, tokens.c.revoked_at.is_(None)))

    def sign_in(self, digest: bytes, session: bytes, *, now: datetime, until: datetime) -> Caller | None:
        """Uses up a one-time link and opens a session in one transaction, so only one of two presses wins."""
        with request_errors(), self._engine.begin() as conn:
            unused = tokens.c.digest == digest, tokens.c.once.is_(True), tokens.c.used_at.is_(None)
            use = sa.update(tokens).where(*unused, *_in_force(now)).values(used_at=now)
            row = conn.execute(use.returning(*_CALLER)).first()
            if row is None:
                return None
            opened = {"digest": session, "token": row.id, "created_at": now, "expires_at": until}
            conn.execute(sa.insert(sessions).values(opened))
            caller = _caller(row)
            where, subject = caller.cluster or self._cluster, f"token/{caller.id}"
            append(conn, audit_record(where, now, caller.name, "session.opened", subject))
            return caller

    def sign_out(self, session: bytes, now: datetime) -> None:
        with request_errors(), self._engine.begin() as conn:
            mine = sessions.c.digest == session, sessions.c.ended_at.is_(None)
            conn.execute(sa.update(sessions).where(*mine).values(ended_at=now))

    def create(self, new: NewToken, *, by: str, now: datetime) -> str:
        """Makes a token and returns it: the only moment at which its secret is known."""
        identity = secrets.token_hex(4)
        name = new.name or f"{new.role.value}-{identity}"
        secret = f"heal_{identity}_{secrets.token_urlsafe(32)}"
        bound = {"node": new.node, "job": new.job, "cluster": new.cluster}
        row = {**bound, "expires_at": new.expires_at, "once": new.once, "quota": new.quota}
        data: dict[str, Any] = {"once": new.once} | {field: value for field, value in bound.items() if value}
        if new.quota != 1:
            data["quota"] = new.quota
        with request_errors(), self._engine.begin() as conn:
            conn.execute(_insert(identity, secret, new.role, name, now).values(row))
            where, subject = new.cluster or self._cluster, f"token/{identity}"
            data |= {"role": new.role.value, "name": name}
            append(conn, audit_record(where, now, by, "token.created", subject, **data))
        return secret

    def enroll(self, cluster: str, node: str, *, nonce: str, by: str, now: datetime) -> Enrolled:
        """One transaction. The id follows from the nonce: the primary key refuses it a second time."""
        identity = hashlib.sha256(f"enroll\0{cluster}\0{node}\0{nonce}".encode()).hexdigest()[:24]
        secret = f"heal_{identity}_{secrets.token_urlsafe(32)}"
        until, name = now + ENROLLED_FOR, f"node {cluster}/{node}"
        new = _insert(identity, secret, Role.signals, name, now)
        own = (tokens.c.cluster == cluster, tokens.c.node == node, tokens.c.role == Role.signals.value)
        with request_errors(), self._engine.begin() as conn:
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
            _insert_once(conn, new.values(node=node, cluster=cluster, expires_at=until))
            older = (*own, tokens.c.name == name, tokens.c.id != identity, tokens.c.expires_at > now + GRACE)
            conn.execute(sa.update(tokens).where(*older).values(expires_at=now + GRACE))
            data = {"role": Role.signals.value, "name": name, "node": node, "cluster": cluster}
            append(conn, audit_record(cluster, now, by, "token.enrolled", f"token/{identity}", **data))
        return Enrolled(token=secret, expires_at=until)

    def enroll_job(
        self, cluster: str, job: str, *, nodes: int, nonce: str, by: str, now: datetime
    ) -> Enrolled:
        """Like `enroll`; the job's other tokens stay, because each of its nodes has one."""
        identity = hashlib.sha256(f"enroll job\0{cluster}\0{job}\0{nonce}".encode()).hexdigest()[:24]
        secret = f"heal_{identity}_{secrets.token_urlsafe(32)}"
        until, name = now + JOB_ENROLLED_FOR, f"job {cluster}/{job}"
        new = _insert(identity, secret, Role.signals, name, now)
        own = (tokens.c.cluster == cluster, tokens.c.job == job, tokens.c.name == name)
        hour = sa.func.count().filter(tokens.c.created_at > now - timedelta(hours=1))
        with request_errors(), self._engine.begin() as conn:
            made, revoked = conn.execute(sa.select(hour, sa.func.max(tokens.c.revoked_at)).where(*own)).one()
            if revoked is not None:
                raise Forbidden(f"a token of the job {job} was revoked by a person: it gets no other")
            if made >= max(ENROLMENTS_PER_H, JOB_ENROLMENTS_PER_NODE * nodes):
                raise TooMany(f"the job {job} has enrolled {made} times within an hour", 600)
            _insert_once(conn, new.values(job=job, cluster=cluster, expires_at=until))
            old = (
                sa.select(tokens.c.id)
                .where(tokens.c.job.is_not(None), tokens.c.name.like("job %/%"), tokens.c.role == "signals")
                .where(tokens.c.expires_at < now - _ENDED_FOR, tokens.c.revoked_at.is_(None))
                .where(tokens.c.once.is_(False))
                .limit(_OLD_JOBS)
            )
            conn.execute(sa.delete(tokens).where(tokens.c.id.in_(old)))
            data = {"role": Role.signals.value, "name": name, "job": job, "cluster": cluster}
            append(conn, audit_record(cluster, now, by, "token.enrolled", f"token/{identity}", **data))
        return Enrolled(token=secret, expires_at=until)

    def all(self) -> list[sa.RowMapping]:
        """Every token but its digest, newest first."""
        columns = [column for column in tokens.c if column.name != "digest"]
        with request_errors(), self._engine.connect() as conn:
            rows = conn.execute(sa.select(*columns).order_by(tokens.c.created_at.desc()))
            return list(rows.mappings())

    def revoke(self, identity: str, *, by: str, now: datetime) -> bool:
        """False when there is no such token, or it was revoked before."""
        with request_errors(), self._engine.begin() as conn:
            mine = tokens.c.id == identity, tokens.c.revoked_at.is_(None)
            revoked = sa.update(tokens).where(*mine).values(revoked_at=now)
            row = conn.execute(revoked.returning(tokens.c.cluster)).first()
            if row is not None:
                where, subject = row.cluster or self._cluster, f"token/{identity}"
                append(conn, audit_record(where, now, by, "token.revoked", subject))
            return row is not None

    def _find(self, statement: sa.Select) -> Caller | None:
        with request_errors(), self._engine.connect() as conn:
            row = conn.execute(statement).first()
        return None if row is None else _caller(row)


def _in_force(now: datetime) -> tuple[sa.ColumnElement[bool], ...]:
    return (tokens.c.revoked_at.is_(None), sa.or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > now))


def _insert(identity: str, secret: str, role: Role, name: str, now: datetime) -> Insert:
    digest = hashlib.sha256(secret.encode()).digest()
    return insert(tokens).values(id=identity, digest=digest, role=role.value, name=name, created_at=now)


def _insert_once(conn: sa.Connection, new: Insert) -> None:
    made = conn.execute(new.on_conflict_do_nothing(index_elements=["id"]).returning(tokens.c.id))
    if made.first() is None:
        raise Conflict("this credential was used before; each attempt needs a new one")


def _caller(row: sa.Row) -> Caller:
    own = pick(row, "id", "name", "node", "job", "cluster", "quota")
    return Caller(**own, role=Role(row.role))


# --- Idempotency-Key: one row for a key and caller, committed before anything is done, kept for 24 h

ANSWERS_KEPT = timedelta(hours=24)


class PostgresIdempotency(PostgresStore):
    """`healer.ports.callers.Idempotency`.

    The key's lock is a transaction's: when this process dies, PostgreSQL lets it go, and the next request
    with the key finds a row without an answer and does the work (again, under the same request id).
    """

    def once(self, key: str, who: str, request: bytes, now: datetime, act: Callable[[], Kept]) -> Kept:
        with request_errors():
            self._remember(key, who, request, now)
            with self._engine.begin() as conn:
                if not conn.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(_lock(key, who)))):
                    raise KeyInFlight
                row = conn.execute(sa.select(idempotency).where(_this(key, who))).one()
                if bytes(row.request) != request:
                    raise KeyReused
                if row.status is not None:
                    return Kept(row.status, dict(row.headers), bytes(row.body))
                kept = act()
                answer = {"status": kept.status, "headers": kept.headers, "body": kept.body}
                conn.execute(sa.update(idempotency).where(_this(key, who)).values(answer))
                return kept

    def _remember(self, key: str, who: str, request: bytes, now: datetime) -> None:
        with self._engine.begin() as conn:
            conn.execute(sa.delete(idempotency).where(_this(key, who), idempotency.c.at < now - ANSWERS_KEPT))
            row = insert(idempotency).values(key=key, who=who, request=request, at=now)
            conn.execute(row.on_conflict_do_nothing(index_elements=["key", "who"]))


def _this(key: str, who: str) -> sa.ColumnElement[bool]:
    return sa.and_(idempotency.c.key == key, idempotency.c.who == who)


def _lock(key: str, who: str) -> int:
    digest = hashlib.sha256(f"idempotency\0{who}\0{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
