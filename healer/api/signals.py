"""The routes of events: raw, asynchronous, answered after the group commit. msgspec reads the bodies."""

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from healer.api.access import refuse
from healer.api.answers import Told
from healer.api.entry import (
    JSON,
    SENDER,
    Entry,
    confine,
    decoded,
    known_query,
    media_type,
    read_body,
    shed,
    strange,
)
from healer.api.group_commit import Busy, GroupCommit
from healer.api.metrics import COMMIT_S, SIGNALS
from healer.api.problems import field_error
from healer.api.quotas import owner_of, share_of
from healer.api.services import Services
from healer.api.views import Accepted, Rejected
from healer.model import Role
from healer.ports.callers import Caller
from healer.ports.signal_stores import Arrival
from healer.signals import wire
from healer.signals.checkpoints import checkpoint_observations

#: Heartbeats of one node within this time of a stored one are counted as duplicates, not stored.
HEARTBEAT_EVERY_S = 1.0

_LINES = frozenset({"application/json", "text/plain"})
_RESULTS = ("accepted", "duplicate", "unrecognised", "rejected", "shed")
_COUNTERS = {
    route: {result: SIGNALS.labels(route, result) for result in _RESULTS}
    for route in ("kernel-log", "heartbeat", "checkpoints", "logs", "otlp/v1/logs")
}

_encode = msgspec.json.Encoder().encode


class SignalRoutes:
    """`POST /signals/…`. `commit` must have been started in the event loop that serves the routes."""

    role = Role.signals

    def __init__(self, services: Services, entry: Entry, commit: "GroupCommit[Arrival, bool]") -> None:
        self._services = services
        self._entry = entry
        self._commit = commit
        self._beats: dict[tuple[str, str | None], float] = {}

    def routes(self, prefix: str) -> list[Route]:
        return [
            Route(f"{prefix}/signals/kernel-log", self.kernel_log, methods=["POST"]),
            Route(f"{prefix}/signals/heartbeat", self.heartbeat, methods=["POST"]),
            Route(f"{prefix}/signals/checkpoints", self.checkpoints, methods=["POST"]),
        ]

    async def kernel_log(self, request: Request) -> Response:
        caller, known = await self._entry.enter(request)
        text = media_type(request, _LINES, "application/json") == "text/plain"
        known_query(request, {"cluster", "node", "boot_id"} if text else set())
        raw = await read_body(request)
        now = self._services.clock.now()
        cluster = self._entry.default(caller)
        book = self._services.rules().kernel_lines
        if text:
            query = request.query_params
            cluster = await self._entry.meant(caller, query.get("cluster"))
            node = query.get("node")
            if not node:
                raise field_error("node", "a text body needs ?node= in the address")
            await confine(request, caller, {(cluster, node)})
            lines = raw.decode("utf-8", "replace")
            parsed = wire.kernel_text_observations(
                lines, known, now, cluster=cluster, node=node, boot_id=query.get("boot_id"), book=book
            )
        else:
            body = wire.kernel_log_body(raw) or decoded(raw)
            if caller.node or caller.cluster:
                await confine(request, caller, wire.nodes_of_kernel_log(body, cluster=cluster))
            parsed = wire.kernel_log_observations(body, known, now, cluster=cluster, book=book)
        return await self._store(request, "kernel-log", parsed)

    async def heartbeat(self, request: Request) -> Response:
        caller, known = await self._entry.enter(request)
        media_type(request, JSON, "application/json")
        known_query(request, set())
        body = decoded(await read_body(request))
        cluster = self._entry.default(caller)
        await confine(request, caller, wire.nodes_of_heartbeats(body, cluster=cluster))
        parsed = wire.heartbeat_observations(body, known, self._services.clock.now(), cluster=cluster)
        return await self._store(request, "heartbeat", parsed, heartbeat=True)

    async def checkpoints(self, request: Request) -> Response:
        """What a job can go back to. Events too: a requeue may wait for one."""
        caller, _ = await self._entry.enter(request, of_jobs=True)
        media_type(request, JSON, "application/json")
        known_query(request, set())
        if caller.node:
            why = f"this token is bound to the node {caller.node}, not to a job"
            await refuse(request, caller, why, await self._entry.mentioned(request))
        body = decoded(await read_body(request))
        now = self._services.clock.now()
        parsed = checkpoint_observations(body, now, cluster=self._entry.default(caller))
        told = [one.component for one in parsed.observations]
        await confine(request, caller, jobs={(one.cluster, one.job or "") for one in told})
        if why := strange((one.cluster for one in told), await self._entry.clusters()):
            raise wire.BadBody(why)
        return await self._store(request, "checkpoints", parsed)

    async def _store(
        self, request: Request, route: str, parsed: wire.Accepted, *, heartbeat: bool = False
    ) -> Response:
        caller: Caller = request.scope[SENDER]
        answer = await self.stored(route, caller, parsed, heartbeat=heartbeat)
        entries = answer.accepted + answer.duplicates + answer.unrecognised
        self._entry.taken(request, entries, parsed.rejected, parsed.rejected_more)
        return Told(_encode(answer))

    async def stored(
        self, route: str, caller: Caller, parsed: wire.Accepted, *, heartbeat: bool = False
    ) -> Accepted:
        """The answer, after the commit. Raises Problem 429 when too much waits."""
        arrivals = [Arrival(one, parsed.alternatives.get(one.digest, ())) for one in parsed.observations]
        repeats = 0
        if heartbeat:
            arrivals, repeats = self._coalesced(arrivals)
        started = time.perf_counter()
        try:
            new = await self._commit.add(
                arrivals, owner=owner_of(caller), share=share_of(caller), shed_first=heartbeat
            )
        except Busy as busy:
            _COUNTERS[route]["shed"].inc(len(arrivals))
            raise shed(busy, len(arrivals)) from None
        COMMIT_S.observe(time.perf_counter() - started)
        if heartbeat:
            self._remember(arrivals)
        answer = Accepted(
            accepted=sum(new),
            duplicates=len(new) - sum(new) + repeats,
            unrecognised=parsed.unrecognised,
            rejected=[Rejected(index=one.index, reason=one.reason) for one in parsed.rejected],
            rejected_more=parsed.rejected_more or msgspec.UNSET,
        )
        counters = _COUNTERS[route]
        told = (answer.accepted, answer.duplicates, answer.unrecognised)
        for result, count in zip(_RESULTS, told, strict=False):
            if count:
                counters[result].inc(count)
        if answer.rejected:
            counters["rejected"].inc(len(answer.rejected) + parsed.rejected_more)
        return answer

    def _coalesced(self, arrivals: list[Arrival]) -> tuple[list[Arrival], int]:
        now = time.monotonic()
        kept = []
        for arrival in arrivals:
            component = arrival.observation.component
            if now - self._beats.get((component.cluster, component.node), float("-inf")) >= HEARTBEAT_EVERY_S:
                kept.append(arrival)
        return kept, len(arrivals) - len(kept)

    def _remember(self, arrivals: list[Arrival]) -> None:
        now = time.monotonic()
        for arrival in arrivals:
            component = arrival.observation.component
            self._beats[(component.cluster, component.node)] = now
