"""Counts and times of incidents for /stats and the page of reports."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from healer.adapters.postgres.engine import PostgresStore, matches, read_structs, reading
from healer.adapters.postgres.own_health import gauges
from healer.adapters.postgres.tables import audit_records, decisions, incidents, requeues, runs, slots
from healer.model import HARDWARE, HitBasis, Review, RunState
from healer.ports.answers import Group, Period, RuleFigures, Saved, Spread, Stats

_DOC = incidents.c.doc
#: Of an incident: the time of its first evidence, of its confirmed drain, and of its first decision.
_TIME = sa.DateTime(timezone=True)
_SEEN_AT = sa.cast(_DOC["evidence"][0]["at"].astext, _TIME)
_DRAINED_AT = sa.cast(_DOC["drained_at"].astext, _TIME)
_FIRST_DECISION = (
    sa.select(sa.func.min(decisions.c.at)).where(decisions.c.incident == incidents.c.id).scalar_subquery()
)
#: The jobs that an incident hit (`healer.model.incident.JobHit`); may be empty.
_HIT_LIST = sa.func.coalesce(_DOC["hit"], sa.text("'[]'::jsonb"))
_SHARES = (0.5, 0.9, 1.0)

#: With fewer incidents that people took up, the median response time is not shown.
LEAST_TAKEN_UP = 5

_HEALER = "healer"
_BEGAN = (RunState.running, RunState.waiting, RunState.stuck, RunState.done, RunState.undone)
#: Audit verbs by which a person takes up an incident; a review or a note may follow days later.
_TAKES_UP = ("incident.acknowledged", "incident.resolve_asked", "run.approved", "run.started")
_BY_HEALER_ALONE = sa.and_(runs.c.doc["by"].astext == _HEALER, runs.c.doc["approved_by"].astext.is_(None))


class PostgresFigures(PostgresStore):
    """`healer.ports.queries.FigureQueries`."""

    def stats(self, clusters: Sequence[str] | None, since: datetime | None) -> Stats:
        with reading(self._engine) as conn:
            return stats(conn, clusters, since)

    def period(self, cluster: str, since: datetime) -> Period:
        with reading(self._engine) as conn:
            return _period(conn, cluster, since)

    def gauges(self, now: datetime) -> dict[str, Any]:
        with reading(self._engine) as conn:
            return gauges(conn, now)


def _hit_rows() -> sa.TableValuedAlias:
    """A row for each job that was hit, in the column `value`, to join to the incidents."""
    return sa.func.jsonb_array_elements(_HIT_LIST).table_valued(sa.column("value", JSONB), name="hit")


def stats(conn: sa.Connection, clusters: Sequence[str] | None, since: datetime | None) -> Stats:
    """Statistics of the incidents opened since `since` (all for None)."""
    where = [matches(incidents.c.cluster, clusters)]
    slot_where = [slots.c.released_at.is_not(None), matches(slots.c.cluster, clusters)]
    if since is not None:
        where.append(incidents.c.opened >= since)
        slot_where.append(slots.c.granted_at >= since)
    false = sa.and_(_DOC["review"].astext == "false_alarm", _DRAINED_AT.is_not(None))
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
        by_cause=_count(conn, _DOC["cause"].astext, where),
        by_severity=_count(conn, incidents.c.severity, where),
        detect=_spread(conn, incidents.c.opened - _SEEN_AT, where),
        decide=_spread(conn, _FIRST_DECISION - incidents.c.opened, where),
        drain=_spread(conn, _DRAINED_AT - incidents.c.opened, where),
        to_return=_spread(conn, slots.c.released_at - slots.c.granted_at, slot_where),
        false_drains=total[2],
        gpu_hours_lost=None if lost.hours is None else round(lost.hours, 2),
        gpu_hours_at_most=None if lost.hours is None else round(lost.at_most or 0.0, 2),
        jobs_unknown=lost.unknown,
        saved=_saved(conn, where),
    )


def _lost(where: Sequence[sa.ColumnElement[bool]]) -> Any:
    """Sums of lost GPU hours, of upper bounds (`at_most`), and of jobs with unknown loss. Each life of a job
    counts once, with its largest loss of all incidents."""
    hit = _hit_rows()
    rows = sa.select(incidents.c.cluster, hit.c.value).select_from(incidents.join(hit, sa.true()))
    hits = rows.where(*where).subquery()
    field = hits.c.value
    hours = sa.cast(field["lost_gpu_hours"].astext, sa.Float)
    lives = (
        sa.select(
            sa.func.max(hours).label("hours"),
            sa.func.max(hours).filter(field["basis"].astext == str(HitBasis.start)).label("at_most"),
            sa.func.bool_and(field["basis"].astext == str(HitBasis.unknown)).label("unknown"),
        )
        .group_by(hits.c.cluster, field["job"].astext, field["restart"].astext)
        .subquery()
    )
    return sa.select(
        sa.func.sum(lives.c.hours).label("hours"),
        sa.func.sum(lives.c.at_most).label("at_most"),
        sa.func.count().filter(lives.c.unknown).label("unknown"),
    )


def _count(conn: sa.Connection, what: Any, where: Sequence[sa.ColumnElement[bool]]) -> dict[str, int]:
    counted = sa.select(what, sa.func.count()).select_from(incidents).where(*where)
    return {str(name): count for name, count in conn.execute(counted.group_by(what).order_by(what))}


def _spread(conn: sa.Connection, span: Any, where: Sequence[sa.ColumnElement[bool]]) -> Spread:
    return _spread_of(conn.execute(sa.select(*_spreads(_seconds(span))).where(*where)).one())


# --- a period by class, cause and rule


def _period(conn: sa.Connection, cluster: str, since: datetime) -> Period:
    """Figures of the incidents opened since then."""
    where = [incidents.c.cluster == cluster, incidents.c.opened >= since]
    returned, relapsed = conn.execute(_relapses(cluster, since)).one()
    return Period(
        since=since,
        stats=stats(conn, [cluster], since),
        by_class=_groups(conn, _DOC["fault_class"].astext, where),
        by_cause=_groups(conn, _DOC["cause"].astext, where),
        by_rule=_by_rule(conn, where),
        returned=returned,
        relapsed=relapsed,
    )


def _groups(
    conn: sa.Connection, key: sa.ColumnElement[Any], where: Sequence[sa.ColumnElement[bool]]
) -> tuple[Group, ...]:
    """Incidents grouped by `key`, the most frequent group first."""
    opened = incidents.c.opened
    spans = {"detect": opened - _SEEN_AT, "decide": _FIRST_DECISION - opened, "drain": _DRAINED_AT - opened}
    each = sa.select(key.label("key"), *(_seconds(span).label(name) for name, span in spans.items()))
    timed = each.where(*where).subquery()
    asked = [part for name in spans for part in _spreads(timed.c[name])]
    counted = conn.execute(
        sa.select(timed.c.key, sa.func.count().label("count"), *asked)
        .group_by(timed.c.key)
        .order_by(sa.desc("count"), timed.c.key)
    ).all()
    back = _seconds(slots.c.released_at - slots.c.granted_at)
    out = incidents.join(slots, slots.c.incident == incidents.c.id)
    away = conn.execute(
        sa.select(key, *_spreads(back))
        .select_from(out)
        .where(*where, slots.c.released_at.is_not(None))
        .group_by(key)
    )
    returns = {row[0]: _spread_of(row[1:]) for row in away}
    width = len(_SHARES) + 1
    return tuple(
        Group(
            name=row[0] or "unknown",
            incidents=row[1],
            **{name: _spread_of(row[2 + at * width : 2 + (at + 1) * width]) for at, name in enumerate(spans)},
            to_return=returns.get(row[0], Spread(count=0)),
        )
        for row in counted
    )


def _seconds(span: sa.ColumnElement[Any]) -> sa.ColumnElement[float]:
    return sa.cast(sa.extract("epoch", span), sa.Float)


def _spreads(seconds: sa.ColumnElement[float]) -> list[sa.ColumnElement[Any]]:
    shares = (sa.func.percentile_cont(share).within_group(seconds) for share in _SHARES)
    return [sa.func.count(seconds), *shares]


def _spread_of(figures: Sequence[Any]) -> Spread:
    count, *rest = figures
    p50, p90, most = (None if figure is None else float(figure) for figure in rest)
    return Spread(count=count, p50_s=p50, p90_s=p90, max_s=most)


def _by_rule(conn: sa.Connection, where: Sequence[sa.ColumnElement[bool]]) -> tuple[RuleFigures, ...]:
    review, drained = _DOC["review"].astext, _DOC["drained_at"].astext.is_not(None)
    false = review == Review.false_alarm.value

    def count(wanted: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
        return sa.func.count().filter(wanted)

    figures = (
        sa.select(
            incidents.c.rule,
            sa.func.count().label("incidents"),
            count(drained).label("drained"),
            count(review == Review.true_fault.value).label("true_faults"),
            count(false).label("false_alarms"),
            count(sa.and_(false, drained)).label("false_drains"),
        )
        .where(*where)
        .group_by(incidents.c.rule)
        .order_by(sa.desc("incidents"), incidents.c.rule)
    )
    return tuple(read_structs(conn, figures, RuleFigures))


def _relapses(cluster: str, since: datetime) -> sa.Select[int, int]:
    """Counts of incidents whose node returned in the period, and of those whose node had a hardware fault
    again during its probation."""
    probation = sa.cast(_DOC["probation_until"].astext, _TIME)
    later = incidents.alias("later")
    again = sa.exists().where(
        later.c.cluster == incidents.c.cluster,
        later.c.node == incidents.c.node,
        later.c.opened > incidents.c.closed,
        later.c.opened < probation,
        later.c.doc["fault_class"].astext.in_(sorted(HARDWARE)),
        later.c.doc["merged_into"].astext.is_(None),
        later.c.doc["review"].astext.is_distinct_from(Review.false_alarm.value),
    )
    return sa.select(sa.func.count(), sa.func.count().filter(again)).where(
        incidents.c.cluster == cluster,
        incidents.c.closed >= since,
        _DOC["drained_at"].astext.is_not(None),
        probation.is_not(None),
    )


# --- GPU hours saved by automatic restarts, compared to the response time of this site's people (decision 59)


def _saved(conn: sa.Connection, where: Sequence[sa.ColumnElement[bool]]) -> Saved:
    alone = _restarted_alone(where).subquery("alone")
    people, median = conn.execute(_people(where)).one()
    jobs = conn.execute(sa.select(sa.func.count()).select_from(alone)).scalar_one()
    if people < LEAST_TAKEN_UP:
        return Saved(jobs=jobs, people=people)
    people_s = float(median)
    earlier_s = sa.func.greatest(0.0, people_s - alone.c.took_s)
    hours = conn.execute(sa.select(sa.func.sum(alone.c.gpus * earlier_s) / 3600.0)).scalar_one()
    return Saved(jobs=jobs, people=people, people_s=people_s, gpu_hours=round(float(hours or 0.0), 2))


def _restarted_alone(where: Sequence[sa.ColumnElement[bool]]) -> sa.Select[Any, Any]:
    """Jobs restarted by a run that no person started or approved: their GPUs and the seconds until then."""
    done, hit = audit_records.alias("done"), _hit_rows()
    life = sa.and_(
        hit.c.value["job"].astext == requeues.c.job,
        sa.func.coalesce(sa.cast(hit.c.value["restart"].astext, sa.Integer), 0) == requeues.c.restarts,
    )
    restarted = sa.and_(
        done.c.cluster == requeues.c.cluster,
        done.c.subject == "job/" + requeues.c.job,
        done.c.verb == "job.requeued",
        done.c.data["run"].astext == requeues.c.run,
    )
    return (
        sa.select(
            sa.func.coalesce(sa.cast(hit.c.value["gpus"].astext, sa.Integer), 0).label("gpus"),
            _seconds(done.c.at - incidents.c.opened).label("took_s"),
        )
        .select_from(
            requeues.join(incidents, incidents.c.id == requeues.c.incident)
            .join(runs, runs.c.id == requeues.c.run)
            .join(done, restarted)
            .join(hit, life)
        )
        .where(*where, _BY_HEALER_ALONE)
    )


def _people(where: Sequence[sa.ColumnElement[bool]]) -> sa.Select[Any, Any]:
    """Incidents that hit a job and that no automatic run handled: the number that people took up, and the
    median seconds until then."""
    by_person = sa.and_(audit_records.c.actor != _HEALER, audit_records.c.verb.in_(_TAKES_UP))
    healers = sa.exists().where(
        runs.c.incident == incidents.c.id,
        ~runs.c.shadow,
        runs.c.state.in_([str(state) for state in _BEGAN]),
        _BY_HEALER_ALONE,
    )
    its_runs = sa.select("run/" + runs.c.id).where(runs.c.incident == incidents.c.id)
    first = sa.func.least(
        _first_record(by_person, audit_records.c.subject == "incident/" + incidents.c.id),
        _first_record(by_person, audit_records.c.subject.in_(its_runs)),
    )
    each = (
        sa.select(_seconds(first - incidents.c.opened).label("s"))
        .where(*where, sa.func.jsonb_array_length(_HIT_LIST) > 0)
        .where(~healers)
        .subquery()
    )
    return sa.select(
        sa.func.count(each.c.s).label("count"),
        sa.func.percentile_cont(0.5).within_group(each.c.s).label("median_s"),
    )


def _first_record(*where: sa.ColumnElement[bool]) -> sa.ScalarSelect[Any]:
    first = sa.select(sa.func.min(audit_records.c.at)).where(*where)
    return first.correlate(incidents).scalar_subquery()
