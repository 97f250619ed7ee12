"""Scrapes that look like one before: the same lines in the same order, with other values.

An exporter prints its series in one order, so a scrape is nearly always the last one with new numbers. A
`Template` holds the lines of such a scrape up to their values. Whether a body fits is one pass in C over
its lines and one sum, and a body that does not fit is read line by line as if there were no template.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import compress
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.signals.prepared import Prepared
from healer.signals.values import doubles

#: What is remembered of one wire form: lines of all templates, and bytes of their texts. 1,250 nodes of 8
#: GPUs are some 300,000 lines of 190 bytes. Then all are forgotten at once.
LINES_MAX = 1_000_000
BYTES_MAX = 192 * 2**20
#: Bodies that did not fit and are counted, by what they begin with.
_MISSES_MAX = 50_000
#: Kinds of lines beside the slots of samples.
NO_SAMPLE, UNWANTED = -1, -2

#: Node in the address (empty without), the first sample's series, how many lines.
Key = tuple[str, bytes, int]

_numbers = msgspec.json.Decoder(list[float])


#: See `Slots.age`.
Age = tuple[int, datetime | None]


class Line(NamedTuple):
    """`text`: all of it for a line without a sample (`slot` is NO_SAMPLE), else all up to the value.

    `slot` is UNWANTED for a sample whose `name` nobody wants."""

    text: bytes
    slot: int
    name: str = ""


class Template:
    """What the lines of a body mean, if it has these texts."""

    def __init__(self, lines: Sequence[Line], age: Age, prepared: Prepared | None) -> None:
        self.age, self.prepared = age, prepared
        self.size = sum(len(line.text) for line in lines)
        self._texts = [line.text for line in lines]
        plain = [line.slot == NO_SAMPLE for line in lines]
        self._plain = plain if any(plain) else None
        self._samples = [not one for one in plain]
        told = [line for line in lines if line.slot != NO_SAMPLE]
        kept = [place for place, line in enumerate(told) if line.slot >= 0]
        self._kept = None if len(kept) == len(told) else np.array(kept, np.intp)
        #: Slots of the samples that have one, (n,) int32; the names of the others, and how often.
        self.slots = np.array([told[place].slot for place in kept], np.int32)
        self.slots.setflags(write=False)
        self.unwanted = Counter(line.name for line in told if line.slot == UNWANTED)

    def __len__(self) -> int:
        return len(self._texts)

    def values(self, lines: list[bytes], length: int) -> NDArray[np.float64] | None:
        """By `slots`, (n,) float64; None when the body does not fit. `length`: of the body."""
        words = list(map(bytes.removeprefix, lines, self._texts))
        if self._plain is not None:
            if any(compress(words, self._plain)):
                return None
            words = list(compress(words, self._samples))
        joined = b",".join(words)
        # A text that was not at the beginning of its line was not cut off: then the words are too long.
        if len(joined) + self.size != length - (len(lines) - 1) + max(0, len(words) - 1):
            return None
        numbers = _read(joined, words)
        if numbers is None:
            return None
        values = doubles(numbers)
        return values if self._kept is None else values[self._kept]


def _read(joined: bytes, words: list[bytes]) -> list[float] | None:
    try:
        # JSON's numbers are most of those that exporters print, and are read at a fifth of the cost.
        numbers = _numbers.decode(b"[%b]" % joined)
        return numbers if len(numbers) == len(words) else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return list(map(float, words))
    except ValueError:
        return None


class Templates:
    """Remembered by how bodies begin; bounded."""

    def __init__(self) -> None:
        self._known: dict[Key, Template] = {}
        self.lines = self.size = 0
        self._misses: dict[Key, int] = {}

    def __len__(self) -> int:
        """Lines of all."""
        return self.lines

    def find(self, key: Key, age: Age) -> Template | None:
        """The template, unless it is of another `age`: what its slots meant then is over."""
        found = self._known.get(key)
        if found is None or found.age[0] != age[0] or found.age[1] not in (None, age[1]):
            return None
        return found

    def worth_making(self, key: Key) -> bool:
        """Whether a body that did not fit should become a template: less and less often for one that
        never comes twice."""
        if len(self._misses) >= _MISSES_MAX:
            self._misses.clear()
        missed = self._misses[key] = self._misses.get(key, 0) + 1
        return missed & (missed - 1) == 0

    def fits(self, key: Key) -> None:
        self._misses.pop(key, None)

    def add(self, key: Key, made: Template) -> None:
        before = self._known.pop(key, None)
        if before is not None:
            self.lines -= len(before)
            self.size -= before.size
        if self.lines + len(made) > LINES_MAX or self.size + made.size > BYTES_MAX:
            self._known.clear()
            self.lines = self.size = 0
        if len(made) > LINES_MAX or made.size > BYTES_MAX:
            return
        self._known[key] = made
        self.lines += len(made)
        self.size += made.size


def key_of(node: str, lines: list[bytes]) -> Key | None:
    """None for a body without a sample."""
    for line in lines:
        if line and not line.startswith(b"#"):
            return node, line[: line.rfind(b" ") + 1], len(lines)
    return None
