"""What healer-follow costs a node, and how long a kernel's line takes to a drained node.

    python benchmarks/follower.py [--idle 120] [--lines 10000] [--count 20]

First the follower alone, on this machine's own Python: processor time and memory at rest (heartbeats alone),
then after a burst of lines. Then on a real Slurm: a follower reads a fatal Xid from a pipe in the place of
/dev/kmsg, until slurmctld's own log has the drain. Needs root and Debian's Slurm for the second part.
"""

import argparse
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import sqlalchemy as sa
from path import OPEN_CAPS, Log, give_back, quantile, wait

from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.tokens import PostgresTokens
from healer.embedded import running
from healer.embedded.embedded_slurm import RealSlurm
from healer.model import Role
from healer.ports.callers import NewToken
from tests.support.follower import XID_79, Following, Hub, following
from tests.support.seals import sealed
from tests.support.up import Stack

TICK_S = 0.01


def used(pid: int) -> tuple[float, float]:
    """(processor seconds, resident MB) of a process; its children are not in it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    rss = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line)
    return (int(fields[11]) + int(fields[12])) * TICK_S, int(rss.split()[1]) / 1024


def cost(folder: Path, idle_s: float, lines: int) -> None:
    with Hub() as hub, following(folder, hub.url) as node:
        node.start()
        wait(lambda: len(hub.beats()) >= 1, "a heartbeat")
        assert node.process is not None
        pid = node.process.pid
        before, _ = used(pid)
        time.sleep(idle_s)
        cpu_s, rss = used(pid)
        share = (cpu_s - before) / idle_s * 100
        print(
            f"at rest for {idle_s:g} s, {len(hub.beats())} heartbeats: {share:.3f} % of a core, {rss:.1f} MB"
        )
        began = time.perf_counter()
        node.burst([f"NVRM: Xid (PCI:0000:9b:00): 31, number {number}" for number in range(lines)])
        wait(lambda: len(hub.entries()) >= lines, "all lines", 60)
        took = time.perf_counter() - began
        burst_s, rss = used(pid)
        cost_us = (burst_s - cpu_s) / lines * 1e6
        print(f"{lines:,} lines at once: delivered in {took:.2f} s, {cost_us:.0f} µs each, then {rss:.1f} MB")


def latency(folder: Path, count: int) -> None:
    with RealSlurm(folder / "s", 32) as slurm:
        stack = Stack(folder, **{**OPEN_CAPS, "HEALER_SETTLE_S": "2"}, **slurm.env)
        stack.start()
        try:
            db = make_engine(running.find(stack.data_dir).database_url, pool_size=2)
            print(
                spread(
                    "line in the kernel's log -> drain in slurmctld's log",
                    drains(folder, slurm, stack, db, count),
                )
            )
        finally:
            stack.stop()


def drains(folder: Path, slurm: RealSlurm, stack: Stack, db: sa.Engine, count: int) -> list[float]:
    import httpx

    tokens, now, log = (
        PostgresTokens(db, "pod1", stack.token_key()),
        datetime.now(UTC),
        Log(slurm.slurmctld_log),
    )
    operator = sealed(tokens, tokens.create(NewToken(role=Role.operator, name="bench"), now=now, by="bench"))
    ask = httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {operator}"})
    found: list[float] = []
    for number in range(count):
        name = slurm.node_names[number % slurm.nodes]
        with following(folder / f"node{number}", stack.url, HEALER_NODE=name) as node:
            new = NewToken(role=Role.signals, name="node", node=name)
            node.token.write_text(sealed(tokens, tokens.create(new, now=now, by="bench")))
            node.boot(f"{number:08d}-1685-44bd-a6ed-5fc0bc1c44ae")
            node.start()
            found.append(one_drain(node, name, log))
            give_back(ask, db, name)
    return found


def one_drain(node: Following, name: str, log: Log) -> float:
    node.say("NVRM: loading NVIDIA UNIX x86_64 Kernel Module")
    time.sleep(2)  # its first heartbeat has gone out: it is at rest
    begun = datetime.now(UTC)
    node.say(XID_79)
    seen: dict[str, datetime] = {}

    def drained() -> bool:
        seen.update(log.drains())
        return name in seen

    wait(drained, f"the drain of {name}")
    return (seen[name] - begun).total_seconds() * 1000


def spread(what: str, times: list[float]) -> str:
    return f"{what}, n={len(times)}: p50 {quantile(times, 0.5):.0f} ms, max {max(times):.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--idle", type=float, default=120)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--count", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hb-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        cost(folder / "alone", given.idle, given.lines)
        latency(folder, given.count)


if __name__ == "__main__":
    main()
