"""The read side of the API and the console on PostgreSQL."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa

from healer.adapters.postgres.audit_rows import PostgresAudit
from healer.adapters.postgres.engine import read_structs, reading, reads
from healer.adapters.postgres.figures import PostgresFigures
from healer.adapters.postgres.forest_rows import read_unusual
from healer.adapters.postgres.gate_facts import PAUSE, pauses_in_force, read_facts
from healer.adapters.postgres.glass_rows import glass_state
from healer.adapters.postgres.goodput_rows import hit_since, job_goodput, job_since, job_user
from healer.adapters.postgres.incident_rows import (
    OpenIncidents,
    PostgresIncidents,
    about_node,
    incident_page,
    open_at,
    watched,
)
from healer.adapters.postgres.loops import read_beats
from healer.adapters.postgres.node_life import read_life
from healer.adapters.postgres.node_rows import (
    PostgresSnapshots,
    SnapshotStore,
    changed_since,
    cluster_names,
    listed_gpus,
    measured_figures,
    read_controller,
    read_inventories,
    read_lemons,
    read_references,
    read_standing,
)
from healer.adapters.postgres.rule_rows import PostgresRules
from healer.adapters.postgres.run_rows import PostgresRuns, asking_runs
from healer.adapters.postgres.sample_reads import PostgresSignalReads
from healer.adapters.postgres.samples import PostgresColumns
from healer.adapters.postgres.state_rows import states_at
from healer.adapters.postgres.tables import gate, incidents, jobs_named, requeues, run_log, runs, snapshots
from healer.model import CONTEXT_LONGEST, Breaker, FaultClass, LogEntry, Pause, Ruleset, StepEvent
from healer.model.detection import EARLIEST
from healer.ports.answers import (
    CheckpointSeen,
    ClusterState,
    FleetRows,
    JobDone,
    JobErrors,
    JobRows,
    NodeRows,
    PastFleet,
    Requeue,
)
from healer.ports.queries import Queries
from healer.text import from_stored

#: Incidents in the history on a node's page.
_HISTORY = 50
_HOUR = timedelta(hours=1)


class PostgresClusters(SnapshotStore):
    """`healer.ports.queries.ClusterQueries`."""

    def __init__(self, engine: sa.Engine, snapshots: PostgresSnapshots) -> None:
        super().__init__(engine, snapshots)
        self._open = OpenIncidents()

    names = reads(cluster_names)

    def state(self, cluster: str, now: datetime) -> ClusterState:
        with reading(self._engine) as conn:
            error = conn.scalar(sa.select(snapshots.c.error).where(snapshots.c.cluster == cluster))
            facts = read_facts(conn, cluster, self._snapshots, now)
            return ClusterState(
                cluster=cluster,
                breaker=facts.breaker,
                snapshot=facts.snapshot,
                snapshot_error=error or "",
                controller=read_controller(conn, cluster),
                slots=facts.slots,
                granted_last_hour=len(facts.granted_since(facts.earlier(now) - _HOUR)),
                pauses=facts.pauses,
                vetoes=facts.vetoes,
                open_incidents=self._open.read(conn, cluster),
                asking=tuple(asking_runs(conn, cluster)),
                glass=glass_state(conn),
                beats=read_beats(conn, cluster),
            )

    def pauses(self, now: datetime) -> list[Pause]:
        with reading(self._engine) as conn:
            return read_structs(conn, sa.select(*PAUSE).where(*pauses_in_force(now)).order_by("since"), Pause)

    def breakers(self) -> list[Breaker]:
        with reading(self._engine) as conn:
            stored = {row.cluster: row.breaker for row in conn.execute(sa.select(gate))}
            names = sorted({*cluster_names(conn), *stored})
        return [
            from_stored(stored[name], Breaker) if name in stored else Breaker(cluster=name) for name in names
        ]


class PostgresNodes(SnapshotStore):
    """`healer.ports.queries.NodeQueries`."""

    life = reads(read_life)
    references = reads(read_references)
    inventories = reads(read_inventories)
    measured = reads(measured_figures)
    lemons = reads(read_lemons)

    def past(self, cluster: str, at: datetime) -> PastFleet:
        with reading(self._engine) as conn:
            return PastFleet(states=states_at(conn, cluster, at), incidents=open_at(conn, cluster, at))

    def fleet(self, clusters: Sequence[str] | None, now: datetime) -> FleetRows:
        with reading(self._engine) as conn:
            found = self._snapshots.read_all(conn, clusters)
            return FleetRows(
                snapshots=found,
                watched=tuple(watched(conn, clusters, now)),
                changed={name: changed_since(conn, name, now - CONTEXT_LONGEST) for name in found},
                lemons={name: read_lemons(conn, name) for name in found},
            )

    def rows(self, cluster: str, node: str, now: datetime) -> NodeRows | None:
        with reading(self._engine) as conn:
            snapshot = self._snapshots.read(conn, cluster)
            if snapshot is None or node not in snapshot.nodes:
                return None
            inventory = read_inventories(conn, cluster, node)
            of_node = [incidents.c.cluster == cluster, about_node(node)]
            return NodeRows(
                snapshot=snapshot,
                node=snapshot.nodes[node],
                watched=tuple(watched(conn, [cluster], now, about_node(node))),
                history=tuple(incident_page(conn, of_node, _HISTORY).items),
                gpus={int(gpu["index"]): gpu for gpu in listed_gpus(conn, cluster, node, now)},
                inventory=inventory[0] if inventory else None,
                lemon=read_lemons(conn, cluster, node).get(node),
                unusual=read_unusual(conn, cluster, node, now),
                standing=read_standing(conn, cluster, node),
            )


INCIDENTS_SHOWN = 100
DONE_SHOWN = 50
CHECKPOINTS_SHOWN = 50
ERRORS_SHOWN = 20

_STEP_ENDED = [str(event) for event in (StepEvent.done, StepEvent.skipped, StepEvent.failed)]

# The condition on the job is the expression of the index over checkpoints.
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
      AND arrived_at >= :since
    ORDER BY arrived_at DESC
    LIMIT :limit
    """
)

# One row for each fault: a job that crashes on 77 nodes leaves thousands of lines.
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
      AND doc ->> 'fault_class' = :class AND last_at >= :since
    GROUP BY fault
    ORDER BY lines DESC, fault
    LIMIT :limit
    """
)


def _checkpoints(
    conn: sa.Connection, cluster: str, job: str, since: datetime = EARLIEST
) -> list[CheckpointSeen]:
    """The last ones since then, oldest first."""
    newest = {"cluster": cluster, "job": job, "limit": CHECKPOINTS_SHOWN, "since": since}
    found = read_structs(conn, _CHECKPOINTS, CheckpointSeen, newest)
    return sorted(found, key=lambda checkpoint: checkpoint.at)


class PostgresJobs(SnapshotStore):
    """`healer.ports.queries.JobQueries`."""

    checkpoints = reads(_checkpoints)

    def rows(self, cluster: str, job: str) -> JobRows:
        key = {"cluster": cluster, "job": job}
        with reading(self._engine) as conn:
            snapshot = self._snapshots.read(conn, cluster)
            shown = snapshot.jobs.get(job) if snapshot else None
            since = job_since(conn, cluster, job, shown)
            hit = [incidents.c.cluster == cluster, jobs_named.contains([job])]
            hit.append(sa.or_(incidents.c.closed.is_(None), incidents.c.closed >= since))
            found = hit_since(incident_page(conn, hit, INCIDENTS_SHOWN).items, job, since)
            requeued = (
                sa.select(requeues.c.restarts, requeues.c.at, requeues.c.incident, requeues.c.run)
                .where(requeues.c.cluster == cluster, requeues.c.job == job, requeues.c.at >= since)
                .order_by(requeues.c.id)
            )
            errors = {**key, "since": since, "class": str(FaultClass.application), "limit": ERRORS_SHOWN}
            return JobRows(
                snapshot=snapshot,
                user=shown.user if shown else job_user(conn, cluster, job),
                incidents=tuple(found),
                requeues=tuple(read_structs(conn, requeued, Requeue)),
                done=_steps_on_job(conn, cluster, job, [incident.id for incident in found], since),
                errors=tuple(read_structs(conn, _ERRORS, JobErrors, errors)),
                checkpoints=tuple(_checkpoints(conn, cluster, job, since)),
                goodput=tuple(job_goodput(conn, cluster, job, since)),
            )


def _steps_on_job(
    conn: sa.Connection, cluster: str, job: str, hit_by: Sequence[str], since: datetime
) -> tuple[JobDone, ...]:
    """Ended steps on the job since then, of the runs of these incidents and of runs on the job itself; oldest
    first."""
    of_job = sa.or_(
        sa.and_(runs.c.incident.in_(hit_by), run_log.c.step.endswith(f":{job}", autoescape=True)),
        runs.c.job == job,
    )
    rows = conn.execute(
        sa.select(run_log.c.doc, runs.c.id, runs.c.incident)
        .join(runs, runs.c.id == run_log.c.run)
        .where(runs.c.cluster == cluster, of_job, run_log.c.event.in_(_STEP_ENDED), run_log.c.at >= since)
        .order_by(run_log.c.seq.desc())
        .limit(DONE_SHOWN)
    ).all()
    entries = [(from_stored(doc, LogEntry), run, incident) for doc, run, incident in reversed(rows)]
    return tuple(
        JobDone(
            at=entry.at,
            step=entry.step.partition(":")[0],
            event=str(entry.event),
            text=entry.text,
            run=run,
            incident=incident,
        )
        for entry, run, incident in entries
    )


def postgres_queries(
    engine: sa.Engine, *, snapshots: PostgresSnapshots, columns: PostgresColumns, rules: Callable[[], Ruleset]
) -> Queries:
    return Queries(
        clusters=PostgresClusters(engine, snapshots),
        incidents=PostgresIncidents(engine, snapshots),
        runs=PostgresRuns(engine, rules),
        nodes=PostgresNodes(engine, snapshots),
        jobs=PostgresJobs(engine, snapshots),
        rules=PostgresRules(engine),
        audit=PostgresAudit(engine),
        figures=PostgresFigures(engine),
        signals=PostgresSignalReads(engine, columns),
    )
