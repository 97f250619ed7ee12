"""What healer records, as CloudEvents to a site's own address (HEALER_EVENTS_WEBHOOK_URL)."""

from typing import Any

from healer.adapters.webhook import SignedWebhook
from healer.model import AuditRecord

#: Deliveries to sinks of our own; who takes the feed would be told of itself.
_OWN = ("message.",)


class EventSink:
    """Sends one record at a time. The same record has the same id at every try."""

    def __init__(self, webhook: SignedWebhook) -> None:
        self._webhook = webhook

    def send(self, seq: int, record: AuditRecord) -> None:
        """Any 2xx means taken. DeliveryFailed otherwise."""
        if not record.verb.startswith(_OWN):
            self._webhook.post(event_of(seq, record))


def event_of(seq: int, record: AuditRecord) -> dict[str, Any]:
    """A CloudEvents 1.0 document: `type` by the record's verb, `subject` the node's name, else what it is
    about. `id` is the record's place in its cluster's chain."""
    kind, _, name = record.subject.partition("/")
    subject = name if kind == "node" and name else record.subject
    return {
        "specversion": "1.0",
        "id": f"{record.cluster}:{seq}",
        "source": f"/healer/{record.cluster}",
        "type": f"io.healer.{record.verb}.v1",
        **({"subject": subject} if subject else {}),
        "time": record.at.isoformat(),
        "datacontenttype": "application/json",
        "data": {
            "cluster": record.cluster,
            "actor": record.actor,
            "verb": record.verb,
            "subject": record.subject,
            "data": record.data,
        },
    }
