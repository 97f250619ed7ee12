"""Sentences as rows keep them, `{"text": ..., "key": ..., "args": {...}}`, and back.

The English text is stored with key and arguments: it is what was said then, also for a version that has no
such key any more, or not yet. Words of others are stored as plain text, as in rows of older versions.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from healer.text import language
from healer.text.reading import in_language
from healer.text.said import Said

T = TypeVar("T")


def stored(value: object) -> object:
    """A hook of msgspec for what is written to the store. Raises NotImplementedError for what is no Said."""
    if not isinstance(value, Said):
        raise NotImplementedError(f"{type(value).__name__} cannot be stored")
    if not value.key:
        return str(value)
    return {"text": str(value), "key": value.key, "args": _kept(value.args)}


def read_said(kind: type, value: Any) -> Any:
    """A hook of msgspec for what is read from the store. Raises NotImplementedError for other types, and
    ValueError for what is no sentence."""
    if kind is not Said:
        raise NotImplementedError(f"{kind.__name__} cannot be read")
    if isinstance(value, Said):
        return value
    if isinstance(value, str):
        return Said(value)
    if isinstance(value, Mapping) and isinstance(text := value.get("text"), str):
        return Said(text, str(value.get("key", "")), value.get("args") or {})
    raise ValueError(f"Expected a sentence, got `{type(value).__name__}`")


def to_text(value: object) -> object:
    """A hook of msgspec for what leaves healer: the text in the language of the request, else in English."""
    if isinstance(value, Said):
        return in_language(value, language.current.get())
    raise NotImplementedError(f"{type(value).__name__} cannot be written")


def to_stored(value: Any, *, str_keys: bool = False) -> Any:
    """As builtins for a JSON column."""
    return msgspec.to_builtins(value, enc_hook=stored, str_keys=str_keys)


def to_plain(value: Any) -> Any:
    """As builtins for what leaves healer, its sentences as text."""
    return msgspec.to_builtins(value, enc_hook=to_text)


def stored_json(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=stored)


def from_stored(value: Any, kind: type[T]) -> T:
    """Raises msgspec.ValidationError."""
    return msgspec.convert(value, kind, dec_hook=read_said)


def _kept(value: Any) -> Any:
    """A part of a sentence needs no text of its own; the words of others are all that there is of them."""
    if isinstance(value, Said):
        return {"key": value.key, "args": _kept(value.args)} if value.key else {"text": str(value)}
    if isinstance(value, Mapping):
        return {name: _kept(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_kept(part) for part in value]
    return value
