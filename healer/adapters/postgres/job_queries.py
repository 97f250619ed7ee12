"""What is stored of a job: incidents that hit it, its requeues and checkpoints, what was done to it."""

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.engine import reading
from healer.adapters.postgres.incident_queries import incident_page
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tables import incidents, requeues, run_log, runs
from healer.model import FaultClass, LogEntry, StepEvent
from healer.ports.answers import CheckpointSeen, JobDone, JobErrors, JobRows, Requeue

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


class PostgresJobs:
    """`healer.ports.queries.JobQueries`."""

    def __init__(self, engine: sa.Engine, snapshots: PostgresSnapshots) -> None:
        self._engine, self._snapshots = engine, snapshots

    def rows(self, cluster: str, job: str) -> JobRows:
        asked = {"cluster": cluster, "job": job}
        with reading(self._engine) as conn:
            hit = [incidents.c.cluster == cluster, incidents.c.doc["jobs_hit"].contains([job])]
            found = incident_page(conn, hit, INCIDENTS_SHOWN).items
            again = conn.execute(
                sa.select(requeues.c.restarts, requeues.c.at, requeues.c.incident, requeues.c.run)
                .where(requeues.c.cluster == cluster, requeues.c.job == job)
                .order_by(requeues.c.id)
            )
            told = conn.execute(_CHECKPOINTS, {**asked, "limit": CHECKPOINTS_SHOWN})
            seen = sorted((CheckpointSeen(**row._mapping) for row in told), key=lambda one: one.at)
            errors = conn.execute(
                _ERRORS, {**asked, "class": str(FaultClass.application), "limit": ERRORS_SHOWN}
            )
            return JobRows(
                snapshot=self._snapshots.read(conn, cluster),
                incidents=tuple(found),
                requeues=tuple(Requeue(**row._mapping) for row in again),
                done=_done_to(conn, cluster, job, [one.id for one in found]),
                errors=tuple(JobErrors(**row._mapping) for row in errors),
                checkpoints=tuple(seen),
            )


def _done_to(conn: sa.Connection, cluster: str, job: str, hit_by: Sequence[str]) -> tuple[JobDone, ...]:
    """What runs of these incidents, and runs on the job itself, said of it."""
    of_job = sa.or_(
        sa.and_(runs.c.incident.in_(hit_by), run_log.c.step.endswith(f":{job}", autoescape=True)),
        runs.c.job == job,
    )
    rows = conn.execute(
        sa.select(run_log.c.doc, runs.c.id, runs.c.incident)
        .join(runs, runs.c.id == run_log.c.run)
        .where(runs.c.cluster == cluster, of_job, run_log.c.event.in_(_SAID))
        .order_by(run_log.c.seq.desc())
        .limit(DONE_SHOWN)
    ).all()
    said = [(msgspec.convert(doc, LogEntry), run, incident) for doc, run, incident in reversed(rows)]
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
