"""A sentence in the language of its reader. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from healer.text.catalogues import ENGLISH, wording
from healer.text.said import FORMS, Said, join, worded

LANGUAGES = {"en": "English", "zh": "简体中文"}


def in_language(said: Said, language: str, of_others: Callable[[str], str] = str) -> str:
    """In English where the language lacks the sentence. `of_others` translates words that are no sentence of
    healer's: titles of rules."""
    if language == ENGLISH:
        return str(said)
    return _text(said, language, of_others) if said.key else of_others(str(said))


def _text(part: Any, language: str, of_others: Callable[[str], str]) -> Any:
    """Said is what was made in this process, a mapping what was read from the store."""
    if isinstance(part, Said):
        key, args, english = part.key, part.args, str(part)
    elif isinstance(part, Mapping):
        key, args, english = part.get("key", ""), part.get("args", {}), str(part.get("text", ""))
    else:
        return part
    if not key:
        return of_others(english)
    parts = {name: _parts(value, language, of_others) for name, value in args.items()}
    if form := FORMS.get(key):
        return form(parts["text"])
    if "items" in parts:
        return join([str(item) for item in parts["items"]], key.partition(".")[2], language)
    found = wording(language, key, parts)
    if found is None and english:
        return english
    return worded(found or wording(ENGLISH, key, parts), key, parts)


def _parts(value: Any, language: str, of_others: Callable[[str], str]) -> Any:
    if isinstance(value, list | tuple):
        return [_text(item, language, of_others) for item in value]
    return _text(value, language, of_others)
