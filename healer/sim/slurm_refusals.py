"""What the simulated Slurm refuses, in the words and numbers of the real ones (22.05 and 24.11)."""

import re

from healer.model import Reservation
from healer.ports.slurm import SchedulerRefused
from healer.sim.slurm_jobs import Job

_RESERVATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")
_WHO = re.compile(r"[\w.\-]+", re.ASCII)


def names(*given: str) -> None:
    """Of a partition or QOS; empty is Slurm's default."""
    for name in given:
        if name and not _WHO.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is no name of Slurm's")


def pending(job: Job) -> Job:
    if job.state != "PENDING" or job.completing_until:
        raise SchedulerRefused(f"Job {job.id}: Job is no longer pending execution", 2073)
    return job


def running(job: Job) -> Job:
    if job.state == "PENDING":
        raise SchedulerRefused(f"Job {job.id}: Job can not be altered now, try again later", 2020)
    if not job.running:
        raise SchedulerRefused(f"Job {job.id}: Job/step already completing or completed", 2021)
    return job


def unfinished(job: Job) -> Job:
    if job.ended_at:
        raise SchedulerRefused(f"Job {job.id}: Job has already finished", 2084)
    return job


def requeueable(job: Job) -> Job:
    if not job.batch:
        raise SchedulerRefused(f"Job {job.id}: Only batch jobs are accepted or processed", 2039)
    if not job.requeue:
        raise SchedulerRefused(f"Job {job.id}: Requested operation is presently disabled", 2037)
    if job.het_offset:
        raise SchedulerRefused(f"Job {job.id}: Job ID is not heterogeneous job leader", 2107)
    return job


def reservation(wanted: Reservation) -> Reservation:
    if not _RESERVATION.fullmatch(wanted.name):
        raise SchedulerRefused(f"{wanted.name[:80]!r} is not the name of a reservation.", 2053)
    who = [*wanted.users, *wanted.accounts]
    if not who or not all(_WHO.fullmatch(name) for name in who):
        raise ValueError("a reservation needs users or accounts by their names")
    return wanted


def allowed(job: Job, found: Reservation) -> None:
    if job.user not in found.users and job.account not in found.accounts:
        raise SchedulerRefused(f"{job.name}: Access denied to requested reservation", 2052)


def line(what: str, text: str, *, empty: bool = False) -> str:
    if not (text.strip() or (empty and not text)) or not text.isprintable():
        raise ValueError(f"{what} is one line of printable characters")
    return text
