"""English sentences of a test's sample, as the code would have said them: by key and arguments."""

import re
import string
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import msgspec

from healer.text import Said, quoted, read_said, say, stored
from healer.text.catalogues import term
from tests.support.sayings import entries

T = TypeVar("T")
_NUMERIC = re.compile(r"[,.]?\d*[,.]?\d*[dfg%]|,|\.\d+[fg%]?")
#: What others wrote in the sample: a driver's line, a reason in Slurm.
_THEIRS = re.compile(r"NVRM: |nvidia-nvswitch\d: |Kill task failed$")
#: Arguments that are numbers in every sentence.
_NUMBERS = ("count", "n", "more")
_FIGURE = r"[-−+]?\d[\d,]*(?:\.\d+)?%?"


class _Form(NamedTuple):
    key: str
    pattern: re.Pattern[str]
    numeric: frozenset[str]
    letters: int


@lru_cache(maxsize=1)
def _forms() -> list[_Form]:
    """The most specific first."""
    found = [_form(key, form) for key, entry in entries("en").items() for form in entry.forms]
    return sorted(found, key=lambda form: -form.letters)


def _form(key: str, text: str) -> _Form:
    pattern, seen, numeric, letters = "", set[str](), set[str](), 0
    for literal, name, spec, _ in string.Formatter().parse(text):
        pattern += re.escape(literal)
        letters += sum(map(str.isalpha, literal))
        if name is None:
            continue
        if name in _NUMBERS or (spec and _NUMERIC.fullmatch(spec)):
            numeric.add(name)
        part = _FIGURE if name in numeric else ".+?"
        pattern += f"(?P={name})" if name in seen else f"(?P<{name}>{part})"
        seen.add(name)
    return _Form(key, re.compile(pattern, re.DOTALL), frozenset(numeric), letters)


@lru_cache(maxsize=10_000)
def recognised(text: str) -> Said:
    """By the key whose form leaves the fewest English words in its arguments; else as words of others."""
    if _THEIRS.match(text) or term("zh", text) != text:
        return quoted(text)
    best, fewest = quoted(text), _words(text)
    for form in _forms():
        found = form.pattern.fullmatch(text)
        if found is None or (form.letters < 4 and not form.numeric and not _some_known(found.groupdict())):
            continue
        args = {name: _argument(part, name in form.numeric) for name, part in found.groupdict().items()}
        left = sum(_left(arg) for arg in args.values())
        if left < fewest and (said := say(form.key, **args)) == text:
            best, fewest = said, left
    return best


def _left(argument: Any) -> int:
    """Words that stay English."""
    if not isinstance(argument, str) or term("zh", argument) != argument:
        return 0
    if isinstance(argument, Said) and argument.key:
        return sum(map(_left, argument.args.values()))
    return _words(argument)


def _words(text: str) -> int:
    return len(re.findall(r"(?<![\w./_=-])[A-Za-z][a-z]+(?![\w./_=-])", _THEIRS.sub("", text)))


def _some_known(parts: dict[str, str]) -> bool:
    return any(recognised(part).key or term("zh", part) != part for part in parts.values())


def _argument(part: str, numeric: bool) -> Any:
    if not numeric:
        inner = recognised(part)
        return inner if inner.key or term("zh", part) != part else part
    figure = float(part.replace(",", "").replace("−", "-").rstrip("%")) / (100 if part.endswith("%") else 1)
    return int(figure) if figure == int(figure) else figure


def as_said(value: T) -> T:
    """The struct with each of its sentences recognised."""
    plain = msgspec.to_builtins(value, enc_hook=stored)
    return msgspec.convert(plain, type(value), dec_hook=_hook)


def _hook(kind: type, value: Any) -> Any:
    if kind is Said and isinstance(value, str):
        return recognised(value)
    found = read_said(kind, value)
    return Said(found, found.key, _recognised_in(found.args)) if isinstance(found, Said) else found


def _recognised_in(part: Any) -> Any:
    """The same within a sentence's arguments."""
    if isinstance(part, dict):
        if set(part) == {"text"}:
            return recognised(part["text"])
        return {name: _recognised_in(inner) for name, inner in part.items()}
    return [_recognised_in(inner) for inner in part] if isinstance(part, list) else part
