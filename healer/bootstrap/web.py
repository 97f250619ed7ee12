"""The API and the console on PostgreSQL, as one application."""

from fastapi import FastAPI

from healer import bootstrap
from healer.adapters.clock import SystemClock
from healer.adapters.postgres.audit_read import PostgresAuditTrail
from healer.adapters.postgres.commands import PostgresCommands
from healer.adapters.postgres.events import PostgresEvents
from healer.adapters.postgres.figures import readiness
from healer.adapters.postgres.idempotency import PostgresIdempotency
from healer.adapters.postgres.inbox import PostgresSignals
from healer.adapters.postgres.reads import PostgresReads
from healer.adapters.postgres.run_commands import PostgresRunCommands
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tokens import PostgresTokens
from healer.api.app import create_app
from healer.api.services import Services
from healer.settings import Settings


def services(settings: Settings) -> Services:
    db = bootstrap.engine(settings, name="healer api", pool_size=12)
    cluster = bootstrap.cluster_name(settings)
    clock = SystemClock()
    rules = bootstrap.rulebook(settings)
    snapshots = PostgresSnapshots(db)
    return Services(
        cluster=cluster,
        clock=clock,
        rules=rules,
        signals=PostgresSignals(db),
        reads=PostgresReads(db, snapshots=snapshots, clock=clock, rules=rules),
        tokens=PostgresTokens(db, cluster),
        commands=PostgresCommands(db, cluster),
        runs=PostgresRunCommands(
            db,
            snapshots=snapshots,
            scheduler=bootstrap.scheduler(settings),
            rules=rules,
            clock=clock,
            poke=bootstrap.poke(settings, cluster),
        ),
        idempotency=PostgresIdempotency(db),
        audit=PostgresAuditTrail(db, settings.data_dir),
        events=PostgresEvents(db),
        ready=lambda: readiness(db, cluster, clock.now(), stale_s=rules().guards.stale_s),
    )


def web_app(settings: Settings) -> FastAPI:
    return create_app(services(settings))
