"""One ticket for one key, whatever crashed before: the same steps for every system that tracks tickets.

A delivery may come twice (healer died after it) and before the one that should have opened the ticket. So
each first looks: by the name that was kept, else by the key that stands in the ticket. Each note carries a
mark of its delivery and is written only where no note bears that mark.
"""

import re
from datetime import datetime
from hashlib import sha256
from typing import Protocol

import msgspec

from healer.adapters.tickets.calls import Calls
from healer.model import Ticket, TicketStage
from healer.ports.outbound import DeliveryFailed

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: What no ticket system takes: control characters but for tab and line feed, and halves of letters.
_UNFIT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A ticket there. `name` is what people call it and what healer keeps; `handle` what requests
    need."""

    name: str
    handle: str
    closed: bool


class Desk(Protocol):
    """What each system has a way of its own for. All raise DeliveryFailed."""

    calls: Calls
    #: So long after a creation whose answer was lost the search may not show it yet.
    settles_s: float

    def named(self, name: str) -> Found:
        """The ticket of this name, which was kept."""
        ...

    def find(self, key: str, since: datetime | None) -> Found | None:
        """The oldest ticket that bears this key, as `key_of` gives it, open or not."""
        ...

    def create(self, ticket: Ticket, key: str) -> Found: ...
    def has_note(self, found: Found, mark: str) -> bool: ...
    def note(self, found: Found, text: str, mark: str) -> None: ...
    def close(self, found: Found, text: str) -> None:
        """Closes an open one; done when the system says that it is closed."""
        ...

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
                self._note(found, ticket)
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
            if error.refused or error.retry_after_s is not None:
                raise
            # It may stand there all the same: the next try has to find it.
            raise DeliveryFailed(str(error), self._desk.settles_s or None) from None

    def _note(self, found: Found, ticket: Ticket) -> None:
        mark = mark_of(ticket.id)
        if not self._desk.has_note(found, mark):
            self._desk.note(found, ticket.text, mark)


def key_of(ticket: Ticket) -> str:
    """`healer-1f2e3d4c…`: letters, digits, `_` and `-` alone, so that it stands in any query as it is."""
    key = ticket.key
    plain = _PLAIN_KEY.fullmatch(key)
    return f"healer-{key if plain else sha256(key.encode('utf-8', 'replace')).hexdigest()[:32]}"


def mark_of(number: str) -> str:
    """What tells a note of this delivery from all others."""
    return f"healer-note-{sha256(number.encode('utf-8', 'replace')).hexdigest()[:16]}"


def one_line(text: str, most: int) -> str:
    """A title of at most so many characters."""
    return cut(" ".join(text.split()), most)


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _fit(ticket: Ticket) -> Ticket:
    return msgspec.structs.replace(
        ticket,
        title=_UNFIT.sub("\ufffd", ticket.title),
        text=_UNFIT.sub("\ufffd", ticket.text.replace("\r\n", "\n")),
    )
