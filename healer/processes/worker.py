"""What the worker does next to its messages: it seals the audit, serves its witnesses, cancels its own test
jobs that an ended run left in Slurm, and drives the runs that no message brings."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future

import structlog

from healer.actions.under_test import JOB_OVER
from healer.audit import Sealer
from healer.decisions.sweeps import SWEEP_JOBS
from healer.model import ENDED_RUN_STATES, SlurmJob
from healer.ports.audit_store import WitnessAway
from healer.ports.scheduling import Scheduler, SchedulerRefused, Snapshots
from healer.ports.transactions import Ledger

log = structlog.get_logger()

LEFT_JOBS_S = 2.0
MISSED_S, MISSED_AT_ONCE = 1.0, 8
#: A run that is due for this long, although the sweep keeps sending it, does not wait for a message.
UNBROUGHT_S = 5.0
WITNESS_S = 1.0
#: The rest after a witness did not answer.
_AWAY_S = 10.0


class SharedSealer:
    """The sealer, which its duty uses and the end of the process closes: never both at once."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer, self._lock, self._is_closed = sealer, threading.Lock(), False

    def seal(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._sealer.seal_once()

    def close(self) -> None:
        """Signs the heads and lets another worker take over."""
        with self._lock:
            self._is_closed = True
            self._sealer.close()


def missed_runs(
    due_runs: Callable[[], Sequence[str]],
    drive: Callable[[str], None],
    pool: Executor,
    stopwatch: Callable[[], float] = time.monotonic,
) -> Callable[[], None]:
    """Drives the runs that stay due: the broker is away, or its client no longer connects or consumes.

    Its claim keeps a run that another worker drives from being driven twice.
    """
    due_since: dict[str, float] = {}
    driven: dict[str, Future[None]] = {}

    def work() -> None:
        now, due = stopwatch(), due_runs()
        for run in due_since.keys() - set(due):
            del due_since[run]
        for run in [run for run, future in driven.items() if future.done()]:
            if error := driven.pop(run).exception():
                log.error("run failed", run=run, error=repr(error))
        for run in due:
            if now - due_since.setdefault(run, now) >= UNBROUGHT_S and run not in driven:
                due_since[run], driven[run] = now, pool.submit(drive, run)

    return work


def patient(deliver: Callable[[], None], name: str) -> Callable[[], float | None]:
    """The deliveries to a witness; one that does not answer is asked again a little later."""

    def work() -> float | None:
        try:
            deliver()
        except WitnessAway as error:
            log.warning("audit witness does not answer", witness=name, why=str(error))
            return _AWAY_S
        return None

    return work


def leftover_jobs(
    scheduler: Scheduler, ledger: Ledger, snapshots: Snapshots, users: Callable[[], Sequence[str]]
) -> Callable[[], float | None]:
    """Cancels healer's own test jobs whose run has ended. A job whose run is not in the book is someone
    else's, whatever it is called; and Slurm itself is asked before, as the picture is another process's."""

    def work() -> None:
        snapshot = snapshots.latest(ledger.cluster)
        shown = snapshot.jobs.values() if snapshot is not None else ()
        sweeps = (job for job in shown if job.name.startswith(SWEEP_JOBS) and job.unfinished)
        jobs = [job for job in sweeps if "COMPLETING" not in job.flags]
        if not jobs:
            return
        our_users = set(users())
        for job in (job for job in jobs if job.user in our_users):
            # Locked, so that the commit also confirms how it ended: what a standby lacks permits no effect.
            # One at a time: with several, this and a walk could wait for each other.
            with ledger.transaction() as tx:
                run = tx.lock_run(run_of(job))
            if run is not None and run.state in ENDED_RUN_STATES and _still(scheduler, job, our_users):
                try:
                    scheduler.cancel(job.id)
                except SchedulerRefused as error:
                    if error.code not in JOB_OVER:
                        raise

    return work


def _still(scheduler: Scheduler, job: SlurmJob, our_users: Collection[str]) -> bool:
    now = scheduler.job(job.id)
    return now is not None and (now.name, now.comment) == (job.name, job.comment) and now.user in our_users


def run_of(job: SlurmJob) -> str:
    """The run whose step's key is in the job's comment."""
    return job.comment.partition(":")[0]
