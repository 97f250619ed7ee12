"""Lines of logs: names and lines of others are in them, so they get symbols for what cannot be seen."""

import io
import logging
import sys
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any, TextIO

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


class _Shown(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record), keep="\n")


def shown_by_logging() -> None:
    """What libraries log goes to standard error, a line of others in it included."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Shown())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
