"""What the database knows of tickets: whether one was filed, its name at the sink, and what was done for it.

The deliveries themselves stand in `messages`, with kind `ticket`.
"""

from collections.abc import Callable

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.tables import messages, run_log, runs
from healer.model import Incident, LogEntry, Ticket, TicketStage
from healer.ports.outbound import Tickets

#: A story longer than this is told by its end.
_STEPS_MAX = 500


def filed(conn: sa.Connection, incident: str) -> bool:
    query = sa.select(messages.c.id).where(messages.c.incident == incident, messages.c.kind == "ticket")
    return conn.execute(query.limit(1)).first() is not None


def steps_of(conn: sa.Connection, incident: Incident) -> list[LogEntry]:
    """Of all runs for it and of those on its node since it opened, oldest first; shadow runs did nothing."""
    own = sa.select(runs.c.id).where(runs.c.incident == incident.id, ~runs.c.shadow)
    on_node = sa.select(runs.c.id).where(
        runs.c.cluster == incident.cluster,
        runs.c.node == incident.root.node,
        runs.c.created_at >= incident.opened,
        ~runs.c.shadow,
    )
    meant = own if incident.root.node is None else own.union(on_node)
    rows = conn.execute(
        sa.select(run_log.c.seq, run_log.c.doc)
        .where(run_log.c.run.in_(meant))
        .order_by(run_log.c.seq.desc())
        .limit(_STEPS_MAX)
    )
    return [msgspec.convert({**row.doc, "seq": row.seq}, LogEntry) for row in rows][::-1]


def in_turn() -> sa.ColumnElement[bool]:
    """True of a row before which no other delivery to the same ticket waits or is on its way.

    Two of them at once could each find no ticket and open one.
    """
    earlier = messages.alias("earlier")
    waits = sa.exists().where(
        earlier.c.incident == messages.c.incident,
        earlier.c.kind == "ticket",
        earlier.c.state == "due",
        sa.tuple_(earlier.c.at, earlier.c.id) < sa.tuple_(messages.c.at, messages.c.id),
    )
    return sa.or_(messages.c.kind != "ticket", ~waits)


class NamedTickets:
    """`healer.ports.outbound.Tickets`: gives each delivery the name that the sink gave the ticket before. A
    search may not show yet what was opened a moment ago; the name does. What opens one ends with the
    incident's page, where `console_url` says how the site reaches healer."""

    def __init__(
        self, engine: sa.Engine, tickets: Tickets, console_url: Callable[[], str] = lambda: ""
    ) -> None:
        self._engine, self._tickets, self._console_url = engine, tickets, console_url

    def tell(self, ticket: Ticket) -> str:
        named = msgspec.structs.replace(ticket, reference=self._name(ticket), text=self._linked(ticket))
        return self._tickets.tell(named)

    def _linked(self, ticket: Ticket) -> str:
        url = self._console_url().rstrip("/")
        if not url or ticket.incident is None or ticket.stage is not TicketStage.opened:
            return ticket.text
        return f"{ticket.text}\n\n{url}/incidents/{ticket.incident}"

    def check(self) -> str:
        return self._tickets.check()

    def _name(self, ticket: Ticket) -> str:
        if ticket.incident is None:
            return ""
        query = sa.select(messages.c.reference).where(
            messages.c.incident == ticket.incident,
            messages.c.kind == "ticket",
            messages.c.reference.is_not(None),
        )
        with self._engine.connect() as conn:
            return conn.scalar(query.order_by(messages.c.at, messages.c.id).limit(1)) or ""
