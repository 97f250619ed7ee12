"""`POST /signals/hooks/{prolog|epilog|health-check}`: stored first, then answered whether the hook may fail.

A report without faults is answered from memory, as a whole fleet reports at once. The gate is only asked
where the node is known to be bad, or its report says so.
"""

import asyncio
import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from healer.api.db_health import SharedRead
from healer.api.event_routes import arrivals_of
from healer.api.group_commit import GroupCommit, HookAnswer, count_results, rejected_views, respond, store
from healer.api.request_preamble import (
    Endpoint,
    Preamble,
    by_slurm,
    confine,
    decoded,
    parse,
)
from healer.api.sample_routes import MeasuringRoutes
from healer.api.services import Services
from healer.model import HookRequest, Permit, Role, Verdict
from healer.model.gate import DRAINING_HOOKS
from healer.ports.callers import Caller
from healer.ports.request_errors import Unavailable
from healer.ports.signal_stores import Arrival
from healer.ports.transactions import HookStanding
from healer.signals.hook_reports import HOOKS, HookSeen, HooksSeen, arrivals, hook_reports, nodes_of_hooks
from healer.signals.translate import Translator

#: How long a hook with a new fault line waits for the decision (it gives up after 3 s), and how often it
#: checks.
WAIT_S, LOOK_S = 2.3, 0.15
#: Further hooks do not wait: each asks the database a few times a second.
WAITING_MAX = 32
_HEALTHY = HookStanding(verdict=Verdict.healthy, reason="")


class HookRoutes:
    """`commit` must have been started in the event loop that serves the routes."""

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
        #: (cluster, node) -> verdict. While the database is away, the last ones stay in use.
        self._standings = SharedRead(self._read_standings, {})
        self._waiting = 0

    def endpoints(self) -> dict[str, Endpoint]:
        return {f"hooks/{hook}": self.report for hook in HOOKS}

    async def report(self, request: Request) -> Response:
        hook = request.scope["path"].rpartition("/")[2]
        caller, has_node, _, raw, cluster = await self._preamble.open(request)
        size = len(raw)
        body = await parse(size, decoded, raw)
        if caller.node or caller.cluster:
            named = await parse(size, nodes_of_hooks, body, cluster=cluster)
            await confine(request, caller, by_slurm(named, has_node))
        now = self._services.clock.now()
        seen = await parse(size, hook_reports, body, hook, has_node, now, cluster=cluster)
        new = await self._store(hook, caller, seen)
        last = seen.reports[-1] if seen.reports and not _is_rejected(seen, body) else None
        permit, standing = None, _HEALTHY
        if last is not None:
            lines = new[-1 - len(last.lines) : -1]
            permit, standing = await self._answer(last, is_new=new[-1], news=any(lines))
        accepted, rejected = sum(new), rejected_views(seen.rejected)
        answer = HookAnswer(
            verdict=standing.verdict,
            may_refuse=permit is not None,
            reason=standing.reason,
            accepted=accepted,
            duplicates=len(new) - accepted,
            unrecognised=seen.unrecognised,
            rejected=rejected,
        )
        count_results(
            f"hooks/{hook}",
            accepted,
            answer.duplicates,
            seen.unrecognised,
            len(rejected) + seen.rejected_more,
        )
        entries = len(new) + seen.unrecognised
        self._preamble.meter.stored(request, entries, seen.rejected, seen.rejected_more)
        return respond(answer)

    # --- storing ---

    async def _store(self, hook: str, caller: Caller, seen: HooksSeen) -> Sequence[bool]:
        """Whether each observation was new, the last report last. All is stored when this returns."""
        events = arrivals_of(caller, arrivals(seen))
        reports = seen.reports
        samples = [
            asyncio.create_task(self._measure(caller, report))
            for report in reports
            if report.samples or report.xml
        ]
        new = await store(self._commit, f"hooks/{hook}", events, caller)
        await asyncio.gather(*samples)
        for report in reports:
            if report.refused and report.hook in DRAINING_HOOKS and not caller.relay_of(report.node):
                note = self._services.hooks.note_own
                await self._preamble.database.ask(note, _ask(report), report.refused, report.at)
        return new

    async def _measure(self, caller: Caller, seen: HookSeen) -> None:
        """Samples matter less than the report: they are dropped if there is no room for them now."""
        now = seen.observation.arrived_at

        def is_sender(cluster: str, node: str) -> bool:
            return (cluster, node) == (seen.cluster, seen.node)

        def translator() -> Translator:
            return self._measuring.translator(seen.cluster)

        samples, xml = seen.samples, seen.xml
        if samples:
            await self._measuring.take_part(
                caller, len(samples), lambda: translator().columnar(samples, is_sender, now)
            )
        if xml:
            await self._measuring.take_part(
                caller, len(xml), lambda: translator().nvidia_smi(xml, is_sender, now, node=seen.node)
            )

    # --- answering ---

    async def _answer(
        self, seen: HookSeen, *, is_new: bool, news: bool
    ) -> tuple[Permit | None, HookStanding]:
        hooks, ask = self._services.hooks, _ask(seen)
        place = seen.cluster, seen.node
        standing = (await self._standings.current()).get(place, _HEALTHY)
        if seen.hook not in DRAINING_HOOKS or seen.cluster not in self._preamble.served:
            return None, standing
        if not is_new:
            # The hook ran twice: it gets the same answer as before.
            try:
                permit = await self._preamble.database.ask(hooks.permit_for, ask)
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
        return permit, (await self._standings.current(renewed=True)).get(place, _HEALTHY)

    async def _permit(self, ask: HookRequest, *, waits: bool) -> Permit | None:
        """Asks the gate as soon as a run holds the node; `waits` a little for a decision under way."""
        hooks = self._services.hooks
        waits = waits and self._waiting < WAITING_MAX
        until = time.monotonic() + (WAIT_S if waits else 0.0)
        self._waiting += 1
        try:
            while not await self._preamble.database.ask(hooks.is_held, ask.cluster, ask.node):
                if time.monotonic() + LOOK_S > until:
                    return None
                await asyncio.sleep(LOOK_S)
        finally:
            self._waiting -= 1
        return await self._preamble.database.ask(hooks.permit, ask)

    async def _read_standings(self) -> dict[tuple[str, str], HookStanding]:
        found = {}
        for cluster in self._preamble.served:
            standings = await self._preamble.database.ask(self._services.hooks.standings, cluster)
            found |= {(cluster, node): standing for node, standing in standings.items()}
        return found


def _is_rejected(seen: HooksSeen, body: object) -> bool:
    """Whether the last report, whose hook waits for the answer, was rejected."""
    last = len(body) - 1 if isinstance(body, list) else 0
    return any(entry.index == last for entry in seen.rejected)


def _ask(seen: HookSeen) -> HookRequest:
    return HookRequest(
        id=seen.key,
        cluster=seen.cluster,
        node=seen.node,
        hook=seen.hook,
        job=seen.job,
        restarts=seen.restarts,
    )
