"""Queries a Prometheus-compatible server: Prometheus itself, VictoriaMetrics, Mimir, Thanos.

Every answer is bounded in bytes and time. Errors never contain the address or the token.
"""

import time
from datetime import datetime
from pathlib import Path

import httpx

from healer import __version__
from healer.ports.measurements import ANSWER_BYTES_MAX, AnswerTooLong, HistoryAway
from healer.text import say

#: The time-out of one query.
TIMEOUT_S = 10.0
CONNECT_S = 3.0


class PromqlClient:
    """`healer.ports.measurements.PromqlServer`. Each call may come from another thread."""

    def __init__(self, url: str, token_file: Path | None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._url, self._token_file, self._timeout_s = url.rstrip("/"), token_file, timeout_s
        self._client = httpx.Client(
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_S), follow_redirects=False, trust_env=False
        )

    def query(self, promql: str, at: datetime) -> bytes:
        """An instant query. Raises HistoryAway."""
        return self._post("query", {"query": promql, "time": _stamp(at)})

    def query_range(self, promql: str, since: datetime, until: datetime, step_s: int) -> bytes:
        form = {"query": promql, "start": _stamp(since), "end": _stamp(until), "step": str(step_s)}
        return self._post("query_range", form)

    def names(self, since: datetime, until: datetime) -> bytes:
        """The names of all series in that period."""
        period = {"start": _stamp(since), "end": _stamp(until)}
        return self._send(httpx.Request("GET", f"{self._url}/api/v1/label/__name__/values", params=period))

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
            raise HistoryAway(say("adapters.prometheus_silent", seconds=self._timeout_s)) from None
        except httpx.HTTPError as error:
            raise HistoryAway(say("adapters.prometheus_unreached", error=_cause(error))) from None
        except (httpx.InvalidURL, UnicodeError):
            raise HistoryAway(say("adapters.prometheus_url")) from None
        except OSError as error:
            raise HistoryAway(say("adapters.prometheus_token", error=error.strerror)) from None

    def _read(self, response: httpx.Response, deadline: float) -> bytes:
        """The body, also of 400 and 422, whose JSON says why. Raises HistoryAway for other errors."""
        chunks, size = [], 0
        for chunk in response.iter_raw():
            size += len(chunk)
            if size > ANSWER_BYTES_MAX:
                raise AnswerTooLong(say("signals.answer_too_large", most=ANSWER_BYTES_MAX))
            if time.monotonic() > deadline:
                raise HistoryAway(say("adapters.prometheus_slow", seconds=self._timeout_s))
            chunks.append(chunk)
        if response.status_code not in (200, 400, 422):
            raise HistoryAway(say("adapters.prometheus_status", status=response.status_code))
        return b"".join(chunks)


def _stamp(at: datetime) -> str:
    return f"{at.timestamp():.3f}"


def _cause(error: httpx.HTTPError) -> str:
    return (str(error) or type(error).__name__)[:200]
