"""`POST /signals/prometheus/write`: remote_write 1.0, snappy over `prometheus.WriteRequest`.

A series is known by the raw bytes of its labels. Two ways lead to the same samples:

- the walker reads every field of a series, and it alone makes a label block known;
- the fast way reads outer lengths only. It guesses that a series is a known label block and one sample of 18
  bytes (9 when the value is zero), and takes the values of the whole request at once. What follows a known
  block can be nothing else when its tags and lengths are those of a sample; a wrong guess is walked.

Exemplars, histograms and metadata are passed over.
"""

from collections.abc import Callable
from datetime import datetime
from struct import unpack_from

import cramjam
import numpy as np
from numpy.typing import NDArray

from healer.signals.measured import Measured
from healer.signals.protobuf import FIXED64, LENGTH, VARINT, Torn, fields, varint
from healer.signals.rejects import BadBody
from healer.signals.series import Placer
from healer.signals.slots import Samples, Slots
from healer.signals.wire import Known

#: A body after snappy.
BODY_LIMIT_BYTES = 64 * 2**20
#: Series of one body that are not known yet: reading them is a hundred times the work. Prometheus sends at
#: most some thousands in a request.
NEW_SERIES_MAX = 200_000
#: One sample: tag and length, value (tag, 8 bytes), time (tag, a varint of 6 bytes until the year 2109).
_FULL, _ZERO = 18, 9
_NAME_FIRST = b"\x0a\x08__name__\x12"

#: A label block that is not known, and its labels as they are read when asked for -> its slot; None when the
#: series is not to be kept.
Resolve = Callable[[bytes, Callable[[], dict[str, str]]], int | None]
#: The name of a series whose first label it is, and the labels as they are read when asked for: whether
#: nobody wants that name. Counts it.
Unwanted = Callable[[str, Callable[[], dict[str, str]]], bool]


class RemoteWrite:
    """Bodies of remote_write -> reports. Remembers series, bounded."""

    def __init__(self, placer: Placer) -> None:
        self._slots: Slots[bytes] = Slots(placer, whole=False)

    def take(self, raw: bytes, known: Known, now: datetime) -> Measured:
        """Raises BadBody."""
        data = unpacked(raw)
        slots = self._slots
        slots.forget(now)
        out = Measured()

        def resolve(block: bytes, read_labels: Callable[[], dict[str, str]]) -> int:
            if (slot := slots.refused.get(block)) is not None:
                return slot
            labels = read_labels()
            return slots.add(block, labels.pop("__name__", ""), labels, known)

        def unwanted(name: str, labels: Callable[[], dict[str, str]]) -> bool:
            return slots.unwanted(name, labels, out)

        slots.report(read(data, slots.known, resolve, unwanted), known, now, out)
        nodes = {(one.cluster, one.node) for one in out.reports}
        out.inventory = slots.placer.gpus.inventory(nodes, now)
        return out


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
    """All samples of a message, not in its order. `known`: slots by label block; `resolve` adds to it.

    Raises BadBody.
    """
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
    full, zero = _Guesses(_FULL), _Guesses(_ZERO)
    find, size, place = known.get, len(data), 0
    # Plain names here and below: this loop runs once per series.
    full_slot, full_end = full.slots.append, full.ends.append
    zero_slot, zero_end = zero.slots.append, zero.ends.append
    while place < size:
        if data[place] != 0x0A or size - place < 4:
            place = _passed_over(data, place, size, walker)
            continue
        # The length of a series: one or two bytes, as nearly all are.
        length, start = data[place + 1], place + 2
        if length >= 0x80:
            second = data[start]
            if second < 0x80:
                length, start = length & 0x7F | second << 7, start + 1
            else:
                length, start = varint(data, place + 1, size)
        end = start + length
        if end > size:
            raise Torn("a series that is longer than the message")
        if length > _FULL and data[end - _FULL] == 0x12:
            slot = find(data[start : end - _FULL])
            if slot is not None:
                full_slot(slot)
                full_end(end)
        else:
            slot = find(data[start : end - _ZERO]) if length > _ZERO else None
            if slot is not None:
                zero_slot(slot)
                zero_end(end)
        if slot is None and not (
            data.startswith(_NAME_FIRST, start + 2) and _is_unwanted(data, start, end, unwanted)
        ):
            walker.series(start, end)
        place = end
    parts = [guess.samples(data, walker) for guess in (full, zero) if guess.ends]
    parts.append(walker.samples())
    return Samples(
        np.concatenate([part.slots for part in parts]),
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.times for part in parts]),
    )


def _passed_over(data: bytes, place: int, size: int, walker: "_Walker") -> int:
    """Reads one field that is no series in its shortest form; the place after it."""
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


class _Guesses:
    """Series that are taken for a known block and one sample of `width` bytes."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.slots: list[int] = []
        self.ends: list[int] = []

    def samples(self, data: bytes, walker: "_Walker") -> Samples:
        """Those that are; the walker gets the others."""
        ends, slots = np.array(self.ends), np.array(self.slots, np.int32)
        tail = _at(data, "<u8", ends - 8)
        good = (_at(data, "<u4", ends - self.width) & 0xFFFFFF) == _HEADS[self.width]
        # Five bytes that say "more follows", one that says "the last", and the tag of the time before them.
        good &= (tail & 0x8080_8080_8080_FF00) == 0x0080_8080_8080_1000
        if not good.all():
            wrong = set(ends[~good].tolist())
            for _, _, _, start, end in fields(data, 0, len(data)):
                if end in wrong:
                    walker.series(start, end)
            ends, slots, tail = ends[good], slots[good], tail[good]
        values = _at(data, "<f8", ends - 15) if self.width == _FULL else np.zeros(len(slots))
        return Samples(slots, values, _times(tail))


def _at(data: bytes, kind: str, places: NDArray[np.int64]) -> NDArray:
    """The numbers of eight or four bytes that begin at these places, aligned or not."""
    size = len(data) - np.dtype(kind).itemsize + 1
    return np.ndarray((size,), kind, data, strides=(1,))[places]


def _times(tail: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The varints in the upper six bytes: seven bits of each, the lowest first, put together by twos."""
    bits = (tail >> 16) & 0x7F7F_7F7F_7F7F
    bits = (bits & 0x007F_007F_007F) | ((bits & 0x7F00_7F00_7F00) >> 1)
    return ((bits & 0x3FFF) | ((bits >> 2) & 0xFFF_C000) | ((bits >> 4) & 0x3FF_F000_0000)).view(np.int64)


class _Walker:
    def __init__(self, data: bytes, known: dict[bytes, int], resolve: Resolve) -> None:
        self.data, self.known, self.resolve = data, known, resolve
        self._slots: list[int] = []
        self._values: list[float] = []
        self._times: list[int] = []
        self._read = 0

    def samples(self) -> Samples:
        return Samples(
            np.array(self._slots, np.int32),
            np.array(self._values, np.float64),
            np.array(self._times, np.int64),
        )

    def series(self, start: int, end: int) -> None:
        self._read += 1
        if self._read > NEW_SERIES_MAX:
            raise BadBody(f"the body has more than {NEW_SERIES_MAX} new series: send it in several requests")
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
            slot = self.resolve(block, lambda: dict(_label(data, value, stop) for _, value, stop in labels))
        if slot is None:
            return
        for number, time in samples:
            self._slots.append(slot)
            self._values.append(number)
            self._times.append(time)


def _labels(data: bytes, start: int, end: int) -> dict[str, str]:
    """The labels of a series but its name, as far as they can be read."""
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
