"""The site's Prometheus-compatible server: its history, and whether it answers."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from healer.adapters.pull.promql_client import PromqlClient
from healer.model import Catalogue, Ruleset
from healer.ports.answers import Readiness
from healer.ports.measurements import ColumnBook, HistoryAway, MetricHistory, NoHistory, Points
from healer.processes.metric_history import PromqlHistory
from healer.settings import Settings
from healer.signals.promql import chart_step_s
from healer.text import say

#: Least interval of calls to the server for /readyz, which never waits for them.
ASK_EVERY_S = 15.0
#: Points of one line of a chart; seconds that a page waits for its turn; how many wait at once, as each holds
#: one of the threads of all pages (`healer.api.app.THREADS`).
POINTS, WAIT_S, WAITING = 300, 10.0, 4
#: Kept of one server: some 40 kB each where a node has 8 GPUs.
CHARTS = 100


def prometheus_client(settings: Settings) -> PromqlClient | None:
    if settings.prometheus_url is None:
        return None
    return PromqlClient(settings.prometheus_url, settings.prometheus_token_file)


def history_of(settings: Settings, book: ColumnBook, cluster: str) -> Callable[[Catalogue], MetricHistory]:
    """The server's history by catalogue; empty if no server is set."""
    client = prometheus_client(settings)
    if client is None:
        return lambda _: NoHistory()
    return lambda catalogue: PromqlHistory(client, catalogue, book, cluster, settings.prometheus_match)


class RememberedCharts:
    """`healer.ports.measurements.Charts`. A server that hangs makes only the charts of its clusters wait."""

    def __init__(self, settings: Settings, rules: Callable[[], Ruleset], book: ColumnBook) -> None:
        self._of = {
            of.cluster or "": _ChartsOfServer(client, of.prometheus_match, rules, book)
            for of in settings.each()
            if (client := prometheus_client(of)) is not None
        }

    def remembers(self, cluster: str) -> bool:
        return cluster in self._of or "" in self._of

    def points(self, cluster: str, node: str, signal: str, since: datetime, until: datetime) -> Points:
        charts = self._of.get(cluster) or self._of.get("")
        return {} if charts is None else charts.points(cluster, node, signal, since, until)


class _ChartsOfServer:
    """One query at a time, as the learned series are shared, and few that wait. A chart is kept until it has
    another point."""

    def __init__(
        self, client: PromqlClient, matchers: str, rules: Callable[[], Ruleset], book: ColumnBook
    ) -> None:
        self._client, self._matchers, self._rules, self._book = client, matchers, rules, book
        self._made: tuple[Catalogue, PromqlHistory] | None = None
        #: By cluster, node, signal and span: when it was asked for, and the answer.
        self._kept: OrderedDict[tuple[str, str, str, int], tuple[float, Points]] = OrderedDict()
        self._lock = threading.Lock()
        self._places = threading.Semaphore(WAITING)

    def points(self, cluster: str, node: str, signal: str, since: datetime, until: datetime) -> Points:
        span_s = round((until - since).total_seconds())
        step_s, key = chart_step_s(span_s, POINTS), (cluster, node, signal, span_s)
        if not self._has_turn():
            raise HistoryAway(say("processes.history_crowded"))
        try:
            asked_at, points = self._kept.get(key, (float("-inf"), {}))
            if time.monotonic() - asked_at < step_s:
                return points
            history = self._history(cluster)
            points = history.node(node, signal, since, until, step_s, lambda _, name: name == node)
            self._kept[key] = time.monotonic(), points
            self._kept.move_to_end(key)
            if len(self._kept) > CHARTS:
                self._kept.popitem(last=False)
            return points
        finally:
            self._lock.release()

    def _has_turn(self) -> bool:
        """Takes the lock, by waiting where few others wait."""
        if self._lock.acquire(blocking=False):
            return True
        if not self._places.acquire(blocking=False):
            return False
        try:
            return self._lock.acquire(timeout=WAIT_S)
        finally:
            self._places.release()

    def _history(self, cluster: str) -> PromqlHistory:
        catalogue = self._rules().catalogue
        if self._made is None or self._made[0] is not catalogue:
            self._kept.clear()
            history = PromqlHistory(self._client, catalogue, self._book, cluster, self._matchers)
            self._made = catalogue, history
        return self._made[1]


class Watched:
    """Whether the servers answer, for /readyz. A failure does not make healer unready."""

    def __init__(self, settings: Settings) -> None:
        found = {cluster.cluster or "": prometheus_client(cluster) for cluster in settings.each()}
        self._clients = {name: client for name, client in found.items() if client is not None}
        self._answers: dict[str, tuple[float, dict[str, Any]]] = {}
        self._asked = float("-inf")
        self._lock = threading.Lock()

    def with_troubles(self, ready: Readiness) -> Readiness:
        """Adds a check for each server: its last result and the age of that."""
        if not self._clients:
            return ready
        with self._lock:
            if time.monotonic() - self._asked >= ASK_EVERY_S:
                self._asked = time.monotonic()
                threading.Thread(target=self._ask, name="prometheus", daemon=True).start()
            now = time.monotonic()
            answers = {
                name: answer | {"age_s": round(now - at, 1)} for name, (at, answer) in self._answers.items()
            }
            checks = dict(ready.checks) | answers
        return Readiness(ready=ready.ready, checks=checks)

    def _ask(self) -> None:
        for cluster, client in self._clients.items():
            answer: dict[str, Any] = {"ok": True, "text": "answers"}
            try:
                client.query("vector(1)", datetime.now(UTC))
            except HistoryAway as error:
                answer = {"ok": False, "text": str(error)}
            name = f"prometheus {cluster}" if len(self._clients) > 1 else "prometheus"
            with self._lock:
                self._answers[name] = (time.monotonic(), answer)
