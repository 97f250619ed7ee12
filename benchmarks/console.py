"""The console at its design size: pages on the server, first paint and the map in a real Chromium.

    python -m benchmarks.console [--nodes 10000] [--incidents 5000] [--rounds 20] [--days 365 [--ended 20000]]

`healer api` in a process of its own on an embedded PostgreSQL, with Slurm's picture of so many nodes of 8
GPUs in jobs of 16, what they measured, and so many open incidents. Prints for each page the time until its
last byte (p50, p95, the first call), what the API's process worked for it, and its size; then what the
browser reports: the first contentful paint, when the map was drawn first, and what a change of 1 % of the
nodes took in its script.
"""

import argparse
import contextlib
import dataclasses
import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import numpy as np
import sqlalchemy as sa
from playwright.sync_api import Browser, BrowserContext, Page

from benchmarks._history import fill
from benchmarks._load import cpu_s
from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.samples import PostgresColumns, PostgresSamples
from healer.adapters.postgres.tables import incidents
from healer.adapters.postgres.tokens import PostgresTokens
from healer.model import (
    Column,
    Component,
    Evidence,
    FaultClass,
    Incident,
    IncidentState,
    Part,
    Role,
    Sense,
    Severity,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Verdict,
)
from healer.model.telemetry import Report
from healer.ports.callers import NewToken
from healer.text import quoted, to_stored
from tests.support.api_process import CLUSTER, TOKEN_KEY, ApiProcess, api_process
from tests.support.browser import chromium
from tests.support.console_telemetry import steps_of
from tests.support.seals import seal_all
from tests.support.stack import make_scratch, running_postgres

_SIGNALS = (
    "gpu_temp_c", "clock_event_reasons", "power_w", "memory_temp_c", "sm_clock_mhz", "gpu_util_percent",
    "ecc_sbe_volatile_total", "ecc_dbe_volatile_total", "pcie_replay_total", "memory_clock_mhz",
)  # fmt: skip
_RULES = (
    ("gpu-lost", "xid-79", "GPU has fallen off the bus", Severity.P1),
    ("gpu-fatal", "xid-95", "Uncontained ECC error", Severity.P1),
    ("gpu-degraded", "xid-94", "Contained ECC error", Severity.P2),
    ("gpu-application", "xid-31", "MMU fault", Severity.P3),
)
#: Of the nodes, in one change of the picture; and how many changes are looked at.
CHANGED, CHANGES = 0.01, 20


def name_of(number: int) -> str:
    return f"gpu{number:05d}"


def picture(count: int, seed: int) -> SlurmSnapshot:
    """8 nodes a rack and leaf, 32 racks a row, 4 rows a pod. `seed` moves 1 % of the states."""
    rng = random.Random(seed)
    moved = {rng.randrange(count) for _ in range(int(count * CHANGED))}
    nodes = {}
    for number in range(count):
        rack, busy = number // 8, (number * 7919 % 100 < 83) ^ (number in moved)
        nodes[name_of(number)] = SlurmNode(
            name=name_of(number), state=("ALLOCATED",) if busy else ("IDLE",), gpus=8, gpu_model="h100",
            driver="580.65.06", rack=f"r{rack:04d}", switch=f"leaf{rack // 4:03d}",
            row=f"row{rack // 32:02d}",
            pod=f"su{rack // 128}", partitions=("train",), boot_at=datetime.now(UTC) - timedelta(days=12),
        )  # fmt: skip
    names = list(nodes)
    jobs = {
        str(4711 + at // 16): SlurmJob(
            id=str(4711 + at // 16), state="RUNNING", nodes=tuple(names[at : at + 16]), user="ann",
            partition="train", gpus={name: tuple(range(8)) for name in names[at : at + 16]},
        )
        for at in range(0, count, 16)
    }  # fmt: skip
    return SlurmSnapshot(cluster=CLUSTER, taken_at=datetime.now(UTC), nodes=nodes, jobs=jobs)


def incident_of(number: int, nodes: int) -> Incident:
    rule, fault, title, severity = _RULES[number % len(_RULES)]
    name = name_of(number * 7919 % nodes)
    at = datetime.now(UTC) - timedelta(seconds=number * 11 + 60)
    root = Component(cluster=CLUSTER, node=name, gpu=number % 8)
    line = f"NVRM: Xid (PCI:0000:9b:00): {fault[4:]}, pid='<unknown>', name=<unknown>, {title}."
    evidence = tuple(
        Evidence(
            digest=f"{number:032x}{second:032x}", component=root, at=at + timedelta(seconds=second),
            text=quoted(title), line=line, sense=Sense.kernel,
        )
        for second in range(8)
    )  # fmt: skip
    return Incident(
        id=f"{number:08x}" + "0" * 56, cluster=CLUSTER, rule=rule, fault=fault, fault_class=FaultClass.fatal,
        title=quoted(title), root=root, opened=at, updated=at, settle_until=at, severity=severity,
        state=IncidentState.mitigating if number % 3 else IncidentState.open, nodes={name: Verdict.suspect},
        jobs_hit=(str(4711 + number),), evidence=evidence, evidence_count=len(evidence),
        acknowledged_by="ann" if number % 5 == 0 else None,
    )  # fmt: skip


def seed(engine: sa.Engine, nodes: int, count: int) -> None:
    found = [incident_of(number, nodes) for number in range(count)]
    with engine.begin() as conn:
        for at in range(0, count, 500):
            conn.execute(
                sa.insert(incidents),
                [
                    {
                        "id": one.id, "cluster": one.cluster, "rule": one.rule, "state": one.state.value,
                        "severity": one.severity.value, "node": one.root.node, "opened": one.opened,
                        "updated": one.updated, "closed": None, "doc": to_stored(one),
                    }
                    for one in found[at : at + 500]
                ],
            )  # fmt: skip
    PostgresSnapshots(engine).put(picture(nodes, 0))
    measure(engine, nodes)


def measure(engine: sa.Engine, nodes: int) -> None:
    """What each node sends in one report, and 10 steps of each job."""
    now = datetime.now(UTC)
    columns_stored = [Column(name, Part(gpu=gpu)) for name in _SIGNALS for gpu in range(8)]
    columns = np.array(PostgresColumns(engine).ids(columns_stored), np.int32)
    rng = np.random.default_rng(7)
    samples = PostgresSamples(engine, CLUSTER)
    samples.put(
        [
            Report(
                CLUSTER,
                name_of(number),
                now,
                now,
                columns,
                rng.integers(1, 90, len(columns_stored)).astype(float),
            )
            for number in range(nodes)
        ]
    )
    for at in range(0, nodes, 16):
        names = tuple(name_of(number) for number in range(at, min(at + 16, nodes)))
        batches = steps_of(str(4711 + at // 16), names, steps=10)
        samples.put_steps([dataclasses.replace(one, arrived_at=now) for one in batches])
    samples.close()


def pages_of(nodes: int) -> list[str]:
    node, today = name_of(nodes // 2), datetime.now(UTC).date()
    return [
        "/", "/?page=7", "/?q=leaf003", "/?colour=temperature", "/fleet.json",
        "/fleet.json?colour=temperature", "/fleet.json?colour=steps", "/incidents", "/incidents?q=leaf",
        "/incidents?severity=P1", "/incidents?cursor=4000", "/incidents?show=all",
        f"/incidents/{7:08x}{'0' * 56}",
        f"/nodes/{CLUSTER}/{node}", f"/jobs/{CLUSTER}/4712", "/runs", "/rules", "/signals", "/audit",
        "/reports", "/reports?period=30d", f"/reports?from={today - timedelta(days=364)}&to={today}",
        "/reports/handover",
    ]  # fmt: skip


def serve(api: ApiProcess, cookies: dict[str, str], paths: list[str], rounds: int) -> None:
    with httpx.Client(base_url=api.url, cookies=cookies, timeout=60) as client:
        for path in paths:
            begun = time.perf_counter()
            size, times = len(asked(client, path)), []
            first, before = (time.perf_counter() - begun) * 1000, cpu_s([api.pid])
            for _ in range(rounds):
                begun = time.perf_counter()
                asked(client, path)
                times.append((time.perf_counter() - begun) * 1000)
            spent = (cpu_s([api.pid]) - before) * 1000 / rounds
            times.sort()
            p95 = times[min(len(times) - 1, int(len(times) * 0.95))]
            times_text = f"p50 {statistics.median(times):6.1f}  p95 {p95:6.1f}  first {first:6.1f}"
            print(f"{path[:40]:<42} {times_text}  cpu {spent:5.1f} ms  {size / 1024:6.0f} KiB", flush=True)


def asked(client: httpx.Client, path: str) -> bytes:
    answer = client.get(path)
    if answer.status_code != 200:
        sys.exit(f"{path}: {answer.status_code} {answer.text[:500]}")
    return answer.content


@contextlib.contextmanager
def signed_in(browser: Browser, api: ApiProcess, cookies: dict[str, str]) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.add_cookies([{"name": name, "value": value, "url": api.url} for name, value in cookies.items()])
    yield context
    context.close()


def painted(api: ApiProcess, cookies: dict[str, str], nodes: int, rounds: int) -> None:
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    drawn = "performance.getEntriesByName('map')[0]"
    with chromium() as browser:
        for path in ("/", "/incidents"):
            firsts: list[float] = []
            for _ in range(max(3, rounds // 4)):
                with signed_in(browser, api, cookies) as context:
                    page = context.new_page()
                    page.goto(api.url + path)
                    page.wait_for_function(f"() => {paint}")
                    firsts.append(page.evaluate(paint))
            summary = f"median {statistics.median(firsts):6.0f} ms  most {max(firsts):6.0f} ms"
            print(f"first paint of {path:<12} {summary}")
        with signed_in(browser, api, cookies) as context:
            page = context.new_page()
            page.goto(api.url + "/")
            page.wait_for_function(f"() => {drawn}")
            first = page.evaluate(f"() => [{drawn}.startTime, {drawn}.duration]")
            print(f"map drawn first at {first[0] + first[1]:.0f} ms, by {first[1]:.1f} ms of script")
            page.wait_for_function("() => document.getElementById('live').dataset.state === 'live'")
            took = [change(api, page, nodes, number) for number in range(1, CHANGES + 1)]
            summary = f"p50 {statistics.median(took):.1f} ms  most {max(took):.1f} ms"
            print(f"canvas update, {int(nodes * CHANGED)} of {nodes} nodes changed: {summary}")


def change(api: ApiProcess, page: Page, nodes: int, number: int) -> float:
    """What the map's script took for another picture."""
    page.evaluate("performance.clearMeasures('map')")
    PostgresSnapshots(api.engine).put(picture(nodes, number))
    page.wait_for_function("() => performance.getEntriesByName('map').length")
    return max(page.evaluate("performance.getEntriesByName('map').map((one) => one.duration)"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--incidents", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--days", type=int, default=0, help="of history")
    parser.add_argument("--ended", type=int, help="incidents in it")
    given = parser.parse_args()
    folder = make_scratch()
    try:
        with running_postgres() as server:
            engine = make_engine(server.url)
            with api_process(engine, folder, nodes=1) as api:
                if given.days:
                    patient = sa.create_engine(server.url)  # without the limits of the product's statements
                    fill(patient, given.nodes, given.days, given.ended)
                    patient.dispose()
                seed(engine, given.nodes, given.incidents)
                now = datetime.now(UTC)
                token = PostgresTokens(engine, CLUSTER, TOKEN_KEY).create(
                    NewToken(role=Role.admin, name="bench", expires_at=now + timedelta(hours=1), once=True),
                    now=now,
                    by="bench",
                )
                seal_all(engine)
                opened = httpx.post(f"{api.url}/sign-in", data={"token": token}, follow_redirects=False)
                cookies = dict(opened.cookies)
                print(f"{given.nodes} nodes, {given.incidents} open incidents, load {os.getloadavg()[0]:.1f}")
                serve(api, cookies, pages_of(given.nodes), given.rounds)
                print(f"api: {api.rss() / 2**20:.0f} MiB, load {os.getloadavg()[0]:.1f}")
                painted(api, cookies, given.nodes, given.rounds)
                print(f"load {os.getloadavg()[0]:.1f}")
            engine.dispose()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
