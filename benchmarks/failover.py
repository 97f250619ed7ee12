"""Blows on three hosts that run deploy/ha: `python -m benchmarks.failover [--blows N] [--seed S]`.

Real programs in network namespaces (root): etcd, Patroni, PostgreSQL, HAProxy, Redis and two of each part of
healer, at a simulated Slurm. While numbered kernel lines come in, from a seed: SIGKILL of the primary, its
server, its host or one program, or the primary's host cut off. With each blow one more node loses a GPU.
Prints the seconds until the API is ready and until that node is drained; ends with 1 when an accepted line is
missing or there twice, a node was drained twice or not at all, a run is stuck, or the audit is broken.
"""

import argparse
import contextlib
import itertools
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.ha import PARTS, SITE, Site, running_site
from tests.support.loop import LOST, name
from tests.support.wait import in_background, wait_until

#: A blow that makes healer unready does so within this time.
NOTICED_S = 3.0
_BOOT = "0b11d014-1685-04bd-26ed-5fc0bc1c44ae"
_LINE = "NVRM: GPU at PCI:0000:9b:00: GPU-{number:08d}-feed-4000-8000-000000000000"


class Took(NamedTuple):
    """Seconds from a blow until the API is ready, and until a GPU lost after it has drained its node."""

    blow: str
    ready_s: float
    healed_s: float


class Sender:
    """Sends kernel lines to whichever host answers, each until it is accepted."""

    def __init__(self, site: Site, token: str) -> None:
        self._urls = itertools.cycle([f"https://{host.address}/api/v1" for host in site.hosts[:2]])
        headers = {"Authorization": f"Bearer {token}", "Host": SITE}
        self._client = httpx.Client(headers=headers, timeout=5, verify=False, trust_env=False)
        self._url = next(self._urls)
        self.accepted: list[int] = []

    def send(self, node: str, line: str, number: int) -> None:
        body = {"node": node, "boot_id": _BOOT, "entries": [{"line": line, "seq": number}]}
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if self._client.post(f"{self._url}/signals/kernel-log", json=body).status_code == 202:
                    self.accepted.append(number)
                    return
            self._url = next(self._urls)
            time.sleep(0.1)

    @contextmanager
    def sending(self, node: str, every_s: float = 0.1) -> Iterator[None]:
        """Numbered lines that mean nothing."""
        numbers = itertools.count(1)

        def send_next() -> None:
            number = next(numbers)
            self.send(node, _LINE.format(number=number), number)

        with in_background(send_next, every_s):
            yield


def strike(site: Site, sender: Sender, blow: str, node: str, chance: random.Random) -> Took:
    """One blow, and a GPU lost right after it; returns when all is repaired."""
    blows: dict[str, Callable[[], Callable[[], None]]] = {
        "database": site.lose_database,
        "server": site.crash_server,
        "host": site.lose_host,
        "cut off": site.cut_off_host,
    }
    begun = time.monotonic()
    repair = blows[blow]() if blow in blows else site.lose(blow, chance.randrange(2))
    threading.Thread(target=sender.send, args=(node, LOST, 1)).start()
    drained = {"s": 0.0}

    def watch() -> None:
        wait_until(
            lambda: any(node == drain for _, drain in site.slurm.drains), 120, what=f"{node} is drained"
        )
        drained["s"] = time.monotonic() - begun

    watching = threading.Thread(target=watch)
    watching.start()
    ready_s = 0.0  # where it is ready all the time
    if wait_until(lambda: _outcome(site, begun), 10, every_s=0.1) == "away":
        wait_until(site.is_ready, 60, what="healer is ready", every_s=0.1)
        ready_s = time.monotonic() - begun
    watching.join()
    repair()
    wait_until(lambda: len(site.ready_hosts()) == 2, 60, what="both hosts are ready", every_s=0.2)
    wait_until(lambda: site.standby() is not None, 60, what="a synchronous standby", every_s=0.2)
    return Took(blow, ready_s, drained["s"])


def _outcome(site: Site, begun: float) -> str:
    """`away` or `ready` after the blow; empty while that is open."""
    if not site.is_ready():
        return "away"
    return "ready" if time.monotonic() - begun > NOTICED_S else ""


def faults_of(site: Site, sender: Sender, nodes: list[str]) -> list[str]:
    """What may never be, found at the end."""
    found = []
    with site.connect() as conn:
        rows = conn.execute("SELECT doc->>'line' FROM inbox WHERE doc->>'line' LIKE '%-feed-4000-8000-%'")
        stored = [int(line[-36:][:8]) for (line,) in rows]
        stuck = conn.execute("SELECT count(*) FROM runs WHERE state = 'stuck'").fetchone()
    accepted = set(sender.accepted)
    if missing := accepted - set(stored):
        found.append(f"{len(missing)} accepted lines are missing")
    if len(stored) != len(set(stored)):
        found.append("lines are stored twice")
    drains = [node for _, node in site.slurm.drains]
    found += [f"{node} was drained {drains.count(node)} times" for node in nodes if drains.count(node) != 1]
    if stuck is None or stuck[0]:
        found.append("runs are stuck")
    try:
        site.healer("audit", "verify")
    except AssertionError as error:
        found.append(f"the audit is broken: {str(error)[-300:]}")
    return found


def play(
    blows: list[str], chance: random.Random, show: Callable[[str], None] = print
) -> tuple[list[Took], list[str]]:
    """The blows one after the other; what each took, and what was wrong at the end."""
    begun = time.monotonic()
    nodes = [name(number) for number in range(1, len(blows) + 1)]
    with running_site(len(blows) + 8) as site:
        show(f"all runs after {time.monotonic() - begun:.0f} s")
        sender = Sender(site, site.healer("token", "create", "--role", "signals", "--vouches", "kernel"))
        fatal = Sender(site, site.healer("token", "create", "--role", "signals", "--vouches", "kernel"))
        took = []
        with sender.sending(name(len(blows) + 1)):
            for blow, node in zip(blows, nodes, strict=True):
                took.append(strike(site, fatal, blow, node, chance))
                show(f"{blow}: ready after {took[-1].ready_s:.1f} s, healed after {took[-1].healed_s:.1f} s")
        show(f"{len(sender.accepted)} lines accepted")
        return took, faults_of(site, sender, nodes)


def main() -> int:
    parser = argparse.ArgumentParser(description="Blows on a highly available healer.")
    parser.add_argument("--blows", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    kinds = ["database", "server", "host", "cut off", "redis", "haproxy", "etcd", *PARTS]
    took, faults = play([chance.choice(kinds) for _ in range(options.blows)], chance)
    for fault in faults:
        print(f"WRONG: {fault}")
    ready, healed = (
        sorted(column) for column in zip(*((one.ready_s, one.healed_s) for one in took), strict=True)
    )
    print(f"{len(took)} blows: ready after {ready[len(ready) // 2]:.1f} s, at most {ready[-1]:.1f} s; "
          f"healed after {healed[len(healed) // 2]:.1f} s, at most {healed[-1]:.1f} s")  # fmt: skip
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
