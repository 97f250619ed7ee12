"""Remote calls of one object from several processes: a server on a unix socket, and its client.

The served class defines the calls and the types of arguments and results. Each line is one JSON value:
`{"call": NAME, "args": [...], "kwargs": {...}}` calls, `{"ok": VALUE}` or `{"error": KIND, "text": ...,
"code": ...}` answers. The socket's mode is 0600.
"""

import contextlib
import functools
import inspect
import os
import signal
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from healer.text import NO_WORDS, Said, read_said, said_by, say, stored_json, to_text


class Gone(Exception):
    """The server did not answer in time. With `sent` the call may have been carried out."""

    def __init__(self, text: Said, *, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent


class CallFailed(Exception):
    """The server answered with an error: the name of its class, its text, its code if any."""

    def __init__(self, kind: str, text: Said, code: int | None) -> None:
        super().__init__(text)
        self.kind, self.text, self.code = kind, text, code


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    call: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class _Reply(msgspec.Struct, omit_defaults=True):
    ok: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    text: Said = NO_WORDS
    code: int | None = None


@functools.cache
def _calls(served: type) -> dict[str, dict[str, Any]]:
    """Public methods of the class by name, with the types of their arguments and results."""
    methods = inspect.getmembers(served, inspect.isfunction)
    return {name: get_type_hints(method) for name, method in methods if not name.startswith("_")}


class CallServer:
    """Serves the methods of `target` until `stop`, or those of them that the class `served` has. Sends
    `errors` and errors in arguments to the client."""

    def __init__(
        self,
        target: object,
        socket_path: Path | str,
        errors: tuple[type[Exception], ...],
        served: type | None = None,
        mode: int = 0o600,
    ) -> None:
        calls = _calls(served or type(target))
        self.path = Path(socket_path)
        self.path.unlink(missing_ok=True)

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                # A client may disconnect at any time.
                with contextlib.suppress(ConnectionError):
                    for line in self.rfile:
                        self.wfile.write(_answer(target, calls, errors, line) + b"\n")

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128  # a worker's threads connect at the same moment

        # Renamed once it listens, so that a process that waits for the file can connect at once.
        unnamed = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        unnamed.unlink(missing_ok=True)
        self._server = Server(str(unnamed), Handler)
        unnamed.chmod(mode)
        unnamed.rename(self.path)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.path.unlink(missing_ok=True)
        self._thread.join()

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT."""
        signals = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        self.start()
        signal.sigwait(signals)
        self.stop()


class CallClient:
    """Has the methods of the class `served`; `error_of` makes the errors that they raise.

    Concurrent calls have a connection each, opened when first needed and reused. A failed call is never sent
    twice; after it all connections are reopened.
    """

    def __init__(
        self,
        served: type,
        socket_path: Path | str,
        timeout_s: float,
        error_of: Callable[["Gone | CallFailed"], Exception],
    ) -> None:
        self._served, self._error_of = served, error_of
        self._path = str(socket_path)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []

    def close(self) -> None:
        """Closes the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in _calls(self._served):
            raise AttributeError(name)
        return functools.partial(self._call, name)

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        answer = _calls(self._served).get(name, {}).get("return")
        try:
            return msgspec.json.decode(self._request(name, args, kwargs), type=answer, dec_hook=read_said)
        except (Gone, CallFailed) as error:
            raise self._error_of(error) from error

    def _request(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> msgspec.Raw:
        line = msgspec.json.encode(_Request(name, list(args), kwargs), enc_hook=to_text) + b"\n"
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        sent = connection is not None
        try:
            connection = connection or _Connection(self._path, self._timeout_s)
            sent = True
            answer = connection.request(line)
        except OSError as error:
            if connection is not None:
                connection.close()
            self.close()
            raise Gone(
                say("simulation.socket_silent", path=self._path, error=str(error)), sent=sent
            ) from error
        with self._lock:
            self._idle.append(connection)
        reply = msgspec.json.decode(answer, type=_Reply, dec_hook=read_said)
        if reply.error:
            raise CallFailed(reply.error, reply.text, reply.code)
        return reply.ok


class _Connection:
    def __init__(self, path: str, timeout_s: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._file = self._socket.makefile("rwb")

    def request(self, line: bytes) -> bytes:
        self._file.write(line)
        self._file.flush()
        answer = self._file.readline()
        if not answer.endswith(b"\n"):
            raise ConnectionError("it hung up")
        return answer

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self._socket.close()


def _answer(
    target: object, calls: Mapping[str, dict[str, Any]], errors: tuple[type[Exception], ...], line: bytes
) -> bytes:
    try:
        request = msgspec.json.decode(line, type=_Request)
        types = calls.get(request.call)
        if types is None:
            raise ValueError(f"no call named {request.call}")
        method = getattr(target, request.call)
        given = inspect.signature(method).bind(*request.args, **request.kwargs)
        for name, value in given.arguments.items():
            if isinstance(kind := types.get(name), type) and issubclass(kind, msgspec.Struct):
                given.arguments[name] = msgspec.convert(value, kind)
        value = method(*given.args, **given.kwargs)
        reply = _Reply(ok=msgspec.Raw(stored_json(value)))
    except (ValueError, TypeError) as error:
        reply = _Reply(error="ValueError", text=said_by(error))
    except errors as error:
        reply = _Reply(error=type(error).__name__, text=said_by(error), code=getattr(error, "code", None))
    return stored_json(reply)
