"""What the signal routes ask first: who sends, which nodes there are, and the body: received within its
time, unpacked within its size.

They bypass FastAPI's dependencies for speed, and declare their role as an attribute instead.
"""

import asyncio
import functools
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, NamedTuple, ParamSpec, TypeVar

import anyio
import anyio.to_thread
import cramjam
import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from healer.api.access import ALLOWED, Access, named_cluster, outside_routes
from healer.api.client_certificates import CERTIFICATE, bound, foreign_node
from healer.api.db_health import Fleet
from healer.api.group_commit import WAIT_S
from healer.api.problems import Problem, field_error
from healer.api.quotas import SENDER, Meter
from healer.api.refusals import Pairs, foreign, refuse
from healer.api.services import Services
from healer.model import Component, Role, SlurmSnapshot
from healer.ports.callers import Caller
from healer.ports.request_errors import Unavailable
from healer.signals import wire
from healer.text import NO_WORDS, Said, joined, language, said_by, say

T = TypeVar("T")
P = ParamSpec("P")
#: Serves `POST /signals/…`.
Endpoint = Callable[[Request], Awaitable[Response]]
#: Of one request, as sent; and of one request of samples, unpacked.
BODY_LIMIT = 8 * 1024 * 1024
UNPACKED_LIMIT = 64 * 1024 * 1024
#: A body above this is unpacked and read in a thread.
INLINE_BYTES = 64 * 1024
#: A short body that unpacks to more than this was meant to hold us up: it goes into a thread too.
_INLINE_UNPACKED = 1024 * 1024
#: Bodies unpacked at once: each may take twice UNPACKED_LIMIT of memory for a moment.
_unpacking = anyio.CapacityLimiter(2)
#: Long bodies parsed at once: in threads of their own, as those of the pages may all wait for a database that
#: hangs.
_reading = anyio.CapacityLimiter(4)
#: Characters of a Content-Type that are read; no supported media type is longer.
_KIND_MAX = 200
#: Longer query strings are not cached.
_QUERY_MAX = 200
JSON = frozenset({"application/json"})
#: What most routes take: JSON, and nothing in the address.
JSON_ALONE: Mapping[str, AbstractSet[str]] = {"application/json": frozenset()}


class Sent(NamedTuple):
    """A request with a checked sender: its body unpacked, of the media type `kind`; `cluster` is the default
    if it names none."""

    caller: Caller
    has_node: wire.HasNode
    kind: str
    body: bytes
    cluster: str


#: The least first byte of a byte-order mark: nearly no body begins so, and no other is examined any further.
_MARKS_FROM = b"\xef"


async def _as_utf8(body: bytes) -> bytes:
    """No body but a text begins with such a mark: of protobuf it would be no field."""
    mark, encoding = wire.byte_order(body)
    if encoding is None:
        return body[mark:]
    return await parse(len(body), lambda: body[mark:].decode(encoding, "replace").encode())


class Preamble:
    """Checks the sender and what it may report on, and reads the body."""

    role = Role.signals

    def __init__(self, services: Services, access: Access, fleet: Fleet, meter: Meter) -> None:
        self._services, self._access, self._fleet, self._only = services, access, fleet, services.only
        self.database = access.database
        self.meter, self.receiver = meter, Receiver()
        #: Clusters of this installation.
        self.served = services.served

    async def open(
        self,
        request: Request,
        takes: Mapping[str, AbstractSet[str]] = JSON_ALONE,
        *,
        of_jobs: bool = False,
        unpacked_limit: int = BODY_LIMIT,
    ) -> Sent:
        """Checks the sender and what is sent, and reads the body. `takes`: the media types of this route, the
        default first, and the parameters that its address may have with each."""
        caller, has_node = await self.enter(request, of_jobs=of_jobs)
        kind = media_type(request, takes.keys(), next(iter(takes)))
        known_query(request, takes[kind])
        body = await self.body(request, unpacked_limit=unpacked_limit)
        return Sent(caller, has_node, kind, body, self.default_cluster(caller))

    async def enter(self, request: Request, *, of_jobs: bool = False) -> tuple[Caller, wire.HasNode]:
        """Who sends, and whether Slurm shows a node, as (cluster, node) -> bool. Waits for a database that is
        away.

        A token bound to a job is 403 unless the route is one `of_jobs`: step times and checkpoints.

        The look-up raises Problem 503 for a cluster of ours that Slurm has not shown yet: its senders retry.
        """
        scope, now = request.scope, time.monotonic()
        if accepts := header_of(scope, b"accept-language"):
            language.current.set(language.chosen(None, accepts.decode("latin-1")))
        # Ten thousand come in a second: a cached caller costs no await.
        caller = self._access.cached_sender(header_of(scope, b"authorization"))
        if caller is None:
            caller = await _patiently(lambda: self._access.sender(request), now + WAIT_S)
        if caller.role not in ALLOWED[self.role]:
            await refuse(request, caller, say("api.signals_role", role=caller.role))
        if caller.routes and (outside := outside_routes(caller, scope["path"])) is not None:
            await refuse(request, caller, outside)
        if CERTIFICATE in scope:
            if (why := foreign_node(scope[CERTIFICATE], caller.node)) is not None:
                await refuse(request, caller, why)
            caller = bound(scope, caller)
        scope[SENDER] = caller
        if caller.job and not of_jobs:
            why = say("api.bound_to_job", name=caller.job)
            await refuse(request, caller, why, await self.mentioned(request))
        self.meter.check(caller, scope["path"], now)
        snapshots = self._fleet.latest
        if now > self._fleet.fresh_until:
            snapshots = await _patiently(self._fleet.current, now + WAIT_S)
        default = self.default_cluster(caller)
        if default in self.served:
            _check_shown(default, snapshots)

        def has_node(cluster: str, node: str) -> bool:
            snapshot = snapshots.get(cluster)
            if snapshot is None and cluster in self._services.clusters:
                _check_shown(cluster, snapshots)
            return snapshot is not None and node in snapshot.nodes

        return caller, has_node

    def records_refusal(self, caller: Caller) -> bool:
        """Whether one more refusal of this caller would be recorded now."""
        return self._access.refusals.would_record(caller)

    async def mentioned(self, request: Request) -> list[Component]:
        """The components that a request speaks of which its route refuses unread, as far as its address and a
        short JSON body show: only for the record of the refusal."""
        if not self.records_refusal(request.scope[SENDER]):
            return []
        body: Any = None
        try:
            raw = await self.raw_body(request, INLINE_BYTES)
            body = msgspec.json.decode(unpacked(raw, encoding_of(request), INLINE_BYTES))
        except (Problem, ValueError, RecursionError):  # wrong in another way: it is refused all the same
            pass
        outer = [dict(query_of(request)), *(body if isinstance(body, list) else [body])]
        found = [*_spoken_of(outer, self.default_cluster(request.scope[SENDER]))]
        return [component for component in found if component.node or component.job] or found

    async def body(self, request: Request, *, unpacked_limit: int = BODY_LIMIT) -> bytes:
        """The whole body, unpacked, and as UTF-8 without a byte-order mark; 413 as soon as it is too long,
        415 for an unsupported encoding."""
        packed = encoding_of(request)
        if packed == "identity":
            body = await self.raw_body(request)
        else:
            check_encoding(packed)
            body = await self._unpacked(request, await self.raw_body(request), packed, unpacked_limit)
        return body if body[:1] < _MARKS_FROM else await _as_utf8(body)

    async def _unpacked(self, request: Request, raw: bytes, packed: str, limit: int) -> bytes:
        try:
            body = await _unpack(raw, packed, limit)
        except Problem as problem:
            if problem.status == 413:  # the work was done: the sender of a zip bomb pays for it
                self.meter.charge(request.scope[SENDER], size=limit)
            raise
        self.meter.charge(request.scope[SENDER], size=max(0, len(body) - len(raw)))
        return body

    async def raw_body(self, request: Request, limit: int = BODY_LIMIT) -> bytes:
        """The body as it was sent, counted and charged to its sender."""
        scope = request.scope
        length = header_of(scope, b"content-length")
        if length is not None and length.isdigit() and int(length) > limit:
            raise too_large(limit)
        caller: Caller = scope[SENDER]
        if scope.pop(WHOLE, False):  # it has arrived already, as nearly always
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise Broken(0)
            raw: bytes = message["body"]
            if len(raw) > limit:
                raise too_large(limit)
        else:
            raw = await self.receiver.body(
                request.receive, limit, caller, lambda size: self.meter.charge(caller, size=size)
            )
        self.meter.received(caller, scope["path"], len(raw))
        return raw

    def gpus_shown(self, cluster: str, node: str) -> int | None:
        """GPUs that Slurm shows of a node; None if it shows none. From any thread."""
        snapshot = self._fleet.latest.get(cluster)
        shown = snapshot.nodes.get(node) if snapshot is not None else None
        return shown.gpus or None if shown is not None else None

    def default_cluster(self, caller: Caller) -> str:
        """The cluster of items that name none; empty if there are several and the token is bound to none."""
        return self._only or caller.cluster or ""

    async def cluster_of(self, caller: Caller, wanted: str | None) -> str:
        """The cluster that a whole body is about: 422 if it is open, 503 before Slurm has shown it."""
        cluster = named_cluster(self._services, caller, wanted)
        if cluster in self._services.clusters:
            _check_shown(cluster, await self._fleet.current())
        return cluster

    async def wrong_job(self, caller: Caller) -> Callable[[str, str], Said | None]:
        """(cluster, job) -> why this caller may not send that job's steps: a token bound to a node may send
        those of the jobs that Slurm shows there."""
        node, snapshots = caller.node, await self._fleet.current()

        def why(cluster: str, job: str) -> Said | None:
            if node is None:
                return None
            shown = snapshots[cluster].jobs.get(job) if cluster in snapshots else None
            if shown is not None and shown.active and node in shown.nodes:
                return None
            return say("api.job_not_on_node", node=node, job=job)

        return why

    async def clusters(self) -> frozenset[str]:
        """The clusters that Slurm has shown: signals of no other are stored."""
        return frozenset(await self._fleet.current())


def _check_shown(cluster: str, snapshots: Mapping[str, SlurmSnapshot]) -> None:
    if cluster not in snapshots:
        raise Problem(503, say("api.cluster_not_asked_yet", cluster=cluster), headers={"Retry-After": "2"})


async def confine(request: Request, caller: Caller, nodes: Pairs = (), jobs: Pairs = ()) -> None:
    """403 if a bound token mentions another node or job, (cluster, name) each."""
    found = foreign(caller, nodes, jobs)
    if found is not None:
        await refuse(request, caller, found.why, found.spoken)


def by_slurm(named: Iterable[tuple[str, str]], has_node: wire.HasNode) -> set[tuple[str, str]]:
    """(cluster, node) by Slurm's names: a token is bound to one of these."""
    return {(cluster, wire.slurm_name(cluster, host, has_node)) for cluster, host in named}


def _spoken_of(outer: Iterable[Any], cluster: str) -> Iterator[Component]:
    """What objects, and the `entries` in them, name as `node` or `job`, or as `cluster` alone."""
    for whole in outer:
        entries = whole.get("entries") if isinstance(whole, dict) else None
        for entry in (whole, *(entries if isinstance(entries, list) else ())):
            if isinstance(entry, dict) and (entry.get("cluster") or entry.get("node") or entry.get("job")):
                where = str(entry.get("cluster") or whole.get("cluster") or cluster)
                node, job = (str(entry[key]) if entry.get(key) else None for key in ("node", "job"))
                yield Component(cluster=where, node=node, job=job)


def unknown_cluster(named: Iterable[str], clusters: frozenset[str]) -> Said | None:
    """Why what names these clusters cannot be stored; None if it can."""
    for cluster in named:
        if not cluster:
            return say("api.cluster_missing", clusters=joined(sorted(clusters), "comma"))
        if cluster not in clusters:
            return say("api.cluster_unknown", cluster=cluster)
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


async def _unpack(raw: bytes, packed: str, limit: int) -> bytes:
    """`unpacked`; a large body goes to one of few threads, so that it holds up no other request."""
    if len(raw) <= INLINE_BYTES:
        try:
            return unpacked(raw, packed, min(limit, _INLINE_UNPACKED))
        except Problem as problem:
            if problem.status != 413 or limit <= _INLINE_UNPACKED:
                raise
    return await anyio.to_thread.run_sync(unpacked, raw, packed, limit, limiter=_unpacking)


async def parse(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`work` on a body of `size` bytes: in a thread if it is long, so that it holds up no other request."""
    if size <= INLINE_BYTES:
        return work(*args, **kwargs)
    return await anyio.to_thread.run_sync(functools.partial(work, *args, **kwargs), limiter=_reading)


def header_of(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that name (lower case): making `request.headers` costs more."""
    for key, value in scope["headers"]:
        if key == name:
            return value
    return None


def encoding_of(request: Request) -> str:
    if header_of(request.scope, b"content-encoding") is None:
        return "identity"
    return packing_of(request.headers)


def media_type(request: Request, allowed: AbstractSet[str], default: str) -> str:
    """The media type of the body; 415 for one that this route does not take."""
    header = header_of(request.scope, b"content-type")
    kind = default if header is None else _kind(header[:_KIND_MAX])
    if kind not in allowed:
        raise Problem(415, say("api.body_must_be", kinds=joined(sorted(allowed), "or")))
    return kind


@functools.lru_cache(maxsize=1024)
def _kind(header: bytes) -> str:
    return header.decode("latin-1").split(";")[0].strip().lower()


def query_of(request: Request) -> QueryParams:
    """The query parameters. A sender's are the same each time, and parsing them is a tenth of a request."""
    raw = request.scope["query_string"]
    return _query(raw) if len(raw) <= _QUERY_MAX else QueryParams(raw)


@functools.lru_cache(maxsize=4096)
def _query(raw: bytes) -> QueryParams:
    return QueryParams(raw)


def known_query(request: Request, allowed: AbstractSet[str]) -> None:
    """422 for a query parameter that this route does not have."""
    if request.scope["query_string"] and (unknown := sorted(set(query_of(request)) - allowed)):
        raise field_error(unknown[0][:100], say("api.unknown_query_parameter"))


def decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        short = [{"field": "body", "detail": say("signals.line_not_json")}]
        raise Problem(422, say("signals.not_json", error=said_by(error)), errors=short) from None


#: Supported values of Content-Encoding.
PACKINGS = ("gzip", "zstd")
_PLAIN = frozenset({"", "identity"})
_ALIASES = {"x-gzip": "gzip"}  # RFC 9110, 8.4.1.3
#: Input of one gzip step, bytes: what follows the end of a member is copied, once for each member.
_PIECE = 64 * 1024
#: Output of one gzip step at most, bytes.
_STEP = 1024 * 1024
#: Members of one gzip body. Senders write one; log shippers that append write some.
MEMBERS_MAX = 1000


def packing_of(headers: Headers) -> str:
    """`Content-Encoding` in lower case, all its lines joined; `identity` without one."""
    text = ", ".join(headers.getlist("content-encoding")).strip().lower()
    return "identity" if text in _PLAIN else _ALIASES.get(text, text)


def check_encoding(encoding: str) -> None:
    """Raises Problem 415 for an unsupported encoding, before the body is read."""
    if encoding not in {"identity", *PACKINGS}:
        named = encoding[:50]
        several = say("api.packing_several", name=named)
        raise Problem(415, several if "," in encoding else say("api.packing_unknown", name=named))


def unpacked(raw: bytes, encoding: str, limit: int) -> bytes:
    """The body of at most `limit` bytes; no more than that is unpacked.

    Raises Problem: 413 beyond the limit, 415 for another packing, 400 for what is not what it says.
    """
    check_encoding(encoding)
    if encoding == "identity":
        if len(raw) > limit:
            raise too_large(limit)
        return raw
    room = np.empty(limit + 1, np.uint8)  # untouched pages cost nothing
    size, why = _gunzip(raw, room) if encoding == "gzip" else _unzstd(raw, room)
    if not why and size <= limit:
        return room[:size].tobytes()
    del room  # otherwise it would live as long as the error's traceback
    if why:
        raise Problem(400, say("api.not_packed", encoding=encoding, why=why))
    raise too_large(limit)


def too_large(limit: int) -> Problem:
    return Problem(413, say("api.body_too_large", limit=limit), headers={"Connection": "close"})


def _gunzip(raw: bytes, room: NDArray[np.uint8]) -> tuple[int, Said]:
    """RFC 1952: one member or several. Returns (bytes written to `room`, why it is not gzip); a full `room`
    means too many bytes."""
    size = place = members = 0
    piece = b""
    unpacker = None
    while size < len(room):
        if unpacker is None:
            if place == len(raw):
                break
            members += 1
            if members > MEMBERS_MAX:
                return size, say("api.too_many_members", most=MEMBERS_MAX)
            unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
        if not piece:
            piece = raw[place : place + _PIECE]
            place += len(piece)
        try:
            part = unpacker.decompress(piece, min(_STEP, len(room) - size))
        except zlib.error as error:
            return size, said_by(error)
        if not part and not piece and not unpacker.eof:
            break  # nothing goes in, nothing comes out
        room[size : size + len(part)] = np.frombuffer(part, np.uint8)
        size += len(part)
        piece = unpacker.unconsumed_tail
        if unpacker.eof:
            place -= len(unpacker.unused_data)
            piece, unpacker = b"", None
    ended = size == len(room) or (unpacker is None and members > 0)
    return size, NO_WORDS if ended else say("api.cut_short")


def _unzstd(raw: bytes, room: NDArray[np.uint8]) -> tuple[int, Said]:
    """RFC 8878: one frame or several, with or without their sizes. As `_gunzip`.

    The decoder writes into the room it is given, and refuses frames that want a window of over 128 MiB.
    """
    if not raw:
        return 0, say("api.empty")
    try:
        return cramjam.zstd.decompress_into(raw, room.data), NO_WORDS
    except cramjam.DecompressionError as error:
        # Only these words say that the room is full; if they change, such a body is refused as 400.
        return (len(room), NO_WORDS) if "whole buffer" in str(error) else (0, said_by(error))


#: Key of a scope whose whole body has arrived (set by `edge`): then nothing has to be waited for.
WHOLE = "healer.whole"
#: A body of 8 MB needs 280 kB/s for this; senders are on the cluster's own network.
WHOLE_S = 30.0
#: After the grace period a body must bring at least so many bytes per second: one that drips is refused
#: before `WHOLE_S`.
GRACE_S, LEAST_RATE = 10.0, 1024
#: Bodies being received at once: of a token bound to a node, of all tokens of a job (each rank sends its
#: own), and of any other token.
OPEN_OF_NODE, OPEN_OF_JOB, OPEN = 64, 1024, 4096
#: Bytes of unfinished bodies: of one token or one job, and of all together.
HELD_OF_NODE, HELD_OF_JOB, HELD_OF_TOKEN, HELD = 16 * 2**20, 16 * 2**20, 64 * 2**20, 256 * 2**20
#: Bytes beyond `HELD` reserved for short bodies, such as events, so that long ones cannot keep them out.
SHORT, RESERVE = 256 * 1024, 32 * 2**20


class Stalled(Problem):
    """408: the body did not come in its time. The connection ends, as the rest of the body may still come."""

    def __init__(self, size: int) -> None:
        super().__init__(
            408,
            say("api.body_slow", size=size, whole_s=WHOLE_S, grace_s=GRACE_S, rate=LEAST_RATE),
            code="stalled",
            headers={"Connection": "close"},
        )


class Broken(Problem):
    """408, which is not read: the sender went away before its body was whole. That is a time-out, its own or
    the network's; nothing is wrong with the body."""

    def __init__(self, size: int) -> None:
        super().__init__(408, say("api.sender_left", size=size), code="stalled")


class Crowded(Problem):
    """429: too much is being received already, of this token or of all."""

    def __init__(self, why: Said) -> None:
        super().__init__(429, why, headers={"Retry-After": "2", "Connection": "close"})


class Receiver:
    """Receives bodies within the limits above. For one event loop."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        #: Bytes of unfinished bodies.
        self.held = 0

    async def body(
        self, receive: Receive, limit: int, caller: Caller, charge: Callable[[int], None] = lambda _: None
    ) -> bytes:
        """The whole body. Raises 413 as soon as it is too long, 408, 429, or 400 if it breaks off; then it
        calls `charge` with the number of bytes received."""
        bodies, held = OPEN, HELD_OF_TOKEN
        if caller.node is not None:
            bodies, held = OPEN_OF_NODE, HELD_OF_NODE
        elif caller.job is not None:
            bodies, held = OPEN_OF_JOB, HELD_OF_JOB
        with self._place(caller.owner, bodies):
            return await self._read(receive, limit, caller.owner, held, charge)

    @contextmanager
    def _place(self, owner: str, most: int) -> Iterator[None]:
        if self._open[owner] >= most:
            raise Crowded(say("api.bodies_of_token", most=most))
        self._open[owner] += 1
        try:
            yield
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]

    async def _read(
        self, receive: Receive, limit: int, owner: str, most: int, charge: Callable[[int], None]
    ) -> bytes:
        pieces: list[bytes] = []
        size = 0
        is_whole = False
        try:
            async for piece in _pieces(receive, limit):
                pieces.append(piece)
                size += len(piece)
                self._held[owner] += len(piece)
                self.held += len(piece)
                of_all = HELD + RESERVE if size <= SHORT else HELD
                if self._held[owner] > most or self.held > of_all:
                    raise Crowded(say("api.bodies_waiting"))
            is_whole = True
            return b"".join(pieces)
        finally:
            if not is_whole and size:
                charge(size)
            self.held -= size
            self._held[owner] -= size
            if self._held[owner] <= 0:
                del self._held[owner]


async def whole(receive: Receive, limit: int) -> bytes:
    """A short body: `Receiver.body` without a token."""
    return b"".join([piece async for piece in _pieces(receive, limit)])


async def _pieces(receive: Receive, limit: int) -> AsyncIterator[bytes]:
    began = asyncio.get_running_loop().time()
    size = 0
    more = True
    while more:
        try:
            async with asyncio.timeout_at(began + min(WHOLE_S, GRACE_S + size / LEAST_RATE)):
                message = await receive()
        except TimeoutError:
            raise Stalled(size) from None
        if message["type"] == "http.disconnect":
            raise Broken(size)
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        more = message.get("more_body", False)
        yield piece
