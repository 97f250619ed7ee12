"""Translates finished English text by matching it with sentences that have names in braces. Pure.

Not by regular expressions: one with several holes tries all ways to split a text, and a sender could craft a
text with billions of them. Here a position that failed is not tried again, and all steps are counted.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import yaml

HOLE = re.compile(r"\{(\w+)(\|t!?|\|nt?|\|w)?\}")
#: `1,290 MHz`, `60 °C to 70 °C`: the comma of a list and what follows are no part of a figure.
_FIGURE = re.compile(r"[-+−]?\d(?:[^,(]|,\d)*", re.DOTALL)
_BEGINS_WITH_FIGURE = re.compile(r"[-+−]?\d")
_SPACE = re.compile(r"\s")
#: No name ends with one of these: they end a part of the sentence.
_ENDS = (":", ",", ";")
_TAKES: dict[str, Callable[[str], bool]] = {
    "|n": lambda part: _FIGURE.fullmatch(part) is not None,
    "|nt": lambda part: _BEGINS_WITH_FIGURE.match(part) is not None,
    "|w": lambda part: _SPACE.search(part) is None and part[-1:] not in _ENDS,
}
#: The weight of a part that has to be translatable, in characters.
_KNOWN_SAYS = 10


class Spent(Exception):
    """A text took more steps than any sentence of healer does."""


@dataclass(slots=True)
class Steps:
    """What may still be tried."""

    left: int

    def take(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Spent


@dataclass(frozen=True, slots=True)
class Pattern:
    """`plain` is the text before, between and behind the holes."""

    plain: tuple[str, ...]
    holes: tuple[tuple[str, str], ...]
    translation: str
    #: Names whose text is translated in turn, and those of them that must have a translation.
    inner: frozenset[str]
    sure: frozenset[str]
    #: The longest run of plain characters: a text without it cannot fit.
    core: str = field(compare=False)

    def fits(self, text: str, steps: Steps) -> dict[str, str] | None:
        """The parts of a text that is this sentence: each hole as short as it can be. Raises Spent."""
        first, last = self.plain[0], self.plain[-1]
        if not text.startswith(first) or not text.endswith(last):
            return None
        fit = _Fit(self, text, len(text) - len(last), steps)
        return fit.parts if fit.rest(0, len(first)) else None


class _Fit:
    """One pattern on one text, whose last hole ends at `end`."""

    def __init__(self, pattern: Pattern, text: str, end: int, steps: Steps) -> None:
        self.parts: dict[str, str] = {}
        self._pattern, self._text, self._end, self._steps = pattern, text, end, steps
        self._failed: set[tuple[int, int]] = set()
        # If a name occurs twice, the way to a position matters.
        self._remembers = len({name for name, _ in pattern.holes}) == len(pattern.holes)

    def rest(self, at: int, begin: int) -> bool:
        """Whether the holes from this one on match the text from `begin` on; fills `parts`."""
        if (at, begin) in self._failed:
            return False
        is_last = at + 1 == len(self._pattern.holes)
        for stop in self._stops(at, begin):
            self._steps.take()
            name, before = self._pattern.holes[at][0], dict(self.parts)
            if self._takes(at, self._text[begin:stop]):
                self.parts[name] = self._text[begin:stop]
                if is_last or self.rest(at + 1, stop + len(self._pattern.plain[at + 1])):
                    return True
                self.parts = before
        if self._remembers:
            self._failed.add((at, begin))
        return False

    def _stops(self, at: int, begin: int) -> Iterator[int]:
        """Where this hole may end: before each occurrence of the next plain characters."""
        if at + 1 == len(self._pattern.holes):
            yield from (self._end,) if begin < self._end else ()
            return
        plain, stop = self._pattern.plain[at + 1], begin
        while (stop := self._text.find(plain, stop + 1, self._end)) > begin:
            yield stop

    def _takes(self, at: int, part: str) -> bool:
        name, kind = self._pattern.holes[at]
        takes = _TAKES.get(kind)
        return (takes is None or takes(part)) and self.parts.get(name, part) == part


def pattern(key: str, translation: str) -> Pattern:
    found = list(HOLE.finditer(key))
    plain = HOLE.sub("\0", key).split("\0")
    return Pattern(
        plain=tuple(plain),
        holes=tuple((hole[1], hole[2] or "") for hole in found),
        translation=translation,
        inner=frozenset(hole[1] for hole in found if hole[2] not in (None, "|w")),
        sure=frozenset(hole[1] for hole in found if hole[2] == "|t!"),
        core=max(plain, key=len),
    )


def weight(key: str) -> int:
    """How specific it is: the most specific sentence is tried first."""
    return len(HOLE.sub("", key)) + (_KNOWN_SAYS if "|t!}" in key else 0)


def start(key: str) -> str:
    return "" if HOLE.match(key) else key[0]


#: BaseLoader: every scalar is text, also `no` and `on`. The C version is ten times as fast.
_Loader: type = getattr(yaml, "CBaseLoader", yaml.BaseLoader)

LANGUAGES = {"en": "English", "zh": "简体中文"}
COOKIE = "healer_language"

#: The language of the request that is being answered.
current: ContextVar[str] = ContextVar("language", default="en")

_PERCENT = re.compile(r"%\((\w+)\)s")
#: Nesting of sentences: healer's go no deeper (figures of a finding are a chain), others' text is cut off.
_DEPTH = 16
#: Longer texts are logs or output of commands. They are translated as a whole or not at all.
MOST_CHARS = 700
#: Steps of matching for one text and its parts. healer's own sentences need 700 at most; a crafted text
#: delays a page by 20 ms, once.
MOST_STEPS = 4_000
_KEPT = 20_000


class CatalogueError(ValueError):
    """Names the file and the entry."""


class Catalogue:
    """Sentences of one language. `translate` never raises and returns unknown text unchanged."""

    def __init__(self, entries: Mapping[str, str], forms: Mapping[str, str] | None = None) -> None:
        """`forms`: entries only for templates."""
        both = {**entries, **(forms or {})}
        self._whole = {
            key: translation for key, translation in {**both, **entries}.items() if not HOLE.search(key)
        }
        #: For templates: `{n|t} runs` and `{n} runs` are one.
        self._forms = {HOLE.sub(r"{\1}", key): translation for key, translation in both.items()}
        self._by_start = _by_start(entries)
        self._cached = lru_cache(_KEPT)(self._search)

    def translate(self, text: str) -> str:
        """The sentence in this language; the text itself where no entry fits it."""
        found = self._look_up(text)
        return text if found is None else found

    def knows(self, text: str) -> bool:
        return self._look_up(text) is not None

    def form(self, message: str) -> str:
        """For a template's `trans` block: the sentence with its placeholders (`%(name)s`) still in it."""
        translation = self._forms.get(braced(message))
        return message if translation is None else HOLE.sub(r"%(\1)s", translation.replace("%", "%%"))

    def forms(self, singular: str, plural: str, count: int) -> str:
        return self.form(singular if count == 1 else plural)

    def has_form(self, message: str) -> bool:
        return braced(message) in self._forms

    def _look_up(self, text: str) -> str | None:
        # Long texts are not worth caching.
        return self._cached(text) if len(text) <= MOST_CHARS else self._search(text)

    def _search(self, text: str) -> str | None:
        try:
            return _Search(self._whole, self._by_start).find(text, _DEPTH)
        except Spent:
            return None


class _Search:
    """One text and its parts. Steps are counted, so that no crafted text holds a page up."""

    def __init__(self, whole: Mapping[str, str], by_start: Mapping[str, list[Pattern]]) -> None:
        self._whole = whole
        self._by_start = by_start
        self._found: dict[tuple[str, int], str | None] = {}
        self._steps = Steps(MOST_STEPS)

    def find(self, text: str, depth: int) -> str | None:
        key = (text, depth)
        if key not in self._found:
            self._found[key] = self._find(text, depth)
        return self._found[key]

    def _find(self, text: str, depth: int) -> str | None:
        body = text.strip()
        if not body:
            return None
        if body != text:
            inner = self.find(body, depth)
            return None if inner is None else text.replace(body, inner, 1)
        translation = self._whole.get(text) or self._whole.get(text[0].swapcase() + text[1:])
        if translation is not None or not depth or len(text) > MOST_CHARS:
            return translation
        for candidate in self._by_start.get(text[0], self._by_start[""]):
            if candidate.core not in text:
                continue
            self._steps.take()
            parts = candidate.fits(text, self._steps)
            translation = self._translated(candidate, parts, depth) if parts is not None else None
            if translation is not None:
                return translation
        return None

    def _translated(self, pattern: Pattern, parts: dict[str, str], depth: int) -> str | None:
        """None if a part that must have a translation has none."""
        for name in pattern.inner:
            found = self.find(parts[name], depth - 1)
            if found is not None:
                parts[name] = found
            elif name in pattern.sure:
                return None
        return HOLE.sub(lambda hole: parts[hole[1]], pattern.translation)


def _by_start(entries: Mapping[str, str]) -> dict[str, list[Pattern]]:
    """Patterns by a text's first character, the most specific first; under "" for every other."""
    keys = sorted((key for key in entries if HOLE.search(key)), key=weight, reverse=True)
    patterns = [(start(key), pattern(key, entries[key])) for key in keys]
    starts = {begins for begins, _ in patterns} | {""}
    return {at: [candidate for begins, candidate in patterns if begins in ("", at)] for at in starts}


def braced(message: str) -> str:
    return _PERCENT.sub(r"{\1}", message).replace("%%", "%")


def checked(entries: Iterable[tuple[str, object]], where: str) -> dict[str, str]:
    """Raises CatalogueError for an entry without text, or a name that only the translation has."""
    kept: dict[str, str] = {}
    for key, translation in entries:
        if not isinstance(translation, str) or not translation.strip():
            raise CatalogueError(f"{where}: {key!r}: no text")
        asked = {hole[1] for hole in HOLE.finditer(key)}
        given = {hole[1] for hole in HOLE.finditer(translation)}
        if not given <= asked:
            raise CatalogueError(
                f"{where}: {key!r}: {', '.join(sorted(given - asked))} stands on the right alone"
            )
        if not HOLE.sub("", key).strip():
            raise CatalogueError(f"{where}: {key!r}: would fit every text")
        kept[key] = translation
    return kept


def load(folder: Path) -> Catalogue:
    """All files of one language. Raises CatalogueError: what `checked` finds, an entry in two files."""
    entries: dict[str, str] = {}
    forms = folder / "pages.yaml"
    for path in sorted(folder.glob("*.yaml")):
        if path == forms:
            continue
        for key, translation in entries_of(path).items():
            if entries.setdefault(key, translation) != translation:
                raise CatalogueError(f"{path.name}: {key!r} has another text in another file")
    return Catalogue(entries, entries_of(forms) if forms.is_file() else None)


def entries_of(path: Path) -> dict[str, str]:
    """One file. Raises CatalogueError as `checked`."""
    found: dict[str, object] = yaml.load(path.read_text("utf-8"), _Loader) or {}  # noqa: S506
    return checked(found.items(), path.name)


def chosen(cookie: str | None, accepts: str) -> str:
    """The language a person chose; else the first supported one of `Accept-Language`; else English."""
    if cookie in LANGUAGES:
        return cookie
    for part in accepts.split(","):
        word = part.split(";")[0].strip().lower().split("-")[0]
        if word in LANGUAGES:
            return word
    return "en"
