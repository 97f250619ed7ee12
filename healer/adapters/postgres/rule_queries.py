"""What running made of each rule: its mode, when it last fired, what people said of its incidents."""

from collections.abc import Iterable
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by

from healer.adapters.postgres import forecast_rows as forecasts
from healer.adapters.postgres import rule_texts
from healer.adapters.postgres.engine import reading
from healer.adapters.postgres.tables import findings, incidents, rule_modes
from healer.model import ForecastScore, Mode, Review, Trial
from healer.ports.answers import RuleRecord

#: How many findings are looked at, newest first.
FINDINGS_READ = 5000


class PostgresRules:
    """`healer.ports.queries.RuleQueries`."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def records(
        self, cluster: str | None = None, *, fired_since: datetime | None = None
    ) -> dict[str, RuleRecord]:
        """A finding counts for its own rule, whatever the rule of the incident that it joined. What is not
        among the newest findings is known by its incident alone: when that was opened."""
        opened: dict[str, list[sa.Row]] = {}
        with reading(self._engine) as conn:
            for row in conn.execute(_incidents(cluster)):
                opened.setdefault(row.rule, []).append(row)
            found = [] if fired_since is None else conn.execute(_findings(cluster, fired_since)).all()
            fired = {row.rule: row for row in found}
            modes = {row.rule: row for row in conn.execute(sa.select(rule_modes))}
            foretold = forecasts.scores(conn)
        return {
            name: _record(opened.get(name, ()), fired.get(name), modes.get(name), foretold.get(name))
            for name in {*opened, *fired, *modes, *foretold}
        }

    def trials(self, cluster: str | None = None) -> list[Trial]:
        with reading(self._engine) as conn:
            return rule_texts.on_trial(conn, cluster)


def _incidents(cluster: str | None) -> sa.Select:
    """By rule and review."""
    review = incidents.c.doc["review"].astext
    wanted = sa.select(
        incidents.c.rule,
        review.label("review"),
        sa.func.count().label("opened"),
        sa.func.count().filter(incidents.c.state != "resolved").label("open"),
        sa.func.max(incidents.c.opened).label("last"),
        _first(incidents.c.id, incidents.c.opened.desc()).label("newest"),
    ).group_by(incidents.c.rule, review)
    return wanted if cluster is None else wanted.where(incidents.c.cluster == cluster)


def _findings(cluster: str | None, since: datetime) -> sa.Select:
    """Of the newest findings only: each has its charts with it, so reading them all would be slow."""
    newest = sa.select(findings).order_by(findings.c.id.desc()).limit(FINDINGS_READ).subquery()
    rule = newest.c.doc["rule"].astext
    wanted = (
        sa.select(
            rule.label("rule"),
            sa.func.max(newest.c.at).label("last"),
            sa.func.count().filter(newest.c.at > since).label("fired"),
            _first(newest.c.incident, newest.c.at.desc()).label("newest"),
        )
        .join(incidents, incidents.c.id == newest.c.incident)
        .group_by(rule)
    )
    return wanted if cluster is None else wanted.where(incidents.c.cluster == cluster)


def _first(value: sa.ColumnElement, order: sa.ColumnElement) -> sa.ColumnElement:
    return sa.func.array_agg(aggregate_order_by(value, order), type_=ARRAY(sa.Text))[1]


def _record(
    opened: Iterable[sa.Row], fired: sa.Row | None, mode: sa.Row | None, foretold: ForecastScore | None
) -> RuleRecord:
    rows = list(opened)
    last = [(row.last, row.newest) for row in (*rows, fired) if row is not None]
    last_at, last_incident = max(last, default=(None, None))
    return RuleRecord(
        mode=Mode(mode.mode) if mode else None,
        mode_by=mode.by if mode else None,
        mode_reason=mode.reason if mode else None,
        mode_at=mode.at if mode else None,
        incidents=sum(row.opened for row in rows),
        open=sum(row.open for row in rows),
        reviews={Review(row.review): row.opened for row in rows if row.review},
        last_at=last_at,
        last_incident=last_incident,
        fired=fired.fired if fired else 0,
        forecasts=foretold,
    )
