"""Counts and times for /stats, /metrics and /readyz, straight from the rows."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.hits import hit_rows
from healer.adapters.postgres.saved import saved
from healer.adapters.postgres.snapshots import read_controller
from healer.adapters.postgres.tables import (
    decisions,
    deliveries,
    gate,
    inbox,
    incidents,
    messages,
    pauses,
    runs,
    slots,
    snapshots,
)
from healer.model import HitBasis
from healer.observations.controller import troubles
from healer.ports.api_answers import Readiness, Spread, Stats
from healer.ports.request_errors import Unavailable

#: Of an incident: when what began it happened, when its drain was read back, when it was first decided on.
SEEN_AT = sa.cast(incidents.c.doc["evidence"][0]["at"].astext, sa.DateTime(timezone=True))
DRAINED_AT = sa.cast(incidents.c.doc["drained_at"].astext, sa.DateTime(timezone=True))
FIRST_DECISION = (
    sa.select(sa.func.min(decisions.c.at)).where(decisions.c.incident == incidents.c.id).scalar_subquery()
)

_ENDED = ("done", "undone", "rejected", "cancelled")


def stats(conn: sa.Connection, clusters: Sequence[str] | None, since: datetime | None) -> Stats:
    """Of the incidents opened since `since` (all when None)."""
    where: list[sa.ColumnElement[bool]] = []
    slot_where: list[sa.ColumnElement[bool]] = [slots.c.released_at.is_not(None)]
    if clusters is not None:
        where.append(incidents.c.cluster.in_(clusters))
        slot_where.append(slots.c.cluster.in_(clusters))
    if since is not None:
        where.append(incidents.c.opened >= since)
        slot_where.append(slots.c.granted_at >= since)
    doc = incidents.c.doc
    false = sa.and_(doc["review"].astext == "false_alarm", DRAINED_AT.is_not(None))
    total = conn.execute(
        sa.select(
            sa.func.count(),
            sa.func.count().filter(incidents.c.state != "resolved"),
            sa.func.count().filter(false),
        ).where(*where)
    ).one()
    lost = conn.execute(_lost(where)).one()
    return Stats(
        since=since,
        incidents=total[0],
        open=total[1],
        by_rule=_count(conn, incidents.c.rule, where),
        by_cause=_count(conn, doc["cause"].astext, where),
        by_severity=_count(conn, incidents.c.severity, where),
        detect=_spread(conn, incidents.c.opened - SEEN_AT, where),
        decide=_spread(conn, FIRST_DECISION - incidents.c.opened, where),
        drain=_spread(conn, DRAINED_AT - incidents.c.opened, where),
        to_return=_spread(conn, slots.c.released_at - slots.c.granted_at, slot_where),
        false_drains=total[2],
        gpu_hours_lost=None if lost.hours is None else round(lost.hours, 2),
        gpu_hours_at_most=None if lost.hours is None else round(lost.at_most or 0.0, 2),
        jobs_unknown=lost.unknown,
        saved=saved(conn, where),
    )


def _lost(where: Sequence[sa.ColumnElement[bool]]) -> Any:
    """Each life of a job once, with the most that an incident tells: hours, those at most, jobs unknown."""
    hit = hit_rows()
    rows = sa.select(incidents.c.cluster, hit.c.value).select_from(incidents.join(hit, sa.true()))
    one = rows.where(*where).subquery()
    field = one.c.value
    hours = sa.cast(field["lost_gpu_hours"].astext, sa.Float)
    lives = (
        sa.select(
            sa.func.max(hours).label("hours"),
            sa.func.max(hours).filter(field["basis"].astext == str(HitBasis.start)).label("at_most"),
            sa.func.bool_and(field["basis"].astext == str(HitBasis.unknown)).label("unknown"),
        )
        .group_by(one.c.cluster, field["job"].astext, field["restart"].astext)
        .subquery()
    )
    return sa.select(
        sa.func.sum(lives.c.hours).label("hours"),
        sa.func.sum(lives.c.at_most).label("at_most"),
        sa.func.count().filter(lives.c.unknown).label("unknown"),
    )


def _count(conn: sa.Connection, what: Any, where: Sequence[sa.ColumnElement[bool]]) -> dict[str, int]:
    found = conn.execute(
        sa.select(what, sa.func.count()).select_from(incidents).where(*where).group_by(what).order_by(what)
    )
    return {str(name): count for name, count in found}


def _spread(conn: sa.Connection, span: Any, where: Sequence[sa.ColumnElement[bool]]) -> Spread:
    seconds = sa.cast(sa.extract("epoch", span), sa.Float)
    row = conn.execute(
        sa.select(
            sa.func.count(seconds),
            sa.func.percentile_cont(0.5).within_group(seconds),
            sa.func.percentile_cont(0.9).within_group(seconds),
            sa.func.max(seconds),
        ).where(*where)
    ).one()
    p50, p90, most = (None if value is None else float(value) for value in row[1:])
    return Spread(count=row[0], p50_s=p50, p90_s=p90, max_s=most)


def _dead_letters(conn: sa.Connection) -> dict[tuple[str, ...], float]:
    """By cluster: what the webhooks did not take, and what channels did not."""
    failed = [sa.select(table.c.cluster).where(table.c.state == "failed") for table in (messages, deliveries)]
    letters = sa.union_all(*failed).subquery()
    rows = conn.execute(sa.select(letters.c.cluster, sa.func.count()).group_by(letters.c.cluster))
    return {(row[0],): row[1] for row in rows}


def gauges(conn: sa.Connection, now: datetime) -> dict[str, Any]:
    """What `healer.api.metrics` shows: gauge -> {label values: number}."""

    def counted(columns: Sequence[Any], *where: sa.ColumnElement[bool]) -> dict[tuple[str, ...], float]:
        found = conn.execute(sa.select(*columns, sa.func.count()).where(*where).group_by(*columns))
        return {tuple(str(part or "") for part in row[:-1]): row[-1] for row in found}

    waiting = conn.execute(
        sa.select(inbox.c.cluster, sa.func.count(), sa.func.min(inbox.c.arrived_at))
        .where(inbox.c.consumed_at.is_(None))
        .group_by(inbox.c.cluster)
    ).all()
    taken = conn.execute(sa.select(snapshots.c.cluster, snapshots.c.taken_at)).all()
    breakers = conn.execute(sa.select(gate.c.cluster, gate.c.breaker["state"].astext)).all()
    return {
        "incidents_open": counted(
            (incidents.c.cluster, incidents.c.severity), incidents.c.state != "resolved"
        ),
        "runs": counted((runs.c.cluster, runs.c.state), runs.c.state.not_in(_ENDED)),
        "slots": counted((slots.c.cluster,), slots.c.released_at.is_(None)),
        "pauses": counted(
            (pauses.c.cluster,),
            pauses.c.ended_at.is_(None),
            sa.or_(pauses.c.until.is_(None), pauses.c.until > now),
        ),
        "messages_failed": _dead_letters(conn),
        "inbox": {(row[0],): row[1] for row in waiting},
        "inbox_age": {(row[0],): max(0.0, (now - row[2]).total_seconds()) for row in waiting},
        "snapshot_age": {(row[0],): max(0.0, (now - row[1]).total_seconds()) for row in taken},
        "breaker": {(row[0],): float(row[1] != "closed") for row in breakers},
    }


def part_lock(part: str, cluster: str) -> str:
    """The name under which the one detector, or scraper, of a cluster holds its advisory lock
    (hashtextextended of it)."""
    return f"{part}:{cluster}"


_LOCK_HELD = sa.text(
    "SELECT EXISTS (SELECT 1 FROM pg_locks, (SELECT hashtextextended(:name, 0) AS key) AS wanted "
    "WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND classid::bigint = ((key >> 32) & 4294967295) AND objid::bigint = (key & 4294967295))"
)


def lock_held(conn: sa.Connection, name: str) -> bool:
    return bool(conn.execute(_LOCK_HELD, {"name": name}).scalar())


def readiness(engine: sa.Engine, clusters: Sequence[str], now: datetime, *, stale_s: float) -> Readiness:
    """Whether the whole can work: database, a fresh picture of Slurm, a living detector.

    Of several clusters the checks bear the name (`slurm pod1`), and one that is well is enough: what is away
    disturbs no other.
    """
    checks: dict[str, dict[str, Any]] = {}
    well = 0
    try:
        with translated(), engine.connect() as conn:
            checks["database"] = {"ok": True, "text": "answers"}
            for cluster in clusters:
                found = _of_cluster(conn, cluster, now, stale_s)
                well += all(check["ok"] for check in found.values())
                if len(clusters) > 1:
                    found = {f"{name} {cluster}": check for name, check in found.items()}
                checks |= found
    except Unavailable as error:
        return Readiness(ready=False, checks={"database": {"ok": False, "text": str(error)}})
    return Readiness(ready=well > 0, checks=checks)


def _of_cluster(
    conn: sa.Connection, cluster: str, now: datetime, stale_s: float
) -> dict[str, dict[str, Any]]:
    """Slurm and the detector of one cluster."""
    picture = conn.execute(sa.select(snapshots).where(snapshots.c.cluster == cluster)).first()
    told = troubles(read_controller(conn, cluster))
    held = lock_held(conn, part_lock("detector", cluster))
    if picture is None:
        slurm: dict[str, Any] = {"ok": False, "text": f"no picture of the cluster {cluster} yet"}
    else:
        age = (now - picture.taken_at) / timedelta(seconds=1)
        text = picture.error or f"the picture is {age:.1f} s old"
        slurm = {"ok": age <= stale_s, "text": text, "age_s": age, "limit_s": stale_s}
    if told:
        # A state and no failure: while the picture is fresh, healer can do its work.
        slurm["troubles"] = [{"what": one.trouble, "since": one.since, "text": one.text} for one in told]
    detector = {"ok": held, "text": "runs" if held else "no detector holds the lock"}
    return {"slurm": slurm, "detector": detector}
