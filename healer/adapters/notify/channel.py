"""What delivery asks of a channel, whatever its protocol."""

from typing import Protocol

from healer.adapters.notify.notice import Notice


class Teller(Protocol):
    #: Whether `find` can answer: a message of which nobody knows whether it was taken is looked for there.
    can_find: bool

    #: Whether it draws buttons to approve a run: else a link to the run stands there.
    has_buttons: bool

    def tell(self, notice: Notice, ref: str) -> str:
        """Tells it; `ref` is what an earlier message of the same thread answered with, empty for the first.
        Returns the reference of the thread. DeliveryFailed."""
        ...

    def find(self, notice: Notice, ref: str = "") -> str:
        """The thread's reference if this very message was taken, else empty. DeliveryFailed."""
        ...
