"""The routes of samples: metrics in four wire forms, and step times. Answered after the group commit."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from healer.api.group_commit import Busy, GroupCommit, QueueBounds, count_accepted, in_thread, respond, store
from healer.api.intake import Body, Intake, Refused, Translators
from healer.api.problems import Problem, field_error
from healer.api.quotas import Tally
from healer.api.refusals import foreign, refuse
from healer.api.request_preamble import (
    JSON,
    UNPACKED_LIMIT,
    Endpoint,
    Preamble,
    confine,
    encoding_of,
    known_query,
    media_type,
    parse,
    query_of,
    unknown_cluster,
)
from healer.api.services import Services
from healer.model import Component, LossReason, Observation, Role
from healer.model.telemetry import Report, StepBatch
from healer.ports.callers import Caller
from healer.ports.request_errors import DiskFull, NoRoom, Unavailable
from healer.ports.signal_stores import Arrival
from healer.signals.hardware_names import with_devices
from healer.signals.series import LIMITS, Measured
from healer.signals.step_times import Steps, step_batches
from healer.signals.translate import Translator
from healer.signals.wire import BadBody, HasNode, slurm_name
from healer.text import joined, said_by, say

R = TypeVar("R", Measured, Steps)
#: Bytes of bodies that may wait, and that are written in one commit.
METRICS_QUEUE, METRICS_BATCH = 64 * 1024 * 1024, 2 * 1024 * 1024
#: Their commit waits for no disk, so without this pause nothing would gather meanwhile.
GATHER_S = 0.005
#: OTLP is verbose; a collector's batch of 8,192 points is some 2 MB.
OTLP_UNPACKED_LIMIT = 16 * 1024 * 1024
STEPS_QUEUE, STEPS_BATCH = 16 * 1024 * 1024, 2 * 1024 * 1024
#: Inventories of a node's GPUs are stored again every 10 minutes; so many digests are remembered as stored.
_INVENTORIES = 20_000
_TEXT = frozenset({"text/plain", "application/openmetrics-text"})
_XML = frozenset({"text/xml", "application/xml", "text/plain"})
_PROTOBUF = frozenset({"application/x-protobuf"})
#: Prometheus only sends snappy; vmagent prefers zstd.
_WRITE_PACKINGS = ("snappy", "zstd", "gzip")


class MeasuringRoutes:
    """`POST /signals/…` of samples. The queues must have been started in the loop that serves the routes."""

    role = Role.signals

    def __init__(
        self,
        services: Services,
        preamble: Preamble,
        events: "GroupCommit[Arrival, bool]",
        tally: Tally,
        store_steps: Callable[[Sequence[StepBatch]], object],
    ) -> None:
        """`store_steps` puts step times into the store or the spool."""
        self._services, self._preamble, self._events = services, preamble, events
        self._store_steps, self._tally = store_steps, tally
        self._translators = Translators(services.rules, services.columns, preamble.gpus_shown)
        self.steps = GroupCommit(
            in_thread(Intake(self._put_steps).store, "steps"),
            QueueBounds(queue=STEPS_QUEUE, batch=STEPS_BATCH, weigh=_size, before=(events,)),
        )
        before = (events, self.steps)
        self.metrics = GroupCommit(
            in_thread(Intake(self._put_metrics).store, "metrics"),
            QueueBounds(
                queue=METRICS_QUEUE, batch=METRICS_BATCH, weigh=_size, before=before, gather_s=GATHER_S
            ),
        )
        self._inventories: OrderedDict[str, None] = OrderedDict()

    def endpoints(self) -> dict[str, Endpoint]:
        return {
            "metrics": self.columnar,
            "prometheus/write": self.remote_write,
            "openmetrics": self.openmetrics,
            "nvidia-smi": self.nvidia_smi,
            "step-times": self.step_times,
        }

    async def columnar(self, request: Request) -> Response:
        caller, has_node = await self._preamble.enter(request)
        media_type(request, JSON, "application/json")
        cluster = await self._cluster(request, caller, open_ok=True)  # each body may name its own
        raw = await self._preamble.body(request, unpacked_limit=UNPACKED_LIMIT)
        sent = self._sent(request, caller, cluster, has_node, raw, Translator.columnar)
        return await self._measured("metrics", sent)

    async def remote_write(self, request: Request) -> Response:
        """204; a bad body is 400, as Prometheus would send it again and again after a 5xx."""
        caller, has_node = await self._preamble.enter(request)
        media_type(request, _PROTOBUF, "application/x-protobuf")
        if "io.prometheus.write.v2" in request.headers.get("content-type", ""):
            raise Problem(415, say("api.remote_write_2"))
        packing = encoding_of(request)
        if packing not in _WRITE_PACKINGS:
            raise Problem(415, say("api.remote_write_encoding", kinds=joined(_WRITE_PACKINGS, "comma")))
        cluster = await self._cluster(request, caller)
        snappy, preamble = packing == "snappy", self._preamble
        raw = await (
            preamble.raw_body(request) if snappy else preamble.body(request, unpacked_limit=UNPACKED_LIMIT)
        )
        sent = self._sent(
            request, caller, cluster, has_node, raw, partial(Translator.remote_write, packed=snappy)
        )
        try:
            await self._measured("prometheus/write", sent)
        except BadBody as error:
            raise Problem(400, said_by(error)) from None
        return Response(None, 204)

    async def openmetrics(self, request: Request) -> Response:
        caller, has_node = await self._preamble.enter(request)
        media_type(request, _TEXT, "text/plain")
        cluster, node = await self._query(request, caller, has_node)
        raw = await self._preamble.body(request, unpacked_limit=UNPACKED_LIMIT)
        read = partial(Translator.exposition, node=node)
        return await self._measured("openmetrics", self._sent(request, caller, cluster, has_node, raw, read))

    async def nvidia_smi(self, request: Request) -> Response:
        caller, has_node = await self._preamble.enter(request)
        media_type(request, _XML, "text/xml")
        cluster, node = await self._query(request, caller, has_node)
        if node is None:
            raise field_error("node", say("api.smi_needs_node"))
        raw = await self._preamble.body(request, unpacked_limit=UNPACKED_LIMIT)
        read = partial(Translator.nvidia_smi, node=node)
        return await self._measured("nvidia-smi", self._sent(request, caller, cluster, has_node, raw, read))

    async def step_times(self, request: Request) -> Response:
        preamble = self._preamble
        caller, has_node, _, raw, cluster = await preamble.open(
            request, of_jobs=True, unpacked_limit=UNPACKED_LIMIT
        )
        now, clusters = self._services.clock.now(), await preamble.clusters()
        wrong_job = await preamble.wrong_job(caller)

        def allowed(where: str, node: str) -> bool:
            return _has_node_now(has_node, where, node)

        def read() -> Steps:
            steps = step_batches(raw, allowed, now, cluster=cluster, wrong_job=wrong_job)
            _confine_steps(caller, steps)
            if why := unknown_cluster((batch.cluster for batch in steps.batches), clusters):
                raise BadBody(why)
            steps.batches = [replace(batch, sent_by=caller.signature) for batch in steps.batches]
            return steps

        steps = await self._stored(self.steps, "step-times", Body(len(raw), read), caller)
        if isinstance(steps, Refused):
            await refuse(request, caller, said_by(steps), steps.spoken)
        self._preamble.meter.stored(request, steps.accepted, steps.rejected, steps.rejected_more)
        return respond(count_accepted("step-times", steps, steps.accepted))

    # --- before and after the queue ---

    def _sent(
        self,
        request: Request,
        caller: Caller,
        cluster: str,
        has_node: HasNode,
        raw: bytes,
        read: Callable[[Translator, bytes, HasNode, datetime], Measured],
    ) -> "Sent":
        now = self._services.clock.now()
        return Sent(
            request, caller, cluster, has_node, len(raw), lambda by, allowed: read(by, raw, allowed, now)
        )

    async def _query(self, request: Request, caller: Caller, has_node: HasNode) -> tuple[str, str | None]:
        """The cluster and the node, by Slurm's name, that the address names."""
        cluster = await self._cluster(request, caller, "node")
        node = query_of(request).get("node") or None
        if node:
            node = slurm_name(cluster, node, has_node)
            await confine(request, caller, {(cluster, node)})
        return cluster, node

    async def _cluster(self, request: Request, caller: Caller, *also: str, open_ok: bool = False) -> str:
        """The cluster of the whole body, one of ours: by the address, the token, or the only one; empty if it
        is open and may be. `also`: other query parameters of the route."""
        known_query(request, {"cluster", *also})
        wanted, served = query_of(request).get("cluster") or None, self._preamble.served
        if caller.cluster and (caller.cluster not in served or wanted not in (None, caller.cluster)):
            why = say("api.bound_to_cluster", name=caller.cluster)
            await refuse(request, caller, why, await self._preamble.mentioned(request))
        if open_ok and not (wanted or self._preamble.default_cluster(caller)):
            return ""
        cluster = await self._preamble.cluster_of(caller, wanted)
        if cluster not in served:
            raise field_error("cluster", say("api.serves", clusters=joined(served, "comma")))
        return cluster

    async def take_part(self, caller: Caller, size: int, read: Callable[[], Measured]) -> None:
        """Stores samples that came with a hook's report. Bad ones, and those that find no room, are
        dropped."""

        def read_attributed() -> Measured:
            measured = read()
            measured.reports = attributed(caller, measured.reports)
            return measured

        try:
            outcome = (await store(self.metrics, "metrics", (Body(size, read_attributed),), caller))[0]
        except (Problem, Unavailable):
            return
        if isinstance(outcome, Measured) and outcome.inventory:
            await self._remember(outcome.inventory)

    def hear(self, beats: Iterable[Observation]) -> None:
        """Heartbeats name the GPUs that samples are of."""
        self._translators.hear(beats)

    def translator(self, cluster: str) -> Translator:
        """For the writer's thread only."""
        return self._translators.current(cluster)

    async def otlp(self, request: Request, *, json: bool) -> Measured:
        """Stores metrics of OTLP; `otlp_routes` makes the answer."""
        caller, has_node = await self._preamble.enter(request)
        cluster = await self._cluster(request, caller)
        raw = await self._preamble.body(request, unpacked_limit=OTLP_UNPACKED_LIMIT)
        route, read = "otlp/v1/metrics", partial(Translator.otlp, json=json)
        measured = await self._take(route, self._sent(request, caller, cluster, has_node, raw, read))
        count_accepted(route, measured, measured.samples, unrecognised=measured.unrecognised)
        return measured

    async def _measured(self, route: str, sent: "Sent") -> Response:
        measured = await self._take(route, sent)
        return respond(count_accepted(route, measured, measured.samples, unrecognised=measured.unrecognised))

    async def _take(self, route: str, sent: "Sent") -> Measured:
        request = sent.request

        def read() -> Measured:
            measured = sent.read(self.translator(sent.cluster), _allowed_nodes(sent))
            measured.reports = attributed(sent.caller, measured.reports)
            return measured

        measured = await self._stored(self.metrics, route, Body(sent.size, read), sent.caller)
        if isinstance(measured, Refused):
            await refuse(request, sent.caller, said_by(measured), await self._spoken(sent, measured))
        if measured.inventory:
            await self._remember(measured.inventory)
        entries = measured.samples + measured.unrecognised
        self._preamble.meter.stored(
            request, entries, measured.rejected, measured.rejected_more, series=measured.placed
        )
        for name, unknown in measured.unknown.items():
            if unknown.why in LIMITS:
                why = say("signals.field", field=name, text=unknown.why)
                self._preamble.meter.lose(request, LossReason.series_limit, unknown.count, why)
        return measured

    async def _stored(
        self, queue: "GroupCommit[Body[R], R | BadBody | Refused]", route: str, body: Body[R], caller: Caller
    ) -> R | Refused:
        if queue is self.metrics and self._preamble.database.away:
            # Newer ones follow, and late ones are of no use: they neither wait nor fill the disk.
            raise Unavailable(say("api.metrics_not_kept"))
        outcome = (await store(queue, route, (body,), caller))[0]
        if isinstance(outcome, BadBody):
            try:
                raise outcome
            finally:
                del outcome, body  # a cycle with the traceback would hold both until a garbage collection
        return outcome

    async def _spoken(self, sent: "Sent", refused: Refused) -> Collection[Component]:
        """Every foreign node of a body that was refused at the first one. A separate translator looks for
        them: the shared one would remember their series as unknown, also for other senders."""
        if not self._preamble.records_refusal(sent.caller):
            return refused.spoken
        found = dict.fromkeys(refused.spoken)

        def collect(cluster: str, node: str) -> bool:
            pairs = {(cluster, node)}
            if _has_node_now(sent.has_node, cluster, node) and (refusal := foreign(sent.caller, pairs)):
                found.update(dict.fromkeys(refusal.spoken))
            return False

        def look() -> None:
            with suppress(BadBody):
                nodes = with_devices(collect, bound=sent.caller.node is not None)
                sent.read(self._translators.separate(sent.cluster), nodes)

        await parse(sent.size, look)
        return found

    async def _remember(self, inventory: list[Observation]) -> None:
        """Stores which GPU has which address with the events; dropped if there is no room, as it comes
        again."""
        new = [seen for seen in inventory if seen.digest not in self._inventories]
        if not new:
            return
        try:
            await self._events.add([Arrival(seen) for seen in new], shed_first=True)
        except (Busy, NoRoom, Unavailable):
            return
        self._inventories.update(dict.fromkeys(seen.digest for seen in new))
        while len(self._inventories) > _INVENTORIES:
            self._inventories.popitem(last=False)

    # --- in the writers' threads ---

    def _put_metrics(self, batch: list[Measured]) -> None:
        reports = [report for measured in batch for report in measured.reports]
        if reports:
            try:
                self._services.samples.put(reports)
            except DiskFull as error:
                self._preamble.database.no_room(error)
                raise
            self._preamble.database.wrote()
        now: datetime | None = None
        for measured in batch:
            if measured.unknown:
                now = now or self._services.clock.now()
                self._tally.add(measured.cluster or self._services.cluster, measured.unknown.items(), now)

    def _put_steps(self, parsed: list[Steps]) -> None:
        batches = [batch for steps in parsed for batch in steps.batches]
        if batches:
            self._store_steps(batches)


def _size(body: Body) -> int:
    return body.size


class Sent(NamedTuple):
    """A body of metrics. `read` gives it to a translator, with a look-up of the nodes it may speak of."""

    request: Request
    caller: Caller
    cluster: str
    has_node: HasNode
    size: int
    read: Callable[[Translator, HasNode], Measured]


def _allowed_nodes(sent: Sent) -> HasNode:
    """The look-up of nodes and devices for this sender. The first name foreign to a bound token refuses the
    whole body, before any series of that node is learned or numbered."""

    def allowed(cluster: str, node: str) -> bool:
        if not _has_node_now(sent.has_node, cluster, node):
            return False
        if found := foreign(sent.caller, {(cluster, node)}):
            raise Refused(*found)
        return True

    return with_devices(allowed, bound=sent.caller.node is not None)


def _has_node_now(has_node: HasNode, cluster: str, node: str) -> bool:
    """In a writer's thread: a cluster that Slurm has not shown yet fails this one body and no other."""
    try:
        return has_node(cluster, node)
    except Problem as problem:
        raise BadBody(problem.detail) from None


def _confine_steps(caller: Caller, steps: Steps) -> None:
    """Refuses step times of other nodes or jobs than those the token is bound to."""
    nodes = {
        (batch.cluster, batch.nodes[index] if index >= 0 else "")
        for batch in steps.batches
        for index in set(batch.node.tolist())
    }
    jobs = {(batch.cluster, batch.job) for batch in steps.batches}
    if found := foreign(caller, nodes, jobs):
        raise Refused(*found)


def attributed(caller: Caller, reports: list[Report]) -> list[Report]:
    """The same figures with the relay that sent them."""
    named = ((report, caller.relay_of(report.node)) for report in reports)
    return [msgspec.structs.replace(report, relayed_by=relay) if relay else report for report, relay in named]
