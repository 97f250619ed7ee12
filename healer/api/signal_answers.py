"""What becomes of signals, counted and answered: the same for every route that takes them."""

import time
from collections.abc import Sequence
from types import TracebackType

import msgspec

from healer.api.group_commit import Busy
from healer.api.metrics import COMMIT_S, SIGNALS
from healer.api.problems import Problem
from healer.api.responses import EncodedJson
from healer.model import Verdict
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


def respond(answer: Accepted | HookAnswer) -> EncodedJson:
    """202."""
    return EncodedJson(_encode(answer))


def count_answer(route: str, answer: Accepted) -> None:
    more = 0 if answer.rejected_more is msgspec.UNSET else answer.rejected_more
    rejected = len(answer.rejected) + more
    count_results(route, answer.accepted, answer.duplicates, answer.unrecognised, rejected)


def count_results(route: str, *counts: int) -> None:
    """`counts`: accepted, duplicates, unrecognised, rejected."""
    counters = _COUNTERS[route]
    for result, count in zip(_RESULTS, counts, strict=False):
        if count:
            counters[result].inc(count)


class Commit:
    """Around what waits for a commit: measures it, and makes 429 of a queue that is full.

    A class, as each request of ten thousand a second passes here."""

    __slots__ = ("_entries", "_lost", "_route", "_started")

    def __init__(self, route: str, entries: int, *, lost: int | None = None) -> None:
        """`lost`: how many entries are counted as lost where the queue is full; all without it."""
        self._route, self._entries = route, entries
        self._lost = entries if lost is None else lost

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if error is None:
            COMMIT_S.observe(time.perf_counter() - self._started)
        elif isinstance(error, Busy):
            _COUNTERS[self._route]["shed"].inc(self._entries)
            problem = Problem(429, str(error), headers={"Retry-After": str(error.retry_after_s)})
            problem.lost = self._lost
            raise problem from None
