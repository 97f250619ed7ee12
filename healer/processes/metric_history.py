"""What a Prometheus-compatible server remembers: points of charts, and what windows lack at a start."""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

import msgspec
import numpy as np
import structlog

from healer.model import Catalogue, SlurmSnapshot
from healer.model.telemetry import Report
from healer.ports.measurements import (
    AnswerTooLong,
    ColumnBook,
    HasNode,
    HistoryAway,
    MetricHistory,
    Points,
    PromqlServer,
)
from healer.processes.senses_loop import Chunk
from healer.signals.promql import (
    Line,
    decode_names,
    node_selector,
    selector,
    series_names,
    signals_by_series_name,
)
from healer.signals.rejects import BadBody
from healer.signals.translate import Translator
from healer.text import said_by, say

#: Names in one question: of 10,000 GPUs a name has some 40,000 samples in a minute, 1 MB of answer.
NAMES_TOGETHER = 10
#: How often the server's names are queried again.
NAMES_S = 300.0


class PromqlHistory:
    """`healer.ports.measurements.MetricHistory` of one cluster. For one thread."""

    name = "prometheus"

    def __init__(
        self, server: PromqlServer, catalogue: Catalogue, book: ColumnBook, cluster: str, matchers: str = ""
    ) -> None:
        """`matchers`: the part of a selector that picks this cluster's series on the server."""
        self._matchers = matchers
        self._server, self._catalogue, self._book = server, catalogue, book
        self._translator = Translator(catalogue, book, cluster)
        self._names: tuple[float, list[str]] | None = None

    def between(
        self, since: datetime, until: datetime, has_node: HasNode, *, go_on: Callable[[], bool] = lambda: True
    ) -> list[Report]:
        # Raw samples, by a range selector: they have their own times, and no point is made up. A query_range
        # would repeat each value for up to five minutes after its series ended.
        span_s = max(1, round((until - since).total_seconds()))
        _check(go_on)
        names = self._server_names(since)
        found: list[Report] = []
        for first in range(0, len(names), NAMES_TOGETHER):
            found += self._samples(names[first : first + NAMES_TOGETHER], span_s, until, has_node, go_on)
        return sorted(found, key=lambda report: report.at)

    def _samples(
        self, names: Sequence[str], span_s: int, until: datetime, has_node: HasNode, go_on: Callable[[], bool]
    ) -> list[Report]:
        _check(go_on)
        try:
            raw = self._server.query(f"{selector(names, self._matchers)}[{span_s}s]", until)
        except AnswerTooLong:
            if len(names) == 1:
                return []  # even one name is too much: the windows fill without it
            half = len(names) // 2
            parts = (names[:half], names[half:])
            return [
                report for part in parts for report in self._samples(part, span_s, until, has_node, go_on)
            ]
        return self._reports(raw, has_node, until)

    def _reports(self, raw: bytes, has_node: HasNode, until: datetime) -> list[Report]:
        try:
            measured = self._translator.queried(raw, has_node, until)
        except BadBody as error:
            raise HistoryAway(said_by(error)) from None
        # Their arrival at the server is unknown; this is when they were measured.
        return [msgspec.structs.replace(report, arrived_at=report.at) for report in measured.reports]

    def _server_names(self, since: datetime) -> list[str]:
        """The catalogue's names that the server has."""
        if self._names is None or time.monotonic() - self._names[0] > NAMES_S:
            try:
                answered = decode_names(self._server.names(since, since + timedelta(minutes=15)))
            except BadBody as error:
                raise HistoryAway(said_by(error)) from None
            wanted = signals_by_series_name(self._catalogue)
            self._names = (time.monotonic(), sorted(name for name in set(answered) if name in wanted))
        return self._names[1]

    def node(
        self, node: str, signal: str, since: datetime, until: datetime, step_s: int, has_node: HasNode
    ) -> Points:
        catalogued = self._catalogue.signals.get(signal)
        names = series_names(catalogued) if catalogued is not None else []
        if not names:
            return {}
        raw = self._server.query_range(node_selector(names, node, self._matchers), since, until, step_s)
        try:
            lines = self._translator.charted(raw, has_node)
        except BadBody as error:
            raise HistoryAway(said_by(error)) from None
        lines_of_node = {
            number: _within(line, since.timestamp() - step_s, until.timestamp() + step_s)
            for ((_, where), number), line in lines.items()
            if where == node
        }
        return {
            column: list(zip(*(points.tolist() for points in lines_of_node[number]), strict=True))
            for number, column in self._book.columns(lines_of_node).items()
            if column.signal == signal
        }


def _within(line: Line, first: float, last: float) -> Line:
    """The points of that time (seconds since 1970): a server may align them to the step, not make them up."""
    times, values = line
    asked = (first <= times) & (times <= last)
    return times[asked], values[asked]


def _check(go_on: Callable[[], bool]) -> None:
    if not go_on():
        raise HistoryAway(say("processes.history_late"))


log = structlog.get_logger()

WARM_SPAN = timedelta(minutes=15)
WARM_STEP = timedelta(minutes=1)
#: The limit for all of it, except the query in progress; after that the windows fill by themselves.
WARM_MOST_S = 30.0
#: A minute is complete if the store has rows of this share of Slurm's nodes in it.
ENOUGH_SHARE = 0.9
#: Samples taken from the server: 10,000 GPUs x 40 signals every 15 s for 15 minutes.
SAMPLES_MAX = 25_000_000


class WarmUp:
    """One start. A server that does not answer is not asked again; that is logged."""

    def __init__(
        self,
        history: MetricHistory,
        cluster: str,
        snapshot: SlurmSnapshot | None,
        *,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self._history, self._cluster = history, cluster
        self._nodes = frozenset(snapshot.nodes) if snapshot is not None else frozenset[str]()
        self._stopwatch = stopwatch
        self._until_s = stopwatch() + WARM_MOST_S
        self._over = not history.name or not self._nodes
        self.samples = self.minutes = 0

    def chunks(self, stored: Iterator[Chunk], now: datetime) -> Iterator[Chunk]:
        """The store's data, and between it what the store lacks, minute by minute. `stored` ends with its
        rows."""
        if self._over:
            yield from stored
            return
        held: list[Report] = []
        ended = False
        start = now - WARM_SPAN
        while start < now:
            end = start + WARM_STEP
            while not ended and not _reaches(held, end):
                chunk = next(stored, None)
                if chunk is None:
                    ended = True
                    break
                held += chunk[0]
                if chunk[1]:
                    yield [], chunk[1]
            arrived = [report for report in held if report.arrived_at < end]
            held = [report for report in held if report.arrived_at >= end]
            more = self._lacking(arrived, start, min(end, now))
            yield sorted([*arrived, *more], key=lambda report: report.arrived_at), []
            start = end
        if held:
            yield held, []
        yield from stored
        if self.samples:
            log.info(
                "metric windows warmed up", samples=self.samples, minutes=self.minutes, cluster=self._cluster
            )

    def _lacking(self, stored: Sequence[Report], start: datetime, end: datetime) -> list[Report]:
        reporting = {report.node for report in stored if len(report.columns)}
        if self._over or len(reporting & self._nodes) >= ENOUGH_SHARE * len(self._nodes):
            return []
        if not self._in_time() or self.samples > SAMPLES_MAX:
            self._end(f"more than {WARM_MOST_S:g} s or {SAMPLES_MAX} samples: the rest fills by itself")
            return []
        try:
            found = self._history.between(start, end, self._has_node, go_on=self._in_time)
        except HistoryAway as error:
            self._end(str(error))
            return []
        fresh = list(_without(found, stored))
        self.samples += sum(len(report.columns) for report in fresh)
        self.minutes += bool(fresh)
        return fresh

    def _in_time(self) -> bool:
        return self._stopwatch() <= self._until_s

    def _has_node(self, cluster: str, node: str) -> bool:
        return cluster == self._cluster and node in self._nodes

    def _end(self, why: str) -> None:
        self._over = True
        log.warning("warm-up of metric windows stopped", why=why, cluster=self._cluster)


def _reaches(held: Sequence[Report], end: datetime) -> bool:
    """Whether rows came that are later: then all of before have come, as far as hosts agree on the time."""
    return bool(held) and held[-1].arrived_at >= end + timedelta(seconds=5)


def _without(found: Sequence[Report], stored: Sequence[Report]) -> Iterator[Report]:
    """The server's reports without the series that the store has of the same node."""
    columns: dict[str, list[np.ndarray]] = {}
    for report in stored:
        columns.setdefault(report.node, []).append(report.columns)
    stored_columns = {node: np.unique(np.concatenate(parts)) for node, parts in columns.items()}
    for report in found:
        kept = (
            ~np.isin(report.columns, stored_columns[report.node]) if report.node in stored_columns else None
        )
        if kept is None:
            yield report
        elif kept.any():
            yield Report(
                report.cluster,
                report.node,
                report.at,
                report.arrived_at,
                report.columns[kept],
                report.values[kept],
            )
