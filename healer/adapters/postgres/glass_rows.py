"""The sealed secret of break-glass, as a keyed digest, and the hour that it opens."""

from collections.abc import Callable
from datetime import datetime
from secrets import token_hex

import sqlalchemy as sa

from healer.adapters.postgres import outbox
from healer.adapters.postgres.audit_rows import append
from healer.adapters.postgres.engine import reading, writing
from healer.adapters.postgres.tables import break_glass, sessions, tokens
from healer.adapters.postgres.tokens import PostgresTokens, session_row, stored
from healer.model import Message, Role, audit_record
from healer.ports.break_glass import GlassState, Opening

_SEAL = break_glass.c
_STATE = (
    *(_SEAL[name] for name in ("sealed_at", "sealed_by", "used_at", "reason", "ended_at", "ended_by")),
    sa.func.coalesce(tokens.c.name, "").label("used_by"),
    tokens.c.expires_at.label("until"),
)
SUBJECT = "break-glass"


class PostgresBreakGlass:
    """`healer.ports.break_glass.BreakGlass`. `cluster` takes the audit's records."""

    def __init__(self, engine: sa.Engine, cluster: str, key: bytes) -> None:
        self._engine, self._cluster, self._key = engine, cluster, key
        self._book = PostgresTokens(engine, cluster, key)

    def seal(self, secret: str, *, by: str, now: datetime, message: Message) -> None:
        with writing(self._engine) as conn:
            whole = _SEAL.used_at.is_(None), _SEAL.ended_at.is_(None)
            conn.execute(sa.update(break_glass).where(*whole).values(ended_at=now, ended_by=by))
            row = {"id": token_hex(4), "digest": stored(self._key, secret), "sealed_at": now}
            conn.execute(sa.insert(break_glass).values(**row, sealed_by=by))
            self._record(conn, now, by, "break_glass.sealed", message)

    def use(self, secret: str, opening: Opening, message: Message) -> bool:
        with writing(self._engine) as conn:
            this = (
                _SEAL.digest == stored(self._key, secret),
                _SEAL.used_at.is_(None),
                _SEAL.ended_at.is_(None),
            )
            seal = conn.scalar(sa.select(_SEAL.id).where(*this).with_for_update())
            if seal is None:
                return False
            self._make_token(conn, opening)
            used = {"used_at": opening.at, "reason": opening.reason, "token": opening.id}
            conn.execute(sa.update(break_glass).where(_SEAL.id == seal).values(used))
            data = {"reason": opening.reason, "token": opening.id, "until": opening.until.isoformat()}
            self._record(conn, opening.at, opening.name, "break_glass.used", message, data)
            return True

    def _make_token(self, conn: sa.Connection, opening: Opening) -> None:
        at, until, role = opening.at, opening.until, Role.admin.value
        token = {"id": opening.id, "digest": stored(self._key, opening.token), "role": role}
        times = {"created_at": at, "expires_at": until}
        conn.execute(sa.insert(tokens).values(**token, **times, name=opening.name))
        cookie = stored(self._key, opening.cookie)
        conn.execute(sa.insert(sessions).values(session_row(cookie, opening.id, at, until)))
        made = {"once": False, "role": role, "name": opening.name}
        subject = f"token/{opening.id}"
        append(conn, audit_record(self._cluster, at, opening.name, "token.created", subject, **made))

    def end(
        self, *, by: str, reason: str, now: datetime, message: Callable[[GlassState], Message]
    ) -> GlassState | None:
        with writing(self._engine) as conn:
            running = tokens.c.expires_at > now, tokens.c.revoked_at.is_(None), _SEAL.ended_at.is_(None)
            found = sa.select(_SEAL.id, _SEAL.token).join(tokens, tokens.c.id == _SEAL.token).where(*running)
            row = conn.execute(found.with_for_update(of=break_glass)).first()
            if row is None:
                return None
            conn.execute(sa.update(tokens).where(tokens.c.id == row.token).values(revoked_at=now))
            ended = {"ended_at": now, "ended_by": by}
            conn.execute(sa.update(break_glass).where(_SEAL.id == row.id).values(ended))
            state = glass_state(conn)
            self._record(conn, now, by, "break_glass.ended", message(state), {"reason": reason})
            return state

    def state(self) -> GlassState:
        with reading(self._engine) as conn:
            return glass_state(conn)

    def wait_for_seal(self, secret: str) -> bool:
        return self._book.wait_for_seal(secret)

    def _record(
        self, conn: sa.Connection, at: datetime, by: str, verb: str, message: Message,
        data: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        append(conn, audit_record(self._cluster, at, by, verb, SUBJECT, **(data or {})))
        outbox.queue(conn, message, at=at, has_sink=True)


def glass_state(conn: sa.Connection) -> GlassState:
    joined = sa.outerjoin(break_glass, tokens, tokens.c.id == _SEAL.token)
    newest = sa.select(*_STATE).select_from(joined).order_by(_SEAL.sealed_at.desc()).limit(1)
    row = conn.execute(newest).mappings().first()
    return GlassState() if row is None else GlassState(**row)
