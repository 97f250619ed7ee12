"""One slurmrestd over HTTP: its address, token, REST version, and errors.

A request is sent a second time only in two cases, in which Slurm did nothing: it refused the token (then with
a new one), or it does not know the address because it was upgraded (then at the new version's address). A GET
never changes anything (d.8, 25).
"""

import re
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn, Protocol
from urllib.parse import quote, urlencode, urlsplit

import httpcore
import msgspec

from healer.adapters.slurm import parse_json, process, rest_answers
from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.commands import only_reading
from healer.adapters.slurm.rest_answers import Answer
from healer.adapters.slurm.rest_token import ends_at
from healer.adapters.webhook import cause_of
from healer.model.slurm_spelling import to_datetime
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable
from healer.text import Said, said_by, say, to_text

#: The time-out of version detection, which takes milliseconds: a hanging slurmrestd must leave time for the
#: next adapter.
_FOUND_S = 2.0
#: HTTP statuses of requests that were refused before they started.
_REFUSED_EARLY = frozenset({401, 403, 407})

#: Requests are sent in pieces, so that a slow receiver hits the time-out.
_PIECE_BYTES = 64 * 1024

_USER = re.compile(r"[A-Za-z0-9_.@$-]{1,128}")
_DIGITS = re.compile(r"/slurm/v0\.0\.(\d+)/")


class TokenRefused(SchedulerUnavailable):
    """Slurm answers, and does not take this token."""


class Token(Protocol):
    def current(self, now: datetime) -> str: ...
    def refused(self, token: str) -> None: ...


class Request(NamedTuple):
    """`path` after the version (`/nodes`); `patience` multiplies the time-out."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    query: Mapping[str, str] | None = None
    patience: float = 1

    @property
    def reads(self) -> bool:
        return self.method == "GET"


class Found(NamedTuple):
    """The detected slurmrestd: 42 of `v0.0.42`, its release and cluster."""

    number: int
    slurm: rest_answers.Slurm

    @property
    def shape(self) -> str:
        return f"v0.0.{self.number}"


class ReadLink:
    """Requests that read, and no other. Safe for threads.

    `url`: `http://host:port`, `https://host/prefix` or `unix:///path`.
    `cluster`: the expected cluster; None: the first one that answers. Answers of another cluster are errors.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None,
        token: Token,
        timeout_s: float,
        cluster: str | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if user is not None and not _USER.fullmatch(user):
            raise ValueError(say("slurm.rest_user", user=repr(user)))
        self._user, self._token, self._timeout_s, self._now = user, token, timeout_s, now
        self.where, self._http = url, RestHttp(url)
        self._lock = threading.Lock()
        self._meant = cluster
        self._found: Found | None = None
        self._finding: Future[Found] | None = None

    def close(self) -> None:
        self._http.close()

    def found(self) -> Found:
        """Detected once, and again when slurmrestd changes. Concurrent callers share one detection and its
        result or error."""
        with self._lock:
            if self._found is not None:
                return self._found
            finding, first = self._finding, self._finding is None
            if finding is None:
                finding = self._finding = Future()
        if first:
            self._find(finding)
        try:
            return finding.result()
        except SchedulerUnavailable as error:
            raise type(error)(said_by(error), sent=False) from error

    def _find(self, finding: Future[Found]) -> None:
        try:
            found = self._discover()
        except BaseException as error:
            with self._lock:
                self._finding = None
            finding.set_exception(error)
        else:
            with self._lock:
                self._found, self._finding = found, None
                self._meant = self._meant or found.slurm.cluster or None
            finding.set_result(found)

    def call(self, request: Request, action: Said, right: str = "") -> Answer:
        """The answer, without errors. `action` ("read all nodes") and `right`, the right that it needs, are
        for error messages."""
        answer = self.ask(request)
        self._judge(answer, words.not_done(action), right, wrote=request.body is not None)
        return answer

    def ask(self, request: Request) -> Answer:
        """Like `call`, but the answer may contain errors."""
        if not request.reads:
            raise ValueError(f"{request.method} {request.path} is no request that only reads")
        return self._asked(request, self._expected(self.found()))

    def _asked(self, request: Request, found: Found) -> Answer:
        answer = self._with_token(request, found)
        if answer.unknown_address:
            self._forget(found)
            newer = self._expected(self.found())
            if newer.number != found.number:
                answer = self._with_token(request, newer)
        elif answer.slurm.release and answer.slurm != found.slurm:
            self._forget(found)
        self._check_cluster(answer.slurm.cluster, sent=not request.reads)
        return answer

    def _expected(self, found: Found) -> Found:
        self._check_cluster(found.slurm.cluster, sent=False)
        return found

    def _check_cluster(self, cluster: str, *, sent: bool) -> None:
        if cluster and self._meant not in (None, cluster):
            why = say("slurm.rest_other_cluster", where=self.where, cluster=cluster, meant=self._meant)
            raise SchedulerUnavailable(why, sent=sent)

    def _discover(self) -> Found:
        """The newest version that both sides know, found by trying: slurmrestd's list of versions is slow,
        and a proxy may block it."""
        self._token.current(self._now())  # before the bound: a token command has a time-out of its own
        with process.within(min(_FOUND_S, self._timeout_s)):
            return self._newest()

    def _newest(self) -> Found:
        readable = [int(shape.rpartition(".")[2]) for shape in parse_json.DATA_PARSERS]
        for number in readable:
            answer = self._with_token(Request("GET", "/ping"), Found(number, rest_answers.Slurm()))
            if answer.envelope is not None and answer.slurm.release:
                return Found(number, answer.slurm)
            if not answer.unknown_address:
                self._judge(answer, say("slurm.rest_no_release"), "", wrote=False)
        listed = self._with_token(Request("GET", "/openapi/v3"))
        offered = {int(number) for number in _DIGITS.findall(listed.body.decode("utf-8", "replace"))}
        spoken = f"v0.0.{readable[-1]} to v0.0.{readable[0]}"
        other = ", ".join(f"v0.0.{number}" for number in sorted(offered)) or say(
            "slurm.none_at", where=self.where
        )
        raise SchedulerUnavailable(say("slurm.rest_versions", spoken=spoken, offered=other), sent=False)

    def _forget(self, found: Found) -> None:
        with self._lock:
            if self._found is found:
                self._found = None

    def _with_token(self, request: Request, found: Found | None = None) -> Answer:
        """Sends the request, with `found` at the address of its version."""
        if found:
            request = request._replace(path=f"/slurm/{found.shape}{request.path}")
        token = self._token.current(self._now())
        answer = self._send(request, token)
        if not answer.token_refused:
            return answer
        self._token.refused(token)
        other = self._token.current(self._now())
        if other != token:
            answer = self._send(request, other)
        if answer.token_refused:
            self._raise_token_refused(answer, other)
        return answer

    def _raise_token_refused(self, answer: Answer, token: str) -> NoReturn:
        text = next((problem.error for problem in answer.problems if problem.error), "authentication failure")
        end = ends_at(token)
        at = to_datetime(end) if end is not None and end < self._now().timestamp() else None
        why = say("slurm.token_refused", words=text)
        if at:
            why = say("slurm.token_ended", when=f"{at:%Y-%m-%d %H:%M:%SZ}", words=text)
        raise TokenRefused(why, sent=False)

    def _send(self, request: Request, token: str) -> Answer:
        headers = {"X-SLURM-USER-TOKEN": token, "Accept": "application/json", "Accept-Encoding": "identity"}
        if self._user is not None:
            headers["X-SLURM-USER-NAME"] = self._user
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        # A quarter of the time-out for the connection, the rest for the answer.
        timeout_s, connect_s = self._timeout_s * request.patience, self._timeout_s / 4
        status, raw = self._http.ask(request, headers, timeout_s=timeout_s, connect_s=connect_s)
        # A proxy's error page may show the request with all its headers.
        return rest_answers.answer(status, raw.replace(token.encode(), "…".encode()))

    def _judge(self, answer: Answer, what: Said, right: str, *, wrote: bool) -> None:
        """Raises the error in the answer, if there is one (HTTP 200 may contain one: d.8, 24)."""
        if answer.problems:
            # Of several errors, one with a number is more precise.
            problem = max(answer.problems, key=lambda problem: bool(problem.error_number))
            raise rest_answers.error_of(problem, what, right)
        if answer.status != 304 and (answer.envelope is None or answer.status >= 400):
            text = " ".join(answer.body[:200].decode("utf-8", "replace").split()) or say("slurm.nothing")
            where, status = self.where, answer.status
            why = say("slurm.rest_not_slurm", what=what, where=where, status=status, words=text)
            raise SchedulerUnavailable(why, sent=status not in _REFUSED_EARLY)
        warnings = [warning.description or "" for warning in answer.warnings]
        ignored = [text for text in warnings if "unknown field" in text]
        if wrote and ignored:
            raise SchedulerRefused(say("slurm.rest_ignored", what=what, warning=ignored[0]))


class RestLink(ReadLink):
    """Requests that change Slurm too. Before each of them the address must have answered as this cluster."""

    def ask(self, request: Request) -> Answer:
        return super().ask(request) if request.reads else self._asked(request, self._checked())

    def _checked(self) -> Found:
        """Asks again before a write: a proxy or a shared address may have moved to another cluster."""
        with only_reading():
            found = self.found()
            answer = self._with_token(Request("GET", "/ping"), found)
            if answer.unknown_address or (answer.slurm.release and answer.slurm != found.slurm):
                self._forget(found)
                found = self.found()
            elif answer.envelope is None:
                self._judge(answer, say("slurm.rest_no_cluster_name"), "", wrote=False)
            return self._expected(found)


def in_path(text: str) -> str:
    """One part of a path, quoted."""
    return quote(text, safe="")


# --- HTTP ------------------------------------------------------------------------------------------------


class RestHttp:
    """A connection pool with a time bound over each whole exchange. Safe for threads. Raises ValueError for
    an invalid `url`.

    httpcore instead of httpx, which only bounds each read: a peer could send one header every second for
    ever. Here the remaining time of `process.within` bounds each wait.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise ValueError(say("slurm.rest_address_secret"))
        uds, base = None, url
        if parts.scheme == "unix":
            if parts.netloc or not parts.path.startswith("/"):
                raise ValueError(say("slurm.rest_address_socket", url=repr(url)))
            uds, base = parts.path, "http://slurmrestd"
        elif parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(say("slurm.rest_address_form", url=repr(url)))
        self._where, self._base = url, base.rstrip("/")
        # No proxy of the environment and no redirects: the token goes only to the configured address. The
        # system's certificates, or those of SSL_CERT_FILE, are loaded (20 ms) only for TLS.
        self._pool = httpcore.ConnectionPool(
            ssl_context=ssl.create_default_context() if parts.scheme == "https" else None,
            max_connections=100,
            max_keepalive_connections=20,
            keepalive_expiry=5,
            uds=uds,
            network_backend=_Backend(),
        )

    def close(self) -> None:
        self._pool.close()

    def ask(
        self, request: Request, headers: Mapping[str, str], *, timeout_s: float, connect_s: float
    ) -> tuple[int, bytes]:
        """HTTP status and body. Raises SchedulerUnavailable if there is no answer within `timeout_s`."""
        url = self._base + request.path + (f"?{urlencode(request.query)}" if request.query else "")
        content = None if request.body is None else msgspec.json.encode(request.body, enc_hook=to_text)
        with process.within(timeout_s):
            left_s = process.left_s(timeout_s)
            if not left_s:
                raise SchedulerUnavailable(say("slurm.no_time_for_rest"), sent=False)
            first_s = min(connect_s, left_s)
            limits = {"connect": first_s, "pool": first_s, "read": left_s, "write": left_s}
            try:
                with self._pool.stream(
                    request.method, url,
                    headers=list(headers.items()), content=content, extensions={"timeout": limits},
                ) as response:  # fmt: skip
                    return response.status, _read_body(response)
            except (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout) as error:
                text = say("slurm.rest_unreachable", where=self._where, error=cause_of(error))
                raise SchedulerUnavailable(text, sent=False) from None
            except httpcore.TimeoutException:
                why = say("slurm.no_answer", program="slurmrestd", timeout_s=left_s)
                raise SchedulerUnavailable(why) from None
            except (httpcore.NetworkError, httpcore.ProtocolError) as error:
                raise SchedulerUnavailable(say("slurm.rest_broke_off", error=cause_of(error))) from None


def _read_body(response: httpcore.Response) -> bytes:
    """The body, bounded in size."""
    parts, size = [], 0
    for part in response.iter_stream():
        parts.append(part)
        size += len(part)
        if size > process.MOST_BYTES:
            raise SchedulerUnavailable(say("slurm.rest_too_much", most=process.MOST_BYTES))
    return b"".join(parts)


class _Backend(httpcore.NetworkBackend):
    """Sockets whose waits are limited by the bound of the call."""

    def __init__(self) -> None:
        self._system = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left_s = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._system.connect_tcp(host, port, left_s, local_address, socket_options))

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        left_s = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._system.connect_unix_socket(path, left_s, socket_options))


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _PIECE_BYTES):
            piece = buffer[start : start + _PIECE_BYTES]
            self._stream.write(piece, _left(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left_s = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left_s))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _left(most_s: float | None, over: type[httpcore.TimeoutException]) -> float:
    left_s = process.left_s(most_s)
    if not left_s:
        raise over("no time is left")
    return left_s
