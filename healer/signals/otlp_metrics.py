"""`POST /signals/otlp/v1/metrics`: ExportMetricsServiceRequest, protobuf or JSON -> reports.

Gauges and cumulative sums are samples. A series is identified by its name and the raw bytes of its own and
its resource's attributes, so those are decoded once. Delta sums, histograms and summaries are refused: a
delta that is sent again after a lost answer would count twice, and the catalogue has no histograms.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from struct import unpack_from
from typing import Any, NamedTuple

import msgspec

from healer.signals.otlp_units import Conversion, conversion, without_notes
from healer.signals.otlp_values import (
    SCOPES_MAX,
    JsonPair,
    attributes,
    json_attributes,
    parse_double,
    parse_int64,
    text,
)
from healer.signals.protobuf import FIXED64, LENGTH, VARINT, Torn, fields, varint
from healer.signals.rejects import BadBody, Rejects, check_marks, sentence
from healer.signals.series import Measured, Names, Placer
from healer.signals.slots import NO_TIME, Samples, Slots
from healer.signals.wire import HasNode
from healer.text import NO_WORDS, Said, said_by, say

# --- otlp names ---------------------------------------------------------------------------------------------
# Names and labels of OTLP -> those of Prometheus, which the catalogue's aliases are.
#
# By the rules that the collector's own Prometheus exporters follow (OpenTelemetry's specification,
# "Prometheus and OpenMetrics Compatibility"): dots become `_`, the unit and `_total` are put behind the
# name. A collector that scraped an exporter has the exporter's names already.

#: UCUM -> the word in a Prometheus name.
_UNITS = {
    "d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds", "us": "microseconds",
    "ns": "nanoseconds", "By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes",
    "KBy": "kilobytes", "MBy": "megabytes", "GBy": "gigabytes", "V": "volts", "A": "amperes", "J": "joules",
    "W": "watts", "Cel": "celsius", "Hz": "hertz", "%": "percent", "1": "ratio",
}  # fmt: skip
_OTHER = re.compile(r"[^a-zA-Z0-9:]+")
#: Names remembered, with what they came to.
_REMEMBERED = 5_000


class Named(NamedTuple):
    """A metric's name in the catalogue, and how its values get the unit of that name; None: they cannot."""

    name: str
    conversion: Conversion | None


class SeriesNames:
    """What the catalogue calls a metric."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._found: dict[tuple[str, str, bool], Named] = {}

    def of(self, name: str, unit: str, grows: bool) -> Named:
        """The first known one of `candidates`; the name itself if none is known."""
        key = (name[:256], unit[:64], grows)
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            first = next((candidate for candidate in candidates(*key) if candidate in self._names), key[0])
            found = self._found[key] = Named(first, self._conversion(first, key[1]))
        return found

    def _conversion(self, name: str, unit: str) -> Conversion | None:
        """None at all where the name ends with the word for the unit: then its meaning is of that unit
        (`node_network_speed_bytes` is of bytes per second). Where the labels decide what a name means
        (`entPhySensorValue`), they name the unit too."""
        if name.removesuffix("_total").endswith(f"_{_UNITS.get(without_notes(unit))}"):
            return Conversion()
        found = {
            conversion(unit, meaning.signal.unit, meaning.scale) for meaning in self._names.meanings(name)
        }
        return found.pop() if len(found) == 1 else Conversion()


def candidates(name: str, unit: str, grows: bool) -> Iterator[str]:
    """Possible names of a metric, its original name first. `grows`: a monotonic sum."""
    yield name
    plain = _OTHER.sub("_", name).strip("_")
    stem = plain.removesuffix("_total")
    with_unit = _with_unit(stem, unit, grows)
    for form in dict.fromkeys((stem, with_unit)):
        if grows:
            yield f"{form}_total"
        yield form


def _with_unit(stem: str, unit: str, grows: bool) -> str:
    """`node_network_receive`, `By` -> `node_network_receive_bytes`."""
    unit_name, slash, part = without_notes(unit).partition("/")
    unit_word = "" if unit_name == "1" and (grows or slash) else _UNITS.get(unit_name, "")
    if unit_word and not stem.endswith(f"_{unit_word}"):
        stem = f"{stem}_{unit_word}"
    per = {"s": "second", "min": "minute", "h": "hour"}.get(part) if slash else None
    return f"{stem}_per_{per}" if per and not stem.endswith(f"_per_{per}") else stem


def labels_of(resource: dict[str, Any], point: dict[str, Any]) -> dict[str, str]:
    """Labels as in series of Prometheus: those of the point, then those of the resource.

    The resource names the node in its own words: `service.instance.id`, if it is `host:port` as written by
    the collector's Prometheus receiver, then `k8s.node.name`, then `host.name`, which is often that of the
    collector.
    """
    labels = {_label(name): label_text(value) for name, value in point.items()}
    around = {_label(name): label_text(value) for name, value in resource.items()}
    instance = label_text(resource.get("service.instance.id"))
    host, colon, port = instance.rpartition(":")
    if colon and port.isascii() and port.isdigit() and host:
        labels.setdefault("hostname", host)
    for label, name in (("node", "k8s.node.name"), ("host", "host.name")):
        if host_name := label_text(resource.get(name)):
            labels.setdefault(label, host_name)
    _of_hardware(labels)
    for name, value in around.items():
        labels.setdefault(name, value)
    return labels


def _of_hardware(labels: dict[str, str]) -> None:
    """`hw.id` of a GPU (semantic conventions of hardware) is the id used by the vendor's tools: an index, a
    UUID or a PCI address."""
    hardware_id = labels.get("hw_id", "")
    if hardware_id.isascii() and hardware_id.isdigit():
        labels.setdefault("gpu", hardware_id)
    elif hardware_id.startswith("GPU-"):
        labels.setdefault("UUID", hardware_id)
    elif hardware_id.count(":") == 2:
        labels.setdefault("pci_bus_id", hardware_id)


def _label(name: str) -> str:
    return name.replace(".", "_").replace("-", "_").replace("/", "_")


def label_text(value: Any) -> str:
    """A value in the form of Prometheus' labels."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None or isinstance(value, bytes | list | dict) else str(value)


# --- otlp points --------------------------------------------------------------------------------------------
# ExportMetricsServiceRequest in protobuf -> its metrics with their points. opentelemetry-proto 1.x.
#
# Attributes are passed on as raw bytes and decoded only for a series that is new.

#: Data points of one request, and fields in all: a collector sends 8,192 points of some 10 fields at once.
POINTS_MAX, FIELDS_MAX = 500_000, 6_000_000
DELTA, CUMULATIVE = 1, 2
#: `flags`: this point has no value.
NO_VALUE = 1

DELTAS = say("signals.delta_sum")
NO_TEMPORALITY = say("signals.sum_without_temporality")
HISTOGRAMS = say("signals.histogram")
#: Tags of a point's fields.
_START, _TIME, _VALUE, _ATTRIBUTE = 0x11, 0x19, 0x21, 0x3A

NOTHING = say("signals.no_points")


class Point(NamedTuple):
    """`block`: the raw attributes, see `Metric.read`. `at_ms` is since 1970, or NO_TIME."""

    block: bytes
    value: float
    at_ms: int


class Metric(NamedTuple):
    """`resource`: the resource's raw attributes; `read` decodes those of a block. `refused`: why its points,
    `held` of them, are not accepted; empty if they are. `grows`: a monotonic sum."""

    resource: bytes
    read: Callable[[bytes], dict[str, Any]]
    name: str
    unit: str
    grows: bool
    refused: Said
    held: int
    points: Iterable[Point]


def milliseconds(nanos: int) -> int:
    return nanos // 1_000_000 if nanos else NO_TIME


def why_refused(temporality: int) -> Said:
    """Why a sum is not accepted; empty if it is."""
    return {CUMULATIVE: NO_WORDS, DELTA: DELTAS}.get(temporality, NO_TEMPORALITY)


def read_protobuf(raw: bytes) -> Iterator[Metric]:
    """The metrics of a body. Raises BadBody, also after some of them."""
    try:
        yield from _Reader(raw).metrics()
    except Torn as error:
        raise BadBody(say("signals.not_otlp_metrics", error=said_by(error))) from None


def read_protobuf_attributes(block: bytes) -> dict[str, Any]:
    """Attributes of a point (field 7) or of a resource (field 1). Raises Torn."""
    entries = fields(block, 0, len(block))
    return attributes(
        block, ((b, e) for field, kind, _, b, e in entries if kind == LENGTH and field in (1, 7))
    )


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.points_left, self.fields_left = POINTS_MAX, FIELDS_MAX

    def fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
        for field in fields(self.data, start, end):
            self.fields_left -= 1
            if self.fields_left < 0:
                raise BadBody(say("signals.too_many_fields", most=FIELDS_MAX))
            yield field

    def spans(self, start: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
        for field, kind, _, begin, stop in self.fields(start, end):
            if (field, kind) == (wanted, LENGTH):
                yield begin, stop

    def metrics(self) -> Iterator[Metric]:
        for start, end in self.spans(0, len(self.data), 1):
            attribute_spans: list[tuple[int, int]] = []
            scopes: list[tuple[int, int]] = []
            for field, kind, _, begin, stop in self.fields(start, end):
                if kind == LENGTH and field == 1:
                    attribute_spans = [(begin, stop)]
                elif kind == LENGTH and field == 2:
                    scopes.append((begin, stop))
                    if len(scopes) > SCOPES_MAX:
                        raise BadBody(say("signals.too_many_scopes", most=SCOPES_MAX))
            resource = b"".join(self.data[b:e] for b, e in attribute_spans)
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
                    raise BadBody(say("signals.too_many_points", most=POINTS_MAX))
            elif kind == VARINT and form == 7 and field == 2:
                temporality, _ = varint(self.data, b, e)
            elif kind == VARINT and form == 7 and field == 3:
                grows = self.data[b] != 0
        self.points_left -= len(spans)
        refused = {5: NO_WORDS, 7: why_refused(temporality), 0: NOTHING}.get(form, HISTOGRAMS)
        points = () if refused else map(self._point, spans)
        return Metric(resource, read_protobuf_attributes, name, unit, grows, refused, len(spans), points)

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
            raise Torn(say("signals.field_too_long"))
        block = b"".join((*parts, data[first:last]))
        return Point(block, value if not flags & NO_VALUE else float("nan"), milliseconds(nanos))


# --- otlp json ----------------------------------------------------------------------------------------------
# The same of a body in JSON: names in camelCase, 64-bit numbers as text.

#: Objects of a large body: a point has some 20.
OBJECTS_MAX = 2_000_000
_WORDS = {"AGGREGATION_TEMPORALITY_DELTA": DELTA, "AGGREGATION_TEMPORALITY_CUMULATIVE": CUMULATIVE}


class _Number(msgspec.Struct, rename="camel", gc=False):
    time_unix_nano: int | str | None = None
    as_double: float | str | None = None
    as_int: int | str | None = None
    flags: int | None = None
    attributes: msgspec.Raw = msgspec.Raw(b"")


class _Gauge(msgspec.Struct, rename="camel", gc=False):
    data_points: list[_Number] | None = None


class _Sum(msgspec.Struct, rename="camel", gc=False):
    data_points: list[_Number] | None = None
    aggregation_temporality: int | str | None = None
    is_monotonic: bool | None = None


class _Other(msgspec.Struct, rename="camel", gc=False):
    data_points: list[msgspec.Raw] | None = None


class _Metric(msgspec.Struct, rename="camel", gc=False):
    name: str | None = None
    unit: str | None = None
    gauge: _Gauge | None = None
    sum: _Sum | None = None
    histogram: _Other | None = None
    exponential_histogram: _Other | None = None
    summary: _Other | None = None


class _Resource(msgspec.Struct, gc=False):
    attributes: msgspec.Raw = msgspec.Raw(b"")


class _ScopeMetrics(msgspec.Struct, gc=False):
    metrics: list[_Metric] | None = None


class _ResourceMetrics(msgspec.Struct, rename="camel", gc=False):
    resource: _Resource | None = None
    scope_metrics: list[_ScopeMetrics] | None = None


class _Metrics(msgspec.Struct, rename="camel", gc=False):
    resource_metrics: list[_ResourceMetrics] | None = None


_decode = msgspec.json.Decoder(_Metrics).decode
_pairs = msgspec.json.Decoder(list[JsonPair] | None).decode


def read_json(raw: bytes) -> Iterator[Metric]:
    """The metrics of a body. Raises BadBody, also after some of them."""
    check_marks(raw, objects=(b"{", OBJECTS_MAX))
    try:
        body = _decode(raw)
        left = POINTS_MAX
        for resource in body.resource_metrics or ():
            block = bytes(resource.resource.attributes) if resource.resource else b""
            for scope in resource.scope_metrics or ():
                for entry in scope.metrics or ():
                    metric = _metric(entry, block)
                    left -= metric.held
                    if left < 0:
                        raise BadBody(say("signals.too_many_points", most=POINTS_MAX))
                    yield metric
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Torn) as error:
        raise BadBody(say("signals.not_otlp_json", error=sentence(error))) from None


def read_json_attributes(block: bytes) -> dict[str, Any]:
    """Raises Torn and msgspec.DecodeError."""
    return json_attributes(_pairs(block)) if block else {}


def _metric(metric: _Metric, resource: bytes) -> Metric:
    if metric.gauge is not None:
        points, refused, grows = metric.gauge.data_points or (), NO_WORDS, False
    elif metric.sum is not None:
        temporality = metric.sum.aggregation_temporality
        refused = why_refused(
            _WORDS.get(temporality, 0) if isinstance(temporality, str) else temporality or 0
        )
        points, grows = metric.sum.data_points or (), bool(metric.sum.is_monotonic)
    else:
        other = metric.histogram or metric.exponential_histogram or metric.summary
        points, grows = (other.data_points or ()) if other else (), False
        refused = HISTOGRAMS if other else NOTHING
    taken = () if refused else (_point(point) for point in points if isinstance(point, _Number))
    return Metric(
        resource,
        read_json_attributes,
        metric.name or "",
        metric.unit or "",
        grows,
        refused,
        len(points),
        taken,
    )


def _point(point: _Number) -> Point:
    if point.flags and point.flags & NO_VALUE:
        value = float("nan")
    elif point.as_double is not None:
        value = parse_double(point.as_double)
    else:
        value = float("nan") if point.as_int is None else float(parse_int64(point.as_int))
    return Point(bytes(point.attributes), value, milliseconds(parse_int64(point.time_unix_nano)))


# --- otlp ---------------------------------------------------------------------------------------------------

#: Series of one body that are not known yet: reading them is many times the work.
NEW_SERIES_MAX = 200_000
#: Attributes of one resource: they are labels of all its series, and a series has at most 64.
ATTRIBUTES_MAX = 128
#: Bytes of them, as in the body: each known resource is kept.
RESOURCE_BYTES_MAX = 16_384
#: Resources that have a number; above this all are numbered again.
_RESOURCES_MAX = 50_000


class Otlp:
    """Bodies of OTLP metrics to reports. Remembers series, bounded."""

    def __init__(self, placer: Placer) -> None:
        self.slots: Slots[bytes] = Slots(placer, whole=False)
        self.names = SeriesNames(placer.names)
        self._resources: dict[bytes, int] = {}
        self._numbered = 0

    def take(self, raw: bytes, has_node: HasNode, now: datetime, *, json: bool) -> Measured:
        """Raises BadBody. An index in `rejected` is a data point's number, from 0."""
        self.slots.forget(now)
        reading = _Reading(self, has_node)
        try:
            block, number = None, 0
            for metric in read_json(raw) if json else read_protobuf(raw):
                if metric.resource is not block:  # the same bytes for all metrics of a resource
                    block, number = metric.resource, self.resource(metric.resource, json=json)
                reading.take(metric, number)
        except Torn as error:  # of a point: they are read one by one
            raise BadBody(say("signals.bad_point", error=said_by(error))) from None
        return reading.done(now)

    def resource(self, block: bytes, *, json: bool) -> int:
        """A number that no other resource ever gets. Raises BadBody."""
        if len(block) > RESOURCE_BYTES_MAX:
            raise BadBody(say("signals.resource_bytes", size=len(block), most=RESOURCE_BYTES_MAX))
        key = (b"j" if json else b"p") + block
        found = self._resources.get(key)
        if found is None:
            if len(self._resources) >= _RESOURCES_MAX:
                self._resources.clear()
            found = self._resources[key] = self._numbered
            self._numbered += 1
        return found


class _Reading:
    """One request."""

    def __init__(self, otlp: Otlp, has_node: HasNode) -> None:
        self.otlp, self.slots, self.has_node = otlp, otlp.slots, has_node
        self.out, self.rejects = Measured(), Rejects()
        self.index = self.new = 0
        self._slots: list[int] = []
        self._values: list[float] = []
        self._times: list[int] = []
        self._lines: dict[int, int] = {}
        #: The resource whose attributes were read last, and those attributes.
        self._block: bytes | None = None
        self._around: dict[str, Any] | None = None

    def take(self, metric: Metric, resource: int) -> None:
        name, change = self.otlp.names.of(metric.name, metric.unit, metric.grows)
        if metric.refused or change is None:
            text = metric.refused or say("signals.no_conversion", unit=repr(metric.unit[:40]))
            why = say("signals.field", field=metric.name[:200], text=text)
            for _ in range(metric.held):
                self.rejects.add(self.index, why)
                self.index += 1
            return
        as_sent = change == Conversion()
        # Lengths first: no two series have the same bytes.
        head = b"%d:%d:" % (resource, len(name)) + name.encode("utf-8", "surrogatepass")
        find, refused = self.slots.by_key.get, self.slots.refused.get
        for point in metric.points:
            key = head + point.block
            slot = find(key)
            if slot is None:
                slot = refused(key)
            if slot is None:
                slot = self._unknown(key, name, metric, point)
            if slot is not None:
                self._lines[len(self._slots)] = self.index
                self._slots.append(slot)
                self._values.append(point.value if as_sent else change.of(point.value))
                self._times.append(point.at_ms)
            self.index += 1

    def _unknown(self, key: bytes, name: str, metric: Metric, point: Point) -> int | None:
        """The slot of a new series; None if its name is not in the catalogue, which is counted."""
        labels = self._labels(metric, point)
        if self.slots.unwanted(name[:200], labels, self.out):
            return None
        self.new += 1
        if self.new > NEW_SERIES_MAX:
            raise BadBody(say("signals.too_many_series_in_body", most=NEW_SERIES_MAX))
        return self.slots.add(key, name, labels(), self.has_node)

    def _labels(self, metric: Metric, point: Point) -> Callable[[], dict[str, str]]:
        def read() -> dict[str, str]:
            around = self._attributes(metric)
            try:
                return labels_of(around, metric.read(point.block)) if around is not None else {}
            except (Torn, ValueError, RecursionError):
                # A series whose attributes cannot be read names no node, and is counted as such.
                return {}

        return read

    def _attributes(self, metric: Metric) -> dict[str, Any] | None:
        """Those of the metric's resource, read once for all of its series; None if they cannot be read.
        Raises BadBody."""
        if metric.resource is not self._block:
            self._block, self._around = metric.resource, None
            try:
                self._around = metric.read(metric.resource)
            except (Torn, ValueError, RecursionError):
                return None
            if len(self._around) > ATTRIBUTES_MAX:
                raise BadBody(say("signals.resource_attributes", n=len(self._around), most=ATTRIBUTES_MAX))
        return self._around

    def done(self, now: datetime) -> Measured:
        samples = Samples.of(self._slots, self._values, self._times, self._lines)
        self.slots.report(samples, self.has_node, now, self.out, rejects=self.rejects)
        self.slots.add_inventory(self.out, now)
        return self.out
