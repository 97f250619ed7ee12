"""The tick over the fleet: runs all detectors over samples together, every few seconds."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

import msgspec

from healer.detection import DETECTORS, OverWindows, Sources
from healer.detection.fleet_figures import FleetFigures
from healer.detection.forest import Forest
from healer.detection.lemons import Lemons
from healer.detection.protocol import Detector, Figures, Pair, TickInput
from healer.model import OF_FIGURES, Detections, Evidence, Finding, NodeReport, Ruleset, Sense, SlurmSnapshot
from healer.model.telemetry import Report, StepBatch
from healer.observations import NodePicture, Picture
from healer.observations.fault_history import History
from healer.observations.figure_senders import either_of
from healer.observations.steps import StepTimes
from healer.observations.telemetry_windows import Telemetry
from healer.ports.measurements import ColumnBook
from healer.signals.identity import relayed_digest

#: Seconds between ticks, in production and in simulated time.
TICK_S = 5.0
#: While windows are rebuilt, rules are evaluated once per this much past time, so that their holds survive a
#: restart.
PRIME_S = 15.0
#: Without any sender for this long, healer itself was down, or cut off from all of them.
DEAF_AFTER = timedelta(seconds=30)
_SENT = OF_FIGURES | {Sense.step_times}


class Senses:
    """All detectors over windows of one cluster, with their inputs.

    Deterministic: the same samples, pictures and moments give the same findings.
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
        made = [entry.make(given) for entry in DETECTORS if isinstance(entry, OverWindows)]
        self.detectors: list[Detector] = [detector for detector in made if detector is not None]
        self.version = rules.version
        self._topology = rules.topology
        #: While windows are rebuilt: the time of the last samples, and of their last evaluation.
        self._taken: datetime | None = None
        self._primed: datetime | None = None
        #: Since when the conditions that the last tick found over have been over.
        self._clear: Mapping[Pair, datetime] = {}
        #: When any sender was last heard, and since when without a break.
        self._heard: datetime | None = None
        self._listening: datetime | None = None
        #: Since when Slurm no longer shows it.
        self._gone: dict[Pair, datetime] = {}
        #: Node -> since when its signals count, as far as known here.
        self._renewed: dict[str, datetime] = {}
        #: Where GPUs were listed, and the change counter when the detectors were last informed.
        self._parts_of: History | None = None
        self._parts_changed = (0, 0)

    @property
    def has_samples(self) -> bool:
        """False if nothing is measured: then a tick would find nothing."""
        if self.telemetry.reports > 0 or any(True for _ in self.steps.jobs()):
            return True
        return not all(detector.needs_samples for detector in self.detectors)

    @property
    def is_idle(self) -> bool:
        """No job reports its steps, and nothing is pending: without samples a tick finds hardly anything."""
        return not any(True for _ in self.steps.jobs()) and all(
            detector.is_idle for detector in self.detectors
        )

    def follow(self, rules: Ruleset) -> bool:
        """Adopts changed rules; watched conditions keep their holds, and measurements their windows.

        Returns False if the catalogue changed: series then have another meaning, and new `Senses` are needed.
        """
        if rules.version == self.version:
            return True
        if rules.catalogue != self._catalogue:
            return False
        self.telemetry.models(rules.gpu_models)
        self.detectors = [detector.under(rules) for detector in self.detectors]
        self.version, self._topology = rules.version, rules.topology
        return True

    def renew(self, nodes: Iterable[NodePicture], now: datetime) -> None:
        """Nodes that were repaired, returned to service or booted since the last call: older measurements and
        holds no longer count. A fault that still exists is found again, as a new one."""
        for node in nodes:
            at = node.renewed_at
            if at is None or self._renewed.get(node.name) == at:
                continue
            self._renewed[node.name] = at
            self.telemetry.forget(node.name, min(at, now))
            for detector in self.detectors:
                detector.forget(self.telemetry, node.name, at)

    def pack(self) -> dict[str, bytes]:
        """State that took days to learn, by name, for the next start."""
        packed = [detector.pack(self.telemetry) for detector in self.detectors]
        return {name: kept for by_name in packed for name, kept in by_name.items()}

    def load(self, packed: Mapping[str, bytes]) -> list[str]:
        """Restores the result of `pack`; returns the names of entries that cannot be read and are learnt from
        scratch."""
        return [name for detector in self.detectors for name in detector.load(packed)]

    def know_parts(self, picture: Picture) -> None:
        """Which GPU is at which index, as listed by the nodes: a new part starts a new trend."""
        nodes = picture.nodes
        changes = picture.history.gpu_changes, sum(node.gpus.changes for node in nodes.values())
        if picture.history is self._parts_of and changes == self._parts_changed:
            return
        self._parts_of, self._parts_changed = picture.history, changes
        found = [
            (name, gpu, part)
            for name, pci, part in picture.history.gpus()
            if name in nodes and (gpu := nodes[name].gpus.index(pci, expected=0)) is not None
        ]
        for detector in self.detectors:
            detector.know_parts(self.telemetry, found)

    def take(
        self,
        reports: Sequence[Report],
        batches: Sequence[StepBatch],
        slurm: SlurmSnapshot | None,
        now: datetime,
    ) -> None:
        """Adds new samples, and the present Slurm snapshot."""
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
        """After a restart: adds earlier samples. Gives no findings, but restores holds that began then."""
        for until, part in _stretches(reports, timedelta(seconds=PRIME_S)):
            # Hosts stamp arrivals with their own clocks: our time moves forward, and never beyond now.
            self._taken = moment = min(max(until, self._taken or until), now)
            self.take(part, (), slurm, moment)
            # Not at the end of each part of the store's rows, wherever that falls.
            if self._primed is None or moment - self._primed >= timedelta(seconds=PRIME_S):
                self._primed = moment
                for detector in self.detectors:
                    detector.prime(self.telemetry, moment)
        self.take((), batches, slurm, now)

    def tick(
        self,
        slurm: SlurmSnapshot | None,
        now: datetime,
        watched: Collection[Pair],
        node_reports: Mapping[str, NodeReport] | None = None,
        faults: Mapping[str, Sequence[str]] | None = None,
    ) -> Detections:
        """Evaluates everything once. Call it every `TICK_S`. `node_reports`: nodes that lost something a job
        may need, by lines; `faults`: titles of the nodes' open incidents. Raises ClockStepped if the clock
        went back and new `Senses` are needed."""
        self.telemetry.check_clock(now)
        given = self._input(slurm, now, watched, node_reports or {}, faults or {})
        results = [detector.tick(given) for detector in self.detectors]
        findings = tuple(
            self._attributed(detector, finding, now)
            for detector, result in zip(self.detectors, results, strict=True)
            for finding in result.findings
        )
        clear = {pair: at for result in results for pair, at in result.clear_since.items()}
        # A job that ended, and a node that Slurm no longer has, have no fault any more.
        gone = [pair for pair in watched if self.telemetry.is_gone(pair[1])]
        self._gone = {pair: self._gone.get(pair, now) for pair in gone}
        self._clear = self._gone | clear
        return Detections(at=now, findings=findings, clear_since=self._clear)

    def _attributed(self, detector: Detector, finding: Finding, now: datetime) -> Finding:
        """The detector's finding with the relays whose figures it is based on, and the senders of step
        times."""
        if all(item.sense not in _SENT for item in finding.evidence):
            return finding
        figures = detector.figures_of(finding)
        evidence = tuple(self._with_sender(item, finding, figures, now) for item in finding.evidence)
        return msgspec.structs.replace(finding, evidence=evidence)

    def _with_sender(self, item: Evidence, finding: Finding, figures: Figures, now: datetime) -> Evidence:
        if item.sense is Sense.step_times:
            life = self.steps.job(item.job) if item.job is not None else None
            return msgspec.structs.replace(item, sent_by=life.sent_by) if life is not None else item
        if item.sense not in OF_FIGURES:
            return item
        where = item.component
        parts = finding.affected if where.node is None and where.switch is not None else (where,)
        relays = (
            self.telemetry.relayed_by(part.node, figures.signals, now, peers=figures.peers)
            for part in parts
            if part.node is not None
        )
        if relay := either_of(relays):
            # As for a line: the node's own later report is news.
            return msgspec.structs.replace(item, relayed_by=relay, digest=relayed_digest(item.digest))
        return item

    def tick_early(
        self, slurm: SlurmSnapshot | None, now: datetime, node_reports: Mapping[str, NodeReport]
    ) -> Detections | None:
        """Between two ticks, when nodes have just lost something a job may need: jobs that are stuck because
        of it. None: there are none. Conditions that the last tick found over stay over."""
        given = self._input(slurm, now, (), node_reports, {})
        found = tuple(
            self._attributed(detector, finding, now)
            for detector in self.detectors
            for finding in detector.tick_early(given)
        )
        if not found:
            return None
        stuck = {(finding.fault, finding.component) for finding in found}
        clear = {pair: at for pair, at in self._clear.items() if pair not in stuck}
        return Detections(at=now, findings=found, clear_since=clear)

    def _input(
        self,
        slurm: SlurmSnapshot | None,
        now: datetime,
        watched: Collection[Pair],
        node_reports: Mapping[str, NodeReport],
        faults: Mapping[str, Sequence[str]],
    ) -> TickInput:
        return TickInput(
            now,
            self.telemetry,
            self.steps,
            slurm,
            watched,
            node_reports,
            faults,
            self._listening,
            self._heard,
        )


def _stretches(reports: Sequence[Report], span: timedelta) -> Collection[tuple[datetime, Sequence[Report]]]:
    """Reports by arrival, cut whenever more than `span` has passed since the stretch began."""
    if not reports:
        return []
    edges = [0]
    begun = reports[0].arrived_at
    for index, report in enumerate(reports):
        if report.arrived_at - begun >= span:
            edges.append(index)
            begun = report.arrived_at
    edges.append(len(reports))
    return [(reports[b - 1].arrived_at, reports[a:b]) for a, b in pairwise(edges)]
