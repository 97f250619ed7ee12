"""Replay: a recording through the same walk and the same driver, in simulated time.

The same input gives the same bytes: no clock, no chance, no order of threads.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from healer.detection.silence import settled_until
from healer.model import Mode, Observation, ObservationKind, Reference, Ruleset
from healer.model.slurm import is_ours
from healer.observations.node_picture import BEATS_FOR_CADENCE
from healer.observations.silences import Settled
from healer.recordings.recorder import LOST
from healer.recordings.recording import BadRecording, Entry, of_entry
from healer.signals.alert_bodies import Site
from healer.sim.ledger_tables import RECENT
from healer.sim.loop import Loop
from healer.sim.nodes import SimNodes
from healer.sim.replay_report import report
from healer.sim.replay_signals import HEARTBEAT, MEASURED, SAMPLES, Beats, EventRoutes, Refused
from healer.sim.replay_slurm import ReplaySlurm, shown
from healer.sim.sim_clock import SimClock
from healer.text import said_by, say

if TYPE_CHECKING:
    from healer.sim.replay_samples import RecordedSamples

log = structlog.get_logger()

#: Step of time after a change, so that settling, waits and pages happen when they are due.
FINE_S = 1.0
#: Routes with thousands of signals a second, which need no walk at once.
_BULK = SAMPLES | {HEARTBEAT}
_BEATS = frozenset({HEARTBEAT})
#: Step of time after a quiet minute.
COARSE_S = 60.0
QUIET_S = 60.0
#: Step of time after an hour in which nothing was open, at work or measured. Else it grows with the quiet
#: time, so that what is due after a wait is at most a sixtieth of the wait late.
STILL_STEP_S = STILL_S = 3600.0
#: Route of a reference node's facts, for drift: `{"kind": "h100", "facts": {"driver": "580.65"}}`.
REFERENCE = "reference"
_LEAST = timedelta(microseconds=1)


# Wide: the state of one replay from its first entry to its report.
class Replay:
    """One replay of one cluster. Feed it entries by time, then `finish`."""

    def __init__(self, rules: Ruleset, cluster: str, start: datetime) -> None:
        self.rules, self.cluster = rules, cluster
        self.clock = SimClock(start)
        self.slurm = ReplaySlurm(cluster, self.clock)
        nodes = SimNodes(self.clock, diagnosis_s=0, gpus=64)  # every action succeeds at once, on any node
        self.loop = Loop(cluster, self.clock, self.slurm, lambda: self.rules, nodes, self.slurm.snapshot)
        self.ledger, self.picture = self.loop.ledger, self.loop.picture
        #: None until the recording brings a sample: without any, no tick is due and numpy is not loaded.
        self.samples: RecordedSamples | None = None
        self.heartbeats = Beats(cluster, start)
        #: By node, the GPUs of its latest heartbeat that the samples' translator has yet to learn.
        self.listed: dict[str, list[dict[str, Any]]] = {}
        #: Heartbeats that the picture has yet to take in: at the next walk, or before.
        self.beats: list[Observation] = []
        self.walked_at = start
        #: When the last heartbeats came.
        self.beat_at = start
        #: Who is silent, and until when more heartbeats of all others change nothing that a walk would find.
        self.settled = Settled(frozenset(), start)
        #: When the next walk is due, whatever is heard.
        self.walk_due = start
        self.known: set[str] = set()
        #: Entries that the recorder reported as lost.
        self.lost = 0
        self.events = EventRoutes(cluster, rules, self._site, self._sampled, self.known)
        self.quiet_since = start
        self.refused = Refused()
        self.ignored: dict[str, int] = {}
        #: Node -> when healer drained it in the recording.
        self.recorded_drains: dict[str, datetime] = {}

    def feed(self, entries: Iterable[Entry]) -> None:
        for at, group in itertools.groupby(entries, key=lambda entry: entry.at):
            batch = list(group)
            routes = {entry.route for entry in batch}
            if routes <= _BULK and at - self.walked_at < timedelta(seconds=FINE_S):
                self.beats.extend(signal for entry in batch for signal in self._signals(entry))
                if routes == _BEATS:
                    self.beat_at = at
                else:
                    self.quiet_since = at
                continue
            if routes == _BEATS:
                self._take_beats(at, [signal for entry in batch for signal in self._signals(entry)])
                continue
            self._pass_time(at)
            if at > self.walked_at and any(entry.route == "slurm/nodes" for entry in batch):
                self._walk([])  # what was due before the picture, of which the jobs may follow
            for entry in batch:
                if entry.route == LOST:
                    with _named(entry):
                        self.lost += int(entry.body["entries"])
                elif entry.route.startswith("slurm/"):
                    with _named(entry):
                        self._show(entry)
                elif entry.route == REFERENCE:
                    with _named(entry):
                        self._refer(entry)
            seen = [signal for entry in batch for signal in self._signals(entry)]
            before = self._written()
            self._walk(seen)
            # Whether walks are due soon after this entry.
            if before != self._written() or any(entry.route.startswith("slurm/") for entry in batch):
                self.quiet_since = at
            if HEARTBEAT in routes:
                self.beat_at = at

    def _take_beats(self, at: datetime, beats: list[Observation]) -> None:
        if at >= self.settled.until:
            self._pass_time(at)
        self.beat_at = at
        if at < self.settled.until and all(self._is_routine(beat) for beat in beats):
            self.beats.extend(beats)
            return
        self.clock.set(at)
        before = self._written()
        self._walk(beats)
        if before != self._written():
            self.quiet_since = at

    def _is_routine(self, beat: Observation) -> bool:
        """Of a node that is heard with a cadence, in the same boot, and with nothing else in it."""
        node = self.picture.nodes.get(beat.component.node or "")
        return (
            node is not None
            and len(node.beats) >= BEATS_FOR_CADENCE
            and beat.boot_id in {None, node.boot_id}
            and not beat.data
            and node.name not in self.settled.silent
        )

    def finish(self) -> dict[str, Any]:
        """Lets the last events settle, then returns the document."""
        self._pass_time(self.clock.now() + timedelta(seconds=self.rules.settle_s + FINE_S))
        return report(self.ledger.tables, self.rules, self.ledger.snapshot, self.recorded_drains)

    def _pass_time(self, until: datetime) -> None:
        """Moves the clock to just before `until`, walking on the way."""
        while True:
            now = self.clock.now()
            then = self.settled.until
            if now >= then:
                then = self._not_after_the_tick(now + timedelta(seconds=self._step_s()))
            if then >= until:
                break
            self.clock.set(then)
            if not self._only_beats_are_new():
                self._walk([])
        if until > self.clock.now():
            self.clock.set(until)

    def _only_beats_are_new(self) -> bool:
        """Takes in the heartbeats where no walk is due. True if none who was heard is silent by them."""
        if self.clock.now() >= self.walk_due:
            return False
        self.picture.update(self.beats, self.rules.topology)
        self.beats = []
        self.settled = self._settled()
        return self.settled.until > self.clock.now()

    def _settled(self) -> Settled:
        """Who is silent, and until when a walk over heartbeats of all others finds nothing: never within a
        quiet minute, and at most until the next walk is due."""
        now, at_rest = self.clock.now(), self._is_at_rest()
        found = settled_until(self.picture, now, at_rest=at_rest) if self._is_quiet() else None
        if found is None:
            return Settled(frozenset(), now)
        return Settled(found.silent, min(found.until + _LEAST, self.walk_due))

    def _is_quiet(self) -> bool:
        return (
            self.samples is None
            and (self.clock.now() - self.quiet_since).total_seconds() >= QUIET_S
            and any(self.picture.senders())  # it asks every node
            and all(lasting.reported_at is not None for lasting in self.picture.standing.values())
        )

    def _next_walk(self) -> datetime:
        """When the next walk over heartbeats is due: what is due after a wait is at most a sixtieth of the
        wait late, and at most a minute."""
        quiet_s = (self.clock.now() - self.quiet_since).total_seconds()
        step_s = COARSE_S if self._is_at_rest() else min(max(FINE_S, quiet_s / 60), COARSE_S)
        return self.clock.now() + timedelta(seconds=step_s)

    def _step_s(self) -> float:
        quiet_s = (self.clock.now() - max(self.quiet_since, self.beat_at)).total_seconds()
        if quiet_s < QUIET_S:
            return FINE_S
        if quiet_s >= STILL_S and not any(self.picture.senders()) and self._is_at_rest():
            return STILL_STEP_S
        return min(max(COARSE_S, quiet_s / 60), STILL_STEP_S)

    def _is_at_rest(self) -> bool:
        """No incident is open and no run is under way."""
        tables = self.ledger.tables
        recent = tables.recent_incidents(self.clock.now() - RECENT)
        return not tables.active_runs() and not any(incident.is_open for incident in recent)

    def _not_after_the_tick(self, then: datetime) -> datetime:
        due = self.samples.next_tick(self.clock.now()) if self.samples is not None else None
        return then if due is None else min(then, max(due, self.clock.now() + _LEAST))

    def _show(self, entry: Entry) -> None:
        body = entry.body
        shown_of = body.get("cluster") if isinstance(body, dict) else None
        if shown_of and shown_of != self.cluster:
            raise ValueError(say("simulation.two_clusters", cluster=shown_of, before=self.cluster))
        if entry.route == "slurm/nodes":
            for node in self.slurm.show_nodes(shown(body, "nodes"), self.rules.topology):
                if node.drain and is_ours(node.reason):
                    self.recorded_drains.setdefault(node.name, node.reason_at or entry.at)
        elif entry.route == "slurm/jobs":
            self.slurm.show_jobs(shown(body, "jobs"))
        else:
            self.ignored[entry.route] = self.ignored.get(entry.route, 0) + 1

    def _refer(self, entry: Entry) -> None:
        """Takes over a reference (`healer learn`)."""
        body = entry.body if isinstance(entry.body, dict) else {}
        fields = {"cluster": self.cluster, "node": "", "by": "", "at": entry.at} | body
        reference = msgspec.convert(fields, Reference)
        self.ledger.tables.references[reference.kind] = reference
        self.picture.references_at = None

    def _signals(self, entry: Entry) -> list[Observation]:
        if entry.route == HEARTBEAT and not entry.query:
            plain = self.heartbeats.plain(entry, self._is_known)
            if plain is not None:
                return plain
        with _named(entry):
            if entry.route in MEASURED:
                return self._fresh(self._sampled(entry), {})
            parsed = self.events.parsed(entry)
        if parsed is None:
            if entry.route not in ("clock", REFERENCE, LOST) and not entry.route.startswith("slurm/"):
                self.ignored[entry.route] = self.ignored.get(entry.route, 0) + 1
            return []
        self.refused.count(entry, parsed)
        if entry.known_as and len(entry.known_as) == len(parsed.observations):
            named = zip(parsed.observations, entry.known_as, strict=True)
            return self._fresh(
                [msgspec.structs.replace(observation, digest=name) for observation, name in named], {}
            )
        return self._fresh(parsed.observations, parsed.alternatives)

    def _fresh(
        self, observations: Iterable[Observation], alternatives: Mapping[str, Sequence[str]]
    ) -> list[Observation]:
        """The observations that are new."""
        fresh = []
        for observation in observations:
            if observation.kind is ObservationKind.heartbeat:
                if gpus := observation.data.get("gpus"):
                    self.listed[observation.component.node or ""] = gpus
                if self.heartbeats.is_new(observation):
                    fresh.append(observation)
                continue
            names = {observation.digest, *alternatives.get(observation.digest, ())}
            if self.known.isdisjoint(names):
                fresh.append(observation)
            self.known.add(observation.digest)
        return fresh

    def _sampled(self, entry: Entry) -> list[Observation]:
        if self.samples is None:
            from healer.sim.replay_samples import RecordedSamples

            self.samples = RecordedSamples(self.cluster, self.rules, self._is_known, entry.at, self.refused)
        for node, gpus in self.listed.items():
            self.samples.learn_gpus(node, gpus)
        self.listed.clear()
        observations = self.samples.take(entry)
        self.loop.checkpoints.hear(observations)
        return observations

    def _site(self, cluster: str) -> Site:
        return Site(cluster, (self.cluster,), self._is_known, self._is_switch)

    def _is_switch(self, _: str, name: str) -> bool:
        shown = self.slurm.nodes.values()
        return name in self.rules.topology.of(self.cluster).switches or any(
            name == node.switch or name in node.switches for node in shown
        )

    def _is_known(self, cluster: str, node: str) -> bool:
        """Whether the node exists; any does in a recording without Slurm's nodes."""
        return cluster == self.cluster and (node in self.slurm.nodes or not self.slurm.nodes)

    def _walk(self, seen: list[Observation]) -> None:
        """Walks and drives until nothing more is due at this moment."""
        now = self.walked_at = self.clock.now()
        batch, self.beats = [*self.beats, *seen], []
        self.loop.checkpoints.hear(batch)
        self.loop.look()
        sensed = self.samples.tick(self.picture, now) if self.samples is not None else None
        written = self.ledger.tables.logged
        self.loop.walk(batch, sensed)
        if self.ledger.tables.logged != written:
            self.quiet_since = now  # a run that only checks whether it may continue does not count
        self.walk_due = self._next_walk()
        self.settled = self._settled()

    def _written(self) -> tuple[int, int]:
        """Numbers of findings and audit records: they grow when a walk finds something."""
        return len(self.ledger.tables.findings), len(self.ledger.tables.audit)


def replay(
    rules: Ruleset, entries: Iterable[Entry], modes: Mapping[str, Mode] | None = None
) -> dict[str, Any]:
    """Returns the document of the replay; that of an empty recording is empty. `modes`: of rules, set while
    running."""
    stream: Iterator[Entry] = iter(entries)
    held: list[Entry] = []
    cluster = None
    for entry in stream:
        held.append(entry)
        cluster = cluster_of(entry)
        if cluster is not None:
            break
    if not held:
        return {"incidents": [], "merged": [], "actions": [], "held": [], "differences": []}
    run = Replay(rules, cluster or "cluster", held[0].at)
    run.ledger.tables.modes |= modes or {}
    run.feed(itertools.chain(held, stream))
    document = run.finish()
    for route, count in sorted(run.ignored.items()):
        log.warning("recording has entries of unknown routes", route=route, entries=count)
    if run.lost:
        log.warning("recording has gaps", entries=run.lost)
    if run.refused.entries:
        log.warning("signals rejected", entries=run.refused.entries, first=run.refused.first)
    if run.samples is not None and run.samples.unrecognised:
        log.warning("samples with unknown names", samples=run.samples.unrecognised)
    return document


@contextmanager
def _named(entry: Entry) -> Iterator[None]:
    """Turns errors in a body into a BadRecording that names its line."""
    try:
        yield
    except KeyError as error:
        raise BadRecording(of_entry(entry, say("simulation.row_lacks", field=str(error)))) from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadRecording(of_entry(entry, said_by(error))) from error


def cluster_of(entry: Entry) -> str | None:
    """The cluster that the entry names, if any."""
    body = entry.body
    first = body[0] if isinstance(body, list) and body else body
    if isinstance(first, dict) and first.get("cluster"):
        return str(first["cluster"])
    return entry.query.get("cluster")
