"""What the signal routes ask first: who sends, which nodes there are, and the body, bounded and unpacked.

They bypass FastAPI's dependencies for speed, and declare their role as an attribute instead.
"""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, ParamSpec, TypeVar

import anyio
import anyio.to_thread
import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.types import Scope

from healer.api.access import ALLOWED, Access, Pairs, foreign, named_cluster, refuse
from healer.api.db_health import Fleet
from healer.api.group_commit import WAIT_S
from healer.api.problems import Problem, field_error
from healer.api.quotas import SENDER, Meter
from healer.api.receiving import WHOLE, Broken, Receiver, check_encoding, packing_of, too_large, unpacked
from healer.api.services import Services
from healer.model import Component, Role, SlurmSnapshot
from healer.ports.callers import Caller
from healer.ports.request_errors import Unavailable
from healer.signals import wire

T = TypeVar("T")
P = ParamSpec("P")
#: Of one request, as sent; and of one request of samples, unpacked.
BODY_LIMIT = 8 * 1024 * 1024
UNPACKED_LIMIT = 64 * 1024 * 1024
#: A body above this is unpacked and read in a thread.
_INLINE = 64 * 1024
#: A short body that unpacks to more than this was meant to hold us up: it goes into a thread too.
_INLINE_UNPACKED = 1024 * 1024
#: Bodies that are unpacked at once: each may take twice UNPACKED_LIMIT of memory for a moment.
_unpacking = anyio.CapacityLimiter(2)
#: Long bodies that are read at once: in threads of their own, as those of the pages may all wait for a
#: database that hangs.
_reading = anyio.CapacityLimiter(4)
#: What of a Content-Type is looked at; no kind that we know is longer.
_KIND_MAX = 200
#: Longer queries of addresses are not remembered.
_QUERY_MAX = 200
JSON = frozenset({"application/json"})


class Sent(NamedTuple):
    """A request that may be read: its body unpacked, of the media type `kind`, and the cluster it means where
    it names none."""

    caller: Caller
    known: wire.Known
    kind: str
    body: bytes
    cluster: str


class Preamble:
    """Who sends, about what it may speak, and what it sends."""

    role = Role.signals

    def __init__(self, services: Services, access: Access, fleet: Fleet, meter: Meter) -> None:
        self._services, self._access, self._fleet, self._only = services, access, fleet, services.only
        self.reach = access.reach
        self.meter, self.receiver = meter, Receiver()
        #: The clusters that this healer looks after.
        self.served = services.clusters or (services.cluster,)

    async def open(self, request: Request, takes: Mapping[str, AbstractSet[str]]) -> Sent:
        """Checks the sender and what is sent, and reads the body. `takes`: the media types of this route, the
        default first, and the parameters that its address may have with each."""
        caller, known = await self.enter(request)
        kind = media_type(request, takes.keys(), next(iter(takes)))
        known_query(request, takes[kind])
        return Sent(caller, known, kind, await self.body(request), self.default(caller))

    async def enter(self, request: Request, *, of_jobs: bool = False) -> tuple[Caller, wire.Known]:
        """Who sends, and the nodes there are. A database that is away is waited for.

        A token bound to a job is 403 unless the route is one `of_jobs`: step times and checkpoints.

        `known` raises Problem 503 for a cluster of ours that Slurm has not shown yet: its senders try again.
        """
        scope, now = request.scope, time.monotonic()
        # Ten thousand come in a second, and what is at hand is not waited for.
        caller = self._access.sender_at_hand(header_of(scope, b"authorization"))
        if caller is None:
            caller = await _patiently(lambda: self._access.sender(request), now + WAIT_S)
        if caller.role not in ALLOWED[self.role]:
            await refuse(
                request, caller, f"signals are written with the role signals, yours is {caller.role}"
            )
        scope[SENDER] = caller
        if caller.job and not of_jobs:
            why = f"this token is bound to the job {caller.job}"
            await refuse(request, caller, why, await self.mentioned(request))
        self.meter.check(caller, scope["path"], now)
        snapshots = self._fleet.fresh
        if snapshots is None:
            snapshots = await _patiently(self._fleet.current, now + WAIT_S)
        default = self.default(caller)
        if default in self.served:
            self._seen(default, snapshots)

        def known(cluster: str, node: str) -> bool:
            snapshot = snapshots.get(cluster)
            if snapshot is None and cluster in self._services.clusters:
                self._seen(cluster, snapshots)
            return snapshot is not None and node in snapshot.nodes

        return caller, known

    def notes(self, caller: Caller) -> bool:
        """Whether one more refusal of this caller would be recorded now."""
        return self._access.notes(caller)

    async def mentioned(self, request: Request) -> list[Component]:
        """What a request that its route refuses unread speaks of, as far as its address and a short body of
        JSON tell: for the record of the refusal alone."""
        if not self.notes(request.scope[SENDER]):
            return []
        body: Any = None
        try:
            raw = await self.raw_body(request, _INLINE)
            body = msgspec.json.decode(unpacked(raw, encoding_of(request), _INLINE))
        except (Problem, ValueError, RecursionError):  # wrong in another way: it is refused all the same
            pass
        outer = [dict(query_of(request)), *(body if isinstance(body, list) else [body])]
        found = [*_spoken_of(outer, self.default(request.scope[SENDER]))]
        return [one for one in found if one.node or one.job] or found

    async def body(self, request: Request, *, unpacked_limit: int = BODY_LIMIT) -> bytes:
        """The whole body, unpacked; 413 as soon as it is known to be too long, 415 for a packing we lack."""
        packed = encoding_of(request)
        if packed == "identity":
            return await self.raw_body(request)
        check_encoding(packed)
        raw = await self.raw_body(request)
        try:
            body = await _unpacked_aside(raw, packed, unpacked_limit)
        except Problem as problem:
            if problem.status == 413:  # the work was done: who sends bombs pays for it
                self.meter.charge(request.scope[SENDER], size=unpacked_limit)
            raise
        self.meter.charge(request.scope[SENDER], size=max(0, len(body) - len(raw)))
        return body

    async def raw_body(self, request: Request, limit: int = BODY_LIMIT) -> bytes:
        """The body as it was sent; its sender is heard, and charged for it."""
        scope = request.scope
        length = header_of(scope, b"content-length")
        if length is not None and length.isdigit() and int(length) > limit:
            raise too_large(limit)
        caller: Caller = scope[SENDER]
        if scope.pop(WHOLE, False):  # all of it is here already, as nearly always
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise Broken(0)
            raw: bytes = message["body"]
            if len(raw) > limit:
                raise too_large(limit)
        else:
            charge = functools.partial(self.meter.charge_size, caller)
            raw = await self.receiver.body(request.receive, limit, caller, charge)
        self.meter.came(caller, scope["path"], len(raw))
        return raw

    def gpus_shown(self, cluster: str, node: str) -> int | None:
        """How many GPUs Slurm shows of a node; None where it tells none. From any thread."""
        snapshot = self._fleet.latest.get(cluster)
        shown = snapshot.nodes.get(node) if snapshot is not None else None
        return shown.gpus or None if shown is not None else None

    def default(self, caller: Caller) -> str:
        """The cluster of what names none; empty where there are several and the token is bound to none."""
        return self._only or caller.cluster or ""

    async def meant(self, caller: Caller, wanted: str | None) -> str:
        """The cluster that a whole body is about: 422 where it is open, 503 before Slurm has shown it."""
        cluster = named_cluster(self._services, caller, wanted)
        if cluster in self._services.clusters:
            self._seen(cluster, await self._fleet.current())
        return cluster

    def _seen(self, cluster: str, snapshots: Mapping[str, SlurmSnapshot]) -> None:
        if cluster not in snapshots:
            raise Problem(
                503,
                f"Slurm has not been asked yet which nodes the cluster {cluster} has",
                headers={"Retry-After": "2"},
            )

    async def wrong_job(self, caller: Caller) -> Callable[[str, str], str | None]:
        """(cluster, job) -> why this caller may not tell of that job's steps: a token bound to a node knows
        the jobs that Slurm shows there, and no others."""
        node, snapshots = caller.node, await self._fleet.current()

        def why(cluster: str, job: str) -> str | None:
            if node is None:
                return None
            shown = snapshots[cluster].jobs.get(job) if cluster in snapshots else None
            if shown is not None and shown.active and node in shown.nodes:
                return None
            return f"this token is bound to the node {node}, and Slurm does not show the job {job} there"

        return why

    async def clusters(self) -> frozenset[str]:
        """The clusters there are: of those alone anything is stored."""
        return frozenset(await self._fleet.current())


async def confine(request: Request, caller: Caller, nodes: Pairs = (), jobs: Pairs = ()) -> None:
    """403 where a bound token speaks of another node or job, (cluster, name) each."""
    found = foreign(caller, nodes, jobs)
    if found is not None:
        await refuse(request, caller, found.why, found.spoken)


def _spoken_of(outer: Iterable[Any], cluster: str) -> Iterator[Component]:
    """What objects, and the `entries` in them, name as `node` or `job`, or as `cluster` alone."""
    for whole in outer:
        entries = whole.get("entries") if isinstance(whole, dict) else None
        for one in (whole, *(entries if isinstance(entries, list) else ())):
            if isinstance(one, dict) and (one.get("cluster") or one.get("node") or one.get("job")):
                where = str(one.get("cluster") or whole.get("cluster") or cluster)
                node, job = (str(one[key]) if one.get(key) else None for key in ("node", "job"))
                yield Component(cluster=where, node=node, job=job)


def strange(named: Iterable[str], clusters: frozenset[str]) -> str | None:
    """Why what names these clusters cannot be stored: nobody would ever read it."""
    for cluster in named:
        if not cluster:
            return f"cluster: name it: one of {', '.join(sorted(clusters))}"
        if cluster not in clusters:
            return f"cluster: Slurm's picture has no cluster {cluster}"
    return None


async def _patiently(ask: Callable[[], Awaitable[T]], deadline: float) -> T:
    while True:
        try:
            return await ask()
        except Unavailable:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(0.1)


# --- bodies ----------------------------------------------------------------------------------------------


async def _unpacked_aside(raw: bytes, packed: str, limit: int) -> bytes:
    """What `unpacked` makes of it, without holding up other requests or the memory of many at once."""
    if len(raw) <= _INLINE:
        try:
            return unpacked(raw, packed, min(limit, _INLINE_UNPACKED))
        except Problem as problem:
            if problem.status != 413 or limit <= _INLINE_UNPACKED:
                raise
    return await anyio.to_thread.run_sync(unpacked, raw, packed, limit, limiter=_unpacking)


async def aside(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` makes of a body of that many bytes: a long one holds up no other request."""
    if size <= _INLINE:
        return work(*args, **kwargs)
    return await anyio.to_thread.run_sync(functools.partial(work, *args, **kwargs), limiter=_reading)


def header_of(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that name, in small letters: `request.headers` costs more than it to make."""
    for one, value in scope["headers"]:
        if one == name:
            return value
    return None


def encoding_of(request: Request) -> str:
    if header_of(request.scope, b"content-encoding") is None:
        return "identity"
    return packing_of(request.headers)


def media_type(request: Request, known: AbstractSet[str], default: str) -> str:
    """The kind of the body; 415 for one that this route does not take."""
    header = header_of(request.scope, b"content-type")
    kind = default if header is None else _kind(header[:_KIND_MAX])
    if kind not in known:
        raise Problem(415, f"the body must be {' or '.join(sorted(known))}")
    return kind


@functools.lru_cache(maxsize=1024)
def _kind(header: bytes) -> str:
    return header.decode("latin-1").split(";")[0].strip().lower()


def query_of(request: Request) -> QueryParams:
    """What the address asks: of a sender the same each time, and a tenth of what a request costs to read."""
    raw = request.scope["query_string"]
    return _query(raw) if len(raw) <= _QUERY_MAX else QueryParams(raw)


@functools.lru_cache(maxsize=4096)
def _query(raw: bytes) -> QueryParams:
    return QueryParams(raw)


def known_query(request: Request, known: AbstractSet[str]) -> None:
    if not request.scope["query_string"] or query_of(request).keys() <= known:
        return
    unknown = sorted(set(query_of(request)) - known)
    if unknown:
        raise field_error(unknown[0][:100], "no such query parameter")


def decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(
            422, f"the body is not JSON: {error}", errors=[{"field": "body", "detail": "not JSON"}]
        ) from None
