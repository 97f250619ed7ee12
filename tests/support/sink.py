"""A real HTTP server on 127.0.0.1 that takes webhooks and gives scripted answers."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

from tests.support.http_stand_in import Quiet, running


class Sink:
    """`asked` holds (headers, body) of each request; `answers` the next answers: (status, headers, body).

    With no answer left it gives `status` and `content`. None keeps silent until the sink is closed.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, str], bytes]] = []
        self.answers: deque[tuple[int, dict[str, str], bytes] | None] = deque()
        self.closing = threading.Event()
        self.url = ""

    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.asked]


@contextmanager
def serve_sink(status: int = 204, content: bytes = b"") -> Iterator[Sink]:
    sink, usual = Sink(), (status, dict[str, str](), content)

    class Handler(Quiet):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            sink.asked.append((headers | {":path": self.path}, body))
            answer = sink.answers.popleft() if sink.answers else usual
            if answer is None:
                sink.closing.wait(30)
                self.close_connection = True
                return
            status, headers, content = answer
            self.give(status, headers, content)

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler), sink.closing) as port:
        sink.url = f"http://127.0.0.1:{port}/hooks/not-to-be-told"
        yield sink
