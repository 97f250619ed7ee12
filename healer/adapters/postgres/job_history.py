"""What healer knows of a job: the incidents that hit it, its requeues and checkpoints, and what it lost."""

from collections.abc import Mapping, Sequence

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres import rows
from healer.adapters.postgres.tables import incidents, requeues, run_log, runs
from healer.console.reads import CheckpointSeen, JobDone, JobHistory, Requeue
from healer.model import LogEntry, SlurmJob, SlurmNode, SlurmSnapshot, StepEvent

INCIDENTS_SHOWN = 100
DONE_SHOWN = 50
CHECKPOINTS_SHOWN = 50

#: A step that has ended says what came of it.
_SAID = [str(event) for event in (StepEvent.done, StepEvent.skipped, StepEvent.failed)]

# The index over a job's checkpoints is on this very expression.
_CHECKPOINTS = sa.text(
    """
    SELECT
      (doc #>> '{data,restart}')::bigint AS restart,
      (doc #>> '{data,step}')::bigint AS step,
      coalesce(doc #>> '{data,path}', '') AS path,
      coalesce((doc #>> '{data,durable}')::boolean, false) AS durable,
      (doc ->> 'event_at')::timestamptz AS at,
      doc #>> '{data,sha256}' AS sha256
    FROM inbox
    WHERE cluster = :cluster AND doc #>> '{component,job}' = :job AND kind = 'checkpoint'
    ORDER BY arrived_at DESC
    LIMIT :limit
    """
)


def job_history(conn: sa.Connection, snapshot: SlurmSnapshot | None, cluster: str, job: str) -> JobHistory:
    hit = [incidents.c.cluster == cluster, incidents.c.doc["jobs_hit"].contains([job])]
    found, _ = rows.incident_page(conn, hit, INCIDENTS_SHOWN, None)
    asked = conn.execute(
        sa.select(requeues.c.restarts, requeues.c.at, requeues.c.incident, requeues.c.run)
        .where(requeues.c.cluster == cluster, requeues.c.job == job)
        .order_by(requeues.c.id)
    )
    again = tuple(Requeue(**row._mapping) for row in asked)
    done = _done_to(conn, cluster, job, [one.id for one in found])
    told = conn.execute(_CHECKPOINTS, {"cluster": cluster, "job": job, "limit": CHECKPOINTS_SHOWN})
    seen = sorted((CheckpointSeen(**row._mapping) for row in told), key=lambda one: one.at)
    shown = snapshot.jobs.get(job) if snapshot else None
    return JobHistory(
        incidents=tuple(found),
        requeues=again,
        done=done,
        checkpoints=tuple(seen),
        gpu_hours_lost=gpu_hours_lost(
            gpus_of(shown, snapshot.nodes if snapshot else {}), again, seen, hit=bool(found)
        ),
    )


def _done_to(conn: sa.Connection, cluster: str, job: str, hit_by: Sequence[str]) -> tuple[JobDone, ...]:
    """What runs of these incidents, and runs on the job itself, said of it."""
    of_job = sa.or_(
        sa.and_(runs.c.incident.in_(hit_by), run_log.c.step.endswith(f":{job}", autoescape=True)),
        runs.c.job == job,
    )
    rows_ = conn.execute(
        sa.select(run_log.c.doc, runs.c.id, runs.c.incident)
        .join(runs, runs.c.id == run_log.c.run)
        .where(runs.c.cluster == cluster, of_job, run_log.c.event.in_(_SAID))
        .order_by(run_log.c.seq.desc())
        .limit(DONE_SHOWN)
    ).all()
    said = [(msgspec.convert(doc, LogEntry), run, incident) for doc, run, incident in reversed(rows_)]
    return tuple(
        JobDone(
            at=one.at,
            step=one.step.partition(":")[0],
            event=str(one.event),
            text=one.text,
            run=run,
            incident=incident,
        )
        for one, run, incident in said
    )


def gpus_of(job: SlurmJob | None, nodes: Mapping[str, SlurmNode]) -> int:
    """GPUs that the job holds now; 0 when it holds none or Slurm does not tell."""
    if job is None:
        return 0
    return sum(
        len(job.gpus[name]) if name in job.gpus else nodes[name].gpus if name in nodes else 0
        for name in job.nodes
    )


def gpu_hours_lost(
    gpus: int, again: Sequence[Requeue], seen: Sequence[CheckpointSeen], *, hit: bool
) -> float | None:
    """GPUs × the work that each requeue threw away: from the last durable checkpoint of that life to it.

    None while it is not known: a job that was hit and not requeued by healer, a life without a durable
    checkpoint (nobody says when it began), or a job whose GPUs Slurm no longer tells.
    """
    if not again:
        return None if hit else 0.0
    lost_s = 0.0
    for one in again:
        saved = [
            point.at
            for point in seen
            if point.durable and point.restart == one.restarts and point.at <= one.at
        ]
        if not saved:
            return None
        lost_s += (one.at - max(saved)).total_seconds()
    return round(gpus * lost_s / 3600, 2) if gpus else None
