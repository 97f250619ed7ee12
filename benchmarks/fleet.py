"""A fleet at its design size under the whole product, and a restart with full windows.

    python -m benchmarks.fleet [--nodes 1250] [--minutes 10] [--every 5]

Each node sends 8 GPUs x 30 signals and its host's every 5 s or `--every` so many, jobs of 8 nodes their step
times. Prints CPU by process, memory (PSS), and the lag from arrival to the end of the tick that looked at it,
minute by minute. Then the detector is killed with `kill -9`: how long until it leads again, its windows are
full, its lag is as before. The fleet is well: what healer found is counted as false alarms. The load comes
from this process, on the same machine: its CPU is counted apart.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from benchmarks._load import CLUSTER, Connection, Product, cpu_s, memory_mib, product
from healer.embedded import running as embedded
from healer.sim.sim_telemetry import SimTelemetry
from tests.support.stack import make_scratch

CONNECTIONS = 4
NODES_PER_REQUEST = 25
JOB_NODES = 8
#: After a kill: as long as the tree may take to restart a detector, and windows of 15 min to be read.
BACK_S = 180.0


class Fleet:
    """Sends what the fleet measures, round by round, spread over the round."""

    def __init__(self, running: Product, every_s: float) -> None:
        self._slurm, self._port, self._every_s = running.slurm, running.stack.port, every_s
        names = list(self._slurm.snapshot().nodes)
        for _ in range(len(names) * 4 // 5 // JOB_NODES):
            self._slurm.add_job(name="pretrain", nodes=JOB_NODES)
        self._sensors = SimTelemetry(CLUSTER, names, start=datetime.now(UTC))
        self._headers = {"Authorization": f"Bearer {running.token}", "Content-Type": "application/json"}
        self.samples = self.rounds = self.behind = 0

    async def run(self, seconds: float) -> None:
        begun = time.monotonic()
        for number in range(1, int(seconds / self._every_s) + 1):
            await self._round(begun + number * self._every_s)
            rest = begun + number * self._every_s - time.monotonic()
            self.behind += rest < 0
            await asyncio.sleep(max(0.0, rest))

    async def _round(self, until: float) -> None:
        self._sensors.show(self._slurm.snapshot())
        sent = self._sensors.advance(datetime.now(UTC))
        bodies = [
            sent.metrics[begin : begin + NODES_PER_REQUEST]
            for begin in range(0, len(sent.metrics), NODES_PER_REQUEST)
        ]
        self.samples += sum(_count(body) for body in sent.metrics)
        self.rounds += 1
        share = (until - time.monotonic()) * 0.8 / max(1, len(bodies) // CONNECTIONS)
        await asyncio.gather(
            *(self._send("metrics", bodies[one::CONNECTIONS], share) for one in range(CONNECTIONS)),
            self._send("step-times", [sent.step_times] if sent.step_times else [], 0),
        )

    async def _send(self, route: str, bodies: list[Any], share: float) -> None:
        connection = await Connection(self._port, f"/api/v1/signals/{route}", self._headers).open()
        for body in bodies:
            begun = time.monotonic()
            await connection.post(msgspec.json.encode(body))
            await asyncio.sleep(max(0.0, share - (time.monotonic() - begun)))
        connection.close()


def _count(body: dict[str, Any]) -> int:
    gpu = sum(len(values) for values in body["gpu"].values())
    return gpu + len(body["host"]) + sum(len(figures) for figures in body["ports"].values())


def events(running: Product, name: str) -> list[dict[str, Any]]:
    """Lines of the detector's log with this event."""
    lines = (json.loads(line) for line in running.stack.log("detector").splitlines() if line[:1] == "{")
    return [line for line in lines if line.get("event") == name]


def under_load(running: Product, fleet: Fleet, minutes: float) -> None:
    processes = running.processes()
    before = {name: cpu_s(pids) for name, pids in processes.items()}
    own, begun = time.process_time(), time.monotonic()
    asyncio.run(fleet.run(minutes * 60))
    took_s = time.monotonic() - begun
    print(f"{fleet.samples / took_s:,.0f} samples/s for {took_s:.0f} s; {fleet.behind} rounds late")
    print(f"{'process':12} {'CPU %':>7} {'PSS MiB':>9}")
    for name, pids in running.processes().items():
        share = (cpu_s(pids) - before.get(name, 0.0)) / took_s * 100
        print(f"{name:12} {share:7.1f} {memory_mib(pids):9.0f}")
    print(f"{'(the load)':12} {(time.process_time() - own) / took_s * 100:7.1f}")
    for line in events(running, "ticks"):
        print(f"  {line['timestamp']}  {line['ticks']} ticks, lag {line['lag_s']} s, tick {line['took_s']} s")


def restarted(running: Product, fleet: Fleet) -> None:
    """kill -9 with full windows, the fleet going on."""
    rebuilt, ticks = len(events(running, "metric windows rebuilt")), len(events(running, "ticks"))
    at = datetime.now(UTC)
    os.kill(running.stack.pids()["detector"], signal.SIGKILL)
    asyncio.run(fleet.run(BACK_S))
    leads = [one for one in events(running, "detector became leader") if one["timestamp"] > at.isoformat()]
    full = events(running, "metric windows rebuilt")[rebuilt:]
    after = events(running, "ticks")[ticks:]
    for what, found in (("leads again", leads), ("windows full", full)):
        if not found:
            print(f"{what}: not within {BACK_S:.0f} s")
            continue
        away_s = (datetime.fromisoformat(found[0]["timestamp"]) - at).total_seconds()
        summary = ", ".join(f"{name} {found[0][name]}" for name in ("rows", "took_s") if name in found[0])
        print(f"{what} after {away_s:.1f} s {summary}")
    for line in after:
        print(f"  then lag {line['lag_s']} s, tick {line['took_s']} s")


def print_false_alarms(running: Product) -> None:
    """Nothing is wrong with this fleet: whatever was found is a false alarm."""
    engine = sa.create_engine(embedded.find(running.stack.data_dir).database_url)
    with engine.connect() as conn:
        found = conn.execute(
            sa.text("SELECT severity, rule, count(*) FROM incidents GROUP BY 1, 2 ORDER BY 1, 2")
        )
        rows = [f"{severity} {rule} {count}" for severity, rule, count in found]
        pages = conn.execute(sa.text("SELECT count(*) FROM messages WHERE page")).scalar_one()
    engine.dispose()
    print(f"false alarms: {', '.join(rows) or 'none'}; pages: {pages}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=5.0)
    asked = parser.parse_args()
    folder = make_scratch()
    try:
        with product(folder, asked.nodes) as running:
            fleet = Fleet(running, asked.every)
            print(f"at rest: {running.at_rest() * 100:.1f} % of a core")
            under_load(running, fleet, asked.minutes)
            print_false_alarms(running)
            restarted(running, fleet)
            print_false_alarms(running)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
