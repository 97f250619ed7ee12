"""A sender of a whole fleet that keeps what was answered, and a database that can be made to go away.

Used by tests/system/e2e/test_database_away.py and by benchmarks/database_away.py, so that both judge alike.
"""

import contextlib
import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
import sqlalchemy as sa

from healer.embedded import running
from healer.embedded.user import name_of
from tests.support.processes import descendants
from tests.support.up import Stack
from tests.support.wait import wait_until

BOOT = "0b11d014-1685-04bd-26ed-5fc0bc1c44ae"
LINE = "NVRM: GPU at PCI:0000:9b:00: GPU-{uuid}"
#: Of one shipper: its lines are told apart by it.
_SENDERS = iter(range(1, 1 << 30))


@dataclass
class Fleet:
    """One shipper for each node: numbered kernel lines, each sent until it is accepted, in their order.

    `accepted`: node -> numbers that were answered 2xx, in the order of the answers.
    """

    url: str
    token: str
    nodes: list[str]
    every_s: float = 0.05
    lines: int = 1
    accepted: dict[str, list[int]] = field(default_factory=dict)
    answers: Counter[int] = field(default_factory=Counter)
    slowest_s: float = 0.0
    mark: int = field(default_factory=lambda: next(_SENDERS))
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self, part: list[str]) -> None:
        """Sends for these nodes in turn, one request for each `every_s` s."""
        number = 0
        due = time.monotonic()
        with httpx.Client(base_url=f"{self.url}/api/v1", headers=self._headers(), timeout=20) as client:
            while not self._over.is_set():
                number += self.lines
                for node in part:
                    self._send(client, node, number)
                    due += self.every_s
                    if self._over.wait(max(0.0, due - time.monotonic())):
                        return

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def _send(self, client: httpx.Client, node: str, first: int) -> None:
        numbers = range(first, first + self.lines)
        entries = [{"line": LINE.format(uuid=self.uuid(one)), "seq": one} for one in numbers]
        body = {"node": node, "boot_id": f"{BOOT[:-8]}{self.mark:08d}", "entries": entries}
        while not self._over.is_set():
            begun = time.monotonic()
            answer = None
            with contextlib.suppress(httpx.HTTPError):
                answer = client.post("/signals/kernel-log", json=body)
            self.answers[0 if answer is None else answer.status_code] += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
            if answer is not None and answer.status_code == 202:
                counts = answer.json()
                assert counts["accepted"] + counts["duplicates"] == self.lines, counts
                self.accepted.setdefault(node, []).extend(numbers)
                return
            assert answer is None or answer.status_code in {429, 500, 503}, answer.text
            self._over.wait(0.05)

    def uuid(self, number: int) -> str:
        return f"{number:08d}-feed-4000-8000-{self.mark:012d}"

    @property
    def count(self) -> int:
        return sum(len(one) for one in list(self.accepted.values()))

    @contextmanager
    def sending(self, threads: int = 4) -> Iterator["Fleet"]:
        parts = [self.nodes[start::threads] for start in range(min(threads, len(self.nodes)))]
        running_ = [threading.Thread(target=self.run, args=(part,)) for part in parts]
        for one in running_:
            one.start()
        try:
            yield self
        finally:
            self._over.set()
            for one in running_:
                one.join()

    # --- afterwards ---

    def stored(self, database: psycopg.Connection) -> dict[str, list[int]]:
        """node -> numbers as they lie in the inbox, in its order."""
        rows = database.execute(
            "SELECT node, doc->>'line' FROM inbox WHERE doc->>'line' LIKE %s ORDER BY id",
            [f"%-feed-4000-8000-{self.mark:012d}"],
        )
        found: dict[str, list[int]] = {}
        for node, line in rows:
            found.setdefault(node, []).append(int(line[-36:][:8]))
        return found


@dataclass(frozen=True)
class Compared:
    """What was answered 2xx against what is stored."""

    answered: int
    missing: int
    twice: int
    out_of_order: int


def compare(answered: dict[str, list[int]], stored: dict[str, list[int]]) -> Compared:
    missing = twice = disorder = 0
    for node, numbers in answered.items():
        found = stored.get(node, [])
        missing += len(set(numbers) - set(found))
        twice += len(found) - len(set(found))
        disorder += sum(later < earlier for earlier, later in itertools.pairwise(found))
    return Compared(sum(len(one) for one in answered.values()), missing, twice, disorder)


def superuser_url(stack: Stack) -> str:
    """Of the database's superuser, whom nothing of healer may be: the server is asked to allow it here."""
    url = sa.make_url(running.find(stack.data_dir).database_url).set(
        drivername="postgresql", username="postgres"
    )
    data = stack.data_dir / "postgres" / "data"
    names = data / "pg_ident.conf"
    line = f"healer {name_of(os.geteuid())} postgres\n"
    if line not in names.read_text():
        with names.open("a") as file:
            file.write(line)
        os.kill(stack.pids()["postgres"], signal.SIGHUP)
    return url.render_as_string(hide_password=False)


def connect(stack: Stack) -> psycopg.Connection:
    """As the database's superuser."""
    url = superuser_url(stack)

    def connected() -> psycopg.Connection | None:
        with contextlib.suppress(psycopg.OperationalError):
            return psycopg.connect(url, connect_timeout=5, autocommit=True)
        return None

    found = wait_until(connected, what="the server has read who may connect")
    assert found is not None
    return found


@contextmanager
def frozen(stack: Stack) -> Iterator[None]:
    """Every process of PostgreSQL is stopped: connections are accepted, and nothing is ever answered."""
    first = stack.pids()["postgres"]
    os.kill(first, signal.SIGSTOP)  # so that it makes no more of them
    stopped = [first, *(descendants(first) - {first})]
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(stopped):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def ready(stack: Stack) -> dict[str, Any]:
    """What /readyz says, {} while it does not answer."""
    with contextlib.suppress(httpx.HTTPError, ValueError):
        return stack.http.get(f"{stack.url}/readyz", timeout=5).json()
    return {}


def spooled(stack: Stack) -> dict[str, Any]:
    return ready(stack).get("checks", {}).get("spool", {})


def spool_files(stack: Stack) -> list[Path]:
    return [one for one in (stack.data_dir / "spool").glob("*/*") if one.name != "lock"]


def rss_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
