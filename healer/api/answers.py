"""How answers leave: JSON by msgspec, with an ETag where something is read."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response

_encode = msgspec.json.Encoder(order="deterministic").encode


class Told(Response):
    """JSON that is encoded already. Its two headers are written down here: Response's own constructor costs
    as much as to read a kernel line."""

    def __init__(self, body: bytes, status: int = 202) -> None:
        self.body, self.status_code, self.background = body, status, None
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]


def answer(
    request: Request, value: Any, status: int = 200, *, headers: Mapping[str, str] | None = None
) -> Response:
    """`value` as JSON. A GET carries an ETag and is 304 when the caller has the same already."""
    body = _encode(value)
    if request.method != "GET":
        return Response(body, status, headers=headers, media_type="application/json")
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    mine = {"ETag": tag, **(headers or {})}
    asked = request.headers.get("if-none-match", "")
    if asked == "*" or tag in (one.strip().removeprefix("W/") for one in asked.split(",")):
        return Response(None, 304, headers=mine)
    return Response(body, status, headers=mine, media_type="application/json")
