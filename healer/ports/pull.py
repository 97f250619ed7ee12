"""What pulling needs: targets and what they print, a book of its state, and a server's memory of metrics."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

from healer.model import Column, LossReason, ScrapeJob, ScrapeState

if TYPE_CHECKING:
    from healer.model.telemetry import Report

#: Of one answer of a PromqlServer: a sample is some 25 bytes of it, and ten times that while it is read.
ANSWER_BYTES_MAX = 32 * 2**20
#: (cluster, node) -> whether Slurm knows it.
Known = Callable[[str, str], bool]
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
    """The body of one scrape as it was sent, and its `Content-Encoding`."""

    body: bytes
    packing: str


class FetchFailed(Exception):
    """Nothing came of one fetch. The text is one sentence; `reason`: what was sent and not stored, if any."""

    def __init__(self, text: str, reason: LossReason | None = None) -> None:
        super().__init__(text)
        self.reason = reason


class Fetch(Protocol):
    async def __call__(self, target: Target) -> Fetched:
        """Raises FetchFailed."""
        ...


class ScrapeBook(Protocol):
    """What each cluster's scraper told last. Raises `request_errors.Unavailable`."""

    def put(self, state: ScrapeState) -> None: ...

    def states(self, clusters: Sequence[str] | None) -> list[ScrapeState]:
        """By cluster; None: of all."""
        ...


class HistoryAway(Exception):
    """The Prometheus-compatible server gives no answer that can be used. The text is one sentence."""


class AnswerTooLong(HistoryAway):
    """The answer is larger than ANSWER_BYTES_MAX; the question can be cut."""


class PromqlServer(Protocol):
    """A server that speaks Prometheus' HTTP API; each answer as it came. Raises HistoryAway."""

    def query(self, promql: str, at: datetime) -> bytes:
        """An instant query."""
        ...

    def query_range(self, promql: str, since: datetime, until: datetime, step_s: int) -> bytes: ...

    def names(self, since: datetime, until: datetime) -> bytes:
        """All names of series in that time."""
        ...


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
