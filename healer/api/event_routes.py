"""The routes of events: asynchronous, answered after the group commit. msgspec reads the bodies."""

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from healer.api.group_commit import Accepted, GroupCommit, NodeVerdict, respond, store_parsed
from healer.api.node_verdicts import NodeVerdicts
from healer.api.problems import Problem, field_error
from healer.api.quotas import SENDER
from healer.api.refusals import refuse
from healer.api.request_preamble import (
    INLINE_BYTES,
    JSON,
    Endpoint,
    Preamble,
    by_slurm,
    confine,
    decoded,
    known_query,
    media_type,
    parse,
    unknown_cluster,
)
from healer.api.services import Services
from healer.model import LineBook, LossReason, Observation, ObservationKind, Role
from healer.model.detection import KERNEL_LINES
from healer.ports.callers import Caller
from healer.ports.signal_stores import Arrival
from healer.signals import wire
from healer.signals.identity import relayed_digest
from healer.signals.logs import KernelRecords, Record, export_records, json_records, kernel_records, record_of
from healer.signals.wire import HasNode, checkpoint_observations
from healer.text import say

#: Heartbeats of one node within this time of a stored one are counted as duplicates, not stored, unless they
#: say something else.
HEARTBEAT_EVERY_S = 1.0
#: Boot id, GPUs, lost lines.
_BeatNews = tuple[str | None, object, object]
#: Cluster, node, and the relay, if the heartbeat is not by the node itself.
_BeatSender = tuple[str, str | None, str]
#: Media types, and the query parameters with each.
_LINES = {"application/json": frozenset[str](), "text/plain": frozenset({"cluster", "node", "boot_id"})}
#: Signals that may accuse a node, or report its boot, and so record their sender.
_ACCUSING = KERNEL_LINES | {
    ObservationKind.hook,
    ObservationKind.heartbeat,
    ObservationKind.gpu_identity,
}


class SignalRoutes:
    """`POST /signals/…`. `commit` must have been started in the event loop that serves the routes."""

    role = Role.signals

    def __init__(
        self,
        services: Services,
        preamble: Preamble,
        commit: "GroupCommit[Arrival, bool]",
        hear: Callable[[Iterable[Observation]], None],
    ) -> None:
        """`hear` is given the heartbeats: they name the GPUs that samples are of."""
        self._verdicts = NodeVerdicts(services, preamble)
        self._services = services
        self._preamble = preamble
        self._commit, self._hear = commit, hear
        #: When the last one was stored, and what it said.
        self._beats: dict[_BeatSender, tuple[float, _BeatNews]] = {}

    def endpoints(self) -> dict[str, Endpoint]:
        return {"kernel-log": self.kernel_log, "heartbeat": self.heartbeat, "checkpoints": self.checkpoints}

    async def kernel_log(self, request: Request) -> Response:
        caller, has_node, kind, raw, cluster = await self._preamble.open(request, _LINES)
        now = self._services.clock.now()
        book = self._services.rules().kernel_lines
        if kind == "text/plain":
            query = request.query_params
            cluster = await self._preamble.cluster_of(caller, query.get("cluster"))
            node = query.get("node")
            if not node:
                raise field_error("node", say("api.text_needs_node"))
            await confine(request, caller, by_slurm({(cluster, node)}, has_node))
            source = wire.NodeBoot(cluster, node, query.get("boot_id"))
            parsed = await parse(len(raw), _text_lines, raw, has_node, now, source, book=book)
        else:
            is_bound = bool(caller.node or caller.cluster)
            named, parsed = await parse(
                len(raw), _json_lines, raw, has_node, now, cluster, book=book, names=is_bound
            )
            if is_bound:
                await confine(request, caller, by_slurm(named, has_node))
        return await self._store(request, "kernel-log", parsed, size=len(raw))

    async def heartbeat(self, request: Request) -> Response:
        caller, has_node, _, raw, cluster = await self._preamble.open(request)
        body = await parse(len(raw), decoded, raw)
        named = await parse(len(raw), wire.nodes_of_heartbeats, body, cluster=cluster)
        await confine(request, caller, by_slurm(named, has_node))
        verdict = await self._verdicts.of(caller)
        if isinstance(body, dict) and body.get("asks") is True and verdict is not msgspec.UNSET:
            return respond(Accepted(accepted=0, duplicates=1, unrecognised=0, verdict=verdict))
        now = self._services.clock.now()
        parsed = await parse(len(raw), wire.heartbeat_observations, body, has_node, now, cluster=cluster)
        self._hear(parsed.observations)
        return await self._store(request, "heartbeat", parsed, size=len(raw), heartbeat=True, verdict=verdict)

    async def checkpoints(self, request: Request) -> Response:
        """What a job can go back to. Events too: a requeue may wait for one."""
        caller, _ = await self._preamble.enter(request, of_jobs=True)
        media_type(request, JSON, "application/json")
        known_query(request, set())
        if caller.node:
            why = say("api.bound_not_to_a_job", node=caller.node)
            await refuse(request, caller, why, await self._preamble.mentioned(request))
        raw = await self._preamble.body(request)
        body, now = await parse(len(raw), decoded, raw), self._services.clock.now()
        default = self._preamble.default_cluster(caller)
        parsed = await parse(len(raw), checkpoint_observations, body, now, cluster=default)
        jobs = {(job.cluster, job.job or "") for job in (seen.component for seen in parsed.observations)}
        await confine(request, caller, jobs=jobs)
        if why := unknown_cluster((cluster for cluster, _ in jobs), await self._preamble.clusters()):
            raise wire.BadBody(why)
        return await self._store(request, "checkpoints", parsed, size=len(raw))

    async def _store(
        self,
        request: Request,
        route: str,
        parsed: wire.Accepted,
        *,
        size: int,
        heartbeat: bool = False,
        verdict: NodeVerdict | msgspec.UnsetType = msgspec.UNSET,
    ) -> Response:
        caller = request.scope[SENDER]
        answer = await self.stored(route, caller, parsed, size=size, heartbeat=heartbeat)
        entries = len(parsed.observations) + parsed.unrecognised
        self._preamble.meter.stored(request, entries, parsed.rejected, parsed.rejected_more)
        return respond(
            answer if verdict is msgspec.UNSET else msgspec.structs.replace(answer, verdict=verdict)
        )

    async def stored(
        self, route: str, caller: Caller, parsed: wire.Accepted, *, size: int, heartbeat: bool = False
    ) -> Accepted:
        """The answer, after the commit. `size` of the body, in bytes. Raises Problem 429 when too much
        waits."""
        observations = [seen for seen in parsed.observations if not heartbeat or self._is_due(caller, seen)]
        named = [(seen, parsed.alternatives.get(seen.digest, ())) for seen in observations]
        if size <= INLINE_BYTES:  # as `parse` does, without its call: the usual line is on its way to a drain
            arrivals = arrivals_of(caller, named)
        else:
            arrivals = await parse(size, arrivals_of, caller, named)
        answer = await store_parsed(self._commit, route, arrivals, parsed, caller, shed_first=heartbeat)
        if heartbeat:
            now = time.monotonic()
            for seen in observations:
                self._beats[_sender_of(caller, seen)] = now, _news_of(seen)
        return answer

    def _is_due(self, caller: Caller, beat: Observation) -> bool:
        stored = self._beats.get(_sender_of(caller, beat))
        if stored is None or stored[1] != _news_of(beat):
            return True
        return time.monotonic() - stored[0] >= HEARTBEAT_EVERY_S


def _json_lines(
    raw: bytes, has_node: HasNode, now: datetime, cluster: str, *, book: LineBook, names: bool
) -> tuple[set[tuple[str, str]], wire.Accepted]:
    """The (cluster, node) that the body names, if `names` asks for them, and what it reports."""
    body = wire.kernel_log_body(raw) or decoded(raw)
    named = wire.nodes_of_kernel_log(body, cluster=cluster) if names else set[tuple[str, str]]()
    return named, wire.kernel_log_observations(body, has_node, now, cluster=cluster, book=book)


def _text_lines(
    raw: bytes, has_node: HasNode, now: datetime, source: wire.NodeBoot, *, book: LineBook
) -> wire.Accepted:
    text = raw.decode("utf-8", "replace")
    return wire.kernel_text_observations(text, has_node, now, source, book=book)


def _sender_of(caller: Caller, beat: Observation) -> _BeatSender:
    where = beat.component
    return where.cluster, where.node, caller.relay_of(where.node)


def _news_of(beat: Observation) -> _BeatNews:
    """What a heartbeat says besides that the node lives."""
    return beat.boot_id, beat.data.get("gpus"), beat.data.get("lost")


_EXPORT = "application/vnd.fdo.journal"
_JSON = frozenset(
    {"application/json", "application/x-ndjson", "application/jsonl", "application/x-jsonlines"}
)
_KINDS = _JSON | {_EXPORT}


class LogRoutes:
    """Kernel lines among the records of log shippers; `take` also serves OTLP."""

    role = Role.signals

    def __init__(self, services: Services, preamble: Preamble, signals: SignalRoutes) -> None:
        self._services = services
        self._preamble = preamble
        self._signals = signals

    def endpoints(self) -> dict[str, Endpoint]:
        return {"logs": self.logs}

    async def logs(self, request: Request) -> Response:
        caller, has_node = await self._preamble.enter(request)
        if request.headers.get("content-type", "").lower().startswith("text/plain"):
            raise Problem(415, say("api.text_not_kernel"))
        kind = media_type(request, _KINDS, "application/json")
        known_query(request, {"cluster", "node"})
        raw = await self._preamble.body(request)
        read = _exported if kind == _EXPORT else json_records
        answer, _ = await self.take("logs", request, caller, has_node, len(raw), lambda: read(raw))
        return respond(answer)

    async def take(
        self,
        route: str,
        request: Request,
        caller: Caller,
        has_node: HasNode,
        size: int,
        read: Callable[[], Iterable[Record]],
    ) -> tuple[Accepted, KernelRecords]:
        """Stores the kernel lines of a body; (the answer, what was parsed). `unrecognised` of the answer
        counts the other lines too. Raises Problem and BadBody."""
        query = request.query_params
        wanted = query.get("cluster") or None
        preamble = self._preamble
        cluster = await preamble.cluster_of(caller, wanted) if wanted else preamble.default_cluster(caller)
        node = query.get("node") or caller.node
        now = self._services.clock.now()

        def parsed() -> KernelRecords:
            book = self._services.rules().kernel_lines
            return kernel_records(read(), has_node, now, cluster=cluster, node=node, book=book)

        logged = await parse(size, parsed)
        if caller.node or caller.cluster:
            await confine(request, caller, set(logged.nodes))
        answer = await self._signals.stored(route, caller, logged.accepted, size=size)
        rejected, more = logged.accepted.rejected, logged.accepted.rejected_more
        preamble.meter.stored(request, answer.entries + logged.not_kernel, rejected, more)
        if logged.not_kernel:
            preamble.meter.lose(request, LossReason.not_kernel, logged.not_kernel, logged.example, at=cluster)
            answer = msgspec.structs.replace(answer, unrecognised=answer.unrecognised + logged.not_kernel)
        return answer, logged


def _exported(raw: bytes) -> Iterator[Record]:
    return (record_of(index, fields) for index, fields in enumerate(export_records(raw)))


def arrivals_of(caller: Caller, observations: Iterable[tuple[Observation, tuple[str, ...]]]) -> list[Arrival]:
    """(observation, other digests of the same signal) as they are stored. A relay's text has an identity of
    its own, so that it never takes the place of the node's word."""
    return [_arrival(caller, seen, also) for seen, also in observations]


def _arrival(caller: Caller, seen: Observation, also: tuple[str, ...]) -> Arrival:
    relay = caller.relay_of(seen.component.node) if seen.kind in _ACCUSING else ""
    if not relay:
        return Arrival(seen, also)
    relayed = msgspec.structs.replace(seen, digest=relayed_digest(seen.digest), relayed_by=relay)
    return Arrival(relayed, tuple(relayed_digest(digest) for digest in also))
