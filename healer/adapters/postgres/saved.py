"""GPU-hours that restarts without a person saved, beside the time that people took where it was left to them.

Both sides are this site's own. Decision 59 says why, and what it leaves out.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from healer.adapters.postgres.hits import hit_list, hit_rows
from healer.adapters.postgres.tables import audit_records, incidents, requeues, runs
from healer.model import RunState
from healer.ports.api_answers import Saved

#: With fewer incidents that people took up, their median is one person's one night.
LEAST_TAKEN_UP = 5

_HEALER = "healer"
_BEGAN = (RunState.running, RunState.waiting, RunState.stuck, RunState.done, RunState.undone)
#: How a person takes up an incident; a review or a note may come on Monday.
_TAKES_UP = ("incident.acknowledged", "incident.resolve_asked", "run.approved", "run.started")
_BY_HEALER_ALONE = sa.and_(runs.c.doc["by"].astext == _HEALER, runs.c.doc["approved_by"].astext.is_(None))


def saved(conn: sa.Connection, where: Sequence[sa.ColumnElement[bool]]) -> Saved:
    """Of the incidents of `where`."""
    alone = _alone(where).subquery("alone")
    people, median = conn.execute(_people(where)).one()
    jobs = conn.execute(sa.select(sa.func.count()).select_from(alone)).scalar_one()
    if people < LEAST_TAKEN_UP:
        return Saved(jobs=jobs, people=people)
    people_s = float(median)
    earlier_s = sa.func.greatest(0.0, people_s - alone.c.took_s)
    hours = conn.execute(sa.select(sa.func.sum(alone.c.gpus * earlier_s) / 3600.0)).scalar_one()
    return Saved(jobs=jobs, people=people, people_s=people_s, gpu_hours=round(float(hours or 0.0), 2))


def _alone(where: Sequence[sa.ColumnElement[bool]]) -> sa.Select[Any, Any]:
    """Jobs restarted (read back) by a run that no person began or approved: their GPUs, seconds it took."""
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
            sa.cast(sa.extract("epoch", done.c.at - incidents.c.opened), sa.Float).label("took_s"),
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
    """Incidents that hit a job and were left to people: how long until somebody took them up."""
    said = audit_records.c.at
    by_person = sa.and_(audit_records.c.actor != _HEALER, audit_records.c.verb.in_(_TAKES_UP))
    healers = sa.exists().where(
        runs.c.incident == incidents.c.id,
        ~runs.c.shadow,
        runs.c.state.in_([str(state) for state in _BEGAN]),
        _BY_HEALER_ALONE,
    )
    its_runs = sa.select("run/" + runs.c.id).where(runs.c.incident == incidents.c.id)
    first = sa.func.least(
        _first(said, by_person, audit_records.c.subject == "incident/" + incidents.c.id),
        _first(said, by_person, audit_records.c.subject.in_(its_runs)),
    )
    each = (
        sa.select(sa.cast(sa.extract("epoch", first - incidents.c.opened), sa.Float).label("s"))
        .where(*where, sa.func.jsonb_array_length(hit_list) > 0)
        .where(~healers)
        .subquery()
    )
    return sa.select(
        sa.func.count(each.c.s).label("count"),
        sa.func.percentile_cont(0.5).within_group(each.c.s).label("median_s"),
    )


def _first(at: sa.ColumnElement[Any], *those: sa.ColumnElement[bool]) -> sa.ScalarSelect[Any]:
    return sa.select(sa.func.min(at)).where(*those).correlate(incidents).scalar_subquery()
