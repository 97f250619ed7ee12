"""Templates, static files and the headers that every page carries."""

import hashlib
import mimetypes
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from functools import partial
from gettext import NullTranslations
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
from fastapi import Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from healer import data_folder
from healer.console import words
from healer.console.views import svg_charts, svg_lanes
from healer.model.shown import shown
from healer.model.vocabulary import WORDS_MAX
from healer.rulebook.runbooks import MOVED
from healer.text import in_language, language, to_plain, to_text
from healer.text.catalogues import ENGLISH, catalogue, scripts_of

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
    # A page shows the present state and who is signed in: no cache may keep it.
    "Cache-Control": "no-store",
}


#: As HTML and HTTP name them.
_HTML_LANGUAGES = {"en": "en", "zh": "zh-Hans"}

T = TypeVar("T", bound=StrEnum)


def one_of(kind: type[T], word: str) -> T | None:
    """None for an unknown word: an address from elsewhere then shows everything."""
    return kind(word) if word in set(kind) else None


def link(path: str, keep: dict[str, str], **query: str) -> str:
    """An address with the query's non-empty parts; `keep` carries the cluster where there are several."""
    parts = {**keep, **{key: value for key, value in query.items() if value}}
    return f"{path}?{urlencode(parts)}" if parts else path


def next_link(path: str, keep: dict[str, str], cursor: str | None, **query: str) -> str | None:
    """The address of the next page of a list; None on the last."""
    return link(path, keep, **query, cursor=cursor) if cursor else None


def markdown_file(name: str, text: str) -> Response:
    return text_file(name, text, "text/markdown", opened="inline")


def text_file(name: str, text: str, kind: str, *, opened: str = "attachment", begins: str = "") -> Response:
    """A file that a browser saves, or shows where `opened` is inline. `begins` comes before the text."""
    headers = {**PAGE_HEADERS, "Content-Disposition": f'{opened}; filename="{name}"'}
    return Response(begins + shown(text, keep="\n\t"), media_type=f"{kind}; charset=utf-8", headers=headers)


def csv_file(name: str, text: str) -> Response:
    """Spreadsheets take a file without the mark for one in the letters of their country."""
    return text_file(name, text, "text/csv", begins="\N{BYTE ORDER MARK}")


def web_dir() -> Path:
    """Templates, styles, scripts and words."""
    return data_folder("web")


class Assets:
    """The static files, read once. Their URL contains a hash of their bytes, so it may be cached for ever."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, tuple[bytes, str, str]] = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                body = path.read_bytes()
                kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
                digest = hashlib.sha256(body).hexdigest()[:12]
                self._files[path.relative_to(folder).as_posix()] = (body, kind, digest)

    def url(self, name: str) -> str:
        """Raises KeyError for a missing file: a template's mistake fails its first test."""
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
    """Renders templates, in the language of the request."""

    def __init__(self) -> None:
        folder = web_dir()
        self.assets = Assets(folder / "static")
        loader = FileSystemLoader(folder / "templates")
        self._envs = {name: self._environment(loader, name) for name in language.LANGUAGES}

    def _environment(self, loader: FileSystemLoader, name: str) -> Environment:
        env = Environment(
            loader=loader,
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.i18n"],
        )
        texts = _Texts(name)
        install: Callable[..., None] = env.install_gettext_callables  # pyright: ignore[reportAttributeAccessIssue]
        install(texts.forms.gettext, texts.forms.ngettext, newstyle=True)
        env.filters.update(
            utc=words.utc,
            minute=words.minute,
            iso=words.iso,
            span=lambda seconds: texts.text(words.span(seconds)),
            clock_ms=words.clock_ms,
            offset=lambda start, at: texts.text(words.offset(at, start)),
            number=words.number,
            size=words.size,
            sentence=texts.sentence,
            body=_body_attribute,
            t=texts.text,
            said=texts.within,
            svg=lambda chart: svg_charts.svg(chart, texts.text),
            lanes=lambda chart: svg_lanes.lanes_svg(chart, texts.text),
        )
        env.globals.update(
            asset=self.assets.url,
            swatch=svg_charts.swatch,
            counted=lambda count, noun: texts.text(words.counted(count, noun)),
            when=texts.when,
            link=link,
            languages=language.LANGUAGES,
            language=name,
            html_language=_HTML_LANGUAGES[name],
            of_scripts=scripts_of(name),
            words_max=WORDS_MAX,
        )
        return env

    def translate(self, text: str) -> str:
        """The sentence in the language of the request."""
        return in_language(text, language.current.get())

    def page(self, template: str, status: int = 200, **context: Any) -> Response:
        name = language.current.get()
        text = self._envs[name].get_template(template).render(**context)
        # Names and lines of others are all over a page: none may turn the text around them.
        text = shown(text, keep="\n\t")
        headers = {**PAGE_HEADERS, "Content-Language": _HTML_LANGUAGES[name]}
        return Response(text, status, media_type="text/html; charset=utf-8", headers=headers)


class _Texts:
    """The texts of templates in one language."""

    def __init__(self, name: str) -> None:
        self._name = name
        #: Sentences of the templates by their English; in English they stay as they are.
        self.forms = catalogue(name, "templates") or NullTranslations()

    def text(self, text: str) -> str:
        # A sentence of the templates is in its language and escaped: as a plain text it is escaped again.
        return text if isinstance(text, Markup) else in_language(text, self._name)

    def sentence(self, text: str) -> str:
        """With a capital at its start, where the language has capitals."""
        return words.sentence(text) if self._name == ENGLISH else self.text(text)

    def when(self, moment: datetime | None, now: datetime) -> Markup:
        """`4 min ago`, with the exact time in its title; the page's script keeps it fresh."""
        if moment is None:
            return Markup("")
        return Markup('<time datetime="{}" title="{}" data-ago>{}</time>').format(
            words.iso(moment), words.utc(moment), self.text(words.ago(moment, now))
        )

    def within(self, value: Any, *keys: str) -> Any:
        """Data for a script, with the texts under these keys in the language."""
        if self._name == ENGLISH:
            return value
        return _within(to_plain(value), keys, self.text)


def _within(value: Any, keys: tuple[str, ...], text: Callable[[str], str], *, ours: bool = False) -> Any:
    if isinstance(value, str):
        return text(value) if ours else value
    if isinstance(value, list | tuple):
        return [_within(part, keys, text, ours=ours) for part in value]
    if isinstance(value, dict):
        return {key: _within(part, keys, text, ours=key in keys) for key, part in value.items()}
    return value


def _body_attribute(value: object) -> str:
    """JSON for a `data-` attribute; the template escapes it like any other text."""
    return msgspec.json.encode(value, enc_hook=to_text).decode()


_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


class Runbooks:
    """By name, read once. HTML within a runbook is shown as text."""

    def __init__(self, folder: Path) -> None:
        self._texts = _read(folder)
        #: By language; a runbook that one of them lacks is shown in English.
        self._others = {name: _read(folder / name) for name in language.LANGUAGES}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.today(name) in self._texts

    def today(self, name: str) -> str:
        """The name of the page that holds this runbook."""
        return name if name in self._texts else MOVED.get(name, name)

    def title(self, name: str) -> str:
        """Its first heading."""
        return self._text(name).partition("\n")[0].lstrip("# ").strip()

    def html(self, name: str, keep: dict[str, str] | None = None) -> Markup:
        """Its text below the first heading. `keep`: as for `link`."""
        from markdown_it import MarkdownIt

        text = _LINK.sub(partial(self._link, keep or {}), self._text(name).partition("\n")[2])
        reader = MarkdownIt("commonmark", {"html": False}).enable("table")
        return Markup(reader.render(text))  # noqa: S704 - HTML in the text was made inert

    def _text(self, name: str) -> str:
        name = self.today(name)
        return self._others[language.current.get()].get(name) or self._texts[name]

    def _link(self, keep: dict[str, str], found: re.Match[str]) -> str:
        """Links to other runbooks are kept; those to other documents, which are not served, become text."""
        words, target = found.groups()
        name, _, place = target.partition("#")
        if (not name and place) or target.startswith(("https://", "http://")):
            return found.group()
        stem = name.removesuffix(".md")
        return f"[{words}]({link(f'/runbooks/{stem}', keep)})" if stem in self else words


def _read(folder: Path) -> Mapping[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
