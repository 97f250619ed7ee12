"""Durable kernel lines per second over HTTP: one Xid per POST, answered after the commit, fsync on.

    python -m benchmarks.signals [--connections 32] [--seconds 8] [--rate 5000]

One server process on an embedded PostgreSQL, one load process. Prints requests/s, p50 and p99 of the answer,
the API's processor time for each, and how many rows are there afterwards (it must be all of them).

Without --rate each connection sends its next line when the last one was answered. With it lines come at fixed
moments, so many a second, whether or not the ones before were answered; the time of an answer counts from its
moment, so that a server that stops for a while pays for all that came meanwhile. Of a connection one line is
on its way at a time, as senders do: the moments go round over the connections.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import sqlalchemy as sa
import uvicorn

from healer import migrate
from healer.api.connections import uvicorn_settings
from healer.embedded.postgres import Postgres
from tests.support.api import CLUSTER, XID_79, Api
from tests.support.stack import make_scratch
from tests.support.wait import wait_until


def serve(url: str, port: int, pipe: Connection) -> None:
    api = Api(sa.create_engine(url), nodes=1250)
    pipe.send(api.token("signals"))
    gc.collect()
    gc.freeze()  # as `healer api` does
    uvicorn.run(
        api.app, host="127.0.0.1", port=port, log_level="warning", access_log=False, loop="uvloop",
        **uvicorn_settings(),
    )  # fmt: skip


async def client(
    port: int, token: str, number: int, moments: Iterator[float | None], seconds: list[float]
) -> None:
    """`moments`: when each line is due, None for at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for sent, due in enumerate(moments, 1):
        node = f"gpu{(number * 37 + sent) % 1250 + 1:04d}"
        body = json.dumps(
            {
                "cluster": CLUSTER,
                "node": node,
                "boot_id": f"boot-{number}",
                "entries": [{"seq": sent, "time": "2026-11-20T03:00:00Z", "line": XID_79}],
            }
        ).encode()
        head = (
            f"POST /api/v1/signals/kernel-log HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        if due is not None and (wait_s := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait_s)
        started = time.perf_counter() if due is None else due
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        told = await reader.readexactly(length)
        seconds.append(time.perf_counter() - started)
        if not answer.startswith(b"HTTP/1.1 202"):
            sys.exit(f"{answer!r} {told!r}")
    writer.close()


async def load(port: int, token: str, connections: int, seconds: float, rate: float) -> list[float]:
    """Seconds that each answer took. `rate`: lines per second, 0 for as many as go."""
    taken: list[float] = []
    begin = time.perf_counter()

    def moments(number: int) -> Iterator[float | None]:
        if not rate:
            while time.perf_counter() < begin + seconds:
                yield None
        for line in range(number, int(rate * seconds), connections):
            yield begin + line / rate

    await asyncio.gather(
        *(client(port, token, number, moments(number), taken) for number in range(connections))
    )
    return taken


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far: on a shared machine the only figure that compares."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rate", type=float, default=0, help="lines per second; else as many as go")
    asked = parser.parse_args()
    folder = make_scratch()
    server = Postgres(folder / "data")
    server.start()
    try:
        engine = sa.create_engine(server.url)
        migrate.upgrade(engine)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        mine, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(server.url_of("healer"), port, theirs), daemon=True
        )
        process.start()
        token = mine.recv()
        wait_until(lambda: listens(port), 20, what="the API listens")
        asyncio.run(load(port, token, asked.connections, 1, 0))
        with engine.begin() as conn:
            conn.execute(sa.text("DELETE FROM inbox"))
        before = cpu_s(process.pid or 0)
        begun = time.perf_counter()
        taken = asyncio.run(load(port, token, asked.connections, asked.seconds, asked.rate))
        took_s = time.perf_counter() - begun
        spent = cpu_s(process.pid or 0) - before
        with engine.connect() as conn:
            rows = conn.execute(sa.text("SELECT count(*) FROM inbox")).scalar_one()
        cut = statistics.quantiles(taken, n=100)
        print(
            f"{asked.connections} connections: {len(taken) / took_s:,.0f} events/s, "
            f"p50 {cut[49] * 1000:.1f} ms, p99 {cut[98] * 1000:.1f} ms, "
            f"{spent / len(taken) * 1e6:.0f} us CPU of the API each; {rows} rows of {len(taken)}"
        )
        process.terminate()
        process.join()
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
