"""Routes with threads of their own: people's commands, and separately the pauses among them.

The threads of all other routes may wait for a slow database, for a large page or for munge; a command that
waits for the detector takes no thread from a pause.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
from fastapi import APIRouter

#: Commands of people at once, and pauses. Each holds one connection of their pool, or two.
COMMANDS, PAUSES = 8, 4


class LaneRouter(APIRouter):
    """A router whose synchronous handlers run in threads that no other route uses."""

    def __init__(self, threads: int, **rest: Any) -> None:
        super().__init__(**rest)
        self._limiter = anyio.CapacityLimiter(threads)

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **rest: Any) -> None:
        if not inspect.iscoroutinefunction(endpoint):
            endpoint = self._in_lane(endpoint)
        super().add_api_route(path, endpoint, **rest)

    def _in_lane(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(handle)
        async def run(**given: Any) -> Any:
            return await anyio.to_thread.run_sync(functools.partial(handle, **given), limiter=self._limiter)

        return run
