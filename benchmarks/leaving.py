"""How fast what healer decided of a node is known there, and how fast work leaves it.

    python -m benchmarks.leaving [--decisions 40] [--calls 2000] [--asks 2000] [--runs 10] [--crashes 10]

decisions: a follower against a real API; a drain is read back in the database 0.2 to 3.5 s after a fault
line, until the file on the node says `leave`. asks: questions of a follower, one after the other, to one API
process. calls: answers of healer-nvhcd to a real client of gRPC. runs: three agents of torchrun here, with
gloo; the decision on one of them, until the first step of the two others. crashes: the same, and its worker
dies of the fault before. 0 leaves a part out.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import httpx
import msgspec
import sqlalchemy as sa

from healer.adapters.postgres import migrate
from healer.adapters.postgres.gate_facts import grant_slots
from healer.embedded.postgres import Postgres
from healer.model import FaultClass, Slot
from tests.support.api import CLUSTER, XID_79, Api, incident, save_incident, serving
from tests.support.elastic import agents
from tests.support.follower import following
from tests.support.nvhcd import Node, serving_checks
from tests.support.processes import descendants
from tests.support.wait import wait_until

NODE = "gpu0001"


def print_times(what: str, seconds: Sequence[float], scale: float = 1.0, unit: str = "s") -> None:
    sorted_s = sorted(seconds)
    p50, p95, p99 = (sorted_s[int(len(sorted_s) * share)] * scale for share in (0.5, 0.95, 0.99))
    most = sorted_s[-1] * scale
    print(
        f"{what}, n = {len(seconds)}: p50 {p50:.2f}, p95 {p95:.2f}, p99 {p99:.2f}, max {most:.2f} {unit}",
        flush=True,
    )


def take_out(api: Api) -> None:
    one = msgspec.structs.replace(incident(1, NODE), fault_class=FaultClass.fatal)
    slot = Slot(cluster=CLUSTER, node=NODE, incident=one.id, run="run-1", granted_at=datetime.now(UTC))
    with api.engine.begin() as conn:
        save_incident(conn, one)
        grant_slots(conn, [slot])


def set_slot(api: Api, values: str) -> None:
    with api.engine.begin() as conn:
        conn.execute(sa.text(f"UPDATE slots SET {values}"))


def decisions(api: Api, url: str, folder: Path, count: int) -> None:
    take_out(api)
    set_slot(api, "released_at = now()")
    taken = list[float]()
    with following(folder, url, HEALER_CLUSTER=CLUSTER) as follower:
        follower.token.write_text(api.token("signals", node=NODE, cluster=CLUSTER))
        follower.start()

        def state() -> str:
            file = follower.verdict_file
            return json.loads(file.read_text())["state"] if file.exists() else ""

        for number in range(count):
            wait_until(lambda: state() == "healthy", 30, what="it is healthy")
            follower.say(f"{XID_79} {number}")
            time.sleep(random.uniform(0.2, 3.5))
            set_slot(api, "released_at = NULL, drained_at = now()")
            began = time.monotonic()
            wait_until(lambda: state() == "leave", 20, what="the node knows it", every_s=0.005)
            taken.append(time.monotonic() - began)
            set_slot(api, "released_at = now()")
    print_times("drain read back → on the node", taken)


def asks(api: Api, client: httpx.Client, count: int) -> None:
    headers = api.headers("signals", node=NODE, cluster=CLUSTER, quota=1000.0)
    taken = list[float]()
    for _ in range(count):
        began = time.perf_counter()
        answer = client.post("/api/v1/signals/heartbeat", json={"node": NODE, "asks": True}, headers=headers)
        taken.append(time.perf_counter() - began)
        assert answer.status_code == 202, answer.text
    print_times("a question and its answer", taken, 1000, "ms")


def calls(folder: Path, count: int) -> None:
    with serving_checks(Node(folder)) as node:
        node.write(state="healthy")
        taken = list[float]()
        for _ in range(count):
            began = time.perf_counter()
            assert node.ask().success
            taken.append(time.perf_counter() - began)
    print_times("node health check, a new connection each", taken, 1000, "ms")


def runs(folder: Path, count: int, *, crash: bool) -> None:
    """`crash`: the fault ends the worker 0 to 4 s before healer decides, so that torch is meeting again."""
    folder.mkdir()
    taken, restarts = list[float](), 0
    for number in range(count):
        place = folder / str(number)
        place.mkdir()
        with agents(place, ["a", "b", "c"], 2, trainer="ddp") as job:
            for name in job.names:
                job.start(name, "--max-restarts=3")
            job.work(3)
            if crash:
                for pid in descendants(job.pid("c")) - {job.pid("c")}:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(random.uniform(0, 4 if crash else 1))
            decided = job.decide("c")
            assert job.ended("c") == 0
            job.work(2, ["a", "b"], more=1)
            taken.append(min(job.log.steps(name, 2)[0]["at"] for name in ("a", "b")) - decided)
            restarts += sum(job.log.of(name)[-1]["restart"] for name in ("a", "b"))
    print_times(f"decision on the node → next step of the others{', after a crash' * crash}", taken)
    print(f"restarts that the launchers counted: {restarts} of {2 * count}")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, most in (("decisions", 40), ("asks", 2000), ("calls", 2000), ("runs", 10), ("crashes", 10)):
        parser.add_argument(f"--{name}", type=int, default=most)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if asked.decisions or asked.asks:
            server = Postgres(folder / "data")
            server.start()
            try:
                engine = sa.create_engine(server.url_of("healer"))
                migrate.upgrade(engine)
                with serving(engine) as (api, client):
                    if asked.asks:
                        asks(api, client, asked.asks)
                    if asked.decisions:
                        decisions(api, str(client.base_url), folder / "follower", asked.decisions)
            finally:
                server.stop()
        if asked.calls:
            (folder / "checks").mkdir()
            calls(folder / "checks", asked.calls)
        if asked.runs:
            runs(folder / "runs", asked.runs, crash=False)
        if asked.crashes:
            runs(folder / "crashes", asked.crashes, crash=True)


if __name__ == "__main__":
    main()
