"""What running made of each rule: its mode, when it last fired, what people said of its incidents."""

from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by

from healer.adapters.postgres import forecasts
from healer.adapters.postgres.tables import findings, incidents, rule_modes
from healer.model import ForecastScore, Mode, Review
from healer.ports.console_answers import RuleRecord

WEEK = timedelta(days=7)
#: How many findings are looked at, newest first.
FINDINGS_READ = 5000


def rule_records(conn: sa.Connection, cluster: str, now: datetime) -> dict[str, RuleRecord]:
    """By name; rules that never fired and whose mode nobody set are left out.

    A finding counts for its own rule, whatever the rule of the incident that it joined. What is not among the
    newest findings is known by its incident alone: when that was opened.
    """
    counted = {row.rule: row for row in conn.execute(_incidents(cluster))}
    fired = {row.rule: row for row in conn.execute(_findings(cluster, now - WEEK))}
    modes = {row.rule: row for row in conn.execute(sa.select(rule_modes))}
    foretold = forecasts.scores(conn)
    return {
        name: _record(counted.get(name), fired.get(name), modes.get(name), foretold.get(name))
        for name in {*counted, *fired, *modes, *foretold}
    }


def _incidents(cluster: str) -> sa.Select:
    review = incidents.c.doc["review"].astext
    newest = _first(incidents.c.id, incidents.c.opened.desc())

    def count(wanted: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
        return sa.func.count().filter(wanted)

    return (
        sa.select(
            incidents.c.rule,
            sa.func.max(incidents.c.opened).label("opened"),
            newest.label("newest"),
            count(incidents.c.state != "resolved").label("open"),
            count(review == Review.true_fault.value).label("true_faults"),
            count(review == Review.false_alarm.value).label("false_alarms"),
        )
        .where(incidents.c.cluster == cluster)
        .group_by(incidents.c.rule)
    )


def _findings(cluster: str, week: datetime) -> sa.Select:
    """Of the newest findings only: each has its charts with it, so reading them all would be slow."""
    newest = sa.select(findings).order_by(findings.c.id.desc()).limit(FINDINGS_READ).subquery()
    rule = newest.c.doc["rule"].astext
    return (
        sa.select(
            rule.label("rule"),
            sa.func.max(newest.c.at).label("last"),
            sa.func.count().filter(newest.c.at > week).label("fired"),
            _first(newest.c.incident, newest.c.at.desc()).label("newest"),
        )
        .join(incidents, incidents.c.id == newest.c.incident)
        .where(incidents.c.cluster == cluster)
        .group_by(rule)
    )


def _first(value: sa.ColumnElement, order: sa.ColumnElement) -> sa.ColumnElement:
    return sa.func.array_agg(aggregate_order_by(value, order), type_=ARRAY(sa.Text))[1]


def _record(
    counted: sa.Row | None, fired: sa.Row | None, mode: sa.Row | None, foretold: ForecastScore | None
) -> RuleRecord:
    last = [(fired.last, fired.newest)] if fired else []
    last += [(counted.opened, counted.newest)] if counted else []
    last_at, last_incident = max(last, default=(None, None))
    return RuleRecord(
        mode=Mode(mode.mode) if mode else None,
        mode_by=mode.by if mode else None,
        mode_at=mode.at if mode else None,
        last_at=last_at,
        last_incident=last_incident,
        open=counted.open if counted else 0,
        fired=fired.fired if fired else 0,
        true_faults=counted.true_faults if counted else 0,
        false_alarms=counted.false_alarms if counted else 0,
        forecasts=foretold,
    )
