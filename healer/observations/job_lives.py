"""The lives of jobs, from successive snapshots of Slurm: when each waited, ran and ended, and on how many
GPUs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from msgspec.structs import replace

from healer.model import SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.detection import EARLIEST
from healer.model.gate import CLOCKS_DIFFER
from healer.model.goodput import Held, LifeSeen
from healer.model.telemetry import StepBatch


def changed_lives(snapshot: SlurmSnapshot, before: Mapping[str, LifeSeen]) -> list[LifeSeen]:
    """Lives that differ from `before`, the newest one of each job. A job is recorded from its first start,
    because until then it has no GPUs to count."""
    found: list[LifeSeen] = []
    for job in snapshot.jobs.values():
        found += _changed(job, snapshot, before.get(job.id))
    found += [_gone(life) for life in before.values() if life.job not in snapshot.jobs and not life.ended_at]
    return found


def _gone(life: LifeSeen) -> LifeSeen:
    """Slurm forgot it: it ended unseen, after the last query in which Slurm still showed it."""
    return replace(life, ended_at=max(life.seen_at, life.started_at or life.queued_at))


def _changed(job: SlurmJob, snapshot: SlurmSnapshot, before: LifeSeen | None) -> Iterator[LifeSeen]:
    queued_at = (job.submit_at if job.restarts else job.eligible_at) or job.submit_at
    at = snapshot.taken_at
    if before is not None and _is_of_another(before, job):
        if before.ended_at is None and before.restart != job.restarts:
            yield _gone(before)
        before = None
    if before is not None and before.restart < job.restarts:
        if before.ended_at is None:
            yield _requeued(before, job, at)
        queued_at, before = max(queued_at or at, before.queued_at), None
    if before is not None:
        now = _as_shown(job, snapshot, before)
        if replace(now, seen_at=before.seen_at) != before:
            yield now
    elif _ran(job, at) or (job.restarts and job.state == "PENDING"):
        first = LifeSeen(
            job=job.id, restart=job.restarts, queued_at=queued_at or job.start_at or at, seen_at=at,
            state=job.state, user=job.user, account=job.account, partition=job.partition,
            leader=job.leader if job.leader != job.id else "",
        )  # fmt: skip
        yield _as_shown(job, snapshot, first)


def _is_of_another(life: LifeSeen, job: SlurmJob) -> bool:
    """The life belongs to an earlier job with that number: slurmctld lost its state, and counts from the
    first number again. No life is submitted after its start, and none is followed by one with fewer
    restarts."""
    if job.restarts != life.restart or "COMPLETING" in {job.state, *job.flags}:
        return job.restarts < life.restart
    began = life.started_at
    return began is not None and job.submit_at is not None and job.submit_at > began


def _requeued(life: LifeSeen, job: SlurmJob, at: datetime) -> LifeSeen:
    """Slurm treats the requeue as a new submission, which ended this life."""
    began = life.started_at or life.queued_at
    is_known = job.submit_at is not None and began <= job.submit_at <= at
    ended = job.submit_at if is_known else max(began, life.seen_at)
    return replace(life, ended_at=ended, state="REQUEUED" if life.state == "RUNNING" else life.state)


def _is_over(job: SlurmJob, at: datetime) -> bool:
    """Whether the life is over. Slurm may show a job that is completing after a requeue with an end in 2163
    (seen on 22.05)."""
    ended = job.end_at is not None and job.end_at <= at + CLOCKS_DIFFER
    return ended and job.state not in {"PENDING", "RUNNING", "SUSPENDED"}


def _ran(job: SlurmJob, at: datetime) -> bool:
    return bool(job.nodes) and (
        job.state in {"RUNNING", "SUSPENDED"} or (_is_over(job, at) and job.start_at is not None)
    )


def _as_shown(job: SlurmJob, snapshot: SlurmSnapshot, life: LifeSeen) -> LifeSeen:
    """The life with what the job shows now; an ended one keeps what it held."""
    at, changes = snapshot.taken_at, dict[str, Any](state=job.state, seen_at=snapshot.taken_at)
    if _ran(job, at) and not (life.held and _is_over(job, at)):
        started = life.started_at or job.start_at or at
        held = _held(job, snapshot.nodes, at if life.held else started)
        last = life.held[-1] if life.held else None
        same = last is not None and (last.gpus, last.racks) == (held.gpus, held.racks)
        changes |= {"started_at": started, "held": life.held if same else (*life.held, held)}
        changes |= {"partition": job.partition, "account": job.account}
    if _is_over(job, at):
        changes["ended_at"] = job.end_at
    return replace(life, **changes)


def _held(job: SlurmJob, nodes: Mapping[str, SlurmNode], since: datetime) -> Held:
    racks: Counter[str] = Counter()
    for name in job.nodes:
        node = nodes.get(name)
        gpus = len(job.gpus[name]) if name in job.gpus else node.gpus if node is not None else 0
        racks[node.rack if node is not None else ""] += gpus
    return Held(since, racks.total(), None, dict(racks))


def spare_gpus(job: SlurmJob, nodes: Mapping[str, SlurmNode], batches: Iterable[StepBatch]) -> int | None:
    """GPUs of the job on nodes without a rank. None: unknown, because not every rank reports its node, or
    because there is not one rank per GPU of the reporting nodes."""
    ranks, seen = _ranks(list(batches))
    working = [name for name in job.nodes if name in seen]
    counts = {
        name: _held(replace(job, nodes=(name,)), nodes, job.start_at or EARLIEST).gpus for name in job.nodes
    }
    gpus = sum(counts[name] for name in working)
    if len(working) < 2 or seen - set(working) or not gpus or ranks != set(range(gpus)):
        return None
    return sum(counts.values()) - gpus


def _ranks(batches: Sequence[StepBatch]) -> tuple[set[int], set[str]]:
    """Ranks, and the nodes that they report; a missing node is an empty name."""
    ranks: set[int] = set()
    seen: set[str] = set()
    for batch in batches:
        ranks.update(np.unique(batch.rank).tolist())
        seen.update("" if index < 0 else batch.nodes[index] for index in np.unique(batch.node).tolist())
    return ranks, seen


def with_spares(life: LifeSeen, spare: int, now: datetime) -> LifeSeen:
    """The first report about the spares of an allocation counts from its beginning; later ones from now
    on."""
    if not life.held or life.held[-1].spare == spare:
        return life
    *before, last = life.held
    if last.spare is None:
        return replace(life, held=(*before, replace(last, spare=spare)))
    return replace(life, held=(*life.held, replace(last, since=now, spare=spare)))
