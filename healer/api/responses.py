"""How answers leave: JSON by msgspec, with an ETag where something is read; and server-sent events."""

import hashlib
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response

from healer.api.access import Access
from healer.api.problems import Problem
from healer.api.services import services_of
from healer.model.shown import sent_json
from healer.ports.request_errors import Unavailable
from healer.text import to_text

_encode = msgspec.json.Encoder(order="deterministic", enc_hook=to_text).encode


def answer(
    request: Request, value: Any, status: int = 200, *, headers: Mapping[str, str] | None = None
) -> Response:
    """`value` as JSON. A GET carries an ETag and is 304 when the caller has the same already."""
    body = sent_json(_encode(value))
    if request.method != "GET":
        return Response(body, status, headers=headers, media_type="application/json")
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    tagged = {"ETag": tag, **(headers or {})}
    cached = request.headers.get("if-none-match", "")
    if cached == "*" or tag in (part.strip().removeprefix("W/") for part in cached.split(",")):
        return Response(None, 304, headers=tagged)
    return Response(body, status, headers=tagged, media_type="application/json")


_encode_event = msgspec.json.Encoder(enc_hook=to_text).encode


async def event_stream(
    request: Request, last_id: int | None, clusters: Collection[str] | None
) -> AsyncIterator[bytes]:
    """The bytes of the stream. It ends when the token or session is no longer valid.

    Events of other clusters than these are left out; None: all. A comment each 15 s keeps proxies from
    closing it.
    """
    services = services_of(request)
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
        elif clusters is None or event.data.get("cluster") in {None, *clusters}:
            data = sent_json(_encode_event(event.data))  # JSON never holds a line break
            yield b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.kind.encode(), data)
