"""A sentence for people, with the key and arguments that it was made from."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from math import isfinite
from numbers import Integral
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import msgspec

from healer.text.catalogues import ENGLISH, wording

#: What may be part of a sentence. Moments and spans of time are sentences themselves (`healer.text.moments`).
Argument = str | int | float | bool | None
T = TypeVar("T")
_NONE: Mapping[str, Any] = MappingProxyType({})

#: How parts are put together: the separators are in `words.po`.
Separator = Literal["comma", "semicolon", "and", "or", "space", "nothing", "line", "dot", "stop"]


class Said(str):
    """English text that knows its `key` and `args`. Equal to the same text as `str`, and hashed like it.

    `key` is empty for the words of others (a rule's title, a person's reason, the output of a command): they
    are translated only where the catalogue of the rules knows them as a whole. An argument is a number, a
    text, another Said, or a list of those.
    """

    __slots__ = ("args", "key")

    key: str
    args: Mapping[str, Any]

    def __new__(cls, text: str, key: str = "", args: Mapping[str, Any] = _NONE) -> "Said":
        sentence = super().__new__(cls, text)
        sentence.key = key
        sentence.args = args
        return sentence

    def __reduce__(self) -> tuple[Any, ...]:
        return Said, (str(self), self.key, dict(self.args))

    def __deepcopy__(self, memo: object) -> "Said":
        return self


#: No text. A single object: a field with this default is left out when written.
NO_WORDS = Said("")


def no_words() -> Said:
    """For fields of the API: msgspec describes no default of a type of one's own."""
    return NO_WORDS


def say(key: str, /, **args: Argument) -> Said:
    """The sentence of this key in English. `count` chooses between its plural forms.

    A key or argument that the catalogue lacks never stops a decision: the text is then the key itself with
    what it was given (tests/unit/text looks at every call).
    """
    if not args:
        return _without_arguments(key)
    kept = {name: _plain(value) for name, value in args.items()}
    # In English by what was given: a format of figures also takes infinity.
    text = worded(wording(ENGLISH, key, kept.get("count")), args)
    return Said(text or unworded(key, kept), key, kept)


@lru_cache
def _without_arguments(key: str) -> Said:
    return Said(worded(wording(ENGLISH, key), _NONE) or unworded(key, _NONE), key)


def worded(form: str | None, args: Mapping[str, Any]) -> str | None:
    """The form with its arguments; None if there is none, or if the two do not match."""
    if form is None:
        return None
    with suppress(KeyError, ValueError, IndexError, TypeError, AttributeError):
        return form.format_map(args)
    return None


def unworded(key: str, args: Mapping[str, Any]) -> str:
    return f"{key}({', '.join(f'{name}={value}' for name, value in args.items())})"


def is_worded(sentence: Said) -> bool:
    """Whether the catalogue has this key with these arguments: what another program says may lack either."""
    return worded(wording(ENGLISH, sentence.key, sentence.args.get("count")), sentence.args) is not None


def quoted(text: str) -> Said:
    """The words of others, or of a rule: no sentence of healer's own."""
    if isinstance(text, Said):
        return text
    return Said(text) if text else NO_WORDS


class SaidError(Exception):
    """An error of one sentence, which its raiser has to word by a key (`say`, `quoted`)."""

    def __init__(self, text: Said) -> None:
        super().__init__(text)


def said_by(error: BaseException) -> Said:
    """The text of an error: by key if it was raised with a sentence, or if the library's sentences are known;
    else its text."""
    first = error.args[0] if error.args else ""
    if isinstance(first, Said):
        return first
    if isinstance(error, msgspec.MsgspecError):
        from healer.text.decoder_errors import decoder_error

        return decoder_error(str(error))
    return quoted(str(error))


def joined(parts: Iterable[str], by: Separator) -> Said:
    """The parts with a separator between them; `and` and `or`: the last two by that word, the others by a
    comma."""
    items = list(parts)
    if len(items) == 1:
        return quoted(items[0])
    return Said(join(items, by, ENGLISH), f"words.{by}", {"items": items})


def name_some(names: Sequence[str], most: int, count: int | None = None) -> Said:
    """`a, b and 7 more`: at most `most` of the names. `count`: how many there are, where `names` are some."""
    shown = names[:most]
    more = (len(names) if count is None else count) - len(shown)
    named = joined(shown, "comma")
    return say("words.and_more", names=named, n=more) if more > 0 else named


def join(items: list[str], by: str, language: str) -> str:
    if by == "nothing":
        return "".join(items)
    comma = wording(language, "words.comma") or ", "
    between = wording(language, f"words.{by}") or comma
    if by not in ("and", "or"):
        return between.join(items)
    return between.join(filter(None, (comma.join(items[:-1]), *items[-1:])))


def reworded(text: str, english: str) -> Said:
    """The same sentence with its English cut short, or with other capitals: other languages need neither."""
    sentence = quoted(text)
    return Said(english, sentence.key, sentence.args)


def capital(text: str) -> Said:
    """The same sentence with a capital at its start."""
    return reworded(text, text[:1].upper() + text[1:])


def unstopped(text: str) -> Said:
    """The same sentence without its full stop, to continue within another."""
    return Said(without_stop(text), UNSTOPPED, {"text": text})


#: The key of a sentence without its full stop, in every language.
UNSTOPPED = "form.unstopped"


def without_stop(text: str) -> str:
    return text.rstrip(".。")


_AS_THEY_ARE = frozenset({Said, str, int, bool, type(None)})


def _plain(value: Any) -> Any:
    """As JSON keeps it: NumPy's numbers are Python's from here on, and what is no number is a text."""
    if type(value) in _AS_THEY_ARE or isinstance(value, str):
        return value
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(value)
    return int(value) if isinstance(value, Integral) else value


# --- as rows keep them: `{"text": ..., "key": ..., "args": {...}}`
#
# The English text is stored with key and arguments: it is what was said then, also for a version that has no
# such key any more, or not yet. Words of others are stored as plain text, as in rows of older versions.


def stored(value: object) -> object:
    """A hook of msgspec for what is written to the store. Raises NotImplementedError if it is not a Said."""
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


def to_stored(value: Any, *, str_keys: bool = False) -> Any:
    """As builtins for a JSON column."""
    return msgspec.to_builtins(value, enc_hook=stored, str_keys=str_keys)


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
