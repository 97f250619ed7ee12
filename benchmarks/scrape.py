"""What it costs healer to scrape a fleet itself: CPU of `healer scraper`, and of all processes.

    python -m benchmarks.scrape [--nodes 1250] [--interval 15] [--seconds 60]

Each node is a target of its own that prints 8 GPUs of 30 signals and the host's own, as dcgm-exporter
and node_exporter do; all of them are answered by one small server, whose CPU does not count.
"""

import argparse
import asyncio
import multiprocessing
import shutil
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import httpx
import yaml

from benchmarks._load import CLUSTER, cpu_s, product
from healer.sim.sim_telemetry import SimTelemetry
from tests.support.processes import free_port
from tests.support.stack import make_scratch
from tests.support.wait import wait_until
from tests.support.wires import exposition


class _Exporter(asyncio.Protocol):
    """Answers `GET /NODE` with that node's page, and closes."""

    def __init__(self, pages: dict[bytes, bytes]) -> None:
        self._pages = pages

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        page = self._pages[data.split(b" ", 2)[1]]
        assert isinstance(self._transport, asyncio.WriteTransport)
        self._transport.write(page)
        self._transport.close()


def serve(port: int, nodes: list[str]) -> None:
    now = datetime.now(UTC)
    sensors = SimTelemetry(CLUSTER, nodes, start=now)
    sensors.quiet = True
    sent = sensors.advance(now)
    pages = {}
    for body in sent.metrics:
        text = exposition(body).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n\r\n"
        pages[f"/{body['node']}".encode()] = head.encode() + text

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Exporter(pages), "127.0.0.1", port, backlog=2000)
        await server.serve_forever()

    asyncio.run(run())


def write_rules(folder: Path, port: int, nodes: list[str], interval_s: float) -> None:
    groups = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"__metrics_path__": f"/{name}", "node": name}}
        for name in nodes
    ]
    job = {"name": "nodes", "groups": groups, "interval_s": interval_s, "node": "node"}
    (folder / "scrape.yaml").write_text(yaml.safe_dump({"jobs": [job]}))


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--nodes", type=int, default=1250)
    arguments.add_argument("--interval", type=float, default=15.0)
    arguments.add_argument("--seconds", type=float, default=60.0)
    chosen = arguments.parse_args()
    names = [f"gpu{number:04d}" for number in range(1, chosen.nodes + 1)]
    port, folder = free_port(), make_scratch()
    rules = folder / "rules"
    exporter = multiprocessing.get_context("spawn").Process(target=serve, args=(port, names), daemon=True)
    exporter.start()
    try:
        with product(folder, chosen.nodes) as made:
            rest = made.at_rest()
            write_rules(rules, port, names, chosen.interval)
            viewer = made.stack.headers("viewer")

            errors: Counter[str] = Counter()

            def seen() -> dict[str, int]:
                answer = httpx.get(f"{made.stack.url}/api/v1/scrape?limit=100", headers=viewer, timeout=60)
                body = answer.raise_for_status().json()
                errors.update(one["error"] for one in body["items"] if one["up"] is False)
                return body["scrapers"][0] if body["scrapers"] else {"up": 0}

            most = 0.99 * chosen.nodes
            wait_until(lambda: seen()["up"] >= most, 300, what="nearly all targets are up", every_s=1.0)
            pids = made.processes()
            before, all_before = cpu_s(pids["scraper"]), cpu_s(set().union(*pids.values()))
            first, begun = seen(), time.monotonic()
            time.sleep(chosen.seconds)
            spent = time.monotonic() - begun
            own = (cpu_s(pids["scraper"]) - before) / spent
            whole = (cpu_s(set().union(*pids.values())) - all_before) / spent
            last = seen()
            scrapes, samples = last["scrapes"] - first["scrapes"], last["samples"] - first["samples"]
            print(f"{chosen.nodes} targets every {chosen.interval:g} s, {spent:.0f} s looked at")
            print(
                f"{scrapes / spent:.0f} scrapes/s, {samples / spent:.0f} samples/s, {last['failed']} failed"
            )
            print(f"errors seen: {errors.most_common(3)}")
            print(
                f"healer scraper: {own:.3f} CPU-seconds a second, {own * spent / scrapes * 1e6:.0f} µs each"
            )
            print(f"all processes: {whole:.3f} CPU-seconds a second ({rest:.3f} at rest)")
    finally:
        exporter.kill()
        exporter.join()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
