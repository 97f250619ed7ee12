"""Where a finding belongs among the open incidents: the first of the ordered placers that answers decides.

A placer looks up a few incidents in the book's index and changes nothing. The judges that it uses follow:
whether a finding has the cause of an open incident, and what a new root explains.
"""

from collections.abc import Callable, Iterator, Set
from datetime import timedelta
from enum import Enum
from itertools import chain
from typing import NamedTuple

from healer.detection.protocol import WalkInput
from healer.detection.silence import loses_with_place
from healer.incidents.book import Book, Policies, remedy_of
from healer.incidents.certainty import MEASURED, is_proof, rank_of, rank_of_finding
from healer.incidents.growth import (
    DATED_LATE,
    NEAR,
    PACKETS_LOST_FOR,
    Moment,
    apart,
    is_effect_of,
    is_idle,
    is_near,
    is_untouched,
    lasts_for,
    moment_of_evidence,
    move_root,
)
from healer.incidents.part_history import asks_for_more, rung_of
from healer.incidents.shared import may_follow_outage, reporters_of, still_explains, wave_continues
from healer.model import (
    HARDWARE,
    WAVE_FAULT,
    Component,
    FaultClass,
    Finding,
    Incident,
    IncidentState,
    Rule,
    SlurmJob,
    Verdict,
)
from healer.model.faults import (
    FLEET_SILENT,
    HANG,
    JOB_SLOW,
    OUTAGES,
    PLACES_SILENT,
    REBOOTED,
    SERVER_AWAY,
    STOPPED_JOB,
    Trait,
    are_independent_parts,
    fault_is,
    faults_with,
    is_of_place,
    is_silent_place,
    once,
)
from healer.observations.picture import AFTER_ITS_END

_OF_JOBS = frozenset({JOB_SLOW, HANG})
_WAITING = frozenset(faults_with(Trait.waits_for_files))


class Way(Enum):
    evidence = "evidence"  # evidence for an incident, which does not get worse by it
    count = "count"  # means nothing by itself there
    wait = "wait"  # a teardown whose root has not been reported yet
    join = "join"  # more of the same
    join_nodes = "join_nodes"  # the same, with the finding's node
    cover = "cover"  # about a part that the incident covers
    open = "open"  # an incident of its own
    move = "move"  # moves the incident under the root that the finding names
    drop = "drop"  # reported before, or without an incident to support


class Placement(NamedTuple):
    """`incident`: the incident for the finding; for `open` and `move` in its new form."""

    way: Way
    incident: Incident | None = None


Placer = Callable[[Finding, Book], Placement | None]


def join_as_evidence(finding: Finding, book: Book) -> Placement | None:
    """Evidence for an incident at its place: a hardware incident, else the oldest."""
    if not finding.evidence_only:
        return None
    there = list(book.at(finding.component.node, (), finding.component))
    incident = next((other for other in there if other.fault_class in HARDWARE), there[0] if there else None)
    return Placement(Way.evidence, incident) if incident is not None else Placement(Way.drop)


def join_line_of_gpu(finding: Finding, book: Book) -> Placement | None:
    """A counter of memory errors on a GPU whose kernel line says more about them: it does not make the
    incident worse."""
    if not fault_is(finding.fault, Trait.counts_errors):
        return None
    there = book.at(finding.component.node, (), finding.component)
    alike = (incident for incident in there if fault_is(once(incident.fault), Trait.memory_error))
    return _first(
        Way.evidence, (incident for incident in alike if incident.root.may_equal(finding.component))
    )


def explain_job(finding: Finding, book: Book) -> Placement | None:
    """A slow job on a node with a hardware fault; a hung job on a node with a fatal fault, or in a place
    whose nodes are silent."""
    if finding.fault not in _OF_JOBS:
        return None
    jobs = book.hits.named(finding)
    hard = (
        incident
        for incident in book.these(book.index.hard(None, jobs))
        if _is_confined_to(incident, jobs, book)
    )
    if finding.fault != HANG:
        return _first(Way.count, hard)
    fatal = (incident for incident in hard if incident.fault_class is FaultClass.fatal)
    return _first(Way.count, chain(fatal, _outages_under(jobs, book)))


def _outages_under(jobs: Set[str], book: Book) -> Iterator[Incident]:
    """Places with silent nodes on which one of these jobs runs."""
    nodes = {node for job in _shown_jobs(jobs, book) for node in job.nodes}
    for fault in sorted(PLACES_SILENT):
        for incident in book.these(book.index.of_fault(fault)):
            if any(part.node in nodes for part in incident.affected):
                yield incident


def explain_wait(finding: Finding, book: Book) -> Placement | None:
    """A process that waits in the kernel, on a node that reported a file server as unreachable."""
    node = finding.component.node
    if node is None or finding.fault not in _WAITING:
        return None
    away = book.these(book.index.of_fault(SERVER_AWAY))
    return _first(
        Way.count, (incident for incident in away if any(part.node == node for part in incident.affected))
    )


def explain_effect(finding: Finding, book: Book) -> Placement | None:
    """A teardown, an effect of a fault elsewhere, or a program's error, near its root in time."""
    effect = finding.teardown or finding.follows or finding.fault_class is FaultClass.application
    if not effect or finding.fault in _OF_JOBS or finding.fault in _WAITING:
        return None
    jobs = _jobs_of_effect(finding, book)
    hard = book.these(book.index.hard(finding.component.node, jobs))
    near = (incident for incident in hard if is_near(incident, finding) or is_effect_of(incident, finding))
    open_roots = (incident for incident in _roots_of(finding, jobs, book) if incident.is_open)
    found = _first(Way.count, chain(near, open_roots))
    if found is None and finding.teardown:
        soft = book.these(book.index.find(None, jobs, None))
        errors = (incident for incident in soft if incident.fault_class is FaultClass.application)
        found = _first(Way.count, (incident for incident in errors if is_near(incident, finding)))
    return found


def _jobs_of_effect(finding: Finding, book: Book) -> Set[str]:
    """The jobs at its time. If it has no time of its own, its job may have ended before it arrived."""
    late = timedelta(0) if Moment(finding.at, finding.arrived_at).dated else DATED_LATE
    return book.hits.jobs_at_the_time(finding, grace=AFTER_ITS_END + late)


def await_root(finding: Finding, book: Book) -> Placement | None:
    return Placement(Way.wait) if finding.teardown else None


#: Slurm's own drain or report about a node when one of its GPUs has died.
_OF_DEAD_GPU = frozenset(
    {"below-configured"}
    | {f"slurm-drain:{kind}" for kind in ("gres-count", "prolog-error", "epilog-error", "kill-task-failed")}
)


def explain_slurms_report(finding: Finding, book: Book) -> Placement | None:
    """Slurm's own drain of a node with an open GPU fault that ends work, or its lower count of GPUs."""
    if finding.fault not in _OF_DEAD_GPU or finding.component.node is None:
        return None
    there = book.at(finding.component.node, (), finding.component)
    fatal = (incident for incident in there if incident.fault_class is FaultClass.fatal)
    return _first(Way.evidence, (incident for incident in fatal if fault_is(incident.fault, Trait.gpu_line)))


def join_unknown_code(finding: Finding, book: Book) -> Placement | None:
    """An unexplained code: people are asked once, not once per node."""
    if finding.fault_class is not FaultClass.unknown or not fault_is(finding.fault, Trait.coded):
        return None
    asked = book.these(book.index.of_fault(finding.fault))
    return _first(Way.join, (incident for incident in asked if incident.fault_class is FaultClass.unknown))


def join_same_cause(finding: Finding, book: Book) -> Placement | None:
    where = finding.component
    jobs = book.hits.jobs(finding) if finding.fault_class is FaultClass.application else ()
    there = book.at(where.node, jobs, where)
    return _first(
        Way.join, (incident for incident in there if is_same(Pair(incident, finding, book.policies)))
    )


def join_folded_wave(finding: Finding, book: Book) -> Placement | None:
    """The wave that the incident of the finding's node and rule is folded into, or that is about this very
    drain of the node."""
    wave = wave_folding(book, finding) or _wave_of_drain(book, finding)
    return Placement(Way.cover, wave) if wave is not None else None


def join_place_out(finding: Finding, book: Book) -> Placement | None:
    """A job's or a site check's report about a node whose place is out: the outage explains it. A stopped job
    accuses no node while others of the place may follow or have just come back: the next check asks again
    (law 2)."""
    node = finding.component.node
    if node is None or not fault_is(finding.fault, Trait.of_place):
        return None
    broken = node in book.picture.silence.broken
    found = _first(
        Way.cover,
        (
            incident
            for incident in book.by_id.values()
            if incident.is_open
            and (is_silent_place(incident.fault) or (broken and is_of_place(incident.fault)))
            and any(part.node == node for part in incident.affected)
        ),
    )
    if found is None and finding.fault == STOPPED_JOB:
        since = book.picture.node(node).moment(finding.at, finding.arrived_at)
        walk = WalkInput(book.rules, book.picture, book.now)
        found = Placement(Way.drop) if loses_with_place(walk, node, since) else None
    return found


def join_outage(finding: Finding, book: Book) -> Placement | None:
    """Reports by members of an outage about links, packets and file servers belong to it; those about a
    server only while no other node reports it."""
    if finding.unusable or finding.fault_class is FaultClass.fatal or not may_follow_outage(finding.fault):
        return None
    where, nodes = finding.component, reporters_of(finding.component, finding.affected)
    others = book.at(None, (), where) if where.node is None else ()
    if not nodes or any(incident.fault == finding.fault for incident in others):
        return None  # other nodes report the server too
    # Silence of the whole fleet is mostly healer's own problem: it boots no node.
    for fault in sorted(OUTAGES - ({FLEET_SILENT} if finding.fault == REBOOTED else set())):
        for incident in book.these(book.index.of_fault(fault)):
            if nodes <= {part.node for part in incident.affected}:
                return Placement(Way.cover, incident)
    return None


def join_broken_place(finding: Finding, book: Book) -> Placement | None:
    """A broken place explains its nodes, and what is reported about itself while it is open; a certainly
    unusable node gets its own incident (law 2)."""
    if finding.unusable:
        return None
    for sharing, place in book.places.keys(finding.fault, finding.component):
        named = Component(cluster=book.picture.cluster, device=place)
        for root in dict.fromkeys((book.places.root(sharing.place, place), named)):
            for incident in book.at(None, (), root):
                explains = finding.component == root or still_explains(incident, finding)
                if explains and sharing in book.places.of_itself(incident.fault):
                    return Placement(Way.cover, incident)
    return None


def join_wave(finding: Finding, book: Book) -> Placement | None:
    """A wave of faults for which healer has no remedy, and that no known job causes."""
    rule = book.policies.of(finding)
    if finding.unusable or book.policies.treats(rule, remedy_of(rule, finding)):
        return None
    about_jobs = finding.fault_class is FaultClass.application and book.hits.jobs(finding)
    wave = None if about_jobs else wave_of(book, rule, finding.component.node)
    return Placement(Way.cover, wave) if wave is not None else None


def join_unseen_place(finding: Finding, book: Book) -> Placement | None:
    """Nodes of one job report, within the settling time, something that belongs to a place (the IMEX domain)
    whose name is unknown: it is one event. Incidents that healer works on, or that name their place, stay
    separate."""
    if finding.unusable or not book.places.is_unseen(finding.fault, finding.component):
        return None
    jobs = frozenset(book.hits.jobs(finding))
    just_now = book.now - timedelta(seconds=book.rules.settle_s)
    for incident in book.these(book.index.of_fault(finding.fault)):
        together = incident.opened >= just_now and not jobs.isdisjoint(incident.jobs_hit)
        if together and is_untouched(incident) and book.places.is_unseen(incident.fault, incident.root):
            return Placement(Way.join_nodes, incident)
    return None


def drop_late_effect(finding: Finding, book: Book) -> Placement | None:
    """An effect reported so late that its root's incident is over, or a program's error on one more node of a
    job whose incident is over."""
    node, of_program = finding.component.node, finding.fault_class is FaultClass.application
    if node is None or not (of_program or finding.follows):
        return None
    jobs = _jobs_of_effect(finding, book)
    incidents = _roots_of(finding, jobs, book)
    if of_program:
        at = book.picture.node(node).moment(finding.at, finding.arrived_at)
        names = book.picture.history.incidents_of(sorted(jobs), finding.fault, at)
        alike = (incident for name in names if (incident := book.earlier(name)) is not None)
        incidents = chain(alike, incidents)
    over = any(not incident.is_open for incident in incidents)
    return Placement(Way.drop) if over else None


def _roots_of(finding: Finding, jobs: Set[str], book: Book) -> Iterator[Incident]:
    """Hardware incidents that, by the history, hit one of these jobs at the time of the finding's event,
    whatever happened since to the jobs and to the incidents."""
    if finding.component.node is None:
        return
    at = book.picture.node(finding.component.node).moment(finding.at, finding.arrived_at)
    history, ordered = book.picture.history, sorted(jobs)
    near = frozenset(history.roots_of(ordered, at - NEAR, at + NEAR))
    for name in dict.fromkeys(history.roots_of(ordered, at - PACKETS_LOST_FOR - DATED_LATE, at + DATED_LATE)):
        incident = book.earlier(name)
        if incident is not None and (name in near or is_effect_of(incident, finding)):
            yield incident


def open_own(finding: Finding, book: Book) -> Placement:
    """A new incident; or an incident that follows from this finding's fault, moved under it."""
    new = book.opened(finding)
    if _is_known(new, finding, book):
        return Placement(Way.drop)
    before = next(_incidents_to_move(new, finding, book), None)
    return Placement(Way.open, new) if before is None else Placement(Way.move, move_root(before, new))


PLACERS: tuple[Placer, ...] = (
    join_as_evidence,
    join_line_of_gpu,
    explain_job,
    explain_wait,
    explain_effect,
    await_root,
    explain_slurms_report,
    join_unknown_code,
    join_same_cause,
    join_folded_wave,
    join_place_out,
    join_outage,
    join_broken_place,
    join_wave,
    join_unseen_place,
    drop_late_effect,
    open_own,
)


def placement_of(finding: Finding, book: Book) -> Placement:
    for placer in PLACERS:
        if (placement := placer(finding, book)) is not None:
            return placement
    raise AssertionError("open_own takes every finding")


def _first(way: Way, incidents: Iterator[Incident]) -> Placement | None:
    found = next(incidents, None)
    return Placement(way, found) if found is not None else None


def _is_confined_to(incident: Incident, jobs: Set[str], book: Book) -> bool:
    """None of the jobs runs elsewhere: a job restarted on other nodes has left the fault behind, though its
    incident may stay open for days."""
    node, shown = incident.root.node, _shown_jobs(jobs, book)
    return node is not None and not any(job.nodes and node not in job.nodes for job in shown)


def _shown_jobs(jobs: Set[str], book: Book) -> list[SlurmJob]:
    """Those of the jobs that Slurm shows."""
    slurm = book.picture.slurm
    return [slurm.jobs[name] for name in sorted(jobs) if name in slurm.jobs] if slurm is not None else []


def _is_known(new: Incident, finding: Finding, book: Book) -> bool:
    """Its evidence was reported before. A condition that lasts (a silence, a drain, a measured level) opens
    again once the incident that it was merged into is over."""
    before = book.earlier(new.id)
    lasts = finding.fault_class is FaultClass.informational or finding.evidence[0].sense in MEASURED
    if before is None or before.merged_into is None or not lasts:
        return before is not None
    explained_by = book.root_of(new.id)
    return explained_by is not None and explained_by.is_open


def _incidents_to_move(new: Incident, finding: Finding, book: Book) -> Iterator[Incident]:
    """New incidents that no person has decided on, and whose root the finding names."""
    if finding.fault_class in HARDWARE:
        for other in book.at(new.root.node, new.jobs_hit, new.root):
            both = NewRoot(other, new, book.policies)
            if book.now - other.opened <= NEAR and is_untouched(other) and is_explained(both):
                yield other


def wave_of(book: Book, rule: Rule, node: str | None) -> Incident | None:
    """The open wave to which a fault of this rule on this node belongs now."""
    waves = book.these(book.index.of_fault(f"{WAVE_FAULT}{rule.name}"))
    return next(
        (incident for incident in waves if wave_continues(incident, node, book.picture, book.now)), None
    )


def wave_folding(book: Book, finding: Finding) -> Incident | None:
    """The wave that contains the incident of the finding's node and rule. If the node is now certainly
    unusable and was not before, that is news."""
    node, rule = finding.component.node, book.policies.of(finding)
    for incident in book.these(book.index.of_fault(f"{WAVE_FAULT}{rule.name}")):
        if node in incident.folded and not (
            finding.unusable and incident.nodes.get(node or "") is not Verdict.isolate
        ):
            return incident
    return None


def _wave_of_drain(book: Book, finding: Finding) -> Incident | None:
    """The incident of nodes that Slurm drained together. A later drain is another event."""
    if not fault_is(finding.fault, Trait.slurm_drain):
        return None
    dated = finding.at != finding.arrived_at
    for wave in book.these(book.index.of_fault(f"{WAVE_FAULT}{finding.fault}")):
        if finding.component in wave.affected and not (dated and finding.at > wave.updated):
            return wave
    return None


# --- whether a finding has the cause of an open incident: the first judge that knows decides ----------------


#: How late a root may be reported and still explain effects, if the senders' clocks place them close
#: together.
LATE = timedelta(hours=1)


class Pair(NamedTuple):
    """An open incident of the finding's node, job, place or cable, and the finding."""

    incident: Incident
    finding: Finding
    policies: Policies

    @property
    def same_node(self) -> bool:
        node = self.finding.component.node
        return node is not None and self.incident.root.node == node

    @property
    def hardware(self) -> bool:
        return self.finding.fault_class in HARDWARE and self.incident.fault_class in HARDWARE


def is_same(pair: Pair) -> bool:
    for judge in _JUDGES:
        if (answer := judge(pair)) is not None:
            return answer
    return False


def _stopped_by_person(pair: Pair) -> bool | None:
    """A person stopped healer on a working node; that the node is lost now is news."""
    incident = pair.incident
    return (
        False if incident.stopped_by is not None and pair.finding.unusable and not incident.unusable else None
    )


def _exactly(pair: Pair) -> bool | None:
    incident, finding = pair.incident, pair.finding
    alike = incident.fault == finding.fault and incident.rule == finding.rule
    return True if alike and incident.root.may_equal(finding.component) else None


def _is_only_evidence(pair: Pair) -> bool | None:
    is_evidence = (
        fault_is(pair.finding.fault, Trait.evidence)
        and pair.incident.fault_class in HARDWARE
        and pair.same_node
    )
    return True if is_evidence else None


def _root_came_late(pair: Pair) -> bool | None:
    """A GPU is lost, and explains an earlier fault of its node."""
    incident, finding = pair.incident, pair.finding
    late = (
        pair.same_node
        and fault_is(finding.fault, Trait.lost_gpu)
        and fault_is(incident.fault, Trait.follows_lost_gpu)
    )
    return False if late and is_untouched(incident) and is_near(incident, finding) else None


def _of_the_node(pair: Pair) -> bool | None:
    """A worse fault of the node opens a new incident under the rule that may act on it, and absorbs the
    milder one. Anything else joins the known one."""
    incident, finding, policies = pair
    if not (pair.hardware and pair.same_node):
        return None
    if are_independent_parts(incident.fault, finding.fault) and not is_near(incident, finding):
        return False
    alike = incident.fault_class is finding.fault_class
    ours = policies.of(finding).name
    weaker = alike and policies.weaker(incident.rule, ours)
    milder = rank_of_finding(finding) <= rank_of(incident) or (alike and policies.weaker(ours, incident.rule))
    return milder and not (weaker and is_free(incident))


def _of_the_cable(pair: Pair) -> bool | None:
    """The other end reports the same cable: the end with the worse fault is the root."""
    if not pair.hardware or pair.incident.root == pair.finding.component:
        return None
    worse = rank_of_finding(pair.finding) > rank_of(pair.incident)
    return not (worse and is_untouched(pair.incident))


def _of_the_rule(pair: Pair) -> bool | None:
    return pair.incident.rule == pair.finding.rule and not fault_is(pair.finding.fault, Trait.several_at_once)


def _awaits_proof(pair: Pair) -> bool | None:
    """An incident that arose under planned work only takes findings that confirm it, because it may end at
    any minute."""
    waits = pair.incident.plan and pair.incident.waits_since is not None
    return False if waits and not is_proof(pair.incident, pair.finding) else None


_JUDGES = (
    _stopped_by_person,
    _awaits_proof,
    _exactly,
    _is_only_evidence,
    _root_came_late,
    _of_the_node,
    _of_the_cable,
    _of_the_rule,
)


def is_free(incident: Incident) -> bool:
    """Nothing works on it: its run is a shadow run, or waits for permission."""
    return incident.state is IncidentState.open


# --- what a new root explains ------------------------------------------------------------------------------


class NewRoot(NamedTuple):
    """`root` is new; `other` was open before: of the same node, the same cable, or a job that the root hits,
    and without hardware to blame."""

    other: Incident
    root: Incident
    policies: Policies

    @property
    def same_node(self) -> bool:
        return self.other.root.node is not None and self.other.root.node == self.root.root.node

    @property
    def less(self) -> bool:
        return rank_of(self.other) < rank_of(self.root)


def are_apart(both: NewRoot) -> bool:
    """Faults of one node at different times that are independent: GPU, network and disks, or two GPUs."""
    far = abs(both.root.opened - both.other.opened) > NEAR
    return (
        far
        and both.same_node
        and (_are_other_gpus(both) or are_independent_parts(both.other.fault, both.root.fault))
    )


def _are_other_gpus(both: NewRoot) -> bool:
    root, other = both.root.root, both.other.root
    pairs = ((root.pci, other.pci), (root.gpu, other.gpu))
    return any(ours is not None and theirs is not None and ours != theirs for ours, theirs in pairs)


def is_weaker(both: NewRoot) -> bool:
    """A milder or unusual fault of the node: it is merged whatever works on it, and its evidence is kept."""
    other, root, policies = both
    watched = other.fault_class is root.fault_class is FaultClass.degraded and both.same_node
    weaker = watched and policies.weaker(other.rule, root.rule)
    return (weaker and is_free(other)) or (fault_is(other.fault, Trait.evidence) and both.same_node)


def is_worse_while_busy(both: NewRoot) -> bool:
    """A worse fault of a node or job that a run works on: that run ends when it can."""
    worse = (both.same_node and (both.less or _asks_for_more(both))) or _hung_job(both)
    return both.other.run is not None and worse


def _asks_for_more(both: NewRoot) -> bool:
    """Two fatal faults: the remedy of the one would return the node with the other."""
    alike = both.root.fault_class is FaultClass.fatal and rank_of(both.root) == rank_of(both.other)
    return alike and asks_for_more(both.root.remedy, rung_of(both.other.remedy))


def is_explained(both: NewRoot) -> bool:
    """Whether the new root explains the other incident, on which nothing works."""
    return any(explain(both) for explain in _EXPLAINS)


def _milder(both: NewRoot) -> bool:
    hardware = both.other.fault_class in HARDWARE and both.root.fault_class is FaultClass.fatal
    return hardware and both.same_node and both.less


def _followed(both: NewRoot) -> bool:
    gone = fault_is(both.root.fault, Trait.lost_gpu)
    follows = fault_is(both.other.fault, Trait.follows_lost_gpu)
    return gone and follows and both.same_node and is_untouched(both.other)


def _slow_job(both: NewRoot) -> bool:
    return both.other.fault == JOB_SLOW and both.other.root.job in both.root.jobs_hit


def _hung_job(both: NewRoot) -> bool:
    fatal = both.root.fault_class is FaultClass.fatal and both.root.root.node is not None
    return fatal and both.other.fault == HANG and both.other.root.job in both.root.jobs_hit


def _preceding_errors(both: NewRoot) -> bool:
    """Errors of the job's processes shortly before the root."""
    other, root = both.other, both.root
    lately = root.opened - other.opened <= NEAR or _happened_together(both)
    ours = both.same_node or not set(other.jobs_hit).isdisjoint(root.jobs_hit)
    return other.fault_class is FaultClass.application and lately and ours


def _happened_together(both: NewRoot) -> bool:
    """Near in time by the senders' clocks, although the root was reported late."""
    other, root = both.other, both.root
    late = timedelta(0) <= root.opened - other.opened <= LATE
    return late and apart(_reported(root), _reported(other)) <= lasts_for(root.fault, other.fault)


def _reported(incident: Incident) -> Moment:
    """The first evidence, by its sender's clock."""
    first = incident.evidence[:1]
    return moment_of_evidence(first[0]) if first else Moment(incident.opened, incident.opened)


def has_lost_packets(both: NewRoot) -> bool:
    """Links of the job's other nodes lost packets because of the part that broke."""
    other, root = both.other, both.root
    lately = abs(root.opened - other.opened) <= NEAR or _happened_together(both)
    lost = fault_is(other.fault, Trait.loses_packets) and other.fault_class is FaultClass.degraded
    broke = root.fault_class is FaultClass.fatal and fault_is(root.fault, Trait.breaks_links)
    return lately and is_idle(other) and lost and broke and not set(other.jobs_hit).isdisjoint(root.jobs_hit)


def _other_end(both: NewRoot) -> bool:
    """The other end of the cable, with a milder fault."""
    hardware = both.other.fault_class in HARDWARE and both.other.fault != JOB_SLOW
    return hardware and not both.same_node and both.other.root != both.root.root and both.less


_EXPLAINS = (_milder, _followed, _slow_job, _hung_job, _preceding_errors, _other_end)
