"""Server-sent events for the console and for other programs."""

from collections.abc import AsyncIterator

import msgspec
from fastapi import Request

from healer.api.access import Access
from healer.api.problems import Problem
from healer.api.services import Services
from healer.ports.api_answers import Event
from healer.ports.callers import Caller
from healer.ports.request_errors import Unavailable

_encode = msgspec.json.Encoder().encode


async def event_stream(
    request: Request, caller: Caller, last_id: int | None, cluster: str | None
) -> AsyncIterator[bytes]:
    """The bytes of the stream. It ends when the token or session no longer stands.

    Events of other clusters than `cluster` are left out; None: all. A comment each 15 s keeps proxies from
    closing.
    """
    services: Services = request.app.state.services
    access: Access = request.app.state.access
    yield b"retry: 1000\n\n"
    async for event in services.events.listen(last_id):
        if event is None:
            try:
                await access.caller(request)
            except Problem:
                return
            except Unavailable:
                pass
            yield b": still here\n\n"
        elif cluster is None or event.data.get("cluster") in {None, cluster}:
            yield encoded(event)


def encoded(event: Event) -> bytes:
    """One event on the wire; its JSON never holds a line break."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.kind.encode(), _encode(event.data))
