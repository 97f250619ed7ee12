"""A detector that is killed with full windows: how long until it leads again, and until it sees as before.

    python -m benchmarks.rebuild [--nodes 1250] [--signals 30]

Fifteen minutes of what a fleet sends every 5 s (8 GPUs a node) are put into the store of a running product,
its detector is killed with `kill -9`. It prints the time until the log says "detector became leader" and
"metric windows rebuilt".
Nothing is sent meanwhile: see benchmarks/fleet.py for the same under load.
"""

import argparse
import json
import os
import shutil
import signal
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa

from benchmarks._load import CLUSTER, Product, cpu_s, product
from benchmarks.tick import GPUS, RULES, Fleet, measured
from healer.adapters.postgres.samples import PostgresColumns, PostgresSamples
from healer.embedded import running as embedded
from healer.rulebook.ruleset import load
from tests.support.stack import make_scratch
from tests.support.wait import wait_until

EVERY, WINDOW = timedelta(seconds=5), timedelta(minutes=15)


def lines(running: Product, name: str) -> list[dict[str, Any]]:
    entries = (json.loads(line) for line in running.stack.log("detector").splitlines() if line[:1] == "{")
    return [line for line in entries if line.get("event") == name]


def fill(engine: sa.Engine, names: Sequence[str], signals: int) -> int:
    """Reports of the last 15 minutes, each node a little later than the one before; how many."""
    rules = load(RULES)
    fleet = Fleet(len(names), rules, measured(rules, signals), PostgresColumns(engine))  # type: ignore[arg-type]
    samples, rows = PostgresSamples(engine, CLUSTER), 0
    # All in the past when the detector starts: nothing waits to come.
    moment = datetime.now(UTC) - WINDOW
    while moment < datetime.now(UTC) - EVERY:
        reports = []
        for number, report in enumerate(fleet.reports(moment)):
            at = moment + EVERY * (number / len(names))
            node = names[number]
            reports.append(msgspec.structs.replace(report, cluster=CLUSTER, node=node, at=at, arrived_at=at))
        samples.put(reports)
        rows += len(reports)
        moment += EVERY
    samples.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--signals", type=int, default=30)
    asked = parser.parse_args()
    folder = make_scratch()
    try:
        with product(folder, asked.nodes) as running:
            engine = sa.create_engine(embedded.find(running.stack.data_dir).database_url)
            detector = running.stack.pids()["detector"]
            os.kill(detector, signal.SIGSTOP)
            rows = fill(engine, list(running.slurm.snapshot().nodes), asked.signals)

            engine.dispose()
            print(f"{rows:,} reports of {GPUS * asked.signals} samples in the store")
            before = {
                name: len(lines(running, name))
                for name in ("detector became leader", "metric windows rebuilt")
            }
            at = datetime.now(UTC)
            os.kill(detector, signal.SIGKILL)
            wait_until(
                lambda: len(lines(running, "metric windows rebuilt")) > before["metric windows rebuilt"],
                180,
                what="windows are rebuilt",
            )
            for name, known in before.items():
                found = lines(running, name)[known]
                away_s = (datetime.fromisoformat(found["timestamp"]) - at).total_seconds()
                print(f"{name} after {away_s:.1f} s {found.get('rows', '')} {found.get('took_s', '')}")
            print(f"CPU of the new detector: {cpu_s({running.stack.pids()['detector']}):.1f} s")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
