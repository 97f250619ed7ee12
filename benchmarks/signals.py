"""Durable kernel lines per second over HTTP: one Xid per POST, answered after the commit, fsync on.

    python -m benchmarks.signals [--connections 32] [--apis 1] [--seconds 8] [--rate 5000]

API processes on an embedded PostgreSQL, connections divided among them, one load process. Prints requests/s,
p50 and p99 of the answer, the processor time for each by process, and how many rows are there afterwards (it
must be all of them).

Without --rate each connection sends its next line when the last one was answered. With it lines come at fixed
moments, so many a second, whether or not the ones before were answered; the time of an answer counts from its
moment, so that a server that stops for a while pays for all that came meanwhile. Of a connection one line is
on its way at a time, as senders do: the moments go round over the connections.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
import uvicorn
import uvloop

from healer.adapters.postgres import migrate
from healer.adapters.spool import FileSpool
from healer.api.app import create_app
from healer.api.edge import uvicorn_settings
from healer.embedded.database_logins import SUPERUSER
from healer.embedded.postgres import LOGINS, Postgres
from healer.embedded.user import name_of
from tests.support.api import CLUSTER, XID_79, Api
from tests.support.processes import descendants
from tests.support.stack import make_scratch
from tests.support.wait import wait_until

#: All of one width, so that all requests have one length.
_FIRST_SEQ = 10_000_000


def serve(url: str, port: int, spool: Path, pipe: Connection) -> None:
    api = Api(sa.create_engine(url), nodes=1250)
    app = create_app(dataclasses.replace(api.services, spool=FileSpool(spool)))  # as `healer api` has one
    pipe.send(api.token("signals"))
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)  # all three as `healer api` does
    uvicorn.run(
        app, host="127.0.0.1", port=port, log_level="warning", access_log=False, loop="uvloop",
        **uvicorn_settings(),
    )  # fmt: skip


class Client(asyncio.Protocol):
    """One connection that sends a line, waits for its answer, and sends the next. It does little:
    it takes part of the two cores that it measures."""

    def __init__(self, token: str, number: int, due: Iterator[float | None], seconds: list[float]) -> None:
        """`due`: when each line is due by `time.perf_counter`, None for at once."""
        body = json.dumps(
            {
                "cluster": CLUSTER,
                "node": "gpu@@@@",
                "boot_id": f"boot-{number}",
                "entries": [{"seq": 0, "time": "2026-11-20T03:00:00Z", "line": XID_79}],
            }
        ).replace('"seq": 0', '"seq": @@@@@@@@')
        head = (
            f"POST /api/v1/signals/kernel-log HTTP/1.1\r\nHost: [::1]\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._form = (head + body).replace("@@@@@@@@", "%d").replace("@@@@", "%04d").encode()
        self._number, self._due, self._seconds = number, due, seconds
        self._sent, self._began, self._answer = 0, 0.0, b""
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, _, payload = self._answer.partition(b"\r\n\r\n")
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if not length or len(payload) < int(length):
            return
        if not head.startswith(b"HTTP/1.1 202"):
            self._end(RuntimeError(f"{head!r} {payload!r}"))
            return
        self._seconds.append(time.perf_counter() - self._began)
        self._answer = b""
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or RuntimeError("the server ended the connection"))

    def _next(self) -> None:
        try:
            due = next(self._due)
        except StopIteration:
            self._end(None)
            return
        if due is not None and (wait_s := due - time.perf_counter()) > 0:
            self._loop.call_later(wait_s, self._send, due)
        else:
            self._send(due)

    def _send(self, due: float | None) -> None:
        self._sent += 1
        self._began = time.perf_counter() if due is None else due
        node = (self._number * 37 + self._sent) % 1250 + 1
        self._transport.write(self._form % (node, _FIRST_SEQ + self._sent))

    def _end(self, error: Exception | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
        self._transport.close()


async def load(
    ports: Sequence[int], token: str, connections: int, seconds: float, rate: float
) -> list[float]:
    """Seconds that each answer took. `rate`: lines per second, 0 for as many as go."""
    taken: list[float] = []
    loop = asyncio.get_running_loop()
    # At a rate, lines are due once all are connected: an answer is measured, not a handshake.
    begin = time.perf_counter() + (1 if rate else 0)

    def due(number: int) -> Iterator[float | None]:
        if not rate:
            while time.perf_counter() < begin + seconds:
                yield None
            return
        for line in range(number, int(rate * seconds), connections):
            yield begin + line / rate

    async def one(number: int) -> None:
        _, client = await loop.create_connection(
            lambda: Client(token, number, due(number), taken), "127.0.0.1", ports[number % len(ports)]
        )
        await client.ended

    await asyncio.gather(*(one(number) for number in range(connections)))
    return taken


class Spent(NamedTuple):
    """CPU seconds so far: on a shared machine the only figure that compares."""

    api_loop: float
    api_threads: float
    postgres: float
    client: float

    @classmethod
    def so_far(cls, apis: Sequence[int], postgres: int) -> "Spent":
        loops = sum(_on_cpu_s(api, api) for api in apis)
        backends = sum(_on_cpu_s(pid) for pid in descendants(postgres))
        return cls(loops, sum(map(_on_cpu_s, apis)) - loops, backends, _on_cpu_s(os.getpid()))

    def each_us(self, before: "Spent", lines: int) -> str:
        spent = [(now - then) / lines * 1e6 for now, then in zip(self, before, strict=True)]
        return ", ".join(f"{name} {one:.0f}" for name, one in zip(self._fields, spent, strict=True))


def _on_cpu_s(pid: int, thread: int | str = "*") -> float:
    """Of one thread, or of all that a process has now."""
    times = (one.read_text() for one in Path(f"/proc/{pid}/task").glob(f"{thread}/schedstat"))
    return sum(int(one.split()[0]) for one in times) / 1e9


class Served(NamedTuple):
    pid: int
    port: int
    token: str


@contextlib.contextmanager
def served(url: str, spool: Path) -> Iterator[Served]:
    """One API process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(url, port, spool, theirs), daemon=True
    )
    process.start()
    theirs.close()  # so that a server that does not start is an error here, and not waited for
    try:
        token = mine.recv()
        wait_until(lambda: listens(port), 20, what="the API listens")
        yield Served(process.pid or 0, port, token)
    finally:
        process.terminate()
        process.join()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def settle(server: Postgres) -> None:
    """PostgreSQL as it is after some hours: a new file of its log (16 MB) costs all writers 10 to 40 ms, and
    one that has run for a while uses old ones again."""
    engine = sa.create_engine(server.url_of("healer", SUPERUSER), isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        for _ in range(12):
            conn.execute(sa.text("SELECT pg_logical_emit_message(true, 'benchmark', 'x'), pg_switch_wal()"))
        conn.execute(sa.text("CHECKPOINT"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--apis", type=int, default=1, help="API processes")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rate", type=float, default=0, help="lines per second; else as many as go")
    asked = parser.parse_args()
    folder = make_scratch()
    server = Postgres(folder / "data", logins={name_of(os.geteuid()): (*LOGINS, SUPERUSER)})
    server.start()
    try:
        with contextlib.ExitStack() as apis:
            engine = sa.create_engine(server.url)
            migrate.upgrade(engine)
            url = server.url_of("healer")
            serving = [
                apis.enter_context(served(url, folder / f"spool{number}")) for number in range(asked.apis)
            ]
            measure(asked, server, engine, serving)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def measure(
    asked: argparse.Namespace, server: Postgres, engine: sa.Engine, serving: Sequence[Served]
) -> None:
    pids, ports, token = [api.pid for api in serving], [api.port for api in serving], serving[-1].token
    uvloop.run(load(ports, token, asked.connections, 1, 0))
    with engine.begin() as conn:
        conn.execute(sa.text("DELETE FROM inbox"))
    settle(server)
    postgres = server.process.pid if server.process else 0
    before = Spent.so_far(pids, postgres)
    begun = time.perf_counter()
    taken = uvloop.run(load(ports, token, asked.connections, asked.seconds, asked.rate))
    took_s = time.perf_counter() - begun
    spent = Spent.so_far(pids, postgres).each_us(before, len(taken))
    with engine.connect() as conn:
        rows = conn.execute(sa.text("SELECT count(*) FROM inbox")).scalar_one()
    cut = statistics.quantiles(taken, n=100)
    print(
        f"{asked.connections} connections: {len(taken) / took_s:,.0f} events/s, "
        f"p50 {cut[49] * 1000:.1f} ms, p99 {cut[98] * 1000:.1f} ms, "
        f"{rows} rows of {len(taken)}; us CPU each: {spent}"
    )


if __name__ == "__main__":
    main()
