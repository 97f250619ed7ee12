"""`POST /signals/logs`: what log shippers send. The kernel lines among it are stored, the rest is counted."""

from collections.abc import Callable, Iterable, Iterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from healer.api.entry import Entry, aside, confine, known_query, media_type, read_body
from healer.api.problems import Problem
from healer.api.services import Services
from healer.api.signals import SignalRoutes
from healer.api.views import Accepted
from healer.model import LossReason, Role
from healer.ports.callers import Caller
from healer.signals.journal import export_records
from healer.signals.logs import Logged, Record, json_records, kernel_records, record_of
from healer.signals.wire import Known

_EXPORT = "application/vnd.fdo.journal"
_JSON = frozenset(
    {"application/json", "application/x-ndjson", "application/jsonl", "application/x-jsonlines"}
)
_KINDS = _JSON | {_EXPORT}

_encode = msgspec.json.Encoder().encode


class LogRoutes:
    """Kernel lines go the way of all events; `take` is also that of OTLP."""

    role = Role.signals

    def __init__(self, services: Services, entry: Entry, signals: SignalRoutes) -> None:
        self._services = services
        self._entry = entry
        self._signals = signals

    def routes(self, prefix: str) -> list[Route]:
        return [Route(f"{prefix}/signals/logs", self.logs, methods=["POST"])]

    async def logs(self, request: Request) -> Response:
        caller, known = await self._entry.enter(request)
        if request.headers.get("content-type", "").lower().startswith("text/plain"):
            raise Problem(
                415,
                "text does not prove that the kernel wrote it: send JSON with _TRANSPORT or inputname,"
                " or what is surely the kernel's to /signals/kernel-log",
            )
        kind = media_type(request, _KINDS, "application/json")
        known_query(request, {"cluster", "node"})
        raw = await read_body(request)
        read = _exported if kind == _EXPORT else json_records
        answer, _ = await self.take("logs", request, caller, known, len(raw), lambda: read(raw))
        return Response(_encode(answer), 202, media_type="application/json")

    async def take(
        self,
        route: str,
        request: Request,
        caller: Caller,
        known: Known,
        size: int,
        read: Callable[[], Iterable[Record]],
    ) -> tuple[Accepted, Logged]:
        """Stores the kernel lines of a body. `unrecognised` of the answer counts the others too.

        Raises Problem and BadBody."""
        query = request.query_params
        wanted = query.get("cluster") or None
        cluster = await self._entry.meant(caller, wanted) if wanted else self._entry.default(caller)
        node = query.get("node") or caller.node
        now = self._services.clock.now()

        def parsed() -> Logged:
            book = self._services.rules().kernel_lines
            return kernel_records(read(), known, now, cluster=cluster, node=node, book=book)

        logged = await aside(size, parsed)
        if caller.node or caller.cluster:
            await confine(request, caller, set(logged.nodes))
        answer = await self._signals.stored(route, caller, logged.accepted)
        told = logged.accepted
        entries = answer.accepted + answer.duplicates + answer.unrecognised + logged.not_kernel
        self._entry.taken(request, entries, told.rejected, told.rejected_more)
        if logged.not_kernel:
            self._entry.losses.add(
                route,
                LossReason.not_kernel,
                logged.not_kernel,
                cluster=cluster or self._services.cluster,
                who=caller.name,
                example=logged.example,
            )
            answer = msgspec.structs.replace(answer, unrecognised=answer.unrecognised + logged.not_kernel)
        return answer, logged


def _exported(raw: bytes) -> Iterator[Record]:
    return (record_of(index, fields) for index, fields in enumerate(export_records(raw)))
