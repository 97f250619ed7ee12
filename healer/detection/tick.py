"""The tick over the fleet: all senses that live on samples, looked at together every few seconds."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

import msgspec
import numpy as np

from healer.detection.baseline import Baseline
from healer.detection.creep import Creep
from healer.detection.divergence import Divergence
from healer.detection.fleet_figures import FleetFigures
from healer.detection.forecasts import Forecasts
from healer.detection.forest import Forest
from healer.detection.gpu_rest import at_rest
from healer.detection.hangs import Hangs
from healer.detection.leaks import Leaks
from healer.detection.lemons import Lemons
from healer.detection.measured import RuleEngine
from healer.detection.ports_down import ports_down
from healer.detection.shifts import DRIFTED, Shifts
from healer.detection.step_findings import JOB_SLOW
from healer.detection.stragglers import Stragglers
from healer.detection.suspects import Suspects
from healer.model import Component, Finding, LinkDown, Ruleset, Sensed, SlurmSnapshot
from healer.model.samples import Report, StepBatch
from healer.observations import NodePicture, Picture
from healer.observations.steps import StepTimes
from healer.observations.telemetry import Telemetry
from healer.ports.measurements import ColumnBook

#: The pace of the tick, in production and in simulated time.
TICK_S = 5.0
#: While windows are rebuilt the rules look once in so much time past: their holds survive a restart.
PRIME_S = 15.0
#: Nobody was heard for so long: healer was away itself, or its way to everybody was.
DEAF_AFTER = timedelta(seconds=30)

#: Under this name what jobs say of nodes is kept.
MARKS = "job-marks"

Watched = Collection[tuple[str, Component]]


class Senses:
    """Rules over measured signals, trends of days, stragglers and jobs that creep, memory that runs out,
    results of steps, the isolation forest with nodes that changed, lemons, and what tests measured, of one
    cluster, with their memory.

    One thread owns it. The same samples, pictures and moments give the same findings.
    """

    def __init__(
        self,
        cluster: str,
        rules: Ruleset,
        book: ColumnBook,
        forest: Forest | None = None,
        lemons: Lemons | None = None,
        fleet_figures: FleetFigures | None = None,
    ) -> None:
        self.cluster, self.book = cluster, book
        self._catalogue = rules.catalogue
        self.telemetry = Telemetry(cluster, rules.catalogue, rules.gpu_models)
        self.steps = StepTimes(cluster)
        self.stragglers = Stragglers()
        self.divergence = Divergence()
        self.creep, self.leaks = Creep(), Leaks()
        self.forest, self.lemons, self.fleet_figures = forest, lemons, fleet_figures
        #: It lives on the forest's features: without it nobody samples them.
        self.shifts = Shifts()
        self.suspects = Suspects()
        self.baseline = Baseline()
        self.hangs = Hangs()
        self.engine = RuleEngine(rules.detection, rules.catalogue)
        self.forecasts = Forecasts(rules.forecasts, rules.catalogue)
        self.version = rules.version
        self._topology = rules.topology
        #: While windows are rebuilt: the moment of the last samples, and of the rules' last look.
        self._taken: datetime | None = None
        self._primed: datetime | None = None
        #: Since when the last tick knew things to be over.
        self._clear: Mapping[tuple[str, Component], datetime] = {}
        #: When anybody was heard last, and since when without a break.
        self._heard: datetime | None = None
        self._listening: datetime | None = None
        #: Since when Slurm does not show it any more.
        self._gone: dict[tuple[str, Component], datetime] = {}
        #: Node -> since when what it tells counts, as far as that is known here.
        self._renewed: dict[str, datetime] = {}

    @property
    def has_samples(self) -> bool:
        """False where nobody measures: then a tick would find nothing but lemons and slow tests."""
        slow_ones = self.lemons is not None or self.fleet_figures is not None
        return slow_ones or self.telemetry.reports > 0 or any(True for _ in self.steps.jobs())

    def follow(self, rules: Ruleset) -> bool:
        """Takes changed rules; what they watched already keeps its holds, what was measured its windows.

        False when the catalogue changed: series mean something else now, and new senses have to begin anew.
        """
        if rules.version == self.version:
            return True
        if rules.catalogue != self._catalogue:
            return False
        self.telemetry.models(rules.gpu_models)
        self.engine = RuleEngine(rules.detection, rules.catalogue, before=self.engine)
        self.forecasts = Forecasts(rules.forecasts, rules.catalogue, before=self.forecasts)
        self.version, self._topology = rules.version, rules.topology
        return True

    def renew(self, nodes: Iterable[NodePicture], now: datetime) -> None:
        """Of nodes that were repaired, returned to service or booted since the last call: what was measured
        and what held before is over. What still stands is found anew, as a new fact."""
        for node in nodes:
            at = node.renewed_at
            if at is None or self._renewed.get(node.name) == at:
                continue
            self._renewed[node.name] = at
            self.telemetry.forget(node.name, min(at, now))
            self.engine.forget(self.telemetry, node.name)
            self.stragglers.forget(node.name)
            self.divergence.forget(node.name)
            self.baseline.forget(node.name)
            self.suspects.forget(node.name)
            if self.fleet_figures is not None:
                self.fleet_figures.forget(node.name, at)
            if self.forest is not None:
                self.forest.forget(self.telemetry, node.name)
            self.shifts.forget(self.telemetry, node.name)

    def pack(self) -> dict[str, bytes]:
        """What took days to learn, by name: a restart needs it."""
        packed = self.forecasts.pack(self.telemetry)
        # What has not looked yet knows nothing, and must not take the place of what was kept.
        if self.shifts.levels.columns:
            packed[DRIFTED] = self.shifts.pack(self.telemetry)
        if self.lemons is not None and self.lemons.marks.has_looked:
            packed[MARKS] = self.lemons.marks.pack()
        return packed

    def load(self, packed: Mapping[str, bytes]) -> list[str]:
        """Takes what was kept; returns the names of what cannot be read, which begins anew."""
        wrong = self.forecasts.load(packed)
        readers = {DRIFTED: self.shifts.load}
        if self.lemons is not None:
            readers[MARKS] = self.lemons.marks.load
        for name, read in readers.items():
            try:
                if name in packed:
                    read(packed[name])
            except ValueError:
                wrong.append(name)
        return wrong

    def know_parts(self, picture: Picture) -> None:
        """Which GPU is which part, as nodes list them: the trend of a new part begins with it."""
        nodes = picture.nodes
        found = (
            (name, gpu, part)
            for name, pci, part in picture.history.gpus()
            if name in nodes and (gpu := nodes[name].gpus.index(pci, expected=0)) is not None
        )
        self.forecasts.parts(self.telemetry, found)

    def take(
        self,
        reports: Sequence[Report],
        batches: Sequence[StepBatch],
        slurm: SlurmSnapshot | None,
        now: datetime,
    ) -> None:
        """Takes in new samples, and Slurm's picture as it is now."""
        if reports or batches:
            if self._heard is None or now - self._heard > DEAF_AFTER:
                self._listening = now
            self._heard = now
        if slurm is not None:
            self.telemetry.show(slurm, self._topology, now)
        for _, part in _stretches(reports, timedelta(seconds=TICK_S)):
            self.telemetry.update(part, self.book, now)
        self.steps.update(batches, slurm, now)

    def rebuild(
        self,
        reports: Sequence[Report],
        batches: Sequence[StepBatch],
        slurm: SlurmSnapshot | None,
        now: datetime,
    ) -> None:
        """After a restart: samples that were taken before. Nothing is found in them, but what began then is
        known to have begun."""
        for until, part in _stretches(reports, timedelta(seconds=PRIME_S)):
            # Hosts stamp arrivals with clocks of their own: ours goes on, and never beyond now.
            self._taken = moment = min(max(until, self._taken or until), now)
            self.take(part, (), slurm, moment)
            # Not at the end of each part of the store's rows, wherever that is.
            if self._primed is None or moment - self._primed >= timedelta(seconds=PRIME_S):
                self._primed = moment
                self.engine.prime(self.telemetry, moment)
        self.take((), batches, slurm, now)

    def tick(
        self,
        slurm: SlurmSnapshot | None,
        now: datetime,
        watched: Watched,
        links_down: Mapping[str, LinkDown] | None = None,
        faults: Mapping[str, Sequence[str]] | None = None,
    ) -> Sensed:
        """Looks at everything once. Call it every `TICK_S`. `links_down`: nodes that lost a link, by lines;
        `faults`: titles of the incidents that are open on nodes. ClockStepped: the clock went back, and fresh
        senses have to begin anew."""
        self.telemetry.check_clock(now)
        told = [
            self.engine.tick(self.telemetry, now, watched),
            self._stragglers(slurm, now, watched, faults or {}),
            self.divergence.tick(self.steps, slurm, now, watched),
            self.baseline.tick(self.steps, slurm, now, watched),
            self._hangs(slurm, now, watched, links_down or {}),
            self.forecasts.tick(self.telemetry, now, watched),
            self.creep.tick(self.steps, slurm, now, watched),
            self.leaks.tick(self.telemetry, slurm, now, watched),
        ]
        if self.forest is not None:
            told.append(self.forest.tick(self.telemetry, now, watched, self.shifts.usual))
            told.append(self.shifts.tick(self.telemetry, self.forest.features, now, watched))
        if self.lemons is not None:
            told.append(self.lemons.tick(slurm, now, watched))
        if self.fleet_figures is not None:
            told.append(self.fleet_figures.tick(slurm, now, watched))
        clear = {key: at for sensed in told for key, at in sensed.clear_since.items()}
        self._clear = self._gone_since(watched, now) | clear
        findings = tuple(one for sensed in told for one in sensed.findings)
        return Sensed(at=now, findings=findings, clear_since=self._clear)

    def look(
        self, slurm: SlurmSnapshot | None, now: datetime, links_down: Mapping[str, LinkDown]
    ) -> Sensed | None:
        """Between two ticks, where nodes have just lost a link: jobs that stand for it. None: there are none.
        What the last tick knew to be over is over still."""

        def lost(nodes: Iterable[str]) -> dict[str, LinkDown]:
            return {name: links_down[name] for name in nodes if name in links_down}

        found = self.hangs.look(self.steps, slurm, now, lost, self._listening)
        if not found:
            return None
        stands = {(one.fault, one.component) for one in found}
        clear = {pair: at for pair, at in self._clear.items() if pair not in stands}
        return Sensed(at=now, findings=found, clear_since=clear)

    def _stragglers(
        self,
        slurm: SlurmSnapshot | None,
        now: datetime,
        watched: Watched,
        faults: Mapping[str, Sequence[str]],
    ) -> Sensed:
        """Slow ranks, and slow jobs with their suspects where they tell whole steps alone."""
        sensed = self.stragglers.tick(self.steps, slurm, now, watched)
        self.suspects.follow(self.stragglers.paces(), slurm, now)
        if self.fleet_figures is not None:
            low = self.fleet_figures.suspects
            faults = {**faults, **{node: (*why, *faults.get(node, ())) for node, why in low.items()}}
        found = (
            self.suspects.named(one, faults, now) if one.fault == JOB_SLOW and self._whole_only(one) else one
            for one in sensed.findings
        )
        return msgspec.structs.replace(sensed, findings=tuple(found))

    def _whole_only(self, finding: Finding) -> bool:
        job = self.steps.job(finding.component.job or "")
        return job is not None and not np.isfinite(job.compute).any()

    def _hangs(
        self, slurm: SlurmSnapshot | None, now: datetime, watched: Watched, lines: Mapping[str, LinkDown]
    ) -> Sensed:
        def lost(nodes: Iterable[str]) -> dict[str, LinkDown]:
            names = list(nodes)
            told = {name: lines[name] for name in names if name in lines}
            return ports_down(self.telemetry, names, now) | told

        return self.hangs.tick(
            self.steps,
            slurm,
            now,
            watched,
            listening_since=self._listening,
            at_rest=lambda job: at_rest(self.telemetry, job, now),
            links_down=lost,
        )

    def _gone_since(self, watched: Watched, now: datetime) -> dict[tuple[str, Component], datetime]:
        """A job that ended, and a node that Slurm has no more, have no fault any more, whatever was measured:
        nothing more will be."""
        gone = [pair for pair in watched if self.telemetry.is_gone(pair[1])]
        self._gone = {pair: self._gone.get(pair, now) for pair in gone}
        return self._gone


def _stretches(reports: Sequence[Report], span: timedelta) -> Collection[tuple[datetime, Sequence[Report]]]:
    """Reports by arrival, cut where more than `span` has passed since the stretch began."""
    if not reports:
        return []
    edges = [0]
    begun = reports[0].arrived_at
    for index, one in enumerate(reports):
        if one.arrived_at - begun >= span:
            edges.append(index)
            begun = one.arrived_at
    edges.append(len(reports))
    return [(reports[b - 1].arrived_at, reports[a:b]) for a, b in pairwise(edges)]
