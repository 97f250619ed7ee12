"""One round of the kill proof: a GPU is lost under a job while the product's processes are killed or stopped.

Used by tests/system/crash/test_kill.py and by benchmarks/kills.py, so that both judge by the same figures.
"""

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import psycopg

from healer.model.slurm import is_ours
from tests.support.site import CLUSTER, GPU_AT, PCI, XID_79, Site, boot_of
from tests.support.wait import wait_until

VICTIMS = ("worker", "detector", "api", "postgres", "redis")
#: The story lasts about this long from the fault to the job's restart: kills fall into it at random.
STORY_S = 3.0
#: All must be up again, and the story be finished, within this.
END_S = 60.0
#: What was accepted into the spool is in the inbox within this, once the database answers.
SPOOLED_S = 20.0
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Blow:
    """kill -9 of the victim so long after the fault; with `stop_s` SIGSTOP, and SIGCONT so much later."""

    victim: str
    moment_s: float
    stop_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.victim}{self.moment_s:+.2f}s" + (f" stopped {self.stop_s:g}s" if self.stop_s else "")


@dataclass(frozen=True)
class Round:
    """What came of it. `accepted` lines were answered 202, `lost` of them are not in the inbox."""

    blows: tuple[Blow, ...]
    node: str
    drains: int
    requeues: int
    stuck: int
    accepted: int
    lost: int
    took_s: float
    #: Invariants that did not hold at the end, in words.
    breaches: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        figures = (self.drains, self.requeues, self.stuck, self.lost)
        return figures == (1, 1, 0, 0) and self.accepted > 0 and not self.breaches


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
        counts = answer.json()
        return counts["accepted"] + counts["duplicates"] == len(body["entries"])

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


def moments(chance: random.Random, count: int) -> list[Blow]:
    """Every victim in turn, each at a random moment from just before the fault to the story's end."""
    return [Blow(VICTIMS[number % len(VICTIMS)], chance.uniform(-0.1, STORY_S)) for number in range(count)]


def play(site: Site, blows: Sequence[Blow], node: str, more: Callable[[], Mapping[str, int]] = dict) -> Round:
    """Runs a job on the node, loses a GPU under it, strikes at those moments, waits for the end.

    `more`: processes beside those of `healer up`, by name."""
    site.api("signals"), site.api("operator"), site.api("viewer")
    # Not by --nodelist: the job would wait for the broken node.
    before = [name for name in site.slurm.node_names if name < node]
    job = site.sbatch("--nodes=2", "--requeue", *([f"--exclude={','.join(before)}"] if before else []))
    assert site.job(job).nodes[0] == node
    body = site.kernel_body(node, XID_79.format(pci=PCI[0]))
    drains = site.drains(node)  # in earlier stories
    began = time.monotonic()
    with shipping(site, "gpu0032") as shipper:
        pids = lambda: {**site.stack.pids(), **more()}  # noqa: E731
        killers = [
            threading.Thread(target=_strike, args=(pids, one, began + 0.1 + one.moment_s)) for one in blows
        ]
        for killer in killers:
            killer.start()
        wait_until(lambda: time.monotonic() >= began + 0.1)
        shipper.ship(body)
        wait_until(lambda: _finished(site, node, job), END_S, what="the story is finished", every_s=0.1)
        for killer in killers:
            killer.join()
        wait_until(lambda: _ready(site), END_S, what="/readyz answers 200 again", every_s=0.1)
        wait_until(lambda: _finished(site, node, job), END_S, what="the story is finished", every_s=0.1)
    accepted = len(shipper.accepted) + 1
    # An API that was stopped finds its database late and accepts into the spool: stored a moment later.
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not _missing(site, shipper.accepted), SPOOLED_S, every_s=0.2)
    missing = _missing(site, shipper.accepted)
    lines = site.sql("SELECT count(*) FROM inbox WHERE doc->'component'->>'node' = %s AND kind = 'xid'", node)
    return Round(
        blows=tuple(blows),
        node=node,
        drains=site.drains(node) - drains,
        requeues=site.job(job).restarts,
        stuck=site.sql("SELECT count(*) FROM runs WHERE state = 'stuck'")[0][0],
        accepted=accepted,
        lost=len(missing) + (not lines[0][0]),
        took_s=time.monotonic() - began,
        breaches=tuple(_breaches(site, node)),
    )


def _missing(site: Site, accepted: set[str]) -> set[str]:
    stored = site.sql("SELECT doc->>'line' FROM inbox WHERE doc->>'line' LIKE %s", "%-feed-%")
    return accepted - {line[-36:] for (line,) in stored}


def _breaches(site: Site, node: str) -> list[str]:
    """What the book and Slurm say of this story, beside the figures."""
    found = []
    run = _runs(site, node)[0]
    records = dict(
        site.sql(
            "SELECT verb, count(*) FROM audit_records WHERE data->>'run' = %s GROUP BY verb",
            run["id"],
        )
    )
    found += [
        f"{records.get(one, 0)} records {one}"
        for one in ("node.drained", "job.requeued")
        if records.get(one) != 1
    ]
    spoken = {one for (one,) in site.sql("SELECT node FROM incidents WHERE state != 'resolved'")}
    drained = {
        one.name for one in site.scheduler.snapshot().nodes.values() if one.drain and is_ours(one.reason)
    }
    found += [f"nobody speaks for our drain of {one}" for one in drained - spoken]
    slots = site.sql("SELECT count(*) FROM slots WHERE released_at IS NULL")[0][0]
    found += [f"{slots} slots, one node is out"] if slots != 1 else []
    twice = site.sql("SELECT job FROM requeues GROUP BY job, restarts HAVING count(*) > 1")
    found += [f"the same restart of job {one} was granted twice" for (one,) in twice]
    return found


def end(site: Site, node: str) -> None:
    """Gives the node back, as a person would, and ends the jobs."""
    assert site.resume(node).status_code == 202
    wait_until(lambda: site.node(node).in_service, 20, what=f"{node} is back", every_s=0.1)
    site.clean()
    site.jobs.clear()


def _strike(pids: Callable[[], Mapping[str, int]], blow: Blow, at: float) -> None:
    pid = pids().get(blow.victim)
    while time.monotonic() < at:
        time.sleep(0.001)
    with contextlib.suppress(ProcessLookupError, TypeError):
        os.kill(pid, signal.SIGSTOP if blow.stop_s else signal.SIGKILL)  # type: ignore[arg-type]
        if blow.stop_s:
            time.sleep(blow.stop_s)
            os.kill(pid, signal.SIGCONT)  # type: ignore[arg-type]


def _finished(site: Site, node: str, job: str) -> bool:
    """The job runs again, and the run waits for the repair with all before it done."""
    shown = site.job(job)
    if (shown.state, shown.restarts) != ("RUNNING", 1):
        return False
    with contextlib.suppress(httpx.HTTPError, AssertionError, psycopg.Error):
        return [one["state"] for one in _runs(site, node)[:1]] in (["waiting"], ["stuck"])
    return False


def _runs(site: Site, node: str) -> list[dict[str, Any]]:
    """Those of the fault, newest first. Who loses GPUs again and again is proposed as a lemon too."""
    return [one for one in site.runs(node) if one["playbook"] != "lemon"]


def _ready(site: Site) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return site.stack.http.get(f"{site.stack.url}/readyz", timeout=2).status_code == 200
    return False
