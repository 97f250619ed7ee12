"""Many clusters of one healer: what they cost together, and whether one disturbs another.

    python -m benchmarks.clusters [--clusters 20] [--nodes 500] [--rounds 4] [--count 15] [--lines 5000]

`healer up` over simulated Slurms. Prints processes, connections and memory (PSS) by part, CPU at rest, and
the pages' p95. Then rounds in turn, without and with trouble: fatal lines on the first cluster, one at a
time, from the line sent until Slurm shows the drain. In trouble the second cluster sends so many kernel lines
a second with a token of its own, and the third one's Slurm hangs with a fatal fault on it. Prints both
rounds, their ratio, and what the trouble changed elsewhere; ends with 1 where it changed what it may not.
"""

import argparse
import http.client
import itertools
import multiprocessing
import os
import re
import shutil
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import sqlalchemy as sa
import yaml

from benchmarks._load import cpu_s, memory_mib, quantile, simulated_slurm
from healer.bootstrap.web import PROVE_AFTER_S
from healer.embedded import running
from healer.model import Role
from healer.ports.callers import NewToken
from healer.sim.sim_slurm import SimClient
from tests.support.processes import descendants
from tests.support.stack import make_scratch
from tests.support.up import Stack
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[1]
CALM, STORMY, HANGING = "c01", "c02", "c03"
FATAL = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python3, GPU has fallen off the bus."
_STORM = "NVRM: Xid (PCI:0000:9b:00): 31, pid={number}, name=python3, Ch 00000010, intr 00000000. MMU Fault"
#: Kernel lines of one post.
_LINES = 100
#: Of the first cluster: it is drained node by node, with everything open.
_OPEN: Any = {
    "max_share": 1.0, "max_nodes": 10_000, "min_service_share": 0.0, "share_per_hour": 1.0, "rack_share": 1.0,
    "partition_share": 1.0, "breaker_share": 1.0, "trial_runs": 0,
}  # fmt: skip
_REST_S = 20.0
PAGES = ("/", "/fleet.json", "/incidents", "/incidents?cluster=c02", "/runs", "/rules", "/health", "/readyz",
         "/api/v1/nodes?cluster=c01", "/nodes/c01/gpu0400", "/metrics")  # fmt: skip


def kind_of(part: str) -> str:
    return re.sub(r"-c\d+$", "", part)


class Many:
    """`healer up` over so many simulated Slurms; each is a process of its own."""

    def __init__(self, folder: Path, clusters: int, nodes: int) -> None:
        self.names = [f"c{number:02d}" for number in range(1, clusters + 1)]
        started = {name: simulated_slurm(folder, name, nodes) for name in self.names}
        self._sockets = {name: socket for name, (socket, _) in started.items()}
        self.slurms = {name: process for name, (_, process) in started.items()}
        rules = shutil.copytree(ROOT / "rules", folder / "rules")
        guards = yaml.safe_load((rules / "guards.yaml").read_text()) | {"clusters": {CALM: _OPEN}}
        (rules / "guards.yaml").write_text(yaml.safe_dump(guards))
        config = folder / "healer.toml"
        config.write_text("".join(self._table(name) for name in self.names))
        self.stack = Stack(
            folder, HEALER_MODE="auto", HEALER_SETTLE_S="0", HEALER_CONFIG=str(config),
            HEALER_RULES_DIR=str(rules),
        )  # fmt: skip

    def _table(self, name: str) -> str:
        socket = self._sockets[name]
        return f'[clusters.{name}]\nHEALER_SLURM_ADAPTERS = "sim"\nHEALER_SIM_SOCKET = "{socket}"\n'

    def slurm(self, name: str) -> SimClient:
        return SimClient(self._sockets[name])

    def stop(self) -> None:
        for process in self.slurms.values():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGCONT)
            process.terminate()
            process.join(10)

    def processes(self) -> dict[str, set[int]]:
        """Kind of part -> its processes and those below them."""
        found: dict[str, set[int]] = {}
        named = self.stack.pids()
        up = descendants(named.pop("up"))
        for name, pid in named.items():
            found.setdefault(kind_of(name), set()).update(descendants(pid))
        found["up"] = up - set().union(*found.values())
        return found

    def ready(self) -> dict[str, Any]:
        return self.stack.http.get(f"{self.stack.url}/readyz", timeout=20).json()["checks"]

    def are_all_ready(self) -> bool:
        checks = self.ready()
        return all(checks[f"{what} {name}"]["ok"] for name in self.names for what in ("slurm", "detector"))


class Ledger:
    """The database as its owner sees it."""

    def __init__(self, many: Many) -> None:
        self._engine = sa.create_engine(running.find(many.stack.data_dir).database_url)

    def rows(self, statement: str) -> list[Any]:
        with self._engine.connect() as conn:
            return list(conn.execute(sa.text(statement)))

    def waiting(self) -> int:
        return self.rows("SELECT count(*) FROM inbox WHERE consumed_at IS NULL")[0][0]

    def close(self) -> None:
        self._engine.dispose()


# --- what they cost


def show_cost(many: Many, ledger: Ledger) -> None:
    before = {name: cpu_s(pids) for name, pids in many.processes().items()}
    commits = "SELECT sum(xact_commit)::float8 FROM pg_stat_database"
    committed = ledger.rows(commits)[0][0]
    time.sleep(_REST_S)
    committed = (ledger.rows(commits)[0][0] - committed) / _REST_S
    print(f"{'part':10} {'processes':>9} {'PSS MiB':>8} {'CPU %':>7}")
    total = [0, 0.0, 0.0]
    for name, pids in sorted(many.processes().items()):
        row = len(pids), memory_mib(pids), (cpu_s(pids) - before.get(name, 0.0)) / _REST_S * 100
        print(f"{name:10} {row[0]:9} {row[1]:8.0f} {row[2]:7.1f}")
        total = [have + more for have, more in zip(total, row, strict=True)]
    print(f"{'in all':10} {total[0]:9} {total[1]:8.0f} {total[2]:7.1f}   {committed:.0f} transactions/s")
    used, most = ledger.rows("SELECT count(*), current_setting('max_connections') FROM pg_stat_activity")[0]
    print(f"connections: {used} of {most}; load {os.getloadavg()[0]:.1f}", flush=True)


def show_pages(many: Many, rounds: int) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    token = many.stack.make_token(NewToken(role=Role.admin, name="bench", once=True, expires_at=soon))
    cookies = dict(many.stack.http.post(f"{many.stack.url}/sign-in", data={"token": token}).cookies)
    bearer = many.stack.headers("viewer")
    with httpx.Client(base_url=many.stack.url, cookies=cookies, timeout=60) as client:
        for path in PAGES:
            headers = bearer if path.startswith(("/api", "/metrics")) else {}
            times, statuses, size = [], Counter[int](), 0
            for _ in range(rounds):
                begun = time.perf_counter()
                answer = client.get(path, headers=headers)
                times.append((time.perf_counter() - begun) * 1000)
                statuses[answer.status_code] += 1
                size = len(answer.content)
            p50, p95 = statistics.median(times), quantile(times, 0.95)
            failed = "" if statuses[200] == rounds else f"  answers {dict(statuses)}"
            print(f"{path:28} p50 {p50:6.1f}  p95 {p95:6.1f} ms  {size / 1024:6.0f} KiB{failed}", flush=True)


# --- trouble


def send_storm(port: int, token: str, nodes: int, rate: int, over: Any, results: Any) -> None:
    """In a process of its own, until `over`: kernel lines of the second cluster, spread over its nodes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    statuses: Counter[int] = Counter()
    begun, longest_s = time.monotonic(), 0.0
    for number in itertools.count():
        if over.is_set():
            break
        time.sleep(max(0.0, begun + number * _LINES / rate - time.monotonic()))
        body = storm_body(number, nodes)
        asked = time.monotonic()
        connection.request("POST", "/api/v1/signals/kernel-log", body, headers)
        answer = connection.getresponse()
        answer.read()
        statuses[answer.status] += 1
        longest_s = max(longest_s, time.monotonic() - asked)
    results.put((dict(statuses), time.monotonic() - begun, longest_s))


def storm_body(number: int, nodes: int) -> bytes:
    """Mostly faults of programs; each tenth line is a lost GPU."""
    now, first = datetime.now(UTC).isoformat(), time.time_ns() // 1000
    entries = [
        {"time": now, "seq": first + one, "line": _STORM.format(number=first + one) if one % 10 else FATAL}
        for one in range(_LINES)
    ]
    node = f"gpu{number % nodes + 1:04d}"
    return msgspec.json.encode({"cluster": STORMY, "node": node, "boot_id": "boot", "entries": entries})


@contextmanager
def storm(many: Many, token: str, nodes: int, rate: int) -> Iterator[None]:
    fork = multiprocessing.get_context("fork")
    over, results = fork.Event(), fork.Queue()
    sender = fork.Process(target=send_storm, args=(many.stack.port, token, nodes, rate, over, results))
    sender.start()
    try:
        yield
    finally:
        over.set()
        statuses, took_s, longest_s = results.get(timeout=60)
        sender.join(10)
        lines = statuses.get(202, 0) * _LINES
        print(f"  the storm: {lines / took_s:,.0f} lines/s, answers {statuses}, longest {longest_s:.1f} s")


@contextmanager
def hanging(many: Many) -> Iterator[None]:
    """The third cluster's Slurm takes calls and answers none."""
    pid = many.slurms[HANGING].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def cpu_by_part(many: Many) -> Iterator[None]:
    """Prints what the parts and the Slurms worked meanwhile, of the clusters in trouble by name."""
    parts = many.stack.pids()
    before, begun = {name: cpu_s(descendants(pid)) for name, pid in parts.items()}, time.monotonic()
    yield
    took_s, shares = time.monotonic() - begun, Counter[str]()
    for name, pid in parts.items():
        shown = name if name.endswith((STORMY, HANGING)) else kind_of(name)
        shares[shown] += (cpu_s(descendants(pid)) - before[name]) / took_s * 100 if name != "up" else 0
    print("  CPU %: " + ", ".join(f"{name} {share:.0f}" for name, share in shares.most_common(8)))


class Faults:
    """Fatal lines, one node after the other, and until when Slurm shows its drain."""

    def __init__(self, many: Many, cluster: str, tokens: dict[str, str]) -> None:
        self._cluster, self._slurm = cluster, many.slurm(cluster)
        headers = {"Authorization": f"Bearer {tokens[cluster]}"}
        self._client = httpx.Client(base_url=many.stack.url, headers=headers, timeout=60)
        self._nodes = (f"gpu{number:04d}" for number in itertools.count(1))

    def send(self) -> str:
        node = next(self._nodes)
        entry = {"time": datetime.now(UTC).isoformat(), "seq": time.time_ns(), "line": FATAL}
        body = {"cluster": self._cluster, "node": node, "boot_id": "boot", "entries": [entry]}
        answer = self._client.post("/api/v1/signals/kernel-log", json=body)
        assert answer.status_code == 202 and answer.json()["accepted"] == 1, answer.text
        return node

    def drain_ms(self) -> tuple[float, float]:
        """Of one more node: line sent -> answered, and -> drained."""
        begun = time.perf_counter()
        node = self.send()
        answered = time.perf_counter()
        while not self._slurm.node(node).drain:
            if time.perf_counter() - begun > 60:
                sys.exit(f"{node} of {self._cluster} is not drained after 60 s")
            time.sleep(0.002)
        return (answered - begun) * 1000, (time.perf_counter() - begun) * 1000

    def measure(self, count: int) -> list[tuple[float, float]]:
        found = []
        for _ in range(count):
            found.append(self.drain_ms())
            time.sleep(0.5)
        return found


def show_round(title: str, found: Sequence[tuple[float, float]]) -> list[float]:
    """p50 and p95 of the answers and of the drains."""
    answers, drains = ([each[index] for each in found] for index in (0, 1))
    figures = [quantile(values, share) for values in (answers, drains) for share in (0.5, 0.95)]
    words = "answered p50 {:.0f}, p95 {:.0f} ms; drained p50 {:.0f}, p95 {:.0f} ms".format(*figures)
    print(
        f"{title:8} n={len(found)}: {words}, most {max(drains):.0f}; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return figures


def in_turn(many: Many, ledger: Ledger, asked: argparse.Namespace) -> None:
    """Rounds without and with trouble, in turn."""
    tokens = {
        name: many.stack.token("signals", "--cluster", name, "--vouches", "kernel") for name in many.names
    }
    calm, third = Faults(many, CALM, tokens), Faults(many, HANGING, tokens)
    calm.measure(3)
    found: dict[str, list[tuple[float, float]]] = {"quiet": [], "trouble": []}
    for number in range(asked.rounds):
        quiet = calm.measure(asked.count)
        show_round("quiet", quiet)
        with hanging(many), storm(many, tokens[STORMY], asked.nodes, asked.lines):
            third.send()
            time.sleep(2)
            with cpu_by_part(many):
                trouble = calm.measure(asked.count)
            if number == 0:
                show_pages(many, 8)
        show_round("trouble", trouble)
        found["quiet"] += quiet
        found["trouble"] += trouble
        begun = time.monotonic()
        wait_until(lambda: ledger.waiting() == 0, 300, what="the storm is read", every_s=0.5)
        print(f"  the rest of the storm was read {time.monotonic() - begun:.1f} s after its end", flush=True)
    figures = [show_round(title, each) for title, each in found.items()]
    ratios = ", ".join(f"{b / a:.2f}" for a, b in zip(*figures, strict=True))
    print(f"trouble / quiet: {ratios}")


def touched(many: Many) -> list[str]:
    """What the trouble changed where it may change nothing."""
    slurms = {name: many.slurm(name).snapshot().nodes.values() for name in many.names}
    drained = {name: sum(node.drain for node in nodes) for name, nodes in slurms.items()}
    headers = many.stack.headers("viewer")
    asked = many.stack.http.get(
        f"{many.stack.url}/api/v1/breaker", params={"cluster": STORMY}, headers=headers
    )
    print(f"drained: {({name: count for name, count in drained.items() if count})}; "
          f"breaker of {STORMY}: {asked.json()['state']}")  # fmt: skip
    found = [f"{name} has {drained[name]} drains" for name in many.names[3:] if drained[name]]
    for name in (CALM, *many.names[3:]):
        url = f"{many.stack.url}/api/v1/breaker"
        state = many.stack.http.get(url, params={"cluster": name}, headers=headers).json()["state"]
        found += [f"the breaker of {name} is {state}"] if state != "closed" else []
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--count", type=int, default=15, help="drains of a round")
    parser.add_argument("--lines", type=int, default=5000, help="a second, of the storm")
    asked = parser.parse_args()
    folder = make_scratch()
    many = Many(folder, asked.clusters, asked.nodes)
    try:
        begun = time.monotonic()
        with many.stack:
            wait_until(many.are_all_ready, 300, what="all clusters are ready", every_s=0.5)
            took_s = time.monotonic() - begun
            print(f"{asked.clusters} clusters of {asked.nodes} nodes ready after {took_s:.0f} s", flush=True)
            ledger = Ledger(many)
            time.sleep(PROVE_AFTER_S)
            show_cost(many, ledger)
            show_pages(many, 20)
            in_turn(many, ledger, asked)
            wrong = touched(many)
            ledger.close()
    finally:
        many.stop()
        shutil.rmtree(folder, ignore_errors=True)
    for each in wrong:
        print(f"WRONG: {each}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
