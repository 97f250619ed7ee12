"""The REST API as one ASGI application. `healer.bootstrap` makes the Services and runs it."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio.to_thread
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from healer.api import (
    acting,
    chat,
    documents,
    enroll,
    evidence,
    messages,
    problems,
    reading,
    reconcile,
    references,
    rehearsals,
    scraping,
    series,
    system,
)
from healer.api.access import Access
from healer.api.alerts import AlertRoutes, CloudEventRoutes
from healer.api.entry import SENDER, Entry, route_of
from healer.api.fleet import Fleet
from healer.api.group_commit import BEGIN_AT, GroupCommit, in_thread
from healer.api.hooks import HookRoutes
from healer.api.intake import Tally
from healer.api.logs import LogRoutes
from healer.api.losses import Losses
from healer.api.measuring import MeasuringRoutes
from healer.api.metrics import QUEUED, spool_figures
from healer.api.middleware import Edge
from healer.api.otlp import OtlpRoutes
from healer.api.reach import Reach, Readying
from healer.api.refusals import loss_of
from healer.api.senders import Senders
from healer.api.services import Services
from healer.api.signals import SignalRoutes
from healer.api.spooling import Spooling, events_lane, steps_lane
from healer.ports.callers import Caller
from healer.ports.request_errors import Unavailable

log = logging.getLogger("healer.api")

PREFIX = "/api/v1"
#: Threads for the synchronous routes; the engine's pool has room for two connections each.
THREADS = 16
#: Unknown series, losses and senders are counted in memory and written so often.
TALLY_S = 5.0


class Application(FastAPI):
    """FastAPI behind the Edge. The signal routes are served before its own layers: they halve the rate."""

    def __init__(self, routes: Sequence[Route], **rest: Any) -> None:
        super().__init__(**rest)
        self.router.routes.extend(routes)
        self._hot = {route.path: route.endpoint for route in routes}
        self._edge = Edge(super().__call__, PREFIX)
        # Who sends signals is told by the token alone: no proxy's word on it is looked for.
        self._behind_proxies: Any = ProxyHeadersMiddleware(cast(Any, self._edge), _proxies())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        hot = self._hot.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if hot is None:
            await self._behind_proxies(scope, receive, send)
            return
        try:
            answer = await hot(Request(scope, receive))
        except (Exception, asyncio.CancelledError) as raised:
            error = raised if isinstance(raised, Exception) else problems.ending()
            self._count(scope, error)
            answer = self._edge.failed(scope, error)
        await self._edge.tell(scope, answer, send)

    def _count(self, scope: Scope, error: Exception) -> None:
        """Nothing of the request is stored, and its sender hears so."""
        lost = loss_of(error, disk_full=self.state.reach.disk_full)
        if lost is None:
            return
        caller: Caller | None = scope.get(SENDER)
        reason, entries, why = lost
        self.state.losses.add(
            route_of(scope["path"]),
            reason,
            entries,
            cluster=(caller.cluster if caller else None) or self.state.services.cluster,
            who=caller.name if caller else "",
            example=why,
        )


def _proxies() -> str:
    """Whose word on a client's address counts, as uvicorn reads it."""
    return os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")


def create_app(services: Services) -> FastAPI:
    """The application without the console: bootstrap adds the pages, which share `app.state.access`."""
    reach = Reach()
    access = Access(services, reach)
    fleet = Fleet(services, reach)
    tally = Tally(services.unknown)
    losses = Losses(services.losses, services.clock.now)
    senders = Senders(services.senders, services.clock.now, services.cluster)
    entry = Entry(services, access, fleet, losses, senders)
    store, store_steps, spooling = in_thread(services.signals.store), services.samples.put_steps, None
    if services.spool is not None:
        spooling = Spooling(services.spool, reach, losses)
        store = events_lane(spooling, services).put_soon
        store_steps = steps_lane(spooling, services, losses).put
        spool_figures(services.spool)
    commit = GroupCommit(store, begin_at=BEGIN_AT)
    signals = SignalRoutes(services, entry, commit)
    logs = LogRoutes(services, entry, signals)
    measuring = MeasuringRoutes(services, entry, commit, tally, store_steps)
    hooks = HookRoutes(services, entry, commit, measuring)
    alerts = AlertRoutes(services, entry, fleet, commit)
    events = CloudEventRoutes(
        services,
        entry,
        alerts,
        {
            "kernel-log": signals.kernel_log,
            "heartbeat": signals.heartbeat,
            "checkpoints": signals.checkpoints,
            "step-times": measuring.step_times,
            "metrics": measuring.columnar,
        },
    )
    queues = {"events": commit, "steps": measuring.steps, "metrics": measuring.metrics}
    for name, queue in queues.items():
        QUEUED.labels(name).set_function(lambda queue=queue: queue.depth)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        for queue in queues.values():
            queue.start()
        if spooling is not None:
            spooling.start()
        counting = asyncio.create_task(
            _write_counts(tally, losses, senders), name="unknown series, losses, senders"
        )
        yield
        await asyncio.gather(*(queue.stop() for queue in queues.values()))
        if spooling is not None:
            await run_in_threadpool(spooling.stop)
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
        await _flush(tally, losses, senders)

    app = Application(
        [
            *signals.routes(PREFIX),
            *logs.routes(PREFIX),
            *measuring.routes(PREFIX),
            *OtlpRoutes(entry, logs, measuring).routes(PREFIX),
            *hooks.routes(PREFIX),
            *alerts.routes(PREFIX),
            *events.routes(PREFIX),
        ],
        title="healer",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    shared = {
        "services": services,
        "access": access,
        "entry": entry,
        "reach": reach,
        "ready": Readying(services.ready, reach),
        "spooling": spooling,
        "fleet": fleet,
        "queues": queues,
        "losses": losses,
        "door": enroll.Door(),
    }
    for name, part in shared.items():
        setattr(app.state, name, part)
    for part in (
        reading,
        evidence,
        series,
        scraping,
        acting,
        reconcile,
        references,
        messages,
        chat,
        enroll,
        rehearsals,
    ):
        app.include_router(part.router, prefix=PREFIX)
    app.include_router(system.router)
    app.state.errors = problems.install(app, PREFIX)
    documents.install(app, PREFIX)
    return app


async def _write_counts(*counts: Tally | Losses | Senders) -> None:
    while True:
        await asyncio.sleep(TALLY_S)
        await _flush(*counts)


async def _flush(*counts: Tally | Losses | Senders) -> None:
    for one in counts:
        # What could not be written is kept, and written the next time.
        try:
            await run_in_threadpool(one.flush)
        except Unavailable:
            pass
        except Exception:
            log.exception("a count cannot be written")  # it must not keep the others from being written
