"""Jobs of sweeps that nobody looks after any more: somebody cancelled the run, and only a run gives way."""

from collections.abc import Callable, Sequence

from healer.decisions.sweeps import SWEEP_JOBS
from healer.model import ENDED_RUN_STATES, SlurmJob, SlurmSnapshot
from healer.ports.slurm import Scheduler, SchedulerRefused, Snapshots
from healer.ports.transactions import Ledger

LOOK_S = 2.0
#: It is not known any more, or has ended.
_OVER = frozenset({2017, 2021})


def left_jobs(
    scheduler: Scheduler, ledger: Ledger, snapshots: Snapshots, users: Callable[[], Sequence[str]]
) -> Callable[[], float | None]:
    """Cancels them. A job whose run is not in the book is somebody else's, whatever it is called."""

    def work() -> None:
        jobs = sweeps_in(snapshots.latest(ledger.cluster))
        if not jobs:
            return
        own = set(users())
        with ledger.transaction() as tx:
            runs = {job.id: tx.run(run_of(job)) for job in jobs if job.user in own}
        for job, run in runs.items():
            if run is not None and run.state in ENDED_RUN_STATES:
                _cancel(scheduler, job)

    return work


def sweeps_in(picture: SlurmSnapshot | None) -> list[SlurmJob]:
    """Jobs of sweeps that have not ended."""
    jobs = picture.jobs.values() if picture is not None else ()
    return [
        job
        for job in jobs
        if job.name.startswith(SWEEP_JOBS)
        and (job.active or job.state == "PENDING")
        and "COMPLETING" not in job.flags
    ]


def run_of(job: SlurmJob) -> str:
    """The run whose step's key its comment is."""
    return job.comment.partition(":")[0]


def _cancel(scheduler: Scheduler, job: str) -> None:
    try:
        scheduler.cancel(job)
    except SchedulerRefused as error:
        if error.code not in _OVER:
            raise
