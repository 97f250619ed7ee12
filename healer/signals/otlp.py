"""`POST /signals/otlp/v1/metrics`: ExportMetricsServiceRequest, protobuf or JSON -> reports.

Gauges and cumulative sums are samples. A series is known by its name and the raw bytes of its own and its
resource's attributes, so those are read once. Delta sums, histograms and summaries are refused: a delta that
is sent again after a lost answer would count twice, and the catalogue has no histogram.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np

from healer.signals.measured import Measured
from healer.signals.otlp_json import read_json
from healer.signals.otlp_names import SeriesNames, labels_of
from healer.signals.otlp_points import Metric, Point, read_protobuf
from healer.signals.protobuf import Torn
from healer.signals.rejects import BadBody, Rejects
from healer.signals.series import Placer
from healer.signals.slots import Samples, Slots
from healer.signals.wire import Known

#: Series of one body that are not known yet: reading them is many times the work.
NEW_SERIES_MAX = 200_000
#: Attributes of one resource: they are labels of all its series, and a series has at most 64.
ATTRIBUTES_MAX = 128
#: Bytes of them, as they stand in the body: each known resource is kept.
RESOURCE_BYTES_MAX = 16_384
#: Resources that are known by a number; then all are numbered anew.
_RESOURCES_MAX = 50_000


class Otlp:
    """Bodies of OTLP metrics -> reports. Remembers series, bounded."""

    def __init__(self, placer: Placer) -> None:
        self.slots: Slots[bytes] = Slots(placer, whole=False)
        self.names = SeriesNames(placer.names.__contains__)
        self._resources: dict[bytes, int] = {}
        self._numbered = 0

    def take(self, raw: bytes, known: Known, now: datetime, *, json: bool) -> Measured:
        """Raises BadBody. An index in `rejected` is a data point's number, from 0."""
        self.slots.forget(now)
        reading = _Reading(self, known)
        try:
            block, number = None, 0
            for metric in read_json(raw) if json else read_protobuf(raw):
                if metric.resource is not block:  # the same bytes for all metrics of a resource
                    block, number = metric.resource, self.resource(metric.resource, json=json)
                reading.take(metric, number)
        except Torn as error:  # of a point: they are read one by one
            raise BadBody(f"a data point cannot be read: {error}") from None
        return reading.done(now)

    def resource(self, block: bytes, *, json: bool) -> int:
        """A number that no other resource ever has. Raises BadBody."""
        if len(block) > RESOURCE_BYTES_MAX:
            raise BadBody(f"a resource has {len(block)} bytes of attributes, at most {RESOURCE_BYTES_MAX}")
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

    def __init__(self, otlp: Otlp, known: Known) -> None:
        self.otlp, self.slots, self.known = otlp, otlp.slots, known
        self.out, self.rejects = Measured(), Rejects()
        self.index = self.new = 0
        self._slots: list[int] = []
        self._values: list[float] = []
        self._times: list[int] = []
        self._lines: dict[int, int] = {}
        #: The resource whose attributes were read last, and those.
        self._block: bytes | None = None
        self._around: dict[str, Any] | None = None

    def take(self, metric: Metric, resource: int) -> None:
        if metric.refused:
            for _ in range(metric.held):
                self.rejects.add(self.index, f"{metric.name[:200]}: {metric.refused}")
                self.index += 1
            return
        name = self.otlp.names.of(metric.name, metric.unit, metric.grows)
        # Lengths first: no two series have the same bytes.
        head = b"%d:%d:" % (resource, len(name)) + name.encode("utf-8", "surrogatepass")
        find, refused = self.slots.known.get, self.slots.refused.get
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
                self._values.append(point.value)
                self._times.append(point.at_ms)
            self.index += 1

    def _unknown(self, key: bytes, name: str, metric: Metric, point: Point) -> int | None:
        """The slot of a series that is not known; None when nobody wants it, which is counted."""
        labels = self._labels(metric, point)
        if self.slots.unwanted(name[:200], labels, self.out):
            return None
        self.new += 1
        if self.new > NEW_SERIES_MAX:
            raise BadBody(f"the body has more than {NEW_SERIES_MAX} new series: send it in several requests")
        return self.slots.add(key, name, labels(), self.known)

    def _labels(self, metric: Metric, point: Point) -> Callable[[], dict[str, str]]:
        def read() -> dict[str, str]:
            around = self._attributes(metric)
            try:
                return labels_of(around, metric.read(point.block)) if around is not None else {}
            except (Torn, ValueError, RecursionError):
                # A series whose attributes cannot be read names no node; it is told so.
                return {}

        return read

    def _attributes(self, metric: Metric) -> dict[str, Any] | None:
        """Those of the metric's resource, read once for all of its series; None where they cannot be read.
        Raises BadBody."""
        if metric.resource is not self._block:
            self._block, self._around = metric.resource, None
            try:
                self._around = metric.read(metric.resource)
            except (Torn, ValueError, RecursionError):
                return None
            if len(self._around) > ATTRIBUTES_MAX:
                raise BadBody(f"a resource has {len(self._around)} attributes, at most {ATTRIBUTES_MAX}")
        return self._around

    def done(self, now: datetime) -> Measured:
        samples = Samples(
            np.array(self._slots, np.int32),
            np.array(self._values, np.float64),
            np.array(self._times, np.int64),
        )
        self.slots.report(samples, self.known, now, self.out, lines=self._lines, rejects=self.rejects)
        nodes = {(one.cluster, one.node) for one in self.out.reports}
        self.out.inventory = self.slots.placer.gpus.inventory(nodes, now)
        return self.out
