"""HTTP to one slurmrestd: connections that are kept, and one bound in time over each whole exchange.

httpcore and not httpx: httpx bounds each read, and a peer that sends a header every second is read for ever.
Here each wait is cut by what is left of `bounds.within`.
"""

import ssl
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpcore

from healer.adapters.slurm import bounds, process
from healer.ports.scheduling import SchedulerUnavailable

#: Sent in pieces, so that who takes them slowly is noticed.
_PIECE_BYTES = 64 * 1024


class RestHttp:
    """Safe for threads. `url`: `http://host:port`, `https://host/prefix` or `unix:///path`; ValueError names
    what is wrong with it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise ValueError(
                "slurmrestd's address must hold no user or password: the token has its own setting"
            )
        uds, base = None, url
        if parts.scheme == "unix":
            if parts.netloc or not parts.path.startswith("/"):
                raise ValueError(f"slurmrestd's address {url!r}: a socket is unix:///path")
            uds, base = parts.path, "http://slurmrestd"
        elif parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(
                f"slurmrestd's address {url!r} is none of http://host:port, https://host, unix:///path"
            )
        self._where, self._base = url, base.rstrip("/")
        # No proxy of the environment and no redirect: a token goes where the site's address says, and nowhere
        # else. The system's certificates, or those of SSL_CERT_FILE; without TLS none are read (20 ms).
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
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        content: bytes | None,
        *,
        timeout_s: float,
        connect_s: float,
    ) -> tuple[int, bytes]:
        """HTTP's status and the body. SchedulerUnavailable where there is none within `timeout_s`."""
        url = self._base + path + (f"?{urlencode(query)}" if query else "")
        with bounds.within(timeout_s):
            left_s = bounds.left_s(timeout_s)
            if not left_s:
                raise SchedulerUnavailable("no time was left to ask slurmrestd.", sent=False)
            first_s = min(connect_s, left_s)
            limits = {"connect": first_s, "pool": first_s, "read": left_s, "write": left_s}
            try:
                with self._pool.stream(
                    method,
                    url,
                    headers=list(headers.items()),
                    content=content,
                    extensions={"timeout": limits},
                ) as response:
                    return response.status, _whole(response)
            except (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout) as error:
                text = f"slurmrestd at {self._where} cannot be reached: {_cause(error)}."
                raise SchedulerUnavailable(text, sent=False) from None
            except httpcore.TimeoutException:
                raise SchedulerUnavailable(f"slurmrestd did not answer within {left_s:.3g} s.") from None
            except (httpcore.NetworkError, httpcore.ProtocolError) as error:
                raise SchedulerUnavailable(f"slurmrestd broke off: {_cause(error)}.") from None


def _whole(response: httpcore.Response) -> bytes:
    """The body, bounded in size."""
    parts, size = [], 0
    for part in response.iter_stream():
        parts.append(part)
        size += len(part)
        if size > process.MOST_BYTES:
            raise SchedulerUnavailable(f"slurmrestd answered with more than {process.MOST_BYTES} bytes.")
    return b"".join(parts)


def _cause(error: Exception) -> str:
    """The system's own words (`Connection refused`); httpcore's where there are none."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


class _Backend(httpcore.NetworkBackend):
    """The system's sockets, each wait on them cut by the bound of the call."""

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
    left_s = bounds.left_s(most_s)
    if not left_s:
        raise over("no time is left")
    return left_s
