"""Telemetry of the simulated fleet: metrics and step times in windows of a few nodes each.

A window opens before a fault that sensors show, when the large job stalls, or at random over healthy nodes,
and closes some time after the node has left. Its nodes measure as a whole fleet does
(`sim/sim_telemetry.py`), through the translator and the senses of production. Outside of windows nothing is
measured.
"""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from healer.detection.divergence import SHARED_RESULTS
from healer.detection.job_starts import STARTS
from healer.detection.tick import Senses
from healer.model import Component, SlurmJob, SlurmSnapshot
from healer.model.goodput import Spent
from healer.recordings.recorder import Recorder
from healer.signals.step_times import step_batches
from healer.signals.translate import Translator
from healer.signals.wire import checkpoint_observations
from healer.sim.fleet.menders import Healer
from healer.sim.fleet.schedule import DAY_S, Fault
from healer.sim.fleet.site import CLUSTER, WATCHDOG_S, Site
from healer.sim.fleet_steps import Pace
from healer.sim.sim_telemetry import Sent, SimTelemetry
from healer.sim.stores import MemoryColumns

#: A window opens when the job has stalled this long: what is over sooner needs no step times.
STALLED_S = 20.0
#: Seconds of steps before the stall that the window replays: enough to learn the job's usual pauses.
HISTORY_S = 300.0
#: A window of a stalled job scrapes at the fine interval for this long.
FINE_S = 300.0


class Ranks(StrEnum):
    works = "works"
    #: All but those of the broken node wait in a collective, and their clients report it.
    waits = "waits"
    #: The program has ended, or has not started.
    rests = "rests"


def ranks_at(site: Site, at: datetime) -> Ranks:
    """What the ranks of the large job do at a moment since its last start."""
    fault = site.blocking()
    if fault is None:
        return Ranks.works if site.work.doing is Spent.productive else Ranks.rests
    if site.works_since is None:
        return Ranks.rests
    stopped_s = (at - site.stops_at(fault)).total_seconds()
    if stopped_s < 0:
        return Ranks.works
    return Ranks.waits if stopped_s < _waits_s(site, fault) else Ranks.rests


def _waits_s(site: Site, fault: Fault) -> float:
    """How long the other ranks wait until NCCL's watchdog or the launcher ends them."""
    if fault.way.wrong_numbers:
        return 0.0  # the job's own check ends it
    return WATCHDOG_S if fault.way.hangs else site.scenario.job.fails_s


class Stalls:
    """Watches the large job. Call `look` after each moment; `opens` gets the fault that has stalled it, and
    since when it had worked, or else started."""

    def __init__(self, site: Site, opens: Callable[[Fault, datetime], None]) -> None:
        self._site, self._opens = site, opens
        self._worked_since: datetime | None = None
        self._stalled: tuple[str, int] | None = None

    def look(self) -> None:
        site = self._site
        if site.work.doing is Spent.productive:
            self._worked_since, self._stalled = self._worked_since or site.now, None
            return
        worked, self._worked_since = self._worked_since, None
        stall = self._stall()
        if stall is None or stall == self._stalled:
            return
        self._stalled = stall
        started = site.snapshot().jobs[site.job].start_at or site.now
        since = worked or started

        def still() -> None:
            fault = site.blocking()
            if fault is not None and self._stall() == stall:
                self._opens(fault, max(since, site.later(-STALLED_S - HISTORY_S)))

        site.agenda.at(site.later(STALLED_S), still)

    def _stall(self) -> tuple[str, int] | None:
        """The fault that stalls the job now and the job's restart count; None if it is not stalled."""
        site = self._site
        fault = site.blocking() if site.work.doing is Spent.hung else None
        return (fault.id, site.snapshot().jobs[site.job].restarts) if fault is not None else None


#: As `node_infiniband_state_id` numbers them.
DOWN, ACTIVE = 1, 4
#: Length of a window over healthy nodes: a bit more than the longest window of a rule.
SAMPLE_S = 1200.0
#: A window stays open this long after its node has left.
AFTERWARDS_S = 300.0
#: The last report before a fault is so old.
LAST_REPORT_S = 2.0
#: A window of a stalled job stays open this long after the job works again.
WELL_S = 420.0
#: Processes that wait in the kernel for a disk that does not answer.
BLOCKED = 8


class Window:
    """Senses over these nodes, until `until` or some time after the faulty node has left."""

    def __init__(
        self, site: Site, healer: Healer, names: list[str], until: datetime, seed: int, since: datetime
    ) -> None:
        self.names, self.until = names, until
        #: The faults it was opened for; empty for healthy nodes or a stalled job.
        self.faults: list[Fault] = []
        #: End of the fine interval; None: fine while one of its nodes has a fault.
        self.fine_until: datetime | None = None
        #: Since when the stalled job works again.
        self.works_since: datetime | None = None
        self._site, self._healer = site, healer
        self._sensors = SimTelemetry(
            CLUSTER, names, start=since, seed=seed, gpus=site.scenario.gpus, pace=_pace(site, since)
        )
        book = MemoryColumns()
        self._senses = Senses(CLUSTER, healer.rules, book)
        self._translator = Translator(healer.rules.catalogue, book, CLUSTER)
        self._planted: set[tuple[str, str]] = set()
        self._saved_at = site.work.saved_at
        self._whole: SlurmSnapshot | None = None
        self._part = site.snapshot()
        self.samples = 0

    def load(self, packed: dict[str, bytes]) -> None:
        """What senses that ran all the time would know."""
        self._senses.load(packed)

    def step(self, recorder: Recorder | None) -> None:
        """Scrapes each node once and runs the senses."""
        now = self._site.now
        snapshot = self._scrape(now, recorder)
        if not self._healer.deaf:
            self._healer.hear(self._checkpoint(now))
        picture = self._healer.picture
        watched = {pair for pair in picture.watched if self._covers(pair[1])}
        self._healer.sensed.append(self._senses.tick(snapshot, now, watched, picture.node_reports))
        self._healer.wake()

    def _covers(self, where: Component) -> bool:
        """Senses take for gone what Slurm does not show; other nodes and jobs are just not shown to these
        senses."""
        if where.node is not None:
            return where.node in self.names
        return where.job in self._part.jobs or where.job not in self._site.snapshot().jobs

    def recall(self, since: datetime, every_s: float, recorder: Recorder | None) -> None:
        """Scrapes the time from `since` until now into the senses without running them."""
        at = since
        while (at := at + timedelta(seconds=every_s)) < self._site.now:
            self._scrape(at, recorder)

    def _scrape(self, at: datetime, recorder: Recorder | None) -> SlurmSnapshot:
        snapshot = msgspec.structs.replace(self._within(self._site.snapshot()), taken_at=at)
        self._plant()
        self._show(snapshot, at)
        sent = self._sensors.advance(at)
        self._hush(sent, at)
        self._add_ports(sent.metrics)
        self._add_blocked(sent.metrics, at)
        self._add_results(sent.step_times)
        if self._healer.deaf:
            return snapshot
        in_window = lambda _cluster, node: node in self.names  # noqa: E731
        measured = self._translator.columnar(msgspec.json.encode(sent.metrics), in_window, at)
        steps = step_batches(msgspec.json.encode(sent.step_times), in_window, at, cluster=CLUSTER)
        if recorder is not None:
            self._healer.recorded_beats.until(at)
            recorder.note_samples(measured.reports, steps.batches, at)
        self._senses.renew([self._healer.picture.node(name) for name in self.names], at)
        self._senses.take(measured.reports, steps.batches, snapshot, at)
        self._healer.hear(measured.inventory)
        return snapshot

    def _within(self, snapshot: SlurmSnapshot) -> SlurmSnapshot:
        """Slurm's picture of these nodes only, so that the senses stay small."""
        if (
            self._whole is not None
            and self._whole.nodes is snapshot.nodes
            and self._whole.jobs is snapshot.jobs
        ):
            return msgspec.structs.replace(self._part, taken_at=snapshot.taken_at)
        names = set(self.names)
        jobs = {
            job.id: msgspec.structs.replace(
                job,
                nodes=tuple(name for name in job.nodes if name in names),
                gpus={name: job.gpus[name] for name in self.names if name in job.gpus},
            )
            for job in snapshot.jobs.values()
            if not names.isdisjoint(job.nodes)
        }
        nodes = {name: snapshot.nodes[name] for name in self.names}
        self._whole = snapshot
        self._part = msgspec.structs.replace(snapshot, nodes=nodes, jobs=jobs)
        return self._part

    def _hush(self, sent: Sent, at: datetime) -> None:
        """Drops what unreachable nodes would send."""
        silent = {
            node
            for node in self.names
            if any(fault.way.silent and fault.at <= at for fault in self._site.active.get(node, ()))
        }
        sent.metrics = [body for body in sent.metrics if body["node"] not in silent]
        for body in sent.step_times:
            body["samples"] = [sample for sample in body["samples"] if sample["node"] not in silent]
        sent.step_times = [body for body in sent.step_times if body["samples"]]

    def _show(self, snapshot: SlurmSnapshot, at: datetime) -> None:
        """Shows the sensors which jobs run. A large job whose program is gone makes no step; its GPUs
        idle."""
        name, ranks = self._site.job, ranks_at(self._site, at)
        if ranks is Ranks.rests:
            snapshot = msgspec.structs.replace(
                snapshot, jobs={key: job for key, job in snapshot.jobs.items() if key != name}
            )
        elif (job := snapshot.jobs.get(name)) is not None and self._site.scenario.job.spares:
            workers = self._site.workers(self._site.snapshot().jobs[name])
            there = msgspec.structs.replace(job, nodes=tuple(node for node in job.nodes if node in workers))
            snapshot = msgspec.structs.replace(snapshot, jobs={**snapshot.jobs, name: there})
        self._sensors.show(snapshot)
        if ranks is Ranks.waits and (job := snapshot.jobs.get(name)) is not None:
            self._sensors.hang(name, self._broken(job), stopped=True)

    def _broken(self, job: SlurmJob) -> list[int]:
        """Ranks of the large job on the faulty node."""
        fault, gpus = self._site.blocking(), self._site.scenario.gpus
        if fault is None or fault.node not in job.nodes:
            return []
        first = job.nodes.index(fault.node) * gpus
        return list(range(first, first + gpus))

    def _plant(self) -> None:
        """Plants and removes sensor faults as the site has them now."""
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

    def _add_blocked(self, bodies: list[dict[str, Any]], at: datetime) -> None:
        """A disk that does not answer holds the processes that use it."""
        for body in bodies:
            faults = self._site.active.get(body["node"], ())
            holds = any(fault.way.hangs and fault.way.hardware and fault.at <= at for fault in faults)
            body.setdefault("host", {})["node_procs_blocked"] = BLOCKED if holds else 0

    def _add_results(self, bodies: list[dict[str, Any]]) -> None:
        """Adds the gradient norm, which all ranks share after its all-reduce."""
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
        """The job's checkpoint, if one became durable since the last scrape."""
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
    """All windows of one simulation."""

    def __init__(self, site: Site, healer: Healer, recorder: Recorder | None = None) -> None:
        self._site, self._healer, self._recorder = site, healer, recorder
        self._spec = site.scenario.telemetry
        self._opened = 0
        self._now_open: list[Window] = []
        self.node_hours = 0.0
        healer.on_fault_near = self._near
        self._stalls = Stalls(site, self._open_for_stall)
        #: The longest start of the large job so far, s: senses over a whole fleet have seen each.
        self._start_s = 0.0
        #: The large job's restart count when it last began to work.
        self._worked = -1
        #: The jobs as Slurm showed them last, and those that ran, each with its restart count and the nodes
        #: that it worked on.
        self._shown: Mapping[str, SlurmJob] = {}
        self._lives: set[tuple[str, int, Collection[str]]] = set()
        self._sample_at_random()

    def look(self) -> None:
        """Opens the windows that are due. Call it after each moment."""
        self._stalls.look()
        job = self._site.snapshot().jobs[self._site.job]
        works_since, started = self._site.works_since, job.start_at
        if works_since is not None and started is not None and job.restarts != self._worked:
            self._worked = job.restarts
            self._start_s = max(self._start_s, (works_since - started).total_seconds())
        self._look_at_starts()

    def _look_at_starts(self) -> None:
        """A fault that showed nothing on an idle node shows on one at work."""
        shown = self._site.snapshot().jobs
        if shown is self._shown:
            return
        self._shown, before = shown, self._lives
        running = [job for job in shown.values() if job.state == "RUNNING"]
        lives = {(job.id, job.restarts, self._site.workers(job)) for job in running}
        began = {node for life in lives - before for node in life[2]}
        self._lives = lives
        for node in sorted(self._site.active.keys() & began):
            for fault in self._site.active[node]:
                self._near(fault)

    def _near(self, fault: Fault) -> None:
        way = fault.way
        shows = way.sensors or way.port_down or way.wrong_numbers
        if not shows or self._site.slurm.node(fault.node).held:
            return
        until = max(fault.at, self._site.now) + timedelta(minutes=self._spec.after_min)
        names = self._around(fault.node, self._spec.peers + 1)
        window = next((window for window in self._now_open if _measures(window, fault.node, names)), None)
        if window is not None:
            window.until = max(window.until, until)
            if fault not in window.faults:
                window.faults.append(fault)
        else:
            window = self._open(names, until, [fault])
        self._report_until(window, fault)

    def _open_for_stall(self, fault: Fault, since: datetime) -> None:
        """Opens a window over the past and the future of a stalled job, until it works again."""
        if any(fault.node in window.names for window in self._now_open):
            return
        window = self._window(self._around(fault.node, self._spec.peers + 1), self._site.end, since)
        window.fine_until = self._site.later(FINE_S)
        window.recall(since, self._spec.fine_s, self._recorder)
        self._begin(window)

    def _is_over(self, window: Window) -> bool:
        if window.fine_until is not None:
            # Whether the job has worked again long enough for its incident to resolve.
            now = self._site.now
            works = self._site.work.doing is Spent.productive
            window.works_since = (window.works_since or now) if works else None
            return window.works_since is not None and (now - window.works_since).total_seconds() > WELL_S
        return bool(window.faults) and all(self._has_left(fault) for fault in window.faults)

    def _has_left(self, fault: Fault) -> bool:
        record = self._site.records.get(fault.id)
        left = record.out_at if record is not None else None
        return left is not None and (self._site.now - left).total_seconds() > AFTERWARDS_S

    def _around(self, node: str, many: int) -> list[str]:
        """The node with its neighbours in its job, which are its peers; a small job is filled up."""
        jobs = [job for job in self._site.snapshot().jobs.values() if job.state == "RUNNING"]
        names = next((list(job.nodes) for job in jobs if node in job.nodes), self._site.names)
        if len(names) < many:
            return names + [name for name in self._site.names if name not in names][: many - len(names)]
        at = names.index(node)
        begin = max(0, min(at - many // 2, len(names) - many))
        return names[begin : begin + many]

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

    def _open(self, names: list[str], until: datetime, faults: list[Fault]) -> Window:
        window = self._window(names, until, self._site.now)
        window.faults = faults
        self._begin(window)
        return window

    def _report_until(self, window: Window, fault: Fault) -> None:
        """What was measured right before a fault arrives too: nodes and clients report every few seconds."""

        def report() -> None:
            if window in self._now_open:
                window.step(self._recorder)

        before = fault.at - timedelta(seconds=LAST_REPORT_S)
        if before > self._site.now:
            self._site.agenda.at(before, report)

    def _window(self, names: list[str], until: datetime, since: datetime) -> Window:
        self._opened += 1
        seed = self._site.seed * 100_003 + self._opened
        window = Window(self._site, self._healer, names, until, seed, since)
        if self._start_s:
            shown = self._site.snapshot().jobs.values()
            kinds = {(job.name, job.user, job.partition) for job in shown}
            window.load(
                {
                    STARTS: msgspec.json.encode({self._site.job: self._start_s}),
                    SHARED_RESULTS: msgspec.json.encode([(*kind, ["grad_norm"]) for kind in sorted(kinds)]),
                }
            )
        return window

    def _begin(self, window: Window) -> None:
        self._now_open.append(window)

        def step() -> None:
            window.step(self._recorder)
            every_s = self._spec.fine_s if self._is_fine(window) else self._spec.every_s
            self.node_hours += len(window.names) * every_s / 3600
            if self._site.now < window.until and not self._is_over(window):
                self._site.agenda.at(self._site.later(every_s), step)
            else:
                self._now_open.remove(window)

        step()

    def _is_fine(self, window: Window) -> bool:
        if window.fine_until is not None:
            return self._site.now < window.fine_until
        return any(name in self._site.active for name in window.names)


def _measures(window: Window, node: str, peers: list[str]) -> bool:
    """Whether it holds the node with most of these: one from before the node's job lacks its peers there."""
    return node in window.names and 2 * len(set(peers) & set(window.names)) > len(peers)


def _pace(site: Site, since: datetime) -> Pace:
    """Steps of about 5 s with the noise of equal work (published_figures 4), checkpoints as the job's;
    numbered on through the whole simulation, as one step is one event."""
    usual, job = Pace(), site.scenario.job
    step_s = usual.compute_s + usual.collective_s + usual.data_s
    every = max(1, round(job.checkpoint_s / step_s))
    done = int((since - site.scenario.start).total_seconds() / step_s)
    return Pace(checkpoint_every=every, checkpoint_s=job.checkpoint_stall_s, done=done)
