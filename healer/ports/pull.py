"""What pulling needs: where its state stands, and what a Prometheus-compatible server remembers."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from healer.model import Column, ScrapeState

if TYPE_CHECKING:
    from healer.model.samples import Report

#: (cluster, node) -> whether Slurm knows it.
Known = Callable[[str, str], bool]
#: Points of a chart by column: (s since 1970, value), by time.
Points = dict[Column, list[tuple[float, float]]]


class ScrapeBook(Protocol):
    """What each cluster's scraper told last. Raises `healer.api.services.Unavailable`."""

    def put(self, state: ScrapeState) -> None: ...

    def states(self, clusters: Sequence[str] | None) -> list[ScrapeState]:
        """By cluster; None: of all."""
        ...


class HistoryAway(Exception):
    """The Prometheus-compatible server gives no answer that can be used. The text is one sentence."""


class MetricHistory(Protocol):
    """What a Prometheus-compatible server remembers of one cluster's signals. Raises HistoryAway.

    `name` is empty where none is set: then every answer is empty.
    """

    name: str

    def between(
        self, since: datetime, until: datetime, known: Known, *, go_on: Callable[[], bool] = lambda: True
    ) -> "list[Report]":
        """All samples of the catalogue's signals in that time, by their times; each report arrived when it
        was measured. At most a minute at once. `go_on` is asked before each question to the server: when it
        says no, that is HistoryAway."""
        ...

    def node(
        self, node: str, signal: str, since: datetime, until: datetime, step_s: int, known: Known
    ) -> Points:
        """One signal of one node at every step, by part."""
        ...


class Charts(Protocol):
    """What the servers of all clusters remember, for pages; from any thread. `points` raises HistoryAway."""

    def remembers(self, cluster: str) -> bool:
        """Whether a server is set for it."""
        ...

    def points(self, cluster: str, node: str, signal: str, since: datetime, until: datetime) -> Points: ...


class NoHistory:
    """`MetricHistory` where no server is set."""

    name = ""

    def between(
        self, since: datetime, until: datetime, known: Known, *, go_on: Callable[[], bool] = lambda: True
    ) -> "list[Report]":
        return []

    def node(
        self, node: str, signal: str, since: datetime, until: datetime, step_s: int, known: Known
    ) -> Points:
        return {}
