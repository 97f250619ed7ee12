"""What uvicorn has at hand, taken and given in one step: of a kernel line and its answer the messages of ASGI
cost more than what they carry. Behind any other server, or for what is not at hand, it is ASGI."""

from collections.abc import Callable, Sequence

from starlette.types import Receive, Send
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)

Headers = Sequence[tuple[bytes, bytes]]

#: Heads that are kept; uvicorn's own headers hold the time, so all are made anew each second.
_HEADS = 256
#: What these mean to a connection is uvicorn's to know.
_UVICORNS = frozenset({b"connection", b"transfer-encoding"})


def arrived(receive: Receive) -> bytes | None:
    """A body that is all here before anybody asks for it, as most are: then nothing is waited for, and
    neither a time nor a place has to be kept for it. None: ask `receive`."""
    cycle = getattr(receive, "__self__", None)
    if type(cycle) is not RequestResponseCycle or cycle.more_body or cycle.waiting_for_100_continue:
        return None
    if cycle.disconnected:
        return None
    # As `receive` does and leaves it: the next one waits for the end of the connection.
    cycle.flow.resume_reading()
    cycle.message_event.clear()
    body, cycle.body = bytes(cycle.body), bytearray()
    return body


class Answers:
    """Whole answers, each in one write. uvicorn makes two, one for the head: the second costs the server and
    the sender a system call and a packet each. For one event loop."""

    def __init__(self, dress: Callable[[Headers], Headers]) -> None:
        """`dress` adds the headers that all answers have."""
        self._dress = dress
        self._defaults: Headers | None = None
        self._heads: dict[tuple[object, ...], bytes | None] = {}

    def give(self, send: Send, status: int, headers: Headers, body: bytes) -> bool:
        """Sends the answer, to anything but HEAD; False, and nothing was done, where that is for `send`."""
        cycle = getattr(send, "__self__", None)
        if type(cycle) is not RequestResponseCycle or cycle.response_started or cycle.disconnected:
            return False
        if not cycle.keep_alive or cycle.flow.write_paused:
            return False
        head = self._head(cycle.default_headers, status, headers)
        if head is None:
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.transport.write(head + body)
        cycle.message_event.set()
        cycle.on_response()
        return True

    def _head(self, defaults: Headers, status: int, headers: Headers) -> bytes | None:
        if defaults is not self._defaults or len(self._heads) >= _HEADS:
            self._defaults, self._heads = defaults, {}
        key = (status, *headers)
        if key not in self._heads:
            self._heads[key] = _written(status, (*defaults, *self._dress(headers)))
        return self._heads[key]


def _written(status: int, headers: Headers) -> bytes | None:
    """The bytes of a head; None where it is not that of a whole answer, or is wrong, as uvicorn will say."""
    names = {name.lower() for name, _ in headers}
    if not names.isdisjoint(_UVICORNS) or (b"content-length" not in names and status not in {204, 304}):
        return None
    if any(HEADER_RE.search(name) or HEADER_VALUE_RE.search(value) for name, value in headers):
        return None
    lines = [b"%b: %b\r\n" % (name.lower(), value) for name, value in headers]
    return b"".join([STATUS_LINE[status], *lines, b"\r\n"])
