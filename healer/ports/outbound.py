"""What leaves healer for people: messages and tickets."""

from typing import Protocol

from healer.model import Message, Ticket


class DeliveryFailed(Exception):
    """A sink did not take it; `retry_after_s` if it said so. `refused`: it was asked, and says that it never
    will (4xx)."""

    def __init__(self, text: str, retry_after_s: float | None = None, *, refused: bool = False) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
        self.refused = refused


class Notifier(Protocol):
    def send(self, message: Message) -> None:
        """Raises DeliveryFailed. The same `message.id` again is the same message."""
        ...


class Tickets(Protocol):
    """Where repairs are tracked. The same delivery again is nothing: a crash may have followed the first."""

    def tell(self, ticket: Ticket) -> str:
        """Finds the ticket with this key, or opens it; then notes, closes or opens it again, as `stage` says.

        Returns the sink's own name for it. Raises DeliveryFailed.
        """
        ...

    def check(self) -> str:
        """What the sink says of itself and of what healer may do there. Raises DeliveryFailed."""
        ...
