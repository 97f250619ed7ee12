"""An operator's pause while strangers show wrong tokens, with what guards against them and without.

    python -m benchmarks.floods [--connections 1000] [--addresses 1] [--pauses 30]

`healer api` on a real PostgreSQL whose commits do not wait for the disk. CONNECTIONS connections, from
ADDRESSES addresses of this machine, each send one wrong token after the other. Beside them an operator sets a
pause, each time on a connection of its own. Prints the time from its opening to the answer: the pause is
committed then, and the gate reads it in the transaction of its next step. Then the same with budget and lanes
off. Ends with 1 if a pause took over 1 s with them on.
"""

import argparse
import asyncio
import multiprocessing
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks._load import quantile
from tests.support.api_process import ApiProcess, api_process
from tests.support.stack import running_postgres

LIMIT_S, GIVEN_UP_S = 1.0, 30.0
WARM_S = 3.0
#: `healer api` without the budget and the lanes.
WITHOUT = """
import sys
from fastapi import APIRouter
from healer.api import access, credential_budget, lanes
credential_budget.CredentialBudget.__init__.__kwdefaults__["burst"] = float("inf")
access.Access._lane = lambda self, digest: self.reach.common
lanes.LaneRouter.add_api_route = APIRouter.add_api_route
from healer.commands.cli import main
sys.argv = ["healer", "api"]
main()
"""


def strangers(port: int, connections: int, addresses: int, stop: Any, answers: Any) -> None:
    """A process of its own, until `stop` is set."""
    counted: Counter[str] = Counter()

    async def connection(number: int) -> None:
        address = f"127.1.{number % addresses // 250}.{number % addresses % 250 + 1}"
        while not stop.is_set():
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
                while not stop.is_set():
                    token = f"heal_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}"
                    line = f"Authorization: Bearer {token}"
                    writer.write(f"GET /api/v1/nodes HTTP/1.1\r\nHost: 127.0.0.1\r\n{line}\r\n\r\n".encode())
                    answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                    counted[answer.split()[1]] += 1
                    await reader.readexactly(int(answer.partition("content-length: ")[2].split("\r\n")[0]))
            except (OSError, asyncio.IncompleteReadError):
                counted["no answer"] += 1
                await asyncio.sleep(0.1)

    async def every() -> None:
        await asyncio.gather(*(connection(number) for number in range(connections)))

    asyncio.run(every())
    answers.put(dict(counted))


def pause_s(api: ApiProcess, token: str) -> float:
    """Seconds until a pause is set; as many as it was tried for where it was not."""
    begun = time.perf_counter()
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": secrets.token_hex(8)}
    with httpx.Client(base_url=f"{api.url}/api/v1", headers=headers, timeout=GIVEN_UP_S) as client:
        while (passed := time.perf_counter() - begun) < GIVEN_UP_S:
            try:
                if client.post("/pauses", json={"reason": "benchmark"}).status_code == 201:
                    return time.perf_counter() - begun
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
    return passed


def measured(database: sa.Engine, given: argparse.Namespace, program: tuple[str, ...]) -> list[float]:
    with tempfile.TemporaryDirectory() as folder, api_process(database, Path(folder), program=program) as api:
        token = api.token("operator")
        idle = [pause_s(api, token) for _ in range(5)]
        stop, answers = multiprocessing.Event(), multiprocessing.Queue()
        flood = multiprocessing.Process(
            target=strangers, args=(api.port, given.connections, given.addresses, stop, answers), daemon=True
        )
        flood.start()
        time.sleep(WARM_S)
        begun = time.monotonic()
        found = [pause_s(api, token) for _ in range(given.pauses)]
        took_s = time.monotonic() - begun
        stop.set()
        print(f"    idle p50 {quantile(idle, 0.5) * 1000:.0f} ms; {took_s:.0f} s; strangers {answers.get()}")
        flood.join(30)
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--addresses", type=int, default=1)
    parser.add_argument("--pauses", type=int, default=30)
    given = parser.parse_args()
    slowest = {}
    for what, program in (("with", ("-m", "healer", "api")), ("without", ("-c", WITHOUT))):
        with running_postgres() as server:
            database = sa.create_engine(server.url)
            found = measured(database, given, program)
            database.dispose()
        slowest[what] = max(found)
        print(
            f"{what} budget and lanes, {given.connections} connections from {given.addresses} addresses: "
            f"p50 {quantile(found, 0.5) * 1000:.0f} ms, max {max(found) * 1000:.0f} ms",
            flush=True,
        )
    return int(slowest["with"] > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
