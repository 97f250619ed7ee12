"""What healer knows of a job: the incidents that hit it, its requeues and checkpoints, and what it lost."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres import rows
from healer.adapters.postgres.tables import incidents, requeues, run_log, runs
from healer.incidents.entries import in_words
from healer.incidents.hit import gpus_of, lives_lost
from healer.model import FaultClass, HitBasis, JobHit, LogEntry, Ruleset, SlurmSnapshot, StepEvent
from healer.ports.console_answers import CheckpointSeen, JobDone, JobErrors, JobHistory, Requeue

INCIDENTS_SHOWN = 100
DONE_SHOWN = 50
CHECKPOINTS_SHOWN = 50
ERRORS_SHOWN = 20

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


# One row for each code: a job that crashes on 77 nodes leaves thousands of lines.
_ERRORS = sa.text(
    """
    SELECT
      fault,
      sum(coalesce((doc ->> 'count')::bigint, 1))::bigint AS lines,
      count(DISTINCT node) AS nodes,
      min(node) AS node,
      min(began_at) AS since,
      max(last_at) AS until
    FROM fault_bursts
    WHERE cluster = :cluster AND doc -> 'jobs' @> to_jsonb(ARRAY[:job ::text])
      AND doc ->> 'fault_class' = :class
    GROUP BY fault
    ORDER BY lines DESC, fault
    LIMIT :limit
    """
)


def job_history(
    conn: sa.Connection, snapshot: SlurmSnapshot | None, cluster: str, job: str, rules: Ruleset
) -> JobHistory:
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
    lost = gpu_hours_lost(
        gpus_of(shown, snapshot.nodes if snapshot else {}),
        again,
        seen,
        hit=bool(found),
        lives=lives_lost(job, found),
    )
    return JobHistory(
        incidents=tuple(found),
        requeues=again,
        done=done,
        errors=_errors(conn, cluster, job, rules),
        checkpoints=tuple(seen),
        gpu_hours_lost=lost.hours,
        gpu_hours_at_most=lost.at_most,
    )


def _errors(conn: sa.Connection, cluster: str, job: str, rules: Ruleset) -> tuple[JobErrors, ...]:
    asked = {"cluster": cluster, "job": job, "class": str(FaultClass.application), "limit": ERRORS_SHOWN}
    return tuple(
        JobErrors(text=in_words(rules, row.fault), **row._mapping) for row in conn.execute(_ERRORS, asked)
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


#: The life's work was lost, and how much is known.
_LOST = frozenset({HitBasis.checkpoint, HitBasis.start})


class Lost(NamedTuple):
    """GPU-hours that a job lost; None: not known. `at_most`: a life told no durable checkpoint, so all of it
    counts."""

    hours: float | None
    at_most: bool = False


def gpu_hours_lost(
    gpus: int,
    again: Sequence[Requeue],
    seen: Sequence[CheckpointSeen],
    *,
    hit: bool,
    lives: Mapping[int, JobHit] | None = None,
) -> Lost:
    """What each life of the job lost: as its incidents tell it (`lives`), else GPUs × the time from the last
    durable checkpoint of that life to its requeue.

    None while it is not known: a job that an earlier version's incident hit and healer did not requeue, a
    requeued life without a durable checkpoint, or a job whose GPUs Slurm does not tell.
    """
    known = {life: one for life, one in (lives or {}).items() if one.basis in _LOST}
    unknown = {life for life, one in (lives or {}).items() if one.basis is HitBasis.unknown}
    requeued = {one.restarts: one for one in again if one.restarts not in known}
    if unknown - requeued.keys() or (hit and not lives and not again):
        return Lost(None)
    hours = sum((one.lost_gpu_hours or 0.0 for one in known.values()), 0.0)
    for one in requeued.values():
        saved = [
            point.at
            for point in seen
            if point.durable and point.restart == one.restarts and point.at <= one.at
        ]
        if not saved or not gpus:
            return Lost(None)
        hours += gpus * (one.at - max(saved)).total_seconds() / 3600
    return Lost(round(hours, 2), any(one.at_most for one in known.values()))
