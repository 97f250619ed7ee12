"""slurmrestd's address leads elsewhere, hangs, drips, shows secrets, or answers with troubles of its own."""

import contextlib
import http.server
import socket
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest

from healer.adapters.slurm.preferred import PreferredScheduler
from healer.adapters.slurm.rest import RestScheduler
from healer.adapters.slurm.rest_link import Request, RestHttp
from healer.adapters.system_clock import SystemClock
from healer.ports.scheduling import SchedulerError, SchedulerUnavailable, UnknownNode
from healer.sim.sim_slurm import SimScheduler
from tests.support.rest_server import TOKEN, RestServer, serve_rest

pytestmark = pytest.mark.heavy

REASON = "healer:gpu-lost inc:1a2b3c4d"


class StandingToken:
    def __init__(self, text: str = TOKEN) -> None:
        self.text = text

    def current(self, now: datetime) -> str:
        return self.text

    def refused(self, token: str) -> None:
        """There is no other one."""


def scheduler_of(url: str, **more: str | float | None) -> RestScheduler:
    return RestScheduler(url, user=None, token=StandingToken(), **more)  # type: ignore[arg-type]


@pytest.fixture
def rest() -> Iterator[RestServer]:
    with serve_rest("25.11") as server:
        node = server.shape.node("n1", "IDLE")
        server.set_answer("GET", "/nodes", server.shape.answer(nodes=[node]))
        server.set_answer("GET", "/node/n1", server.shape.answer(nodes=[node]))
        server.set_answer("POST", "/node/n1")
        yield server


@contextmanager
def listening(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """An address; each connection is handed to `serve` in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    taken = server.accept()[0]
                except OSError:
                    return
                threading.Thread(target=serve, args=(taken,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


# --- another cluster


@pytest.mark.parametrize("meant", ["pod1", None])
def test_an_address_that_leads_to_another_cluster_by_now_is_neither_read_nor_written(
    rest: RestServer, meant: str | None
) -> None:
    chain = PreferredScheduler([scheduler_of(rest.url, cluster=meant)], cluster="pod1")
    assert chain.node("n1").in_service
    rest.cluster = "pod2"
    for ask in (
        lambda: chain.drain("n1", REASON),
        lambda: chain.node("n1"),
        chain.snapshot,
        chain.controller,
    ):
        with pytest.raises(SchedulerUnavailable, match="serves cluster pod2, not pod1") as caught:
            ask()
        assert caught.value.sent is False
    assert rest.writes == []
    rest.cluster = "pod1"
    chain.drain("n1", REASON)
    assert len(rest.writes) == 1


def test_another_way_to_the_meant_cluster_goes_on(rest: RestServer) -> None:
    sim = SimScheduler("pod1", SystemClock(), 4)
    chain = PreferredScheduler([scheduler_of(rest.url, cluster="pod1"), sim], cluster="pod1")
    chain.node("n1")
    rest.cluster = "pod2"
    chain.drain("gpu0001", REASON)
    assert sim.node("gpu0001").drain and rest.writes == []


def test_without_a_cluster_from_slurmrestd_the_setting_is_used() -> None:
    with serve_rest("23.02") as rest:
        rest.cluster = ""
        with pytest.raises(SchedulerUnavailable, match="set HEALER_CLUSTER"):
            scheduler_of(rest.url).cluster_name()
        assert scheduler_of(rest.url, cluster="pod1").cluster_name() == "pod1"


# --- time


def test_hanging_slurmrestd_leaves_time_for_the_next_adapter() -> None:
    sim = SimScheduler("pod1", SystemClock(), 4)
    held: list[socket.socket] = []
    with listening(held.append) as url:
        chain = PreferredScheduler([scheduler_of(url), sim], cluster="pod1")
        failed: list[Exception] = []

        def drain(node: str) -> None:
            try:
                chain.drain(node, REASON)
            except Exception as error:
                failed.append(error)

        names = list(sim.snapshot().nodes)
        threads = [threading.Thread(target=drain, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert failed == []
    assert all(node.drain for node in sim.snapshot().nodes.values())


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_headers_that_drip_do_not_keep_a_request_alive(method: str) -> None:
    def drip(taken: socket.socket) -> None:
        taken.recv(65536)
        with contextlib.suppress(OSError):
            taken.sendall(b"HTTP/1.1 200 OK\r\n")
            for _ in range(60):
                time.sleep(0.05)
                taken.sendall(b"X-More: b\r\n")
            taken.sendall(b"Content-Length: 0\r\n\r\n")

    with listening(drip) as url, pytest.raises(SchedulerUnavailable, match=r"did not answer within 0\.3 s"):
        RestHttp(url).ask(Request(method, "/x", {}), {}, timeout_s=0.3, connect_s=1)


# --- secrets


def test_token_is_not_leaked_through_a_proxy_that_echoes_the_request() -> None:
    class Echo(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"<pre>400 bad header {self.headers['X-SLURM-USER-TOKEN']}".encode()
            self.send_response(400)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with pytest.raises(SchedulerUnavailable, match="bad header …") as caught:
            scheduler_of(f"http://127.0.0.1:{server.server_port}").describe()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("end", ["-1e308", "-99999999999999", "0"])
def test_an_end_that_no_calendar_reaches_is_no_trouble_of_its_own(rest: RestServer, end: str) -> None:
    claims = urlsafe_b64encode(f'{{"exp":{end}}}'.encode()).decode().rstrip("=")
    rest.tokens = set()
    scheduler = RestScheduler(rest.url, user=None, token=StandingToken(f"a.{claims}.c"))
    with pytest.raises(SchedulerUnavailable, match="rejected the token for slurmrestd: "):
        scheduler.drain("n1", REASON)


# --- troubles


def test_a_read_that_failed_does_not_make_a_node_unknown(rest: RestServer) -> None:
    out = {"description": "Out of memory while dumping nodes", "source": "dump_nodes"}
    rest.set_answer("GET", "/node/n1", rest.shape.answer(errors=[out]), 500)
    with pytest.raises(SchedulerUnavailable, match="Out of memory"):
        scheduler_of(rest.url).node("n1")
    rest.set_answer("GET", "/nodes", rest.shape.answer(nodes=[]))
    with pytest.raises(SchedulerUnavailable, match="Out of memory"):
        scheduler_of(rest.url).node("n1")
    rest.set_answer("GET", "/nodes", rest.shape.answer(errors=[out]), 500)
    with pytest.raises(SchedulerError, match="Out of memory") as caught:
        scheduler_of(rest.url).node("n1")
    assert not isinstance(caught.value, UnknownNode)
