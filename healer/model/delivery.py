"""Messages on their way to sinks, as people see them."""

from datetime import datetime
from enum import StrEnum

import msgspec

from healer.model.words import Severity

#: Names of the sinks that no file lists: the generic webhook and the tickets.
WEBHOOK, TICKETS = "webhook", "tickets"


class DeliveryState(StrEnum):
    """`digest` waits for the next one; `over`: the incident was, before anybody was told; `folded`: a newer
    one of the same alarm took its place; `listed`: no sink takes it, it stands in healer's own list alone."""

    due = "due"
    digest = "digest"
    sent = "sent"
    failed = "failed"
    over = "over"
    folded = "folded"
    listed = "listed"


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """`outcome`: begun, taken, found (an earlier try was taken), failed, refused, retried (by a person)."""

    at: datetime
    outcome: str
    text: str = ""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One message at one sink. `how`: page, channel, digest, ticket; `reference` is the sink's own name for
    it; `tries_log` holds each try at a channel, the oldest first."""

    message: str
    cluster: str
    channel: str
    how: str
    state: DeliveryState
    title: str
    severity: Severity
    incident: str | None
    at: datetime
    tries: int
    next_try_at: datetime | None = None
    ended_at: datetime | None = None
    error: str = ""
    reference: str = ""
    tries_log: tuple[Try, ...] = ()
