"""The tick over the fleet: all senses that live on samples, looked at together every few seconds."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from healer.detection import DETECTORS, OverWindows, Sources
from healer.detection.fleet_figures import FleetFigures
from healer.detection.forest import Forest
from healer.detection.lemons import Lemons
from healer.detection.protocol import Detector, Look, Pair
from healer.model import Detections, LinkDown, Ruleset, SlurmSnapshot
from healer.model.telemetry import Report, StepBatch
from healer.observations import NodePicture, Picture
from healer.observations.steps import StepTimes
from healer.observations.telemetry_windows import Telemetry
from healer.ports.measurements import ColumnBook

#: The pace of the tick, in production and in simulated time.
TICK_S = 5.0
#: While windows are rebuilt the rules look once in so much time past: their holds survive a restart.
PRIME_S = 15.0
#: Nobody was heard for so long: healer was away itself, or its way to everybody was.
DEAF_AFTER = timedelta(seconds=30)


class Senses:
    """All detectors over windows of one cluster, with what they look at. One thread owns it.

    The same samples, pictures and moments give the same findings.
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
        given = Sources(rules, forest, lemons, fleet_figures)
        made = [one.make(given) for one in DETECTORS if isinstance(one, OverWindows)]
        self.detectors: list[Detector] = [one for one in made if one is not None]
        self.version = rules.version
        self._topology = rules.topology
        #: While windows are rebuilt: the moment of the last samples, and of the last look at them.
        self._taken: datetime | None = None
        self._primed: datetime | None = None
        #: Since when the last tick knew things to be over.
        self._clear: Mapping[Pair, datetime] = {}
        #: When anybody was heard last, and since when without a break.
        self._heard: datetime | None = None
        self._listening: datetime | None = None
        #: Since when Slurm does not show it any more.
        self._gone: dict[Pair, datetime] = {}
        #: Node -> since when what it tells counts, as far as that is known here.
        self._renewed: dict[str, datetime] = {}

    @property
    def has_samples(self) -> bool:
        """False where nobody measures: then a tick would find nothing."""
        if self.telemetry.reports > 0 or any(True for _ in self.steps.jobs()):
            return True
        return not all(one.needs_samples for one in self.detectors)

    @property
    def is_idle(self) -> bool:
        """No job reports its steps, and nothing holds: without samples a tick hardly finds anything."""
        return not any(True for _ in self.steps.jobs()) and all(one.is_idle for one in self.detectors)

    def follow(self, rules: Ruleset) -> bool:
        """Takes changed rules; what they watched already keeps its holds, what was measured its windows.

        False when the catalogue changed: series mean something else now, and new senses have to begin anew.
        """
        if rules.version == self.version:
            return True
        if rules.catalogue != self._catalogue:
            return False
        self.telemetry.models(rules.gpu_models)
        self.detectors = [one.under(rules) for one in self.detectors]
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
            for one in self.detectors:
                one.forget(self.telemetry, node.name, at)

    def pack(self) -> dict[str, bytes]:
        """What took days to learn, by name: a restart needs it."""
        return {name: kept for one in self.detectors for name, kept in one.pack(self.telemetry).items()}

    def load(self, packed: Mapping[str, bytes]) -> list[str]:
        """Takes what was kept; returns the names of what cannot be read, which begins anew."""
        return [name for one in self.detectors for name in one.load(packed)]

    def know_parts(self, picture: Picture) -> None:
        """Which GPU is which part, as nodes list them: the trend of a new part begins with it."""
        nodes = picture.nodes
        found = [
            (name, gpu, part)
            for name, pci, part in picture.history.gpus()
            if name in nodes and (gpu := nodes[name].gpus.index(pci, expected=0)) is not None
        ]
        for one in self.detectors:
            one.know_parts(self.telemetry, found)

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
                for one in self.detectors:
                    one.prime(self.telemetry, moment)
        self.take((), batches, slurm, now)

    def tick(
        self,
        slurm: SlurmSnapshot | None,
        now: datetime,
        watched: Collection[Pair],
        links_down: Mapping[str, LinkDown] | None = None,
        faults: Mapping[str, Sequence[str]] | None = None,
    ) -> Detections:
        """Looks at everything once. Call it every `TICK_S`. `links_down`: nodes that lost a link, by lines;
        `faults`: titles of the incidents that are open on nodes. ClockStepped: the clock went back, and fresh
        senses have to begin anew."""
        self.telemetry.check_clock(now)
        look = self._look(slurm, now, watched, links_down or {}, faults or {})
        told = [one.tick(look) for one in self.detectors]
        clear = {key: at for sensed in told for key, at in sensed.clear_since.items()}
        self._clear = self._gone_since(watched, now) | clear
        findings = tuple(one for sensed in told for one in sensed.findings)
        return Detections(at=now, findings=findings, clear_since=self._clear)

    def look(
        self, slurm: SlurmSnapshot | None, now: datetime, links_down: Mapping[str, LinkDown]
    ) -> Detections | None:
        """Between two ticks, where nodes have just lost a link: jobs that stand for it. None: there are none.
        What the last tick knew to be over is over still."""
        look = self._look(slurm, now, (), links_down, {})
        found = tuple(finding for one in self.detectors for finding in one.glance(look))
        if not found:
            return None
        stands = {(one.fault, one.component) for one in found}
        clear = {pair: at for pair, at in self._clear.items() if pair not in stands}
        return Detections(at=now, findings=found, clear_since=clear)

    def _look(
        self,
        slurm: SlurmSnapshot | None,
        now: datetime,
        watched: Collection[Pair],
        links_down: Mapping[str, LinkDown],
        faults: Mapping[str, Sequence[str]],
    ) -> Look:
        return Look(now, self.telemetry, self.steps, slurm, watched, links_down, faults, self._listening)

    def _gone_since(self, watched: Collection[Pair], now: datetime) -> dict[Pair, datetime]:
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
