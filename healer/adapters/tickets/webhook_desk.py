"""Tickets to a site's own address (HEALER_TICKET_WEBHOOK_URL)."""

import msgspec

from healer.adapters.webhook import Answer, SignedWebhook, cloud_event
from healer.model import Ticket

_REFERENCE_MAX = 200


class WebhookTickets:
    """`healer.ports.outbound.Tickets`. The sink knows a delivery that it has already by the event's id, and
    the ticket by the data's `key`."""

    def __init__(self, webhook: SignedWebhook) -> None:
        self._webhook = webhook

    def tell(self, ticket: Ticket) -> str:
        """The answer's `reference` (JSON body), else its Location, else what was known, else our own id.
        DeliveryFailed."""
        data = {**msgspec.to_builtins(ticket), "key": ticket.key}
        answer = self._webhook.post(cloud_event(ticket.id, "ticket", ticket.cluster, ticket.incident, data))
        return _reference(answer) or ticket.reference or ticket.id

    def check(self) -> str:
        """There is no request that would open nothing."""
        return "a webhook of the site; it is not asked, since any request would open a ticket"


def _reference(answer: Answer) -> str:
    given = answer.body.get("reference")
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(given)
    text = given if isinstance(given, str) and given else answer.location
    return text[:_REFERENCE_MAX]
