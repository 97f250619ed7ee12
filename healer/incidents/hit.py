"""What an incident cost the jobs that it hit: GPUs × the work that was lost."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

import msgspec

from healer.incidents.jobs import CRASH_WINDOW
from healer.incidents.senses import ended_work
from healer.model import HitBasis, Incident, JobCheckpoint, JobHit, SlurmJob, SlurmNode, SlurmSnapshot

#: A fault of the whole fleet hits thousands: a page names the first, and figures say that there are more.
HITS_KEPT = 200

#: The newest durable checkpoint of a job.
NewestDurable = Callable[[str], JobCheckpoint | None]


def hits_wait(incident: Incident) -> bool:
    """Something may still be learnt of the jobs that it hit."""
    if not incident.jobs_hit and not incident.hit:
        return False
    known = {one.job for one in incident.hit}
    return known != set(incident.jobs_hit[:HITS_KEPT]) or any(not one.settled for one in incident.hit)


def with_hits(
    incident: Incident, snapshot: SlurmSnapshot | None, newest: NewestDurable, now: datetime
) -> Incident:
    """Notes the jobs hit as Slurm shows them, and what they lost once their work has ended.

    A job that Slurm does not show any more, and that was not noted before, stays unknown. Jobs that turned
    out not to be hit are dropped. What ended a life otherwise than by this incident costs nothing here.
    """
    known = {one.job: one for one in incident.hit}
    hits = []
    for job in incident.jobs_hit[:HITS_KEPT]:
        shown = snapshot.jobs.get(job) if snapshot is not None else None
        one = known.get(job)
        if one is None:
            one = _noted(job, shown, snapshot.nodes if snapshot is not None else {})
        hits.append(one if one.settled else _settled(one, shown, incident, newest, now))
    return incident if tuple(hits) == incident.hit else msgspec.structs.replace(incident, hit=tuple(hits))


def _noted(job: str, shown: SlurmJob | None, nodes: Mapping[str, SlurmNode]) -> JobHit:
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


def gpus_of(job: SlurmJob | None, nodes: Mapping[str, SlurmNode]) -> int:
    """GPUs that the job holds now; 0 when it holds none or Slurm does not tell."""
    if job is None:
        return 0
    return sum(
        len(job.gpus[name]) if name in job.gpus else nodes[name].gpus if name in nodes else 0
        for name in job.nodes
    )


def _fault_at(incident: Incident) -> datetime | None:
    """When a fatal fault that was told ended the work on its GPU; None: its jobs may go on."""
    if not ended_work(incident):
        return None
    return min((one.at for one in incident.evidence if one.fatal), default=None)


def _settled(
    one: JobHit, shown: SlurmJob | None, incident: Incident, newest: NewestDurable, now: datetime
) -> JobHit:
    """With what the job lost, once its work has ended."""
    ended_at = _ended_at(one, shown, incident, now)
    runs = shown is not None and shown.restarts == one.restart and shown.active
    if ended_at is None and shown is None:
        return msgspec.structs.replace(one, basis=HitBasis.unknown)
    if ended_at is None:
        return one if runs else msgspec.structs.replace(one, basis=HitBasis.ended, lost_gpu_hours=0.0)
    saved = newest(one.job)
    if saved is None or saved.restart != one.restart:
        return _lost(one, one.started_at, ended_at, HitBasis.start)
    if saved.at > ended_at and runs:
        return one  # it has saved since: its work went on
    return _lost(one, min(saved.at, ended_at), ended_at, HitBasis.checkpoint)


def _ended_at(one: JobHit, shown: SlurmJob | None, incident: Incident, now: datetime) -> datetime | None:
    """When this incident ended the job's work: by a fatal fault, by healer's restart for it, or by a crash
    near in time. None: its work goes on, or ended otherwise."""
    fault_at = _fault_at(incident)
    if fault_at is not None and (one.started_at is None or one.started_at <= fault_at):
        return fault_at
    if shown is None:
        return None
    if shown.restarts > one.restart:
        return now if incident.run_count else None
    ended_at = shown.end_at if shown.crashed else None
    near = (one.at for one in incident.evidence if ended_at and abs(ended_at - one.at) <= CRASH_WINDOW)
    return ended_at if any(near) else None


def _lost(one: JobHit, since: datetime | None, ended_at: datetime, basis: HitBasis) -> JobHit:
    if since is None or not one.gpus:
        return msgspec.structs.replace(one, basis=HitBasis.unknown, ended_at=ended_at)
    hours = max(0.0, (ended_at - since).total_seconds()) / 3600
    return msgspec.structs.replace(
        one, basis=basis, ended_at=ended_at, since=since, lost_gpu_hours=round(one.gpus * hours, 2)
    )


def lives_lost(job: str, incidents: Iterable[Incident]) -> dict[int, JobHit]:
    """By life of the job: what it lost by these incidents. A life ends once, however many hit it."""
    found: dict[int, JobHit] = {}
    for one in (hit for incident in incidents for hit in incident.hit if hit.job == job):
        before = found.get(one.restart)
        if before is None or (one.lost_gpu_hours or -1.0) > (before.lost_gpu_hours or -1.0):
            found[one.restart] = one
    return found


def lost_words(one: JobHit) -> str:
    """`64 GPU-hours lost since the checkpoint of 02:41 UTC`, `at most 64 GPU-hours lost, …`"""
    match one.basis:
        case HitBasis.checkpoint:
            return f"{_hours(one.lost_gpu_hours)} lost since the checkpoint of {one.since:%d %b %H:%M} UTC"
        case HitBasis.start:
            return f"at most {_hours(one.lost_gpu_hours)} lost: it told no durable checkpoint"
        case HitBasis.runs_on:
            return "runs on, nothing lost so far"
        case HitBasis.ended:
            return "nothing lost by this: it ended otherwise"
        case HitBasis.unknown:
            return "loss unknown: Slurm does not tell its GPUs or its start"


def lost_together(hit: Iterable[JobHit]) -> str:
    """`96 GPU-hours lost, 64 of them at most`; empty where nothing is known of any job."""
    known = [one for one in hit if one.lost_gpu_hours is not None]
    whole = sum(one.lost_gpu_hours or 0.0 for one in known)
    at_most = sum(one.lost_gpu_hours or 0.0 for one in known if one.at_most)
    if not known:
        return ""
    if at_most == whole and whole:
        return f"at most {_hours(whole)} lost"
    return f"{_hours(whole)} lost" + (f", {_figure(at_most)} of them at most" if at_most else "")


def _hours(hours: float | None) -> str:
    return f"{_figure(hours or 0.0)} GPU-hours"


def _figure(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 or hours == int(hours) else f"{hours:.3g}"
