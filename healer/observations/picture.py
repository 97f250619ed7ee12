"""The present picture of one cluster: its nodes, what Slurm shows, and which nodes jobs hold or recently
left.

The state is owned by the caller. Deterministic: the same input gives the same picture.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
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
    NodeReport,
    Observation,
    ObservationKind,
    Reference,
    Ruleset,
    Sense,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Topology,
    merged_facts,
)
from healer.model.detection import EARLIEST
from healer.model.slurm import BOOT_MOVES, OwnerKind, is_in_maintenance, with_unchanged
from healer.observations.alerts import Alerts
from healer.observations.fault_history import History
from healer.observations.node_picture import (
    BEATS_FOR_CADENCE,
    CLOCKS_APART,
    Echoes,
    NodePicture,
    is_from_before,
    written_at,
)
from healer.observations.silences import Silences

COUNTED_KEPT = 100_000
ALLOCATION_KEPT = timedelta(hours=1)
#: Errors caused by the end of a job's work come within this time, and belong to the job.
AFTER_ITS_END = timedelta(minutes=1)
ENDED_KEPT = 10_000


class Allocation(NamedTuple):
    """The nodes of one life of a job; `leader` is the job, or the leader of its heterogeneous job."""

    leader: str
    restarts: int
    nodes: tuple[str, ...]
    start_at: datetime | None
    #: Node -> its GPUs, if Slurm reports them.
    gpus: Mapping[str, tuple[int, ...]]

    def holds(self, node: str, gpu: int | None) -> bool:
        return gpu is None or node not in self.gpus or gpu in self.gpus[node]

    def had_begun(self, at: datetime) -> bool:
        return self.start_at is None or self.start_at <= at


class PutBack(NamedTuple):
    """A job that waits again after a life that was seen: its present restart count, the nodes of that life,
    and the begin time that it had when it was first seen waiting."""

    restarts: int
    nodes: tuple[str, ...]
    begin_at: datetime


def _ended_at(before: Allocation, shown: SlurmJob | None, now: datetime) -> datetime:
    """The end that Slurm reports for this life of a job; `now` if Slurm no longer shows it."""
    if shown is None or shown.active or shown.restarts != before.restarts or shown.end_at is None:
        return now
    return min(shown.end_at, now)


class Allocations:
    """The allocations that Slurm shows now, by job, and those that ended within the last hour."""

    def __init__(self) -> None:
        self.running: dict[str, Allocation] = {}
        #: Where each job that Slurm knows was last seen running, with its restart count then and its nodes: a
        #: requeued one may still be completing on the nodes of its earlier life.
        self.ran_on: dict[str, tuple[int, tuple[str, ...]]] = {}
        #: Jobs that wait again after a life that was seen.
        self.put_back: dict[str, PutBack] = {}
        #: Ended allocations in the order in which their end was seen, with its time.
        self._ended: deque[tuple[datetime, Allocation]] = deque(maxlen=ENDED_KEPT)
        #: The same by node, built when the first finding needs it: a storm needs it for each line.
        self._ended_on: dict[str, list[tuple[datetime, Allocation]]] | None = None
        #: Running allocations by leader; built likewise.
        self._lives: dict[str, list[Allocation]] | None = None

    def note(self, snapshot: SlurmSnapshot) -> None:
        jobs = (job for job in snapshot.jobs.values() if job.state == "RUNNING")
        running = {
            job.id: Allocation(job.leader, job.restarts, job.nodes, job.start_at, job.gpus) for job in jobs
        }
        for job, before in self.running.items():
            if running.get(job) != before:
                self._ended.append((_ended_at(before, snapshot.jobs.get(job), snapshot.taken_at), before))
        while self._ended and snapshot.taken_at - self._ended[0][0] > ALLOCATION_KEPT:
            self._ended.popleft()
        self.running, self._ended_on, self._lives = running, None, None
        seen = {job: (allocation.restarts, allocation.nodes) for job, allocation in running.items()}
        self.ran_on = {job: at for job, at in (self.ran_on | seen).items() if job in snapshot.jobs}
        self._note_put_back(snapshot)

    def _note_put_back(self, snapshot: SlurmSnapshot) -> None:
        """Records requeued jobs. The first begin time after a life is Slurm's own; one set by the owner comes
        later."""
        found: dict[str, PutBack] = {}
        for job, (restarts, nodes) in self.ran_on.items():
            shown = snapshot.jobs[job]
            waits = shown.state == "PENDING" and "COMPLETING" not in shown.flags
            if waits and shown.restarts == restarts + 1 and shown.eligible_at is not None:
                before = self.put_back.get(job)
                kept = before is not None and before.restarts == shown.restarts
                found[job] = (
                    before
                    if before is not None and kept
                    else PutBack(shown.restarts, nodes, shown.eligible_at)
                )
        self.put_back = found

    def ended_on(
        self, node: str, at: datetime, gpu: int | None = None, *, grace: timedelta = AFTER_ITS_END
    ) -> frozenset[str]:
        """Leaders of jobs that are gone, and were on the node (or on this GPU) then, or had left it at most
        `grace` before."""
        return frozenset(
            allocation.leader
            for ended_at, allocation in self._ended_there(node)
            if at - ended_at <= grace and allocation.had_begun(at) and allocation.holds(node, gpu)
        )

    def had_left(self, leader: str, node: str, at: datetime) -> bool:
        """Whether this job was seen on the node, and certainly left it well before then."""
        ends = [ended_at for ended_at, allocation in self._ended_there(node) if allocation.leader == leader]
        here = any(life.leader == leader and node in life.nodes for life in self.running.values())
        return bool(ends) and not here and max(ends) + AFTER_ITS_END < at

    def ended_life(self, leader: str, node: str, at: datetime) -> Allocation | None:
        """The life of this job that held the node then, and is over."""
        lives = (
            allocation
            for ended_at, allocation in self._ended_there(node)
            if allocation.leader == leader and allocation.had_begun(at) and at <= ended_at
        )
        return next(lives, None)

    def _ended_there(self, node: str) -> Sequence[tuple[datetime, Allocation]]:
        if self._ended_on is None:
            self._ended_on = {}
            for ended_at, allocation in self._ended:
                for name in allocation.nodes:
                    self._ended_on.setdefault(name, []).append((ended_at, allocation))
        return self._ended_on.get(node, ())

    def had_begun(self, leader: str, at: datetime) -> bool:
        """Whether a job that runs now already ran at that time; True for an unknown job."""
        if self._lives is None:
            self._lives = {}
            for allocation in self.running.values():
                self._lives.setdefault(allocation.leader, []).append(allocation)
        lives = self._lives.get(leader, ())
        return not lives or any(allocation.had_begun(at) for allocation in lives)


@dataclass
class Standing:
    """A condition in the Slurm snapshot that must not last `for_s`: since when it has, and when it was last
    seen and reported."""

    since: datetime
    for_s: float = 0.0
    seen_at: datetime | None = None
    reported_at: datetime | None = None


@dataclass
class Changes:
    """Recent changes of nodes by people and boots."""

    #: When planned work on a node last ended; until when the site's maintenance windows were checked, of
    #: which rules, and the nodes that were in one then.
    work_ended: dict[str, datetime] = field(default_factory=dict)
    windows_until: datetime | None = None
    windows_of: Ruleset | None = None
    in_window: frozenset[str] = frozenset()
    #: Nodes that Slurm showed in planned work before a restart, and that have not been checked since.
    in_work: set[str] = field(default_factory=set)
    #: Since when Slurm shows nodes as no longer out by plan or starting.
    back_from_plan: dict[str, datetime] = field(default_factory=dict)
    #: Slurm's nodes as received, before adding GPU models that Slurm does not name.
    unnamed: Mapping[str, SlurmNode] | None = None
    #: Nodes with a new boot since the last walk.
    booted: set[str] = field(default_factory=set)
    #: Nodes as before a boot that a snapshot both showed and contradicted, and the time of that snapshot.
    doubted_boots: dict[str, tuple[SlurmNode, datetime]] = field(default_factory=dict)
    #: Drains of healer's that a snapshot has shown: node, and when the slot says that it was drained.
    drains_shown: set[tuple[str, datetime]] = field(default_factory=set)


# Wide: what the walk hands from stage to stage and from one walk to the next; nothing else holds the present
# state.
class Picture:
    """The fleet of one cluster as healer knows it now."""

    #: Snapshots older than this are ignored.
    _shown_at = EARLIEST

    def __init__(self, cluster: str, *, watching_since: datetime) -> None:
        self.cluster = cluster
        #: No silence is judged before the detector itself has listened long enough.
        self.watching_since = watching_since
        self.silence = Silences()
        self.slurm: SlurmSnapshot | None = None
        self.controller: Controller | None = None
        #: Conditions that the watches over Slurm see, and when they last ran; completing jobs, since when.
        self.standing: dict[tuple[str, Component], Standing] = {}
        self.looked_at: datetime | None = None
        self.completing: dict[str, datetime] = {}
        self.changes = Changes()
        #: When forecasts were last checked for expiry, and when records were last swept.
        self.forecasts_looked_at: datetime | None = None
        self.swept_at: datetime | None = None
        #: Slurm's nodes changed since the last walk: only then are drains looked for.
        self.nodes_changed = False
        #: When the next incident will have settled: the walk's caller need not wait longer than that.
        self.settles_at: datetime | None = None
        self.nodes: dict[str, NodePicture] = {}
        self.allocations = Allocations()
        #: Versions (`healer.model.FACTS`) that a node got while healer watched: which, and since when.
        self.new_versions: dict[str, dict[str, tuple[str, datetime]]] = {}
        #: What the last tick found, and the incidents whose end the next one must look for: (fault, root) of
        #: those that measured signals opened.
        self.sensed: Detections | None = None
        self.watched: frozenset[tuple[str, Component]] = frozenset()
        #: Node -> titles of its open incidents, as the last walk left them.
        self.faults: dict[str, tuple[str, ...]] = {}
        #: Nodes that lost something a job may need within the last minutes, according to their own kernel.
        self.node_reports: dict[str, NodeReport] = {}
        #: The line of each port that just lost its link, by node and name.
        self.links_down: dict[tuple[str, str], Observation] = {}
        #: The faults of each part over the last days.
        self.history = History(cluster)
        #: Nodes whose facts or boot changed since the last walk, and the reference of each kind.
        self.facts_changed: set[str] = set()
        self.references: dict[str, Reference] = {}
        self.references_at: datetime | None = None
        #: Alerts of other systems.
        self.alerts = Alerts()
        #: Teardown findings of the last half minute, which a root may still explain.
        self.teardowns: deque[Finding] = deque(maxlen=100_000)
        #: Findings ruled out by activity at a node: component, fault, and entry of `rules/context.yaml`.
        self.passed_over: set[tuple[Component, str, str]] = set()
        #: Nodes whose latest report is that a server answers again, by (server, node).
        self.servers_back: dict[tuple[str, str], datetime] = {}
        self._echoes = Echoes()
        #: Digests of lines that were only counted, so that each counts once.
        self._counted: dict[str, None] = {}

    def node(self, name: str) -> NodePicture:
        node = self.nodes.get(name)  # a storm needs it for each line
        if node is None:
            node = self.nodes[name] = NodePicture(
                name, changed=self.facts_changed, booted=self.changes.booted
            )
        return node

    def slurm_node(self, name: str | None) -> SlurmNode | None:
        """The node as Slurm shows it."""
        return self.slurm.nodes.get(name or "") if self.slurm is not None else None

    def show(self, snapshot: SlurmSnapshot, now: datetime | None = None) -> None:
        """Adopts a Slurm snapshot. A recording's snapshot may also have boot ids. A snapshot from a host
        whose clock is ahead counts as of `now`, and one from before a clock was set back is ignored:
        otherwise either would hide all later ones until then."""
        was_set_back = now is not None and self._shown_at > now
        if snapshot.taken_at < self._shown_at and not was_set_back:
            return
        self._shown_at = snapshot.taken_at if now is None else min(snapshot.taken_at, now)
        snapshot = self._with_gpu_names(snapshot)
        if self.slurm is None or snapshot.jobs is not self.slurm.jobs:
            self.allocations.note(snapshot)
        if self.slurm is not None and snapshot.nodes is self.slurm.nodes:
            self.slurm = snapshot
            for name in self.changes.doubted_boots.keys() & snapshot.nodes.keys():
                self._note_boot(snapshot.nodes[name], snapshot)
            return
        last, before = self.slurm, self.slurm.nodes if self.slurm is not None else {}
        self.slurm, self.nodes_changed = snapshot, True
        doubted = self.changes.doubted_boots
        for name, node in snapshot.nodes.items():
            old = before.get(name)
            if old is None:
                self._note_boot_id(node, snapshot.taken_at)
                self._note_work_before(name)
                if is_in_maintenance(snapshot, node):
                    self.facts_changed.add(self.node(name).name)
            elif old is not node or name in doubted:
                self._note_change(last, old, snapshot, node)

    def _note_change(
        self, last: SlurmSnapshot | None, old: SlurmNode, snapshot: SlurmSnapshot, node: SlurmNode
    ) -> None:
        at, was_in_work = snapshot.taken_at, is_in_maintenance(last, old)
        if was_in_work and not node.planned:
            self.changes.work_ended[node.name] = at
        if was_in_work is not is_in_maintenance(snapshot, node):
            self.facts_changed.add(self.node(node.name).name)
        if old.is_expected_away and not node.is_expected_away:
            self.changes.back_from_plan[node.name] = at
        drained_by = old.owner if old.drain and not node.drain else None
        if last is not None and drained_by is not None and drained_by.kind is OwnerKind.person:
            self.node(node.name).resumed_after = last.taken_at
        if old.driver and node.driver and node.driver != old.driver:
            self.new_versions.setdefault(node.name, {})["driver"] = node.driver, at
            self.node(node.name).facts_at = at
            self.facts_changed.add(node.name)
        self._note_boot(old, snapshot)
        # Only a change is news: a recording repeats boot ids that were not reported again at that time.
        if old.boot_id != node.boot_id:
            self._note_boot_id(node, at)

    def _note_work_before(self, name: str) -> None:
        """Planned work from before a restart that Slurm no longer shows has ended meanwhile, as of the first
        snapshot since."""
        node = self.slurm_node(name)
        if self.slurm is None or node is None or name not in self.changes.in_work:
            return
        self.changes.in_work.discard(name)
        if not node.planned:
            self.changes.work_ended[name] = self.slurm.taken_at
            self.facts_changed.add(self.node(name).name)

    def _note_boot_id(self, node: SlurmNode, at: datetime) -> None:
        if node.boot_id:
            self.node(node.name).heard_boot(node.boot_id, at, at)

    def _note_boot(self, before: SlurmNode, snapshot: SlurmSnapshot) -> None:
        """Records a boot. One that the snapshot contradicts is checked again in the next: the node may have
        been read just after its boot, and the time or its jobs just before."""
        name = before.name
        doubted, since = self.changes.doubted_boots.get(name, (None, None))
        if since == snapshot.taken_at:
            return
        self.changes.doubted_boots.pop(name, None)
        before = doubted or before
        if not _has_moved(before.boot_at, snapshot.nodes[name].boot_at):
            return
        booted_at = _booted_since(before, snapshot)
        if booted_at is not None:
            # Slurm forgets that it ordered a boot at the moment it shows the new time.
            self.node(name).shown_boot(booted_at, asked=before.starting)
        elif doubted is None:
            self.changes.doubted_boots[name] = before, snapshot.taken_at

    def unheard_boot(self, name: str) -> datetime | None:
        """When the node booted, by Slurm, if no sender has named its boot since: power saving woke it, and
        its follower starts after slurmd."""
        shown = self.slurm_node(name)
        heard = self.node(name).last_heard_at
        if self.slurm is None or shown is None or shown.boot_at is None or heard is None:
            return None
        return _booted_since(shown, self.slurm) if shown.boot_at > heard + CLOCKS_APART else None

    def _with_gpu_names(self, snapshot: SlurmSnapshot) -> SlurmSnapshot:
        """The snapshot with the GPU models that nodes report themselves, if Slurm names none. A node with
        several models is left as it is."""
        if self.slurm is not None and snapshot.nodes is self.changes.unnamed:
            return msgspec.structs.replace(snapshot, nodes=self.slurm.nodes)
        reported = {
            name: self.nodes[name].facts.get("gpu", "")
            for name, node in snapshot.nodes.items()
            if node.gpus and not node.gpu_model and name in self.nodes
        }
        named = {name: gpu for name, gpu in reported.items() if gpu and "," not in gpu}
        self.changes.unnamed = snapshot.nodes
        if not named:
            return snapshot
        nodes = {
            name: msgspec.structs.replace(snapshot.nodes[name], gpu_name=gpu) for name, gpu in named.items()
        }
        nodes = {**snapshot.nodes, **nodes}
        before = self.slurm.nodes if self.slurm is not None else {}
        return msgspec.structs.replace(snapshot, nodes=with_unchanged(before, nodes))

    def update(
        self, batch: Sequence[Observation], topology: Topology, *, rebuild: bool = False
    ) -> list[Observation]:
        """Processes a batch; returns the observations that are not history, with the GPU's index filled in if
        known.

        `rebuild`: the batch only restores the picture after a restart. What was not walked before will come
        again later, as news.
        """
        # Lines of one moment stay in the order of their sender: the kernel's.
        ordered = sorted(batch, key=lambda seen: (seen.arrived_at, seen.event_at))
        lines = [(self.node(where), seen) for seen in ordered if (where := self._learn(seen)) is not None]
        live = [
            (node, seen)
            for node, seen in lines
            if not node.is_history(seen) and not self._is_echo(node, seen)
        ]
        if rebuild:
            return []
        dated = [(node, self._dated(node, seen)) for node, seen in live]
        return [self._placed(node, node.with_address(seen), topology) for node, seen in dated]

    def _is_echo(self, node: NodePicture, seen: Observation) -> bool:
        moment, renewed_at = node.moment(seen.event_at, seen.arrived_at), node.renewed_at
        shown = self.slurm_node(node.name)
        booted_at = shown.boot_at if shown is not None else None
        if booted_at is not None:
            # Slurm may still show the earlier boot: then a stamp says nothing about a line that is new to us.
            certain = node.began_this_boot(seen, booted_at)
            old = is_from_before(seen, booted_at, renewed_at, of_this_boot=certain)
            if old and (certain or self._echoes.knows(seen)):
                return True
        return self._echoes.is_echo(seen, moment, renewed_at)

    def _learn(self, seen: Observation) -> str | None:
        """Processes what a signal reports about its node, before any line is judged. Returns the node, if it
        is a fault line."""
        name = seen.component.node
        if seen.kind is ObservationKind.alert:
            self.alerts.take(seen)  # its time is its beginning, which says nothing about the node's clock
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
            node.gpus.heard(seen.data.get("gpus") or (), node.renewed_at)
            return None
        node.heard_line(seen)
        node.note_clock(seen)
        if seen.kind is ObservationKind.hook:
            node.heard_checks(seen)
        if seen.kind is not ObservationKind.gpu_identity:
            return name
        pci, uuid = seen.component.pci, str(seen.data.get("uuid", ""))
        if pci and not node.is_history(seen):
            if not seen.relayed_by:
                node.gpus.hear_itself([{"pci": pci, "uuid": uuid}])
            if not (seen.relayed_by and node.gpus.is_named(pci)):
                node.gpus.identity(pci, uuid, seen.boot_id)
        return None

    def note_reported(self, findings: Iterable[Finding], now: datetime) -> None:
        """A walk has processed these: lasting conditions need not be reported again immediately."""
        digests = []
        for finding in findings:
            if standing := self.standing.get((finding.fault, finding.component)):
                standing.reported_at = now
            elif finding.evidence and finding.evidence[0].sense is Sense.alert:
                digests.append(finding.evidence[0].digest)
        if digests:
            self.alerts.note_reported(digests, now)

    def clear(self, node: str, at: datetime) -> None:
        """The node was repaired, reset or returned at `at`: earlier signals are history."""
        cleared = self.node(node)
        cleared.cleared_at = at if cleared.cleared_at is None else max(at, cleared.cleared_at)

    def first_count(self, digest: str) -> bool:
        """True the first time; the latest 100,000 digests are remembered."""
        if digest in self._counted:
            return False
        self._counted[digest] = None
        if len(self._counted) > COUNTED_KEPT:
            del self._counted[next(iter(self._counted))]
        return True

    def senders(self) -> Iterable[NodePicture]:
        return (node for node in self.nodes.values() if len(node.beats) >= BEATS_FOR_CADENCE)

    def _heartbeat(self, node: NodePicture, seen: Observation) -> None:
        node.beat(seen.arrived_at, is_own=not seen.relayed_by)
        if len(node.beats) <= BEATS_FOR_CADENCE:
            self.silence.all_heard = None
        if seen.boot_id:
            # A clock that is ahead must not make the next boot look old.
            at = min(seen.event_at, seen.arrived_at)
            node.heard_boot(seen.boot_id, at, seen.arrived_at, seen.relayed_by)
        node.note_clock(seen)
        inventory = seen.data.get("gpus")
        if not isinstance(inventory, list) or node.is_of_old_boot(seen):
            return
        if not seen.relayed_by:
            node.gpus.lists_itself = True
            node.gpus.hear_itself(inventory)
        if not (seen.relayed_by and node.gpus.lists_itself):
            node.gpus.inventory(inventory, seen.boot_id)

    def _inventory(self, node: NodePicture, seen: Observation) -> None:
        """Each sender may report different facts: each counts until it is reported otherwise."""
        reported = {str(name): str(value) for name, value in (seen.data.get("facts") or {}).items()}
        if reported.items() - node.facts.items():
            for name in reported.keys() & node.facts.keys() - NOT_COMPARED:
                if reported[name] != node.facts[name]:
                    self.new_versions.setdefault(node.name, {})[name] = reported[name], seen.arrived_at
            if "gpu" in reported:
                self.changes.unnamed = None
            node.facts |= {name: value for name, value in reported.items() if name in FACTS}
            node.facts_at = seen.arrived_at
            self.facts_changed.add(node.name)

    def load_inventories(self, inventories: Sequence[Inventory]) -> None:
        """Restores what nodes reported about themselves before a restart."""
        self.changes.unnamed = None
        in_window = (inventory.node for inventory in inventories if inventory.in_window)
        self.changes.in_window = frozenset(in_window)
        for inventory in inventories:
            node = self.node(inventory.node)
            node.facts, node.facts_at = dict(inventory.facts), inventory.at
            node.booted_at = inventory.booted_at
            if inventory.worked_until is not None:
                self.changes.work_ended[inventory.node] = inventory.worked_until
            if inventory.in_work:
                self.changes.in_work.add(inventory.node)
                self._note_work_before(inventory.node)
            if inventory.changed:
                self.new_versions[inventory.node] = dict(inventory.changed)

    def facts_of(self, name: str) -> dict[str, str]:
        """The node's present facts, including the driver from the Slurm snapshot."""
        shown = self.slurm_node(name)
        node = self.nodes.get(name)
        return merged_facts(shown, node.facts if node is not None else None)

    def _dated(self, node: NodePicture, seen: Observation) -> Observation:
        """The observation with the time from the kernel's stamp, if its sender gave none: the cause of an
        effect is found by its time."""
        shown = self.slurm_node(node.name)
        if shown is None or shown.boot_at is None or seen.boot_id not in (None, node.boot_id):
            return seen
        at = written_at(seen, shown.boot_at)
        return seen if at is None else msgspec.structs.replace(seen, event_at=at)

    def _placed(self, node: NodePicture, seen: Observation, topology: Topology) -> Observation:
        where = seen.component
        if where.gpu is not None or where.pci is None:
            return seen
        shown = self.slurm_node(node.name)
        index = node.gpus.index(
            where.pci,
            expected=shown.gpus if shown else 0,
            from_topology=topology.gpu_pci.get(shown.gpu_model, ()) if shown else (),
        )
        if index is None:
            return seen
        return msgspec.structs.replace(seen, component=msgspec.structs.replace(where, gpu=index))


def _has_moved(before: datetime | None, now: datetime | None) -> bool:
    return before is not None and now is not None and now > before + BOOT_MOVES


def _booted_since(before: SlurmNode, slurm: SlurmSnapshot) -> datetime | None:
    """The node's BootTime, if it has moved. slurmd computes it from the node's clock, which may have been
    set: a time in the future, or a job that outlived the boot, disproves it."""
    at = slurm.nodes[before.name].boot_at
    if at is None or at > slurm.taken_at:
        return None
    running = (job for job in slurm.jobs_on(before.name) if job.state == "RUNNING")
    return None if any(job.start_at is not None and job.start_at < at for job in running) else at
