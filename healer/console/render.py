"""Templates, static files and the headers that every page carries."""

import hashlib
import mimetypes
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from fastapi import Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import healer
from healer.console import words

#: Nothing from elsewhere, nothing inline: a line of a kernel log can never become a script.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

PAGE_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # A page shows what stands now and who is signed in; no cache may keep it.
    "Cache-Control": "no-store",
}


T = TypeVar("T", bound=StrEnum)


def one_of(kind: type[T], word: str) -> T | None:
    """None for a word that is none of them: an address from elsewhere asks for everything."""
    return kind(word) if word in set(kind) else None


def web_dir() -> Path:
    """`web/` in an installed package, else in the checkout."""
    package = Path(healer.__file__).parent
    packed = package / "_data" / "web"
    return packed if packed.is_dir() else package.parent / "web"


class Assets:
    """The static files, read once. Their address carries a hash of their bytes: it may be kept for ever."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, tuple[bytes, str, str]] = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                body = path.read_bytes()
                kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
                digest = hashlib.sha256(body).hexdigest()[:12]
                self._files[path.relative_to(folder).as_posix()] = (body, kind, digest)

    def url(self, name: str) -> str:
        """Raises KeyError for a file that is not there: a template's mistake is found by its first test."""
        return f"/static/{name}?v={self._files[name][2]}"

    def response(self, name: str, version: str) -> Response | None:
        found = self._files.get(name)
        if found is None:
            return None
        body, kind, digest = found
        keep = "public, max-age=31536000, immutable" if version == digest else "no-cache"
        headers = {"Cache-Control": keep, "ETag": f'"{digest}"', "X-Content-Type-Options": "nosniff"}
        return Response(body, media_type=kind, headers=headers)


class Renderer:
    """Renders templates. `clock` gives the one `now` of a page."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        folder = web_dir()
        self.clock = clock
        self.assets = Assets(folder / "static")
        self._env = Environment(
            loader=FileSystemLoader(folder / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._env.filters.update(
            utc=words.utc,
            iso=words.iso,
            span=words.span,
            clock_ms=words.clock_ms,
            number=words.number,
            size=words.size,
            sentence=words.sentence,
            body=_body_attribute,
        )
        self._env.globals.update(asset=self.assets.url, plural=words.plural, when=self._when)

    def _when(self, moment: datetime | None, now: datetime) -> Markup:
        """`4 min ago`, with the exact time in its title; the page's script keeps it fresh."""
        if moment is None:
            return Markup("")
        return Markup('<time datetime="{}" title="{}" data-ago>{}</time>').format(
            words.iso(moment), words.utc(moment), words.ago(moment, now)
        )

    def page(self, template: str, status: int = 200, **context: Any) -> Response:
        text = self._env.get_template(template).render(**context)
        return Response(text, status, media_type="text/html; charset=utf-8", headers=PAGE_HEADERS)


def _body_attribute(value: object) -> str:
    """JSON for a `data-` attribute; the template escapes it like any other text."""
    return msgspec.json.encode(value).decode()
