"""`POST /signals/prometheus/write`: remote_write 1.0, snappy over `prometheus.WriteRequest`.

A series is identified by the raw bytes of its labels. Two paths lead to the same samples:

- the walker reads every field of a series, and only it makes a label block known;
- the fast path reads outer lengths only. It guesses that a series is a known label block and one sample of 18
  bytes (9 if the value is zero), and takes the values of the whole request at once. After a known block there
  can be nothing else if its tags and lengths are those of a sample; a wrong guess is walked.
  The ends of series are guessed too, from the lengths of those that followed each other before, or from the
  last bytes of a sample: if the length of each series leads to the next end, the guess is right. Prometheus
  sends series in the order of its scrapes, so label blocks are compared with those that followed each other
  before (`Order`), and looked up if they differ.

Exemplars, histograms and metadata are ignored.
"""

from collections.abc import Callable
from datetime import datetime
from itertools import repeat
from struct import unpack_from
from typing import NamedTuple

import cramjam
import numpy as np
from numpy.typing import NDArray

from healer.signals.protobuf import FIXED64, LENGTH, VARINT, Torn, fields, varint
from healer.signals.rejects import BadBody
from healer.signals.series import Measured, Placer
from healer.signals.slots import Samples, Slots
from healer.signals.wire import HasNode
from healer.text import said_by, say

# --- order --------------------------------------------------------------------------------------------------
# The order in which series come: after a known one the next is guessed, and compared instead of looked up.
#
# A table of 300,000 label blocks fits into no processor cache, so looking up a block means waiting for
# memory. Blocks that followed each other before are adjacent.

#: Limits: stretches of remembered order that make up one request, and what is remembered in all.
_RUNS_MAX = 8
#: A request is remembered in its order if more than one block in this many had to be looked up.
_NEW_SHARE = 16
_ORDER_MAX = 500_000
_ORDER_BYTES_MAX = 192 * 2**20


class Order:
    """Label blocks in the order in which they came, bounded. The series of a scrape follow each other each
    time; where one request ends and the next begins changes."""

    def __init__(self) -> None:
        self._start(0)

    def _start(self, generation: int) -> None:
        self._generation = generation
        self._blocks: list[bytes] = []
        self._bytes = 0
        #: By place: slot, -1 for a block that has none; length. And by block with a slot: one place of it.
        self._slots = np.empty(0, np.int32)
        self._lengths = np.empty(0, np.int64)
        #: By place, bytes of the sample that last followed the block.
        self._widths = np.empty(0, np.int64)
        self._places = np.full(0, -1, np.int64)

    def forget(self, generation: int) -> None:
        """Forgets everything when slots change their meaning."""
        if generation != self._generation:
            self._start(generation)

    def sizes(self, slot: int, most: int) -> NDArray[np.int64] | None:
        """(n,) int64: the last lengths of the series of this slot and of those after it, block and sample;
        None if unknown."""
        place = self._place(slot)
        if place < 0:
            return None
        stop = min(place + most, len(self._blocks))
        return self._lengths[place:stop] + self._widths[place:stop]

    def _place(self, slot: int) -> int:
        return int(self._places[slot]) if 0 <= slot < len(self._places) else -1

    def slots(
        self,
        data: bytes,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        widths: NDArray[np.int64],
        slot_by_block: dict[bytes, int],
    ) -> NDArray[np.int32]:
        """(n,) int32: the slot of each block of `data` from a start to its end, by `slot_by_block`, -1 if
        unknown. Only blocks that are looked up are copied out. `widths`: of the samples behind them."""
        begins, lengths = starts.tolist(), ends - starts
        slots = np.full(len(begins), -1, np.int32)

        def block(at: int) -> bytes:
            return data[begins[at] : int(ends[at])]

        done, end = 0, len(begins)
        for _ in range(_RUNS_MAX):
            slot = -1
            while done < end and (slot := slot_by_block.get(block(done), -1)) < 0:
                done += 1
            place = self._place(slot)
            if place < 0:
                break
            run = self._run(data, begins[done:] if done else begins, lengths[done:], place)
            slots[done : done + run] = self._slots[place : place + run]
            self._widths[place : place + run] = widths[done : done + run]
            done += run
        # Blocks of a run without a slot then may have one now.
        for place in np.flatnonzero(slots[:done] < 0).tolist():
            slots[place] = slot_by_block.get(block(place), -1)
        if done < end:
            rest = list(map(block, range(done, end)))
            slots[done:] = np.fromiter(map(slot_by_block.get, rest, repeat(-1)), np.int32, len(rest))
            if len(rest) > end // _NEW_SHARE:
                self._remember([*map(block, range(done)), *rest], slots, widths)
        return slots

    def _run(self, data: bytes, begins: list[int], lengths: NDArray[np.int64], place: int) -> int:
        """How many of the blocks at these positions and lengths equal those remembered from `place` on."""
        before = self._lengths[place : min(place + len(begins), len(self._blocks))]
        other = np.flatnonzero(before != lengths[: len(before)])
        run = int(other[0]) if len(other) else len(before)
        same = bytes(map(data.startswith, self._blocks[place : place + run], begins))
        differs = same.find(0)
        return differs if differs >= 0 else run

    def _remember(self, blocks: list[bytes], slots: NDArray[np.int32], widths: NDArray[np.int64]) -> None:
        size, here = sum(map(len, blocks)), np.flatnonzero(slots >= 0)
        if not len(here) or len(blocks) > _ORDER_MAX or size > _ORDER_BYTES_MAX:
            return
        if len(self._blocks) + len(blocks) > _ORDER_MAX or self._bytes + size > _ORDER_BYTES_MAX:
            self._start(self._generation)
        begin = len(self._blocks)
        self._slots = _grown(self._slots, begin + len(blocks))
        self._slots[begin : begin + len(blocks)] = slots
        self._lengths = _grown(self._lengths, begin + len(blocks))
        self._lengths[begin : begin + len(blocks)] = list(map(len, blocks))
        self._widths = _grown(self._widths, begin + len(blocks))
        self._widths[begin : begin + len(blocks)] = widths
        self._places = _grown(self._places, int(slots.max()) + 1)
        self._places[slots[here]] = here + begin
        self._blocks += blocks
        self._bytes += size


def _grown(array: NDArray, size: int) -> NDArray:
    """The array with room for this many, filled up with -1."""
    if size <= len(array):
        return array
    return np.concatenate((array, np.full(max(size, 2 * len(array)) - len(array), -1, array.dtype)))


# --- remote write -------------------------------------------------------------------------------------------

#: A body after snappy.
BODY_LIMIT_BYTES = 64 * 2**20
#: Limit of unknown series per body: reading them is a hundred times the work. Prometheus sends at most some
#: thousands per request.
NEW_SERIES_MAX = 200_000
#: Limit of labels and samples per series: their positions are kept until all of it is read.
PARTS_OF_SERIES_MAX = 200_000
#: Series are longer than this on average: no more of them are assumed to be in a message.
_SERIES_BYTES = 64
#: One sample: tag and length, value (tag, 8 bytes), time (tag, a varint of 6 bytes until the year 2109).
_FULL, _ZERO = 18, 9
_NAME_FIRST = b"\x0a\x08__name__\x12"

#: An unknown label block, and a function that reads its labels -> its slot; None if the series is not kept.
Resolve = Callable[[bytes, Callable[[], dict[str, str]]], int | None]
#: (name of a series, a function that reads its labels) -> whether that name is outside the catalogue, which
#: is then counted. Only for series whose first label is the name.
Unwanted = Callable[[str, Callable[[], dict[str, str]]], bool]


class RemoteWrite:
    """Bodies of remote_write to reports. Remembers series, bounded."""

    def __init__(self, placer: Placer) -> None:
        self._slots: Slots[bytes] = Slots(placer, whole=False)
        self._order = Order()

    def take(self, raw: bytes, has_node: HasNode, now: datetime, *, packed: bool = True) -> Measured:
        """Raises BadBody. `packed`: in snappy; otherwise it is the message itself."""
        data = unpacked(raw) if packed else raw
        slots = self._slots
        slots.forget(now)
        out = Measured()

        def resolve(block: bytes, read_labels: Callable[[], dict[str, str]]) -> int:
            if (slot := slots.refused.get(block)) is not None:
                return slot
            labels = read_labels()
            return slots.add(block, labels.pop("__name__", ""), labels, has_node)

        def unwanted(name: str, labels: Callable[[], dict[str, str]]) -> bool:
            return slots.unwanted(name, labels, out)

        self._order.forget(slots.generation)
        slots.report(read(data, slots.by_key, resolve, unwanted, self._order), has_node, now, out)
        slots.add_inventory(out, now)
        return out


def unpacked(raw: bytes) -> bytes:
    """The message. Raises BadBody."""
    try:
        size, _ = varint(raw, 0, min(len(raw), 10))
        if size > BODY_LIMIT_BYTES:
            raise BadBody(say("signals.unpacked_too_large", size=size, most=BODY_LIMIT_BYTES))
        return bytes(cramjam.snappy.decompress_raw(raw))
    except (Torn, cramjam.DecompressionError):
        raise BadBody(say("signals.not_snappy")) from None


def read(
    data: bytes,
    slot_by_block: dict[bytes, int],
    resolve: Resolve,
    unwanted: Unwanted,
    order: Order | None = None,
) -> Samples:
    """All samples of a message, not in its order. `slot_by_block`: slots by label block; `resolve` adds to
    it. `order`: the known order of series, to be emptied when a block in it means another slot.

    Raises BadBody.
    """
    try:
        return _read(data, slot_by_block, resolve, unwanted, order or Order())
    except Torn as error:
        raise BadBody(say("signals.not_write_request", error=said_by(error))) from None


def _read(
    data: bytes, slot_by_block: dict[bytes, int], resolve: Resolve, unwanted: Unwanted, order: Order
) -> Samples:
    walker = _Walker(data, slot_by_block, resolve)
    outline = (
        _outline_as_before(data, slot_by_block, order) or _guessed_outline(data) or _outline(data, walker)
    )
    starts, ends = outline
    if not len(ends):
        return walker.samples()
    width = _widths(data, starts, ends)
    slots = order.slots(data, starts, ends - width, width, slot_by_block)
    found = slots >= 0
    for place in np.flatnonzero(~found).tolist():
        start, end = int(starts[place]), int(ends[place])
        named = data.startswith(_NAME_FIRST, start + 2)
        if not (named and _is_unwanted(data, start, end, unwanted)):
            walker.series(start, end)
    good = found & _are_samples(data, ends, width)
    for place in np.flatnonzero(found & ~good).tolist():
        walker.series(int(starts[place]), int(ends[place]))
    if not good.all():
        slots, ends, width = slots[good], ends[good], width[good]
    rest = walker.samples()
    return Samples(
        np.concatenate((slots, rest.slots)),
        np.concatenate((_values(data, ends, width), rest.values)),
        np.concatenate((_times(_at(data, "<u8", ends - 8)), rest.times)),
    )


class _Outline(NamedTuple):
    """Where series start, behind their own length, and where they end: (n,) int64 each."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def _outline_as_before(data: bytes, slot_by_block: dict[bytes, int], order: Order) -> _Outline | None:
    """As the series have followed the first one before; None if that does not lead to the last byte."""
    if len(data) < 16 or data[0] != 0x0A:
        return None
    size, start = data[1], 2
    if size >= 0x80:
        size, start = size & 0x7F | data[2] << 7, 3
    end = start + size
    slot = slot_by_block.get(data[start : end - _FULL], -1)
    if slot < 0:
        slot = slot_by_block.get(data[start : end - _ZERO], -1)
    sizes = order.sizes(slot, len(data) // _SERIES_BYTES + 1)
    if sizes is None:
        return None
    ends = np.cumsum(sizes + np.where(sizes < 0x80, 2, 3))
    last = int(ends.searchsorted(len(data)))
    if last == len(ends) or ends[last] != len(data):
        return None
    return _sure_outline(data, ends[: last + 1])


def _guessed_outline(data: bytes) -> _Outline | None:
    """From the last bytes of samples; None if it is not certain."""
    if len(data) < 16:
        return None
    tags = np.frombuffer(data, np.uint8)[1:-6] == 0x10
    if np.count_nonzero(tags) > len(data) // _ZERO:  # more than samples can have; each place takes 8 bytes
        return None
    tails = np.flatnonzero(tags)
    ends = tails[_end_a_time(_at(data, "<u8", tails))] + 8
    if not len(ends) or ends[-1] != len(data):
        return None
    return _sure_outline(data, ends)


def _sure_outline(data: bytes, ends: NDArray[np.int64]) -> _Outline | None:
    """None if series do not certainly end there: then each length must be read.

    It is certain if the lengths lead from the first byte to each end in turn and to the last byte."""
    begins = np.concatenate(([0], ends[:-1]))
    heads = _at(data, "<u4", begins)
    short = heads & 0x8000 == 0
    starts = begins + np.where(short, 2, 3)
    lengths = np.where(short, heads >> 8 & 0x7F, heads >> 8 & 0x7F | (heads >> 9 & 0x3F80))
    sure = (heads & 0xFF == 0x0A) & (short | (heads & 0x80_0000 == 0)) & (starts + lengths == ends)
    return _Outline(starts, ends) if sure.all() else None


def _outline(data: bytes, walker: "_Walker") -> _Outline:
    """By reading each length; a series of an unusual form is walked immediately."""
    starts: list[int] = []
    ends: list[int] = []
    size, place = len(data), 0
    while place < size:
        if data[place] != 0x0A or size - place < 4:
            place = _passed_over(data, place, size, walker)
            continue
        # The length of a series: nearly always one or two bytes.
        length, start = data[place + 1], place + 2
        if length >= 0x80:
            second = data[start]
            if second < 0x80:
                length, start = length & 0x7F | second << 7, start + 1
            else:
                length, start = varint(data, place + 1, size)
        place = start + length
        if place > size:
            raise Torn(say("signals.series_too_long"))
        if length > _ZERO:
            starts.append(start)
            ends.append(place)
        else:
            walker.series(start, place)
    return _Outline(np.array(starts, np.int64), np.array(ends, np.int64))


def _passed_over(data: bytes, place: int, size: int, walker: "_Walker") -> int:
    """Reads one field that is not a series in its shortest form; returns the position after it."""
    field, kind, _, start, stop = next(fields(data, place, size))
    if field == 1 and kind == LENGTH:
        walker.series(start, stop)
    return stop


def _is_unwanted(data: bytes, start: int, end: int, unwanted: Unwanted) -> bool:
    # 0x0a, length of the label, 0x0a 0x08 "__name__" 0x12, length of the name, the name.
    if data[start] != 0x0A or data[start + 1] >= 0x80:
        return False
    at = start + 2 + len(_NAME_FIRST)
    if at >= end:
        return False
    stop = at + 1 + data[at]
    if data[at] >= 0x80 or stop > end or stop != start + 2 + data[start + 1]:
        return False
    name = data[at + 1 : stop]
    return name.isascii() and unwanted(name.decode("ascii"), lambda: _labels(data, start, end))


#: How a sample of each width begins, three bytes as a number: its tag and length, then the tag of the value,
#: or of the time where the value is left out.
_HEADS = {_FULL: 0x091012, _ZERO: 0x100712}


def _widths(data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of bytes of each series' sample, if it is one; (n,) int64."""
    raw = np.frombuffer(data, np.uint8)
    full = (ends - starts > _FULL) & (raw[np.maximum(ends - _FULL, 0)] == 0x12)
    return np.where(full, _FULL, np.minimum(_ZERO, ends - starts))


def _are_samples(data: bytes, ends: NDArray[np.int64], width: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(n,) whether each ends with a sample of this width."""
    heads = np.where(width == _FULL, _HEADS[_FULL], _HEADS[_ZERO])
    good = (_at(data, "<u4", ends - width) & 0xFFFFFF) == heads
    return good & _end_a_time(_at(data, "<u8", ends - 8))


def _end_a_time(tail: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether eight bytes end with a time: its tag, five bytes with the continuation bit, and a last one
    without."""
    return (tail & 0x8080_8080_8080_FF00) == 0x0080_8080_8080_1000


def _values(data: bytes, ends: NDArray[np.int64], width: NDArray[np.int64]) -> NDArray[np.float64]:
    values = np.zeros(len(ends))
    full = np.flatnonzero(width == _FULL)
    if len(full):
        values[full] = _at(data, "<f8", ends[full] - 15)
    return values


def _at(data: bytes, kind: str, places: NDArray[np.int64]) -> NDArray:
    """The eight- or four-byte numbers at these positions, aligned or not."""
    size = len(data) - np.dtype(kind).itemsize + 1
    return np.ndarray((size,), kind, data, strides=(1,))[places]


def _times(tail: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The varints in the upper six bytes: seven bits each, lowest first, combined in pairs."""
    bits = (tail >> 16) & 0x7F7F_7F7F_7F7F
    bits = (bits & 0x007F_007F_007F) | ((bits & 0x7F00_7F00_7F00) >> 1)
    return ((bits & 0x3FFF) | ((bits >> 2) & 0xFFF_C000) | ((bits >> 4) & 0x3FF_F000_0000)).view(np.int64)


class _Walker:
    def __init__(self, data: bytes, slot_by_block: dict[bytes, int], resolve: Resolve) -> None:
        self.data, self.slot_by_block, self.resolve = data, slot_by_block, resolve
        self._slots: list[int] = []
        self._values: list[float] = []
        self._times: list[int] = []
        self._read = 0

    def samples(self) -> Samples:
        return Samples.of(self._slots, self._values, self._times)

    def series(self, start: int, end: int) -> None:
        self._read += 1
        if self._read > NEW_SERIES_MAX:
            raise BadBody(say("signals.too_many_series_in_body", most=NEW_SERIES_MAX))
        data = self.data
        labels: list[tuple[int, int, int]] = []
        samples: list[tuple[float, int]] = []
        for field, kind, begin, value, stop in fields(data, start, end):
            if field == 1 and kind == LENGTH:
                labels.append((begin, value, stop))
            elif field == 2 and kind == LENGTH:
                samples.append(_sample(data, value, stop))
            if len(labels) + len(samples) > PARTS_OF_SERIES_MAX:
                raise BadBody(say("signals.series_parts", most=PARTS_OF_SERIES_MAX))
        block = b"".join(data[begin:stop] for begin, _, stop in labels)
        slot = self.slot_by_block.get(block)
        if slot is None:
            slot = self.resolve(block, lambda: dict(_label(data, value, stop) for _, value, stop in labels))
        if slot is None:
            return
        for number, time in samples:
            self._slots.append(slot)
            self._values.append(number)
            self._times.append(time)


def _labels(data: bytes, start: int, end: int) -> dict[str, str]:
    """The labels of a series except its name, as far as they can be read."""
    labels: dict[str, str] = {}
    try:
        for field, kind, _, begin, stop in fields(data, start, end):
            if field == 1 and kind == LENGTH:
                labels.update([_label(data, begin, stop)])
    except Torn:
        pass
    labels.pop("__name__", None)
    return labels


def _label(data: bytes, start: int, end: int) -> tuple[str, str]:
    name = value = ""
    for field, kind, _, begin, stop in fields(data, start, end):
        if kind == LENGTH and field in (1, 2):
            text = data[begin:stop].decode("utf-8", "replace")
            name, value = (text, value) if field == 1 else (name, text)
    return name, value


def _sample(data: bytes, start: int, end: int) -> tuple[float, int]:
    value, time = 0.0, 0
    for field, kind, _, begin, stop in fields(data, start, end):
        if field == 1 and kind == FIXED64:
            (value,) = unpack_from("<d", data, begin)
        elif field == 2 and kind == VARINT:
            time, _ = varint(data, begin, stop)
            time -= (time >> 63) << 64  # int64 in two's complement
    return value, time
