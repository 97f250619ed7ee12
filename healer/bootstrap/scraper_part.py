"""The scraper of one cluster on PostgreSQL."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import sqlalchemy as sa
import structlog

from healer import bootstrap
from healer.adapters.postgres.arrivals import PostgresLosses, PostgresScrapes, PostgresUnknownSeries
from healer.adapters.postgres.inbox import PostgresInbox, PostgresSignals
from healer.adapters.postgres.loops import wait_to_lead
from healer.adapters.postgres.migrate import require_tables
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.samples import PostgresColumns, PostgresSamples
from healer.adapters.pull.fetch import HttpFetch
from healer.adapters.system_clock import SystemClock
from healer.api.quotas import Losses, Tally
from healer.bootstrap.prometheus import history_of, prometheus_client
from healer.model import SlurmSnapshot
from healer.processes.prometheus_follow import PrometheusFollow
from healer.processes.scraper import Parts, Scraper
from healer.settings import Settings

log = structlog.get_logger()


def run_scraper(settings: Settings) -> None:
    """Waits to lead, then fetches until stopped. A leader whose database connection breaks ends, to be
    restarted."""
    stopped = bootstrap.until_stopped()
    db = bootstrap.engine(settings, name="healer scraper", pool_size=3)
    cluster = bootstrap.cluster_name(settings)
    connection = wait_to_lead(db, cluster, stopped.wait, "scraper")
    if connection is None:
        return
    require_tables(db)  # also where it waited since before an upgrade
    log.info("scraper became leader", cluster=cluster)

    def leads() -> None:
        connection.execute(sa.text("SELECT 1"))
        connection.commit()

    _run_loop(lambda: _serve(settings, db, cluster, stopped.is_set, leads))


async def _serve(
    settings: Settings, db: sa.Engine, cluster: str, stopped: Callable[[], bool], leads: Callable[[], None]
) -> None:
    clock, snapshots = SystemClock(), PostgresSnapshots(db)
    client, columns = prometheus_client(settings), PostgresColumns(db)
    fetch = HttpFetch()

    def shown() -> dict[str, SlurmSnapshot]:
        found = snapshots.latest(cluster)
        return {cluster: found} if found is not None else {}

    parts = Parts(
        cluster=cluster,
        rules=bootstrap.rulebook(settings),
        fetch=fetch,
        ask=client.query if client else None,
        follow=PrometheusFollow(history_of(settings, columns, cluster)) if client else None,
        snapshots=shown,
        listed_gpus=PostgresInbox(db, cluster).listed_gpus,
        samples=PostgresSamples(db, cluster),
        columns=columns,
        signals=PostgresSignals(db),
        book=PostgresScrapes(db),
        tally=Tally(PostgresUnknownSeries(db)),
        losses=Losses(PostgresLosses(db), clock.now),
        clock=clock,
    )
    try:
        await Scraper(parts).run(stopped, leads)
    finally:
        await fetch.close()


def _run_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    if sys.platform == "win32":
        asyncio.run(main())
        return
    import uvloop

    uvloop.run(main())
