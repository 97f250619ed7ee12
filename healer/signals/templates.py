"""Scrapes that look like an earlier one: the same lines in the same order, with different values.

An exporter prints its series in one order, so a scrape is nearly always the last one with new numbers, and
most of those are unchanged too. A `Template` keeps the last body that matched, divided into blocks of a few
lines. Each block is compared with the same place in the next body; only lines of blocks that differ are cut
out and read. If most differ each time, all lines are one block. A body that does not match is read line by
line as if there were no template.

Nothing here releases the GIL, as numpy does for long arrays: getting it back next to a busy event loop costs
more than the array saves.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import compress
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.signals.slots import Prepared
from healer.signals.values import float_array

#: Limits per wire form: lines of all templates, and bytes of their texts. 1,250 nodes of 8 GPUs are some
#: 300,000 lines of 190 bytes. Beyond them all are forgotten at once.
LINES_MAX = 1_000_000
BYTES_MAX = 192 * 2**20
#: Lines per block: if one GPU's value changes, those of its seven neighbours usually do too.
_BLOCK = 8
#: If more than one in this many blocks changed, all lines at once are cheaper; if fewer than one in this
#: many, blocks are. The number is checked once per this many bodies.
_MANY, _FEW = 3, 4
_LOOK = 16
#: The most bytes per value on average: a body with longer values does not match.
_VALUE_BYTES = 32
#: Bytes of a template without lines.
_TEMPLATE_BYTES = 2_000
#: The longest line that may identify a body.
_BEGIN_MAX = 4096
#: Limit of counted bodies that did not match, by their beginning.
_MISSES_MAX = 50_000
#: Kinds of lines that have no slot.
NO_SAMPLE, UNWANTED = -1, -2

#: Node in the URL (empty without), the first sample's series; and the number of lines.
Begin = tuple[str, bytes]
Key = tuple[Begin, int]

_numbers = msgspec.json.Decoder(list[float])


#: See `Slots.age`.
Age = tuple[int, datetime | None]


class Line(NamedTuple):
    """`text`: the whole line without a sample (`slot` is NO_SAMPLE), else everything up to the value.

    `slot` is UNWANTED for a sample whose `name` is not in the catalogue."""

    text: bytes
    slot: int
    name: str = ""


class _Block:
    """Some consecutive lines, with their content in the last body that matched."""

    __slots__ = ("_plain", "_samples", "_size", "_sizes", "begin", "body", "end", "first", "last")

    def __init__(self, lines: Sequence[Line], first: int, begin: int) -> None:
        #: Its lines are from the `first`-th to before the `last`-th, and likewise its samples.
        self.first, self.last = first, first + len(lines)
        plain = [line.slot == NO_SAMPLE for line in lines]
        self.begin, self.end = begin, begin + plain.count(False)
        self._plain = plain if any(plain) else None
        self._samples = [not is_comment for is_comment in plain] if self._plain else ()
        self._sizes = [len(line.text) for line in lines]
        self._size = sum(self._sizes) + len(lines)
        #: The block as it was, with the end of its last line; empty until first seen.
        self.body = b""

    def texts(self) -> list[bytes]:
        """The texts of its lines, from its last content."""
        return [line[:size] for line, size in zip(self.body.split(b"\n"), self._sizes, strict=False)]

    def cut(self, raw: bytes, place: int, texts: list[bytes], words: list[bytes]) -> int:
        """Adds the values of its lines, which begin at `place`, to `words`; returns where they end, -1 if
        they are different lines."""
        room = self._size + _VALUE_BYTES * len(texts)
        lines = raw[place : place + room].split(b"\n", len(texts))
        if len(lines) <= len(texts):
            return -1
        end = min(place + room, len(raw)) - len(lines.pop())
        found = list(map(bytes.removeprefix, lines, texts))
        # If a text was not at the beginning of its line, it was not cut off: then the words are too long.
        if len(b"".join(found)) + self._size != end - place:
            return -1
        if self._plain is not None:
            if any(compress(found, self._plain)):
                return -1
            found = compress(found, self._samples)
        words += found
        return end


class Template:
    """The meaning of the lines of a body, if it has these texts. Remembers the last body that matched."""

    def __init__(self, lines: Sequence[Line], age: Age, prepared: Prepared | None) -> None:
        self.age, self.prepared = age, prepared
        samples = [line for line in lines if line.slot != NO_SAMPLE]
        kept = [place for place, line in enumerate(samples) if line.slot >= 0]
        self._kept = None if len(kept) == len(samples) else np.array(kept, np.intp)
        #: Slots of the samples that have one, (n,) int32; the names of the others, and how often they occur.
        self.slots = np.array([samples[place].slot for place in kept], np.int32)
        self.slots.setflags(write=False)
        self.unwanted = Counter(line.name for line in samples if line.slot == UNWANTED)
        self._lines = len(lines)
        #: Whether its last line has no end.
        self._torn = bool(lines and lines[-1].text)
        ended = lines if self._torn else lines[:-1]
        self._whole, self._blocks = _Block(ended, 0, 0), _blocks_of(ended)
        #: The values of all lines; none if each block has its own.
        self._texts: list[bytes] | None = [line.text for line in ended]
        #: Whether few of the blocks change.
        self._calm, self._read_at_once = True, 0
        self._numbers = np.zeros(len(samples))
        #: The most bytes that it may need.
        self.size = _TEMPLATE_BYTES + sum(len(line.text) + _VALUE_BYTES for line in lines)

    def __len__(self) -> int:
        return self._lines

    def values(self, raw: bytes) -> NDArray[np.float64] | None:
        """By `slots`, (n,) float64; None if the body does not match."""
        if self._torn:
            raw += b"\n"
        if not (self._by_blocks(raw) if self._calm else self._at_once(raw)):
            return None
        return self._numbers.copy() if self._kept is None else self._numbers[self._kept]

    def _by_blocks(self, raw: bytes) -> bool:
        """Updates the numbers of blocks that differ; False, with nothing done, if the body does not match."""
        words: list[bytes] = []
        changed: list[tuple[_Block, bytes]] = []
        texts, place, starts_with = self._texts, 0, raw.startswith
        for block in self._blocks:
            body = block.body
            if body and starts_with(body, place):
                place += len(body)
                continue
            end = block.cut(raw, place, texts[block.first : block.last] if texts else block.texts(), words)
            if end < 0:
                return False
            changed.append((block, raw[place:end]))
            place = end
        if place != len(raw) or (numbers := _read(words)) is None:
            return False
        first = 0
        for block, body in changed:
            count = block.end - block.begin
            self._numbers[block.begin : block.end] = numbers[first : first + count]
            block.body = body
            first += count
        self._texts = None
        if not texts and len(changed) * _MANY > len(self._blocks):
            self._calm, self._texts = False, [text for block in self._blocks for text in block.texts()]
            for block in self._blocks:
                block.body = b""
        return True

    def _at_once(self, raw: bytes) -> bool:
        """Updates all numbers; False, with nothing done, if the body does not match."""
        words: list[bytes] = []
        texts = self._texts or []
        if self._whole.cut(raw, 0, texts, words) != len(raw) or (numbers := _read(words)) is None:
            return False
        self._read_at_once += 1
        if self._read_at_once % _LOOK == 0:
            changed = np.flatnonzero(numbers != self._numbers)
            self._calm = len(set((changed // _BLOCK).tolist())) * _FEW < len(self._blocks)
        self._numbers = numbers
        return True


def _blocks_of(lines: Sequence[Line]) -> list[_Block]:
    blocks: list[_Block] = []
    first = 0
    for place in range(0, len(lines), _BLOCK):
        blocks.append(_Block(lines[place : place + _BLOCK], place, first))
        first = blocks[-1].end
    return blocks


def _read(words: list[bytes]) -> NDArray[np.float64] | None:
    """(n,) float64; None if one is not a number."""
    text = b"[%b]" % b",".join(words)
    try:
        # Most numbers that exporters print are JSON numbers, and those are read at a fifth of the cost.
        numbers = _numbers.decode(text)
        return float_array(numbers) if len(numbers) == len(words) else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    if b"_" in text:  # the only Python-specific form that `float` accepts in bytes (`float_of`)
        return None
    try:
        return float_array(list(map(float, words)))
    except ValueError:
        return None


class Templates:
    """Remembered by the beginning of bodies and their number of lines; bounded."""

    def __init__(self) -> None:
        self._known: dict[Key, Template] = {}
        #: Of those that begin alike, the one that last matched: then lines need not be counted to find it.
        self._latest: dict[Begin, Template] = {}
        self.lines = self.size = 0
        #: By the hash of their beginning: how often.
        self._misses: dict[int, int] = {}

    def __len__(self) -> int:
        """The lines of all templates."""
        return self.lines

    def read(self, begin: Begin, raw: bytes, age: Age) -> tuple[Template, NDArray[np.float64]] | None:
        """The template that a body matches, and its values by slot. `age`: the present age of slots;
        templates of another age are outdated."""
        latest = self._latest.get(begin)
        if latest is not None and _holds(latest, age) and (values := latest.values(raw)) is not None:
            return self._fits(begin, latest), values
        found = self._known.get(key_of(begin, raw))
        if found is None or found is latest or not _holds(found, age):
            return None
        values = found.values(raw)
        return None if values is None else (self._fits(begin, found), values)

    def _fits(self, begin: Begin, template: Template) -> Template:
        self._latest[begin] = template
        if self._misses:
            self._misses.pop(hash((begin, len(template))), None)
        return template

    def worth_making(self, key: Key) -> bool:
        """Whether a body that did not match should become a template: less and less often for one that never
        recurs."""
        if len(self._misses) >= _MISSES_MAX:
            self._misses.clear()
        missed = self._misses[hash(key)] = self._misses.get(hash(key), 0) + 1
        return missed & (missed - 1) == 0

    def add(self, key: Key, made: Template) -> None:
        before = self._known.pop(key, None)
        if before is not None:
            self.lines -= len(before)
            self.size -= before.size
        self._latest.pop(key[0], None)
        if self.lines + len(made) > LINES_MAX or self.size + made.size > BYTES_MAX:
            self._known.clear()
            self._latest.clear()
            self.lines = self.size = 0
        if len(made) > LINES_MAX or made.size > BYTES_MAX:
            return
        self._known[key] = self._latest[key[0]] = made
        self.lines += len(made)
        self.size += made.size


def _holds(template: Template, age: Age) -> bool:
    return template.age[0] == age[0] and template.age[1] in (None, age[1])


def first_sample_of(node: str, raw: bytes) -> Begin | None:
    """None for a body without a sample, or whose first one is too long to be remembered."""
    start = 0
    while (mark := raw[start : start + 1]) in (b"#", b"\n"):
        if (end := raw.find(b"\n", start)) < 0:
            return None
        start = end + 1
    if not mark:
        return None
    end = raw.find(b"\n", start)
    line = raw[start:end] if end >= 0 else raw[start:]
    if len(line) > _BEGIN_MAX:
        return None
    return node, line[: line.rfind(b" ") + 1]


def key_of(begin: Begin, raw: bytes) -> Key:
    return begin, raw.count(b"\n") + 1
