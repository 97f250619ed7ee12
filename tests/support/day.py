"""A whole day of a fleet in simulated time, over a real database: does anything grow?

The bodies of senders go through the wire forms into the store; the detector's two loops read them there, and
what is old is tidied away each quarter of an hour, as the scheduler does it.
"""

import gc
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.retention import tidy
from healer.adapters.postgres.samples import PostgresColumns, PostgresSamples
from healer.detection.tick import Senses
from healer.model import Observation, Ruleset
from healer.ports.measurements import Samples
from healer.processes.senses_loop import SensesLoop, SensesParts
from healer.signals.step_times import step_batches
from healer.signals.translate import Translator
from healer.signals.wire import heartbeat_observations
from healer.sim.sim_telemetry import SimTelemetry
from tests.support.detector import Place
from tests.support.loop import CLUSTER, START, shipped

TIDY_S = 900
#: All that an hour of signals leaves behind.
_SIZE = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'public' AND c.relkind = 'r' AND c.relname LIKE :pattern
"""


class Hour(NamedTuple):
    """After so many hours: this process's own memory, and the database's tables, in bytes."""

    hour: int
    memory: int
    samples: int
    inbox: int
    inbox_rows: int


class Day:
    """`nodes` report every `every_s` and beat every minute; one job on half of them reports its steps."""

    def __init__(self, engine: sa.Engine, *, nodes: int, every_s: float) -> None:
        self.place = Place(engine, nodes=nodes)
        self._engine, self._every = engine, timedelta(seconds=every_s)
        self._names = list(self.place.slurm.snapshot().nodes)
        self.place.slurm.add_job(name="pretrain", nodes=nodes // 2)
        self.place.poll()
        self._sensors = SimTelemetry(CLUSTER, self._names, start=START)
        self._book, self._samples = PostgresColumns(engine), PostgresSamples(engine, CLUSTER)
        self._translator = Translator(shipped().catalogue, self._book, CLUSTER)
        self._detector = self.place.detector()
        self._senses = SensesLoop(
            SensesParts(
                rules=shipped,
                prove=lambda: "",
                make=self._make,
                picture=self._detector.picture,
                clock=self.place.clock,
            )
        )
        self._detector.heard = self._senses.heard
        self.reports = 0

    def _make(self, rules: Ruleset) -> tuple[Senses, Samples]:
        return Senses(CLUSTER, rules, self._book), PostgresSamples(self._engine, CLUSTER)

    def hours(self, count: int) -> Iterator[Hour]:
        """Figures after each hour."""
        begun, next_tidy, next_beat = self.place.clock.now(), START, START
        for hour in range(1, count + 1):
            while self.place.clock.now() < begun + timedelta(hours=hour):
                self.place.clock.advance(self._every.total_seconds())
                now = self.place.clock.now()
                self._measure()
                if now >= next_beat:
                    next_beat = now + timedelta(minutes=1)
                    self._beat()
                self.place.poll()
                self._senses.once()
                while self._detector.once():
                    pass
                if now >= next_tidy:
                    next_tidy = now + timedelta(seconds=TIDY_S)
                    tidy(self._engine, now)
            yield self._figures(hour)

    def _known(self, cluster: str, node: str) -> bool:
        return cluster == CLUSTER and node in self._names

    def _measure(self) -> None:
        now = self.place.clock.now()
        self._sensors.show(self.place.slurm.snapshot())
        sent = self._sensors.advance(now)
        measured = self._translator.columnar(msgspec.json.encode(sent.metrics), self._known, now)
        steps = step_batches(msgspec.json.encode(sent.step_times), self._known, now, cluster=CLUSTER)
        self._samples.put(measured.reports)
        self._samples.put_steps(steps.batches)
        self.reports += len(measured.reports)

    def _beat(self) -> None:
        now, seen = self.place.clock.now(), list[Observation]()
        for name in self._names:
            body = {"node": name, "boot_id": "b1", "time": now.isoformat()}
            seen += heartbeat_observations(body, self._known, now, cluster=CLUSTER).observations
        self.place.inbox.add(seen)

    def _figures(self, hour: int) -> Hour:
        gc.collect()
        # A day takes a minute here: the server's own vacuum, which looks each minute, would come once.
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.execute(sa.text("VACUUM inbox"))
        with self._engine.connect() as conn:
            samples, inbox = (
                conn.execute(sa.text(_SIZE), {"pattern": pattern}).scalar_one()
                for pattern in ("samples%", "inbox%")
            )
            rows = conn.execute(sa.text("SELECT count(*) FROM inbox")).scalar_one()
        return Hour(hour, own_memory(), int(samples), int(inbox), rows)


def own_memory() -> int:
    """Bytes that this process alone uses."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(size) * 1024 for size in re.findall(r"^Private_\w+:\s+(\d+) kB", rollup, re.MULTILINE))
