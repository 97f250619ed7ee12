"""Every signal of the catalogue that a Prometheus-compatible server has, fetched in equal steps."""

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from healer.model import Catalogue
from healer.ports.measurements import HasNode, MetricHistory
from healer.signals.series import Measured

#: A server has a sample some seconds after its time, when the scrape has ended.
LATE = timedelta(seconds=5)
#: How far one query reaches back. After a longer gap the windows continue without it.
REACH = timedelta(minutes=1)


class PrometheusFollow:
    """One cluster's samples since the last successful call. For one thread at a time."""

    def __init__(self, history_of: Callable[[Catalogue], MetricHistory]) -> None:
        self._history_of = history_of
        self._made: tuple[Catalogue, MetricHistory] | None = None
        self._until: datetime | None = None

    def fetch(self, catalogue: Catalogue, has_node: HasNode, now: datetime) -> Measured:
        """The samples that the server received since the last call. Raises HistoryAway: the next call then
        asks for this time too."""
        if self._made is None or self._made[0] is not catalogue:
            self._made = catalogue, self._history_of(catalogue)
        # Whole seconds, as a question has: so two questions neither overlap nor leave a gap.
        until = (now - LATE).replace(microsecond=0)
        since = max(self._until or until - REACH, until - REACH)
        if since >= until:
            return Measured()
        reports = self._made[1].between(since, until, has_node)
        self._until = until
        return Measured(
            reports=[msgspec.structs.replace(report, arrived_at=now) for report in reports],
            samples=sum(len(report.columns) for report in reports),
        )
