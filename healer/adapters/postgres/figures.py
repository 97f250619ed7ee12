"""Counts and times of incidents for /stats and the page of reports."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from healer.adapters.postgres.engine import PostgresStore, matches, reads
from healer.adapters.postgres.goodput_rows import goodput_sums
from healer.adapters.postgres.incident_counts import (
    DRAINED_AT,
    GIVEN_BACK,
    HIT_LIST,
    SEEN_AT,
    hit_rows,
    lives_lost,
    relapsed_later,
    returned_in,
    seconds,
)
from healer.adapters.postgres.metric_figures import gauges
from healer.adapters.postgres.report_charts import chart_figures
from healer.adapters.postgres.tables import audit_records, decisions, incidents, requeues, runs, slots
from healer.model import Review, RunState
from healer.ports.answers import Group, Period, RuleFigures, Saved, Spread, Stats

_OPENED = incidents.c.opened
_SHARES = (0.5, 0.9, 1.0)

#: With fewer incidents that people took up, the median response time is not shown.
LEAST_TAKEN_UP = 5

_HEALER = "healer"
_BEGAN = (RunState.running, RunState.waiting, RunState.stuck, RunState.done, RunState.undone)
#: Audit verbs by which a person takes up an incident; a review or a note may follow days later.
_TAKES_UP = ("incident.acknowledged", "incident.resolve_asked", "run.approved", "run.started")
_BY_HEALER_ALONE = sa.and_(runs.c.doc["by"].astext == _HEALER, runs.c.doc["approved_by"].astext.is_(None))


def stats(conn: sa.Connection, clusters: Sequence[str] | None, since: datetime | None) -> Stats:
    """Statistics of the incidents opened since `since` (all for None)."""
    where = [matches(incidents.c.cluster, clusters)]
    slot_where = [GIVEN_BACK, matches(slots.c.cluster, clusters)]
    if since is not None:
        where.append(since <= _OPENED)
        slot_where.append(slots.c.granted_at >= since)
    return _stats(conn, _sums(conn, where), (since, where, slot_where))


_Where = list[sa.ColumnElement[bool]]


def _stats(
    conn: sa.Connection, sums: dict[str, list[Any]], asked: tuple[datetime | None, _Where, _Where]
) -> Stats:
    since, where, slot_where = asked
    lost = conn.execute(_lost(where)).one()
    back = conn.execute(sa.select(*_spread_columns("back", _RETURN)).where(*slot_where)).mappings().one()
    total = sums["all"][0] if sums["all"] else _NOTHING
    return Stats(
        since=since,
        incidents=total["incidents"],
        open=total["open"],
        by_rule=_by_name(sums["rule"]),
        by_cause=_by_name(sums["cause"]),
        by_severity=_by_name(sums["severity"]),
        detect=_spread(total, "detect"),
        decide=_spread(total, "decide"),
        drain=_spread(total, "drain"),
        to_return=_spread(back, "back"),
        false_drains=total["false_drains"],
        gpu_hours_lost=None if lost.hours is None else round(lost.hours, 2),
        gpu_hours_at_most=None if lost.hours is None else round(lost.at_most or 0.0, 2),
        jobs_unknown=lost.unknown,
        saved=_saved(conn, where),
    )


def _by_name(rows: Sequence[Any]) -> dict[str, int]:
    return {str(row["name"]): row["incidents"] for row in sorted(rows, key=lambda row: str(row["name"]))}


def _lost(where: Sequence[sa.ColumnElement[bool]]) -> Any:
    """Sums of lost GPU hours, of upper bounds (`at_most`), and of jobs with unknown loss."""
    lives = lives_lost(where)
    return sa.select(
        sa.func.sum(lives.c.hours).label("hours"),
        sa.func.sum(lives.c.at_most).label("at_most"),
        sa.func.count().filter(lives.c.unknown).label("unknown"),
    )


# --- counts and times, in one pass: of all incidents, and by rule, class, cause and severity

_GROUPED = ("rule", "fault_class", "cause", "severity")
_RETURN = seconds(slots.c.released_at - slots.c.granted_at)
_NOTHING: Any = dict.fromkeys(("incidents", "open", "false_drains", "detect_count"), 0) | dict.fromkeys(
    ("decide_count", "drain_count"), 0
)


def _sums(conn: sa.Connection, where: _Where) -> dict[str, list[Any]]:
    """Rows by what they are grouped by; `all` has one row, or none without incidents."""
    each = _timed(where)

    def count(wanted: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
        return sa.func.count().filter(wanted)

    keys = [each.c[name] for name in _GROUPED]
    query = sa.select(
        sa.func.grouping(*keys).label("grouped"),
        sa.func.coalesce(*keys).label("name"),
        sa.func.count().label("incidents"),
        count(each.c.open).label("open"),
        count(each.c.drain.is_not(None)).label("drained"),
        count(each.c.review == Review.true_fault.value).label("true_faults"),
        count(each.c.review == Review.false_alarm.value).label("false_alarms"),
        count(sa.and_(each.c.review == Review.false_alarm.value, each.c.drain.is_not(None))).label(
            "false_drains"
        ),
        *(part for name in _SPANS for part in _spread_columns(name, each.c[name])),
    ).group_by(sa.func.grouping_sets(sa.tuple_(), *(sa.tuple_(key) for key in keys)))
    # A bit is 0 where its key is grouped by; the first key has the highest.
    whole = 2 ** len(keys) - 1
    names = {whole: "all"} | {whole - 2 ** (len(keys) - 1 - at): name for at, name in enumerate(_GROUPED)}
    found: dict[str, list[Any]] = {name: [] for name in names.values()}
    for row in conn.execute(query).mappings():
        found[names[row["grouped"]]].append(row)
    return found


_SPANS = ("detect", "decide", "drain")


def _timed(where: _Where) -> sa.Subquery:
    """Each incident with its keys and the seconds until it was detected, decided and drained."""
    first = (
        sa.select(decisions.c.incident, sa.func.min(decisions.c.at).label("at"))
        .where(decisions.c.incident.in_(sa.select(incidents.c.id).where(*where)))
        .group_by(decisions.c.incident)
        .subquery("first")
    )
    return (
        sa.select(
            *(incidents.c[name] for name in _GROUPED),
            incidents.c.review,
            (incidents.c.state != "resolved").label("open"),
            seconds(_OPENED - SEEN_AT).label("detect"),
            seconds(first.c.at - _OPENED).label("decide"),
            seconds(DRAINED_AT - _OPENED).label("drain"),
        )
        .select_from(incidents.outerjoin(first, first.c.incident == incidents.c.id))
        .where(*where)
        .subquery("each")
    )


def _spread_columns(name: str, measured: sa.ColumnElement[Any]) -> list[sa.ColumnElement[Any]]:
    """One sort gives all its percentiles."""
    shares = sa.cast(sa.literal(list(_SHARES), sa.ARRAY(sa.Float)), sa.ARRAY(sa.Float))
    return [
        sa.func.count(measured).label(f"{name}_count"),
        sa.func.percentile_cont(shares).within_group(measured).label(f"{name}_shares"),
    ]


def _spread(row: Any, name: str) -> Spread:
    if not row[f"{name}_count"]:
        return Spread(count=0)
    p50, p90, most = (float(share) for share in row[f"{name}_shares"])
    return Spread(count=row[f"{name}_count"], p50_s=p50, p90_s=p90, max_s=most)


# --- a period by class, cause and rule


def _period(conn: sa.Connection, cluster: str, since: datetime, until: datetime) -> Period:
    """Figures of the incidents opened in that time."""
    where = [incidents.c.cluster == cluster, since <= _OPENED, until > _OPENED]
    granted = slots.c.granted_at
    held = [GIVEN_BACK, slots.c.cluster == cluster, granted >= since, granted < until]
    returned, relapsed = conn.execute(_relapses(cluster, since, until)).one()
    sums = _sums(conn, where)
    return Period(
        since=since,
        until=until,
        stats=_stats(conn, sums, (since, where, held)),
        by_class=_groups(conn, "fault_class", sums, where),
        by_cause=_groups(conn, "cause", sums, where),
        by_rule=tuple(_rule(row) for row in _most_first(sums["rule"])),
        returned=returned,
        relapsed=relapsed,
    )


def _most_first(rows: Sequence[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: (-row["incidents"], row["name"] or ""))


def _groups(conn: sa.Connection, by: str, sums: dict[str, list[Any]], where: _Where) -> tuple[Group, ...]:
    """Incidents grouped by this column, the most frequent group first."""
    key = incidents.c[by]
    away = conn.execute(
        sa.select(key.label("name"), *_spread_columns("back", _RETURN))
        .select_from(incidents.join(slots, slots.c.incident == incidents.c.id))
        .where(*where, GIVEN_BACK)
        .group_by(key)
    )
    returns = {row["name"]: _spread(row, "back") for row in away.mappings()}
    return tuple(
        Group(
            name=row["name"] or "unknown",
            incidents=row["incidents"],
            **{name: _spread(row, name) for name in _SPANS},
            to_return=returns.get(row["name"], Spread(count=0)),
        )
        for row in _most_first(sums[by])
    )


def _rule(row: Any) -> RuleFigures:
    counted = ("incidents", "drained", "true_faults", "false_alarms", "false_drains")
    return RuleFigures(rule=row["name"], **{name: row[name] for name in counted})


def _relapses(cluster: str, since: datetime, until: datetime) -> sa.Select[int, int]:
    """Counts of incidents whose node returned in the period, and of those whose node relapsed."""
    counts = sa.func.count(), sa.func.count().filter(relapsed_later())
    return sa.select(*counts).where(*returned_in(cluster, since, until))


# --- GPU hours saved by automatic restarts, compared to the response time of its people (decision 0016)


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
    done, hit = audit_records.alias("done"), hit_rows()
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
            seconds(done.c.at - incidents.c.opened).label("took_s"),
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
    its_runs = its_runs.correlate(incidents)  # two levels down: else the runs of all incidents
    first = sa.func.least(
        _first_record(by_person, audit_records.c.subject == "incident/" + incidents.c.id),
        _first_record(by_person, audit_records.c.subject.in_(its_runs)),
    )
    each = (
        sa.select(seconds(first - incidents.c.opened).label("s"))
        .where(*where, sa.func.jsonb_array_length(HIT_LIST) > 0)
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


class PostgresFigures(PostgresStore):
    """`healer.ports.queries.FigureQueries`."""

    stats = reads(stats)
    period = reads(_period)
    charts = reads(chart_figures)
    goodput = reads(goodput_sums)
    gauges = reads(gauges)
