"""Which jobs a fault hits, by the Slurm snapshot, and what they lost."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta

import msgspec

from healer.incidents.certainty import MEASURED, has_ended_work
from healer.incidents.growth import jobs_of_all
from healer.model import (
    HARDWARE,
    Component,
    Evidence,
    FaultClass,
    Finding,
    HitBasis,
    Incident,
    JobCheckpoint,
    JobHit,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Urgency,
    by_opening,
)
from healer.model.faults import Trait, fault_is
from healer.observations import Picture
from healer.observations.picture import AFTER_ITS_END, ALLOCATION_KEPT, Allocation
from healer.text import NO_WORDS, Said, say

#: A job that ended within this time of a root on its node ended because of it.
CRASH_WINDOW = timedelta(minutes=2)
#: The detector's Slurm snapshot is no older than this.
PICTURE_AGE = timedelta(seconds=30)


def jobs_of(
    snapshot: SlurmSnapshot | None, where: Component, *, one_gpu: bool = False
) -> tuple[list[SlurmJob], bool]:
    """Jobs that the fault at `where` hits, by the Slurm snapshot, and whether that is certain: see
    `hit_among`."""
    if snapshot is None or where.node is None:
        return [], False
    shown = snapshot.nodes.get(where.node)
    jobs = snapshot.jobs_on(where.node)
    return hit_among(jobs, where, node_gpus=shown.gpus if shown else 0, one_gpu=one_gpu)


def hit_among(
    jobs: Sequence[SlurmJob], where: Component, *, node_gpus: int = 0, one_gpu: bool = False
) -> tuple[list[SlurmJob], bool]:
    """The jobs on the node that the fault at `where` hits. False: it is unknown which of them are hit.

    Only a job on the faulty GPU is hit; a job without a GPU of the node never is. If the GPU's index is
    unknown, a single job is certainly hit only if it holds all `node_gpus` (0: unknown), or if it is the only
    job and Slurm does not report its GPUs. `one_gpu`: the signal is about one GPU although it names none;
    otherwise a place without a GPU is the whole node.
    """
    if where.job is not None:
        return [job for job in jobs if job.id == where.job], True
    if where.pci is None and where.gpu is None and not one_gpu:
        return list(jobs), True
    node = where.node or ""
    holders = [job for job in jobs if job.gpus.get(node) != ()]
    if where.switch is not None and where.gpu is None:
        return holders, True  # the address is the NVSwitch's, which all GPUs of the node share
    unplaced = [job for job in holders if node not in job.gpus]
    if where.gpu is not None:
        owners = [job for job in holders if where.gpu in job.gpus.get(node, ())]
        if owners or not unplaced:
            return owners, True
        return unplaced, len(jobs) == 1
    if len(holders) > 1:
        return holders, False
    if unplaced:
        return unplaced, len(jobs) == 1
    return holders, all(0 < node_gpus <= len(job.gpus[node]) for job in holders)


def surely_hit(
    jobs: Sequence[SlurmJob], places: Iterable[Component], node: str, node_gpus: int
) -> list[SlurmJob]:
    """Jobs of the node that hold more of its GPUs than are healthy: whichever GPUs are faulty, at least one
    is theirs.

    `places`: the reported parts of the node; a GPU counts once, by its address or its index.
    """
    parts = [place for place in places if place.node == node]
    addresses, indexes = {part.pci for part in parts} - {None}, {part.gpu for part in parts} - {None}
    well = node_gpus - max(len(addresses), len(indexes))
    if not node_gpus:
        return []
    holders = [job for job in jobs if job.gpus.get(node) != ()]
    return [job for job in holders if (len(job.gpus[node]) if node in job.gpus else 1) > well]


def hit_by_evidence(
    incident: Incident | None, on_node: Sequence[SlurmJob], node: str, node_gpus: int
) -> tuple[list[SlurmJob], bool]:
    """Jobs on the GPUs that the incident's own evidence names, and whether that is certain.

    Reported fatal faults come first, then other reports. If all evidence is measured, only the root counts.
    Evidence without a GPU is a fault of one unknown GPU.
    """
    if incident is None or not on_node:
        return list(on_node), True
    here = [evidence for evidence in incident.evidence if evidence.component.node == node]
    reported = [evidence for evidence in here if evidence.fatal] or [
        evidence for evidence in here if evidence.sense not in MEASURED
    ]
    signs: dict[tuple[Component, bool], list[Evidence]] = {}
    for evidence in reported:
        # A kernel line is about one GPU, even if its address is lost.
        signs.setdefault((_hit_place(incident, evidence), bool(evidence.line)), []).append(evidence)
    naming = reported
    if here and not reported:
        signs = {(incident.root, True): []}
        naming = [evidence for evidence in here if evidence.component == incident.root]
    hit: dict[str, SlurmJob] = {}
    whole_node = {(Component(cluster=incident.cluster, node=node), False): list[Evidence]()}
    for (where, one_gpu), there in (signs or whole_node).items():
        older = _not_younger(incident, on_node, there)
        jobs, certain = hit_among(older, where, node_gpus=node_gpus, one_gpu=one_gpu)
        if not certain:
            # The GPU is unknown, but the signal itself may name the job. The incident's own list does not
            # count: it is an estimate from the Slurm snapshot, which may be older than these jobs.
            older = _not_younger(incident, on_node, reported)
            sure = surely_hit(older, [place for place, _ in signs], node, node_gpus)
            ids = {job.id for job in sure} | {evidence.job for evidence in naming}
            named = [job for job in older if job.id in ids]
            return named, bool(named)
        hit |= {job.id: job for job in jobs}
    return list(hit.values()), True


def _hit_place(incident: Incident, evidence: Evidence) -> Component:
    """A fault that ends a single program hits the job that its line names, and no other job on its GPU."""
    alone = evidence.job is not None and not evidence.fatal and fault_is(incident.fault, Trait.contained)
    return msgspec.structs.replace(evidence.component, job=evidence.job) if alone else evidence.component


def _not_younger(
    incident: Incident, on_node: Sequence[SlurmJob], reported: Sequence[Evidence]
) -> Sequence[SlurmJob]:
    """The jobs without those, and without later lives of those, that began after `reported` and that the
    detector knew and did not count when it learnt of the fault late: their work has not ended. A node that is
    certainly unusable hits them too."""
    if incident.unusable or not reported:
        return on_node
    last, heard = max(evidence.at for evidence in reported), incident.opened - PICTURE_AGE
    lives = {hit.job: hit.restart for hit in incident.hit}
    hit = {job.id for job in on_node if job.leader in incident.jobs_hit}
    hit -= {job.id for job in on_node if job.restarts > lives.get(job.leader, job.restarts)}
    return [
        job for job in on_node if job.id in hit or job.start_at is None or not last < job.start_at < heard
    ]


def hit_since_listed(
    incident: Incident, snapshot: SlurmSnapshot | None, *, newly_unusable: bool
) -> list[SlurmJob]:
    """Running jobs of the node hit by a fault that joined after the run had listed the jobs. If the node has
    only now become certainly unusable, all jobs that are hit: their restart needs no consent now."""
    node = snapshot.nodes.get(incident.root.node or "") if snapshot is not None else None
    if snapshot is None or node is None or not (incident.unusable or has_ended_work(incident)):
        return []
    jobs, certain = hit_by_evidence(incident, snapshot.jobs_on(node.name), node.name, node.gpus)
    return [job for job in jobs if certain and (newly_unusable or job.leader not in incident.jobs_hit)]


def hit_at_the_time(
    incident: Incident, snapshot: SlurmSnapshot | None, moment_of: Callable[[datetime, datetime], datetime]
) -> list[SlurmJob]:
    """Jobs that a fault has hit in their present life. `moment_of`: an event and its arrival -> its time by
    healer's clock.

    Each job is judged by what was reported since it began: a later fault under another job of the node does
    not hit a job that was restarted after its own fault."""
    node = snapshot.nodes.get(incident.root.node or "") if snapshot is not None else None
    if snapshot is None or node is None:
        return []
    reported = [
        (moment_of(evidence.at, evidence.arrived_at or evidence.at), evidence)
        for evidence in incident.evidence
        if evidence.sense not in MEASURED and evidence.component.node == node.name
    ]
    on_node = snapshot.jobs_on(node.name)

    def is_hit(job: SlurmJob) -> bool:
        # A recording has no start time for a job that was already running when it began.
        since = tuple(evidence for at, evidence in reported if job.start_at is None or job.start_at <= at)
        of_life = msgspec.structs.replace(incident, evidence=since)
        jobs, certain = hit_by_evidence(of_life, on_node, node.name, node.gpus) if since else ([], False)
        return certain and job in jobs

    return [job for job in on_node if is_hit(job)]


def hit_so_far(incident: Incident, snapshot: SlurmSnapshot | None) -> tuple[str, ...]:
    """The jobs hit so far, including those on the node now: a known bad node in service takes job after
    job."""
    if incident.jobs_hit_final:
        return incident.jobs_hit
    now = jobs_of(snapshot, incident.root)[0]
    return jobs_of_all(incident.jobs_hit, (job.id for job in now))


def moments_of(incident: Incident) -> tuple[datetime, ...]:
    """Times of the fault by the host's clock and by ours, which may differ."""
    return (*(evidence.at for evidence in incident.evidence[:1]), incident.opened)


def crashed_among(jobs: Iterable[SlurmJob], where: Component, moments: Sequence[datetime]) -> list[SlurmJob]:
    """Jobs that the fault at `where` had ended before they were listed: a crash is faster than a log shipper.

    They ended FAILED or NODE_FAIL on the node within 2 minutes of it. On a shared node Slurm may still report
    their GPUs; if not, nothing is done without the owner's consent anyway.
    """
    return [job for job in jobs if _crashed(job, where, moments)]


def _crashed(job: SlurmJob, where: Component, moments: Sequence[datetime]) -> bool:
    node = where.node or ""
    # The leader of a heterogeneous job ends with its component on this node.
    here = node in {*job.nodes, job.failed_node} or bool(job.het_job)
    if not job.crashed or not here or job.end_at is None:
        return False
    gpus = job.gpus.get(node)
    if gpus is not None and where.gpu is not None and where.gpu not in gpus:
        return False
    return any(abs(job.end_at - at) <= CRASH_WINDOW for at in moments)


class Hits:
    """Jobs hit by findings, by one walk's Slurm snapshot."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._known: dict[tuple[Component, bool], frozenset[str]] = {}

    def jobs(self, finding: Finding) -> Set[str]:
        """The jobs that the signal names, else those that are certainly hit by the Slurm snapshot."""
        if named := self._named_on_node(finding):
            return frozenset(named)
        key = finding.component, finding.of_one_gpu
        jobs = self._known.get(key)
        if jobs is None:
            hit, certain = jobs_of(self._picture.slurm, finding.component, one_gpu=key[1])
            jobs = self._known[key] = frozenset(job.leader for job in hit) if certain else frozenset()
        return jobs

    def jobs_at_the_time(self, finding: Finding, *, grace: timedelta = AFTER_ITS_END) -> Set[str]:
        """Jobs of the allocations at the time of the event, or that had ended at most `grace` before it: a
        line may arrive an hour after its event. Present jobs are included if the host's clock may be wrong:
        no heartbeat shows its offset, and the line is not a fatal one of the last hour, whose sender's time
        is trusted."""
        node = finding.component.node
        if node is None:
            return self.jobs(finding)
        shown, allocations = self._picture.node(node), self._picture.allocations
        at = shown.moment(finding.at, finding.arrived_at)
        running = self.jobs(finding)
        late = finding.arrived_at - finding.at
        if shown.knows_clock or (_ends_work(finding) and late <= ALLOCATION_KEPT):
            running = {job for job in running if allocations.had_begun(job, at)}
        return running | allocations.ended_on(node, at, finding.component.gpu, grace=grace)

    def named(self, finding: Finding) -> set[str]:
        """The jobs that the finding itself names."""
        of_place = {finding.component.job} if finding.component.job else set()
        return {*self._named_on_node(finding), *of_place}

    def _named_on_node(self, finding: Finding) -> tuple[str, ...]:
        """The jobs that the finding names; for a line, without those that had left its node by then. A sender
        with a slow clock may name a job of before; heartbeats show the clock's offset."""
        node = finding.component.node
        if not finding.jobs or node is None or not finding.evidence[0].line:
            return finding.jobs
        shown, allocations = self._picture.node(node), self._picture.allocations
        at = shown.moment(finding.at, finding.arrived_at)
        gone = {job for job in finding.jobs if shown.knows_clock and allocations.had_left(job, node, at)}
        return tuple(job for job in finding.jobs if job not in gone)

    def at_begin(self, finding: Finding, now: datetime) -> tuple[str, ...]:
        """The jobs hit when an incident opens, including those that the fault ended before it was
        reported."""
        hit, where = set(self.jobs(finding) or self.named(finding)), finding.component
        if finding.follows:
            hit = set(self.jobs_at_the_time(finding) or hit)
        if _ends_work(finding):
            hit = {*self._of_its_time(finding), *self.named(finding)}
        slurm = self._picture.slurm
        if finding.fault_class is FaultClass.fatal and slurm is not None and where.node:
            failed = slurm.failed_on(where.node)
            hit |= {job.leader for job in crashed_among(failed, where, (finding.evidence[0].at, now))}
        return tuple(sorted(hit))

    def _of_its_time(self, finding: Finding) -> Set[str]:
        """For a fault that ends work, the jobs at its time: not those that have begun since, unless the GPU
        is dead. A fault that ends a single process has only the job that its line names."""
        named = self._named_on_node(finding)
        if not _ends_work(finding) or (named and finding.fault_class is not FaultClass.fatal):
            return self.jobs(finding)
        then = self.jobs_at_the_time(finding, grace=timedelta(0))
        return self.jobs(finding) | then if finding.unusable else then

    def with_more(self, incident: Incident, finding: Finding) -> tuple[str, ...]:
        """The incident's jobs and those that another finding hits. Once its run has listed them,
        `hit_since_listed` adds to them."""
        if incident.jobs_hit_final or finding.fault_class not in HARDWARE:
            return incident.jobs_hit
        if incident.fault_class is FaultClass.fatal and finding.evidence[0].sense in MEASURED:
            return incident.jobs_hit  # a measurement does not extend a fault of one GPU
        return jobs_of_all(incident.jobs_hit, self._of_its_time(finding))


def _ends_work(finding: Finding) -> bool:
    """A fatal fault, or one that ends the program that it hit."""
    return finding.fault_class is FaultClass.fatal or fault_is(finding.fault, Trait.contained)


#: The most hit jobs kept with their losses; a fault of the whole fleet hits thousands.
HITS_KEPT = 200

#: (job, since) -> the job's newest durable checkpoint since then.
NewestDurable = Callable[[str, datetime | None], JobCheckpoint | None]


def has_unsettled_hits(incident: Incident) -> bool:
    """The loss of some hit job is still unknown."""
    if not incident.jobs_hit and not incident.hit:
        return False
    noted = {hit.job for hit in incident.hit}
    return noted != set(incident.jobs_hit[:HITS_KEPT]) or any(not hit.settled for hit in incident.hit)


def with_hits(incident: Incident, picture: Picture, newest: NewestDurable, now: datetime) -> Incident:
    """The incident with the hit jobs as Slurm shows them, and their losses once their work has ended.

    A job that Slurm no longer shows and that was not recorded before stays unknown. Jobs that turn out not to
    be hit are dropped. A job that ended for another reason lost nothing here.
    """
    noted_hits, snapshot = {hit.job: hit for hit in incident.hit}, picture.slurm
    hits = []
    for job in incident.jobs_hit[:HITS_KEPT]:
        shown = snapshot.whole(job) if snapshot is not None else None
        noted = noted_hits.get(job)
        if noted is None:
            noted = _first_hit(job, shown, snapshot.nodes if snapshot is not None else {})
            life = _life_then(incident, job, picture)
            if life is not None and snapshot is not None:
                noted = _in_life(noted, life, snapshot.nodes)
        hits.append(noted if noted.settled else _settle(noted, shown, incident, newest, now))
    return incident if tuple(hits) == incident.hit else msgspec.structs.replace(incident, hit=tuple(hits))


def _first_hit(job: str, shown: SlurmJob | None, nodes: Mapping[str, SlurmNode]) -> JobHit:
    if shown is None:
        return JobHit(job=job, basis=HitBasis.unknown)
    return JobHit(
        job=job,
        basis=HitBasis.runs_on,
        user=shown.user,
        gpus=gpus_of(shown, nodes),
        nodes=len(shown.nodes),
        restart=shown.restarts,
        started_at=shown.start_at,
    )


def _in_life(hit: JobHit, life: Allocation, nodes: Mapping[str, SlurmNode]) -> JobHit:
    """The hit as Slurm showed it in that life: a requeued job holds no nodes yet, or others."""
    return msgspec.structs.replace(
        hit,
        restart=life.restarts,
        started_at=life.start_at,
        gpus=gpus_of(life, nodes),
        nodes=len(life.nodes),
    )


def _life_then(incident: Incident, job: str, picture: Picture) -> Allocation | None:
    """The life of the job that the fault hit, if it has ended: the present life began after the fault. A dead
    GPU also hits the present life, if that is on its node."""
    node, slurm = incident.root.node, picture.slurm
    if node is None or not incident.evidence:
        return None
    if incident.unusable and slurm is not None and any(here.leader == job for here in slurm.jobs_on(node)):
        return None
    first, allocations = incident.evidence[0], picture.allocations
    at = picture.node(node).moment(first.at, first.arrived_at or first.at)
    shown = slurm.jobs.get(job) if slurm is not None else None
    runs = shown is not None and shown.state == "RUNNING"
    return None if runs and allocations.had_begun(job, at) else allocations.ended_life(job, node, at)


def gpus_of(job: SlurmJob | Allocation | None, nodes: Mapping[str, SlurmNode]) -> int:
    """GPUs that the job holds now, or held in that life; 0 if none, or if Slurm does not report them."""
    if job is None:
        return 0
    return sum(
        len(job.gpus[name]) if name in job.gpus else nodes[name].gpus if name in nodes else 0
        for name in job.nodes
    )


def _fault_at(incident: Incident) -> datetime | None:
    """When a reported fatal fault ended the work on its GPU; None: its jobs may continue."""
    if not has_ended_work(incident):
        return None
    return min((evidence.at for evidence in incident.evidence if evidence.fatal), default=None)


def _settle(
    hit: JobHit, shown: SlurmJob | None, incident: Incident, newest: NewestDurable, now: datetime
) -> JobHit:
    """The hit with the job's loss, once its work has ended."""
    ended_at = _ended_at(hit, shown, incident, now)
    runs = shown is not None and shown.restarts == hit.restart and shown.active
    if ended_at is None and shown is None:
        return msgspec.structs.replace(hit, basis=HitBasis.unknown)
    if ended_at is None:
        return hit if runs else msgspec.structs.replace(hit, basis=HitBasis.ended, lost_gpu_hours=0.0)
    # Checkpoints from before this life may be of an earlier job with the same number.
    saved = newest(hit.job, hit.started_at)
    if saved is None or saved.restart != hit.restart:
        return _lost(hit, hit.started_at, ended_at, HitBasis.start)
    if saved.at > ended_at and runs:
        return hit  # it has saved a checkpoint since, so its work continued
    return _lost(hit, min(saved.at, ended_at), ended_at, HitBasis.checkpoint)


def _ended_at(hit: JobHit, shown: SlurmJob | None, incident: Incident, now: datetime) -> datetime | None:
    """When this incident ended the job's work: by a fatal fault, by healer's restart for it, or by a crash
    near in time. None: its work continues, or ended for another reason."""
    fault_at = _fault_at(incident)
    if fault_at is not None and (hit.started_at is None or hit.started_at <= fault_at):
        return fault_at
    if shown is None:
        return None
    if shown.restarts > hit.restart:
        return now if incident.run_count else None
    ended_at = shown.end_at if shown.crashed else None
    near = (
        evidence.at
        for evidence in incident.evidence
        if ended_at and abs(ended_at - evidence.at) <= CRASH_WINDOW
    )
    return ended_at if any(near) else None


def _lost(hit: JobHit, since: datetime | None, ended_at: datetime, basis: HitBasis) -> JobHit:
    if since is None or not hit.gpus:
        return msgspec.structs.replace(hit, basis=HitBasis.unknown, ended_at=ended_at)
    hours = max(0.0, (ended_at - since).total_seconds()) / 3600
    return msgspec.structs.replace(
        hit, basis=basis, ended_at=ended_at, since=since, lost_gpu_hours=round(hit.gpus * hours, 2)
    )


def losses_by_restart(job: str, incidents: Iterable[Incident]) -> dict[int, JobHit]:
    """Restart count -> what the job lost then by these incidents, counted once however many incidents hit
    it."""
    found: dict[int, JobHit] = {}
    for loss in (hit for incident in incidents for hit in incident.hit if hit.job == job):
        before = found.get(loss.restart)
        if before is None or (loss.lost_gpu_hours or -1.0) > (before.lost_gpu_hours or -1.0):
            found[loss.restart] = loss
    return found


def loss_text(hit: JobHit) -> Said:
    """`64 GPU-hours lost since the checkpoint of 02:41 UTC`, `at most 64 GPU-hours lost, …`"""
    hours = _figure(hit.lost_gpu_hours or 0.0)
    if hit.basis is HitBasis.checkpoint and hit.since is not None:
        day, month = f"{hit.since:%d}", say(f"words.month_{hit.since.month}")
        moment = {"day": day, "month": month, "time": f"{hit.since:%H:%M}"}
        return say("incidents.lost_since_checkpoint", hours=hours, **moment)
    if hit.basis is HitBasis.start:
        return say("incidents.lost_since_start", hours=hours)
    return say(f"incidents.loss_{hit.basis}")


def total_loss_text(hit: Iterable[JobHit]) -> Said:
    """`96 GPU-hours lost, 64 of them at most`; empty if nothing is known about any job."""
    settled = [job_hit for job_hit in hit if job_hit.lost_gpu_hours is not None]
    whole = sum(job_hit.lost_gpu_hours or 0.0 for job_hit in settled)
    at_most = sum(job_hit.lost_gpu_hours or 0.0 for job_hit in settled if job_hit.at_most)
    if not settled:
        return NO_WORDS
    if at_most == whole and whole:
        return say("incidents.lost_at_most", hours=_figure(whole))
    if at_most:
        return say("incidents.lost_partly_at_most", hours=_figure(whole), most=_figure(at_most))
    return say("incidents.lost", hours=_figure(whole))


def _figure(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 or hours == int(hours) else f"{hours:.3g}"


def urgency_of(incident: Incident, snapshot: SlurmSnapshot | None) -> Urgency:
    shown = snapshot.jobs if snapshot is not None else {}
    sizes = [len(shown[job].nodes) for job in incident.jobs_hit if job in shown]
    sizes += [hit.nodes for hit in incident.hit]  # Slurm soon forgets jobs
    least = 1 if incident.jobs_hit else 0
    return Urgency(severity=incident.severity, size=max([least, *sizes]), since=incident.opened)


def by_urgency(incidents: Iterable[Incident], snapshot: SlurmSnapshot | None) -> list[Incident]:
    return sorted(
        incidents, key=lambda incident: (*urgency_of(incident, snapshot).order, *by_opening(incident))
    )
