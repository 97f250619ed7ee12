"""What the benchmarks of measured signals share: a product under load, its processes' CPU, a plain client."""

import asyncio
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from pathlib import Path

import sqlalchemy as sa

from healer.adapters.postgres.tokens import PostgresTokens
from healer.bootstrap.web import PROVE_AFTER_S
from healer.embedded import running
from healer.embedded.descent import code_folders, descend
from healer.embedded.user import system_users
from healer.model import Role
from healer.ports.callers import NewToken
from healer.sim.sim_slurm import SimClient
from healer.sim.sim_slurm import main as run_slurm
from tests.support.processes import descendants
from tests.support.seals import sealed
from tests.support.up import Stack
from tests.support.wait import wait_until

CLUSTER = "pod1"
_TICKS = os.sysconf("SC_CLK_TCK")
#: At rest: less than this share of a core, looked at so long.
_RESTING, _REST_S = 0.25, 5.0


@dataclass
class Product:
    """`healer up` beside a simulated Slurm."""

    stack: Stack
    slurm: SimClient
    token: str
    slurm_pid: int
    started: float = field(default_factory=time.monotonic)

    def at_rest(self) -> float:
        """Waits until what is done once after a start is over: the API proves its rules after half a
        minute. Ready; how many CPU-seconds a second all processes take then."""
        pids = set().union(*self.processes().values())
        while True:
            before = cpu_s(pids)
            time.sleep(_REST_S)
            share = (cpu_s(pids) - before) / _REST_S
            if share < _RESTING and time.monotonic() - self.started > PROVE_AFTER_S + 2 * _REST_S:
                return share

    def processes(self) -> dict[str, set[int]]:
        return processes_of(self.stack)


def processes_of(stack: Stack) -> dict[str, set[int]]:
    """Name -> its process and all below it. A process below two names counts for the inner one."""
    found = {name: descendants(pid) for name, pid in stack.pids().items()}
    inner = set().union(*(pids for name, pids in found.items() if name != "up"))
    found["up"] -= inner
    return found


def simulated_slurm(folder: Path, cluster: str, nodes: int) -> tuple[Path, BaseProcess]:
    """Its socket, on which it answers soon, and its process. It runs as the user of healer's worker, who
    alone may change Slurm."""
    worker = system_users().worker
    sockets = folder / "slurm"
    worker.meeting_folder(sockets)
    socket = sockets / f"{cluster}.sock"

    def serve() -> None:
        descend(worker, code_folders())
        run_slurm([f"--socket={socket}", f"--nodes={nodes}", f"--cluster={cluster}"])

    process = multiprocessing.get_context("fork").Process(target=serve)
    process.start()
    return socket, process


@contextmanager
def product(folder: Path, nodes: int, **settings: str) -> Iterator[Product]:
    """Ready, and the nodes are known to it. Its mode is shadow where `settings` say nothing else."""
    socket, slurm = simulated_slurm(folder, CLUSTER, nodes)
    # Rules of its own: an edit of those in the checkout would be read, and proven, in the middle.
    rules = shutil.copytree(Path(__file__).parents[1] / "rules", folder / "rules")
    environ = {
        "HEALER_MODE": "shadow", "HEALER_CLUSTER": CLUSTER, "HEALER_SLURM_ADAPTERS": "sim",
        "HEALER_SIM_SOCKET": str(socket), "HEALER_RULES_DIR": str(rules),
    }  # fmt: skip
    stack = Stack(folder, **(environ | settings))
    try:
        wait_until(socket.exists, 20, what="the simulated Slurm")
        with stack:
            engine = sa.create_engine(running.find(stack.data_dir).database_url)
            now = datetime.now(UTC)
            tokens = PostgresTokens(engine, CLUSTER, stack.token_key())
            new = NewToken(role=Role.signals, name="bench", vouches="kernel")
            token = sealed(tokens, tokens.create(new, now=now, by="bench"))
            engine.dispose()
            time.sleep(3)  # the poller's first pictures
            assert slurm.pid is not None
            yield Product(stack, SimClient(socket), token, slurm.pid)
    finally:
        slurm.terminate()
        slurm.join(10)


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def cpu_s(pids: Sequence[int] | set[int]) -> float:
    """CPU seconds so far, of processes that live and of their children that ended."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        total += sum(int(field) for field in fields[11:15])
    return total / _TICKS


def memory_mib(pids: Sequence[int] | set[int]) -> float:
    """PSS: what is shared counts once in all."""
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, PermissionError):
            continue
        total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


class Connection:
    """One kept-alive HTTP connection that knows just enough."""

    def __init__(self, port: int, path: str, headers: Mapping[str, str]) -> None:
        header_lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._port, self._head = port, f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header_lines}"

    async def open(self) -> "Connection":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def post(self, body: bytes) -> None:
        """Ends the program with the answer's words for any but a 2xx."""
        self._writer.write(f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        answer_body = b""
        if b"content-length: " in head.lower():
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            answer_body = await self._reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 2"):
            sys.exit(f"{head.decode()}{answer_body.decode()[:500]}")

    def close(self) -> None:
        self._writer.close()


async def send_all(
    port: int, path: str, headers: Mapping[str, str], shards: Sequence[Sequence[bytes]]
) -> float:
    """Each shard in its own order on a connection of its own. Seconds until the last answer."""
    connections = [await Connection(port, path, headers).open() for _ in shards]

    async def one(connection: Connection, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            await connection.post(body)
        connection.close()

    begun = time.perf_counter()
    await asyncio.gather(*(one(*pair) for pair in zip(connections, shards, strict=True)))
    return time.perf_counter() - begun
