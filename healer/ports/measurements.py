"""Samples: their store, the numbers of their series, their readers, and what scraping needs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

from healer.model import Column, LastContact, LossReason, Observation, ScrapeJob, ScrapeState
from healer.text import Said, SaidError

if TYPE_CHECKING:
    from healer.model.telemetry import Report, StepBatch


class ColumnBook(Protocol):
    """Interns series: each has one number, the same in all processes and for all nodes."""

    def ids(self, columns: Sequence[Column]) -> list[int]:
        """The number of each; new columns get one, durably. At most 100,000 in all: beyond that it raises
        `TooManyColumns`, and nothing is numbered.
        """
        ...

    def columns(self, ids: Iterable[int]) -> dict[int, Column]:
        """The series of these numbers; unknown numbers are left out."""
        ...


class TooManyColumns(Exception):
    """The book is full: a sender uses constantly changing names."""


class TrendBook(Protocol):
    """Two weeks of the data for `rules/forecasts.yaml`, packed by rule, for a restart."""

    def read(self) -> dict[str, bytes]: ...
    def write(self, packed: Mapping[str, bytes], now: datetime) -> None: ...


class Samples(Protocol):
    """Accepted samples, in the order in which they became visible; kept for a bit more than the longest
    window."""

    def put(self, reports: Sequence["Report"]) -> None:
        """Committed on return; the last moments may be lost at a power loss, never at a crash."""

    def put_steps(self, batches: Sequence["StepBatch"]) -> None:
        """Committed with fsync on return."""

    def new(self) -> "tuple[list[Report], list[StepBatch]]":
        """What became visible since the last call, each exactly once, by arrival; the first call returns what
        arrived in the last 15 minutes. Only for the caller's cluster. An answer is bounded (15 minutes of a
        large cluster are half a gigabyte): if there is more, the next call continues.
        """
        ...


class Devices(NamedTuple):
    """`reports` by device, without its mark, in the page's order; `columns`: the series of their numbers.
    `more`: the page ends before the last device."""

    reports: "dict[str, list[Report]]"
    columns: "dict[int, Column]"
    more: bool


class SignalReads(Protocol):
    """Samples of one node or job, for pages, as long as they are kept (about an hour), oldest first."""

    def node_signals(
        self, cluster: str, node: str, since: datetime
    ) -> "tuple[list[Report], dict[int, Column]]":
        """Reports that arrived after `since`, and the series of their numbers. A device's name has its
        mark."""
        ...

    def devices(self, cluster: str, since: datetime, *, limit: int, after: str = "") -> "Devices":
        """Devices that reported within the hour, by name after `after`, each with its few newest reports
        after `since`, oldest first.
        """
        ...

    def job_steps(self, cluster: str, job: str, since: datetime) -> "list[StepBatch]": ...

    def sampled_steps(self, cluster: str, job: str, moments: Sequence[datetime]) -> "list[StepBatch]":
        """For each moment the last batch that arrived before it, but after the first moment, and the first
        one that arrived at it or later; each batch once, oldest first."""
        ...

    def fleet_reports(
        self, cluster: str, nodes: Sequence[str], since: datetime
    ) -> "tuple[list[Report], dict[int, Column]]":
        """The few newest reports of each node after `since`, oldest first, and the series of their
        numbers."""
        ...

    def fleet_steps(self, cluster: str, jobs: Sequence[str], since: datetime) -> "list[StepBatch]":
        """The newest batches of each job after `since`, oldest first."""
        ...

    def heard(self, cluster: str, node: str, since: datetime) -> LastContact:
        """Its last contact after `since`."""
        ...

    def clock_skews(self, cluster: str, since: datetime) -> Mapping[str, float]:
        """By node, how many seconds its clock is ahead of healer's, by its heartbeats after `since`."""
        ...

    def alerts(self, cluster: str, node: str, since: datetime) -> list[Observation]:
        """Other systems' alerts about it after `since`, oldest first."""
        ...


class Readings(Protocol):
    """Recent measurements (the last hour), for checks. One instance per cluster."""

    def counters(self, subject: str, since: datetime) -> dict[Column, list[tuple[datetime, float]]]:
        """Counters of a node, or of a device (`@` and its name), that arrived after `since`, by series: the
        arrival of each value, oldest first. Raises LedgerAway.
        """
        ...


#: Limit of one answer of a PromqlServer: a sample is some 25 bytes of it, and ten times that when parsed.
ANSWER_BYTES_MAX = 32 * 2**20
#: (cluster, node) -> whether Slurm knows it.
HasNode = Callable[[str, str], bool]
#: Points of a chart by column: (s since 1970, value), by time.
Points = dict[Column, list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Target:
    """One address of one job. `labels` are the job's and its group's."""

    job: ScrapeJob
    host: str
    url: str
    labels: dict[str, str]

    @property
    def key(self) -> tuple[str, str]:
        return self.job.name, self.url


class Fetched(NamedTuple):
    """The body of one scrape as sent, and its `Content-Encoding`."""

    body: bytes
    packing: str


class FetchFailed(Exception):
    """A fetch failed. The text is one sentence; `reason`: why something sent was not stored, if it was."""

    def __init__(self, text: Said, reason: LossReason | None = None) -> None:
        super().__init__(text)
        self.reason = reason


class Fetch(Protocol):
    async def __call__(self, target: Target) -> Fetched:
        """Raises FetchFailed."""
        ...


class ScrapeBook(Protocol):
    """What each cluster's scraper last reported. Raises `request_errors.Unavailable`."""

    def put(self, state: ScrapeState) -> None: ...

    def states(self, clusters: Sequence[str] | None) -> list[ScrapeState]:
        """By cluster; None: all."""
        ...


class HistoryAway(SaidError):
    """The Prometheus-compatible server gives no usable answer. The text is one sentence."""


class AnswerTooLong(HistoryAway):
    """The answer is larger than ANSWER_BYTES_MAX; the query can be split."""


class PromqlServer(Protocol):
    """A server with Prometheus' HTTP API; returns each answer unchanged. Raises HistoryAway."""

    def query(self, promql: str, at: datetime) -> bytes:
        """An instant query."""
        ...

    def query_range(self, promql: str, since: datetime, until: datetime, step_s: int) -> bytes: ...

    def names(self, since: datetime, until: datetime) -> bytes:
        """All names of series in that time."""
        ...


class MetricHistory(Protocol):
    """One cluster's signals in a Prometheus-compatible server. Raises HistoryAway.

    `name` is empty if none is configured: then every answer is empty.
    """

    name: str

    def between(
        self, since: datetime, until: datetime, has_node: HasNode, *, go_on: Callable[[], bool] = lambda: True
    ) -> "list[Report]":
        """All samples of the catalogue's signals in that time, by time; each report's arrival is its
        measurement. At most a minute at once. `go_on` is called before each query: False raises HistoryAway.
        """
        ...

    def node(
        self, node: str, signal: str, since: datetime, until: datetime, step_s: int, has_node: HasNode
    ) -> Points:
        """One signal of one node at every step, by part."""
        ...


class Charts(Protocol):
    """History of all clusters, for pages; from any thread. `points` raises HistoryAway."""

    def remembers(self, cluster: str) -> bool: ...
    def points(self, cluster: str, node: str, signal: str, since: datetime, until: datetime) -> Points: ...


class NoHistory:
    """`MetricHistory` if no server is configured."""

    name = ""

    def between(
        self, since: datetime, until: datetime, has_node: HasNode, *, go_on: Callable[[], bool] = lambda: True
    ) -> "list[Report]":
        return []

    def node(
        self, node: str, signal: str, since: datetime, until: datetime, step_s: int, has_node: HasNode
    ) -> Points:
        return {}
