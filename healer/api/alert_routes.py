"""`POST /signals/alertmanager` and `POST /signals/cloudevents`: what other systems tell in their words."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message

from healer.api.access import TOGETHER, Foreign, note, refuse
from healer.api.db_health import Fleet
from healer.api.group_commit import Accepted, GroupCommit, accepted, counted, respond, store
from healer.api.problems import problem_of
from healer.api.request_preamble import JSON, Preamble, aside, confine, decoded, known_query, media_type
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
    told_again,
)
from healer.signals.rejects import BadEntry, Rejects
from healer.signals.wire import Known

#: Events of one request whose bodies are stored at the same time.
_AT_ONCE = 32
#: Of the outer request these headers are not the inner one's.
_OWN_HEADERS = (b"content-type", b"content-length", b"content-encoding", b"transfer-encoding")
_answered = msgspec.json.Decoder(Accepted).decode
Endpoint = Callable[[Request], Awaitable[Response]]


class AlertRoutes:
    """`commit` must have been started in the event loop that serves the routes."""

    role = Role.signals

    def __init__(
        self, services: Services, preamble: Preamble, fleet: Fleet, commit: "GroupCommit[Arrival, bool]"
    ) -> None:
        self._services, self._preamble, self._fleet, self._commit = services, preamble, fleet, commit

    def routes(self, prefix: str) -> list[Route]:
        return [Route(f"{prefix}/signals/alertmanager", self.alertmanager, methods=["POST"])]

    async def alertmanager(self, request: Request) -> Response:
        """202, or 4xx to what would be as wrong the next time: it repeats only after 429 and 5xx."""
        caller, known = await self._preamble.enter(request)
        media_type(request, JSON, "application/json")
        known_query(request, set())
        raw = await self._preamble.body(request)
        body = await aside(len(raw), decoded, raw)
        now = self._services.clock.now()
        site = await self.site(caller, known)
        told = await aside(len(raw), alertmanager_observations, body, site, now)
        await confine(request, caller, told.nodes())
        answer = await self.stored("alertmanager", request, caller, told)
        entries = answer.accepted + answer.duplicates + answer.unrecognised
        self._preamble.meter.stored(request, entries, told.rejected, told.rejected_more)
        return respond(answer)

    async def site(self, caller: Caller, known: Known) -> Site:
        snapshots, topology = await self._fleet.current(), self._services.rules().topology

        def switch(cluster: str, name: str) -> bool:
            """By Slurm's picture, or by the site's own map."""
            if name in topology.switches or any(place.switch == name for place in topology.places.values()):
                return True
            shown = snapshots.get(cluster)
            return shown is not None and any(
                name == node.switch or name in node.switches for node in shown.nodes.values()
            )

        return Site(self._preamble.default(caller), self._preamble.served, known, switch)

    async def stored(self, route: str, request: Request, caller: Caller, told: Alerts) -> Accepted:
        """The answer, after the commit. Raises Problem 429 when too much waits."""
        arrivals = [Arrival(one) for one in told.observations]
        new = await store(self._commit, route, arrivals, caller, lost=1)
        # That it goes on is no news to the sender, and has to be known all the same.
        goes_on = [
            Arrival(told_again(one))
            for one, is_new in zip(told.observations, new, strict=True)
            if not is_new and one.data["status"] == "firing"
        ]
        if goes_on:
            await store(self._commit, route, goes_on, caller, lost=1, shed_first=True)
        left_out = "truncatedAlerts: Alertmanager left them out (max_alerts)"
        self._preamble.meter.lose(request, LossReason.sender, told.lost, left_out)
        count, repeats = sum(new), len(new) - sum(new)
        return counted(route, count, told.unrecognised, told.rejected, told.rejected_more, duplicates=repeats)


class CloudEventRoutes:
    """`endpoints`: route -> what takes its body. An event is confined as a request to that route would be."""

    role = Role.signals

    def __init__(
        self, services: Services, preamble: Preamble, alerts: AlertRoutes, endpoints: Mapping[str, Endpoint]
    ) -> None:
        self._services, self._preamble, self._alerts, self._endpoints = services, preamble, alerts, endpoints

    def routes(self, prefix: str) -> list[Route]:
        return [Route(f"{prefix}/signals/cloudevents", self.cloudevents, methods=["POST"])]

    async def cloudevents(self, request: Request) -> Response:
        # A token bound to a job may tell what the routes of jobs take: each inner request asks for itself.
        caller, known = await self._preamble.enter(request, of_jobs=True)
        known_query(request, set())
        rejects = Rejects()
        events = await self._read(request, rejects)
        inner = [event for event in events if event.type in ROUTES]
        others = [event for event in events if event.type not in ROUTES]
        items, unrecognised = self._alerts_in(others, rejects)
        now = self._services.clock.now()
        told = enveloped_observations(items, await self._alerts.site(caller, known), now)
        if caller.job and (others or not inner):
            spoken = [one.component for one in told.observations]
            await refuse(request, caller, f"this token is bound to the job {caller.job}", spoken)
        await confine(request, caller, told.nodes())
        refused: list[Foreign] = []
        try:
            (answers, passed), alerts = await _all_told(
                self._passed_on(request, inner, rejects, refused), self._alerts_stored(request, caller, told)
            )
        except Exception:  # which may be that of another part
            if refused:
                spoken = [part for one in refused for part in one.spoken]
                await note(request, caller, Foreign(refused[0].why, spoken))
            raise
        answers += alerts
        for one in told.rejected:
            rejects.add(one.index, one.reason)
        # What the routes of the inner bodies rejected, they have counted.
        wrong = rejects.sorted()
        self._preamble.meter.stored(
            request, max(0, len(events) - len(wrong) - rejects.more), wrong, rejects.more
        )
        rejected = sorted([*wrong, *passed.sorted()], key=lambda one: one.index)
        answer = accepted(
            sum(one.accepted for one in answers),
            unrecognised + told.unrecognised + sum(one.unrecognised for one in answers),
            rejected,
            rejects.more + passed.more,
            duplicates=sum(one.duplicates for one in answers),
        )
        return respond(answer)

    async def _read(self, request: Request, rejects: Rejects) -> list[Event]:
        kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
        raw = await self._preamble.body(request)
        attributes = attributes_of(request.headers)
        if kind not in (STRUCTURED, BATCH) and "specversion" in attributes:
            content = {"datacontenttype": kind}
            data = {"data": await aside(len(raw), decoded, raw)} if raw else {}
            return events_of(attributes | content | data, batch=False, rejects=rejects)
        media_type(request, JSON | {STRUCTURED, BATCH}, "application/json")
        body = await aside(len(raw), decoded, raw)
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

    async def _alerts_stored(self, request: Request, caller: Caller, told: Alerts) -> list[Accepted]:
        if not told.observations:
            return []
        clean = msgspec.structs.replace(told, unrecognised=0, rejected=(), rejected_more=0)
        return [await self._alerts.stored("cloudevents", request, caller, clean)]

    async def _passed_on(
        self, request: Request, events: list[Event], rejects: Rejects, refused: list[Foreign]
    ) -> tuple[list[Accepted], Rejects]:
        """Each body to its own route; the answers, and what of the bodies was rejected there. Too much and no
        leave are the whole request's; what a body alone has wrong is that event's."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(event: Event) -> Accepted | str:
            async with room:
                inner = _inner(request, ROUTES[event.type], msgspec.json.encode(event.data), refused)
                try:
                    response = await self._endpoints[ROUTES[event.type]](inner)
                except Exception as error:
                    problem = problem_of(error)
                    if problem.status in (401, 403, 429) or problem.status >= 500:
                        raise
                    return problem.detail
                return _answered(bytes(response.body))

        answers: list[Accepted] = []
        passed = Rejects()
        for event, answer in zip(events, await _all_told(*map(one, events)), strict=True):
            if isinstance(answer, Accepted):
                answers.append(answer)
                for wrong in answer.rejected:
                    passed.add(event.index, f"data[{wrong.index}]: {wrong.reason}")
            else:
                rejects.add(event.index, f"data: {answer}")
        return answers, passed


async def _all_told(*parts: Awaitable[Any]) -> list[Any]:
    """What each gives, after all have ended: a part that is refused takes no other with it. Then the failure
    that a repeat may mend is raised before one that it cannot, so that the sender comes again."""
    told = await asyncio.gather(*parts, return_exceptions=True)
    failed = [one for one in told if isinstance(one, BaseException)]
    if failed:
        raise max(failed, key=lambda one: problem_of(one).status if isinstance(one, Exception) else 600)
    return told


def _inner(request: Request, route: str, body: bytes, refused: list[Foreign]) -> Request:
    """A request to one of our own routes by the same sender. `refused` gets what it is refused."""
    headers = [one for one in request.scope["headers"] if one[0].lower() not in _OWN_HEADERS]
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
