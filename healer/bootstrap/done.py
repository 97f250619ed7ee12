"""What was really done in a span, in the form of a replay's document: incidents, actions, what was held."""

from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres import rows
from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.tables import decisions, incidents, runs
from healer.model import Decision, Incident, Outcome, Ruleset
from healer.sim.ledger import Tables
from healer.sim.report import report
from healer.sim.report import since as report_since


def done(engine: sa.Engine, cluster: str, rules: Ruleset, since: datetime, until: datetime) -> dict[str, Any]:
    """From healer's own book. Pages are left out: a replay has other sinks."""
    tables = Tables()
    with translated(), engine.connect() as conn:
        touched = sa.and_(incidents.c.cluster == cluster, incidents.c.opened <= until)
        alive = sa.or_(incidents.c.closed.is_(None), incidents.c.closed >= since)
        docs = conn.execute(sa.select(incidents.c.doc).where(touched, alive)).scalars()
        tables.incidents = {one.id: one for one in (msgspec.convert(doc, Incident) for doc in docs)}
        begun = sa.and_(runs.c.cluster == cluster, runs.c.created_at <= until)
        going = sa.or_(runs.c.ended_at.is_(None), runs.c.ended_at >= since)
        found = [rows.run_of(row) for row in conn.execute(sa.select(runs).where(begun, going))]
        tables.runs = {one.id: one for one in found}
        tables.log = rows.logs_of(conn, list(tables.runs))
        held = sa.and_(
            decisions.c.cluster == cluster,
            decisions.c.at.between(since, until),
            decisions.c.outcome.in_([Outcome.held.value, Outcome.refused.value]),
        )
        judged = conn.execute(sa.select(decisions.c.doc).where(held).order_by(decisions.c.id)).scalars()
        tables.decisions = [msgspec.convert(doc, Decision) for doc in judged]
    return report_since(report(tables, rules, None, {}), since)
