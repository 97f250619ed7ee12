"""`POST /signals/alertmanager` and `POST /signals/cloudevents`: alerts and events of other systems."""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from healer.api.db_health import Fleet
from healer.api.group_commit import Accepted, GroupCommit, count_accepted, rejected_views, respond, store
from healer.api.problems import problem_of
from healer.api.refusals import TOGETHER, Foreign, note_refusal, refuse
from healer.api.request_preamble import (
    JSON,
    Endpoint,
    Preamble,
    confine,
    decoded,
    known_query,
    media_type,
    parse,
)
from healer.api.services import Services
from healer.model import LossReason, Role
from healer.ports.callers import Caller
from healer.ports.signal_stores import Arrival
from healer.signals.alert_bodies import (
    BATCH,
    ROUTES,
    STRUCTURED,
    Alerts,
    Enveloped,
    Event,
    Site,
    alert_in,
    alertmanager_observations,
    attributes_of,
    enveloped_observations,
    events_of,
    repeated_alert,
)
from healer.signals.rejects import BadEntry, Rejects
from healer.signals.wire import HasNode
from healer.text import say

#: How many events of one request are stored concurrently.
_AT_ONCE = 32
#: Headers of the outer request that an inner one does not inherit.
_BODY_HEADERS = (b"content-type", b"content-length", b"content-encoding", b"transfer-encoding")
_decode_answer = msgspec.json.Decoder(Accepted).decode


class AlertRoutes:
    """`commit` must have been started in the event loop that serves the routes."""

    role = Role.signals

    def __init__(
        self, services: Services, preamble: Preamble, fleet: Fleet, commit: "GroupCommit[Arrival, bool]"
    ) -> None:
        self._services, self._preamble, self._fleet, self._commit = services, preamble, fleet, commit

    def endpoints(self) -> dict[str, Endpoint]:
        return {"alertmanager": self.alertmanager}

    async def alertmanager(self, request: Request) -> Response:
        """202, or 4xx for a body that is wrong for good: Alertmanager retries only after 429 and 5xx."""
        caller, has_node, _, raw, _ = await self._preamble.open(request)
        body = await parse(len(raw), decoded, raw)
        now = self._services.clock.now()
        site = await self.site(caller, has_node)
        alerts = await parse(len(raw), alertmanager_observations, body, site, now)
        await confine(request, caller, alerts.nodes())
        answer = await self.stored("alertmanager", request, caller, alerts)
        self._preamble.meter.stored(request, answer.entries, alerts.rejected, alerts.rejected_more)
        return respond(answer)

    async def site(self, caller: Caller, has_node: HasNode) -> Site:
        snapshots, topology = await self._fleet.current(), self._services.rules().topology

        def has_switch(cluster: str, name: str) -> bool:
            """By Slurm's snapshot or the site's topology file."""
            of_cluster = topology.of(cluster)
            if name in of_cluster.switches or any(
                place.switch == name for place in of_cluster.places.values()
            ):
                return True
            shown = snapshots.get(cluster)
            return shown is not None and any(
                name == node.switch or name in node.switches for node in shown.nodes.values()
            )

        return Site(self._preamble.default_cluster(caller), self._preamble.served, has_node, has_switch)

    async def stored(self, route: str, request: Request, caller: Caller, alerts: Alerts) -> Accepted:
        """The answer, after the commit. Raises Problem 429 when too much waits."""
        arrivals = [Arrival(alert) for alert in alerts.observations]
        new = await store(self._commit, route, arrivals, caller, lost=1)
        # A repeated alert is a duplicate, but the detector has to see that it still fires.
        still_firing = [
            Arrival(repeated_alert(alert))
            for alert, is_new in zip(alerts.observations, new, strict=True)
            if not is_new and alert.data["status"] == "firing"
        ]
        if still_firing:
            await store(self._commit, route, still_firing, caller, lost=1, shed_first=True)
        left_out = say("api.truncated_alerts")
        self._preamble.meter.lose(request, LossReason.sender, alerts.lost, left_out)
        count, unrecognised = sum(new), alerts.unrecognised
        return count_accepted(route, alerts, count, unrecognised=unrecognised, duplicates=len(new) - count)


class CloudEventRoutes:
    """`routes`: path -> the endpoint for its bodies. An event is confined as a request to that route is."""

    role = Role.signals

    def __init__(
        self, services: Services, preamble: Preamble, alerts: AlertRoutes, routes: Mapping[str, Endpoint]
    ) -> None:
        self._services, self._preamble, self._alerts, self._routes = services, preamble, alerts, routes

    def endpoints(self) -> dict[str, Endpoint]:
        return {"cloudevents": self.cloudevents}

    async def cloudevents(self, request: Request) -> Response:
        # A token bound to a job may send what the routes of jobs take: each inner request is checked by
        # itself.
        caller, has_node = await self._preamble.enter(request, of_jobs=True)
        known_query(request, set())
        rejects = Rejects()
        events = await self._read(request, rejects)
        inner = [event for event in events if event.type in ROUTES]
        others = [event for event in events if event.type not in ROUTES]
        items, unrecognised = self._alerts_in(others, rejects)
        now = self._services.clock.now()
        alerts = enveloped_observations(items, await self._alerts.site(caller, has_node), now)
        if caller.job and (others or not inner):
            spoken = [alert.component for alert in alerts.observations]
            await refuse(request, caller, say("api.bound_to_job", name=caller.job), spoken)
        await confine(request, caller, alerts.nodes())
        refused: list[Foreign] = []
        try:
            (answers, inner_rejects), answers_of_alerts = await _gather(
                self._passed_on(request, inner, rejects, refused),
                self._alerts_stored(request, caller, alerts),
            )
        except Exception:  # it may be that of the other part
            if refused:
                spoken = [component for refusal in refused for component in refusal.spoken]
                await note_refusal(request, caller, Foreign(refused[0].why, spoken))
            raise
        answers += answers_of_alerts
        for entry in alerts.rejected:
            rejects.add(entry.index, entry.reason)
        # The routes of the inner bodies have already counted what they rejected.
        wrong = rejects.sorted()
        entries = max(0, len(events) - len(wrong) - rejects.more)
        self._preamble.meter.stored(request, entries, wrong, rejects.more)
        rejected = sorted([*wrong, *inner_rejects.sorted()], key=lambda entry: entry.index)
        return respond(
            Accepted(
                accepted=sum(answer.accepted for answer in answers),
                duplicates=sum(answer.duplicates for answer in answers),
                unrecognised=unrecognised
                + alerts.unrecognised
                + sum(answer.unrecognised for answer in answers),
                rejected=rejected_views(rejected),
                rejected_more=rejects.more + inner_rejects.more or msgspec.UNSET,
            )
        )

    async def _read(self, request: Request, rejects: Rejects) -> list[Event]:
        kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
        raw = await self._preamble.body(request)
        attributes = attributes_of(request.headers)
        if kind not in (STRUCTURED, BATCH) and "specversion" in attributes:
            content = {"datacontenttype": kind}
            data = {"data": await parse(len(raw), decoded, raw)} if raw else {}
            return events_of(attributes | content | data, batch=False, rejects=rejects)
        media_type(request, JSON | {STRUCTURED, BATCH}, "application/json")
        body = await parse(len(raw), decoded, raw)
        return events_of(body, batch=kind == BATCH, rejects=rejects)

    def _alerts_in(self, events: Iterable[Event], rejects: Rejects) -> tuple[list[Enveloped], int]:
        now = self._services.clock.now()
        globs = {glob for entry in self._services.rules().alerts for glob in entry.alert}
        kinds = {event.type for event in events}
        named = [kind for kind in kinds if any(fnmatchcase(kind, glob) for glob in globs)]
        items: list[Enveloped] = []
        unrecognised = 0
        for event in events:
            try:
                item = alert_in(event, named, now)
            except BadEntry as error:
                rejects.add(event.index, error)
                continue
            unrecognised += item is None
            items += [item] if item is not None else []
        return items, unrecognised

    async def _alerts_stored(self, request: Request, caller: Caller, alerts: Alerts) -> list[Accepted]:
        if not alerts.observations:
            return []
        clean = msgspec.structs.replace(alerts, unrecognised=0, rejected=(), rejected_more=0)
        return [await self._alerts.stored("cloudevents", request, caller, clean)]

    async def _passed_on(
        self, request: Request, events: list[Event], rejects: Rejects, refused: list[Foreign]
    ) -> tuple[list[Accepted], Rejects]:
        """Gives each body to its own route; the answers, and what was rejected there. 401, 403, 429 and 5xx
        fail the whole request; other errors reject the single event."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def pass_on(event: Event) -> Accepted | str:
            async with room:
                inner = _inner(request, ROUTES[event.type], msgspec.json.encode(event.data), refused)
                try:
                    response = await self._routes[ROUTES[event.type]](inner)
                except Exception as error:
                    problem = problem_of(error)
                    if problem.status in (401, 403, 429) or problem.status >= 500:
                        raise
                    return problem.detail
                return _decode_answer(bytes(response.body))

        answers: list[Accepted] = []
        inner_rejects = Rejects()
        for event, answer in zip(events, await _gather(*map(pass_on, events)), strict=True):
            if isinstance(answer, Accepted):
                answers.append(answer)
                for wrong in answer.rejected:
                    where = f"data[{wrong.index}]"
                    inner_rejects.add(event.index, say("signals.field", field=where, text=wrong.reason))
            else:
                rejects.add(event.index, say("signals.field", field="data", text=answer))
        return answers, inner_rejects


async def _gather(*parts: Awaitable[Any]) -> list[Any]:
    """All results, once every part has ended: a failed part does not cancel the others. Then a failure that a
    repeat may cure is raised before one that it cannot, so that the sender tries again."""
    results = await asyncio.gather(*parts, return_exceptions=True)
    failed = [result for result in results if isinstance(result, BaseException)]
    if failed:
        raise max(failed, key=lambda error: problem_of(error).status if isinstance(error, Exception) else 600)
    return results


def _inner(request: Request, route: str, body: bytes, refused: list[Foreign]) -> Request:
    """A request to one of our own routes by the same sender. Its refusals are appended to `refused`."""
    headers = [header for header in request.scope["headers"] if header[0].lower() not in _BODY_HEADERS]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    path = f"{request.scope['path'].rpartition('/')[0]}/{route}"
    scope: dict[str, Any] = {
        **request.scope,
        "path": path,
        "raw_path": path.encode(),
        "headers": headers,
        "query_string": b"",
        "state": {},
        TOGETHER: refused,
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(scope, receive)
