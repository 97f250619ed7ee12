"""What a restored database must not do a second time: deliveries, sessions, one-time secrets."""

from datetime import datetime

import sqlalchemy as sa

from healer.adapters.postgres.engine import storable_doc
from healer.adapters.postgres.tables import audit_chain, break_glass, deliveries, messages, sessions, tokens
from healer.text import say

#: A delivery that failed for this reason is sent again by `healer messages retry`.
_PERHAPS_SENT = storable_doc(say("adapters.perhaps_sent"))


def end_one_time_items(conn: sa.Connection, now: datetime, *, by: str) -> dict[str, int]:
    """Ends them in the caller's transaction; returns how many of each kind there were."""
    failed = {"state": "failed", "next_try_at": None, "error": _PERHAPS_SENT}
    seal, link = break_glass.c, tokens.c
    glass = sa.select(seal.token).where(seal.ended_at.is_(None), seal.token.is_not(None))
    unused = sa.and_(link.once, link.used_at.is_(None))
    changes = {
        "messages": sa.update(messages).where(messages.c.state == "due").values(failed),
        "unrouted": sa.update(messages).where(~messages.c.routed).values(routed=True),
        "deliveries": sa.update(deliveries)
        .where(deliveries.c.state.in_(("due", "digest")))
        .values(**failed, ended_at=now),
        "sessions": sa.update(sessions).where(sessions.c.ended_at.is_(None)).values(ended_at=now),
        "tokens": sa.update(tokens)
        .where(link.revoked_at.is_(None), sa.or_(unused, link.id.in_(glass)))
        .values(revoked_at=now),
        "seals": sa.update(break_glass).where(seal.ended_at.is_(None)).values(ended_at=now, ended_by=by),
    }
    return {name: conn.execute(change).rowcount for name, change in changes.items()}


def heads(conn: sa.Connection) -> dict[str, int]:
    """The number of the last link of each chain."""
    top = sa.select(audit_chain.c.cluster, sa.func.max(audit_chain.c.seq)).group_by(audit_chain.c.cluster)
    return {cluster: seq for cluster, seq in conn.execute(top)}
