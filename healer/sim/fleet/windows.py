"""Metrics and step times of the simulated fleet, where they are simulated: windows of a few nodes.

A window opens before a fault that sensors show, or over healthy nodes at random, and closes some time after
the node has left. In it the nodes measure as a whole fleet does (`sim/telemetry.py`), through the translator
and the senses of production; outside of windows nothing is measured. Each has senses of its own.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import numpy as np

from healer.detection.tick import Senses
from healer.model import SlurmSnapshot
from healer.recorder import Recorder
from healer.signals.checkpoints import checkpoint_observations
from healer.signals.step_times import step_batches
from healer.signals.translate import Translator
from healer.sim.columns import MemoryColumns
from healer.sim.fleet.healing import Healer
from healer.sim.fleet.scenario import JobSpec
from healer.sim.fleet.schedule import DAY_S, Fault
from healer.sim.fleet.site import CLUSTER, Site
from healer.sim.fleet.work import Spent
from healer.sim.fleet_steps import Pace
from healer.sim.telemetry import SimTelemetry

#: As `node_infiniband_state_id` numbers them.
DOWN, ACTIVE = 1, 4
#: A window over healthy nodes lasts so long: the longest window of a rule, and a bit.
SAMPLE_S = 1200.0
#: It goes on for so long after its node has left.
AFTERWARDS_S = 300.0


class Window:
    """Senses over these nodes until `until`, or until the node of its fault has been out for a while."""

    def __init__(self, site: Site, healer: Healer, names: list[str], until: datetime, seed: int) -> None:
        self.names, self.until = names, until
        #: What it was opened for; none: healthy nodes.
        self.faults: list[Fault] = []
        self._site, self._healer = site, healer
        self._sensors = SimTelemetry(
            CLUSTER, names, start=site.now, seed=seed, gpus=site.scenario.gpus, pace=_pace(site.scenario.job)
        )
        book = MemoryColumns()
        self._senses = Senses(CLUSTER, healer.rules, book)
        self._translator = Translator(healer.rules.catalogue, book, CLUSTER)
        self._planted: set[tuple[str, str]] = set()
        self._saved_at = site.work.saved_at
        self._whole: SlurmSnapshot | None = None
        self._part = site.snapshot()
        self.samples = 0

    def step(self, recorder: Recorder | None) -> None:
        """One scrape of each node, and a look at them."""
        site, now = self._site, self._site.now
        snapshot = self._within(site.snapshot())
        self._plant()
        self._sensors.show(self._at_work(snapshot))
        sent = self._sensors.advance(now)
        self._add_ports(sent.metrics)
        self._add_results(sent.step_times)
        known = lambda _cluster, node: node in self.names  # noqa: E731
        measured = self._translator.columnar(msgspec.json.encode(sent.metrics), known, now)
        steps = step_batches(msgspec.json.encode(sent.step_times), known, now, cluster=CLUSTER)
        if recorder is not None:
            recorder.note_samples(measured.reports, steps.batches, now)
        self._senses.renew([self._healer.picture.node(name) for name in self.names], now)
        self._senses.take(measured.reports, steps.batches, snapshot, now)
        self._healer.hear([*measured.inventory, *self._checkpoint(now)])
        self._healer.sensed.append(self._senses.tick(snapshot, now, self._healer.picture.watched))
        self._healer.wake()

    def _within(self, snapshot: SlurmSnapshot) -> SlurmSnapshot:
        """Slurm's picture of these nodes alone: so small the senses look at, and keep room for."""
        if (
            self._whole is not None
            and self._whole.nodes is snapshot.nodes
            and self._whole.jobs is snapshot.jobs
        ):
            return msgspec.structs.replace(self._part, taken_at=snapshot.taken_at)
        mine = set(self.names)
        jobs = {
            job.id: msgspec.structs.replace(
                job,
                nodes=tuple(name for name in job.nodes if name in mine),
                gpus={name: job.gpus[name] for name in self.names if name in job.gpus},
            )
            for job in snapshot.jobs.values()
            if not mine.isdisjoint(job.nodes)
        }
        nodes = {name: snapshot.nodes[name] for name in self.names}
        self._whole = snapshot
        self._part = msgspec.structs.replace(snapshot, nodes=nodes, jobs=jobs)
        return self._part

    def _at_work(self, snapshot: SlurmSnapshot) -> SlurmSnapshot:
        """A large job that stands or starts makes no step, and its GPUs rest."""
        if self._site.work.doing is Spent.kept:
            return snapshot
        others = {name: job for name, job in snapshot.jobs.items() if name != self._site.job}
        return msgspec.structs.replace(snapshot, jobs=others)

    def _plant(self) -> None:
        """The sensors show what is wrong now."""
        wrong = {
            (node, str(sensor)): fault.gpu
            for node in self.names
            for fault in self._site.active.get(node, ())
            for sensor in fault.way.sensors
        }
        for node, sensor in sorted(self._planted - wrong.keys()):
            self._sensors.mend(node, sensor)
        for (node, sensor), gpu in sorted(wrong.items()):
            if (node, sensor) not in self._planted:
                self._sensors.plant(sensor, node, gpu)
        self._planted = set(wrong)

    def _add_ports(self, bodies: list[dict[str, Any]]) -> None:
        for body in bodies:
            down = any(fault.way.port_down for fault in self._site.active.get(body["node"], ()))
            for index, port in enumerate(body["ports"].values()):
                port["node_infiniband_state_id"] = DOWN if down and index == 0 else ACTIVE

    def _add_results(self, bodies: list[dict[str, Any]]) -> None:
        """The norm of the gradient, which all ranks share after its all-reduce."""
        wrong = {
            (node, fault.gpu)
            for node in self.names
            for fault in self._site.active.get(node, ())
            if fault.way.wrong_numbers
        }
        for body in bodies:
            for sample in body["samples"]:
                norm = 1.0 + 1.0 / (10 + sample["step"] % 97)
                sample["grad_norm"] = norm * 1.01 if (sample["node"], sample["gpu"]) in wrong else norm

    def _checkpoint(self, now: datetime) -> list[Any]:
        """The job tells its checkpoint, if one became durable since the last scrape."""
        saved_at = self._site.work.saved_at
        if saved_at is None or saved_at == self._saved_at:
            return []
        self._saved_at = saved_at
        job = self._site.snapshot().jobs[self._site.job]
        body = {
            "cluster": CLUSTER, "job": job.id, "restart": job.restarts, "step": self._site.work.saved,
            "path": f"/scratch/pretrain/{self._site.work.saved}", "durable": True,
            "time": saved_at.isoformat(),
        }  # fmt: skip
        return list(checkpoint_observations([body], now, cluster=CLUSTER).observations)


class Windows:
    """All windows of one simulation: opened by faults to come, and at random."""

    def __init__(self, site: Site, healer: Healer, recorder: Recorder | None = None) -> None:
        self._site, self._healer, self._recorder = site, healer, recorder
        self._spec = site.scenario.telemetry
        self._opened = 0
        self._now_open: list[Window] = []
        self.node_hours = 0.0
        healer.on_near = self._near
        self._sample_at_random()

    def _near(self, fault: Fault) -> None:
        way = fault.way
        if not (way.sensors or way.port_down or way.wrong_numbers) or fault.node in self._site.out_before:
            return
        until = fault.at + timedelta(minutes=self._spec.after_min)
        known = next((one for one in self._now_open if fault.node in one.names), None)
        if known is not None:
            known.until = max(known.until, until)
            known.faults.append(fault)
            return
        self._open(self._around(fault.node, self._spec.peers + 1), until, [fault])

    def _has_left(self, fault: Fault) -> bool:
        record = self._site.records.get(fault.id)
        left = record.out_at if record is not None else None
        return left is not None and (self._site.now - left).total_seconds() > AFTERWARDS_S

    def _around(self, node: str, many: int) -> list[str]:
        """The node and its neighbours in the job, which are its peers."""
        job = self._site.snapshot().jobs[self._site.job]
        mine = list(job.nodes) if node in job.nodes else self._site.names
        at = mine.index(node)
        begin = max(0, min(at - many // 2, len(mine) - many))
        return mine[begin : begin + many]

    def _sample_at_random(self) -> None:
        rng = np.random.default_rng([self._site.seed, 8])
        scenario = self._site.scenario
        moments = rng.uniform(
            0, scenario.days * DAY_S, rng.poisson(self._spec.samples_per_day * scenario.days)
        )
        for second in sorted(moments.tolist()):
            node = self._site.names[int(rng.integers(scenario.nodes))]
            self._site.agenda.at(scenario.start + timedelta(seconds=second), self._sample(node))

    def _sample(self, node: str) -> Callable[[], None]:
        def begin() -> None:
            self._open(self._around(node, self._spec.sample_nodes), self._site.later(SAMPLE_S), [])

        return begin

    def _open(self, names: list[str], until: datetime, faults: list[Fault]) -> None:
        self._opened += 1
        window = Window(self._site, self._healer, names, until, self._site.seed * 100_003 + self._opened)
        window.faults = faults
        self._now_open.append(window)

        def step() -> None:
            window.step(self._recorder)
            fine = any(name in self._site.active for name in names)
            every_s = self._spec.fine_s if fine else self._spec.every_s
            self.node_hours += len(names) * every_s / 3600
            left = bool(window.faults) and all(self._has_left(one) for one in window.faults)
            if self._site.now < window.until and not left:
                self._site.agenda.at(self._site.later(every_s), step)
            else:
                self._now_open.remove(window)

        step()


def _pace(job: JobSpec) -> Pace:
    """Steps of about 5 s with the noise of equal work (published_figures 4), checkpoints as the job's."""
    usual = Pace()
    step_s = usual.compute_s + usual.collective_s + usual.data_s
    every = max(1, round(job.checkpoint_s / step_s))
    return Pace(checkpoint_every=every, checkpoint_s=job.checkpoint_stall_s)
