"""What running made of each rule: its mode, when it last fired, what people said of its incidents."""

from datetime import datetime, timedelta

import sqlalchemy as sa

from healer.adapters.postgres.tables import findings, incidents, rule_modes
from healer.console.reads import RuleRecord
from healer.model import Mode, Review

WEEK = timedelta(days=7)


def rule_records(conn: sa.Connection, cluster: str, now: datetime) -> dict[str, RuleRecord]:
    """By name; rules that never fired and whose mode nobody set are left out.

    A finding counts for the rule of the incident that it joined. Findings are read of incidents that changed
    in the last 7 days alone; older ones tell when they were opened.
    """
    counted = {row.rule: row for row in conn.execute(_incidents(cluster))}
    fired = {row.rule: row for row in conn.execute(_findings(cluster, now - WEEK))}
    modes = {row.rule: row for row in conn.execute(sa.select(rule_modes))}
    return {name: _record(counted.get(name), fired.get(name), modes.get(name)) for name in {*counted, *modes}}


def _incidents(cluster: str) -> sa.Select:
    review = incidents.c.doc["review"].astext
    newest = sa.func.array_agg(sa.text("id ORDER BY opened DESC"))

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
    return (
        sa.select(
            incidents.c.rule,
            sa.func.max(findings.c.at).label("last"),
            sa.func.count().filter(findings.c.at > week).label("fired"),
        )
        .join(findings, findings.c.incident == incidents.c.id)
        .where(incidents.c.cluster == cluster, incidents.c.updated > week)
        .group_by(incidents.c.rule)
    )


def _record(counted: sa.Row | None, fired: sa.Row | None, mode: sa.Row | None) -> RuleRecord:
    last = [counted.opened] if counted else []
    last += [fired.last] if fired else []
    return RuleRecord(
        mode=Mode(mode.mode) if mode else None,
        mode_by=mode.by if mode else None,
        mode_at=mode.at if mode else None,
        last_at=max(last, default=None),
        last_incident=counted.newest[0] if counted else None,
        open=counted.open if counted else 0,
        fired=fired.fired if fired else 0,
        true_faults=counted.true_faults if counted else 0,
        false_alarms=counted.false_alarms if counted else 0,
    )
