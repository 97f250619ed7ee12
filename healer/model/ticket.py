"""What leaves healer for people: tickets and messages. Each carries a stable id, so a repeat is one."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from healer.model.routes import About
from healer.model.words import Severity


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """`id` is stable per (incident, occasion); sinks use it to recognise a repeat. `page`: wake somebody.
    `about` is for routes and channels; the signed webhook does not tell it."""

    id: str
    cluster: str
    title: str
    text: str
    severity: Severity
    page: bool = False
    incident: str | None = None
    data: dict[str, Any] = {}
    about: About = About()


class TicketStage(StrEnum):
    """What a delivery brings to the incident's one ticket. Whichever comes first opens it."""

    opened = "opened"
    updated = "updated"
    closed = "closed"
    reopened = "reopened"


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery to a ticket. `id` is `KEY:ticket` for the first and `KEY:ticket:…` for those after it, and
    the same key is the same ticket. `since`: when what it is about began; a ticket of it is no older.
    `reference` is the sink's own name for it, once that is known."""

    id: str
    cluster: str
    node: str | None
    incident: str | None
    title: str
    text: str
    data: dict[str, Any] = {}
    stage: TicketStage = TicketStage.opened
    severity: Severity = Severity.P3
    since: datetime | None = None
    reference: str = ""

    @property
    def key(self) -> str:
        return self.id.partition(":")[0]
