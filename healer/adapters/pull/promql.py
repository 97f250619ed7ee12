"""Asks a Prometheus-compatible server: Prometheus itself, VictoriaMetrics, Mimir, Thanos.

Every answer is bounded in bytes and time. The address and the token never stand in an error.
"""

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import msgspec

from healer import __version__
from healer.model import Catalogue
from healer.model.samples import Report
from healer.ports.measurements import ColumnBook
from healer.ports.pull import HistoryAway, Known, Points
from healer.signals.promql import ANSWER_BYTES_MAX, arriving, names_of, names_told, of_node, selector
from healer.signals.translate import Translator
from healer.signals.wire import BadBody

#: One question. A server that is slower is taken to be away.
TIMEOUT_S = 10.0
CONNECT_S = 3.0
#: Names in one question: of 10,000 GPUs a name has some 40,000 samples in a minute, 1 MB of answer.
NAMES_TOGETHER = 10
#: Which names the server has is asked again after so long.
NAMES_S = 300.0


class PromqlClient:
    """The server. Each call may come from another thread."""

    def __init__(self, url: str, token_file: Path | None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._url, self._token_file, self._timeout_s = url.rstrip("/"), token_file, timeout_s
        self._client = httpx.Client(
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_S), follow_redirects=False, trust_env=False
        )

    def query(self, promql: str, at: datetime) -> bytes:
        """An instant query. Raises HistoryAway."""
        return self._post("query", {"query": promql, "time": _stamp(at)})

    def query_range(self, promql: str, since: datetime, until: datetime, step_s: int) -> bytes:
        told = {"query": promql, "start": _stamp(since), "end": _stamp(until), "step": str(step_s)}
        return self._post("query_range", told)

    def names(self, since: datetime, until: datetime) -> bytes:
        """All names of series in that time."""
        told = {"start": _stamp(since), "end": _stamp(until)}
        return self._send(httpx.Request("GET", f"{self._url}/api/v1/label/__name__/values", params=told))

    def close(self) -> None:
        self._client.close()

    def _post(self, what: str, form: dict[str, str]) -> bytes:
        form = form | {"timeout": f"{self._timeout_s:g}s"}
        return self._send(httpx.Request("POST", f"{self._url}/api/v1/{what}", data=form))

    def _send(self, request: httpx.Request) -> bytes:
        request.headers["user-agent"] = f"healer/{__version__}"
        request.extensions = {"timeout": self._client.timeout.as_dict()}
        deadline = time.monotonic() + self._timeout_s
        try:
            if self._token_file is not None:
                request.headers["authorization"] = f"Bearer {self._token_file.read_text().strip()}"
            response = self._client.send(request, stream=True)
            try:
                return self._read(response, deadline)
            finally:
                response.close()
        except httpx.TimeoutException:
            raise HistoryAway(
                f"the Prometheus-compatible server gave no answer in {self._timeout_s:g} s"
            ) from None
        except httpx.HTTPError as error:
            raise HistoryAway(
                f"the Prometheus-compatible server cannot be reached: {_cause(error)}"
            ) from None
        except (httpx.InvalidURL, UnicodeError):
            raise HistoryAway("HEALER_PROMETHEUS_URL is no address that can be asked") from None
        except OSError as error:
            raise HistoryAway(f"HEALER_PROMETHEUS_TOKEN_FILE cannot be read: {error.strerror}") from None

    def _read(self, response: httpx.Response, deadline: float) -> bytes:
        """400 and 422 come with a JSON body that says why; of others nothing is known but the number."""
        chunks, size = [], 0
        for chunk in response.iter_raw():
            size += len(chunk)
            if size > ANSWER_BYTES_MAX:
                raise TooLong(f"the answer is larger than {ANSWER_BYTES_MAX} bytes: ask for less")
            if time.monotonic() > deadline:
                raise HistoryAway(f"the Prometheus-compatible server took longer than {self._timeout_s:g} s")
            chunks.append(chunk)
        if response.status_code not in (200, 400, 422):
            raise HistoryAway(f"the Prometheus-compatible server answered {response.status_code}")
        return b"".join(chunks)


class TooLong(HistoryAway):
    """The answer would be too long; the question can be cut."""


class PromqlHistory:
    """`healer.ports.pull.MetricHistory` of one cluster. For one thread."""

    name = "prometheus"

    def __init__(
        self,
        client: PromqlClient,
        catalogue: Catalogue,
        book: ColumnBook,
        cluster: str,
        matchers: str = "",
    ) -> None:
        """`matchers`: which of the server's series are this cluster's, as they stand in a selector."""
        self._matchers = matchers
        self._client, self._catalogue, self._book = client, catalogue, book
        self._translator = Translator(catalogue, book, cluster)
        self._names: tuple[float, list[str]] | None = None

    def between(
        self, since: datetime, until: datetime, known: Known, *, go_on: Callable[[], bool] = lambda: True
    ) -> list[Report]:
        # Raw samples, by a range selector: their own times, and no point that nobody measured. A query_range
        # would repeat each value for up to five minutes after its series ended.
        span_s = max(1, round((until - since).total_seconds()))
        _check(go_on)
        names = self._known_names(since)
        found: list[Report] = []
        for first in range(0, len(names), NAMES_TOGETHER):
            found += self._samples(names[first : first + NAMES_TOGETHER], span_s, until, known, go_on)
        return sorted(found, key=lambda one: one.at)

    def _samples(
        self, names: Sequence[str], span_s: int, until: datetime, known: Known, go_on: Callable[[], bool]
    ) -> list[Report]:
        _check(go_on)
        try:
            raw = self._client.query(f"{selector(names, self._matchers)}[{span_s}s]", until)
        except TooLong:
            if len(names) == 1:
                return []  # one name alone is too much: the windows fill without it
            half = len(names) // 2
            parts = (names[:half], names[half:])
            return [one for part in parts for one in self._samples(part, span_s, until, known, go_on)]
        return self._reports(raw, known, until)

    def _reports(self, raw: bytes, known: Known, until: datetime) -> list[Report]:
        try:
            measured = self._translator.queried(raw, known, until)
        except BadBody as error:
            raise HistoryAway(str(error)) from None
        # When they came to the server is not known; they were measured then.
        return [msgspec.structs.replace(one, arrived_at=one.at) for one in measured.reports]

    def _known_names(self, since: datetime) -> list[str]:
        """The catalogue's names that the server has."""
        if self._names is None or time.monotonic() - self._names[0] > NAMES_S:
            try:
                told = names_told(self._client.names(since, since + timedelta(minutes=15)))
            except BadBody as error:
                raise HistoryAway(str(error)) from None
            wanted = arriving(self._catalogue)
            self._names = (time.monotonic(), sorted(name for name in set(told) if name in wanted))
        return self._names[1]

    def node(
        self, node: str, signal: str, since: datetime, until: datetime, step_s: int, known: Known
    ) -> Points:
        told = self._catalogue.signals.get(signal)
        names = names_of(told) if told is not None else []
        if not names:
            return {}
        raw = self._client.query_range(of_node(names, node, self._matchers), since, until, step_s)
        try:
            lines = self._translator.charted(raw, known)
        except BadBody as error:
            raise HistoryAway(str(error)) from None
        own = {number: line for ((_, where), number), line in lines.items() if where == node}
        return {
            column: list(zip(*(one.tolist() for one in own[number]), strict=True))
            for number, column in self._book.columns(own).items()
            if column.signal == signal
        }


def _check(go_on: Callable[[], bool]) -> None:
    if not go_on():
        raise HistoryAway("the time is over in which the Prometheus-compatible server is asked")


def _stamp(at: datetime) -> str:
    return f"{at.timestamp():.3f}"


def _cause(error: httpx.HTTPError) -> str:
    return (str(error) or type(error).__name__)[:200]
