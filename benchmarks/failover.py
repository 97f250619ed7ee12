"""Blows on three hosts that run deploy/ha: `python -m benchmarks.failover [--blows N] [--seed S]`.

Real programs (root): etcd, Patroni, PostgreSQL, HAProxy, Redis and two of each part of healer, at a simulated
Slurm; each host in a network namespace, with a disk and a clock of its own. From a seed a host is killed,
frozen, cut off (in one direction too), its clock is stepped, its disk full or slow, while a storm of kernel
lines and 50 runs go on. With each blow one more node loses a GPU.
Prints for each blow the seconds until the API is ready and until that node is drained, and at the end each
invariant; ends with 1 where one is broken.
"""

import argparse
import contextlib
import itertools
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from healer.ports.scheduling import SchedulerRefused
from tests.support.ha import BROKERS, SITE, Host, Site, running_site
from tests.support.ha_blows import BLOWS, OF_DATABASE_HOSTS
from tests.support.loop import FATAL, LOST, name
from tests.support.wait import in_background, wait_until

#: A blow that makes healer unready does so within this time.
NOTICED_S = 3.0
#: Goals, after a blow: the API is ready, and a node whose GPU was lost is drained.
READY_S, HEALED_S = 30, 60
#: Nodes that may be out of service at once. More are faulty all the time, so runs wait for a slot.
CAP, WAITING = 50, 6
#: healer repairs a node when no sign of its fault has come for so long.
STILL_S = 300
LINES, EVERY_S = 10, 0.2
#: While a blow lasts longer than this, so often another GPU is lost.
PROBE_S = 45.0
_BOOT = "0b11d014-1685-04bd-26ed-5fc0bc1c44ae"
_LINE = "NVRM: GPU at PCI:0000:9b:00: GPU-{number:08d}-feed-4000-8000-000000000000"


class Took(NamedTuple):
    """Seconds from a blow until the API is ready, and until a GPU lost after it has drained its node."""

    blow: str
    lasted_s: float
    ready_s: float
    healed_s: float


class Sender:
    """Sends kernel lines to whichever host answers, each until it is accepted."""

    def __init__(self, site: Site, token: str) -> None:
        self._urls = itertools.cycle([f"https://{host.address}/api/v1" for host in site.hosts[:2]])
        headers = {"Authorization": f"Bearer {token}", "Host": SITE}
        self._client = httpx.Client(headers=headers, timeout=5, verify=False, trust_env=False)
        self._url = next(self._urls)
        self._over = threading.Event()
        self.accepted: set[int] = set()
        self.statuses: Counter[int] = Counter()

    def send(self, node: str, *lines: str, first: int = 1) -> None:
        entries = [{"line": line, "seq": number} for number, line in enumerate(lines, first)]
        body = {"node": node, "boot_id": _BOOT, "entries": entries}
        while not self._over.is_set():
            with contextlib.suppress(httpx.HTTPError):
                status = self._client.post(f"{self._url}/signals/kernel-log", json=body).status_code
                self.statuses[status] += 1
                if status == 202:
                    self.accepted |= {entry["seq"] for entry in entries}
                    return
            self._url = next(self._urls)
            time.sleep(0.1)

    def stop(self) -> None:
        self._over.set()

    @contextmanager
    def storm(self, node: str) -> Iterator[None]:
        """Numbered lines that mean nothing."""
        numbers = itertools.count(1, LINES)

        def send_next() -> None:
            first = next(numbers)
            here = range(first, first + LINES)
            self.send(node, *(_LINE.format(number=number) for number in here), first=first)

        with in_background(send_next, EVERY_S):
            yield


@dataclass
class Play:
    """One site under blows. Of `nodes` one after the other loses a GPU or has its memory worn out."""

    site: Site
    chance: random.Random
    show: Callable[[str], None]
    sender: Sender
    faults: Sender
    nodes: Iterator[str]
    cap: int
    took: list[Took] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    worn: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    #: When the node's fault line was accepted.
    faulty_at: dict[str, float] = field(default_factory=dict)

    def wear_out(self) -> None:
        """A node has a fault that the caps bind."""
        self.worn.append(next(self.nodes))
        self.report(self.worn[-1], FATAL)

    def report(self, node: str, line: str) -> None:
        self.faults.send(node, line)
        self.faulty_at[node] = time.monotonic()

    def repair_one(self) -> None:
        """A person returns a node that healer has out, which frees its slot."""
        out = [node for node in self.worn if self.site.slurm.node(node).held]
        if out:
            self._return(self.chance.choice(out))

    def _return(self, node: str) -> None:
        with contextlib.suppress(SchedulerRefused):  # healer was faster
            self.site.slurm.person_returns(node)

    def strike(self, blow: str, host: Host, lasts_s: float) -> None:
        """A blow that lasts so long, and a GPU lost right after it; returns when all is as before."""
        begun = time.monotonic()
        repair = BLOWS[blow](self.site, host, self.chance)
        node = next(self.nodes)
        self.lost.append(node)
        ready = ReadyWatch(self.site, begun)
        with ExitStack() as meanwhile:
            meanwhile.enter_context(in_background(ready.look, 0.1))
            for send in (lambda: self.report(node, LOST), self.wear_out, self.repair_one):
                threading.Thread(target=send, daemon=True).start()
            healed = self._drained(node, begun, lasts_s)
            healed = max(healed, self._lose_more(begun + lasts_s))
            repair()
            healed = healed or self._drained(node, begun, 180)
            with contextlib.suppress(AssertionError):
                wait_until(ready.is_back, 20, every_s=0.1)
        if healed:
            self._return(node)
        else:
            self.broken.append(f"{node} is not drained 180 s after: {blow} of {host.name}")
        self.took.append(Took(f"{blow} of {self._role(host)}", lasts_s, ready.away_s, healed or 999.0))
        self._settle()

    def _lose_more(self, until: float) -> float:
        """While a blow lasts long more GPUs are lost: the longest time to a drain."""
        longest = 0.0
        while (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, PROBE_S))
            if left_s > PROBE_S:
                begun, node = time.monotonic(), next(self.nodes)
                self.lost.append(node)
                self.report(node, LOST)
                longest = max(longest, self._drained(node, begun, until - begun))
        return longest

    def _drained(self, node: str, begun: float, timeout_s: float) -> float:
        """When after the blow; 0.0 where it is not yet."""
        while time.monotonic() < begun + timeout_s:
            for drained in list(self.site.slurm.drains):
                if drained.node == node:
                    return drained.at - begun
            time.sleep(0.05)
        return 0.0

    def _role(self, host: Host) -> str:
        return host.name if host in self.site.hosts[:2] else "the third host"

    def _settle(self) -> None:
        """Both hosts serve again, and the database has its standby."""
        wait_until(self.site.primary, 60, what="a primary", every_s=0.2)
        try:
            wait_until(
                lambda: len(self.site.ready_hosts()) == 2, 60, what="both hosts are ready", every_s=0.2
            )
        except AssertionError as error:
            raise AssertionError(f"{error}. {self.site.unready()}") from error
        try:
            wait_until(lambda: self.site.standby() is not None, 30, what="a standby", every_s=0.5)
        except AssertionError:
            self.show("the standby receives nothing: rebuilt with patronictl reinit")
            self.site.rebuild_standby()
            wait_until(lambda: self.site.standby() is not None, 60, what="a rebuilt standby", every_s=0.5)


class ReadyWatch:
    """How long after `begun` healer was ready again, 0.0 where it was so all the time."""

    def __init__(self, site: Site, begun: float) -> None:
        self._site, self._begun, self._was_away, self._is_ready = site, begun, False, True
        self.away_s = 0.0

    def look(self) -> None:
        self._is_ready = self._site.is_ready()
        if not self._is_ready:
            self._was_away = True
        elif self._was_away:
            self._was_away, self.away_s = False, time.monotonic() - self._begun

    def is_back(self) -> bool:
        return self._is_ready and time.monotonic() - self._begun > NOTICED_S


# --- what may never be, found at the end


def lines_lost(play: Play) -> list[str]:
    def stored() -> list[int]:
        found = _column(
            play.site, "SELECT doc->>'line' FROM inbox WHERE doc->>'line' LIKE '%-feed-4000-8000-%'"
        )
        return [int(line[-36:][:8]) for line in found]

    accepted = play.sender.accepted.copy()
    with contextlib.suppress(AssertionError):  # what a spool still has comes in
        wait_until(lambda: accepted <= set(stored()), 30, every_s=1)
    numbers = stored()
    missing = accepted - set(numbers)
    found = [f"{len(missing)} accepted lines are missing, such as {min(missing)}"] if missing else []
    return found + ["lines are stored twice"] * (len(numbers) != len(set(numbers)))


def effects_wrong(play: Play) -> list[str]:
    at: dict[str, list[float]] = {}
    for drained in play.site.slurm.drains:
        at.setdefault(drained.node, []).append(drained.at)
    found = [f"{node} was never drained" for node in play.lost if node not in at]
    found += [f"{each.node} was drained twice for one step" for each in play.site.slurm.drains if each.again]
    theirs = play.site.slurm.returned_by_people
    found += [
        f"{node} was drained {times[-1] - theirs[node]:.1f} s after a person had returned it"
        for node, times in at.items()
        if node in theirs and times[-1] > theirs[node]
    ]
    returns = play.site.slurm.returns
    early = [node for back, node in returns if back - play.faulty_at.get(node, back) < STILL_S]
    found += [f"{node} was returned to service by healer, without a repair" for node in early]
    jobs = Counter(play.site.slurm.requeues)
    found += [f"job {job} was requeued {count} times" for job, count in jobs.items() if count != 1]
    audited = Counter(_column(play.site, "SELECT subject FROM audit_records WHERE verb = 'node.drained'"))
    unlike = [node for node, times in at.items() if not 1 <= audited[f"node/{node}"] <= len(times)]
    return found + [f"{node}: {audited[f'node/{node}']} records of its drain" for node in unlike]


def caps_broken(play: Play) -> list[str]:
    """By the first drain of each: a node under test after its repair keeps its slot. A node whose GPU is lost
    is certainly unusable: no cap counts it."""
    first: dict[str, int] = {}
    for drained in play.site.slurm.drains:
        first.setdefault(drained.node, len(drained.out.intersection(play.worn)))
    over = [first[node] for node in play.worn if first.get(node, 0) > play.cap]
    return [f"{len(over)} drains over the cap, {max(over)} out"] if over else []


def runs_stuck(play: Play) -> list[str]:
    due = (
        "SELECT id || ' is ' || state FROM runs WHERE state = 'stuck' OR state = 'running' AND "
        "lease_until < now() - interval '30 s' OR state = 'waiting' AND wake_at < now() - interval '60 s'"
    )
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not _column(play.site, due), 20, every_s=1)
    return _column(play.site, due)


def audit_broken(play: Play) -> list[str]:
    try:
        play.site.healer("audit", "verify")
    except AssertionError as error:
        return [str(error)[-300:]]
    return []


def answers_wrong(play: Play) -> list[str]:
    """Accepted, or sent again later: 503 and its kin, 507 for a disk that is full."""
    known = {202, 502, 503, 504, 507}
    seen = play.sender.statuses + play.faults.statuses
    return [f"{count} answers were {status}" for status, count in seen.items() if status not in known]


def late(play: Play) -> list[str]:
    found = [f"ready after {one.ready_s:.0f} s: {one.blow}" for one in play.took if one.ready_s > READY_S]
    return found + [
        f"healed after {one.healed_s:.0f} s: {one.blow}" for one in play.took if one.healed_s > HEALED_S
    ]


INVARIANTS: dict[str, Callable[[Play], list[str]]] = {
    "nothing accepted is lost or there twice": lines_lost,
    "one effect each": effects_wrong,
    "never over a cap": caps_broken,
    "no run is stuck": runs_stuck,
    "the audit is whole": audit_broken,
    "senders hear 202 or that they shall try again": answers_wrong,
}


def _column(site: Site, statement: str) -> list[str]:
    with site.connect() as conn:
        return [value for (value,) in conn.execute(statement.encode())]


def verdicts(play: Play) -> list[str]:
    """What is broken; shows each invariant."""
    found = list(play.broken)
    for each in found:
        play.show(f"BROKEN: {each}")
    for what, look in INVARIANTS.items():
        wrong = look(play)
        found += wrong
        play.show(f"{'BROKEN' if wrong else 'held'}: {what}{''.join(f'; {each}' for each in wrong[:5])}")
    return found


@contextmanager
def under_load(
    faults: int, chance: random.Random, show: Callable[[str], None], runs: int = CAP, broker: str = "redis"
) -> Iterator[Play]:
    """A site where so many runs go on, each with a slot, and more wait; with nodes for so many faults."""
    begun = time.monotonic()
    count = runs + WAITING + faults
    with running_site(count + 4, runs, broker) as site:
        show(f"all runs after {time.monotonic() - begun:.0f} s")
        for number in range(1, count + 1):
            site.slurm.add_job(required=[name(number)])
        senders = [
            Sender(site, site.healer("token", "create", "--role", "signals", "--vouches", "kernel"))
            for _ in range(2)
        ]
        play = Play(site, chance, show, *senders, nodes=map(name, itertools.count(1)), cap=runs)
        try:
            for _ in range(runs + WAITING):
                play.wear_out()
            wait_until(lambda: len(site.slurm.drains) >= runs, 60, what=f"{runs} runs go on", every_s=0.5)
            show(f"{runs} runs go on after {time.monotonic() - begun:.0f} s")
            with play.sender.storm(name(count + 1)):
                yield play
        finally:
            for sender in senders:
                sender.stop()


def drawn(play: Play) -> tuple[str, Host, float]:
    """A host, what happens to it, and for how long."""
    host = play.chance.choice(play.site.hosts)
    kinds = [blow for blow in BLOWS if blow not in OF_DATABASE_HOSTS or host in play.site.hosts[:2]]
    return play.chance.choice(kinds), host, play.chance.choice([5.0, 15.0, 40.0])


def main() -> int:
    parser = argparse.ArgumentParser(description="Blows on a highly available healer.")
    parser.add_argument("--blows", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=sorted(BLOWS), action="append", help="such blows in turn")
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no blow begins")
    parser.add_argument("--runs", type=int, default=CAP, help="that go on, each with a slot")
    parser.add_argument("--broker", choices=BROKERS, default="redis")
    parser.add_argument("--lasts", type=float, help="seconds of each blow; else drawn too")
    parser.add_argument("--logs", type=Path, help="the programs' logs are kept in this folder")
    options = parser.parse_args()
    show = lambda text: print(text, flush=True)  # noqa: E731
    chance = random.Random(options.seed)
    faults = options.blows * (2 + int((options.lasts or 0) / PROBE_S))
    until = time.monotonic() + 60 * options.minutes
    with under_load(faults, chance, show, options.runs, options.broker) as play:
        try:
            for number in itertools.takewhile(lambda _: time.monotonic() < until, range(options.blows)):
                blow, host, lasts_s = drawn(play)
                lasts_s = options.lasts or lasts_s
                if options.only:
                    blow = options.only[number % len(options.only)]
                    host = play.chance.choice(play.site.hosts[:2])
                try:
                    play.strike(blow, host, lasts_s)
                except AssertionError as error:
                    play.broken.append(f"{blow} of {host.name} for {lasts_s:.0f} s: {error}")
                    break
                one = play.took[-1]
                show(f"{number + 1}: {one.blow} for {lasts_s:.0f} s: ready after {one.ready_s:.1f} s, "
                     f"healed after {one.healed_s:.1f} s")  # fmt: skip
            found = verdicts(play)
        finally:
            if options.logs:
                shutil.copytree(play.site.logs, options.logs, dirs_exist_ok=True)
    slow = late(play)
    for each in slow:
        show(f"LATE: {each}")
    ready, healed = (sorted(getattr(one, what) for one in play.took) for what in ("ready_s", "healed_s"))
    show(f"{len(play.took)} blows from seed {options.seed}, {len(play.sender.accepted)} lines accepted: "
         f"ready after {ready[len(ready) // 2]:.1f} s, at most {ready[-1]:.1f} s; "
         f"healed after {healed[len(healed) // 2]:.1f} s, at most {healed[-1]:.1f} s")  # fmt: skip
    return bool(found or slow)


if __name__ == "__main__":
    sys.exit(main())
