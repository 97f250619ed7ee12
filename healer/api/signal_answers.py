"""What becomes of signals, counted and answered: the same for every route that takes them."""

import time
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response

from healer.api.group_commit import SHARE, SHARE_OF_BOUND, Busy, GroupCommit
from healer.api.metrics import COMMIT_S, SIGNALS
from healer.api.problems import Problem
from healer.model import Verdict
from healer.ports.callers import Caller
from healer.signals import wire
from healer.signals.hook_reports import HOOKS

_RESULTS = ("accepted", "duplicate", "unrecognised", "rejected", "shed")
_EVENTS = ("kernel-log", "heartbeat", "checkpoints", "logs", "otlp/v1/logs", "alertmanager", "cloudevents")
_SAMPLES = ("metrics", "prometheus/write", "openmetrics", "nvidia-smi", "step-times", "otlp/v1/metrics")
_COUNTERS = {
    route: {result: SIGNALS.labels(route, result) for result in _RESULTS}
    for route in (*_EVENTS, *(f"hooks/{hook}" for hook in HOOKS))
} | {
    # No sample is known as a duplicate.
    route: {result: SIGNALS.labels(route, result) for result in _RESULTS if result != "duplicate"}
    for route in _SAMPLES
}
_encode = msgspec.json.Encoder().encode
R = TypeVar("R")


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    reason: str


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to signals: every entry falls into exactly one of the four. `rejected` tells of the first
    1,000; `rejected_more` is the number of the others, and left out when there are none."""

    accepted: int
    duplicates: int
    unrecognised: int
    rejected: list[Rejected] = []
    rejected_more: int | msgspec.UnsetType = msgspec.UNSET


class EncodedJson(Response):
    """202 with JSON that is encoded already. Its two headers are written here: Response's own constructor
    costs as much as to read a kernel line."""

    def __init__(self, body: bytes) -> None:
        self.body, self.status_code, self.background = body, 202, None
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]


class HookAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a hook's report. `may_refuse` is the gate's permit for a non-zero exit."""

    verdict: Verdict
    may_refuse: bool
    reason: str
    accepted: int = 0
    duplicates: int = 0
    unrecognised: int = 0
    rejected: list[Rejected] = []


def accepted(
    count: int, unrecognised: int, rejected: Sequence[wire.Rejected], more: int, *, duplicates: int = 0
) -> Accepted:
    """`more`: rejected beyond those that are named."""
    return Accepted(
        accepted=count,
        duplicates=duplicates,
        unrecognised=unrecognised,
        rejected=shown(rejected),
        rejected_more=more or msgspec.UNSET,
    )


def shown(rejected: Sequence[wire.Rejected]) -> list[Rejected]:
    return [Rejected(index=one.index, reason=one.reason) for one in rejected]


def counted(
    route: str,
    count: int,
    unrecognised: int,
    rejected: Sequence[wire.Rejected],
    more: int,
    *,
    duplicates: int = 0,
) -> Accepted:
    """`accepted`, and counted as results of the route."""
    count_results(route, count, duplicates, unrecognised, len(rejected) + more)
    return accepted(count, unrecognised, rejected, more, duplicates=duplicates)


def respond(answer: Accepted | HookAnswer) -> EncodedJson:
    return EncodedJson(_encode(answer))


def count_results(route: str, *counts: int) -> None:
    """`counts`: accepted, duplicates, unrecognised, rejected."""
    counters = _COUNTERS[route]
    for result, count in zip(_RESULTS, counts, strict=False):
        if count:
            counters[result].inc(count)


async def store(
    queue: GroupCommit[Any, R],
    route: str,
    items: Sequence[Any],
    caller: Caller | None = None,
    *,
    lost: int | None = None,
    shed_first: bool = False,
) -> Sequence[R]:
    """The store's result for each item, after the commit. `caller`: whose share of the queue they take.

    Raises Problem 429 when the queue is full: then `lost` entries are counted as lost, all without it.
    """
    owner, share = "", 1.0
    if caller is not None:
        owner, share = caller.owner, SHARE_OF_BOUND if caller.node or caller.job else SHARE
    started = time.perf_counter()
    try:
        results = await queue.add(items, owner=owner, share=share, shed_first=shed_first)
    except Busy as error:
        _COUNTERS[route]["shed"].inc(len(items))
        problem = Problem(429, str(error), headers={"Retry-After": str(error.retry_after_s)})
        problem.lost = len(items) if lost is None else lost
        raise problem from None
    COMMIT_S.observe(time.perf_counter() - started)
    return results
