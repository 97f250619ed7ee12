"""Processes killed and stopped at random moments of the story: `python benchmarks/kills.py [--blows 100]`.

Each round a GPU is lost under a job of two nodes on a real Slurm, with everything on and a second worker,
detector and scheduler beside. One to three processes are killed (kill -9) or stopped, some past a run's
lease, between 0.1 s before the fault and 3 s after it. One line per round; ends with 1 when one was not good.
"""

import argparse
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from healer.embedded import running
from tests.support.killing import STORY_S, VICTIMS, Blow, Round, end, play
from tests.support.site import Site, site_on
from tests.support.slurm import started
from tests.support.up import ROOT

#: Parts that may run twice; the second ones are named so.
TWICE = ("worker", "detector", "scheduler")
#: What stops and goes on; to stop PostgreSQL itself is only to wait for it.
STOPPED = ("worker", "worker 2", "detector", "detector 2", "scheduler", "api")
#: Below and above what a lease lasts.
STOPS_S = (2.0, 14.0)
STOP_SHARE = 0.25


class Seconds:
    """A second worker, detector and scheduler, started again when they ended, as an init system would."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # Each blow asks from a thread of its own: two would start a part twice, and one of it would be lost.
        self._lock = threading.Lock()

    def pids(self) -> dict[str, int]:
        with self._lock:
            for part in TWICE:
                process = self._processes.get(f"{part} 2")
                if process is None or process.poll() is not None:
                    self._processes[f"{part} 2"] = self._start(part)
            return {name: process.pid for name, process in self._processes.items()}

    def _start(self, part: str) -> subprocess.Popen[bytes]:
        found = running.find(self._site.stack.data_dir)
        environ = self._site.stack.environ | {
            "HEALER_DATABASE_URL": found.database_url, "HEALER_REDIS_URL": found.broker_url
        }  # fmt: skip
        log = (self._site.stack.data_dir / f"{part}-2.log").open("ab")
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", "healer", part], env=environ, cwd=ROOT, stdout=log, stderr=log
            )

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def seconds(site: Site) -> Iterator[Seconds]:
    more = Seconds(site)
    try:
        more.pids()
        yield more
    finally:
        more.stop()


def blows_of(chance: random.Random) -> list[Blow]:
    """One to three of one round, all of different processes."""
    names = [*VICTIMS, "scheduler", *(f"{part} 2" for part in TWICE)]
    return [
        Blow(
            victim,
            chance.uniform(-0.1, STORY_S),
            chance.choice(STOPS_S) if victim in STOPPED and chance.random() < STOP_SHARE else 0.0,
        )
        for victim in chance.sample(names, chance.choice((1, 2, 2, 3)))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills and stops at random moments, on a real Slurm.")
    parser.add_argument("--blows", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"{options.blows} blows, seed {options.seed}", flush=True)
    chance, results = random.Random(options.seed), list[Round]()
    caps_off = site_on(started(), HEALER_BREAKER_SHARE="1.0", HEALER_GUARD_REPEAT_H="0.0001")
    with caps_off as site, seconds(site) as more:
        while sum(len(one.blows) for one in results) < options.blows:
            results.append(one_round(site, more, blows_of(chance), f"gpu{len(results) % 28 + 1:04d}"))
        site.audit_holds()
    bad = sum(not one.good for one in results)
    blows = [blow for one in results for blow in one.blows]
    stops = sum(blow.stop_s > 0 for blow in blows)
    print(
        f"audit verify ok; {len(blows) - stops} kills and {stops} stops in {len(results)} rounds, "
        f"{len(results) - bad} of them good"
    )
    return 1 if bad else 0


def one_round(site: Site, more: Seconds, blows: list[Blow], node: str) -> Round:
    print(f"{', '.join(map(str, blows)):70} ", end="", flush=True)
    played = play(site, blows, node, more.pids)
    print(
        f"drains {played.drains} requeues {played.requeues} "
        f"stuck {played.stuck} accepted {played.accepted} lost {played.lost} {played.took_s:.1f}s"
        + ("" if played.good else f"  NOT GOOD {'; '.join(played.breaches)}"),
        flush=True,
    )
    end(site, node)
    return played


if __name__ == "__main__":
    sys.exit(main())
