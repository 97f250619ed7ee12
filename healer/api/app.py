"""The REST API as one ASGI application. `healer.bootstrap` makes the Services and runs it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Request
from starlette.types import Receive, Scope, Send

from healer.api import acting, documents, problems, reading, system
from healer.api.access import Access
from healer.api.fleet import Fleet
from healer.api.group_commit import GroupCommit
from healer.api.middleware import Edge
from healer.api.services import Services
from healer.api.signals import SignalRoutes

PREFIX = "/api/v1"
#: Threads for the synchronous routes; the engine's pool has room for two connections each.
THREADS = 16


class Application(FastAPI):
    """FastAPI behind the Edge. The signal routes are served before its own layers: they halve the rate."""

    def __init__(self, signals: SignalRoutes, **rest: Any) -> None:
        super().__init__(**rest)
        routes = signals.routes(PREFIX)
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
    commit = GroupCommit(services.signals)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        commit.start()
        yield
        await commit.stop()

    app = Application(
        SignalRoutes(services, access, fleet, commit),
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
    app.state.commit = commit
    app.include_router(reading.router, prefix=PREFIX)
    app.include_router(acting.router, prefix=PREFIX)
    app.include_router(system.router)
    problems.install(app)
    documents.install(app, PREFIX)
    return app
