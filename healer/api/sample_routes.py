"""The routes of samples: metrics in four wire forms, and step times. Answered after the group commit."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from healer.api.access import foreign, refuse
from healer.api.group_commit import (
    Busy,
    GroupCommit,
    QueueBounds,
    count_results,
    counted,
    in_thread,
    respond,
    store,
)
from healer.api.intake import Body, Intake, Refused, Translators
from healer.api.problems import Problem, field_error
from healer.api.quotas import Tally
from healer.api.request_preamble import (
    JSON,
    UNPACKED_LIMIT,
    Preamble,
    aside,
    confine,
    encoding_of,
    known_query,
    media_type,
    query_of,
    strange,
)
from healer.api.services import Services
from healer.model import Component, LossReason, Observation, Role
from healer.model.telemetry import StepBatch
from healer.ports.callers import Caller
from healer.ports.request_errors import DiskFull, NoRoom, Unavailable
from healer.ports.signal_stores import Arrival
from healer.signals import wire
from healer.signals.hardware_names import with_devices
from healer.signals.series import LIMITS, Measured
from healer.signals.step_times import Steps, step_batches
from healer.signals.translate import Translator
from healer.signals.wire import BadBody, Known

R = TypeVar("R", Measured, Steps)
#: Bytes of bodies that may wait, and that are written in one commit.
METRICS_QUEUE, METRICS_BATCH = 64 * 1024 * 1024, 2 * 1024 * 1024
#: Metrics wait for no disk, so nothing makes them gather while another commit is under way.
GATHER_S = 0.005
#: OTLP says each point at length; a collector's batch of 8,192 points is some 2 MB.
OTLP_UNPACKED_LIMIT = 16 * 1024 * 1024
STEPS_QUEUE, STEPS_BATCH = 16 * 1024 * 1024, 2 * 1024 * 1024
#: What a node's exporters say of its GPUs is stored again every 10 minutes; so many are known as stored.
_INVENTORIES = 20_000
_TEXT = frozenset({"text/plain", "application/openmetrics-text"})
_XML = frozenset({"text/xml", "application/xml", "text/plain"})
_PROTOBUF = frozenset({"application/x-protobuf"})
#: Prometheus packs as snappy alone; vmagent as zstd where it may.
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
        """`store_steps` takes step times: into the store, or where they wait for it."""
        self._services = services
        self._preamble = preamble
        self._events = events
        self._store_steps = store_steps
        self._tally = tally
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

    def routes(self, prefix: str) -> list[Route]:
        return [
            Route(f"{prefix}/signals/metrics", self.columnar, methods=["POST"]),
            Route(f"{prefix}/signals/prometheus/write", self.remote_write, methods=["POST"]),
            Route(f"{prefix}/signals/openmetrics", self.openmetrics, methods=["POST"]),
            Route(f"{prefix}/signals/nvidia-smi", self.nvidia_smi, methods=["POST"]),
            Route(f"{prefix}/signals/step-times", self.step_times, methods=["POST"]),
        ]

    async def columnar(self, request: Request) -> Response:
        caller, known = await self._preamble.enter(request)
        media_type(request, JSON, "application/json")
        cluster = await self._cluster(request, caller, open_ok=True)  # each body may name its own
        raw = await self._preamble.body(request, unpacked_limit=UNPACKED_LIMIT)
        now = self._services.clock.now()
        sent = Sent(request, caller, cluster, known, len(raw), lambda by, own: by.columnar(raw, own, now))
        return await self._measured("metrics", sent)

    async def remote_write(self, request: Request) -> Response:
        """204. What is wrong with a body is 400: Prometheus would send it again and again after a 5xx."""
        caller, known = await self._preamble.enter(request)
        media_type(request, _PROTOBUF, "application/x-protobuf")
        if "io.prometheus.write.v2" in request.headers.get("content-type", ""):
            raise Problem(
                415, "remote_write 2.0 is not spoken here: send 1.0 (prometheus.WriteRequest, the default)"
            )
        packing = encoding_of(request)
        if packing not in _WRITE_PACKINGS:
            raise Problem(415, f"remote_write needs Content-Encoding: {', '.join(_WRITE_PACKINGS)}")
        cluster = await self._cluster(request, caller)
        snappy, preamble = packing == "snappy", self._preamble
        raw = await (
            preamble.raw_body(request) if snappy else preamble.body(request, unpacked_limit=UNPACKED_LIMIT)
        )
        now = self._services.clock.now()

        def read(by: Translator, own: Known) -> Measured:
            return by.remote_write(raw, own, now, packed=snappy)

        try:
            await self._measured("prometheus/write", Sent(request, caller, cluster, known, len(raw), read))
        except BadBody as error:
            raise Problem(400, str(error)) from None
        return Response(None, 204)

    async def openmetrics(self, request: Request) -> Response:
        caller, known = await self._preamble.enter(request)
        media_type(request, _TEXT, "text/plain")
        cluster, node = await self._query(request, caller)
        raw = await self._preamble.body(request, unpacked_limit=UNPACKED_LIMIT)
        now = self._services.clock.now()

        def read(by: Translator, own: Known) -> Measured:
            return by.exposition(raw, own, now, node=node)

        return await self._measured("openmetrics", Sent(request, caller, cluster, known, len(raw), read))

    async def nvidia_smi(self, request: Request) -> Response:
        caller, known = await self._preamble.enter(request)
        media_type(request, _XML, "text/xml")
        cluster, node = await self._query(request, caller)
        if node is None:
            raise field_error("node", "the output of nvidia-smi needs ?node= in the address")
        raw = await self._preamble.body(request, unpacked_limit=UNPACKED_LIMIT)
        now = self._services.clock.now()

        def read(by: Translator, own: Known) -> Measured:
            return by.nvidia_smi(raw, own, now, node=node)

        return await self._measured("nvidia-smi", Sent(request, caller, cluster, known, len(raw), read))

    async def step_times(self, request: Request) -> Response:
        caller, known = await self._preamble.enter(request, of_jobs=True)
        media_type(request, JSON, "application/json")
        known_query(request, set())
        raw = await self._preamble.body(request, unpacked_limit=UNPACKED_LIMIT)
        now = self._services.clock.now()
        cluster, clusters = self._preamble.default(caller), await self._preamble.clusters()
        wrong_job = await self._preamble.wrong_job(caller)

        def sure(where: str, node: str) -> bool:
            return _known_now(known, where, node)

        def read() -> Steps:
            steps = step_batches(raw, sure, now, cluster=cluster, wrong_job=wrong_job)
            _confine_steps(caller, steps)
            if why := strange((batch.cluster for batch in steps.batches), clusters):
                raise BadBody(why)
            return steps

        steps = await self._stored(self.steps, "step-times", Body(len(raw), read))
        if isinstance(steps, Refused):
            await refuse(request, caller, str(steps), steps.spoken)
        self._preamble.meter.stored(request, steps.accepted, steps.rejected, steps.rejected_more)
        return _answer("step-times", steps.accepted, 0, steps.rejected, steps.rejected_more)

    # --- before and after the queue ---

    async def _query(self, request: Request, caller: Caller) -> tuple[str, str | None]:
        """The cluster and the node that the address names."""
        cluster = await self._cluster(request, caller, "node")
        node = query_of(request).get("node") or None
        if node:
            await confine(request, caller, {(cluster, node)})
        return cluster, node

    async def _cluster(self, request: Request, caller: Caller, *also: str, open_ok: bool = False) -> str:
        """The cluster of the whole body, one of ours: by the address, the token, or the only one.

        `also` may stand in the address too. Empty where it is open and may be."""
        known_query(request, {"cluster", *also})
        wanted, served = query_of(request).get("cluster") or None, self._preamble.served
        if caller.cluster and (caller.cluster not in served or wanted not in (None, caller.cluster)):
            why = f"this token is bound to the cluster {caller.cluster}"
            await refuse(request, caller, why, await self._preamble.mentioned(request))
        if open_ok and not (wanted or self._preamble.default(caller)):
            return ""
        cluster = await self._preamble.meant(caller, wanted)
        if cluster not in served:
            raise field_error("cluster", f"healer serves {', '.join(served)} here")
        return cluster

    async def take_part(self, size: int, read: Callable[[], Measured]) -> None:
        """Samples that came with something that matters more, by a sender whose words are its node's alone.

        What is wrong with them, or too much now, is nothing to the caller."""
        try:
            outcome = (await self.metrics.add((Body(size, read),)))[0]
        except (Busy, Unavailable):
            return
        if isinstance(outcome, Measured) and outcome.inventory:
            await self._remember(outcome.inventory)

    def translator(self, cluster: str) -> Translator:
        """Asked in the writer's thread, which alone may use it."""
        return self._translators.current(cluster)

    async def otlp(self, request: Request, *, json: bool) -> Measured:
        """Metrics of OTLP; `healer.api.otlp` makes the answer."""
        caller, known = await self._preamble.enter(request)
        cluster = await self._cluster(request, caller)
        raw = await self._preamble.body(request, unpacked_limit=OTLP_UNPACKED_LIMIT)
        now = self._services.clock.now()

        def read(by: Translator, own: Known) -> Measured:
            return by.otlp(raw, own, now, json=json)

        measured = await self._taken("otlp/v1/metrics", Sent(request, caller, cluster, known, len(raw), read))
        rejected = len(measured.rejected) + measured.rejected_more
        count_results("otlp/v1/metrics", measured.samples, 0, measured.unrecognised, rejected)
        return measured

    async def _measured(self, route: str, sent: "Sent") -> Response:
        measured = await self._taken(route, sent)
        return _answer(
            route, measured.samples, measured.unrecognised, measured.rejected, measured.rejected_more
        )

    async def _taken(self, route: str, sent: "Sent") -> Measured:
        request = sent.request

        def read() -> Measured:
            return sent.read(self.translator(sent.cluster), _own(sent))

        measured = await self._stored(self.metrics, route, Body(sent.size, read))
        if isinstance(measured, Refused):
            await refuse(request, sent.caller, str(measured), await self._spoken(sent, measured))
        if measured.inventory:
            await self._remember(measured.inventory)
        entries = measured.samples + measured.unrecognised
        self._preamble.meter.stored(
            request, entries, measured.rejected, measured.rejected_more, series=measured.placed
        )
        for name, one in measured.unknown.items():
            if one.why in LIMITS:
                self._preamble.meter.lose(request, LossReason.series_limit, one.count, f"{name}: {one.why}")
        return measured

    async def _stored(
        self,
        queue: "GroupCommit[Body[R], R | BadBody | Refused]",
        route: str,
        body: Body[R],
    ) -> R | Refused:
        if queue is self.metrics and self._preamble.reach.away:
            # They come again, and windows tell that they are late: nobody waits, and no disk is filled.
            raise Unavailable("the database does not answer; metrics are not kept meanwhile")
        outcome = (await store(queue, route, (body,)))[0]
        if isinstance(outcome, BadBody):
            raise outcome
        return outcome

    async def _spoken(self, sent: "Sent", refused: Refused) -> Collection[Component]:
        """Every foreign node of a body that was refused at the first one. A translator of its own looks for
        them: ours would remember their series as strange, also for other senders."""
        if not self._preamble.notes(sent.caller):
            return refused.spoken
        found = dict.fromkeys(refused.spoken)

        def strange(cluster: str, node: str) -> bool:
            if _known_now(sent.known, cluster, node) and (one := foreign(sent.caller, {(cluster, node)})):
                found.update(dict.fromkeys(one.spoken))
            return False

        def look() -> None:
            with suppress(BadBody):
                known = with_devices(strange, bound=sent.caller.node is not None)
                sent.read(self._translators.apart(sent.cluster), known)

        await aside(sent.size, look)
        return found

    async def _remember(self, inventory: list[Observation]) -> None:
        """Which GPU has which address: told with the samples, stored with the events, missed for nothing."""
        new = [one for one in inventory if one.digest not in self._inventories]
        if not new:
            return
        try:
            await self._events.add([Arrival(one) for one in new], shed_first=True)
        except (Busy, NoRoom, Unavailable):
            return
        for one in new:
            self._inventories[one.digest] = None
        while len(self._inventories) > _INVENTORIES:
            self._inventories.popitem(last=False)

    # --- in the writers' threads ---

    def _put_metrics(self, told: list[Measured]) -> None:
        reports = [report for measured in told for report in measured.reports]
        if reports:
            try:
                self._services.samples.put(reports)
            except DiskFull as error:
                self._preamble.reach.disk_full = str(error)
                raise
        now: datetime | None = None
        for measured in told:
            if measured.unknown:
                now = now or self._services.clock.now()
                self._tally.add(measured.cluster or self._services.cluster, measured.unknown.items(), now)

    def _put_steps(self, told: list[Steps]) -> None:
        batches = [batch for steps in told for batch in steps.batches]
        if batches:
            self._store_steps(batches)


def _size(body: Body) -> int:
    return body.size


class Sent(NamedTuple):
    """A body of metrics. `read` gives it to a translator, with the nodes that there are for it."""

    request: Request
    caller: Caller
    cluster: str
    known: Known
    size: int
    read: Callable[[Translator, Known], Measured]


def _own(sent: Sent) -> Known:
    """Which nodes and devices the cluster has, for a bound token: the first word of a foreign one refuses
    the whole, before anything of that node is learned from it or numbered."""

    def own(cluster: str, node: str) -> bool:
        if not _known_now(sent.known, cluster, node):
            return False
        if found := foreign(sent.caller, {(cluster, node)}):
            raise Refused(*found)
        return True

    return with_devices(own, bound=sent.caller.node is not None)


def _known_now(known: Known, cluster: str, node: str) -> bool:
    """In a writer's thread what cannot be told yet is wrong with this one body, and with no other."""
    try:
        return known(cluster, node)
    except Problem as problem:
        raise BadBody(problem.detail) from None


def _confine_steps(caller: Caller, steps: Steps) -> None:
    """A token bound to a node tells of ranks on that node alone; one bound to a job of that job alone."""
    nodes = {
        (batch.cluster, batch.nodes[index] if index >= 0 else "")
        for batch in steps.batches
        for index in set(batch.node.tolist())
    }
    jobs = {(batch.cluster, batch.job) for batch in steps.batches}
    if found := foreign(caller, nodes, jobs):
        raise Refused(*found)


def _answer(
    route: str, count: int, unrecognised: int, rejected: Sequence[wire.Rejected], rejected_more: int
) -> Response:
    return respond(counted(route, count, unrecognised, rejected, rejected_more))
