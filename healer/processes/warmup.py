"""Fills what the windows lack after a start from a Prometheus-compatible server, minute by minute.

The store's own rows come first: where it tells of a series in a minute, what the server says of that series
in that minute is left out. Time goes one way through the windows, so both are put together by the minute.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

import numpy as np
import structlog

from healer.model import SlurmSnapshot
from healer.model.samples import Report
from healer.ports.pull import HistoryAway, MetricHistory
from healer.processes.senses import Chunk

log = structlog.get_logger()

SPAN = timedelta(minutes=15)
STEP = timedelta(minutes=1)
#: All of it, but for the question that is under way; after that the windows fill by themselves.
MOST_S = 30.0
#: A minute lacks nothing when the store has rows of so many of Slurm's nodes in it.
ENOUGH_SHARE = 0.9
#: Samples taken from the server: 10,000 GPUs x 40 signals every 15 s for 15 minutes.
SAMPLES_MAX = 25_000_000


class WarmUp:
    """One start. A server that does not answer is asked no more: it is said in the log."""

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
        self._until_s = stopwatch() + MOST_S
        self._over = not history.name or not self._nodes
        self.samples = self.minutes = 0

    def chunks(self, stored: Iterator[Chunk], now: datetime) -> Iterator[Chunk]:
        """What the store has, with what it lacks between, by the minute. `stored` ends with its rows."""
        if self._over:
            yield from stored
            return
        held: list[Report] = []
        ended = False
        start = now - SPAN
        while start < now:
            end = start + STEP
            while not ended and not _reaches(held, end):
                chunk = next(stored, None)
                if chunk is None:
                    ended = True
                    break
                held += chunk[0]
                if chunk[1]:
                    yield [], chunk[1]
            own = [one for one in held if one.arrived_at < end]
            held = [one for one in held if one.arrived_at >= end]
            more = self._lacking(own, start, min(end, now))
            yield sorted([*own, *more], key=_arrival), []
            start = end
        if held:
            yield held, []
        yield from stored
        if self.samples:
            log.info("windows warmed up", samples=self.samples, minutes=self.minutes, cluster=self._cluster)

    def _lacking(self, own: Sequence[Report], start: datetime, end: datetime) -> list[Report]:
        told = {one.node for one in own if len(one.columns)}
        if self._over or len(told & self._nodes) >= ENOUGH_SHARE * len(self._nodes):
            return []
        if not self._in_time() or self.samples > SAMPLES_MAX:
            self._end(f"more than {MOST_S:g} s or {SAMPLES_MAX} samples: the rest fills by itself")
            return []
        try:
            found = self._history.between(start, end, self._known, go_on=self._in_time)
        except HistoryAway as error:
            self._end(str(error))
            return []
        fresh = list(_without(found, own))
        self.samples += sum(len(one.columns) for one in fresh)
        self.minutes += bool(fresh)
        return fresh

    def _in_time(self) -> bool:
        return self._stopwatch() <= self._until_s

    def _known(self, cluster: str, node: str) -> bool:
        return cluster == self._cluster and node in self._nodes

    def _end(self, why: str) -> None:
        self._over = True
        log.warning("the windows are not warmed up any further", why=why, cluster=self._cluster)


def _arrival(report: Report) -> datetime:
    return report.arrived_at


def _reaches(held: Sequence[Report], end: datetime) -> bool:
    """Whether rows came that are later: then all of before have come, as far as hosts agree on the time."""
    return bool(held) and held[-1].arrived_at >= end + timedelta(seconds=5)


def _without(found: Sequence[Report], own: Sequence[Report]) -> Iterator[Report]:
    """The server's reports without the series that the store has of the same node."""
    columns: dict[str, list[np.ndarray]] = {}
    for one in own:
        columns.setdefault(one.node, []).append(one.columns)
    known = {node: np.unique(np.concatenate(parts)) for node, parts in columns.items()}
    for one in found:
        kept = ~np.isin(one.columns, known[one.node]) if one.node in known else None
        if kept is None:
            yield one
        elif kept.any():
            yield Report(one.cluster, one.node, one.at, one.arrived_at, one.columns[kept], one.values[kept])
