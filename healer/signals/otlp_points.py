"""ExportMetricsServiceRequest in protobuf -> its metrics with their points. opentelemetry-proto 1.x.

Attributes are passed on as the bytes they are, and read only for a series that nobody knows yet.
"""

from collections.abc import Callable, Iterable, Iterator
from struct import unpack_from
from typing import Any, NamedTuple

from healer.signals.otlp_values import attributes, text
from healer.signals.protobuf import FIXED64, LENGTH, VARINT, Torn, fields, varint
from healer.signals.rejects import BadBody
from healer.signals.slots import NOT_TOLD

#: Data points of one request, and fields in all: a collector sends 8,192 points of some 10 fields at once.
POINTS_MAX, FIELDS_MAX = 500_000, 6_000_000
DELTA, CUMULATIVE = 1, 2
#: `flags`: this point says that there is no value.
NO_VALUE = 1

DELTAS = "a sum of delta temporality: send cumulative ones (the collector's deltatocumulative processor)"
NO_TEMPORALITY = "a sum that does not tell its temporality"
HISTOGRAMS = "a histogram or summary: the catalogue has gauges and sums alone"
#: Tags of a point's fields.
_START, _TIME, _VALUE, _ATTRIBUTE = 0x11, 0x19, 0x21, 0x3A

NOTHING = "a metric without points that are known here"


class Point(NamedTuple):
    """`block` stands for the attributes: see `Metric.read`. `at_ms` is since 1970, or NOT_TOLD."""

    block: bytes
    value: float
    at_ms: int


class Metric(NamedTuple):
    """`resource` stands for the resource's attributes, `read` gives those of a block. `refused`: why its
    points, `held` of them, are not taken; empty where they are. `grows`: a monotonic sum."""

    resource: bytes
    read: Callable[[bytes], dict[str, Any]]
    name: str
    unit: str
    grows: bool
    refused: str
    held: int
    points: Iterable[Point]


def milliseconds(nanos: int) -> int:
    return nanos // 1_000_000 if nanos else NOT_TOLD


def why_refused(temporality: int) -> str:
    """Why a sum is not taken; empty where it is."""
    return {CUMULATIVE: "", DELTA: DELTAS}.get(temporality, NO_TEMPORALITY)


def read_protobuf(raw: bytes) -> Iterator[Metric]:
    """The metrics of a body. Raises BadBody, also after some of them."""
    try:
        yield from _Reader(raw).metrics()
    except Torn as error:
        raise BadBody(f"the body is not an ExportMetricsServiceRequest: {error}") from None


def read_block(block: bytes) -> dict[str, Any]:
    """Attributes of a point (field 7) or of a resource (field 1). Raises Torn."""
    spans = [
        (b, e) for field, kind, _, b, e in fields(block, 0, len(block)) if kind == LENGTH and field in (1, 7)
    ]
    return attributes(block, spans)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.points_left, self.fields_left = POINTS_MAX, FIELDS_MAX

    def fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
        count = 0
        for one in fields(self.data, start, end):
            count += 1
            yield one
            if count > self.fields_left:
                raise BadBody(f"the body has more than {FIELDS_MAX} fields: send it in several requests")
        self.fields_left -= count

    def spans(self, start: int, end: int, wanted: int) -> list[tuple[int, int]]:
        return [
            (b, e) for field, kind, _, b, e in self.fields(start, end) if (field, kind) == (wanted, LENGTH)
        ]

    def metrics(self) -> Iterator[Metric]:
        for start, end in self.spans(0, len(self.data), 1):
            told: list[tuple[int, int]] = []
            scopes: list[tuple[int, int]] = []
            for field, kind, _, begin, stop in self.fields(start, end):
                if kind == LENGTH and field == 1:
                    told = [(begin, stop)]
                elif kind == LENGTH and field == 2:
                    scopes.append((begin, stop))
            resource = b"".join(self.data[b:e] for b, e in told)
            for begin, stop in scopes:
                for b, e in self.spans(begin, stop, 2):
                    yield self._metric(b, e, resource)

    def _metric(self, start: int, end: int, resource: bytes) -> Metric:
        name = unit = ""
        form = begin = stop = 0
        for field, kind, _, b, e in self.fields(start, end):
            if kind != LENGTH:
                continue
            if field == 1:
                name = text(self.data[b:e])
            elif field == 3:
                unit = text(self.data[b:e])
            elif field in (5, 7, 9, 10, 11):
                form, begin, stop = field, b, e
        spans: list[tuple[int, int]] = []
        temporality, grows = 0, False
        for field, kind, _, b, e in self.fields(begin, stop):
            if kind == LENGTH and field == 1:
                spans.append((b, e))
                if len(spans) > self.points_left:
                    raise BadBody(
                        f"the body has more than {POINTS_MAX} data points: send it in several requests"
                    )
            elif kind == VARINT and form == 7 and field == 2:
                temporality, _ = varint(self.data, b, e)
            elif kind == VARINT and form == 7 and field == 3:
                grows = self.data[b] != 0
        self.points_left -= len(spans)
        refused = {5: "", 7: why_refused(temporality), 0: NOTHING}.get(form, HISTOGRAMS)
        points = () if refused else map(self._point, spans)
        return Metric(resource, read_block, name, unit, grows, refused, len(spans), points)

    def _point(self, span: tuple[int, int]) -> Point:
        """One NumberDataPoint. The shortest forms of its usual fields are read here, all others by `fields`:
        this runs once for each point."""
        data, (place, end) = self.data, span
        value, nanos, flags = float("nan"), 0, 0
        parts: list[bytes] = []
        first = last = place
        while place < end:
            tag = data[place]
            if tag == _ATTRIBUTE and place + 1 < end and data[place + 1] < 0x80:
                start, place = place, place + 2 + data[place + 1]
                if start != last:
                    parts.append(data[first:last])
                    first = start
                last = place
                continue
            if tag == _VALUE and place + 9 <= end:
                (value,) = unpack_from("<d", data, place + 1)
            elif tag == _TIME and place + 9 <= end:
                (nanos,) = unpack_from("<Q", data, place + 1)
            elif tag != _START or place + 9 > end:
                field, kind, start, begin, stop = next(self.fields(place, end))
                if (field, kind) == (7, LENGTH):
                    if start != last:
                        parts.append(data[first:last])
                        first = start
                    last = stop
                elif (field, kind) == (6, FIXED64):
                    value = float(unpack_from("<q", data, begin)[0])
                elif (field, kind) == (8, VARINT):
                    flags, _ = varint(data, begin, stop)
                place = stop
                continue
            place += 9
        if place > end:
            raise Torn("a field that is longer than its message")
        block = b"".join((*parts, data[first:last]))
        return Point(block, value if not flags & NO_VALUE else float("nan"), milliseconds(nanos))
