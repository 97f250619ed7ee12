"""The REST API as one ASGI application. `healer.bootstrap` makes the Services and runs it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio.to_thread
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route
from starlette.types import Lifespan

from healer.api import (
    account_routes,
    acting_routes,
    break_glass_routes,
    collection_routes,
    documents,
    enroll_routes,
    host_login_routes,
    login_routes,
    message_routes,
    people_routes,
    problems,
    reading_routes,
    reference_routes,
    rehearsal_routes,
    session_routes,
    system_routes,
    token_routes,
)
from healer.api.access import Access, LastUses
from healer.api.alert_routes import AlertRoutes, CloudEventRoutes
from healer.api.credential_budget import FloodReports
from healer.api.db_health import Database, Fleet, shared_readiness
from healer.api.door import Door
from healer.api.edge import PREFIX, Application
from healer.api.event_routes import LogRoutes, SignalRoutes
from healer.api.group_commit import BEGIN_AT, GroupCommit, QueueBounds, in_thread
from healer.api.hook_routes import HookRoutes
from healer.api.metrics import QUEUED, spool_figures
from healer.api.otlp_routes import OtlpRoutes
from healer.api.quotas import Losses, Meter, Senders, Tally
from healer.api.request_preamble import Preamble
from healer.api.sample_routes import MeasuringRoutes
from healer.api.services import Services
from healer.api.spooling import Spooling, events_lane, steps_lane
from healer.ports.request_errors import Unavailable
from healer.text import say

log = logging.getLogger("healer.api")
Queues = Mapping[str, GroupCommit[Any, Any]]
#: Threads of the synchronous routes; the engine's pool has room for two connections each.
THREADS = 16
#: Unknown series, losses and senders are counted in memory and written this often.
TALLY_S = 5.0


def create_app(services: Services) -> FastAPI:
    """The application without the console: bootstrap adds its pages, which share `app.state.access`."""
    database = Database()
    access = Access(services, database)
    fleet = Fleet(services, database)
    counts = _Counts(
        Tally(services.unknown),
        Losses(services.losses, services.clock.now),
        Senders(services.senders, services.clock.now, services.cluster),
        access.uses,
        FloodReports(access.budget, services),
    )
    preamble = Preamble(services, access, fleet, Meter(counts.losses, counts.senders, services.cluster))
    spooling = Spooling(services.spool, database, counts.losses) if services.spool is not None else None
    queues, routes = _signal_routes(services, preamble, fleet, counts, spooling)
    app = Application(
        routes,
        title="healer",
        version="1",
        lifespan=_lifespan(queues, spooling, counts),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    shared = {
        "services": services,
        "site": services.site,
        "access": access,
        "preamble": preamble,
        "database": database,
        "ready": shared_readiness(services.ready, database),
        "spooling": spooling,
        "fleet": fleet,
        "queues": queues,
        "losses": counts.losses,
        "door": Door(say("api.many_enroll")),
        "login_door": Door(say("api.login_busy")),
        "errors": problems.install(app, PREFIX),
    }
    for name, part in shared.items():
        setattr(app.state, name, part)
    for part in _ROUTERS:
        app.include_router(part.router, prefix=PREFIX)
    app.include_router(system_routes.router)
    documents.install(app, PREFIX)
    return app


#: In the order in which the API's document shows them.
_ROUTERS = (
    reading_routes,
    collection_routes,
    acting_routes,
    reference_routes,
    message_routes,
    enroll_routes,
    login_routes,
    host_login_routes,
    rehearsal_routes,
    token_routes,
    session_routes,
    account_routes,
    break_glass_routes,
    people_routes,
)


def _signal_routes(
    services: Services, preamble: Preamble, fleet: Fleet, counts: "_Counts", spooling: Spooling | None
) -> tuple[Queues, list[Route]]:
    """The queues by name, and the routes that fill them."""
    store, store_steps = in_thread(services.signals.store), services.samples.put_steps
    if spooling is not None and services.spool is not None:
        store = events_lane(spooling, services).put_soon
        store_steps = steps_lane(spooling, services, counts.losses).put
        spool_figures(services.spool)
    commit = GroupCommit(store, QueueBounds(begin_at=BEGIN_AT))
    measuring = MeasuringRoutes(services, preamble, commit, counts.tally, store_steps)
    signals = SignalRoutes(services, preamble, commit, measuring.hear)
    logs = LogRoutes(services, preamble, signals)
    alerts = AlertRoutes(services, preamble, fleet, commit)
    bodies_of_events = signals.endpoints() | measuring.endpoints()
    parts = (
        signals,
        logs,
        measuring,
        OtlpRoutes(preamble, logs, measuring),
        HookRoutes(services, preamble, commit, measuring),
        alerts,
        CloudEventRoutes(services, preamble, alerts, bodies_of_events),
    )
    queues = {"events": commit, "steps": measuring.steps, "metrics": measuring.metrics}
    for name, queue in queues.items():
        QUEUED.labels(name).set_function(lambda queue=queue: queue.depth)
    endpoints = {name: endpoint for part in parts for name, endpoint in part.endpoints().items()}
    routes = [Route(f"{PREFIX}/signals/{name}", made, methods=["POST"]) for name, made in endpoints.items()]
    return queues, routes


def _lifespan(queues: Queues, spooling: Spooling | None, counts: "_Counts") -> Lifespan[FastAPI]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        for queue in queues.values():
            queue.start()
        if spooling is not None:
            spooling.start()
        counting = asyncio.create_task(_write_counts(counts), name="unknown series, losses, senders")
        yield
        await asyncio.gather(*(queue.stop() for queue in queues.values()))
        if spooling is not None:
            await run_in_threadpool(spooling.stop)
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
        await _flush(counts)

    return lifespan


class _Counts(NamedTuple):
    """What is counted in memory and written from time to time."""

    tally: Tally
    losses: Losses
    senders: Senders
    uses: LastUses
    floods: FloodReports


async def _write_counts(counts: _Counts) -> None:
    while True:
        await asyncio.sleep(TALLY_S)
        await _flush(counts)


async def _flush(counts: _Counts) -> None:
    for count in counts:
        try:
            await run_in_threadpool(count.flush)
        except Unavailable:
            pass  # it is kept, and written the next time
        except Exception:
            log.exception("counter not stored")  # the others still have to be written
