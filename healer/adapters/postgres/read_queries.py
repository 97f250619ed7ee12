"""All that the API and the console read, on PostgreSQL."""

from collections.abc import Callable

import sqlalchemy as sa

from healer.adapters.postgres.audit_queries import PostgresAudit
from healer.adapters.postgres.columns import PostgresColumns
from healer.adapters.postgres.figures import PostgresFigures
from healer.adapters.postgres.incident_queries import PostgresIncidents
from healer.adapters.postgres.job_queries import PostgresJobs
from healer.adapters.postgres.node_queries import PostgresClusters, PostgresNodes
from healer.adapters.postgres.rule_queries import PostgresRules
from healer.adapters.postgres.run_queries import PostgresRuns
from healer.adapters.postgres.sample_reads import PostgresSignalReads
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.model import Ruleset
from healer.ports.queries import Queries


def postgres_queries(
    engine: sa.Engine, *, snapshots: PostgresSnapshots, columns: PostgresColumns, rules: Callable[[], Ruleset]
) -> Queries:
    return Queries(
        clusters=PostgresClusters(engine, snapshots),
        incidents=PostgresIncidents(engine, snapshots),
        runs=PostgresRuns(engine, rules),
        nodes=PostgresNodes(engine, snapshots),
        jobs=PostgresJobs(engine, snapshots),
        rules=PostgresRules(engine),
        audit=PostgresAudit(engine),
        figures=PostgresFigures(engine),
        signals=PostgresSignalReads(engine, columns),
    )
