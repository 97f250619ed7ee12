"""Rows of the goodput ledger: the stored data of jobs, and the hours that are computed from it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy.dialects.postgresql import distinct_on

from healer.adapters.postgres.engine import (
    ClusterStore,
    from_stored,
    matches,
    read_docs,
    read_structs,
    reading,
    to_stored,
    upsert,
)
from healer.adapters.postgres.incident_counts import bucket_of
from healer.adapters.postgres.retention import EVENTS
from healer.adapters.postgres.tables import goodput, incidents, job_lives, job_stretches, jobs_named
from healer.model import Incident, JobHit, SlurmJob
from healer.model.detection import EARLIEST
from healer.model.goodput import HourSpent, LifeSeen, SavedStep, Spent, Stretch
from healer.ports.answers import BucketFigure, Buckets, GoodputSum
from healer.ports.goodput_book import GoodputBy, PastJob

#: Jobs that are counted in one pass, each minute: enough for 10,000 GPUs with a job on each.
_PASS = 1000
#: How often a running job is counted. An ended one is counted twice, because its incidents are settled only
#: later.
RECOUNT, SETTLED = timedelta(minutes=10), timedelta(minutes=30)
#: A person reviews an incident, or it ends, long after the job: that is found if it is no older than this.
_NEWS = timedelta(days=7)
#: Of older hours steps and checkpoints are being deleted.
PROVEN = EVENTS - timedelta(days=1)

_SAVED = sa.text("""
SELECT (doc #>> '{data,restart}')::bigint AS restart, (doc #>> '{data,step}')::bigint AS step,
  (doc ->> 'event_at')::timestamptz AS at
FROM inbox
WHERE cluster = :cluster AND doc #>> '{component,job}' = :job AND kind = 'checkpoint'
  AND (doc #>> '{data,durable}')::boolean
ORDER BY at
""")


class PostgresGoodput(ClusterStore):
    """`healer.ports.goodput_book.GoodputBook`."""

    def latest_lives(self, now: datetime) -> list[LifeSeen]:
        row = job_lives.c
        recent = sa.or_(row.ended_at.is_(None), row.ended_at > now - timedelta(days=1))
        query = (
            sa.select(row.doc, row.counted_at)
            .ext(distinct_on(row.job))
            .where(row.cluster == self.cluster, recent)
            .order_by(row.job, row.restart.desc())
        )
        with reading(self._engine) as conn:
            rows = conn.execute(query).all()
        lives = ((from_stored(row.doc, LifeSeen), row.counted_at) for row in rows)
        # A clock that was ahead may have counted until a time that is yet to come.
        return [
            replace(life, seen_at=max(life.seen_at, min(counted or life.seen_at, now)))
            for life, counted in lives
        ]

    def put_lives(self, lives: Sequence[LifeSeen]) -> None:
        with self._engine.begin() as conn:
            for life in lives:
                key = {"cluster": self.cluster, "job": life.job, "restart": life.restart}
                values = {"ended_at": life.ended_at, "doc": to_stored(life)}
                if life.ended_at is not None:
                    values["counted_at"] = None  # it may have been counted past its end
                conn.execute(upsert(job_lives, key, values))

    def last_stretch(self, job: str, restart: int) -> Stretch | None:
        row = job_stretches.c
        query = (
            _stretches(self.cluster, job).where(row.restart == restart).order_by(row.began_at.desc()).limit(1)
        )
        with reading(self._engine) as conn:
            found = conn.execute(query).first()
        return None if found is None else _stretch(found)

    def put_stretches(self, job: str, restart: int, stretches: Sequence[Stretch]) -> None:
        with self._engine.begin() as conn:
            for each in stretches:
                key = {
                    "cluster": self.cluster, "job": job, "restart": restart, "began_at": each.begin
                }  # fmt: skip
                values = {"ended_at": each.end, "first": each.first, "last": each.last}
                conn.execute(upsert(job_stretches, key, values))

    def to_count(self, now: datetime) -> list[str]:
        """Jobs whose hours are due to be counted, those never counted first."""
        life = job_lives.c
        news = _news(self.cluster, now)
        due = sa.or_(
            life.counted_at.is_(None),
            life.counted_at > now,  # by a clock that was ahead
            sa.and_(life.ended_at.is_(None), life.counted_at < now - RECOUNT),
            sa.and_(
                life.counted_at < life.ended_at + SETTLED,
                life.ended_at <= now - SETTLED,
                life.ended_at > now - 7 * SETTLED,
            ),
            # Its own time is when it was asked for: the detector stores it a little later.
            sa.and_(life.counted_at < news.c.at + RECOUNT, life.counted_at < now - RECOUNT),
        )
        oldest = sa.func.min(life.counted_at)
        reports_as = sa.func.coalesce(sa.func.nullif(life.doc["leader"].astext, ""), life.job)
        its = job_lives.outerjoin(news, news.c.job == reports_as)
        query = (
            sa.select(life.job).select_from(its).where(life.cluster == self.cluster, due).group_by(life.job)
        )
        with reading(self._engine) as conn:
            return list(conn.execute(query.order_by(oldest.nulls_first()).limit(_PASS)).scalars())

    def past(self, job: str) -> PastJob:
        """All that is kept of the job; not of an earlier one of its number."""
        query = sa.select(job_lives.c.doc).where(_of_job(job_lives, self.cluster, job))
        with reading(self._engine) as conn:
            lives = _of_newest(read_docs(conn, query.order_by(job_lives.c.restart), LifeSeen))
            job = lives[-1].reports_as if lives else job
            hit = incidents.c.cluster == self.cluster, jobs_named.contains([job])
            since = _first_queued(lives)
            stretches: dict[int, list[Stretch]] = {}
            for row in conn.execute(_stretches(self.cluster, job).order_by(job_stretches.c.began_at)):
                if row.ended_at > since:
                    stretches.setdefault(row.restart, []).append(_stretch(row))
            saved: dict[int, list[SavedStep]] = {}
            for row in conn.execute(_SAVED, {"cluster": self.cluster, "job": job}):
                if row.at > since:
                    saved.setdefault(row.restart, []).append(SavedStep(row.at, row.step))
            return PastJob(
                lives=lives,
                stretches=stretches,
                saved=saved,
                incidents=hit_since(
                    read_docs(conn, sa.select(incidents.c.doc).where(*hit), Incident), job, since
                ),
            )

    def put_hours(self, lives: Sequence[LifeSeen], hours: Sequence[HourSpent], now: datetime) -> None:
        """Replaces the job's hours, except those whose steps and checkpoints were deleted since, and those
        of an earlier job of that number: these stay as they were counted. `lives`: all of the job. A life
        that ended meanwhile is counted again."""
        job = lives[-1].job
        whose = {
            life.restart: {"user_name": life.user, "account": life.account, "partition": life.partition}
            for life in lives
        }
        its, counted = _of_job(job_lives, self.cluster, job), _of_job(goodput, self.cluster, job)
        with self._engine.begin() as conn:
            conn.execute(sa.select(job_lives.c.job).where(its).with_for_update())
            before = sa.select(sa.exists().where(counted, goodput.c.hour < now - PROVEN))
            since = _hour(_first_queued(lives))
            if conn.scalar(before):
                since = max(since, now - PROVEN)
            rows = [
                {"cluster": self.cluster, "job": job, **whose[each.restart], **each._asdict()}
                for each in hours
                if each.hour >= since
            ]
            conn.execute(sa.delete(goodput).where(counted, goodput.c.hour >= since))
            if rows:
                conn.execute(sa.insert(goodput), rows)
            # Those of an earlier job of that number are done with.
            older = sa.update(job_lives).where(its, job_lives.c.ended_at <= _first_queued(lives))
            conn.execute(older.values(counted_at=now))
            for life in lives:
                same = job_lives.c.ended_at.is_not_distinct_from(life.ended_at)
                this = sa.update(job_lives).where(its, job_lives.c.restart == life.restart, same)
                conn.execute(this.values(counted_at=now))


def _news(cluster: str, now: datetime) -> sa.Subquery:
    """The jobs hit by incidents that changed recently, and when the last of these changed."""
    jobs = sa.func.jsonb_array_elements_text(incidents.c.doc["jobs_hit"]).table_valued(
        "value", name="hit_job"
    )
    query = sa.select(jobs.c.value.label("job"), sa.func.max(incidents.c.updated).label("at"))
    lately = incidents.c.cluster == cluster, incidents.c.updated > now - _NEWS
    return query.select_from(incidents.join(jobs, sa.true())).where(*lately).group_by(jobs.c.value).subquery()


def _of_newest(lives: Sequence[LifeSeen]) -> list[LifeSeen]:
    """Those of one job, by restart count, without lives of an earlier job of that number: these had more
    restarts, and are older."""
    newest = max(lives, key=lambda life: (life.queued_at, life.restart), default=None)
    return [life for life in lives if newest is not None and life.restart <= newest.restart]


def hit_since(found: Sequence[Incident], job: str, since: datetime) -> list[Incident]:
    """Those that did not hit an earlier job of that number. `since`: when the job was queued first."""

    def is_older(incident: Incident) -> bool:
        hits = [hit for hit in incident.hit if hit.job == job]
        earlier = [hit for hit in hits if _is_before(hit, since)]
        return (incident.closed or since) < since or (bool(hits) and earlier == hits)

    return [incident for incident in found if not is_older(incident)]


def _is_before(hit: JobHit, since: datetime) -> bool:
    return any(at is not None and at < since for at in (hit.started_at, hit.ended_at))


def _first_queued(lives: Sequence[LifeSeen]) -> datetime:
    return min((life.queued_at for life in lives), default=EARLIEST)


def _hour(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _of_job(table: sa.Table, cluster: str, job: str) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.cluster == cluster, table.c.job == job)


def _stretch(row: Any) -> Stretch:
    return Stretch(row.began_at, row.ended_at, row.first, row.last)


def _stretches(cluster: str, job: str) -> sa.Select:
    row = job_stretches.c
    query = sa.select(row.restart, row.began_at, row.ended_at, row.first, row.last)
    return query.where(_of_job(job_stretches, cluster, job))


# --- sums

_RACK = sa.text("""
SELECT goodput.partition, goodput.spent, coalesce(rack.key, '') AS name, sum(goodput.gpu_s *
  coalesce(rack.value::float / nullif((held.value ->> 1)::float, 0), 1)) / 3600 AS gpu_hours, goodput.cluster
FROM goodput LEFT JOIN job_lives USING (cluster, job, restart)
LEFT JOIN LATERAL (SELECT job_lives.doc -> 'held' -> goodput.held AS value) AS held ON true
LEFT JOIN LATERAL jsonb_each_text(held.value -> 3) AS rack ON true
WHERE (CAST(:all AS boolean) OR goodput.cluster = ANY(:clusters)) AND hour >= :since AND hour < :until
GROUP BY 1, 2, 3, 5
""")


def goodput_sums(
    conn: sa.Connection, clusters: Sequence[str] | None, since: datetime, until: datetime, by: GoodputBy
) -> list[GoodputSum]:
    """GPU-hours of the hours that begin in that time. Each cluster has jobs and racks of its own: those of
    several are named CLUSTER/NAME."""
    if by is GoodputBy.rack:
        values = {"all": clusters is None, "clusters": list(clusters or ()), "since": since, "until": until}
        return _of_clusters(conn.execute(_RACK, values).all())
    row = goodput.c
    names = {
        GoodputBy.job: row.job,
        GoodputBy.user: row.user_name,
        GoodputBy.account: row.account,
        GoodputBy.partition: row.partition,
        GoodputBy.cause: row.cause,
        GoodputBy.month: sa.func.to_char(sa.func.timezone("UTC", row.hour), "YYYY-MM"),
    }
    hours = (sa.func.sum(row.gpu_s) / 3600.0).label("gpu_hours")
    query = sa.select(row.partition, row.spent, names[by].label("name"), hours)
    its = query.where(matches(row.cluster, clusters), row.hour >= since, row.hour < until)
    if by is GoodputBy.job:
        return _of_clusters(conn.execute(its.add_columns(row.cluster).group_by(sa.text("1, 2, 3, 5"))).all())
    return [_sum(found) for found in conn.execute(its.group_by(sa.text("1, 2, 3")))]


def _of_clusters(rows: Sequence[Any]) -> list[GoodputSum]:
    if len({row.cluster for row in rows}) < 2:
        return [_sum(row) for row in rows]
    return [replace(_sum(row), name=row.name and f"{row.cluster}/{row.name}") for row in rows]


def _sum(row: Any) -> GoodputSum:
    return GoodputSum(name=row.name, partition=row.partition, spent=Spent(row.spent), gpu_hours=row.gpu_hours)


def job_user(conn: sa.Connection, cluster: str, job: str) -> str:
    """The user of the job's last life that was counted; empty: none was."""
    last = (
        sa.select(goodput.c.user_name).where(_of_job(goodput, cluster, job)).order_by(goodput.c.hour.desc())
    )
    return conn.execute(last.limit(1)).scalar() or ""


def job_since(conn: sa.Connection, cluster: str, job: str, shown: SlurmJob | None) -> datetime:
    """When the job that has this number now was queued first: what is older is of an earlier one. `shown`: as
    Slurm shows it."""
    query = sa.select(job_lives.c.doc).where(_of_job(job_lives, cluster, job)).order_by(job_lives.c.restart)
    lives = _of_newest(read_docs(conn, query, LifeSeen))
    queued = [lives[0].queued_at] if lives and not lives[0].restart else []
    if shown is not None and shown.submit_at is not None and not shown.restarts:
        queued.append(shown.submit_at)
    return max(queued, default=EARLIEST)


def job_goodput(conn: sa.Connection, cluster: str, job: str, since: datetime = EARLIEST) -> list[GoodputSum]:
    """The goodput of one job, over all its lives since then; `name` is the cause."""
    row = goodput.c
    hours = (sa.func.sum(row.gpu_s) / 3600.0).label("gpu_hours")
    query = sa.select(row.partition, row.spent, row.cause.label("name"), hours)
    its = query.where(_of_job(goodput, cluster, job), row.hour >= _hour(since)).group_by(
        row.partition, row.spent, row.cause
    )
    return [_sum(found) for found in conn.execute(its)]


def goodput_buckets(conn: sa.Connection, cluster: str, buckets: Buckets) -> tuple[BucketFigure, ...]:
    """GPU-hours by class, without waits in the queue, which hold no GPU."""
    row = goodput.c
    bucket = bucket_of(row.hour, buckets).label("bucket")
    value = (sa.func.sum(row.gpu_s) / 3600.0).label("value")
    query = (
        sa.select(bucket, row.spent.label("name"), value)
        .where(row.cluster == cluster, row.hour >= _hour(buckets.first), row.hour < buckets.end)
        .where(row.spent != Spent.queued.value)
        .group_by(sa.text("1, 2"))
        .order_by(sa.text("1, 2"))
    )
    return tuple(read_structs(conn, query, BucketFigure))
