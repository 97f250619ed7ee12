"""The picture of now, with the alerts of other systems that fire.

State owned by its caller; the same input gives the same picture.
"""

import itertools
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import NamedTuple

import msgspec

from healer.model import (
    FACTS,
    NOT_COMPARED,
    Component,
    Controller,
    Detections,
    Finding,
    Inventory,
    LinkDown,
    Observation,
    ObservationKind,
    PlaceKind,
    Reference,
    Sense,
    SlurmNode,
    SlurmSnapshot,
    Topology,
    merged_facts,
)
from healer.model.slurm import is_in_maintenance
from healer.observations.echoes import Echoes
from healer.observations.fault_history import GpuMap, History

#: Lines of one message of the driver come together, also where a shipper sends each by itself.
LOSS_WITHIN = timedelta(seconds=10)
#: A line of an unknown boot that is older than this on arrival is history (product.md, "Hear").
UNKNOWN_BOOT_MAX_AGE = timedelta(hours=1)
#: What a line's own lateness may say of its host's clock at most, where no heartbeat tells that clock.
LATENESS_MAX = timedelta(minutes=10)
#: A sender is silent after three missed of its own cadence, and never before this.
SILENCE_AFTER = timedelta(seconds=30)
#: Beats needed before a sender has a cadence that it could fail to keep.
BEATS_FOR_CADENCE = 3
#: A beat that is late by half its cadence and this is overdue.
OVERDUE_S = 2.0
COUNTED_KEPT = 100_000
#: Errors that follow from the end of a job's work come within this, and are the job's.
ALLOCATION_KEPT = timedelta(hours=1)
#: What the end of a job's work leaves behind is reported within this time.
AFTER_ITS_END = timedelta(minutes=1)
ENDED_KEPT = 10_000
#: Checks of one node that are remembered; a report holds half as many.
CHECKS_KEPT = 64


def late_by(seen: Observation) -> timedelta:
    """Arrival less what the sender told of the time; exactly none: it told no time."""
    return seen.arrived_at - seen.event_at - timedelta(seconds=seen.data.get("ahead_s", 0.0))


# Wide: one record for each node, filled by all kinds of signals.
@dataclass
class NodePicture:
    """What is known of one node. `cleared_at`: a resume, reset or repair; older lines are history.
    `booted_at`: by our clock, when another boot than the known one was first heard of."""

    name: str
    boot_id: str | None = None
    boot_heard_at: datetime | None = None
    old_boots: set[str] = field(default_factory=set)
    cleared_at: datetime | None = None
    booted_at: datetime | None = None
    beats: deque[datetime] = field(default_factory=lambda: deque(maxlen=9))
    #: When it was heard again after its last silence.
    back_at: datetime | None = None
    gpus: GpuMap = field(default_factory=GpuMap)
    #: Arrival less the sender's own time: of the last heartbeats, and the least of any line of this boot.
    beats_late: deque[timedelta] = field(default_factory=lambda: deque(maxlen=9))
    line_late: timedelta | None = None
    #: What it told of itself (`healer.model.FACTS`), and when something of it changed last.
    facts: dict[str, str] = field(default_factory=dict)
    facts_at: datetime | None = None
    #: The picture's nodes of which something is to be stored.
    changed: set[str] = field(default_factory=set, repr=False)
    #: When this boot was heard of last, and the one before, both by our clock; and the picture's nodes that
    #: have just booted.
    boot_told_at: datetime | None = None
    old_boot_told_at: datetime | None = None
    booted: set[str] = field(default_factory=set, repr=False)
    #: Checks of the node's own hooks: the last one's moment by its clock, and by ours if it passed.
    checks: dict[str, tuple[datetime, datetime | None]] = field(default_factory=dict)
    #: The address in the first line of a GPU's loss, and when it came: the line that says it may come apart.
    loss_at: tuple[str, datetime] | None = None

    @property
    def renewed_at(self) -> datetime | None:
        """What was measured before speaks of what is over: a repair, a return to service or a boot."""
        known = [at for at in (self.cleared_at, self.booted_at) if at is not None]
        return max(known, default=None)

    def beat(self, at: datetime) -> None:
        if not self.beats or at > self.beats[-1]:
            if self.silent_since(at) is not None:
                self.back_at = at
            self.beats.append(at)

    def is_overdue(self, now: datetime) -> bool:
        """Whether its next beat is late, though it is not silent yet."""
        if len(self.beats) < BEATS_FOR_CADENCE:
            return False
        return (now - self.beats[-1]).total_seconds() > 1.5 * self._cadence_s() + OVERDUE_S

    def keeps_cadence(self, now: datetime) -> bool:
        """Whether it is heard, and was for so long since it came back that a silence would have shown."""
        if not self.beats or self.silent_since(now) is not None:
            return False
        return self.back_at is None or now - self.back_at > self._missed_after()

    def _cadence_s(self) -> float:
        return median((b - a).total_seconds() for a, b in itertools.pairwise(self.beats))

    def _missed_after(self) -> timedelta:
        return max(SILENCE_AFTER, timedelta(seconds=3 * self._cadence_s()))

    def silent_since(self, now: datetime, listening_since: datetime | None = None) -> datetime | None:
        """The last beat, if three are missing now; None for a sender that never kept a cadence.

        With `listening_since`: three must be missing since then, for what nobody heard was not missed.
        """
        if len(self.beats) < BEATS_FOR_CADENCE or now - self.beats[-1] <= SILENCE_AFTER:
            return None
        last = self.beats[-1]
        return last if now - max(last, listening_since or last) > self._missed_after() else None

    def is_history(self, seen: Observation) -> bool:
        """Whether a line speaks of a time that is over: an earlier boot, or before a repair.

        The repair was noted by our clock and the line by its host's, which may be wrong by hours: a new fault
        must act, so the line's time is set right first. A line that came before the repair is history too.
        """
        if (
            self.cleared_at is not None
            and min(seen.event_at + self._late(), seen.arrived_at) <= self.cleared_at
        ):
            return True
        if seen.boot_id is None:
            # Heartbeats know by how much the host's clock is off: a line is as old as it is by ours.
            late = late_by(seen)
            if late and len(self.beats_late) >= BEATS_FOR_CADENCE:
                late -= min(self.beats_late)
            return late > UNKNOWN_BOOT_MAX_AGE
        if self.boot_id is None or seen.boot_id == self.boot_id:
            return False
        if seen.boot_id in self.old_boots:
            return True
        # A boot never heard of is newer than the known one, unless it is older than that one's last word.
        at = min(seen.event_at, seen.arrived_at)
        return self.boot_heard_at is not None and at < self.boot_heard_at

    def note_clock(self, seen: Observation) -> None:
        """A signal that tells its own time tells of its host's clock."""
        if (seen.boot_id or self.boot_id) != self.boot_id:
            return
        late = late_by(seen)
        if seen.kind is ObservationKind.heartbeat:
            if late:  # exactly none: it told no time, and was given that of its arrival
                self.beats_late.append(late)
        else:
            self.line_late = late if self.line_late is None else min(self.line_late, late)

    def moment(self, event_at: datetime, arrived_at: datetime) -> datetime:
        """When it was, by our clock: the host's is set right where heartbeats tell how far it is off."""
        late = min(self.beats_late) if len(self.beats_late) >= BEATS_FOR_CADENCE else timedelta(0)
        return min(event_at + late, arrived_at)

    def _late(self) -> timedelta:
        """How far the host's clock is behind ours. The least: what is more was lost on the way.

        Heartbeats come by themselves and so measure best. Lines may all be old ones that were sent again:
        they count up to a bound, so that a line which nothing else can judge acts if it is that young.
        """
        if self.beats_late:
            return min(self.beats_late)
        return min(self.line_late or timedelta(0), LATENESS_MAX)

    def heard_boot(self, boot_id: str, at: datetime, heard_at: datetime) -> None:
        """`at` by the host's clock, `heard_at` by ours."""
        if self.boot_id is not None and boot_id != self.boot_id:
            if boot_id in self.old_boots:
                return
            self.old_boots.add(self.boot_id)
            self.booted_at, self.old_boot_told_at = heard_at, self.boot_told_at
            self.changed.add(self.name)
            self.booted.add(self.name)
            self.beats_late.clear()  # the clock may have been set meanwhile
            self.line_late = None
        self.boot_id, self.boot_heard_at, self.boot_told_at = boot_id, at, heard_at

    def with_address(self, seen: Observation) -> Observation:
        """The line that says that a GPU is lost, with the address of the line before, which came apart."""
        if seen.kind is not ObservationKind.gpu_lost:
            return seen
        if seen.data.get("opens_loss") and seen.component.pci:
            self.loss_at = seen.component.pci, seen.arrived_at
        elif not seen.component.pci and not seen.data.get("follow_up") and self.loss_at is not None:
            pci, at = self.loss_at
            self.loss_at = None
            if seen.arrived_at - at <= LOSS_WITHIN:
                where = msgspec.structs.replace(seen.component, pci=pci)
                return msgspec.structs.replace(seen, component=where)
        return seen

    def heard_checks(self, seen: Observation) -> None:
        """A report may come late, from a spool: it says nothing of a check that was made since."""
        for name in (*seen.data.get("passed", ()), *seen.data.get("failed", ())):
            known = self.checks.get(name)
            if (known is None and len(self.checks) < CHECKS_KEPT) or (known and known[0] <= seen.event_at):
                passed = name in seen.data.get("passed", ())
                self.checks[name] = seen.event_at, seen.arrived_at if passed else None

    def heard_line(self, seen: Observation) -> None:
        """A line tells of its boot too: not every site sends heartbeats, and shippers send old journals."""
        at = min(seen.event_at, seen.arrived_at)  # a clock that is ahead must not make the next boot look old
        if seen.boot_id and (self.boot_heard_at is None or at > self.boot_heard_at):
            self.heard_boot(seen.boot_id, at, at)


@dataclass
class Standing:
    """Something in Slurm's picture that should not last: since when, and when it was seen and told last."""

    since: datetime
    seen_at: datetime | None = None
    told_at: datetime | None = None


class Allocation(NamedTuple):
    """The nodes of one life of a job; `leader` is the job, or that of its heterogeneous job."""

    leader: str
    restarts: int
    nodes: tuple[str, ...]
    start_at: datetime | None

    def had_begun(self, at: datetime) -> bool:
        return self.start_at is None or self.start_at <= at


class Allocations:
    """Those that Slurm shows now, by job, and those that ended within the last hour."""

    def __init__(self) -> None:
        self.running: dict[str, Allocation] = {}
        #: The oldest first, with the moment at which Slurm showed it no more.
        self._ended: deque[tuple[datetime, Allocation]] = deque(maxlen=ENDED_KEPT)
        #: The same by node, made when the first finding asks: a storm asks with each line.
        self._ended_on: dict[str, list[tuple[datetime, Allocation]]] | None = None
        #: What runs, by leader; made likewise.
        self._lives: dict[str, list[Allocation]] | None = None

    def note(self, snapshot: SlurmSnapshot) -> None:
        jobs = (job for job in snapshot.jobs.values() if job.state == "RUNNING")
        running = {job.id: Allocation(job.leader, job.restarts, job.nodes, job.start_at) for job in jobs}
        for job, before in self.running.items():
            if running.get(job) != before:
                self._ended.append((snapshot.taken_at, before))
        while self._ended and snapshot.taken_at - self._ended[0][0] > ALLOCATION_KEPT:
            self._ended.popleft()
        self.running, self._ended_on, self._lives = running, None, None

    def ended_on(self, node: str, at: datetime) -> frozenset[str]:
        """Leaders of jobs that are gone, and were on the node then or had left it in the minute before."""
        if self._ended_on is None:
            self._ended_on = {}
            for ended_at, allocation in self._ended:
                for name in allocation.nodes:
                    self._ended_on.setdefault(name, []).append((ended_at, allocation))
        there = self._ended_on.get(node, ())
        return frozenset(
            allocation.leader
            for ended_at, allocation in there
            if at - ended_at <= AFTER_ITS_END and allocation.had_begun(at)
        )

    def had_begun(self, leader: str, at: datetime) -> bool:
        """Whether a job that runs now ran at that time; one that is unknown here is taken to have."""
        if self._lives is None:
            self._lives = {}
            for allocation in self.running.values():
                self._lives.setdefault(allocation.leader, []).append(allocation)
        lives = self._lives.get(leader, ())
        return not lives or any(allocation.had_begun(at) for allocation in lives)


class Outage(NamedTuple):
    """An open incident of a place, or of the fleet, whose nodes are silent: those reported so far."""

    #: None: the whole fleet.
    kind: PlaceKind | None
    place: str
    nodes: frozenset[str]


class AllHeard(NamedTuple):
    """Nobody of these nodes can be silent until then: each spoke since."""

    nodes: Mapping[str, SlurmNode]
    until: datetime

    def holds(self, nodes: Mapping[str, SlurmNode], now: datetime) -> bool:
        return nodes is self.nodes and now <= self.until


class Alone(NamedTuple):
    """`since`: when the node was last heard. `others_back_at`: when those of its place that had been away
    with it were back; None where none had been."""

    since: datetime
    others_back_at: datetime | None


@dataclass
class Silences:
    """What is known of who is silent."""

    #: What the last look found; None: somebody is silent, or a sender is new.
    all_heard: AllHeard | None = None
    #: Outages that the last walk left open.
    outages: tuple[Outage, ...] = ()
    #: Nodes that were judged alone.
    alone: dict[str, Alone] = field(default_factory=dict)


@dataclass
class Changes:
    """What people and boots did to nodes of late."""

    #: When planned work on a node ended last; and until when windows of the site's list were looked at.
    work_ended: dict[str, datetime] = field(default_factory=dict)
    #: Since when Slurm shows nodes as neither out by plan nor starting any more.
    back_from_plan: dict[str, datetime] = field(default_factory=dict)
    windows_until: datetime | None = None
    #: Slurm's nodes as they came, where the picture has named GPUs that Slurm does not.
    unnamed: Mapping[str, SlurmNode] | None = None
    #: Nodes of which another boot was first heard of since the last walk.
    booted: set[str] = field(default_factory=set)


def is_expected_away(node: SlurmNode) -> bool:
    """Nobody expects the node to speak: it is out by plan, or Slurm starts it anew."""
    return node.planned or node.starting


# Wide: what the walk hands from stage to stage and from one walk to the next; nothing else holds what is now.
class Picture:
    """The fleet of one cluster as healer knows it now."""

    def __init__(self, cluster: str, *, watching_since: datetime) -> None:
        self.cluster = cluster
        #: No silence is judged before the detector itself has listened long enough.
        self.watching_since = watching_since
        self.silence = Silences()
        self.slurm: SlurmSnapshot | None = None
        self.controller: Controller | None = None
        #: What the watches over Slurm see, and when they looked last; jobs that complete, since when.
        self.standing: dict[tuple[str, Component], Standing] = {}
        self.looked_at: datetime | None = None
        self.completing: dict[str, datetime] = {}
        self.changes = Changes()
        #: When forecasts were last looked at for those whose time is over, and whose turn it is to be swept.
        self.forecasts_looked_at: datetime | None = None
        self.swept_at: datetime | None = None
        #: Slurm's nodes are not those of the last walk: only then are drains looked for.
        self.nodes_changed = False
        #: When the next incident has settled: the walk's caller need not wait longer than that.
        self.settles_at: datetime | None = None
        self.nodes: dict[str, NodePicture] = {}
        #: Where each job that Slurm knows was last seen to run: its restart count then, and its nodes.
        self.ran_on: dict[str, tuple[int, tuple[str, ...]]] = {}
        self.allocations = Allocations()
        #: Versions (`healer.model.FACTS`) that a node was given while we looked: which, and since when.
        self.new_versions: dict[str, dict[str, tuple[str, datetime]]] = {}
        #: What the last tick over the fleet found, and whose end the next one has to look for: (fault, root)
        #: of the open incidents that measured signals opened.
        self.sensed: Detections | None = None
        self.watched: frozenset[tuple[str, Component]] = frozenset()
        #: Node -> titles of the incidents that are open on it, as the last walk left them.
        self.faults: dict[str, tuple[str, ...]] = {}
        #: Nodes that lost a link within the last minutes, by their own kernel.
        self.links_down: dict[str, LinkDown] = {}
        #: What each part has had over the last days.
        self.history = History(cluster)
        #: Nodes whose facts or boot changed since the last walk, and what nodes should be, by kind.
        self.facts_changed: set[str] = set()
        self.references: dict[str, Reference] = {}
        self.references_at: datetime | None = None
        #: What other systems' alerting tells.
        self.alerts = Alerts()
        #: Teardown findings of the last half minute, which a root may still explain.
        self.teardowns: deque[Finding] = deque(maxlen=100_000)
        #: What goes on at a node explains these: component, fault, and the entry of `rules/context.yaml`.
        self.passed_over: set[tuple[Component, str, str]] = set()
        #: Nodes that said last that a server answers again, by (server, node).
        self.servers_back: dict[tuple[str, str], datetime] = {}
        self._echoes = Echoes()
        #: Digests of what was only counted, so that the same line is counted once.
        self._counted: dict[str, None] = {}

    def node(self, name: str) -> NodePicture:
        known = self.nodes.get(name)  # a storm asks for it with each line
        return known if known is not None else self.nodes.setdefault(name, self._new(name))

    def _new(self, name: str) -> NodePicture:
        return NodePicture(name, changed=self.facts_changed, booted=self.changes.booted)

    def show(self, snapshot: SlurmSnapshot) -> None:
        """Takes in what Slurm shows. A recording's snapshot may also know boot ids."""
        if self.slurm is not None and snapshot.taken_at < self.slurm.taken_at:
            return
        snapshot = self._with_gpu_names(snapshot)
        if self.slurm is None or snapshot.jobs is not self.slurm.jobs:
            self._note_places(snapshot)
        if self.slurm is not None and snapshot.nodes is self.slurm.nodes:
            self.slurm = snapshot
            return
        last, before = self.slurm, self.slurm.nodes if self.slurm is not None else {}
        self.slurm, self.nodes_changed = snapshot, True
        for node in snapshot.nodes.values():
            known = before.get(node.name)
            if known is not None and is_in_maintenance(last, known) and not node.planned:
                self.changes.work_ended[node.name] = snapshot.taken_at
            if known is not None and is_expected_away(known) and not is_expected_away(node):
                self.changes.back_from_plan[node.name] = snapshot.taken_at
            if known is not None and known.driver and node.driver and node.driver != known.driver:
                self.new_versions.setdefault(node.name, {})["driver"] = node.driver, snapshot.taken_at
                self.node(node.name).facts_at = snapshot.taken_at
                self.facts_changed.add(node.name)
            # Only a change is news: what a recording repeats was not said again at that later time.
            if node.boot_id and (node.name not in before or before[node.name].boot_id != node.boot_id):
                self.node(node.name).heard_boot(node.boot_id, snapshot.taken_at, snapshot.taken_at)

    def _with_gpu_names(self, snapshot: SlurmSnapshot) -> SlurmSnapshot:
        """With the GPU models that nodes tell by themselves, where Slurm names none. Different ones on one
        node say nothing."""
        if self.slurm is not None and snapshot.nodes is self.changes.unnamed:
            return msgspec.structs.replace(snapshot, nodes=self.slurm.nodes)
        told = {
            name: self.nodes[name].facts.get("gpu", "")
            for name, node in snapshot.nodes.items()
            if node.gpus and not node.gpu_model and name in self.nodes
        }
        named = {name: gpu for name, gpu in told.items() if gpu and "," not in gpu}
        self.changes.unnamed = snapshot.nodes if named else None
        if not named:
            return snapshot
        nodes = dict(snapshot.nodes)
        for name, gpu in named.items():
            nodes[name] = msgspec.structs.replace(nodes[name], gpu_name=gpu)
        return msgspec.structs.replace(snapshot, nodes=nodes)

    def _note_places(self, snapshot: SlurmSnapshot) -> None:
        """Of jobs that run: one that was put back may still be completing where its life before was."""
        self.allocations.note(snapshot)
        seen = {job: (one.restarts, one.nodes) for job, one in self.allocations.running.items()}
        self.ran_on = {job: at for job, at in (self.ran_on | seen).items() if job in snapshot.jobs}

    def update(
        self, batch: Sequence[Observation], topology: Topology, *, rebuild: bool = False
    ) -> list[Observation]:
        """Takes in a batch; returns those that speak of now, with the GPU's index filled in where known.

        `rebuild`: the batch was walked before (a restart): it only refreshes what is known.
        """
        ordered = sorted(batch, key=lambda one: (one.arrived_at, one.event_at, one.digest))
        lines = [(self.node(where), seen) for seen in ordered if (where := self._learn(seen)) is not None]
        live = [
            (node, seen)
            for node, seen in lines
            if not node.is_history(seen) and not self._is_echo(node, seen)
        ]
        if rebuild:
            return []
        return [self._placed(node, node.with_address(seen), topology) for node, seen in live]

    def _is_echo(self, node: NodePicture, seen: Observation) -> bool:
        moment = node.moment(seen.event_at, seen.arrived_at)
        return self._echoes.is_echo(seen, moment, node.renewed_at)

    def _learn(self, seen: Observation) -> str | None:
        """What a signal tells of its node, before any line is judged. The node, if it is a fault line."""
        name = seen.component.node
        if seen.kind is ObservationKind.alert:
            self.alerts.take(seen)  # its time is when it began: that tells nothing of the node's clock
            return None
        if name is None or seen.kind in (ObservationKind.command, ObservationKind.checkpoint):
            return None
        node = self.node(name)
        if seen.kind is ObservationKind.heartbeat:
            self._heartbeat(node, seen)
            return None
        if seen.kind is ObservationKind.inventory:
            self._inventory(node, seen)
            return None
        if seen.kind is ObservationKind.gpu_inventory:
            node.gpus.heard(seen.data.get("gpus") or ())
            return None
        node.heard_line(seen)
        node.note_clock(seen)
        if seen.kind is ObservationKind.hook:
            node.heard_checks(seen)
        if seen.kind is not ObservationKind.gpu_identity:
            return name
        if not node.is_history(seen) and seen.component.pci:
            node.gpus.identity(seen.component.pci, str(seen.data.get("uuid", "")), seen.boot_id)
        return None

    def told(self, findings: Iterable[Finding], now: datetime) -> None:
        """A walk has taken these in: what goes on need not be told again at once."""
        heard = []
        for one in findings:
            if known := self.standing.get((one.fault, one.component)):
                known.told_at = now
            elif one.evidence and one.evidence[0].sense is Sense.alert:
                heard.append(one.evidence[0].digest)
        self.alerts.told(heard, now)

    def clear(self, node: str, at: datetime) -> None:
        """The node was repaired, reset or returned at `at`: what it said before is history."""
        known = self.node(node)
        known.cleared_at = at if known.cleared_at is None else max(at, known.cleared_at)

    def first_count(self, digest: str) -> bool:
        """True the first time; the latest 100,000 are remembered."""
        if digest in self._counted:
            return False
        self._counted[digest] = None
        if len(self._counted) > COUNTED_KEPT:
            del self._counted[next(iter(self._counted))]
        return True

    def senders(self) -> Iterable[NodePicture]:
        return (node for node in self.nodes.values() if len(node.beats) >= BEATS_FOR_CADENCE)

    def _heartbeat(self, node: NodePicture, seen: Observation) -> None:
        node.beat(seen.arrived_at)
        if len(node.beats) <= BEATS_FOR_CADENCE:
            self.silence.all_heard = None
        if seen.boot_id:
            # A clock that is ahead must not make the next boot look old.
            node.heard_boot(seen.boot_id, min(seen.event_at, seen.arrived_at), seen.arrived_at)
        node.note_clock(seen)
        inventory = seen.data.get("gpus")
        if isinstance(inventory, list):
            node.gpus.inventory(inventory, seen.boot_id)

    def _inventory(self, node: NodePicture, seen: Observation) -> None:
        """One sender tells some facts, another one others: each counts until it is told otherwise."""
        told = {str(name): str(value) for name, value in (seen.data.get("facts") or {}).items()}
        if told.items() - node.facts.items():
            for name in told.keys() & node.facts.keys() - NOT_COMPARED:
                if told[name] != node.facts[name]:
                    self.new_versions.setdefault(node.name, {})[name] = told[name], seen.arrived_at
            if "gpu" in told:
                self.changes.unnamed = None
            node.facts |= {name: value for name, value in told.items() if name in FACTS}
            node.facts_at = seen.arrived_at
            self.facts_changed.add(node.name)

    def load_inventories(self, inventories: Iterable[Inventory]) -> None:
        """What nodes told of themselves before a restart."""
        for one in inventories:
            node = self.node(one.node)
            node.facts, node.facts_at, node.booted_at = dict(one.facts), one.at, one.booted_at
            if one.changed:
                self.new_versions[one.node] = dict(one.changed)

    def facts_of(self, name: str) -> dict[str, str]:
        """What is known of the node now; the driver also as Slurm's picture has it."""
        shown = self.slurm.nodes.get(name) if self.slurm is not None else None
        known = self.nodes.get(name)
        return merged_facts(shown, known.facts if known is not None else None)

    def _placed(self, node: NodePicture, seen: Observation, topology: Topology) -> Observation:
        where = seen.component
        if where.gpu is not None or where.pci is None:
            return seen
        shown = self.slurm.nodes.get(node.name) if self.slurm else None
        index = node.gpus.index(
            where.pci,
            expected=shown.gpus if shown else 0,
            from_topology=topology.gpu_pci.get(shown.gpu_model, ()) if shown else (),
        )
        if index is None:
            return seen
        return msgspec.structs.replace(seen, component=msgspec.structs.replace(where, gpu=index))


#: Alerts of one cluster that are remembered, and of one node: no node's sender makes the others' forgotten.
#: Beyond them one that is over is forgotten first, else the oldest.
ALERTS_MAX, OF_NODE_MAX = 20_000, 100

#: (cluster, node, switch, gpu, pci, nic, device, fingerprint). The sender chooses the fingerprint: alone it
#: would let one node's sender end another node's alert.
_Key = tuple[str, str | None, str | None, int | None, str | None, str | None, str | None, str]


@dataclass(slots=True)
class HeardAlert:
    """One alert by its fingerprint. `digest` is that of the first telling, by which evidence knows it.

    `rule` is for its reader's use: what the rules of `rules_version` make of it.
    """

    seen: Observation
    digest: str
    heard_at: datetime
    begun_at: datetime
    ended: bool = False
    told_at: datetime | None = None
    rule: str | None = None
    stays_h: float = 0.0
    rules_version: str = ""


class Alerts:
    """By place and fingerprint."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Key, HeardAlert] = OrderedDict()
        #: Those of each node, and those that are over: the oldest first.
        self._of_node: dict[str, dict[_Key, None]] = {}
        self._over: OrderedDict[_Key, None] = OrderedDict()
        #: What alerts stand for now, by the last look: (fault, place). An incident of theirs that is not here
        #: is over.
        self.standing: frozenset[tuple[str, Component]] = frozenset()

    def __len__(self) -> int:
        return len(self._known)

    def take(self, seen: Observation) -> None:
        """One telling. What was told before, or of a time that is over, changes nothing.

        Alertmanager keeps the earliest beginning when it merges two tellings of one alert, so what it repeats
        or resolves may have begun before what was heard: it is the same alert as long as its end says so.
        """
        key = _key(seen)
        begun = datetime.fromisoformat(str(seen.data["starts_at"]))
        ended = seen.data.get("status") == "resolved"
        known = self._known.get(key)
        if known is not None and begun <= known.begun_at and known.ended:
            return
        if known is not None and begun <= known.begun_at and not ended:
            known.heard_at = max(known.heard_at, seen.arrived_at)
            return
        if known is not None and begun < known.begun_at:
            over = seen.data.get("ends_at")
            if over and datetime.fromisoformat(str(over)) > known.begun_at:
                known.ended, known.heard_at = True, seen.arrived_at
                self._over[key] = None
            return
        again = seen.data.get("again")
        told = known.told_at if known is not None and begun == known.begun_at else None
        # The newest stands last: it is forgotten last.
        self._drop(key)
        self._known[key] = HeardAlert(
            seen=seen if known is None or not ended else known.seen,
            digest=str(again or seen.digest) if known is None or not ended else known.digest,
            heard_at=seen.arrived_at,
            begun_at=begun,
            ended=ended,
            told_at=told,
        )
        if ended:
            self._over[key] = None
        if key[1] is not None:
            self._of_node.setdefault(key[1], {})[key] = None
        self._bound(key[1])

    def _bound(self, node: str | None) -> None:
        own = self._of_node.get(node, {}) if node is not None else {}
        if len(own) > OF_NODE_MAX:
            self._drop(next((one for one in own if one in self._over), next(iter(own))))
        if len(self._known) > ALERTS_MAX:
            self._drop(next(iter(self._over or self._known)))

    def _drop(self, key: _Key) -> None:
        self._known.pop(key, None)
        self._over.pop(key, None)
        own = self._of_node.get(key[1], {}) if key[1] is not None else {}
        own.pop(key, None)
        if key[1] is not None and not own:
            self._of_node.pop(key[1], None)

    def firing(self) -> Iterator[HeardAlert]:
        return (one for one in self._known.values() if not one.ended)

    def forget(self, alerts: Iterable[HeardAlert]) -> None:
        """They are over, although nobody said so."""
        for one in alerts:
            self._drop(_key(one.seen))

    def told(self, digests: Iterable[str], now: datetime) -> None:
        """A walk has taken these in."""
        wanted = set(digests)
        if wanted:
            for one in self._known.values():
                if one.digest in wanted:
                    one.told_at = now


def _key(seen: Observation) -> _Key:
    at = seen.component
    return at.cluster, at.node, at.switch, at.gpu, at.pci, at.nic, at.device, str(seen.data["fingerprint"])
