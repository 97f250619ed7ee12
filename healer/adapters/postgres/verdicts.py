"""What healer held to be true of an incident, a row for each change."""

from datetime import datetime

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.tables import verdicts
from healer.model import IncidentVerdict, VerdictAt

#: The newest of them that an answer tells.
SHOWN = 50


def add(conn: sa.Connection, incident: str, verdict: IncidentVerdict, at: datetime) -> None:
    conn.execute(sa.insert(verdicts).values(incident=incident, at=at, doc=msgspec.to_builtins(verdict)))


def of(conn: sa.Connection, incident: str) -> list[VerdictAt]:
    """Oldest first, the newest 50."""
    rows = conn.execute(
        sa.select(verdicts.c.at, verdicts.c.doc)
        .where(verdicts.c.incident == incident)
        .order_by(verdicts.c.id.desc())
        .limit(SHOWN)
    ).all()
    return [VerdictAt(at=row.at, verdict=msgspec.convert(row.doc, IncidentVerdict)) for row in reversed(rows)]
