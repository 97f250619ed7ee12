"""Samples: their store, the numbers of their series, and who reads them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

from healer.model import Column, LastHeard, Observation

if TYPE_CHECKING:
    from healer.model.telemetry import Report, StepBatch


class ColumnBook(Protocol):
    """Each series of a node has a number, the same in all processes and for all nodes: interned once."""

    def ids(self, columns: Sequence[Column]) -> list[int]:
        """The number of each, given durably to those that have none. At most 100,000 in all: then raises
        `TooManyColumns`, and nothing is numbered."""
        ...

    def columns(self, ids: Iterable[int]) -> dict[int, Column]:
        """What these numbers stand for; a number that nobody gave is left out."""
        ...


class TooManyColumns(Exception):
    """The book is full: somebody sends names that change all the time."""


class TrendBook(Protocol):
    """Two weeks of what `rules/forecasts.yaml` follows, packed by rule: what a restart needs."""

    def read(self) -> dict[str, bytes]: ...

    def write(self, packed: Mapping[str, bytes], now: datetime) -> None:
        """In place of what was kept of these rules."""
        ...


class Samples(Protocol):
    """Accepted samples, in the order in which they became visible; kept for the longest window and a bit."""

    def put(self, reports: Sequence["Report"]) -> None:
        """Committed when it returns; the last moments may be lost at a power loss, never at a crash."""
        ...

    def put_steps(self, batches: Sequence["StepBatch"]) -> None:
        """Committed with fsync when it returns."""
        ...

    def new(self) -> "tuple[list[Report], list[StepBatch]]":
        """What became visible since the last call, each exactly once, by arrival; at the first call what
        arrived in the last 15 minutes. Of the caller's cluster only.

        An answer is bounded (15 minutes of a large cluster are half a gigabyte): where there is more, the
        next call goes on.
        """
        ...


class Devices(NamedTuple):
    """`reports` by device, without its mark, in the page's order; `columns`: what their numbers stand for.
    `more`: the page ends before the last device."""

    reports: "dict[str, list[Report]]"
    columns: "dict[int, Column]"
    more: bool


class SignalReads(Protocol):
    """Samples of one node or job, for pages; what is still kept of them (about an hour), oldest first."""

    def node_signals(
        self, cluster: str, node: str, since: datetime
    ) -> "tuple[list[Report], dict[int, Column]]":
        """What arrived after `since`, and what the numbers in it stand for. A device bears its mark."""
        ...

    def devices(self, cluster: str, since: datetime, *, limit: int, after: str = "") -> "Devices":
        """Those that were heard within the hour, by name behind `after`, each with its newest reports after
        `since`, a few of them, oldest first."""
        ...

    def job_steps(self, cluster: str, job: str, since: datetime) -> "list[StepBatch]": ...

    def fleet_reports(
        self, cluster: str, nodes: Sequence[str], since: datetime
    ) -> "tuple[list[Report], dict[int, Column]]":
        """The newest few reports of each node after `since`, oldest first, and what their numbers stand
        for."""
        ...

    def fleet_steps(self, cluster: str, jobs: Sequence[str], since: datetime) -> "list[StepBatch]":
        """The newest batches of each job after `since`, oldest first."""
        ...

    def heard(self, cluster: str, node: str, since: datetime) -> LastHeard:
        """When it last spoke, after `since`."""
        ...

    def alerts(self, cluster: str, node: str, since: datetime) -> list[Observation]:
        """What other systems' alerting told of it after `since`, oldest first."""
        ...


class Readings(Protocol):
    """What was measured of late (the last hour), for checks. One value per cluster."""

    def counters(self, subject: str, since: datetime) -> dict[Column, list[tuple[datetime, float]]]:
        """Counters of a node, or of a device (`@` and its name), that arrived after `since`, by series: when
        each value arrived, oldest first. Raises LedgerAway."""
        ...
