"""What leaves healer for people: tickets and messages. Each carries a stable id, so a repeat is one."""

from typing import Any

import msgspec

from healer.model.words import Severity


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """`id` is stable per (incident, occasion); sinks use it to recognise a repeat. `page`: wake somebody."""

    id: str
    cluster: str
    title: str
    text: str
    severity: Severity
    page: bool = False
    incident: str | None = None
    data: dict[str, Any] = {}


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    cluster: str
    node: str | None
    incident: str | None
    title: str
    text: str
    data: dict[str, Any] = {}
