"""The runbooks of `docs/runbooks`, as HTML, in the language of the request where they stand in it."""

import re
from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup

from healer import data_folder
from healer.console import language

_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def runbooks_dir() -> Path:
    """The Markdown pages that playbooks and rules link to."""
    return data_folder("docs/runbooks")


class Runbooks:
    """By name, read once. HTML within a page is shown as text, never taken."""

    def __init__(self, folder: Path) -> None:
        self._texts = _read(folder)
        #: By language; a runbook that one of them lacks is shown in English.
        self._others = {name: _read(folder / name) for name in language.LANGUAGES}

    def __contains__(self, name: object) -> bool:
        return name in self._texts

    def title(self, name: str) -> str:
        """Its first heading."""
        return self._text(name).partition("\n")[0].lstrip("# ").strip()

    def html(self, name: str) -> Markup:
        """What stands below its first heading."""
        from markdown_it import MarkdownIt

        text = _LINK.sub(self._link, self._text(name).partition("\n")[2])
        reader = MarkdownIt("commonmark", {"html": False}).enable("table")
        return Markup(reader.render(text))  # noqa: S704 - HTML in the text was made inert

    def _text(self, name: str) -> str:
        return self._others[language.current.get()].get(name) or self._texts[name]

    def _link(self, found: re.Match[str]) -> str:
        """Links to other runbooks lead there; those to other documents, which are not served, are text."""
        words, target = found.groups()
        name, _, place = target.partition("#")
        if (not name and place) or target.startswith(("https://", "http://")):
            return found.group()
        stem = name.removesuffix(".md")
        return f"[{words}](/runbooks/{stem})" if stem in self._texts else words


def _read(folder: Path) -> Mapping[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
