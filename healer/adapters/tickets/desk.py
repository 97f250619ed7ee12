"""The delivery of tickets, the same for all systems: exactly one ticket for each key, also after crashes.

A delivery may be repeated (healer died after it), or arrive before the one that opens the ticket. So each
delivery first searches the ticket: by its stored name, else by the key in the ticket. Each note contains a
mark of its delivery and is written only if no note has that mark.
"""

import re
from datetime import datetime
from hashlib import sha256
from typing import Protocol

import msgspec

from healer.adapters.tickets.calls import Calls
from healer.model import Ticket, TicketStage
from healer.model.shown import one_line, shown
from healer.ports.outbound import DeliveryFailed
from healer.text import quoted, said_by

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A ticket in the system. `name` is shown to people and stored by healer; requests use `handle`."""

    name: str
    handle: str
    closed: bool


class Desk(Protocol):
    """The operations of one system. All raise DeliveryFailed."""

    calls: Calls
    #: The time until the search shows a new ticket.
    settles_s: float

    def named(self, name: str) -> Found:
        """The ticket with this stored name."""
        ...

    def find(self, key: str, since: datetime | None) -> Found | None:
        """The oldest ticket with this key (`key_of`), open or closed."""
        ...

    def create(self, ticket: Ticket, key: str) -> Found: ...
    def has_note(self, found: Found, mark: str) -> bool: ...
    def note(self, found: Found, text: str, mark: str) -> None: ...
    def close(self, found: Found, text: str) -> None:
        """Closes an open ticket; returns when the system confirms it."""

    def reopen(self, found: Found) -> None: ...
    def check(self) -> str: ...


class DeskTickets:
    """`healer.ports.outbound.Tickets` over a desk."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def send(self, ticket: Ticket) -> str:
        desk, key = self._desk, key_of(ticket)
        ticket = _fit(ticket)
        with desk.calls.delivery():
            found = desk.named(ticket.reference) if ticket.reference else desk.find(key, ticket.since)
            if found is None:
                found = self._create(ticket, key)
            elif ticket.stage is not TicketStage.opened:
                mark = mark_of(ticket.id)
                if not self._desk.has_note(found, mark):
                    self._desk.note(found, ticket.text, mark)
            if ticket.stage is TicketStage.closed and not found.closed:
                desk.close(found, ticket.text)
            elif ticket.stage is TicketStage.reopened and found.closed:
                desk.reopen(found)
        return found.name

    def check(self) -> str:
        with self._desk.calls.delivery():
            return self._desk.check()

    def _create(self, ticket: Ticket, key: str) -> Found:
        try:
            return self._desk.create(ticket, key)
        except DeliveryFailed as error:
            if error.refused or error.is_full:
                raise
            # The ticket may exist nevertheless: the next attempt has to find it.
            wait_s = max(error.retry_after_s or 0.0, self._desk.settles_s)
            raise DeliveryFailed(said_by(error), wait_s or None) from None


def key_of(ticket: Ticket) -> str:
    """`healer-1f2e3d4c…`: only letters, digits, `_` and `-`, safe in every query language."""
    key = ticket.key
    plain = _PLAIN_KEY.fullmatch(key)
    return f"healer-{key if plain else sha256(key.encode('utf-8', 'replace')).hexdigest()[:32]}"


def mark_of(number: str) -> str:
    """The mark that identifies a note of this delivery."""
    return f"healer-note-{sha256(number.encode('utf-8', 'replace')).hexdigest()[:16]}"


def _fit(ticket: Ticket) -> Ticket:
    """Fit for eyes; the title begins with the cluster, as two may have equal node names."""
    return msgspec.structs.replace(
        ticket,
        title=quoted(one_line(f"{ticket.cluster}: {ticket.title}")),
        text=quoted(shown(ticket.text.replace("\r\n", "\n"), keep="\n\t")),
    )
