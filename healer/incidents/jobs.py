"""Which jobs a fault hits, as far as Slurm's picture tells."""

from collections.abc import Iterable, Sequence, Set
from datetime import datetime, timedelta

from healer.incidents.senses import MEASURED
from healer.model import HARDWARE, Component, FaultClass, Finding, Incident, SlurmJob, SlurmSnapshot
from healer.observations import Picture

#: A job that ended so shortly before or after a root on its node ended because of it.
CRASH_WINDOW = timedelta(minutes=2)


def jobs_of(
    snapshot: SlurmSnapshot | None, where: Component, *, one_gpu: bool = False
) -> tuple[list[SlurmJob], bool]:
    """Jobs that the fault at `where` hits by Slurm's picture, and whether that is certain: `hit_among`."""
    if snapshot is None or where.node is None:
        return [], False
    shown = snapshot.nodes.get(where.node)
    jobs = snapshot.jobs_on(where.node)
    return hit_among(jobs, where, node_gpus=shown.gpus if shown else 0, one_gpu=one_gpu)


def hit_among(
    jobs: Sequence[SlurmJob], where: Component, *, node_gpus: int = 0, one_gpu: bool = False
) -> tuple[list[SlurmJob], bool]:
    """Those of the jobs on the node that the fault at `where` hits. False: nobody can say which of them.

    Only a job on the faulty GPU is hit; one that holds no GPU of the node never is. Where the GPU's index is
    not known, a lone job is hit for certain only if it holds all `node_gpus` (0: not known), or if it is
    the only job at all and nobody tells its GPUs. `one_gpu`: the signal speaks of one GPU although it names
    none; else a place without a GPU is the whole node.
    """
    if where.job is not None:
        return [job for job in jobs if job.id == where.job], True
    if where.pci is None and where.gpu is None and not one_gpu:
        return list(jobs), True
    node = where.node or ""
    holders = [job for job in jobs if job.gpus.get(node) != ()]
    not_told = [job for job in holders if node not in job.gpus]
    if where.gpu is not None:
        owners = [job for job in holders if where.gpu in job.gpus.get(node, ())]
        if owners or not not_told:
            return owners, True
        return not_told, len(jobs) == 1
    if len(holders) > 1:
        return holders, False
    if not_told:
        return not_told, len(jobs) == 1
    return holders, all(0 < node_gpus <= len(job.gpus[node]) for job in holders)


def hit_so_far(incident: Incident, snapshot: SlurmSnapshot | None) -> tuple[str, ...]:
    """Those known, and those at work there now: a node that must stay in service takes job after job."""
    if incident.jobs_hit_final:
        return incident.jobs_hit
    now = jobs_of(snapshot, incident.root)[0]
    return tuple(sorted({*incident.jobs_hit, *(job.id for job in now)}))


def moments_of(incident: Incident) -> tuple[datetime, ...]:
    """When the fault was, by the host's own clock and by ours: they may differ."""
    return (*(one.at for one in incident.evidence[:1]), incident.opened)


def crashed_among(jobs: Iterable[SlurmJob], where: Component, moments: Sequence[datetime]) -> list[SlurmJob]:
    """Those whose work the fault at `where` had ended by the time that anybody looked: a crash is faster than
    any log shipper.

    They ended FAILED or NODE_FAIL there within 2 minutes of it. On a shared node Slurm may still tell their
    GPUs; where it does not, nobody can say more, and nothing is done without their owner's word anyway.
    """
    return [job for job in jobs if _crashed(job, where, moments)]


def _crashed(job: SlurmJob, where: Component, moments: Sequence[datetime]) -> bool:
    node = where.node or ""
    # The leader of a heterogeneous job ends with the component that was here.
    here = node in {*job.nodes, job.failed_node} or bool(job.het_job)
    if not job.crashed or not here or job.end_at is None:
        return False
    gpus = job.gpus.get(node)
    if gpus is not None and where.gpu is not None and where.gpu not in gpus:
        return False
    return any(abs(job.end_at - at) <= CRASH_WINDOW for at in moments)


class Hits:
    """Who is hit where, by one pass's picture of Slurm."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._known: dict[tuple[Component, bool], frozenset[str]] = {}

    def jobs(self, finding: Finding) -> Set[str]:
        """Those that the signal names, else those that Slurm's picture is sure of."""
        if finding.jobs:
            return frozenset(finding.jobs)
        key = finding.component, finding.of_one_gpu
        known = self._known.get(key)
        if known is None:
            hit, certain = jobs_of(self._picture.slurm, finding.component, one_gpu=key[1])
            known = self._known[key] = frozenset(job.leader for job in hit) if certain else frozenset()
        return known

    def named(self, finding: Finding) -> set[str]:
        """Those that the finding itself names."""
        return set(finding.jobs) | ({finding.component.job} if finding.component.job else set())

    def at_begin(self, finding: Finding, now: datetime) -> tuple[str, ...]:
        """With those that the fault ended before it was told."""
        hit, where = set(self.jobs(finding) or self.named(finding)), finding.component
        slurm = self._picture.slurm
        if finding.fault_class is FaultClass.fatal and slurm is not None and where.node:
            failed = slurm.failed_on(where.node)
            hit |= {job.leader for job in crashed_among(failed, where, (finding.evidence[0].at, now))}
        return tuple(sorted(hit))

    def with_more(self, incident: Incident, finding: Finding) -> tuple[str, ...]:
        """The incident's, with those that one more finding of it hits."""
        if incident.jobs_hit_final or finding.fault_class not in HARDWARE:
            return incident.jobs_hit
        if incident.fault_class is FaultClass.fatal and finding.evidence[0].sense in MEASURED:
            return incident.jobs_hit  # it makes a fault of one GPU no wider
        return tuple(sorted({*incident.jobs_hit, *self.jobs(finding)}))
