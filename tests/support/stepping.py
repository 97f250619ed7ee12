"""A site of training jobs that report their steps and nothing else: wire form, senses, walk, simulated time.

Each job has a pace of its own, so that the network or the storage of one may grow slow; a node is slow in
every job that it is in. Groups of a bisection are tested as `Grouped` has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import msgspec
import numpy as np

from healer.detection.fleet_figures import FleetFigures
from healer.detection.tick import TICK_S, Senses
from healer.engine.walk import walk
from healer.model import Finding, Incident, Observation
from healer.signals.step_times import step_batches
from healer.sim.fleet_steps import Pace, Training
from healer.sim.sim_slurm import sim_nodes
from healer.sim.stores import MemoryColumns
from tests.support.bisecting import Grouped
from tests.support.loop import CLUSTER, name

GPUS = 2


@dataclass
class Trains:
    id: str
    training: Training
    pace: Pace

    def change(self, **fields: float) -> None:
        """From now on; the current step starts over."""
        self.pace = self.training._pace = replace(self.pace, **fields)  # type: ignore[arg-type]
        self.training.go_on(self.id)


class Stepping(Grouped):
    def __init__(self, nodes: int = 32, *, seed: int = 1, figures: FleetFigures | None = None) -> None:
        fleet = sim_nodes(nodes, gpus=GPUS)
        super().__init__(fleet)
        self.seed = seed
        self.rows = {one.name: row for row, one in enumerate(fleet)}
        self.slower = np.ones((nodes, GPUS))
        # Nothing is measured: rules over signals would only take time.
        steps_alone = msgspec.structs.replace(self.rules, detection=())
        self.senses = Senses(CLUSTER, steps_alone, MemoryColumns(), fleet_figures=figures)
        self.trains: dict[str, Trains] = {}
        self.found: list[Finding] = []

    # --- jobs ---

    def begin(
        self, numbers: Sequence[int], title: str = "pretrain", *, whole: bool = False, **pace: float
    ) -> Trains:
        """A job on these nodes; `whole`: it reports only whole steps."""
        job = self.slurm.add_job(required=[name(one) for one in numbers], name=title, gpus=GPUS)
        paced = Pace(whole_only=frozenset({title}) if whole else frozenset(), **pace)  # type: ignore[arg-type]
        training = Training(self.rows, GPUS, self.seed, paced)
        self.trains[job] = Trains(job, training, paced)
        return self.trains[job]

    def end(self, job: Trains) -> None:
        self.slurm.complete(job.id)
        del self.trains[job.id]

    def slow(self, number: int, by: float = 1.0) -> None:
        """The node takes so many times as long from the next step on."""
        self.slower[self.rows[name(number)]] = by
        self.bad = {one for one, row in self.rows.items() if self.slower[row].max() > 1}

    # --- moving it ---

    def train(self, seconds: float) -> None:
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            self.clock.advance(TICK_S)
            self._tick()

    def train_until_found(self, fault: str, seconds: float) -> Incident | None:
        """The first open incident of the fault; None: none in that time."""
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            self.train(TICK_S)
            if matching := [one for one in self.open_incidents if one.fault == fault]:
                return matching[0]
        return None

    def _tick(self) -> None:
        self.answer()
        self.look()
        slurm = self.slurm.snapshot()
        bodies = []
        for one in self.trains.values():
            shown = slurm.jobs.get(one.id)
            one.training.show({one.id: shown} if shown is not None else {})
            bodies += one.training.advance(self.now.timestamp(), self.slower, CLUSTER)[0]
        sent = step_batches(msgspec.json.encode(bodies), lambda *_: True, self.now, cluster=CLUSTER)
        assert not sent.rejected
        self.senses.take((), sent.batches, slurm, self.now)
        sensed = self.senses.tick(slurm, self.now, self.picture.watched, {}, self.picture.faults)
        self.found += sensed.findings
        batch: list[Observation] = []
        walk(self.ledger, self.rules, self.picture, [*batch, *self.ledger.take_commands()], self.now, sensed)
        for run in sorted(self.ledger.due_runs(self.now)):
            self.driver.drive(run)

    def blamed(self) -> set[str]:
        """Nodes of which anything was found."""
        return {one.component.node for one in self.found if one.component.node is not None}
