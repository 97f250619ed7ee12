"""The audit trail for `healer audit` and the API."""

import sqlalchemy as sa

from healer.adapters.postgres.audit_read import PostgresAuditTrail
from healer.adapters.postgres.engine import make_engine
from healer.settings import Settings


def audit_trail(settings: Settings, db: sa.Engine | str) -> PostgresAuditTrail:
    """`db`: an engine, or the address of the database."""
    engine = make_engine(db, name="healer audit", pool_size=2) if isinstance(db, str) else db
    return PostgresAuditTrail(engine, settings.data_dir)
