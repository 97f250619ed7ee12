"""Lines of logs: names and lines of others are in them, so they get symbols for what cannot be seen."""

import io
import logging
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from types import TracebackType
from typing import Any, TextIO, cast

import structlog

from healer.model.shown import shown

_Raised = tuple[type[BaseException], BaseException, TracebackType | None]


def with_symbols(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor for a renderer that writes text as it is."""
    return {
        name: value if name == "exc_info" else shown(value if isinstance(value, str) else repr(value))
        for name, value in event.items()
    }


def shown_traceback(out: TextIO, raised: _Raised) -> None:
    """The traceback without values, which may be secrets."""
    text = io.StringIO()
    structlog.dev.plain_traceback(text, raised)
    out.write(shown(text.getvalue(), keep="\n"))


class Unfailing:
    """A stream that loses what cannot be written: a full disk must not end the thread that logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str, /) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def logged_to(stream: TextIO) -> structlog.PrintLoggerFactory:
    """For structlog, whose own lets errors of the stream go to the caller."""
    return structlog.PrintLoggerFactory(cast(TextIO, Unfailing(stream)))


class _Shown(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record), keep="\n")


def shown_by_logging() -> None:
    """What libraries log goes to standard error, a line of others in it included."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Shown())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
