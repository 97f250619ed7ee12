"""The signal routes: raw, asynchronous, answered after the group commit. msgspec reads the bodies.

They bypass FastAPI's dependencies for speed, and declare their role as an attribute instead.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from healer.api.access import ALLOWED, Access, refuse
from healer.api.fleet import Fleet
from healer.api.group_commit import WAIT_S, Busy, GroupCommit
from healer.api.metrics import COMMIT_S, SIGNALS
from healer.api.problems import Problem, field_error
from healer.api.services import Arrival, Caller, Services, Unavailable
from healer.api.views import Accepted, Rejected
from healer.model import Role
from healer.signals import wire

T = TypeVar("T")

BODY_LIMIT = 8 * 1024 * 1024
#: Heartbeats of one node within this time of a stored one are counted as duplicates, not stored.
HEARTBEAT_EVERY_S = 1.0

_RESULTS = ("accepted", "duplicate", "unrecognised", "rejected", "shed")
_COUNTERS = {
    route: {result: SIGNALS.labels(route, result) for result in _RESULTS}
    for route in ("kernel-log", "heartbeat")
}

_encode = msgspec.json.Encoder().encode


class SignalRoutes:
    """`POST /signals/…`. `commit` must have been started in the event loop that serves the routes."""

    role = Role.signals

    def __init__(self, services: Services, access: Access, fleet: Fleet, commit: GroupCommit) -> None:
        self._services = services
        self._access = access
        self._fleet = fleet
        self._commit = commit
        self._beats: dict[tuple[str, str | None], float] = {}

    def routes(self, prefix: str) -> list[Route]:
        return [
            Route(f"{prefix}/signals/kernel-log", self.kernel_log, methods=["POST"]),
            Route(f"{prefix}/signals/heartbeat", self.heartbeat, methods=["POST"]),
        ]

    async def kernel_log(self, request: Request) -> Response:
        caller, known = await self._enter(request)
        text = _media_type(request, text=True) == "text/plain"
        known_query(request, {"cluster", "node", "boot_id"} if text else set())
        raw = await read_body(request)
        now = self._services.clock.now()
        cluster = self._services.cluster
        if text:
            query = request.query_params
            cluster = query.get("cluster") or cluster
            node = query.get("node")
            if not node:
                raise field_error("node", "a text body needs ?node= in the address")
            await self._confine(request, caller, {(cluster, node)})
            lines = raw.decode("utf-8", "replace")
            parsed = wire.kernel_text_observations(
                lines, known, now, cluster=cluster, node=node, boot_id=query.get("boot_id")
            )
        else:
            body = _decoded(raw)
            if caller.node or caller.cluster:
                await self._confine(request, caller, wire.nodes_of_kernel_log(body, cluster=cluster))
            parsed = wire.kernel_log_observations(body, known, now, cluster=cluster)
        if caller.job and any(one.component.job != caller.job for one in parsed.observations):
            await refuse(request, caller, f"this token is bound to the job {caller.job}")
        return await self._store("kernel-log", parsed)

    async def heartbeat(self, request: Request) -> Response:
        caller, known = await self._enter(request)
        _media_type(request, text=False)
        known_query(request, set())
        body = _decoded(await read_body(request))
        cluster = self._services.cluster
        await self._confine(request, caller, wire.nodes_of_heartbeats(body, cluster=cluster))
        if caller.job:
            await refuse(request, caller, f"this token is bound to the job {caller.job}")
        parsed = wire.heartbeat_observations(body, known, self._services.clock.now(), cluster=cluster)
        return await self._store("heartbeat", parsed, heartbeat=True)

    async def _enter(self, request: Request) -> tuple[Caller, wire.Known]:
        """Who sends, and the nodes there are. A database that is away is waited for."""
        deadline = time.monotonic() + WAIT_S
        caller = await _patiently(lambda: self._access.caller(request), deadline)
        if caller.role not in ALLOWED[self.role]:
            await refuse(
                request, caller, f"signals are written with the role signals, yours is {caller.role}"
            )
        snapshots = await _patiently(self._fleet.current, deadline)
        if self._services.cluster not in snapshots:
            raise Problem(
                503,
                f"Slurm has not been asked yet which nodes the cluster {self._services.cluster} has",
                headers={"Retry-After": "2"},
            )

        def known(cluster: str, node: str) -> bool:
            snapshot = snapshots.get(cluster)
            return snapshot is not None and node in snapshot.nodes

        return caller, known

    async def _confine(self, request: Request, caller: Caller, named: set[tuple[str, str]]) -> None:
        """A bound token speaks of nothing else: one foreign word and the whole request is refused."""
        if caller.cluster and any(cluster != caller.cluster for cluster, _ in named):
            await refuse(request, caller, f"this token is bound to the cluster {caller.cluster}")
        if caller.node and any(node != caller.node for _, node in named):
            await refuse(request, caller, f"this token is bound to the node {caller.node}")

    async def _store(self, route: str, parsed: wire.Accepted, *, heartbeat: bool = False) -> Response:
        arrivals = [Arrival(one, parsed.alternatives.get(one.digest, ())) for one in parsed.observations]
        repeats = 0
        if heartbeat:
            arrivals, repeats = self._coalesced(arrivals)
        started = time.perf_counter()
        try:
            new = await self._commit.add(arrivals, shed_first=heartbeat)
        except Busy as busy:
            _COUNTERS[route]["shed"].inc(len(arrivals))
            raise Problem(429, str(busy), headers={"Retry-After": str(busy.retry_after_s)}) from None
        COMMIT_S.observe(time.perf_counter() - started)
        if heartbeat:
            self._remember(arrivals)
        answer = Accepted(
            accepted=sum(new),
            duplicates=len(new) - sum(new) + repeats,
            unrecognised=parsed.unrecognised,
            rejected=[Rejected(index=one.index, reason=one.reason) for one in parsed.rejected],
        )
        counters = _COUNTERS[route]
        for result, count in zip(
            _RESULTS, (answer.accepted, answer.duplicates, answer.unrecognised), strict=False
        ):
            if count:
                counters[result].inc(count)
        if answer.rejected:
            counters["rejected"].inc(len(answer.rejected))
        return Response(_encode(answer), 202, media_type="application/json")

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


async def _patiently(ask: Callable[[], Awaitable[T]], deadline: float) -> T:
    while True:
        try:
            return await ask()
        except Unavailable:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(0.1)


async def read_body(request: Request, limit: int = BODY_LIMIT) -> bytes:
    """The whole body; 413 as soon as it is known to be too long, 415 when it is packed."""
    packed = request.headers.get("content-encoding", "identity")
    if packed.lower() != "identity":
        raise Problem(415, f"Content-Encoding {packed[:50]} is not understood; send it plain")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length) > limit:
        raise too_large(limit)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def too_large(limit: int) -> Problem:
    return Problem(413, f"the body is larger than {limit} bytes", headers={"Connection": "close"})


def known_query(request: Request, known: set[str]) -> None:
    if not request.scope["query_string"]:
        return
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        raise field_error(unknown[0][:100], "no such query parameter")


def _media_type(request: Request, *, text: bool) -> str:
    kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if kind == "application/json" or (text and kind == "text/plain"):
        return kind
    raise Problem(415, "the body must be application/json" + (" or text/plain" if text else ""))


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(
            422, f"the body is not JSON: {error}", errors=[{"field": "body", "detail": "not JSON"}]
        ) from None
