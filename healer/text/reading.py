"""A sentence in the language of its reader. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from healer.text.catalogues import ENGLISH, of_system, term, wording
from healer.text.language import current
from healer.text.said import UNSTOPPED, Said, join, quoted, unworded, without_stop, worded


def in_language(text: str, language: str) -> str:
    """A sentence by its key; any other text as a whole, where the language knows it: titles of rules, words
    for states. Else the English."""
    return str(text) if language == ENGLISH else _text(quoted(text), language)


def _text(part: Any, language: str) -> Any:
    """Said was made in this process; a mapping was read from the store."""
    if isinstance(part, Said):
        key, args, english = part.key, part.args, str(part)
    elif isinstance(part, Mapping):
        key, args, english = part.get("key", ""), part.get("args", {}), str(part.get("text", ""))
    else:
        return of_system(language, part) if isinstance(part, str) else part
    if not key:
        translated = term(language, english)
        return of_system(language, english) if translated == english else translated
    parts = {name: _parts(value, language) for name, value in args.items()}
    if key == UNSTOPPED:
        return without_stop(parts["text"])
    if "items" in parts:
        return join([str(item) for item in parts["items"]], key.partition(".")[2], language)
    count = parts.get("count")
    found = worded(wording(language, key, count), parts) or english
    return found or worded(wording(ENGLISH, key, count), parts) or unworded(key, parts)


def _parts(value: Any, language: str) -> Any:
    if isinstance(value, list | tuple):
        return [_text(item, language) for item in value]
    return _text(value, language)


def to_text(value: object) -> object:
    """A hook of msgspec for what leaves healer: the text in the language of the request, else in English."""
    if isinstance(value, Said):
        return in_language(value, current.get())
    raise NotImplementedError(f"{type(value).__name__} cannot be written")


def to_plain(value: Any) -> Any:
    """As builtins for what leaves healer, its sentences as text."""
    return msgspec.to_builtins(value, enc_hook=to_text)
