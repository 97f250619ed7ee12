"""The REST API as one ASGI application. `healer.bootstrap` makes the Services and runs it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from healer.api import acting, documents, enroll, problems, reading, reconcile, series, system
from healer.api.access import Access
from healer.api.entry import Entry
from healer.api.fleet import Fleet
from healer.api.group_commit import GroupCommit
from healer.api.hooks import HookRoutes
from healer.api.intake import Tally
from healer.api.losses import Losses
from healer.api.measuring import MeasuringRoutes
from healer.api.metrics import QUEUED
from healer.api.middleware import Edge
from healer.api.services import Services, Unavailable
from healer.api.signals import SignalRoutes

PREFIX = "/api/v1"
#: Threads for the synchronous routes; the engine's pool has room for two connections each.
THREADS = 16
#: Unknown series and losses are counted in memory and written so often.
TALLY_S = 5.0


class Application(FastAPI):
    """FastAPI behind the Edge. The signal routes are served before its own layers: they halve the rate."""

    def __init__(self, routes: Sequence[Route], **rest: Any) -> None:
        super().__init__(**rest)
        self.router.routes.extend(routes)
        self._hot = {route.path: route.endpoint for route in routes}
        self._edge = Edge(self._dispatch, PREFIX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self._edge(scope, receive, send)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        hot = self._hot.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if hot is None:
            await super().__call__(scope, receive, send)
        else:
            await (await hot(Request(scope, receive)))(scope, receive, send)


def create_app(services: Services) -> FastAPI:
    """The application without the console: bootstrap adds the pages, which share `app.state.access`."""
    access = Access(services)
    fleet = Fleet(services)
    tally = Tally(services.unknown)
    losses = Losses(services.losses, services.clock.now)
    entry = Entry(services, access, fleet, losses)
    commit = GroupCommit(services.signals.store)
    signals = SignalRoutes(services, entry, commit)
    measuring = MeasuringRoutes(services, entry, commit, tally)
    hooks = HookRoutes(services, entry, commit, measuring)
    queues = {"events": commit, "steps": measuring.steps, "metrics": measuring.metrics}
    for name, queue in queues.items():
        QUEUED.labels(name).set_function(lambda queue=queue: queue.depth)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        for queue in queues.values():
            queue.start()
        counting = asyncio.create_task(_write_counts(tally, losses), name="unknown series and losses")
        yield
        await asyncio.gather(*(queue.stop() for queue in queues.values()))
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
        await _flush(tally, losses)

    app = Application(
        [*signals.routes(PREFIX), *measuring.routes(PREFIX), *hooks.routes(PREFIX)],
        title="healer",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.services = services
    app.state.access = access
    app.state.fleet = fleet
    app.state.queues = queues
    app.state.losses = losses
    app.state.door = enroll.Door()
    app.include_router(reading.router, prefix=PREFIX)
    app.include_router(series.router, prefix=PREFIX)
    app.include_router(acting.router, prefix=PREFIX)
    app.include_router(reconcile.router, prefix=PREFIX)
    app.include_router(enroll.router, prefix=PREFIX)
    app.include_router(system.router)
    problems.install(app)
    documents.install(app, PREFIX)
    return app


async def _write_counts(*counts: Tally | Losses) -> None:
    while True:
        await asyncio.sleep(TALLY_S)
        await _flush(*counts)


async def _flush(*counts: Tally | Losses) -> None:
    for one in counts:
        # What could not be written is kept, and written the next time.
        with contextlib.suppress(Unavailable):
            await run_in_threadpool(one.flush)
