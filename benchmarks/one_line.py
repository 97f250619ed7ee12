"""How many files of healer one kernel line enters, from its request to the wait of its run.

    python -m benchmarks.one_line [--files]

The real API behind uvicorn, PostgreSQL, the detector and a worker's driver over a simulated Slurm, in one
process. The second line, of another node, is traced: the first has made connections and filled caches.
A file counts for a part when one of its functions is called there. A file is entered when a function of it is
called from another file of healer; a coroutine that goes on is not entered again.
"""

import argparse
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import sqlalchemy as sa

import healer
from healer.actions import Toolbox
from healer.adapters.postgres import migrate
from healer.adapters.postgres.claims import LedgerParts
from healer.adapters.postgres.inbox import PostgresInbox
from healer.adapters.postgres.ledger import PostgresLedger
from healer.embedded.postgres import Postgres
from healer.engine.drive import Driver
from healer.model import Mode
from healer.processes.detector_loop import Detector, DetectorParts
from tests.support.api import CLUSTER, XID_79, serving
from tests.support.loop import rules_in
from tests.support.stack import make_scratch

ROOT = f"{Path(healer.__file__).parent}/"


class Trace:
    """Files of healer that are called while `on`, and how often each was entered from another one."""

    def __init__(self) -> None:
        self.entered: Counter[str] = Counter()
        self._on = False
        self._seen: dict[int, FrameType] = {}

    def __call__(self, frame: FrameType, event: str, _arg: Any) -> None:
        if not self._on or event != "call" or not frame.f_code.co_filename.startswith(ROOT):
            return
        if id(frame) in self._seen:
            return
        self._seen[id(frame)] = frame  # kept, so that no other frame takes its id
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(ROOT):
            caller = caller.f_back
        name = frame.f_code.co_filename
        if caller is None or caller.f_code.co_filename != name:
            self.entered[name.removeprefix(ROOT)] += 1

    @contextmanager
    def of_part(self) -> Iterator[Counter[str]]:
        self.entered, self._seen, self._on = Counter(), {}, True
        yield self.entered
        self._on = False


def entry(node: int, seq: int) -> dict[str, Any]:
    return {
        "cluster": CLUSTER,
        "node": f"gpu{node:04d}",
        "boot_id": f"boot-{node}",
        "entries": [{"seq": seq, "line": XID_79}],
    }


def show(part: str, entered: Counter[str], *, files: bool) -> None:
    most = ", ".join(f"{name} {count}" for name, count in entered.most_common(4))
    print(f"{part}: {len(entered)} files; entered most: {most}", flush=True)
    if files:
        print(*(f"    {count:3} {name}" for name, count in sorted(entered.items())), sep="\n")


def measure(database: sa.Engine, *, files: bool) -> None:
    trace = Trace()
    threading.setprofile(trace)
    sys.setprofile(trace)
    with serving(database, nodes=40) as (api, client):
        rules = rules_in(mode=Mode.auto, settle_s=0.0)
        api.rules = rules
        ledger = PostgresLedger(
            LedgerParts(
                engine=api.engine,
                cluster=CLUSTER,
                snapshots=api.snapshots,
                clock=api.services.clock,
                has_sink=False,
            )
        )
        begun: list[str] = []
        detector = Detector(
            DetectorParts(
                cluster=CLUSTER,
                ledger=ledger,
                inbox=PostgresInbox(api.engine, CLUSTER),
                snapshots=api.snapshots,
                rules=lambda: rules,
                clock=api.services.clock,
                wait=lambda _: None,
                poke=begun.extend,
            )
        )
        driver = Driver(ledger, lambda: rules, Toolbox(now=api.services.clock.now, scheduler=api.slurm))
        headers = api.headers("signals")
        every: dict[str, Counter[str]] = {}
        for node in (1, 5):
            begun.clear()
            api.look()
            with trace.of_part() as every["API"]:
                answer = client.post("/api/v1/signals/kernel-log", json=entry(node, node), headers=headers)
            answer.raise_for_status()
            with trace.of_part() as every["walk"]:
                detector.once()
            api.look()
            with trace.of_part() as every["drive"]:
                for run in begun:
                    driver.drive(run)
            if not begun:
                raise SystemExit("the line set no run going")
        states = {run.state for run in api.runs()}
        for part, entered in every.items():
            show(part, entered, files=files)
        print(f"in all: {len(set().union(*every.values()))} files; runs are {', '.join(sorted(states))}")
    sys.setprofile(None)
    threading.setprofile(None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", action="store_true", help="name each file, and how often it is entered")
    options = parser.parse_args()
    server = Postgres(make_scratch() / "data")
    server.start()
    try:
        database = sa.create_engine(server.url)
        migrate.upgrade(database)
        measure(database, files=options.files)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
