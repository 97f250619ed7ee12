"""Samples per CPU-second of all our processes together, by route, beside Prometheus on the same bytes.

    python -m benchmarks.ingest [--nodes 200] [--rounds 60]

`healer up` with its embedded servers and detection at work; each round is one scrape of all nodes (8 GPUs,
30 signals each, and the host's own). CPU is counted until the detector has taken all in. Prometheus:
Debian's (`apt-get install prometheus`), as remote_write receiver.
"""

import argparse
import asyncio
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from benchmarks._load import CLUSTER, Product, cpu_s, product, send_all
from healer.sim.sim_telemetry import SimTelemetry
from tests.support.processes import descendants, free_port
from tests.support.stack import make_scratch
from tests.support.wait import wait_until
from tests.support.wires import exposition, remote_write, series_of

#: Connections. Of text a node sends its own scrape, so many nodes wait for an answer at once.
SHARDS, TEXT_SHARDS = 4, 32
#: Rounds are so far apart in event time; all have to fit into the last 15 minutes.
APART_S = 5
#: Time in which the detector takes in what came last.
SETTLE_S = 4.0
#: Nodes per request: an aggregator's batch, and Prometheus' 2,000 samples.
COLUMNAR_NODES, WRITE_NODES = 16, 8

#: Rounds sent before anything is counted: series become known, connections are made. To Prometheus too.
WARM = 3


@dataclass
class Load:
    """Requests of one route by shard, and how many samples they hold."""

    path: str
    headers: dict[str, str]
    shards: list[list[bytes]]
    samples: int

    def cut(self, rounds: int) -> "tuple[Load, Load]":
        """The first `WARM` of so many rounds, and the rest."""
        first = [shard[: len(shard) * WARM // rounds] for shard in self.shards]
        rest = [shard[len(shard) * WARM // rounds :] for shard in self.shards]
        warm = self.samples * WARM // rounds
        return replace(self, shards=first, samples=warm), replace(
            self, shards=rest, samples=self.samples - warm
        )


def rounds_of(nodes: range, rounds: int) -> list[list[dict[str, Any]]]:
    """Scrapes of these nodes, the last one now."""
    start = datetime.now(UTC) - timedelta(seconds=APART_S * rounds)
    sensors = SimTelemetry(CLUSTER, [f"gpu{one:04d}" for one in nodes], start=start)
    sensors.quiet = True
    return [sensors.advance(start + timedelta(seconds=APART_S * (one + 1))).metrics for one in range(rounds)]


def batches(
    bodies: Sequence[dict[str, Any]], size: int, shards: int = SHARDS
) -> Iterator[tuple[int, Sequence[dict[str, Any]]]]:
    """(shard, bodies): a node always goes by the same connection, so that its samples stay in order."""
    for number, begin in enumerate(range(0, len(bodies), size)):
        yield number % shards, bodies[begin : begin + size]


def columnar(token: str, rounds: list[list[dict[str, Any]]]) -> Load:
    shards: list[list[bytes]] = [[] for _ in range(SHARDS)]
    for bodies in rounds:
        for shard, batch in batches(bodies, COLUMNAR_NODES):
            shards[shard].append(msgspec.json.encode(batch))
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    return Load("/api/v1/signals/metrics", headers, shards, counted(rounds))


def text(token: str, rounds: list[list[dict[str, Any]]]) -> Load:
    shards: list[list[bytes]] = [[] for _ in range(TEXT_SHARDS)]
    for bodies in rounds:
        for shard, batch in batches(bodies, 1, TEXT_SHARDS):
            shards[shard].append(exposition(batch[0]).encode())
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "text/plain"}
    return Load(f"/api/v1/signals/openmetrics?cluster={CLUSTER}", headers, shards, counted(rounds))


def written(token: str, rounds: list[list[dict[str, Any]]]) -> Load:
    shards: list[list[bytes]] = [[] for _ in range(SHARDS)]
    for bodies in rounds:
        for shard, batch in batches(bodies, WRITE_NODES):
            shards[shard].append(remote_write(batch))
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/x-protobuf",
        "Content-Encoding": "snappy",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    return Load("/api/v1/signals/prometheus/write", headers, shards, counted(rounds))


def counted(rounds: list[list[dict[str, Any]]]) -> int:
    return sum(sum(1 for _ in series_of(body)) for body in rounds[0]) * len(rounds)


def measured(
    name: str,
    whole: Load,
    rounds: int,
    port: int,
    pids: set[int],
    parts: Mapping[str, set[int]] | None = None,
) -> float:
    """Samples per CPU-second. `parts`: the processes by name, for who spent it."""
    parts = parts or {}
    warm, load = whole.cut(rounds)
    asyncio.run(send_all(port, warm.path, warm.headers, warm.shards))
    time.sleep(SETTLE_S)
    before, each = cpu_s(pids), {part: cpu_s(some) for part, some in parts.items()}
    took_s = asyncio.run(send_all(port, load.path, load.headers, load.shards))
    time.sleep(SETTLE_S)
    spent = cpu_s(pids) - before
    shares = {part: cpu_s(some) - each[part] for part, some in parts.items()}
    print(
        f"{name:22} {load.samples / 1e6:6.2f} M samples in {took_s:5.1f} s, {spent:6.2f} CPU-s: "
        f"{load.samples / spent / 1e6:6.2f} M samples per CPU-second, {load.samples / took_s / 1e6:5.2f} M/s",
        flush=True,
    )
    if shares:
        named = ", ".join(f"{part} {share:.2f}" for part, share in shares.items() if share >= 0.05)
        print(f"{'':22} {named} CPU-s", flush=True)
    return load.samples / spent


@contextmanager
def prometheus() -> Iterator[tuple[int, int] | None]:
    """(port, process) of a fresh one; None where it is not installed."""
    program = shutil.which("prometheus")
    if program is None:
        yield None
        return
    folder, port = Path(tempfile.mkdtemp(prefix="healer-prometheus-")), free_port()
    (folder / "prometheus.yml").write_text("global: {}\n")
    process = subprocess.Popen(
        [
            program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver",
            "--log.level=error",
        ]
    )  # fmt: skip
    try:
        wait_until(lambda: answers(port), 30, what="Prometheus answers")
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


def answers(port: int) -> bool:
    import httpx

    try:
        return httpx.get(f"http://127.0.0.1:{port}/-/ready", timeout=1).status_code == 200
    except httpx.HTTPError:
        return False


def ours(running: Product, nodes: int, rounds: int) -> tuple[Load, float]:
    """What was sent by remote_write, and what came of it."""
    print(f"idle: {running.at_rest():.3f} CPU-s a second, not taken off below", flush=True)
    parts = running.processes()
    pids = set().union(*parts.values())
    port = running.stack.port
    # Each route has nodes of its own: samples older than what is known of a series are cheap to leave out.
    for first, (name, make) in enumerate((("columnar", columnar), ("text exposition", text))):
        mine = range(first * nodes + 1, (first + 1) * nodes + 1)
        measured(name, make(running.token, rounds_of(mine, rounds)), rounds, port, pids, parts)
    load = written(running.token, rounds_of(range(2 * nodes + 1, 3 * nodes + 1), rounds))
    return load, measured("remote_write", load, rounds, port, pids, parts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=200, help="for each route")
    parser.add_argument("--rounds", type=int, default=60)
    asked = parser.parse_args()
    folder = make_scratch()
    try:
        with product(folder, 3 * asked.nodes) as running:
            load, figure = ours(running, asked.nodes, asked.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with prometheus() as other:
        if other is None:
            print("Prometheus is not installed (apt-get install prometheus): nothing to compare with")
            return
        port, pid = other
        load.path = "/api/v1/write"
        theirs = measured("Prometheus", load, asked.rounds, port, descendants(pid))
    print(f"healer / Prometheus on the same bytes: {figure / theirs:.1f} x")


if __name__ == "__main__":
    main()
