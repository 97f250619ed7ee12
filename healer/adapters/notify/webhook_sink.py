"""Pages and messages to a site's own address (HEALER_NOTIFY_WEBHOOK_URL)."""

import msgspec

from healer.adapters.webhook import SignedWebhook, cloud_event
from healer.model import Message


class WebhookNotifier:
    """`healer.ports.outbound.Notifier`."""

    def __init__(self, webhook: SignedWebhook) -> None:
        self._webhook = webhook

    def send(self, message: Message) -> None:
        """Any 2xx means taken. DeliveryFailed otherwise."""
        kind = "page" if message.page else "message"
        data = msgspec.to_builtins(message)
        del data["about"]  # for channels that draw; a receiver of data has the incident's id
        self._webhook.post(cloud_event(message.id, kind, message.cluster, message.incident, data))
