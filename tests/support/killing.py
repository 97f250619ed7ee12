"""One round of the kill proof: a GPU is lost under a job while a process of the product is killed.

Used by tests/crash/test_kill.py and by benchmarks/kill.py, so that both judge by the same figures.
"""

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import psycopg

from tests.support.site import CLUSTER, GPU_AT, PCI, XID_79, Site, boot_of
from tests.support.wait import wait_until

VICTIMS = ("worker", "detector", "api", "postgres", "redis")
#: The story lasts about this long from the fault to the job's restart: kills fall into it at random.
STORY_S = 3.0
#: All must stand again, and the story be told to its end, within this.
END_S = 60.0
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Round:
    """What came of it. `accepted` lines were answered 202, `lost` of them are not in the inbox."""

    victim: str
    moment_s: float
    node: str
    drains: int
    requeues: int
    stuck: int
    accepted: int
    lost: int
    took_s: float

    @property
    def good(self) -> bool:
        return (self.drains, self.requeues, self.stuck, self.lost) == (1, 1, 0, 0) and self.accepted > 0


@dataclass
class Shipper:
    """Sends numbered lines without a pause, as a log shipper does: what got no 202 is sent again."""

    site: Site
    node: str
    accepted: set[str] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)

    def ship(self, body: dict[str, Any], timeout_s: float = END_S) -> None:
        """Until it is accepted."""
        deadline = time.monotonic() + timeout_s
        while not self._sent(body):
            assert time.monotonic() < deadline, "the API took nothing for a minute"
            self.over.wait(0.05)

    def _sent(self, body: dict[str, Any]) -> bool:
        try:
            answer = self.site.api("signals").post("/signals/kernel-log", json=body, timeout=10)
        except httpx.HTTPError:
            return False
        if answer.status_code != 202:
            assert answer.status_code in {429, 500, 503}, answer.text
            return False
        told = answer.json()
        return told["accepted"] + told["duplicates"] == len(body["entries"])

    def run(self) -> None:
        while not self.over.wait(0.01):
            uuid = f"{next(_numbers):08d}-feed-4000-8000-{os.getpid():012d}"
            line = GPU_AT.format(pci=PCI[0], uuid=uuid)
            entry = {"line": line, "seq": int(uuid[:8])}
            body = {"cluster": CLUSTER, "node": self.node, "boot_id": boot_of(self.node), "entries": [entry]}
            if self._sent(body):
                self.accepted.add(uuid)


@contextmanager
def shipping(site: Site, node: str) -> Iterator[Shipper]:
    shipper = Shipper(site, node)
    thread = threading.Thread(target=shipper.run)
    thread.start()
    try:
        yield shipper
    finally:
        shipper.over.set()
        thread.join()


def moments(chance: random.Random, count: int) -> list[tuple[str, float]]:
    """Every victim in turn, each at a random moment from just before the fault to the story's end."""
    return [(VICTIMS[number % len(VICTIMS)], chance.uniform(-0.1, STORY_S)) for number in range(count)]


def play(site: Site, victim: str, moment_s: float, node: str) -> Round:
    """Runs a job on the node, loses a GPU under it, kills the victim at that moment, waits for the end."""
    site.api("signals"), site.api("operator"), site.api("viewer")
    # Not by --nodelist: the job would wait for the broken node.
    before = [name for name in site.slurm.node_names if name < node]
    job = site.sbatch("--nodes=2", "--requeue", *([f"--exclude={','.join(before)}"] if before else []))
    assert site.job(job).nodes[0] == node
    body = site.kernel_body(node, XID_79.format(pci=PCI[0]))
    began = time.monotonic()
    with shipping(site, "gpu0032") as shipper:
        killer = threading.Thread(target=_kill_at, args=(site, victim, began + 0.1 + moment_s))
        killer.start()
        wait_until(lambda: time.monotonic() >= began + 0.1)
        shipper.ship(body)
        wait_until(lambda: _told(site, node, job), END_S, what="the story is told", every_s=0.1)
        killer.join()
        wait_until(lambda: _ready(site), END_S, what="/readyz answers 200 again", every_s=0.1)
        wait_until(lambda: _told(site, node, job), END_S, what="the story is told", every_s=0.1)
    accepted = len(shipper.accepted) + 1
    stored = {
        line[-36:]
        for (line,) in site.sql("SELECT doc->>'line' FROM inbox WHERE doc->>'line' LIKE %s", "%-feed-%")
    }
    lines = site.sql("SELECT count(*) FROM inbox WHERE doc->'component'->>'node' = %s AND kind = 'xid'", node)
    return Round(
        victim=victim,
        moment_s=moment_s,
        node=node,
        drains=site.drains(node),
        requeues=site.job(job).restarts,
        stuck=site.sql("SELECT count(*) FROM runs WHERE state = 'stuck'")[0][0],
        accepted=accepted,
        lost=len(shipper.accepted - stored) + (not lines[0][0]),
        took_s=time.monotonic() - began,
    )


def end(site: Site, node: str) -> None:
    """Gives the node back, as a person would, and ends the jobs."""
    assert site.resume(node).status_code == 202
    wait_until(lambda: site.node(node).in_service, 20, what=f"{node} is back", every_s=0.1)
    site.clean()
    site.jobs.clear()


def _kill_at(site: Site, victim: str, at: float) -> None:
    pid = site.stack.pids()[victim]
    while time.monotonic() < at:
        time.sleep(0.001)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _told(site: Site, node: str, job: str) -> bool:
    """The job runs again, and the run waits for the repair with all before it done."""
    shown = site.job(job)
    if (shown.state, shown.restarts) != ("RUNNING", 1):
        return False
    with contextlib.suppress(httpx.HTTPError, AssertionError, psycopg.Error):
        return [one["state"] for one in site.runs(node)[:1]] in (["waiting"], ["stuck"])
    return False


def _ready(site: Site) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{site.stack.url}/readyz", timeout=2).status_code == 200
    return False
