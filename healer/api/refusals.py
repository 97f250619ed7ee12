"""What a bound token may not mention, and how refusals are answered and recorded."""

import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple, NoReturn

from starlette.requests import HTTPConnection

from healer.api.db_health import Database
from healer.api.problems import Problem
from healer.api.services import Services
from healer.model import AuditRecord, Component
from healer.model.shown import shown
from healer.ports.callers import Caller
from healer.text import Said, say

#: Refusals recorded per minute: of all, and of one token.
_REFUSALS, _REFUSALS_OF_ONE = 100, 20
#: Limits: components recorded per refused request, and characters of each name and of the request.
_SPOKEN_MAX, _NAME_MAX, _WHAT_MAX = 5, 64, 200
#: Key of a request's scope for the refusals of the requests within it: they become one record.
TOGETHER = "healer.together"
#: What a token may be bound to.
BINDINGS = ("cluster", "node", "job")
#: (cluster, name of a node or a job).
Pairs = Collection[tuple[str, str]]


class Foreign(NamedTuple):
    """Why a bound token is refused, and the components it spoke of without being bound to them."""

    why: Said
    spoken: Collection[Component]


def foreign(caller: Caller, nodes: Pairs = (), jobs: Pairs = ()) -> Foreign | None:
    """None if a token may report on all of these: one foreign name refuses the whole request."""
    if caller.cluster:
        at, of = ([pair for pair in named if pair[0] != caller.cluster] for named in (nodes, jobs))
        if at or of:
            return Foreign(say("api.bound_to_cluster", name=caller.cluster), _components(at, of))
    if caller.node and (at := [pair for pair in nodes if pair[1] != caller.node]):
        return Foreign(say("api.bound_to_node", name=caller.node), _components(at))
    if caller.job and (of := [pair for pair in jobs if pair[1] != caller.job]):
        return Foreign(say("api.bound_to_job", name=caller.job), _components(jobs=of))
    return None


def _components(nodes: Pairs = (), jobs: Pairs = ()) -> list[Component]:
    return [Component(cluster=where, node=node) for where, node in nodes] + [
        Component(cluster=where, job=job) for where, job in jobs
    ]


class Refusals:
    """Bounds what refusals write to the audit. Thread-safe."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = threading.Lock()
        #: Recorded within the last minute: ((id, name), data) -> when.
        self._refused: OrderedDict[tuple[tuple[str, str], str], float] = OrderedDict()

    def would_record(self, caller: Caller) -> bool:
        """Whether one more refusal of this caller would be recorded now."""
        with self._lock:
            return self._has_room(caller)

    def _has_room(self, caller: Caller) -> bool:
        now = time.monotonic()
        while self._refused and next(iter(self._refused.values())) < now - 60:
            self._refused.popitem(last=False)
        of_caller = sum(who == (caller.id, caller.name) for who, _ in self._refused)
        return len(self._refused) < _REFUSALS and of_caller < _REFUSALS_OF_ONE

    def note(self, caller: Caller, what: str, why: Said, spoken: Collection[Component] = ()) -> None:
        """Writes a refusal to the audit, with the components `spoken` of: the same at most once a minute."""
        data: dict[str, Any] = {"what": _plain(what, _WHAT_MAX), "why": why, "role": caller.role.value}
        if bound := {name: value for name in BINDINGS if (value := getattr(caller, name))}:
            data["bound_to"] = bound
        if spoken:
            data["spoken_of"], data["spoken_of_count"] = _named(spoken)
        key = ((caller.id, caller.name), repr(data))
        with self._lock:
            if key in self._refused or not self._has_room(caller):
                return
            self._refused[key] = time.monotonic()
        self._services.controls.audit(
            AuditRecord(
                cluster=caller.cluster or self._services.cluster,
                at=self._services.clock.now(),
                actor=caller.name,
                verb="access.refused",
                subject=f"token/{caller.id}",
                data=data,
            )
        )


async def refuse(
    request: HTTPConnection, caller: Caller, why: Said, spoken: Collection[Component] = ()
) -> NoReturn:
    """403, recorded with the components that the request spoke of. Always raises."""
    refusals: list[Foreign] | None = request.scope.get(TOGETHER)
    if refusals is None:
        await note_refusal(request, caller, Foreign(why, spoken))
    else:
        refusals.append(Foreign(why, spoken))
    raise Problem(403, why)


async def note_refusal(request: HTTPConnection, caller: Caller, refused: Foreign) -> None:
    refusals: Refusals = request.app.state.access.refusals
    database: Database = request.app.state.access.database
    await database.ask(refusals.note, caller, request_line(request), refused.why, refused.spoken)


def request_line(request: HTTPConnection) -> str:
    return f"{request.scope.get('method', 'GET')} {request.scope['path']}"


def _named(spoken: Iterable[Component]) -> tuple[list[dict[str, str]], int]:
    """The first components that were spoken of, and the number of all."""
    keys = sorted({tuple(getattr(component, name) or "" for name in BINDINGS) for component in spoken})
    first = [
        {name: _plain(value, _NAME_MAX) for name, value in zip(BINDINGS, key, strict=True) if value}
        for key in keys[:_SPOKEN_MAX]
    ]
    return first, len(keys)


def _plain(text: str, most: int) -> str:
    """A sender's text for a record: one short line."""
    line = shown(text[:most])
    return f"{line}…" if len(text) > most else line
