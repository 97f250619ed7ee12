"""Numbers as written by exporters: blanks, words, and impossible times."""

import bisect
import functools
import math
import re
import struct
from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from healer.model import Signal, SignalKind
from healer.signals.rejects import BadEntry, utc_time
from healer.text import say

# --- numerals -----------------------------------------------------------------------------------------------
# Numbers that senders write as text.
#
# Python's own `float` and `int` also accept `1_000` and the digits of every script, which are not numbers to
# Prometheus, to JSON or to any exporter.


def float_of(text: str) -> float:
    """Raises ValueError, also for anything that only Python calls a number."""
    _check(text)
    return float(text)


def float_or_none(text: str) -> float | None:
    """None if it is not a number."""
    try:
        return float_of(text)
    except ValueError:
        return None


def int_of(text: str) -> int:
    """The same for an integer."""
    _check(text)
    return int(text)


def is_plain(text: str) -> bool:
    """Whether it is not a number to Python alone."""
    return "_" not in text and text.isascii()


def _check(text: str) -> None:
    if not is_plain(text):
        raise ValueError(f"not a number: {text[:40]!r}")


# --- values -------------------------------------------------------------------------------------------------

#: A sender's clock may be ahead by this much; beyond that the time of arrival counts.
FUTURE_LIMIT = timedelta(seconds=5)
#: The longest window of any rule: anything older can change nothing.
OLD_LIMIT = timedelta(minutes=15)
TOO_OLD = say("signals.too_old")

# DCGM's blanks (facts c.4): four codes each as int32 and as float. Those of int64, 0x7ffffffffffffff0 and
# above, are all 2^63 as a float64; nothing that is measured is that large.
_BLANK_INT32 = 0x7FFFFFF0
_BLANK_FLOAT = 140737488355328.0
_BLANK_INT64 = 2.0**63
#: The borders between numbers and blanks: below the first is a blank, up to the second a number, and so on.
_BORDERS = np.array(
    [
        np.nextafter(-_BLANK_INT64, 0),
        *(_BLANK_INT32, _BLANK_INT32 + 4),
        *(_BLANK_FLOAT, _BLANK_FLOAT + 4),
        _BLANK_INT64,
    ]
)

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
#: What makes it another number than the one it begins with, or none.
_RUNS_ON = re.compile(r"[_\d]")
_YES = frozenset({"yes", "true", "enabled", "active", "on", "pending", "1"})
_NO = frozenset({"no", "false", "disabled", "not active", "off", "none", "0"})
#: Words of nvidia-smi for an unknown value.
_NOTHING = frozenset(
    {"", "n/a", "na", "not supported", "not available", "unknown", "unknown error", "err!", "gpu is lost"}
    | {
        "gpu requires reset",
        "requested functionality has been deprecated",
        "insufficient permissions",
        "not found",
    }
)


def float_array(numbers: Sequence[float | None]) -> NDArray[np.float64]:
    """(n,) float64, NaN for None. Twice as fast as converting a list, if all are numbers."""
    try:
        block = bytearray(8 * len(numbers))
        _doubles(len(numbers)).pack_into(block, 0, *numbers)
        return np.frombuffer(block, np.float64)
    except struct.error:
        return np.array(numbers, np.float64)


@functools.lru_cache(maxsize=256)
def _doubles(count: int) -> struct.Struct:
    return struct.Struct(f"={count}d")


def blanks_to_nan(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Blanks and infinities become NaN, in place. Shape kept."""
    is_number = _BORDERS.searchsorted(values, "right") & 1  # NaN sorts last
    if np.count_nonzero(is_number) < values.size:
        values[is_number == 0] = np.nan
    return values


def is_blank(value: float) -> bool:
    """Whether `blanks_to_nan` leaves nothing of the value. For one that changes its unit before."""
    return not bisect.bisect_right(_BORDERS, value) & 1


def accepted_time(at: datetime, now: datetime) -> datetime | None:
    """The time that counts for a sample of time `at`; None if it is too old to matter."""
    if at > now + FUTURE_LIMIT:
        return now
    return None if at < now - OLD_LIMIT else at


def sample_time(text: str, now: datetime) -> datetime:
    """The time that counts for a sample with this RFC 3339 time. Raises BadEntry, also if it is too old."""
    at = accepted_time(utc_time(text), now)
    if at is None:
        raise BadEntry(TOO_OLD)
    return at


def number(signal: Signal, text: str) -> float:
    """The value of a word for this signal, before its scale; NaN if it means unknown."""
    text = text.strip()
    if text in signal.words:
        return float(signal.words[text])
    plain = text.strip("[]").strip().lower()
    for word, value in signal.words.items():
        if word.lower() == plain:
            return float(value)
    if plain in _NOTHING or plain.startswith("unable to"):
        return math.nan
    if signal.unit == "bool" and signal.kind is SignalKind.gauge:
        return 1.0 if plain in _YES else 0.0 if plain in _NO else math.nan
    plain = plain.removeprefix("p") if signal.unit == "state" else plain
    if "*" in signal.words:  # any other word counts: a word may begin like a number (a UUID)
        return float(plain) if _NUMBER.fullmatch(plain) else float(signal.words["*"])
    match = _NUMBER.match(plain)
    return float(match[0]) if match and not _RUNS_ON.match(plain, match.end()) else math.nan
