"""Tokens and sessions, stored as keyed digests only, and the stored answers of idempotent requests."""

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import Insert, insert

from healer.adapters.postgres.account_rows import has_account, issuer_of, know_locally
from healer.adapters.postgres.audit_rows import append, stored_since
from healer.adapters.postgres.engine import PostgresStore, confirm, reading, request_errors, writing
from healer.adapters.postgres.tables import (
    audit_chain,
    audit_records,
    idempotency,
    people,
    sessions,
    token_key,
    tokens,
)
from healer.model import Role, audit_record
from healer.model.grants import ACTING, OWNED
from healer.ports.callers import (
    NOT_SEALED,
    Caller,
    Enrolled,
    Granted,
    KeyInFlight,
    KeyReused,
    NewToken,
    Session,
    StoredResponse,
    enrolled_name,
)
from healer.ports.directory import LOCAL, SESSION_IDLE
from healer.ports.request_errors import Conflict, Forbidden, TooMany, Unavailable
from healer.ports.service_accounts import account_secret, id_in
from healer.text import say

_FIELDS = ("id", "name", "node", "job", "cluster", "quota", "vouches")
#: The audit's verbs of a token's making.
_MAKING = ("token.created", "token.enrolled")


def _of_making() -> sa.ScalarSelect[bool]:
    """Whether the record of the token's creation is sealed. NULL: no record agrees with its row.

    It is the first one with the token's subject; later ones are its refusals, of which there may be millions.
    """
    record = audit_records.c
    subject = sa.func.concat("token/", tokens.c.id)
    # By the index's own order: equal subjects in the order of ids could be searched for among all records.
    after = sa.tuple_(record.subject, record.id) > sa.tuple_(subject, sa.literal(0))
    named = sa.select(record.id, record.subject, record.verb, record.data).where(after)
    made = named.order_by(record.subject, record.id).limit(1).correlate(tokens).subquery("made")
    record_data = made.c.data
    same = [made.c.subject == subject, made.c.verb.in_(_MAKING)]
    same += [
        sa.func.coalesce(record_data[name].astext, "") == sa.func.coalesce(tokens.c[name], "")
        for name in ("role", "name", "node", "job", "cluster", "vouches", "owner", "routes", "groups")
    ]
    same.append(sa.func.coalesce(record_data["once"].astext.cast(sa.Boolean), False) == tokens.c.once)
    same.append(sa.func.coalesce(record_data["quota"].astext.cast(sa.Double), 1) == tokens.c.quota)
    is_sealed = sa.exists().where(audit_chain.c.record == made.c.id)
    return sa.select(is_sealed).where(*same).correlate(tokens).scalar_subquery()


def _sealed(identity: str) -> sa.Select:
    """`_of_making` of one token; no row: there is none."""
    return sa.select(_of_making()).where(tokens.c.id == identity)


_CALLER = tuple(tokens.c[name] for name in (*_FIELDS, "role", "routes", "groups"))
#: Joined with the person of that name.
_PERSON = (people.c.issuer, people.c.subject)
_NAMED = tokens.outerjoin(people, people.c.name == tokens.c.name)
#: Limit of callers known to be sealed, for which the look-up of each second needs no further query.
_KNOWN = 20_000

#: The lifetime of a node's enrolled token, which the follower renews long before, and of replaced ones.
ENROLLED_FOR = timedelta(days=90)
GRACE = timedelta(minutes=10)
#: Letters of an enrolled token's id. All other ids are shorter: the follower renews tokens with this many.
ENROLLED_ID = 24
#: The audit's verb where a node that had enrolled got a token without showing the one before.
ENROLLED_AGAIN = "token.enrolled-again"
#: Enrolments in an hour: of a node; of a job the same, or this for each of its nodes.
ENROLMENTS_PER_H = 10
JOB_ENROLMENTS_PER_NODE = 4
#: The lifetime of a job's token. A running job enrols again; an ended job cannot.
JOB_ENROLLED_FOR = timedelta(days=1)
#: A worker that runs seals within a second; and how often one looks.
SEALED_WITHIN_S, _LOOK_S = 3.0, 0.02
#: A session's last use is written at most this often.
SEEN_EVERY = timedelta(minutes=1)
#: Expired job tokens are deleted when one is created: at most this many, which expired this long ago.
_OLD_JOBS, _ENDED_FOR = 1_000, timedelta(days=1)


class OtherTokenKey(Exception):
    """The tokens in the database were made with another key. One sentence for people."""


def keyed(key: bytes, digest: bytes) -> bytes:
    """The form of a secret's digest in the database: someone who can write rows still cannot create one that
    matches a secret."""
    return hmac.digest(key, digest, "sha256")


def adopt_key(conn: sa.Connection, key: bytes, now: datetime) -> None:
    """Notes the key, once, and keys the digests of before. The owner does it. Raises OtherTokenKey."""
    conn.execute(sa.text("LOCK TABLE token_key IN EXCLUSIVE MODE"))
    if conn.execute(sa.select(token_key)).first() is not None:
        check_key(conn, key)
        return
    for table in (tokens, sessions):
        for digest in conn.scalars(sa.select(table.c.digest)).all():
            this = sa.update(table).where(table.c.digest == digest)
            conn.execute(this.values(digest=keyed(key, bytes(digest))))
    conn.execute(sa.insert(token_key).values(fingerprint=_fingerprint(key), since=now))


def check_key(conn: sa.Connection, key: bytes) -> None:
    """Raises OtherTokenKey unless this key was adopted."""
    found = conn.scalars(sa.select(token_key.c.fingerprint)).first()
    if found is None:
        raise OtherTokenKey(say("adapters.token_key_none"))
    if found != _fingerprint(key):
        raise OtherTokenKey(say("adapters.token_key_other"))


def _fingerprint(key: bytes) -> str:
    return hmac.new(key, b"healer token key", "sha256").hexdigest()


class PostgresTokens:
    """`healer.ports.callers.Tokens`, and what `healer token` does."""

    def __init__(self, engine: sa.Engine, cluster: str, key: bytes, *, provided: bool = False) -> None:
        """`cluster` gets the audit records of tokens that are bound to no cluster. `provided`: an identity
        provider says who is a person."""
        self._engine, self._cluster, self._key, self._provided = engine, cluster, key, provided
        #: By id, with their rows as they were then: a record never changes, and a row that differs is checked
        #: again.
        self._known: dict[str, Caller] = {}

    def by_token(self, digest: bytes, now: datetime) -> Caller | None:
        return self.by_tokens((digest,), now).get(digest)

    def by_tokens(self, digests: Sequence[bytes], now: datetime) -> dict[bytes, Caller]:
        kept = {keyed(self._key, digest): digest for digest in digests}
        these = tokens.c.digest.in_(list(kept)), tokens.c.once.is_(False), *in_force(now)
        wanted = sa.select(tokens.c.digest, *_CALLER, *_PERSON).select_from(_NAMED).where(*these)
        with reading(self._engine) as conn:
            rows = conn.execute(wanted).all()
            found = {kept[bytes(row.digest)]: self._sealed_one(conn, _caller(row)) for row in rows}
        return {digest: caller for digest, caller in found.items() if caller is not None}

    def by_session(self, digest: bytes, now: datetime) -> Caller | None:
        """The session's caller, until it expires, is ended or idle for long, or its token is revoked."""
        this = sessions.c.digest == keyed(self._key, digest)
        columns = (*_CALLER, *_PERSON, sessions.c.id.label("session"), sessions.c.proven_at)
        columns += (has_account(tokens.c.name).label("has_account"),)
        wanted = sa.select(*columns).select_from(_NAMED).join(sessions, sessions.c.token == tokens.c.id)
        caller = self._find(wanted.where(this, *open_at(now), tokens.c.revoked_at.is_(None)))
        if caller is not None:
            unseen = this, sessions.c.seen_at < now - SEEN_EVERY
            with writing(self._engine) as conn:
                conn.execute(sa.update(sessions).where(*unseen).values(seen_at=now))
        return caller

    def sign_in(self, digest: bytes, session: bytes, *, now: datetime, until: datetime) -> Caller | None:
        """Uses up a one-time link and opens a session in one transaction, so that a link works only once."""
        with writing(self._engine) as conn:
            this = tokens.c.digest == keyed(self._key, digest)
            unused = this, tokens.c.once.is_(True), tokens.c.used_at.is_(None)
            use = sa.update(tokens).where(*unused, *in_force(now)).values(used_at=now)
            row = conn.execute(use.returning(*_CALLER)).first()
            is_sealed = None if row is None else conn.scalar(_sealed(row.id))
            if row is None or is_sealed is None:
                return None
            if not is_sealed:
                raise Unavailable(NOT_SEALED)
            opened = session_row(keyed(self._key, session), row.id, now, until)
            conn.execute(sa.insert(sessions).values(opened))
            caller = _caller(row)
            where, subject = caller.cluster or self._cluster, f"token/{caller.id}"
            append(conn, audit_record(where, now, caller.name, "session.opened", subject))
            return caller

    def sign_out(self, session: bytes, now: datetime) -> None:
        with writing(self._engine) as conn:
            is_open = sessions.c.digest == keyed(self._key, session), sessions.c.ended_at.is_(None)
            conn.execute(sa.update(sessions).where(*is_open).values(ended_at=now))

    def create(self, new: NewToken, *, by: str, now: datetime) -> str:
        """Creates a token and returns it. Its secret is not stored. Raises Conflict if the identity provider
        knows no person of its name who could act through it."""
        with writing(self._engine) as conn:
            return self.create_in(conn, new, by, now)

    def create_in(self, conn: sa.Connection, new: NewToken, by: str, now: datetime) -> str:
        """`create` within a transaction."""
        identity = secrets.token_hex(4)
        if new.name and new.role in ACTING and OWNED not in new.name:
            self._bind_person(conn, new.name, now)
        name = new.name or f"{new.role.value}-{identity}"
        secret = account_secret(identity) if new.owner else f"heal_{identity}_{secrets.token_urlsafe(32)}"
        bound = {"node": new.node, "job": new.job, "cluster": new.cluster}
        row: dict[str, Any] = {**bound, "expires_at": new.expires_at, "once": new.once, "quota": new.quota}
        row |= {"vouches": new.vouches, "owner": new.owner, "routes": " ".join(new.routes)}
        data: dict[str, Any] = {"once": new.once} | {field: value for field, value in bound.items() if value}
        data |= {name: row[name] for name in ("vouches", "owner", "routes") if row[name]}
        if new.quota != 1:
            data["quota"] = new.quota
        conn.execute(_insert(identity, stored(self._key, secret), new.role, name, now).values(row))
        data |= {"role": new.role.value, "name": name}
        record = audit_record(
            new.cluster or self._cluster, now, by, "token.created", f"token/{identity}", **data
        )
        append(conn, record)
        return secret

    def _bind_person(self, conn: sa.Connection, name: str, now: datetime) -> None:
        if not self._provided:
            know_locally(conn, name, now)
        elif issuer_of(conn, name) in (None, LOCAL):
            raise Conflict(say("engine.token_of_no_person", name=name))

    def enroll(
        self, cluster: str, node: str, *, nonce: str, by: str, now: datetime, proven: bool = False
    ) -> Enrolled:
        """Makes the node's token and lets its older ones expire. Raises Forbidden, TooMany or Conflict."""
        enrolment = _Enrolment("node", node, cluster, nonce, self._key)
        of_node = (tokens.c.cluster == cluster, tokens.c.node == node, tokens.c.role == Role.signals.value)
        with writing(self._engine) as conn:
            made = sa.select(tokens.c.revoked_at, tokens.c.created_at, tokens.c.name).where(*of_node)
            rows = conn.execute(made.order_by(tokens.c.created_at.desc()).limit(100)).all()
            if rows and rows[0].revoked_at is not None:
                raise Forbidden(say("adapters.node_token_revoked", node=node, cluster=cluster))
            lately = now - timedelta(hours=1)
            hour = sum(row.name == enrolment.name and row.created_at > lately for row in rows)
            if hour >= ENROLMENTS_PER_H:
                raise TooMany(say("adapters.enrolled_often", name=node, n=hour), 600)
            # A node whose first answer was lost asks a second time, soon after.
            before = any(row.name == enrolment.name and row.created_at <= now - GRACE for row in rows)
            again = before and not proven
            ends = now if again else now + GRACE
            older = (*of_node, tokens.c.name == enrolment.name, tokens.c.expires_at > ends)
            ending = sa.update(tokens).where(*older).values(expires_at=ends).returning(tokens.c.id)
            ended = sorted(conn.scalars(ending))
            if again:
                data = {"node": node, "ended": ended}
                append(conn, audit_record(cluster, now, by, ENROLLED_AGAIN, f"node/{node}", **data))
            return enrolment.store(conn, by=by, now=now, until=now + ENROLLED_FOR)

    def enroll_job(
        self, cluster: str, job: str, *, nodes: int, nonce: str, by: str, now: datetime
    ) -> Enrolled:
        """Like `enroll`, but the job's other tokens stay: each of its nodes has one."""
        enrolment = _Enrolment("job", job, cluster, nonce, self._key)
        of_job = (tokens.c.cluster == cluster, tokens.c.job == job, tokens.c.name == enrolment.name)
        hour = sa.func.count().filter(tokens.c.created_at > now - timedelta(hours=1))
        counts = sa.select(hour, sa.func.max(tokens.c.revoked_at)).where(*of_job)
        with writing(self._engine) as conn:
            made, revoked = conn.execute(counts).one()
            if revoked is not None:
                raise Forbidden(say("adapters.job_token_revoked", job=job))
            if made >= max(ENROLMENTS_PER_H, JOB_ENROLMENTS_PER_NODE * nodes):
                raise TooMany(
                    say("adapters.enrolled_often", name=say("console.runs_job", job=job), n=made), 600
                )
            old = (
                sa.select(tokens.c.id)
                .where(tokens.c.job.is_not(None), tokens.c.name.like("job %/%"), tokens.c.role == "signals")
                .where(tokens.c.expires_at < now - _ENDED_FOR, tokens.c.revoked_at.is_(None))
                .where(tokens.c.once.is_(False))
                .limit(_OLD_JOBS)
            )
            conn.execute(sa.delete(tokens).where(tokens.c.id.in_(old)))
            return enrolment.store(conn, by=by, now=now, until=now + JOB_ENROLLED_FOR)

    def wait_for_seal(self, secret: str) -> bool:
        """Whether a token that was just made counts by now; waits some seconds for it."""
        until = time.monotonic() + SEALED_WITHIN_S
        while not (is_sealed := self.is_sealed(secret)) and time.monotonic() < until:
            time.sleep(_LOOK_S)
        return is_sealed

    def is_sealed(self, secret: str) -> bool:
        """Whether the audit's chain has the record of the token's making."""
        with reading(self._engine) as conn:
            return bool(conn.scalar(_sealed(id_in(secret))))

    def _find(self, statement: sa.Select) -> Caller | None:
        with reading(self._engine) as conn:
            row = conn.execute(statement).first()
            return None if row is None else self._sealed_one(conn, _caller(row))

    def _sealed_one(self, conn: sa.Connection, caller: Caller) -> Caller | None:
        """The caller according to the audit's record of its creation; None if that differs."""
        if self._known.get(caller.id) == caller:
            return caller
        is_sealed = conn.scalar(_sealed(caller.id))
        if not is_sealed:
            return None if is_sealed is None else msgspec.structs.replace(caller, sealed=False)
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[caller.id] = caller
        return caller


def enrolled_again(engine: sa.Engine, cluster: str, since: datetime) -> list[tuple[datetime, str, str]]:
    """(when, node, who) of those, oldest first. Raises Unavailable."""
    record = audit_records.c
    found = sa.select(record.at, record.data["node"].astext.label("node"), record.actor)
    again = record.cluster == cluster, record.verb == ENROLLED_AGAIN
    # Asked every 30 s: not all records ever stored.
    with reading(engine) as conn:
        rows = conn.execute(found.where(*again, *stored_since(since)).order_by(record.at))
        return [(row.at, row.node, row.actor) for row in rows]


def open_at(now: datetime) -> tuple[sa.ColumnElement[bool], ...]:
    """Sessions that are open."""
    is_used = sessions.c.seen_at > now - SESSION_IDLE
    return (sessions.c.ended_at.is_(None), sessions.c.expires_at > now, is_used)


def session_row(digest: bytes, token: str, now: datetime, until: datetime) -> dict[str, Any]:
    times = {"created_at": now, "seen_at": now, "proven_at": now, "expires_at": until}
    return {"id": secrets.token_hex(6), "digest": digest, "token": token, **times}


def in_force(now: datetime) -> tuple[sa.ColumnElement[bool], ...]:
    return (tokens.c.revoked_at.is_(None), sa.or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > now))


def stored(key: bytes, secret: str) -> bytes:
    """The digest of a secret as the database holds it."""
    return keyed(key, hashlib.sha256(secret.encode()).digest())


def _insert(identity: str, digest: bytes, role: Role, name: str, now: datetime) -> Insert:
    return insert(tokens).values(id=identity, digest=digest, role=role.value, name=name, created_at=now)


@dataclass(frozen=True)
class _Enrolment:
    """A token for signals that a node or a job gets for a credential. `kind`: `node` or `job`."""

    kind: str
    subject: str
    cluster: str
    nonce: str
    key: bytes

    @property
    def name(self) -> str:
        return enrolled_name(self.kind, self.cluster, self.subject)

    def store(self, conn: sa.Connection, *, by: str, now: datetime, until: datetime) -> Enrolled:
        """The id is derived from the nonce, so the primary key refuses a reused credential (Conflict)."""
        prefix = "enroll job" if self.kind == "job" else "enroll"
        seed = f"{prefix}\0{self.cluster}\0{self.subject}\0{self.nonce}"
        identity = hashlib.sha256(seed.encode()).hexdigest()[:ENROLLED_ID]
        secret = f"heal_{identity}_{secrets.token_urlsafe(32)}"
        bound = {self.kind: self.subject, "cluster": self.cluster}
        new = _insert(identity, stored(self.key, secret), Role.signals, self.name, now).values(
            **bound, expires_at=until
        )
        made = conn.execute(new.on_conflict_do_nothing(index_elements=["id"]).returning(tokens.c.id))
        if made.first() is None:
            raise Conflict(say("adapters.credential_used"))
        data = {"role": Role.signals.value, "name": self.name, **bound}
        append(conn, audit_record(self.cluster, now, by, "token.enrolled", f"token/{identity}", **data))
        return Enrolled(token=secret, expires_at=until)


def _caller(row: sa.Row) -> Caller:
    found = row._mapping
    groups = None if row.groups is None else tuple(json.loads(row.groups))
    return Caller(
        **{name: found[name] for name in _FIELDS},
        role=Role(row.role),
        routes=tuple(row.routes.split()),
        issuer=found.get("issuer") or "",
        granted=None if groups is None else Granted(subject=found.get("subject") or "", groups=groups),
        session=_session(row) if "session" in found else None,
    )


def _session(row: sa.Row) -> Session:
    return Session(id=row.session, proven_at=row.proven_at, has_account=row.has_account)


# --- Idempotency-Key: one row for a key and caller, committed before the work, kept for 24 h

ANSWERS_KEPT = timedelta(hours=24)


class PostgresIdempotency(PostgresStore):
    """`healer.ports.callers.Idempotency`.

    The key's lock belongs to a transaction: if this process dies, PostgreSQL releases it, and the next
    request with the key finds a row without an answer and repeats the work under the same request id.
    """

    def once(
        self, key: str, who: str, request: bytes, now: datetime, act: Callable[[], StoredResponse]
    ) -> StoredResponse:
        with request_errors():
            self._remember(key, who, request, now)
            with self._engine.begin() as conn:
                if not conn.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(_lock(key, who)))):
                    raise KeyInFlight
                row = conn.execute(sa.select(idempotency).where(_this(key, who))).one()
                if bytes(row.request) != request:
                    raise KeyReused
                if row.status is not None:
                    confirm(conn)
                    return StoredResponse(row.status, dict(row.headers), bytes(row.body))
                kept = act()
                answer = {"status": kept.status, "headers": kept.headers, "body": kept.body}
                conn.execute(sa.update(idempotency).where(_this(key, who)).values(answer))
                return kept

    def _remember(self, key: str, who: str, request: bytes, now: datetime) -> None:
        """A key is old by both clocks, or a retry acts a second time: neither one that is behind when it is
        stored nor one that is ahead later makes it old."""
        read_at, time = sa.func.statement_timestamp(), sa.DateTime(timezone=True)
        earlier, later = sa.func.least(now, read_at, type_=time), sa.func.greatest(now, read_at, type_=time)
        with self._engine.begin() as conn:
            old = idempotency.c.at < earlier - ANSWERS_KEPT
            conn.execute(sa.delete(idempotency).where(_this(key, who), old))
            row = insert(idempotency).values(key=key, who=who, request=request, at=later)
            conn.execute(row.on_conflict_do_nothing(index_elements=["key", "who"]))


def _this(key: str, who: str) -> sa.ColumnElement[bool]:
    return sa.and_(idempotency.c.key == key, idempotency.c.who == who)


def _lock(key: str, who: str) -> int:
    digest = hashlib.sha256(f"idempotency\0{who}\0{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
