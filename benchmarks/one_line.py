"""What one kernel line costs in counts, which no machine changes: from its request to the wait of its run.

    python -m benchmarks.one_line [--files] [--nodes 40] [--keep]

Files of healer that are entered, functions of healer that are called, statements and commits. `--keep` writes
them for 40 and for 1,250 nodes to `benchmarks/one_line.json`; a test compares.

The real API behind uvicorn, PostgreSQL, the detector and a worker's driver over a simulated Slurm, in one
process. The second line, of another node, is traced: the first has made connections and filled caches.
A file counts for a part when one of its functions is called there. A file is entered when a function of it is
called from another file of healer; a coroutine that goes on is not entered again.
"""

import argparse
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

import healer
from healer.actions import Toolbox
from healer.adapters.postgres import migrate
from healer.adapters.postgres.claims import LedgerParts
from healer.adapters.postgres.inbox import PostgresInbox
from healer.adapters.postgres.ledger import PostgresLedger
from healer.api import app
from healer.embedded.postgres import Postgres
from healer.engine.drive import Driver
from healer.model import Mode, RunState
from healer.processes import detector_loop
from healer.processes.detector_loop import Detector, DetectorParts
from tests.support.api import CLUSTER, XID_79, serving
from tests.support.loop import rules_in
from tests.support.stack import scratch_folder

ROOT = f"{Path(healer.__file__).parent}/"
KEPT = Path(__file__).with_suffix(".json")
#: Sizes of the clusters whose counts are kept.
NODES = (40, 1250)
#: What the API counts in memory is written every few seconds, for all lines together, and what ails slurmctld
#: is read as often: not in this time.
SELDOM_S = 3600.0
#: Longer than the API remembers a token.
REMEMBERED_S = 1.2


@dataclass
class Part:
    """Counts of one part of the way. `entered`: by file, how often it was entered from another one."""

    entered: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    statements: int = 0
    commits: int = 0

    def counts(self) -> dict[str, int]:
        return {
            "files": len(self.entered),
            "calls": self.calls,
            "statements": self.statements,
            "commits": self.commits,
        }


class Trace:
    """Counts while a part is at work, in all threads."""

    def __init__(self) -> None:
        self._part: Part | None = None
        self._seen: dict[int, FrameType] = {}
        event.listen(sa.Engine, "before_cursor_execute", self._statement)
        event.listen(sa.Engine, "commit", self._commit)

    def close(self) -> None:
        event.remove(sa.Engine, "before_cursor_execute", self._statement)
        event.remove(sa.Engine, "commit", self._commit)

    def _statement(self, *_: Any) -> None:
        if self._part is not None:
            self._part.statements += 1

    def _commit(self, *_: Any) -> None:
        if self._part is not None:
            self._part.commits += 1

    def __call__(self, frame: FrameType, what: str, _arg: Any) -> None:
        part = self._part
        if part is None or what != "call" or not frame.f_code.co_filename.startswith(ROOT):
            return
        if id(frame) in self._seen:
            return
        self._seen[id(frame)] = frame  # kept, so that no other frame takes its id
        part.calls += 1
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(ROOT):
            caller = caller.f_back
        name = frame.f_code.co_filename
        if caller is None or caller.f_code.co_filename != name:
            part.entered[name.removeprefix(ROOT)] += 1

    @contextmanager
    def of_part(self) -> Iterator[Part]:
        part = self._part = Part()
        self._seen = {}
        yield part
        self._part = None


def entry(node: int, seq: int) -> dict[str, Any]:
    return {
        "cluster": CLUSTER,
        "node": f"gpu{node:04d}",
        "boot_id": f"boot-{node}",
        "entries": [{"seq": seq, "line": XID_79}],
    }


def show(name: str, part: Part, *, files: bool) -> None:
    most = ", ".join(f"{file} {count}" for file, count in part.entered.most_common(4))
    counts = ", ".join(f"{count:,} {what}" for what, count in part.counts().items())
    print(f"{name}: {counts}; entered most: {most}", flush=True)
    if files:
        print(*(f"    {count:3} {file}" for file, count in sorted(part.entered.items())), sep="\n")


def measure(database: sa.Engine, nodes: int) -> dict[str, Part]:
    """By part of the way, of the second line on a cluster of so many nodes."""
    trace, tally_s, controller_every = Trace(), app.TALLY_S, detector_loop.CONTROLLER_EVERY
    app.TALLY_S, detector_loop.CONTROLLER_EVERY = SELDOM_S, timedelta(seconds=SELDOM_S)
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        return _walked(database, trace, nodes)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        trace.close()
        app.TALLY_S, detector_loop.CONTROLLER_EVERY = tally_s, controller_every


def _walked(database: sa.Engine, trace: Trace, nodes: int) -> dict[str, Part]:
    with serving(database, nodes=nodes) as (api, client):
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
        every: dict[str, Part] = {}
        for node in (1, 5):
            begun.clear()
            # On a fast machine the second line would find its token still remembered, on a slow one not.
            time.sleep(REMEMBERED_S)
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
        if states != {RunState.waiting}:
            raise SystemExit(f"the runs are {', '.join(sorted(states))}, and should be waiting")
    return every


def measured(nodes: int) -> dict[str, Part]:
    """The same on a PostgreSQL of its own."""
    with scratch_folder() as folder:
        server = Postgres(folder / "data")
        server.start()
        try:
            database = sa.create_engine(server.url)
            migrate.upgrade(database)
            found = measure(database, nodes)
            database.dispose()
            return found
        finally:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", action="store_true", help="name each file, and how often it is entered")
    parser.add_argument("--nodes", type=int, default=NODES[0])
    parser.add_argument("--keep", action="store_true", help="keep the counts that a test compares with")
    options = parser.parse_args()
    kept = {}
    for nodes in NODES if options.keep else (options.nodes,):
        every = measured(nodes)
        print(f"{nodes} nodes")
        for name, part in every.items():
            show(name, part, files=options.files)
        files = set[str]().union(*(part.entered for part in every.values()))
        print(f"in all: {len(files)} files", flush=True)
        kept[str(nodes)] = {name: part.counts() for name, part in every.items()}
    if options.keep:
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
