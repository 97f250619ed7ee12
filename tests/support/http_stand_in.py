"""What HTTP stand-ins share: a handler that says nothing by itself, and its server in a thread."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Quiet(BaseHTTPRequestHandler):
    def give(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@contextmanager
def running(server: ThreadingHTTPServer, closing: threading.Event) -> Iterator[int]:
    """Yields its port. At the end `closing` is set first: handlers that keep silent wait for it."""
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
