"""`POST /signals/hooks/{prolog|epilog|health-check}`: stored first, then answered whether the hook may fail.

A hook that tells of nothing is answered from memory: a whole fleet reports at once. Only where its node is
known to be bad, or its own report says so, the gate is asked.
"""

import asyncio
import functools
import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from healer.api.group_commit import GroupCommit, HookAnswer, count_results, respond, shown, store
from healer.api.request_preamble import JSON, Preamble, aside, confine, decoded, known_query, media_type
from healer.api.sample_routes import MeasuringRoutes
from healer.api.services import Services
from healer.model import HookRequest, Permit, Role, Verdict
from healer.model.gate import DRAINING_HOOKS
from healer.ports.callers import Caller
from healer.ports.request_errors import Unavailable
from healer.ports.signal_stores import Arrival
from healer.ports.transactions import HookStanding
from healer.signals.hook_reports import HookSeen, HooksSeen, arrivals, hook_reports, nodes_of_hooks

#: How a node stands is read this often, for all hooks.
STANDINGS_S = 1.0
#: A hook that brings news waits so long for what is decided on them: it gives up after 3 s.
WAIT_S, LOOK_S = 2.3, 0.15
#: More of them do not wait: each asks the database a few times a second.
WAITING_MAX = 32
_HEALTHY = HookStanding(verdict=Verdict.healthy, reason="")


class HookRoutes:
    """The three routes. `commit` must have been started in the event loop that serves them."""

    role = Role.signals

    def __init__(
        self,
        services: Services,
        preamble: Preamble,
        commit: "GroupCommit[Arrival, bool]",
        measuring: MeasuringRoutes,
    ) -> None:
        self._services, self._preamble = services, preamble
        self._commit, self._measuring = commit, measuring
        self._standings: dict[tuple[str, str], HookStanding] = {}
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._waiting = 0

    def routes(self, prefix: str) -> list[Route]:
        endpoints = {"prolog": self.prolog, "epilog": self.epilog, "health-check": self.health_check}
        return [
            Route(f"{prefix}/signals/hooks/{hook}", endpoint, methods=["POST"])
            for hook, endpoint in endpoints.items()
        ]

    async def prolog(self, request: Request) -> Response:
        return await self._report(request, "prolog")

    async def epilog(self, request: Request) -> Response:
        return await self._report(request, "epilog")

    async def health_check(self, request: Request) -> Response:
        return await self._report(request, "health-check")

    async def _report(self, request: Request, hook: str) -> Response:
        caller, known = await self._preamble.enter(request)
        media_type(request, JSON, "application/json")
        known_query(request, set())
        raw = await self._preamble.body(request)
        size = len(raw)
        body = await aside(size, decoded, raw)
        cluster = self._preamble.default(caller)
        if caller.node or caller.cluster:
            await confine(request, caller, await aside(size, nodes_of_hooks, body, cluster=cluster))
        now = self._services.clock.now()
        seen = await aside(size, hook_reports, body, hook, known, now, cluster=cluster)
        new = await self._store(hook, caller, seen)
        last = seen.reports[-1] if seen.reports and not _is_rejected(seen, body) else None
        permit, standing = None, _HEALTHY
        if last is not None:
            lines = new[-1 - len(last.lines) : -1]
            permit, standing = await self._answer(last, is_new=new[-1], news=any(lines))
        told = HookAnswer(
            verdict=standing.verdict,
            may_refuse=permit is not None,
            reason=standing.reason,
            accepted=sum(new),
            duplicates=len(new) - sum(new),
            unrecognised=seen.unrecognised,
            rejected=shown(seen.rejected),
        )
        rejected = len(told.rejected) + seen.rejected_more
        count_results(f"hooks/{hook}", told.accepted, told.duplicates, told.unrecognised, rejected)
        entries = told.accepted + told.duplicates + told.unrecognised
        self._preamble.meter.stored(request, entries, seen.rejected, seen.rejected_more)
        return respond(told)

    # --- storing ---

    async def _store(self, hook: str, caller: Caller, seen: HooksSeen) -> Sequence[bool]:
        """Whether each observation was new, the last report last. All is stored when this returns."""
        told = [Arrival(one, also) for one, also in arrivals(seen)]
        samples = [asyncio.create_task(self._measure(one)) for one in seen.reports if one.samples or one.xml]
        new = await store(self._commit, f"hooks/{hook}", told, caller)
        await asyncio.gather(*samples)
        for one in seen.reports:
            if one.refused and one.hook in DRAINING_HOOKS:
                await self._preamble.reach.ask(self._services.hooks.note_own, _ask(one), one.refused, one.at)
        return new

    async def _measure(self, seen: HookSeen) -> None:
        """Samples are worth less than the report: where they cannot be taken now, they are left out."""
        now = seen.observation.arrived_at

        def known(cluster: str, node: str) -> bool:
            return (cluster, node) == (seen.cluster, seen.node)

        samples, xml = seen.samples, seen.xml
        by = functools.partial(self._measuring.translator, seen.cluster)
        if samples:
            await self._measuring.take_part(len(samples), lambda: by().columnar(samples, known, now))
        if xml:
            await self._measuring.take_part(
                len(xml), lambda: by().nvidia_smi(xml, known, now, node=seen.node)
            )

    # --- answering ---

    async def _answer(
        self, seen: HookSeen, *, is_new: bool, news: bool
    ) -> tuple[Permit | None, HookStanding]:
        hooks, ask = self._services.hooks, _ask(seen)
        standing = (await self._current()).get((seen.cluster, seen.node), _HEALTHY)
        if seen.hook not in DRAINING_HOOKS or seen.cluster not in self._preamble.served:
            return None, standing
        if not is_new:
            # The hook ran twice: it hears what it heard before.
            try:
                permit = await self._preamble.reach.ask(hooks.permit_for, ask)
            except Unavailable:
                return None, standing
            alive = (
                permit is not None and permit.run is not None and permit.until > self._services.clock.now()
            )
            return (permit if alive else None), standing
        if standing.verdict is not Verdict.isolate and not news:
            return None, standing
        try:
            permit = await self._permit(ask, waits=news)
        except Unavailable:
            return None, standing
        return permit, (await self._current(anew=True)).get((seen.cluster, seen.node), _HEALTHY)

    async def _permit(self, ask: HookRequest, *, waits: bool) -> Permit | None:
        """Asks the gate as soon as a run holds the node; `waits` a little for what is still being decided."""
        hooks = self._services.hooks
        waits = waits and self._waiting < WAITING_MAX
        until = time.monotonic() + (WAIT_S if waits else 0.0)
        self._waiting += 1
        try:
            while not await self._preamble.reach.ask(hooks.is_held, ask.cluster, ask.node):
                if time.monotonic() + LOOK_S > until:
                    return None
                await asyncio.sleep(LOOK_S)
        finally:
            self._waiting -= 1
        return await self._preamble.reach.ask(hooks.permit, ask)

    async def _current(self, *, anew: bool = False) -> dict[tuple[str, str], HookStanding]:
        """How the nodes stand, at most a second old; requests share one read."""
        if anew or time.monotonic() - self._read_at > STANDINGS_S:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read(), name="standings")
            await asyncio.shield(self._reading)
        return self._standings

    async def _read(self) -> None:
        asked = time.monotonic()
        try:
            found = {}
            for cluster in self._preamble.served:
                told = await self._preamble.reach.ask(self._services.hooks.standings, cluster)
                found |= {(cluster, node): standing for node, standing in told.items()}
            self._standings = found
            self._read_at = asked
        except Unavailable:
            return  # the report is safe; what was known of the nodes last is told


def _is_rejected(seen: HooksSeen, body: object) -> bool:
    """The report that waits for the answer, the last one, was not taken."""
    last = len(body) - 1 if isinstance(body, list) else 0
    return any(one.index == last for one in seen.rejected)


def _ask(seen: HookSeen) -> HookRequest:
    return HookRequest(
        id=seen.key,
        cluster=seen.cluster,
        node=seen.node,
        hook=seen.hook,
        job=seen.job,
        restarts=seen.restarts,
    )
