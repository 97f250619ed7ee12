"""`POST /signals/prometheus/write`: remote_write 1.0, snappy over `prometheus.WriteRequest`.

A series is known by the raw bytes of its labels. Two ways lead to the same samples:

- the walker reads every field of a series, and it alone makes a label block known;
- the fast way reads outer lengths only. It guesses that a series is a known label block and one sample of 18
  bytes (9 when the value is zero), and takes the values of the whole request at once. What follows a known
  block can be nothing else when its tags and lengths are those of a sample; a wrong guess is walked.

Exemplars, histograms and metadata are passed over.
"""

from collections.abc import Callable
from struct import unpack_from
from typing import NamedTuple

import cramjam
import numpy as np
from numpy.typing import NDArray

from healer.signals.protobuf import FIXED64, LENGTH, VARINT, Torn, fields, varint
from healer.signals.wire import BadBody

#: A body after snappy.
BODY_LIMIT_BYTES = 64 * 2**20
#: One sample: tag and length, value (tag, 8 bytes), time (tag, a varint of 6 bytes until the year 2109).
_FULL, _ZERO = 18, 9
_NAME_FIRST = b"\x0a\x08__name__\x12"

#: A label block that is not known -> its slot, or None when the series is not to be kept.
Resolve = Callable[[bytes, dict[str, str]], "int | None"]
#: A series whose first label is its name: whether nobody wants that name. Counts it.
Unwanted = Callable[[str], bool]


class Samples(NamedTuple):
    """slots: (n,) int32; values: (n,) float64; times: (n,) int64, ms since 1970. In the request's order, but
    samples of the walker come after those of the fast way."""

    slots: NDArray[np.int32]
    values: NDArray[np.float64]
    times: NDArray[np.int64]


def unpacked(raw: bytes) -> bytes:
    """The message. Raises BadBody."""
    try:
        size, _ = varint(raw, 0, min(len(raw), 10))
        if size > BODY_LIMIT_BYTES:
            raise BadBody(f"the body is {size} bytes unpacked, at most {BODY_LIMIT_BYTES} are taken")
        return bytes(cramjam.snappy.decompress_raw(raw))
    except (Torn, cramjam.DecompressionError):
        raise BadBody("the body is not snappy (block format), as remote_write 1.0 sends it") from None


def read(data: bytes, known: dict[bytes, int], resolve: Resolve, unwanted: Unwanted) -> Samples:
    """All samples of a message. `known`: slots by label block; `resolve` adds to it. Raises BadBody."""
    try:
        return _read(data, known, resolve, unwanted)
    except Torn as error:
        raise BadBody(f"the body is not a prometheus.WriteRequest: {error}") from None


def walk(data: bytes, known: dict[bytes, int], resolve: Resolve) -> Samples:
    """The same by the walker alone: the reference for `read`."""
    walker = _Walker(data, known, resolve)
    try:
        for field, kind, _, start, stop in fields(data, 0, len(data)):
            if field == 1 and kind == LENGTH:
                walker.series(start, stop)
    except Torn as error:
        raise BadBody(f"the body is not a prometheus.WriteRequest: {error}") from None
    return walker.samples()


def _read(data: bytes, known: dict[bytes, int], resolve: Resolve, unwanted: Unwanted) -> Samples:
    walker = _Walker(data, known, resolve)
    full: list[int] = []  # ends of series that look like a known block and one sample
    full_slots: list[int] = []
    zero: list[int] = []
    zero_slots: list[int] = []
    starts: dict[int, int] = {}
    find = known.get
    place, size = 0, len(data)
    while place < size:
        if data[place] != 0x0A:
            place = _passed_over(data, place, size)
            continue
        length, start = varint(data, place + 1, size) if size - place < 4 else _short(data, place + 1, size)
        end = start + length
        if end > size:
            raise Torn("a series that is longer than the message")
        slot = find(data[start : end - _FULL])
        if slot is not None and length > _FULL:
            full.append(end)
            full_slots.append(slot)
            starts[end] = start
        elif (slot := find(data[start : end - _ZERO])) is not None and length > _ZERO:
            zero.append(end)
            zero_slots.append(slot)
            starts[end] = start
        elif not (data.startswith(_NAME_FIRST, start + 2) and _is_unwanted(data, start, end, unwanted)):
            walker.series(start, end)
        place = end
    one, wrong = _tails(data, full, full_slots, _FULL)
    two, wrong_zero = _tails(data, zero, zero_slots, _ZERO)
    for end in (*wrong, *wrong_zero):
        walker.series(starts[end], end)
    parts = (one, two, walker.samples())
    return Samples(
        np.concatenate([part.slots for part in parts]),
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.times for part in parts]),
    )


def _short(data: bytes, place: int, size: int) -> tuple[int, int]:
    """A length of one or two bytes, as nearly all are."""
    first = data[place]
    if first < 0x80:
        return first, place + 1
    second = data[place + 1]
    if second < 0x80:
        return first & 0x7F | second << 7, place + 2
    return varint(data, place, size)


def _passed_over(data: bytes, place: int, size: int) -> int:
    """The place after a field that is no series in its shortest form."""
    _, _, _, _, stop = next(fields(data, place, size))
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
    return name.isascii() and unwanted(name.decode("ascii"))


def _tails(data: bytes, ends: list[int], slots: list[int], width: int) -> tuple[Samples, list[int]]:
    """(samples of those that end in one sample of this width, ends of those that do not)."""
    if not ends:
        return _NOTHING, []
    raw = np.frombuffer(data, np.uint8)
    stops = np.array(ends, np.int64)
    tail = raw[stops[:, None] + np.arange(-width, 0)]
    good = (tail[:, 0] == 0x12) & (tail[:, 1] == width - 2)
    if width == _FULL:
        good &= tail[:, 2] == 0x09
    good &= (tail[:, -7] == 0x10) & (tail[:, -6:-1] >= 0x80).all(axis=1) & (tail[:, -1] < 0x80)
    ids = np.array(slots, np.int32)
    wrong: list[int] = []
    if not good.all():
        wrong = stops[~good].tolist()
        tail, ids = tail[good], ids[good]
    stamp = tail[:, -6:] & np.uint8(0x7F)
    times = (stamp.astype(np.int64) << np.arange(0, 42, 7)).sum(axis=1)
    if width == _FULL:
        values = np.ascontiguousarray(tail[:, 3:11]).view("<f8").reshape(-1)
    else:
        values = np.zeros(len(ids))
    return Samples(ids, values, times), wrong


class _Walker:
    def __init__(self, data: bytes, known: dict[bytes, int], resolve: Resolve) -> None:
        self.data, self.known, self.resolve = data, known, resolve
        self._slots: list[int] = []
        self._values: list[float] = []
        self._times: list[int] = []

    def samples(self) -> Samples:
        return Samples(
            np.array(self._slots, np.int32),
            np.array(self._values, np.float64),
            np.array(self._times, np.int64),
        )

    def series(self, start: int, end: int) -> None:
        data = self.data
        labels: list[tuple[int, int, int]] = []
        samples: list[tuple[float, int]] = []
        for field, kind, begin, value, stop in fields(data, start, end):
            if field == 1 and kind == LENGTH:
                labels.append((begin, value, stop))
            elif field == 2 and kind == LENGTH:
                samples.append(_sample(data, value, stop))
        block = b"".join(data[begin:stop] for begin, _, stop in labels)
        slot = self.known.get(block)
        if slot is None:
            slot = self.resolve(block, dict(_label(data, value, stop) for _, value, stop in labels))
        if slot is None:
            return
        for number, time in samples:
            self._slots.append(slot)
            self._values.append(number)
            self._times.append(time)


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


_NOTHING = Samples(np.empty(0, np.int32), np.empty(0, np.float64), np.empty(0, np.int64))
