"""Path cost: a fatal Xid answered 202 -> the drain in slurmctld's own log, on a real Slurm.

    python benchmarks/path.py [--nodes 32] [--count 200]

Command-line adapter, settling time off, caps wide open, one fault at a time on a machine at rest (`REST_S`).
Prints p50, p99 and where the time goes. After each fault a bare `scontrol update` drains a node that is
drained already, so that both meet the same load: the figures to compare are the ratios. Needs root and
Debian's Slurm (`make test` installs it).
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks._load import quantile
from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.tables import runs
from healer.adapters.postgres.tokens import PostgresTokens
from healer.embedded import running
from healer.embedded.embedded_slurm import RealSlurm
from healer.model import Role
from healer.ports.callers import NewToken
from tests.support.seals import sealed
from tests.support.up import Stack

OPEN_CAPS = {
    "HEALER_MODE": "auto",
    "HEALER_SETTLE_S": "0",
    "HEALER_GUARD_MAX_SHARE": "1",
    "HEALER_GUARD_MAX_NODES": "10000",
    "HEALER_GUARD_MIN_SERVICE_SHARE": "0",
    "HEALER_GUARD_SHARE_PER_HOUR": "1",
    "HEALER_GUARD_PARTITION_SHARE": "1",
    "HEALER_GUARD_REPEAT_H": "0.0001",
    "HEALER_BREAKER_SHARE": "1.0",
}
LINE = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python3, GPU has fallen off the bus."
#: First turns that are not counted: connections are made and caches filled.
WARM_UP = 5
#: After a node was returned the detector, the sealer and the channels still work for a while.
REST_S = 0.5
_DRAIN = re.compile(r"^\[(\S+)\] update_node: node (\S+) state set to DRAIN", re.MULTILINE)


class Log:
    """Follows slurmctld's log: when each node was last drained."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, path.stat().st_size

    def drains(self) -> Iterator[tuple[str, datetime]]:
        with self._path.open() as log:
            log.seek(self._offset)
            text = log.read()
            self._offset = log.tell()
        for stamp, node in _DRAIN.findall(text):
            yield node, datetime.fromisoformat(stamp).astimezone(UTC)


def wait(condition, what: str, timeout_s: float = 30.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"gave up waiting for {what}")
        time.sleep(0.005)


def measure(slurm: RealSlurm, stack: Stack, count: int) -> None:
    found = running.find(stack.data_dir)
    db = make_engine(found.database_url, pool_size=2)
    tokens = PostgresTokens(db, "pod1", stack.token_key())
    now = datetime.now(UTC)
    signals = tokens.create(NewToken(role=Role.signals, name="bench", vouches="kernel"), now=now, by="bench")
    operator = tokens.create(NewToken(role=Role.operator, name="bench operator"), now=now, by="bench")
    sealed(tokens, signals)
    sealed(tokens, operator)
    send = httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {signals}"})
    ask = httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {operator}"})
    log = Log(slurm.slurmctld_log)
    drained: dict[str, datetime] = {}
    answered: dict[str, datetime] = {}
    costs, post, bare = [], [], []
    for number in range(count + WARM_UP):
        node = slurm.node_names[number % (slurm.nodes - 1)]
        drained.pop(node, None)
        body = {
            "cluster": "pod1",
            "node": node,
            "boot_id": f"boot-{number}",
            "entries": [{"time": datetime.now(UTC).isoformat(), "seq": number, "line": LINE}],
        }
        begun = time.perf_counter()
        answer = send.post("/api/v1/signals/kernel-log", json=body)
        answered[node] = datetime.now(UTC)
        post.append(time.perf_counter() - begun)
        assert answer.json()["accepted"] == 1, answer.text

        def seen() -> bool:
            drained.update(log.drains())
            return node in drained  # noqa: B023 - asked within the loop's turn

        wait(seen, f"the drain of {node}")
        if number >= WARM_UP:
            costs.append((drained[node] - answered[node]).total_seconds() * 1000)
            bare.append(bare_drain_ms(slurm))
        give_back(ask, db, node)
        time.sleep(REST_S)
    report(costs, post, db)
    compare(costs, bare)


def bare_drain_ms(slurm: RealSlurm) -> float:
    """The command alone, on the last node, which was drained before healer began."""
    begun = time.perf_counter()
    command = ("scontrol", "update", f"NodeName={slurm.node_names[-1]}", "State=DRAIN", "Reason=benchmark")
    subprocess.run(command, env=slurm.env, capture_output=True, check=True)
    return (time.perf_counter() - begun) * 1000


def compare(costs: list[float], bare: list[float]) -> None:
    p50, p99 = quantile(bare, 0.5), quantile(bare, 0.99)
    print(f"bare scontrol: p50 {p50:.1f} ms  p99 {p99:.1f} ms")
    print(f"ratio: p50 {quantile(costs, 0.5) / p50:.1f} x  p99 {quantile(costs, 0.99) / p99:.1f} x")


def give_back(ask: httpx.Client, db: sa.Engine, node: str) -> None:
    """Returns the node once its run waits for the repair."""

    def in_state(playbook: str, state: str) -> bool:
        query = sa.select(runs.c.state).where(runs.c.node == node, runs.c.playbook == playbook)
        with db.connect() as conn:
            return conn.execute(query.order_by(runs.c.created_at.desc()).limit(1)).scalar() == state

    wait(lambda: in_state("gpu-fatal", "waiting"), f"the run on {node} waits")
    body = {"cluster": "pod1", "node": node, "reason": "benchmark"}
    answer = ask.post("/api/v1/playbooks/resume/runs", json=body)
    assert answer.status_code == 202, answer.text
    wait(lambda: in_state("resume", "done"), f"the return of {node}")


def report(costs: list[float], post: list[float], db: sa.Engine) -> None:
    print(f"n={len(costs)}  POST answered p50 {statistics.median(post) * 1000:.1f} ms")
    print(
        f"answered -> drain in slurmctld's log: p50 {quantile(costs, 0.5):.1f} ms  "
        f"p90 {quantile(costs, 0.9):.1f} ms  p99 {quantile(costs, 0.99):.1f} ms  max {max(costs):.1f} ms"
    )
    parts = split(db)
    print("where it goes, medians: " + ", ".join(f"{name} {value:.1f} ms" for name, value in parts))


def split(db: sa.Engine) -> list[tuple[str, float]]:
    """Signal's arrival -> walk -> step started -> step read back, by the product's own time stamps."""
    query = sa.text(
        "SELECT i.arrived_at, r.created_at, s.at AS started, d.at AS done FROM inbox i "
        "JOIN incidents n ON n.node = i.node AND n.doc->'evidence'->0->>'digest' = encode(i.digest, 'hex') "
        "JOIN runs r ON r.incident = n.id AND r.playbook = 'gpu-fatal' "
        "JOIN run_log s ON s.run = r.id AND s.step = 'drain' AND s.event = 'started' "
        "JOIN run_log d ON d.run = r.id AND d.step = 'drain' AND d.event = 'done' WHERE i.kind = 'xid'"
    )
    with db.connect() as conn:
        rows = conn.execute(query).all()
    stages = {
        "arrival to walk": [row.created_at - row.arrived_at for row in rows],
        "walk to step": [row.started - row.created_at for row in rows],
        "step to read back": [row.done - row.started for row in rows],
    }
    totals = [sum((times[index] for times in stages.values()), timedelta()) for index in range(len(rows))]
    slow = totals.index(max(totals))
    summary = ", ".join(
        f"{name} {times[slow].total_seconds() * 1000:.1f} ms" for name, times in stages.items()
    )
    print(f"the slowest, to read back: {summary}")
    return [
        (name, statistics.median(one.total_seconds() * 1000 for one in times))
        for name, times in stages.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--count", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hb-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        with RealSlurm(folder / "s", nodes=given.nodes) as slurm:
            print(f"real Slurm of {given.nodes} nodes", flush=True)
            bare_drain_ms(slurm)
            stack = Stack(folder, **OPEN_CAPS, **slurm.env)
            stack.start()
            try:
                measure(slurm, stack, given.count)
            finally:
                stack.stop()


if __name__ == "__main__":
    main()
