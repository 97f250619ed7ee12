"""Pages, messages and tickets: healer's own list, and their way to the sinks.

A row is `due` until a sink took it (`sent`) or five tries failed (`failed`); without a sink it is `listed`.
No run and no walk waits for a sink. A sink may see a message twice (a crash after the send), by the same id.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres import audit
from healer.adapters.postgres.tables import messages
from healer.adapters.postgres.tickets import in_turn
from healer.audit import storable
from healer.model import AuditRecord, Message, Ticket
from healer.ports.clock import Clock
from healer.ports.outbound import DeliveryFailed, Notifier, Tickets

MAX_TRIES = 5
#: Waits after the first to the fourth failure: 5 s, 30 s, 3 min, 18 min, each times 0.5 to 1.5.
_FIRST_WAIT_S = 5.0
_GROWTH = 6.0
#: A sink may ask for a longer wait, up to this.
_WAIT_MAX_S = 3600.0
#: A claim is over after this: longer than the slowest send, so that two never send at once.
_CLAIM_S = 60.0
#: Messages per call, so that a storm of them does not hold the caller for long.
_ROUND_MAX = 50


def queue(conn: sa.Connection, item: Message | Ticket, *, at: datetime, has_sink: bool) -> None:
    """Puts it on the list in the caller's transaction; the same id again is nothing."""
    is_message = isinstance(item, Message)
    conn.execute(
        insert(messages)
        .values(
            id=item.id,
            cluster=item.cluster,
            kind="message" if is_message else "ticket",
            incident=item.incident,
            page=isinstance(item, Message) and item.page,
            at=at,
            state="due" if has_sink else "listed",
            next_try_at=at if has_sink else None,
            doc=storable(item),
        )
        .on_conflict_do_nothing(index_elements=["id"])
    )


def deliver_due(
    engine: sa.Engine,
    notifier: Notifier | None,
    tickets: Tickets | None,
    *,
    clock: Clock,
    chance: Callable[[], float],
) -> int:
    """Sends what is due, pages first; the number that sinks took.

    Each is claimed and marked in transactions of its own, and no lock is held while a sink is asked.
    `chance` gives 0..1 for the jitter. A sink that failed once is left alone until the next call, so a dead
    one costs one time-out; errors of the database go to the caller.
    """
    kinds = {"message", "ticket"}
    sent = 0
    for _ in range(_ROUND_MAX):
        row = _claim(engine, kinds, clock.now())
        if row is None:
            break
        try:
            reference = _send(row, notifier, tickets)
        except DeliveryFailed as error:
            kinds.discard(row.kind)
            _failed(engine, row, error, clock.now(), chance())
        else:
            sent += reference is not None
            _settled(engine, row, reference, clock.now())
    return sent


def _claim(engine: sa.Engine, kinds: set[str], now: datetime) -> sa.Row | None:
    """The most urgent due row, set aside for a minute; None when nothing is due."""
    due = (
        sa.select(messages.c.id)
        .where(messages.c.state == "due", messages.c.next_try_at <= now, messages.c.kind.in_(list(kinds)))
        .where(in_turn())
        .order_by(messages.c.page.desc(), messages.c.next_try_at, messages.c.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    with engine.begin() as conn:
        return conn.execute(
            sa.update(messages)
            .where(messages.c.id.in_(due))
            .values(tries=messages.c.tries + 1, next_try_at=now + timedelta(seconds=_CLAIM_S))
            .returning(*(messages.c[name] for name in ("id", "cluster", "kind", "page", "tries", "doc")))
        ).first()


def _send(row: sa.Row, notifier: Notifier | None, tickets: Tickets | None) -> str | None:
    """The sink's own name for it ("" if it has none); None without a sink for this kind."""
    if row.tries > MAX_TRIES:
        raise DeliveryFailed("the process that made the last try ended before its answer was noted")
    if row.kind == "ticket":
        return tickets.tell(msgspec.convert(row.doc, Ticket)) if tickets else None
    if notifier is None:
        return None
    notifier.send(msgspec.convert(row.doc, Message))
    return ""


def _settled(engine: sa.Engine, row: sa.Row, reference: str | None, now: datetime) -> None:
    state = "listed" if reference is None else "sent"
    with engine.begin() as conn:
        changed = _mark(conn, row, state=state, next_try_at=None, error=None, reference=reference or None)
        if changed and reference is not None:
            verb = f"ticket.{row.doc.get('stage', 'opened')}" if row.kind == "ticket" else "message.sent"
            _audit(conn, row, verb, {"tries": row.tries, "reference": reference}, now)


def _failed(engine: sa.Engine, row: sa.Row, error: DeliveryFailed, now: datetime, chance: float) -> None:
    with engine.begin() as conn:
        if error.retry_after_s:
            _hold_back(conn, row.kind, now + timedelta(seconds=min(error.retry_after_s, _WAIT_MAX_S)))
        if row.tries >= MAX_TRIES:
            if _mark(conn, row, state="failed", next_try_at=None, error=str(error)):
                _audit(conn, row, "message.failed", {"tries": row.tries, "error": str(error)}, now)
            return
        wait_s = wait_after(row.tries, error.retry_after_s, chance)
        _mark(conn, row, error=str(error), next_try_at=now + timedelta(seconds=wait_s))


def _hold_back(conn: sa.Connection, kind: str, until: datetime) -> None:
    """The sink asked for a pause: nothing of this kind goes there before, and nothing loses a try to it."""
    conn.execute(
        sa.update(messages)
        .where(messages.c.state == "due", messages.c.kind == kind, messages.c.next_try_at < until)
        .values(next_try_at=until)
    )


def wait_after(tries: int, retry_after_s: float | None, chance: float) -> float:
    """Seconds to the next try after so many have failed. The sink's own wish counts if it is longer."""
    wait_s = _FIRST_WAIT_S * _GROWTH ** (tries - 1) * (0.5 + chance)
    return min(max(wait_s, retry_after_s or 0.0), _WAIT_MAX_S)


def _mark(conn: sa.Connection, row: sa.Row, **values: object) -> bool:
    """False when the claim was over and somebody else has tried since: what they write counts."""
    where = (messages.c.id == row.id, messages.c.state == "due", messages.c.tries == row.tries)
    return conn.execute(sa.update(messages).where(*where).values(**values)).rowcount == 1


def _audit(conn: sa.Connection, row: sa.Row, verb: str, data: dict[str, object], now: datetime) -> None:
    audit.append(
        conn,
        AuditRecord(
            cluster=row.cluster,
            at=now,
            actor="healer",
            verb=verb,
            subject=f"{row.kind}/{row.id}",
            data={"page": row.page, **data},
        ),
    )
