"""A scripted slurmrestd on 127.0.0.1: for releases that no machine of ours runs.

It behaves as the real one at the door: a request without a token, or with one that is not among `tokens`, and
an address that its release does not have are turned away as 24.11 does it. Its other answers are in
`answers`; anything that is not there is an address it does not have.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from tests.support.slurm_shapes import Shape

TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdW4iOiJoZWFsZXIifQ.c2lnbmVk"


class Asked(NamedTuple):
    """`path` is what follows the version: `/nodes`. `headers` in lower case, `body` as JSON or None."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class Answer(NamedTuple):
    """An answer: HTTP's status and the body."""

    status: int
    body: bytes


class RestServer:
    """`release` may be changed while it runs: slurmrestd came back as another one; `cluster` too: the address
    leads elsewhere."""

    def __init__(self, release: str) -> None:
        self.release = release
        self.cluster = "pod1"
        self.tokens = {TOKEN}
        self.answers: dict[tuple[str, str], Answer] = {}
        self.asked: list[Asked] = []
        self.url = ""
        #: What a proxy puts before every address.
        self.prefix = ""
        #: Set: requests are taken and answered only when the test is over.
        self.silent = threading.Event()
        #: The same for one method alone.
        self.silent_to = ""
        self.over = threading.Event()

    @property
    def shape(self) -> Shape:
        return Shape(self.release)

    @property
    def writes(self) -> list[tuple[str, str, Any]]:
        return [(each.method, each.path, each.body) for each in self.asked if each.method != "GET"]

    def set_answer(self, method: str, path: str, body: bytes | None = None, status: int = 200) -> None:
        """`body` None: an answer of this release without data and errors."""
        self.answers[method, path] = Answer(status, self.shape.answer() if body is None else body)

    def refuse(self, method: str, path: str, number: int, error: str, status: int = 500) -> None:
        problem = {"description": "Failure", "error_number": number, "error": error, "source": "_f"}
        self.set_answer(method, path, self.shape.answer(errors=[problem]), status)

    def answer(self, asked: Asked, version: str) -> Answer:
        if asked.headers.get("x-slurm-user-token") is None:
            return Answer(401, b"Authentication failure")
        if asked.path == "/openapi/v3":
            paths = {f"/slurm/{self.shape.parser}/ping/": {}, "/slurmdb/v0.0.38/jobs/": {}}
            return Answer(200, json.dumps({"openapi": "3.0.3", "paths": paths}).encode())
        if version != self.shape.parser:
            return Answer(404, b"Unable find requested URL. Please view /openapi/v3 for API reference.")
        if asked.path == "/ping":
            return Answer(
                200, self.shape.answer(pings=[{"hostname": "ctl", "pinged": "UP", "mode": "primary"}])
            )
        if asked.headers["x-slurm-user-token"] not in self.tokens:
            problem = {"error_number": 1007, "error": "Protocol authentication error"}
            return Answer(511, self.shape.answer(errors=[problem]))
        return self.answers.get((asked.method, asked.path), Answer(404, b"Unable find requested URL."))


@contextmanager
def serve_rest(release: str) -> Iterator[RestServer]:
    rest = RestServer(release)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        #: Headers and body are two writes: without this the second waits for an acknowledgement.
        disable_nagle_algorithm = True

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            below = (
                parts.path.removeprefix(rest.prefix) if parts.path.startswith(rest.prefix) else "/elsewhere"
            )
            versioned = below.startswith("/slurm/")
            version, _, path = (
                below.removeprefix("/slurm/").partition("/") if versioned else ("", "", below[1:])
            )
            raw = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(
                self.command,
                f"/{path}",
                dict(parse_qsl(parts.query)),
                headers,
                json.loads(raw) if raw else None,
            )
            rest.asked.append(asked)
            if rest.silent.is_set() or rest.silent_to == self.command:
                rest.over.wait(60)
                self.close_connection = True
                return
            status, body = rest.answer(asked, version)
            body = body.replace(b'"pod1"', json.dumps(rest.cluster).encode())
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = handle_any

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    rest.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield rest
    finally:
        rest.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
