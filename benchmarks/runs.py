"""Runs at once: `python -m benchmarks.runs [--runs 1000] [--nodes 1250] [--rate 20] [--clients 64]`.

`healer up` with everything on beside a simulated Slurm, caps wide open. A person asks for as many drains at
once; when all wait for their repair, drains of other nodes are asked for one by one at `--rate` a second, so
that the number of open runs stays as requested; then all nodes are given back at once. Printed for each
part: the time from accepting a run to its first step, and steps ended a second, by the product's time stamps.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks._load import CLUSTER, Connection, Product, cpu_s, product, quantile
from benchmarks.path import OPEN_CAPS
from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.tokens import PostgresTokens
from healer.embedded import running
from healer.model import Role
from healer.ports.callers import NewToken
from tests.support.seals import sealed
from tests.support.wait import wait_until

#: So many of the nodes are left for the runs that are asked for one by one.
MORE = 200
END_S = 400.0


class Asker:
    """A person's client: asks for a playbook on each of these nodes."""

    def __init__(self, port: int, token: str, clients: int) -> None:
        self._port, self._token, self._clients = port, token, clients

    def at_once(self, playbook: str, nodes: list[str]) -> float:
        """Seconds until the last answer."""
        begun = time.perf_counter()
        asyncio.run(self._ask(playbook, nodes, None))
        return time.perf_counter() - begun

    def one_by_one(self, playbook: str, nodes: list[str], rate: float) -> None:
        asyncio.run(self._ask(playbook, nodes, rate))

    async def _ask(self, playbook: str, nodes: list[str], rate: float | None) -> None:
        path = f"/api/v1/playbooks/{playbook}/runs"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        left, begun = list(enumerate(nodes)), time.perf_counter()

        async def some() -> None:
            connection = await Connection(self._port, path, headers).open()
            while left:
                number, node = left.pop(0)
                if rate is not None:
                    await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
                body = {"cluster": CLUSTER, "node": node, "reason": "benchmark"}
                await connection.post(msgspec.json.encode(body))
            connection.close()

        await asyncio.gather(*(some() for _ in range(self._clients)))


class Book:
    """What the product wrote down, read when a part is over."""

    def __init__(self, db: sa.Engine) -> None:
        self._db = db

    def states(self, playbook: str, state: str) -> int:
        query = sa.text("SELECT count(*) FROM runs WHERE playbook = :playbook AND state = :state")
        with self._db.connect() as conn:
            return conn.execute(query, {"playbook": playbook, "state": state}).scalar_one()

    def report(self, what: str, playbook: str, since: datetime) -> int:
        """Runs accepted since then: their starts, and how many steps ended between the first and the last."""
        query = sa.text(
            "SELECT r.created_at, max(l.at) AS last, "
            "min(l.at) FILTER (WHERE l.event IN ('started', 'done', 'waiting')) AS begun, "
            "count(*) FILTER (WHERE l.event IN ('done', 'skipped', 'waiting')) AS steps "
            "FROM runs r JOIN run_log l ON l.run = r.id "
            "WHERE r.playbook = :playbook AND r.created_at >= :since GROUP BY r.id"
        )
        with self._db.connect() as conn:
            rows = conn.execute(query, {"playbook": playbook, "since": since}).all()
        starts = [(row.begun - row.created_at).total_seconds() * 1000 for row in rows]
        took_s = (max(row.last for row in rows) - min(row.created_at for row in rows)).total_seconds()
        steps = sum(row.steps for row in rows)
        print(
            f"{what}: {len(rows)} runs, {steps} steps in {took_s:.1f} s: {steps / took_s:.0f} steps/s; "
            f"accepted -> first step begun p50 {quantile(starts, 0.5):.0f}, "
            f"p99 {quantile(starts, 0.99):.0f}, max {max(starts):.0f} ms",
            flush=True,
        )
        return steps


def measure(up: Product, options: argparse.Namespace) -> None:
    found = running.find(up.stack.data_dir)
    db = make_engine(found.database_url, pool_size=2)
    tokens = PostgresTokens(db, CLUSTER, up.stack.token_key())
    new = NewToken(role=Role.operator, name="bench operator")
    token = sealed(tokens, tokens.create(new, now=datetime.now(UTC), by="bench"))
    asker, book = Asker(up.stack.port, token, options.clients), Book(db)
    names = [f"gpu{number:04d}" for number in range(1, options.nodes + 1)]
    first, more = names[: options.runs], names[options.runs : options.runs + MORE]
    spent = Spent(up)
    since = datetime.now(UTC)
    took_s = asker.at_once("drain", first)
    print(f"asked for {len(first)} runs in {took_s:.1f} s", flush=True)
    wait_until(lambda: book.states("drain", "waiting") >= len(first), END_S, what="all wait", every_s=0.2)
    spent.report(book.report("at once", "drain", since))
    if more:
        since = datetime.now(UTC)
        asker.one_by_one("drain", more, options.rate)
        wait_until(
            lambda: book.states("drain", "waiting") >= len(first) + len(more),
            END_S,
            what="all wait",
            every_s=0.2,
        )
        spent.report(book.report(f"{options.rate:g} a second beside them", "drain", since))
    since = datetime.now(UTC)
    asker.at_once("resume", first)
    wait_until(lambda: book.states("resume", "done") >= len(first), END_S, what="all are back", every_s=0.2)
    spent.report(book.report("given back at once", "resume", since))


class Spent:
    """Prints the processor time since the last call, by process."""

    def __init__(self, up: Product) -> None:
        self._up, self._before = up, self._now(up)

    def _now(self, up: Product) -> dict[str, float]:
        pids = up.processes() | {"simulated Slurm": {up.slurm_pid}}
        return {name: cpu_s(those) for name, those in pids.items()} | {"this": time.process_time()}

    def report(self, steps: int) -> None:
        now = self._now(self._up)
        spent = {name: used - self._before.get(name, 0.0) for name, used in now.items()}
        self._before = now
        print(
            "  CPU-seconds: " + ", ".join(f"{name} {used:.1f}" for name, used in spent.items() if used > 0.05)
        )
        print(f"  {sum(spent.values()) / steps * 1000:.2f} ms a step, with Slurm and this client", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--clients", type=int, default=64, help="that ask at the same time")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="hb-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        with product(folder, options.nodes, **OPEN_CAPS) as up:
            up.at_rest()
            measure(up, options)


if __name__ == "__main__":
    main()
