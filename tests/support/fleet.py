"""A site whose nodes measure: the loop of `tests.support.loop`, with telemetry through every sense.

What the sensors send goes through the wire forms and the translator as in production, only without HTTP and
PostgreSQL. Time is simulated: an hour takes some seconds.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from healer.detection.tick import TICK_S, Senses
from healer.engine.walk import walk
from healer.model import Detections, Finding, Incident, Observation
from healer.model.telemetry import Report, StepBatch
from healer.signals.step_times import step_batches
from healer.signals.translate import Translator
from healer.signals.wire import checkpoint_observations
from healer.sim.fleet_steps import Pace
from healer.sim.nodes import SimNodes
from healer.sim.sim_telemetry import Sent, SimTelemetry
from healer.sim.stores import MemoryCheckpoints, MemoryColumns
from tests.support.loop import CLUSTER, START, Site, equip

#: A job that lets itself be requeued for a slow node.
OPTED_IN = "healer:requeue"


class Fleet(Site):
    """`jobs` are the nodes of each training job; the rest of the fleet stays idle."""

    def __init__(
        self,
        nodes: int = 32,
        *,
        jobs: Sequence[int] = (8, 4),
        seed: int = 11,
        each_s: float = 15.0,
        pace: Pace | None = None,
        comment: str = OPTED_IN,
        **options: Any,
    ) -> None:
        super().__init__(nodes, **options)
        self.jobs = [self.slurm.add_job(name="pretrain", nodes=count, comment=comment) for count in jobs]
        shown = self.slurm.snapshot()
        self.sensors = SimTelemetry(CLUSTER, list(shown.nodes), start=START, seed=seed, pace=pace or Pace())
        book = MemoryColumns()
        self.senses = Senses(CLUSTER, self.rules, book)
        self._translator = Translator(self.rules.catalogue, book, CLUSTER)
        self._each = timedelta(seconds=each_s)
        self._next_scrape = self._next_tick = START
        self.nodes = SimNodes(self.clock)
        self.saved = self.ledger.checkpoints = MemoryCheckpoints()
        equip(self.driver, nodes=self.nodes, checkpoints=self.saved)
        #: All that any sense found, in the order in which it was found.
        self.found: list[Finding] = []
        self.unrecognised: dict[str, str] = {}
        #: What the senses took in last.
        self.taken: tuple[list[Report], list[StepBatch]] = ([], [])
        self.on_sent: Callable[[datetime, Sent], None] = lambda _at, _sent: None

    # --- moving it ---

    def run(self, seconds: float) -> None:
        """Measures, ticks, walks and drives, each at its own pace, in steps of one tick."""
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            self.clock.advance(TICK_S)
            measured = self._measure() if self.now >= self._next_scrape else []
            self._step(measured, self._tick())

    def run_until(self, met: Callable[[], bool], seconds: float) -> None:
        """Fails when it is not met in time."""
        end = self.now + timedelta(seconds=seconds)
        while not met():
            assert self.now < end, (
                f"not within {seconds:g} s; open: {[str(i.title) for i in self.open_incidents]}"
            )
            self.run(TICK_S)

    def _step(self, measured: list[Observation], sensed: Detections | None) -> None:
        while True:
            self.look()
            batch = [*measured, *self.ledger.take_commands()]
            walk(self.ledger, self.rules, self.picture, batch, self.now, sensed)
            measured, sensed = [], None
            due = self.ledger.due_runs(self.now)
            for run in sorted(due):
                self.driver.drive(run)
            if not due and not self.ledger.tables.commands:
                return

    def _measure(self) -> list[Observation]:
        self._next_scrape = self.now + self._each
        snapshot = self.slurm.snapshot()
        self.sensors.show(snapshot)
        sent = self.sensors.advance(self.now)
        self.on_sent(self.now, sent)
        measured = self._translator.columnar(msgspec.json.encode(sent.metrics), self._known, self.now)
        steps = step_batches(msgspec.json.encode(sent.step_times), self._known, self.now, cluster=CLUSTER)
        assert not measured.rejected
        assert not steps.rejected
        self.unrecognised |= {one: unknown.why for one, unknown in measured.unknown.items()}
        self.taken = (measured.reports, steps.batches)
        self.senses.take(measured.reports, steps.batches, snapshot, self.now)
        taken = checkpoint_observations(sent.checkpoints, self.now, cluster=CLUSTER)
        assert not taken.rejected
        self.saved.hear(taken.observations)
        return [*measured.inventory, *taken.observations]

    def _tick(self) -> Detections:
        snapshot = self.slurm.snapshot()
        self.senses.take((), (), snapshot, self.now)
        sensed = self.senses.tick(
            snapshot, self.now, self.picture.watched, self.picture.node_reports, self.picture.faults
        )
        self.found += sensed.findings
        return sensed

    def _known(self, cluster: str, node: str) -> bool:
        return cluster == CLUSTER and node.startswith("gpu")

    # --- looking at it ---

    def incidents_of(self, rule: str) -> list[Incident]:
        return [one for one in self.incidents if one.rule == rule]

    @property
    def drained(self) -> list[str]:
        """Nodes that healer took out, ever."""
        return sorted({one.node for one in self.ledger.tables.granted})
