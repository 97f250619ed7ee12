"""One Slurm through several adapters, in the site's order of preference (docs/decisions/0016).

A call that an adapter does not offer goes to the next; if none offers it, NotAvailable names each reason. A
write that may have reached Slurm is never repeated with another adapter: the caller reads back.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

import msgspec

from healer.model import Controller, SlurmCall
from healer.ports.scheduling import (
    NotAvailable,
    SchedulerError,
    SchedulerRefused,
    SchedulerUnavailable,
    SlurmReads,
)
from healer.text import Said, joined, said_by, say, unstopped

#: An adapter that did not answer is tried last for this long; then one caller tries it again.
REST_S = 15.0
#: After this a write is not passed to another adapter: the rest of `preferred.WRITE_S` would not be enough.
HAND_ON_S = 5.0

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=SlurmReads)


class OtherCluster(SchedulerError):
    """The adapters reach different clusters, where nodes may have the same names."""


class _Rest(NamedTuple):
    """An adapter that is tried last until `until` (stopwatch), and its error."""

    until: float
    why: Said


def _read(
    method: Callable[Concatenate[SlurmReads, P], T],
) -> Callable[Concatenate["PreferredReads[Any]", P], T]:
    """Calls the same method of the first adapter that offers it."""
    call = SlurmCall(method.__name__)

    def read(self: "PreferredReads[Any]", *args: P.args, **kwargs: P.kwargs) -> T:
        return self.first(call, lambda slurm: getattr(slurm, call)(*args, **kwargs))[1]

    return read


class PreferredReads(Generic[S]):
    """`ports.SlurmReads` over other adapters. Safe for threads if they are.

    `cluster`: the expected cluster (None: unknown); OtherCluster is raised before anything is sent to another
    one. `stopwatch` returns monotonic seconds.
    """

    def __init__(
        self,
        adapters: Sequence[S],
        *,
        cluster: str | None = None,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        if not adapters:
            raise ValueError("no adapter to prefer")
        self.adapters = tuple(adapters)
        self.name = ",".join(adapter.name for adapter in self.adapters)
        self._stopwatch = stopwatch
        self._lock = threading.Lock()
        self._rests: dict[int, _Rest] = {}
        self._meant = cluster
        self._cluster: str | None = None
        self._reached: set[int] = set()

    # --- about the adapters

    def describe(self) -> str:
        """The description of each adapter, or its error."""
        lines, answered = [], False
        for adapter in self.adapters:
            try:
                lines.append(adapter.describe())
                answered = True
            except SchedulerError as error:
                lines.append(say("slurm.adapter_failed", adapter=adapter.name, error=said_by(error)))
        if not answered:
            raise SchedulerUnavailable(joined(lines, "semicolon"))
        return ", then ".join(lines)

    def unavailable(self) -> Mapping[SlurmCall, str]:
        """The calls that no adapter offers; empty while one does not answer, because it is unknown then."""
        try:
            found = [adapter.unavailable() for adapter in self.adapters]
        except SchedulerUnavailable:
            return {}
        return {
            call: joined(
                [self._named(number, lacks[call]) for number, lacks in enumerate(found)], "semicolon"
            )
            for call in SlurmCall
            if all(call in lacks for lacks in found)
        }

    def cluster_name(self) -> str:
        """The name that all answering adapters report. Raises SchedulerUnavailable or OtherCluster."""
        problems = []
        for number in range(len(self.adapters)):
            try:
                self._reach(number)
            except SchedulerUnavailable as error:
                why = self._rest(number, error)
                problems.append(self._named(number, why))
        if self._cluster is None:
            raise SchedulerUnavailable(joined(problems, "semicolon"))
        return self._cluster

    # --- calls of the adapters

    #: As returned by the adapter: unchanged mappings stay the same objects.
    snapshot = _read(SlurmReads.snapshot)
    reserved = _read(SlurmReads.reserved)
    node = _read(SlurmReads.node)
    job = _read(SlurmReads.job)
    jobs_on = _read(SlurmReads.jobs_on)
    topology = _read(SlurmReads.topology)

    def controller(self) -> Controller:
        """From the first adapter that answers, with its name and the errors of those before it."""
        number, found, errors = self.first(SlurmCall.controller, lambda slurm: slurm.controller())
        with self._lock:
            why = {earlier: rest.why for earlier, rest in self._rests.items()}
        why |= {earlier: said_by(error) for earlier, error in errors.items()}
        before = tuple(self._named(earlier, why[earlier]) for earlier in range(number) if earlier in why)
        return msgspec.structs.replace(found, adapter=self.adapters[number].name, fallbacks=before)

    # --- helpers

    def first(
        self, call: SlurmCall, ask: Callable[[S], T], *, write: bool = False
    ) -> tuple[int, T, dict[int, SchedulerError]]:
        """The number of the first adapter that succeeds, its answer, and the errors of those before it."""
        begun = self._stopwatch()
        errors: dict[int, SchedulerError] = {}
        for number in self._order():
            if write and self._stopwatch() - begun > HAND_ON_S:
                errors[number] = SchedulerUnavailable(say("slurm.no_time"), sent=False)
                break
            try:
                self._reach(number)
                answer = ask(self.adapters[number])
            except NotAvailable as error:
                errors[number] = error
            except SchedulerUnavailable as error:
                self._rest(number, error)
                if write and error.sent:
                    raise
                errors[number] = error
            except SchedulerRefused as error:
                self._wake(number)
                if not error.no_right:
                    raise  # only a missing right: the next adapter may use another account
                errors[number] = error
            else:
                self._wake(number)
                return number, answer, errors
        raise self._combine(call, errors)

    def _combine(self, call: SlurmCall, errors: Mapping[int, SchedulerError]) -> SchedulerError:
        """One error for all adapters; SchedulerUnavailable if one of them did not answer."""
        if len(self.adapters) == 1:
            return errors[0]
        each = [self._named(number, said_by(error)) for number, error in sorted(errors.items())]
        text = joined(each, "semicolon")
        silent = [error for error in errors.values() if isinstance(error, SchedulerUnavailable)]
        if silent:
            return SchedulerUnavailable(text, sent=any(error.sent for error in silent))
        for error in errors.values():
            if isinstance(error, SchedulerRefused):
                return SchedulerRefused(text, error.code)
        lacks = sorted((number, error) for number, error in errors.items() if isinstance(error, NotAvailable))
        return NotAvailable(
            call, joined([self._named(number, error.why) for number, error in lacks], "semicolon")
        )

    def _order(self) -> list[int]:
        """The site's order, with resting adapters last. After its rest an adapter is tried by this caller
        only."""
        now = self._stopwatch()
        with self._lock:
            resting = {number for number, rest in self._rests.items() if now < rest.until}
            for number in self._rests.keys() - resting:
                self._rests[number] = self._rests[number]._replace(until=now + REST_S)
        return sorted(range(len(self.adapters)), key=resting.__contains__)

    def _rest(self, number: int, error: SchedulerError) -> Said:
        """Lets the adapter rest; returns why."""
        why = said_by(error)
        with self._lock:
            self._rests[number] = _Rest(self._stopwatch() + REST_S, why)
        return why

    def _wake(self, number: int) -> None:
        with self._lock:
            self._rests.pop(number, None)

    def _reach(self, number: int) -> None:
        """Checks the adapter's cluster before its first use. An error then means that nothing was sent."""
        if number in self._reached:
            return
        adapter = self.adapters[number]
        try:
            cluster = adapter.cluster_name()
        except SchedulerUnavailable as error:
            raise SchedulerUnavailable(said_by(error), sent=False) from error
        if self._meant not in (None, cluster):
            raise OtherCluster(say("slurm.slurm_other_cluster", cluster=cluster, meant=self._meant))
        with self._lock:
            if self._cluster is None:
                self._cluster = cluster
            if cluster != self._cluster:
                raise OtherCluster(
                    say("slurm.two_clusters", adapter=adapter.name, cluster=cluster, other=self._cluster)
                )
            self._reached.add(number)

    def _named(self, number: int, why: str) -> Said:
        return say("slurm.adapter_says", adapter=self.adapters[number].name, why=unstopped(why))
