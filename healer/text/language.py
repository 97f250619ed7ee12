"""The language of the reader: a browser's cookie, else what it accepts, else English."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Literal

Language = Literal["en", "zh"]
LANGUAGES: dict[Language, str] = {"en": "English", "zh": "简体中文"}
COOKIE = "healer_language"

#: The language of the request that is being answered.
current: ContextVar[str] = ContextVar("language", default="en")


def of_locale(environ: Mapping[str, str]) -> str:
    """The language of a terminal: of LC_ALL, else LC_MESSAGES, else LANG; else English."""
    name = next(filter(None, map(environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    word = name.lower().replace(".", "_").split("_")[0]
    return word if word in LANGUAGES else "en"


def chosen(cookie: str | None, accepts: str) -> str:
    """The language a person chose; else the first supported one of `Accept-Language`; else English."""
    if cookie in LANGUAGES:
        return cookie
    for part in accepts.split(","):
        word = part.split(";")[0].strip().lower().split("-")[0]
        if word in LANGUAGES:
            return word
    return "en"
