"""The data of the fleet map: its JSON bodies, in the versions that pages have, and the values of its colours.

Each GPU's newest values, and each node's pace among its peers, are only read while a page shows them, and
shared by all pages for some seconds.
"""

import hashlib
import itertools
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from healer.console.views.colours import Colour, Measurements, bins, cells, kinds
from healer.console.views.fleet_view import NodeRow
from healer.model import Column, Part, SlurmSnapshot, Verdict
from healer.model.shown import shown
from healer.model.telemetry import Report, StepBatch
from healer.observations.step_grid import deviation, grid, lately
from healer.ports.answers import NodeGauges, Standing
from healer.ports.queries import Queries
from healer.text import language, to_text

log = structlog.get_logger()

T = TypeVar("T")

#: How long a page waits; figures that come later are in its next update.
_WAIT_S = 0.1

#: Older values are unknown: senders report every minute at least.
GAUGES_LAST, PACES_LAST = timedelta(minutes=2), timedelta(seconds=60)
#: How often they are read again.
GAUGES_EVERY_S, PACES_EVERY_S = 5.0, 15.0
_GPUS = 16

#: Results older than this are unknown.
OLD_S = 60.0


class CachedRead(Generic[T]):
    """One mapping per cluster, the same object while it is equal. Requests do not wait long for it: it is
    read in a separate thread, and until that has ended the old one is used, for `OLD_S`."""

    def __init__(self, every_s: float, *, wait_s: float = _WAIT_S) -> None:
        self._every_s, self._wait_s = every_s, wait_s
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Mapping[str, T]]] = {}
        self._reading: dict[str, threading.Thread] = {}

    def get(self, cluster: str, read: Callable[[], Mapping[str, T]]) -> Mapping[str, T]:
        with self._lock:
            at, found = self._known.get(cluster, (-math.inf, {}))
            if time.monotonic() - at < self._every_s:
                return found
            thread = self._reading.get(cluster)
            if thread is None:
                thread = threading.Thread(target=self._renew, args=(cluster, read), daemon=True)
                thread.start()
                self._reading[cluster] = thread
        thread.join(self._wait_s)
        with self._lock:
            at, found = self._known.get(cluster, (-math.inf, {}))
        return found if time.monotonic() - at < OLD_S else {}

    def _renew(self, cluster: str, read: Callable[[], Mapping[str, T]]) -> None:
        try:
            found = read()
        except Exception:
            log.exception("fleet figures unavailable", cluster=cluster)
            found = {}  # unknown, rather than what was known once
        with self._lock:
            del self._reading[cluster]
            _, before = self._known.get(cluster, (0.0, {}))
            self._known[cluster] = time.monotonic(), before if found == before else found


class FleetMeasures:
    """By node of a cluster. The same mapping while nothing changed."""

    def __init__(self, queries: Queries, clock: Callable[[], datetime]) -> None:
        self._queries, self._clock = queries, clock
        self._gauges = CachedRead[NodeGauges](GAUGES_EVERY_S)
        self._paces = CachedRead[float](PACES_EVERY_S)
        self._lemons = CachedRead[float](PACES_EVERY_S)

    def gauges(self, snapshot: SlurmSnapshot) -> Mapping[str, NodeGauges]:
        """Nodes that reported any in the last minutes."""

        def read() -> Mapping[str, NodeGauges]:
            names = [node.name for node in snapshot.gpu_nodes]
            since = self._clock() - GAUGES_LAST
            return gauges(*self._queries.signals.fleet_reports(snapshot.cluster, names, since))

        return self._gauges.get(snapshot.cluster, read)

    def paces(self, snapshot: SlurmSnapshot) -> Mapping[str, float]:
        """Nodes in a job that reports compute times: the slowest rank's over the median of its peers."""

        def read() -> Mapping[str, float]:
            jobs = [name for name, job in snapshot.jobs.items() if job.active]
            since = self._clock() - PACES_LAST
            return paces(snapshot, self._queries.signals.fleet_steps(snapshot.cluster, jobs, since))

        return self._paces.get(snapshot.cluster, read)

    def lemons(self, snapshot: SlurmSnapshot) -> Mapping[str, float]:
        """The lemon scores; 0 for a node without faults."""

        def read() -> Mapping[str, float]:
            kept = self._queries.nodes.lemons(snapshot.cluster)
            return {
                node.name: kept[node.name].score if node.name in kept else 0.0 for node in snapshot.gpu_nodes
            }

        return self._lemons.get(snapshot.cluster, read)


def gauges(reports: Sequence[Report], columns: Mapping[int, Column]) -> dict[str, NodeGauges]:
    row_of = {name: row for row, name in enumerate(dict.fromkeys(report.node for report in reports))}
    table = np.full((len(row_of), 2 * _GPUS), np.nan)
    for numbers, its in _by_columns(reports):
        places, at = _wanted(columns, numbers)
        if len(places):
            for report in its:
                row, values = table[row_of[report.node]], report.values[at]
                is_set = ~np.isnan(values)
                row[places[is_set]] = values[is_set]
    halves = _rows(table[:, :_GPUS]), _rows(table[:, _GPUS:])
    every = zip(row_of, *halves, strict=True)
    return {name: NodeGauges(hot, held) for name, hot, held in every if hot or held}


def _by_columns(reports: Sequence[Report]) -> Iterator[tuple[NDArray[np.int32], list[Report]]]:
    """Reports of the same columns share them. The order stays among those that follow each other."""
    for _, its in itertools.groupby(reports, key=lambda report: id(report.columns)):
        found = list(its)
        yield found[0].columns, found


def _wanted(columns: Mapping[int, Column], numbers: NDArray[np.int32]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Indices of the values in a node's row, and in the report."""
    pairs = [
        (_PLACES[columns[number]], at)
        for at, number in enumerate(numbers.tolist())
        if columns.get(number) in _PLACES
    ]
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


_PLACES = {
    Column(name, Part(gpu=gpu)): number * _GPUS + gpu
    for number, name in enumerate(("gpu_temp_c", "clock_event_reasons"))
    for gpu in range(_GPUS)
}


def _rows(table: NDArray[np.float64]) -> list[tuple[float | None, ...]]:
    """Each row up to its last known value."""
    is_set = ~np.isnan(table)
    ends = np.where(is_set.any(axis=1), _GPUS - is_set[:, ::-1].argmax(axis=1), 0)
    whole = is_set.sum(axis=1) == ends
    return [
        tuple(row[:end]) if full else tuple(None if math.isnan(value) else value for value in row[:end])
        for row, end, full in zip(table.tolist(), ends.tolist(), whole.tolist(), strict=True)
    ]


def paces(snapshot: SlurmSnapshot, batches: Sequence[StepBatch]) -> dict[str, float]:
    by_job: dict[str, list[StepBatch]] = {}
    for batch in batches:
        by_job.setdefault(batch.job, []).append(batch)
    found: dict[str, float] = {}
    for name, its in by_job.items():
        found |= _paces_of(its, snapshot.jobs[name].nodes)
    return found


def _paces_of(batches: Sequence[StepBatch], nodes: Sequence[str]) -> dict[str, float]:
    """Whole step times show when a job was slow, but not which node was: those nodes stay unknown."""
    made = grid(batches, slurm_nodes=nodes)
    if made is None or not made.has_compute:
        return {}
    found: dict[str, float] = {}
    for node, above in zip(made.node.tolist(), lately(deviation(made)).tolist(), strict=True):
        if node >= 0 and not math.isnan(above):
            name = made.nodes[node]
            found[name] = max(found.get(name, 0.0), 1 + above)
    return found


#: Versions kept, of all clusters and colours: a page that is further behind reloads everything.
_KEPT = 64

_json = msgspec.json.Encoder(enc_hook=to_text).encode


def _encode(value: Any) -> bytes:
    """JSON for the map's script, `shown`: it puts names on the page."""
    return shown(_json(value).decode()).encode()


class Body(NamedTuple):
    """One version. `whole` is the complete body; `cells` are for computing changes."""

    tag: str
    places: list[list[str]]
    cells: list[list[Any]]
    whole: bytes


class FleetBodies:
    def __init__(self, translate: Callable[[str], str]) -> None:
        """`translate`: to the language of the request."""
        self._translate = translate
        self._lock = threading.Lock()
        self._newest: dict[tuple[str, Colour, str], tuple[tuple[object, Measurements], Body]] = {}
        self._kept: OrderedDict[tuple[str, Colour, str], Body] = OrderedDict()

    def now(
        self, standing: Standing, rows: Sequence[NodeRow], colour: Colour, measured: Measurements
    ) -> Body:
        """The newest body, rebuilt only if the rows or the measurements have changed."""
        key = standing.cluster, colour, language.current.get()
        with self._lock:
            made = self._newest.get(key)
        if made is not None and made[0][0] is rows and made[0][1] == measured:
            return made[1]
        body = _body(standing, rows, colour, measured, self._translate)
        with self._lock:
            self._newest[key] = (rows, measured), body
            self._kept[standing.cluster, colour, body.tag] = body
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return body

    def past(self, standing: Standing, rows: Sequence[NodeRow]) -> bytes:
        """The whole body of a moment of the past, which no page updates."""
        return _body(standing, rows, Colour.service, Measurements(), self._translate).whole

    def since(self, tag: str, standing: Standing, colour: Colour, body: Body) -> bytes | None:
        """The changes for a page that has `tag`; None: that version is unknown, or of another fleet."""
        with self._lock:
            before = self._kept.get((standing.cluster, colour, tag))
        if before is None or before.places != body.places or len(before.cells) != len(body.cells):
            return None
        both = enumerate(zip(before.cells, body.cells, strict=True))
        changed = [[place, new] for place, (old, new) in both if old is not new and old != new]
        if any(before.cells[place][0] != new[0] for place, new in changed):
            return None
        return _encode({"tag": body.tag, "changed": changed})


def _body(
    standing: Standing,
    rows: Sequence[NodeRow],
    colour: Colour,
    measured: Measurements,
    translate: Callable[[str], str],
) -> Body:
    places, found = cells(rows, colour, measured)
    tag = hashlib.sha256(_encode([places, found])).hexdigest()[:16]
    whole = {
        "cluster": standing.cluster, "tag": tag, "groups": places, "nodes": found,
        "bins": bins(colour, translate), "kinds": kinds(translate),
        "verdicts": {verdict.value: translate(verdict.value) for verdict in Verdict},
    }  # fmt: skip
    return Body(tag, places, found, _encode(whole))
