"""Forms that work without scripts: what was sent, from where, and the way back."""

from urllib.parse import parse_qsl, quote

from fastapi import Request

from healer.api.problems import Problem

_FORM_BYTES = 8192


async def fields(request: Request) -> dict[str, str]:
    """A small url-encoded form. Read by hand: two fields are no reason for a multipart parser."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_BYTES:
            return {}
    return dict(parse_qsl(body.decode("utf-8", "replace")))


def from_elsewhere(request: Request) -> bool:
    return request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")


def foreign_form() -> Problem:
    return Problem(403, "The form was sent from another site.", heading="Not from this site")


def local(target: str) -> str:
    """A path on this site; anything else becomes `/`, so that a link cannot send people elsewhere."""
    if not target.startswith("/") or target.startswith(("//", "/\\")):
        return "/"
    return quote(target, safe="/?&=%:+,.-_~")
