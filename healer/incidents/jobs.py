"""Which jobs a fault hits, as far as Slurm's picture tells."""

from healer.model import Component, SlurmJob, SlurmSnapshot


def jobs_of(snapshot: SlurmSnapshot | None, where: Component) -> tuple[list[SlurmJob], bool]:
    """Jobs that the fault at `where` hits, and whether that is certain.

    On a shared node only the jobs on the faulty GPU are hit. Where the GPU's index or the jobs' GPUs are not
    known and several jobs share the node, all of them come back with False: nobody can say which.
    """
    if snapshot is None or where.node is None:
        return [], False
    return hit_among(snapshot.jobs_on(where.node), where)


def hit_among(jobs: list[SlurmJob], where: Component) -> tuple[list[SlurmJob], bool]:
    """The same over a list of jobs that hold the node."""
    if where.job is not None:
        return [job for job in jobs if job.id == where.job], True
    if where.pci is None and where.gpu is None:
        return jobs, True  # the whole node
    if where.gpu is not None and all(where.node in job.gpus for job in jobs):
        return [job for job in jobs if where.gpu in job.gpus[where.node or ""]], True
    return jobs, len(jobs) <= 1
