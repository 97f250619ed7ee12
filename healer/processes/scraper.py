"""The scraper: fetches exporters and answers of a Prometheus-compatible server, stored like what is sent.

One per cluster. A target that does not answer says nothing about its node: its last values become stale and
then unknown; healer never takes that for a fault.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, TypeVar
from urllib.parse import urlencode
from zlib import crc32

import msgspec
import structlog

from healer.api.group_commit import Busy, GroupCommit, QueueBounds, in_thread
from healer.api.intake import Body, Intake, Refused, Translators
from healer.api.problems import Problem
from healer.api.quotas import Losses, Tally
from healer.api.request_preamble import unpacked
from healer.model import (
    DEVICE_MARK,
    LossReason,
    Observation,
    Ruleset,
    ScrapeJob,
    ScrapeQuery,
    ScrapeRules,
    ScrapeState,
    SlurmSnapshot,
    TargetGroup,
    TargetState,
    device_in,
)
from healer.ports.clock import Clock
from healer.ports.measurements import ColumnBook, Fetch, FetchFailed, HistoryAway, Samples, ScrapeBook, Target
from healer.ports.request_errors import Unavailable
from healer.ports.signal_stores import Arrival, SignalStore
from healer.processes.prometheus_follow import PrometheusFollow
from healer.signals.hardware_names import device_name
from healer.signals.series import Measured
from healer.signals.wire import BadBody, HasNode
from healer.text import NO_WORDS, Said, quoted, said_by, say

#: A target that stalls is scraped less often, at most this many intervals apart: it occupies a connection
#: each time.
STALLED_MOST = 4
HOST, SERIES, DEVICE = "host", "series", "device"
#: Labels that say how to fetch, and not whose data it is.
_PATH, _SCHEME, _PARAMETER = "__metrics_path__", "__scheme__", "__param_"


class NoNode(ValueError):
    """The target is of no node of the cluster. The text says why."""


def list_targets(rules: ScrapeRules, cluster: str) -> list[Target]:
    """The targets that this cluster's scraper fetches, each once."""
    found: dict[tuple[str, str], Target] = {}
    for job in rules.jobs:
        if job.cluster not in ("", cluster):
            continue
        for group in (TargetGroup(job.targets), *job.groups):
            scheme, path, labels = _how(job, job.labels | group.labels)
            if labels.get("cluster", cluster) not in ("", cluster):
                continue
            for address in group.targets:
                host = address.rpartition(":")[0].strip("[]")
                target = Target(job=job, host=host, url=f"{scheme}://{address}{path}", labels=labels)
                found.setdefault(target.key, target)
    return list(found.values())


def _how(job: ScrapeJob, labels: dict[str, str]) -> tuple[str, str, dict[str, str]]:
    """(scheme, path with its query, the other labels). An empty label is none. The path begins with /, or
    nothing would part it from the host."""
    path = labels.get(_PATH) or job.path
    if not path.startswith("/"):
        path = f"/{path}"
    asked = {name: text for name, text in labels.items() if name.startswith(_PARAMETER)}
    if asked:
        query = urlencode({name.removeprefix(_PARAMETER): text for name, text in asked.items()})
        path += ("&" if "?" in path else "?") + query
    others = {name: text for name, text in labels.items() if name not in (_SCHEME, _PATH, *asked)}
    return labels.get(_SCHEME) or job.scheme, path, others


def node_of(target: Target, cluster: str, has_node: HasNode) -> str | None:
    """Whose the target's samples are, a device with its mark; None where their own labels say it. Raises
    NoNode.

    A full host name that is no node counts up to its first dot; a label may end with a port.
    """
    rule = target.job.node
    if rule == SERIES:
        return None
    if rule == DEVICE:
        return _device_of(target)
    name = target.host if rule == HOST else target.labels.get(rule, "")
    if not name:
        raise NoNode(say("processes.target_label", label=rule))
    plain = name if rule == HOST else name.partition(":")[0]
    for candidate in (name, plain, plain.partition(".")[0]):
        if candidate and has_node(cluster, candidate):
            return candidate
    raise NoNode(say("processes.target_node", cluster=cluster, node=name[:100]))


def _device_of(target: Target) -> str:
    """The target is or represents a device: its label `device` names it, otherwise its own host."""
    name = device_name("instance", target.labels.get("device") or target.host)
    if name is None:
        raise NoNode(say("processes.target_device", name=target.host[:100]))
    return DEVICE_MARK + name


def first_due(target: Target, now_s: float) -> float:
    """The first moment of the target's own beat from `now_s` on: targets are spread over their interval by a
    hash of their address, the same after every restart."""
    interval_s = target.job.interval_s
    offset_s = crc32(target.url.encode()) / 2**32 * interval_s
    return now_s + (offset_s - now_s) % interval_s


def next_due(target: Target, last_s: float, now_s: float, stalled: int) -> float:
    """The next moment of that beat after one at `last_s`; `stalled` times in a row it did not end in time."""
    interval_s = target.job.interval_s
    step_s = interval_s * min(STALLED_MOST, 2**stalled)
    behind = max(0.0, now_s - last_s - step_s)
    # Beats that were missed are not made up for.
    return last_s + step_s + -(-behind // interval_s) * interval_s


T = TypeVar("T")
log = structlog.get_logger()

#: How often rules and Slurm's nodes are read; how often state and counts are written.
LOOK_S, STATE_S = 2.0, 5.0
#: Bodies that wait to be written, and that are written in one commit; and one body unpacked.
QUEUE, BATCH, UNPACKED_MAX = 64 * 2**20, 4 * 2**20, 32 * 2**20
GATHER_S = 0.02
#: What a sample of Prometheus weighs in that queue: its number, time and value.
SAMPLE_BYTES = 20
#: How often the nodes' lists of GPUs are read, and from how far back: senders repeat them every 10 min.
GPUS_EVERY, GPUS_LATE = timedelta(seconds=15), timedelta(minutes=15)
#: No client waits for an answer. After a start every series is new: reading 1,250 pages takes ten seconds.
WAIT_S = 30.0
#: Targets whose state is stored.
STATES_MAX = 20_000
#: Of which it is remembered that they are stored, as in the API.
INVENTORIES = 20_000
SOURCE = "scrape"


class FollowEvery(NamedTuple):
    """All that the Prometheus-compatible server has, at this interval."""

    interval_s: float


Fetched = Target | ScrapeQuery | FollowEvery
#: The job and target under which people see it.
_FOLLOW = ("prometheus", "every signal of the catalogue")


@dataclass(slots=True)
class _Kept:
    """One target, query or follow at work: its task, and how it goes."""

    what: "Fetched"
    task: "asyncio.Task[None]"
    state: TargetState


@dataclass(slots=True)
class _Counts:
    scrapes: int = 0
    failed: int = 0
    samples: int = 0


@dataclass(kw_only=True)
class Parts:
    """What the scraper works with."""

    cluster: str
    rules: Callable[[], Ruleset]
    fetch: Fetch
    #: PromQL -> the server's answer, from any thread; None if no server is configured. Raises HistoryAway.
    ask: Callable[[str, datetime], bytes] | None
    snapshots: Callable[[], dict[str, SlurmSnapshot]]
    #: The last signal of each node since a time that lists its GPUs.
    listed_gpus: Callable[[datetime], Sequence[Observation]]
    samples: Samples
    columns: ColumnBook
    signals: SignalStore
    book: ScrapeBook
    tally: Tally
    losses: Losses
    clock: Clock
    stopwatch: Callable[[], float] = time.monotonic
    #: All data of the server of `ask`; None if none is configured.
    follow: PrometheusFollow | None = None


class Scraper:
    """`run` works until stopped: one event loop, and one more thread that decodes and stores."""

    def __init__(self, parts: Parts, *, look_s: float = LOOK_S, state_s: float = STATE_S) -> None:
        self._parts = parts
        self._look_s, self._state_s = look_s, state_s
        self._cluster = parts.cluster
        self._ruleset = parts.rules()
        # The rules of the last look: reading and proving changed ones must not hold up what is being stored.
        self._translators = Translators(lambda: self._ruleset, parts.columns)
        self._commit: GroupCommit[Body[Measured], Measured | BadBody | Refused] = GroupCommit(
            in_thread(Intake(self._put).store, "scrapes"),
            QueueBounds(
                wait_s=WAIT_S, queue=QUEUE, batch=BATCH, weigh=lambda body: body.size, gather_s=GATHER_S
            ),
        )
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._snapshots: dict[str, SlurmSnapshot] = {}
        self._troubles: tuple[Said, ...] = ()
        self._listed: ScrapeRules | None = None
        #: Until when the nodes' lists of GPUs have been read.
        self._gpus_at: datetime | None = None
        # Names are looked up in asyncio's own threads: a name server that stalls must not stop these.
        self._side = ThreadPoolExecutor(2, thread_name_prefix="scraper")
        self._asking = ThreadPoolExecutor(2, thread_name_prefix="asking")
        self._counts = _Counts()
        self._inventories: dict[str, None] = {}

    async def run(self, stopped: Callable[[], bool], leads: Callable[[], None] = lambda: None) -> None:
        """`leads` raises when another one has to lead now; then this one ends."""
        self._commit.start()
        written_s = -math.inf
        try:
            while not stopped():
                await self._in_thread(leads)
                await self._look()
                if self._parts.stopwatch() - written_s >= self._state_s:
                    written_s = self._parts.stopwatch()
                    await self._write_state()
                await _rest(self._look_s, stopped)
        finally:
            for kept in self._kept.values():
                kept.task.cancel()
            await asyncio.gather(*(kept.task for kept in self._kept.values()), return_exceptions=True)
            await self._commit.stop()
            await self._write_state()
            self._side.shutdown(wait=False)
            self._asking.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._side, work)

    # --- what there is to fetch ---

    async def _look(self) -> None:
        parts = self._parts
        with contextlib.suppress(Unavailable):  # the nodes of before are still the best that is known
            self._snapshots = await self._in_thread(parts.snapshots)
            await self._in_thread(self._learn_gpus)
        self._ruleset = await self._in_thread(parts.rules)
        rules = self._ruleset.scrape
        if rules is self._listed and all(not kept.task.done() for kept in self._kept.values()):
            return
        self._listed, self._troubles = rules, ()
        targets = await self._in_thread(lambda: list_targets(rules, self._cluster))
        wanted: dict[tuple[str, str], Fetched] = {target.key: target for target in targets}
        asked: dict[tuple[str, str], Fetched] = {
            ("queries", f"{query.signal}: {query.query}"): query
            for query in rules.queries
            if query.cluster in ("", self._cluster)
        }
        if rules.follow_interval_s:
            asked[_FOLLOW] = FollowEvery(rules.follow_interval_s)
        if asked and parts.ask is None:
            self._troubles += (say("processes.queries_without_url"),)
        else:
            wanted |= asked
        self._keep(wanted)

    def _learn_gpus(self) -> None:
        """An exporter may name a GPU only by UUID: the nodes' own lists give its index."""
        now = self._parts.clock.now()
        if self._gpus_at is not None and now - self._gpus_at < GPUS_EVERY:
            return
        self._translators.hear(self._parts.listed_gpus((self._gpus_at or now) - GPUS_LATE))
        self._gpus_at = now

    def _keep(self, wanted: dict[tuple[str, str], Fetched]) -> None:
        for key in [key for key in self._kept if key not in wanted]:
            self._kept.pop(key).task.cancel()
        for key, what in wanted.items():
            kept = self._kept.get(key)
            if kept is not None and not kept.task.done() and kept.what == what:
                continue
            if kept is not None:
                kept.task.cancel()
            state = TargetState(cluster=self._cluster, job=key[0], target=key[1])
            task = asyncio.create_task(self._repeat(key, what), name=key[1])
            self._kept[key] = _Kept(what, task, kept.state if kept else state)

    async def _repeat(self, key: tuple[str, str], what: Fetched) -> None:
        beat = what if isinstance(what, Target) else _as_target(key[1], what.interval_s)
        stopwatch = self._parts.stopwatch
        due_s = first_due(beat, stopwatch())
        stalled = 0
        while True:
            await asyncio.sleep(max(0.0, due_s - stopwatch()))
            begun_s = stopwatch()
            state = self._kept[key].state
            try:
                done = await self._fetch(what)
            except FetchFailed as error:
                stalled = stalled + 1 if error.reason is LossReason.stalled else 0
                state = self._failed(state, error)
            except Exception as error:
                log.exception("scrape failed", job=key[0], target=key[1])
                state = self._failed(
                    state, FetchFailed(quoted(f"{type(error).__name__}: {str(error)[:200]}"))
                )
            else:
                stalled = 0
                state = msgspec.structs.replace(done, failures=0)
                self._counts.samples += done.samples
            self._counts.scrapes += 1
            took_s = round(stopwatch() - begun_s, 6)
            self._kept[key].state = msgspec.structs.replace(
                state, scraped_at=self._parts.clock.now(), took_s=took_s
            )
            due_s = next_due(beat, due_s, stopwatch(), stalled)

    # --- one fetch ---

    async def _fetch(self, what: Fetched) -> TargetState:
        match what:
            case Target():
                return await self._scrape(what)
            case ScrapeQuery():
                return await self._query(what)
            case FollowEvery():
                return await self._follow()

    async def _scrape(self, target: Target) -> TargetState:
        has_node = self._has_node
        try:
            node = node_of(target, self._cluster, has_node)
        except NoNode as error:
            raise FetchFailed(said_by(error)) from None
        fetched = await self._parts.fetch(target)
        now = self._parts.clock.now()

        def read() -> Measured:
            try:
                raw = unpacked(fetched.body, fetched.packing, UNPACKED_MAX)
            except Problem as problem:
                raise BadBody(problem.detail) from None
            return self._translators.current(self._cluster).exposition(raw, has_node, now, node=node)

        measured = await self._stored(target.job.name, Body(len(fetched.body), read))
        return self._state(target.job.name, target.url, node or "", len(fetched.body), measured)

    async def _query(self, query: ScrapeQuery) -> TargetState:
        ask, now = self._parts.ask, self._parts.clock.now()
        if ask is None:
            raise FetchFailed(say("processes.no_prometheus"))
        try:
            raw = await asyncio.get_running_loop().run_in_executor(self._asking, ask, query.query, now)
        except HistoryAway as error:
            raise FetchFailed(said_by(error)) from None
        has_node = self._has_node

        def read() -> Measured:
            translator = self._translators.current(self._cluster)
            return translator.queried(raw, has_node, now, signal=query.signal)

        measured = await self._stored(query.signal, Body(len(raw), read))
        return self._state("queries", f"{query.signal}: {query.query}", "", len(raw), measured)

    async def _follow(self) -> TargetState:
        follow, now = self._parts.follow, self._parts.clock.now()
        if follow is None:
            raise FetchFailed(say("processes.no_prometheus"))
        catalogue, has_node = self._ruleset.catalogue, self._has_node
        ask = partial(follow.fetch, catalogue, has_node, now)
        try:
            measured = await asyncio.get_running_loop().run_in_executor(self._asking, ask)
        except HistoryAway as error:
            raise FetchFailed(said_by(error)) from None
        size = measured.samples * SAMPLE_BYTES
        stored = await self._stored(_FOLLOW[0], Body(size, lambda: measured))
        return self._state(*_FOLLOW, "", size, stored)

    async def _stored(self, who: str, body: Body[Measured]) -> Measured:
        """Waits for the commit; all that is not stored is counted."""
        try:
            outcome = (await self._commit.add((body,)))[0]
        except Busy:
            raise FetchFailed(say("api.signals_full"), LossReason.shed) from None
        except Unavailable:
            raise FetchFailed(say("processes.not_stored", seconds=WAIT_S), LossReason.database_away) from None
        if isinstance(outcome, BadBody | Refused):
            raise FetchFailed(said_by(outcome), LossReason.bad_body)
        lost = len(outcome.rejected) + outcome.rejected_more
        if lost:
            why = outcome.rejected[0].reason if outcome.rejected else NO_WORDS
            self._lost(LossReason.rejected, lost, who, why)
        return outcome

    def _has_node(self, cluster: str, node: str) -> bool:
        snapshot = self._snapshots.get(cluster)
        return snapshot is not None and (node in snapshot.nodes or device_in(node) is not None)

    def _state(self, job: str, target: str, node: str, size: int, measured: Measured) -> TargetState:
        why = NO_WORDS if measured.samples else say("processes.nothing_known")
        return TargetState(
            cluster=self._cluster,
            job=job,
            target=target,
            node=node,
            up=True,
            bytes=size,
            samples=measured.samples,
            unrecognised=measured.unrecognised,
            error=why,
        )

    def _failed(self, state: TargetState, error: FetchFailed) -> TargetState:
        self._counts.failed += 1
        if error.reason is not None:
            self._lost(
                error.reason, 1, state.job, say("signals.field", field=state.target, text=said_by(error))
            )
        return msgspec.structs.replace(
            state,
            up=False,
            samples=0,
            unrecognised=0,
            bytes=0,
            failures=state.failures + 1,
            error=said_by(error),
        )

    def _lost(self, reason: LossReason, count: int, who: str, example: Said) -> None:
        self._parts.losses.add(SOURCE, reason, count, cluster=self._cluster, who=who, example=example)

    # --- in the writer's thread ---

    def _put(self, bodies: Sequence[Measured]) -> None:
        parts = self._parts
        new = {
            observation.digest: observation
            for measured in bodies
            for observation in measured.inventory
            if observation.digest not in self._inventories
        }
        if new:
            # GPU addresses come with the samples, and are stored with the events. Before the samples: a batch
            # that is retried stores these once, and samples twice.
            parts.signals.store([Arrival(observation) for observation in new.values()])
            self._inventories |= dict.fromkeys(new)
            while len(self._inventories) > INVENTORIES:
                del self._inventories[next(iter(self._inventories))]
        reports = [report for measured in bodies for report in measured.reports]
        if reports:
            parts.samples.put(reports)
        now = parts.clock.now()
        for measured in bodies:
            if measured.unknown:
                parts.tally.add(self._cluster, measured.unknown.items(), now)

    # --- for people ---

    async def _write_state(self) -> None:
        states = [kept.state for kept in self._kept.values()]
        counts = self._counts
        state = ScrapeState(
            cluster=self._cluster,
            at=self._parts.clock.now(),
            targets=tuple(states[:STATES_MAX]),
            more=max(0, len(states) - STATES_MAX),
            scrapes=counts.scrapes,
            failed=counts.failed,
            samples=counts.samples,
            troubles=self._troubles[:100],
        )
        for write in (lambda: self._parts.book.put(state), self._parts.tally.flush, self._parts.losses.flush):
            try:
                await self._in_thread(write)
            except Unavailable as error:
                log.warning("scraper state not stored", error=str(error))
                return


def _as_target(name: str, interval_s: float) -> Target:
    """What is no target of its own, for the beat."""
    return Target(job=ScrapeJob(name="queries", interval_s=interval_s), host="", url=name, labels={})


async def _rest(seconds: float, stopped: Callable[[], bool]) -> None:
    """Signals set a flag: it is polled often enough for a quick stop."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not stopped():
        await asyncio.sleep(0.1)
