"""Exporters to be scraped, good and bad, on a real socket; and a scraper over real adapters."""

import asyncio
import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import sqlalchemy as sa

from healer.adapters.postgres.arrivals import PostgresLosses, PostgresScrapes, PostgresUnknownSeries
from healer.adapters.postgres.inbox import PostgresInbox, PostgresSignals
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.sample_reads import PostgresSignalReads
from healer.adapters.postgres.samples import PostgresColumns, PostgresSamples
from healer.adapters.pull.fetch import HttpFetch
from healer.adapters.system_clock import SystemClock
from healer.api.quotas import Losses, Tally
from healer.model import Part, Ruleset, ScrapeRules, ScrapeState, SlurmNode, SlurmSnapshot, TargetState
from healer.processes.scraper import Parts, Scraper
from tests.support.loop import CLUSTER, rules_in

PAGE = 'node_load1 3.5\nDCGM_FI_DEV_GPU_TEMP{gpu="2"} 61\nnode_strange_thing 1\n'


class Exporter(BaseHTTPRequestHandler):
    """`/metrics` is a page; the other paths are what a bad exporter may do."""

    protocol_version = "HTTP/1.1"
    server: "Server"  # type: ignore[assignment]

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("authorization", "")))
        getattr(self, "_" + self.path.strip("/").replace("-", "_"), self._missing)()

    def _metrics(self) -> None:
        self._send(self.server.page.encode())

    def _packed(self) -> None:
        self._send(gzip.compress(self.server.page.encode()), **{"Content-Encoding": "gzip"})

    def _bomb(self) -> None:
        """Some kB that unpack to 200 MB."""
        packer = gzip.compress(bytes(10 * 2**20))
        self._send(packer * 20, **{"Content-Encoding": "gzip"})

    def _garbage(self) -> None:
        self._send(b"\xff\xfe\x00garbage" * 100)

    def _broken(self) -> None:
        self.send_error(503)

    def _moved(self) -> None:
        self._send(b"", 302, Location="/metrics")

    def _missing(self) -> None:
        self.send_error(404)

    def _endless(self) -> None:
        """As much as is taken, in chunks of 64 kB and without a length."""
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            while not self.server.over.is_set():
                self.wfile.write(b"# " + b"x" * 65_533 + b"\n")
                self.server.sent += 65_536
        except OSError:
            pass
        self.close_connection = True

    def _huge(self) -> None:
        """Says that it sends 1 GB."""
        self.send_response(200)
        self.send_header("Content-Length", str(2**30))
        self.end_headers()
        self.close_connection = True

    def _stalled(self) -> None:
        """A part of the answer, then nothing."""
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"node_load1 ")
        self.wfile.flush()
        self.server.over.wait(60)
        self.close_connection = True

    def _send(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1000

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Exporter)
        self.page = PAGE
        self.asked: list[tuple[str, str]] = []
        self.sent = 0
        self.over = threading.Event()

    @property
    def at(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: Any) -> None:
        """A client that goes away is no error here."""


@contextmanager
def exporter() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def closed_port() -> str:
    """An address without a listener."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def pod(*names: str) -> SlurmSnapshot:
    nodes = {name: SlurmNode(name=name, state=("IDLE",), gpus=8) for name in names}
    return SlurmSnapshot(cluster=CLUSTER, taken_at=datetime.now(UTC), nodes=nodes, jobs={})


class Pulled:
    """One cluster with a scraper at work in a thread. `rules` may be replaced while it runs."""

    def __init__(
        self,
        database: sa.Engine,
        scrape: ScrapeRules,
        *,
        nodes: tuple[str, ...] = ("gpu0001",),
        ask: Callable[[str, datetime], bytes] | None = None,
        fetch: Callable[[], HttpFetch] = HttpFetch,
    ) -> None:
        self.rules: Ruleset = rules_in(scrape=scrape)
        self._stop = threading.Event()
        self._fetch = fetch
        self.snapshots = PostgresSnapshots(database)
        self.snapshots.put(pod(*nodes))
        columns = PostgresColumns(database)
        self.reads = PostgresSignalReads(database, columns)
        self.book = PostgresScrapes(database)
        self.losses = PostgresLosses(database)
        self.unknown = PostgresUnknownSeries(database)
        clock = SystemClock()
        self._parts = Parts(
            cluster=CLUSTER,
            rules=lambda: self.rules,
            fetch=None,  # type: ignore[arg-type] - made in its own loop
            ask=ask,
            snapshots=self._shown,
            listed_gpus=PostgresInbox(database, CLUSTER).listed_gpus,
            samples=PostgresSamples(database, CLUSTER),
            columns=columns,
            signals=PostgresSignals(database),
            book=self.book,
            tally=Tally(self.unknown),
            losses=Losses(self.losses, clock.now),
            clock=clock,
        )
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def _shown(self) -> dict[str, SlurmSnapshot]:
        found = self.snapshots.latest(CLUSTER)
        return {CLUSTER: found} if found else {}

    async def _run(self) -> None:
        self._parts.fetch = fetch = self._fetch()
        try:
            await Scraper(self._parts, look_s=0.2, state_s=0.2).run(self._stop.is_set)
        finally:
            await fetch.close()

    def __enter__(self) -> "Pulled":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def scrape_state(self) -> ScrapeState | None:
        return next(iter(self.book.states([CLUSTER])), None)

    def target(self, end: str) -> TargetState | None:
        """The state of the target whose address ends so."""
        state = self.scrape_state()
        return next((one for one in state.targets if one.target.endswith(end)), None) if state else None

    def values(self, node: str) -> dict[tuple[str, Part], float]:
        """The newest value of each series of the node."""
        reports, columns = self.reads.node_signals(CLUSTER, node, datetime.fromtimestamp(0, UTC))
        return {
            (columns[number].signal, columns[number].part): value
            for report in reports
            for number, value in zip(report.columns.tolist(), report.values.tolist(), strict=True)
        }
