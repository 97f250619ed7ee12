"""How answers leave: JSON by msgspec, with an ETag where something is read; and server-sent events."""

import hashlib
import time
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response

from healer.api.access import ALLOWED, Access, narrow
from healer.api.problems import Problem
from healer.api.services import services_of
from healer.model import Role
from healer.model.shown import sent_json
from healer.ports.callers import Caller
from healer.ports.request_errors import Unavailable
from healer.text import to_text

_encode = msgspec.json.Encoder(order="deterministic", enc_hook=to_text).encode


def answer(
    request: Request, value: Any, status: int = 200, *, headers: Mapping[str, str] | None = None
) -> Response:
    """`value` as JSON. A GET carries an ETag and is 304 when the caller has the same already."""
    return answer_json(request, as_json(value), status, headers=headers)


def as_json(value: Any) -> bytes:
    return sent_json(_encode(value))


def answer_json(
    request: Request, body: bytes, status: int = 200, *, headers: Mapping[str, str] | None = None
) -> Response:
    """`answer`, of what is JSON already."""
    if request.method != "GET":
        return Response(body, status, headers=headers, media_type="application/json")
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    tagged = {"ETag": tag, **(headers or {})}
    cached = request.headers.get("if-none-match", "")
    if cached == "*" or tag in (part.strip().removeprefix("W/") for part in cached.split(",")):
        return Response(None, 304, headers=tagged)
    return Response(body, status, headers=tagged, media_type="application/json")


_encode_event = msgspec.json.Encoder(enc_hook=to_text).encode


#: Events may come without a pause, and then the stream never idles: the caller is checked between them.
_CHECK_EVERY_S = 1.0


async def event_stream(
    request: Request, caller: Caller, last_id: int | None, clusters: Collection[str] | None
) -> AsyncIterator[bytes]:
    """The bytes of the stream. It ends when the token or session is no longer valid, or may see other
    clusters than before.

    Events of other clusters than these are left out; None: all. A comment each 15 s keeps proxies from
    closing it.
    """
    checked = time.monotonic()
    yield b"retry: 1000\n\n"
    async for event in services_of(request).events.listen(last_id):
        if event is None or time.monotonic() - checked >= _CHECK_EVERY_S:
            checked = time.monotonic()
            if not await _sees_the_same(request, caller):
                return
        if event is None:
            yield b": still here\n\n"
        elif clusters is None or event.data.get("cluster") in {None, *clusters}:
            data = sent_json(_encode_event(event.data))  # JSON never holds a line break
            yield b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.kind.encode(), data)


async def _sees_the_same(request: Request, before: Caller) -> bool:
    """Whether the caller may still look, at the same clusters. While the database is away it may."""
    access: Access = request.app.state.access
    try:
        now = await narrow(access, await access.caller(request), ALLOWED[Role.viewer])
    except Problem:
        return False
    except Unavailable:
        return True
    return now is not None and (now.cluster, now.clusters) == (before.cluster, before.clusters)
