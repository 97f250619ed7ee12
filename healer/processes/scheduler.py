"""The scheduler's duties, each in a thread of its own: poll Slurm, wake runs, seal, deliver, tidy."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from healer.model import Ruleset
from healer.observations.places import with_places
from healer.ports import Clock, Ledger, Poke, Scheduler, SchedulerError, Snapshots

log = structlog.get_logger()

#: Slurm is asked at most this often, and no more than a tenth of the time, but rests no longer than this: a
#: picture older than `stale_s` (30 s) holds everything.
POLL_S = 2.0
REST_MAX_S = 10.0
SWEEP_S = 0.2
SEAL_S = 0.3
DELIVER_S = 0.5
TIDY_S = 60.0


@dataclass(frozen=True)
class Duty:
    """`work` is called again and again; it returns how long to rest, None for `every_s`."""

    name: str
    every_s: float
    work: Callable[[], float | None]


def poll_slurm(
    scheduler: Scheduler,
    snapshots: Snapshots,
    rules: Callable[[], Ruleset],
    failed: Callable[[str], None],
    cluster: str,
    stopwatch: Callable[[], float] = time.monotonic,
) -> Callable[[], float | None]:
    """Reads Slurm's picture and stores it. When Slurm is away the old picture stays and grows stale."""

    def work() -> float | None:
        begun = stopwatch()
        try:
            snapshot = scheduler.snapshot()
        except SchedulerError as error:
            log.warning("slurm does not answer", error=str(error))
            failed(str(error))
            return None
        if snapshot.cluster != cluster:
            failed(f"Slurm is the cluster {snapshot.cluster}, not {cluster}: mend HEALER_CLUSTER")
            return None
        snapshots.put(with_places(snapshot, rules().topology))
        return max(POLL_S, min(REST_MAX_S, 10 * (stopwatch() - begun)))

    return work


def sweep(ledger: Ledger, poke: Poke, clock: Clock) -> Callable[[], float | None]:
    """Wakes due runs: those whose wait is over and those that a dead worker left."""
    poked: dict[str, float] = {}

    def work() -> None:
        now = time.monotonic()
        for run, at in list(poked.items()):
            if now - at > 1.0:
                del poked[run]
        due = [run for run in ledger.due_runs(clock.now()) if run not in poked]
        poked.update(dict.fromkeys(due, now))
        if due:
            poke(due)

    return work


def run_duties(duties: list[Duty], stopped: threading.Event) -> None:
    """Runs all duties until `stopped`. A duty that fails is logged and tried again; the others go on."""
    threads = [
        threading.Thread(target=_repeat, args=(duty, stopped), name=duty.name, daemon=True) for duty in duties
    ]
    for thread in threads:
        thread.start()
    stopped.wait()
    for thread in threads:
        thread.join(timeout=3)


def _repeat(duty: Duty, stopped: threading.Event) -> None:
    failures = 0
    while not stopped.is_set():
        rest = None
        try:
            rest = duty.work()
            failures = 0
        except Exception:
            failures += 1
            log.exception("duty failed", duty=duty.name, failures=failures)
            rest = min(5.0, duty.every_s * 2**failures)
        stopped.wait(duty.every_s if rest is None else rest)
