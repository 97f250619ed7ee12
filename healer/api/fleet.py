"""Slurm's latest picture as the API sees it: at most a second old, read once for all requests."""

import asyncio
import threading
import time

from healer.api.reach import Reach
from healer.api.services import Services
from healer.model import SlurmSnapshot
from healer.ports.request_errors import Unavailable

_FRESH_S = 1.0
#: While the database is away the old picture still says which nodes there are, for as long as tokens that
#: were good still count (`access.REMEMBERED_S`).
_USABLE_S = 900.0


class Fleet:
    """The snapshots of all clusters, cached."""

    def __init__(self, services: Services, reach: Reach) -> None:
        self._services, self._reach = services, reach
        self._snapshots: dict[str, SlurmSnapshot] = {}
        self._read_at = float("-inf")
        self._lock = threading.Lock()
        self._reading: asyncio.Future[dict[str, SlurmSnapshot]] | None = None

    @property
    def latest(self) -> dict[str, SlurmSnapshot]:
        """By cluster, as they were last read; asks nobody."""
        return self._snapshots

    @property
    def fresh(self) -> dict[str, SlurmSnapshot] | None:
        """The same, where they need not be read anew."""
        return self._snapshots if time.monotonic() - self._read_at <= _FRESH_S else None

    def snapshots(self) -> dict[str, SlurmSnapshot]:
        """By cluster; from a thread."""
        with self._lock:
            asked = time.monotonic()
            if asked - self._read_at > _FRESH_S:
                self._snapshots = self._services.reads.snapshots()
                self._read_at = asked
            return self._snapshots

    async def current(self) -> dict[str, SlurmSnapshot]:
        """By cluster; inside the event loop. Requests that find it stale share one read."""
        if (snapshots := self.fresh) is not None:
            return snapshots
        age = time.monotonic() - self._read_at
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._reach.ask(self.snapshots))
        try:
            await asyncio.shield(self._reading)
        except Unavailable:
            if age > _USABLE_S or not self._snapshots:
                raise
        return self._snapshots
