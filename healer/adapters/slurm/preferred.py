"""One Slurm through several adapters, in the site's order of preference (docs/decisions/0016).

What one cannot do goes to the next; what none can do is NotAvailable with each one's reason. A write that may
have reached Slurm is never handed on: whoever asked reads back, and the read may take the next adapter.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from healer.adapters.slurm import process
from healer.model import Controller, Reservation, SlurmCall, SlurmJob, SlurmNode, SlurmSnapshot, Submission
from healer.ports.scheduling import (
    Nodes,
    NotAvailable,
    Scheduler,
    SchedulerError,
    SchedulerRefused,
    SchedulerUnavailable,
)

#: A write ends within this, whatever its adapters do: less than the margin that a lease leaves for an effect.
WRITE_S = 7.0
#: An adapter that did not answer is asked last for this long; then one caller tries it again.
REST_S = 15.0

T = TypeVar("T")


class OtherCluster(SchedulerError):
    """Two adapters reach two clusters: nodes of the same name would be drained in the wrong one."""


class _Rest(NamedTuple):
    """`until` on the stopwatch; `why` in the adapter's own words."""

    until: float
    why: str


# Wide: implements `ports.Scheduler`.
class PreferredScheduler:
    """`ports.Scheduler` over others. Safe for threads as far as they are.

    `cluster`: the one that is meant; OtherCluster is raised before anything reaches another. None: not known.
    `hand_on_s`: a write goes to no further adapter later than this after it was begun: what is left of
    WRITE_S would not do. `stopwatch` runs in seconds and never backwards.
    """

    def __init__(
        self,
        adapters: Sequence[Scheduler],
        *,
        cluster: str | None = None,
        hand_on_s: float = 5.0,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        if not adapters:
            raise ValueError("no adapter to prefer")
        self.adapters = tuple(adapters)
        self.name = ",".join(adapter.name for adapter in self.adapters)
        self._hand_on_s, self._stopwatch = hand_on_s, stopwatch
        self._lock = threading.Lock()
        self._rests: dict[int, _Rest] = {}
        self._meant = cluster
        self._cluster: str | None = None
        self._reached: set[int] = set()

    # --- what it is

    def describe(self) -> str:
        """Each adapter's line in the site's order; why, for those that do not answer."""
        lines, answered = [], False
        for adapter in self.adapters:
            try:
                lines.append(adapter.describe())
                answered = True
            except SchedulerError as error:
                lines.append(f"{adapter.name} ({error})")
        if not answered:
            raise SchedulerUnavailable("; ".join(lines))
        return ", then ".join(lines)

    def unavailable(self) -> Mapping[SlurmCall, str]:
        """What none can do. One that does not answer now may be able to: it is not known."""
        try:
            found = [adapter.unavailable() for adapter in self.adapters]
        except SchedulerUnavailable:
            return {}
        return {
            call: "; ".join(self._named(number, lacks[call]) for number, lacks in enumerate(found))
            for call in SlurmCall
            if all(call in lacks for lacks in found)
        }

    def cluster_name(self) -> str:
        """Its name, once one told it and no other that answers told another one."""
        problems = []
        for number in range(len(self.adapters)):
            try:
                self._reach(number)
            except SchedulerUnavailable as error:
                self._rest(number, str(error))
                problems.append(self._named(number, str(error)))
        if self._cluster is None:
            raise SchedulerUnavailable("; ".join(problems))
        return self._cluster

    # --- reading

    def snapshot(self) -> SlurmSnapshot:
        """As the adapter gave it: mappings that it hands back unchanged stay the same objects."""
        return self._ask(SlurmCall.snapshot, lambda slurm: slurm.snapshot())

    def reserved(self) -> Mapping[str, Reservation]:
        return self._ask(SlurmCall.reserved, lambda slurm: slurm.reserved())

    def node(self, name: str) -> SlurmNode:
        return self._ask(SlurmCall.node, lambda slurm: slurm.node(name))

    def job(self, job: str) -> SlurmJob | None:
        return self._ask(SlurmCall.job, lambda slurm: slurm.job(job))

    def jobs_on(self, node: str) -> list[SlurmJob]:
        return self._ask(SlurmCall.jobs_on, lambda slurm: slurm.jobs_on(node))

    def controller(self) -> Controller:
        """Of the first that answers, with its name and why those before it did not."""
        number, found, errors = self._first(SlurmCall.controller, lambda slurm: slurm.controller())
        with self._lock:
            why = {earlier: rest.why for earlier, rest in self._rests.items()}
        why |= {earlier: str(error) for earlier, error in errors.items()}
        before = tuple(self._named(earlier, why[earlier]) for earlier in range(number) if earlier in why)
        return msgspec.structs.replace(found, adapter=self.adapters[number].name, fallbacks=before)

    def topology(self) -> Mapping[str, tuple[str, ...]]:
        return self._ask(SlurmCall.topology, lambda slurm: slurm.topology())

    # --- nodes

    def drain(self, nodes: Nodes, reason: str) -> None:
        self._do(SlurmCall.drain, lambda slurm: slurm.drain(nodes, reason))

    def undrain(self, nodes: Nodes) -> None:
        self._do(SlurmCall.undrain, lambda slurm: slurm.undrain(nodes))

    def resume(self, nodes: Nodes) -> None:
        self._do(SlurmCall.resume, lambda slurm: slurm.resume(nodes))

    def down(self, nodes: Nodes, reason: str) -> None:
        self._do(SlurmCall.down, lambda slurm: slurm.down(nodes, reason))

    def reboot(self, nodes: Nodes, reason: str) -> None:
        self._do(SlurmCall.reboot, lambda slurm: slurm.reboot(nodes, reason))

    def cancel_reboot(self, nodes: Nodes) -> None:
        self._do(SlurmCall.cancel_reboot, lambda slurm: slurm.cancel_reboot(nodes))

    def annotate(self, node: str, *, comment: str | None = None, extra: str | None = None) -> None:
        self._do(SlurmCall.annotate, lambda slurm: slurm.annotate(node, comment=comment, extra=extra))

    # --- reservations

    def reserve(self, reservation: Reservation) -> None:
        self._do(SlurmCall.reserve, lambda slurm: slurm.reserve(reservation))

    def change_reservation(self, name: str, nodes: Sequence[str]) -> None:
        self._do(SlurmCall.change_reservation, lambda slurm: slurm.change_reservation(name, nodes))

    def unreserve(self, name: str) -> None:
        self._do(SlurmCall.unreserve, lambda slurm: slurm.unreserve(name))

    # --- jobs

    def requeue(self, job: str) -> None:
        self._do(SlurmCall.requeue, lambda slurm: slurm.requeue(job))

    def revive(self, job: str) -> None:
        self._do(SlurmCall.revive, lambda slurm: slurm.revive(job))

    def start_now(self, job: str) -> None:
        self._do(SlurmCall.start_now, lambda slurm: slurm.start_now(job))

    def hold(self, job: str) -> None:
        self._do(SlurmCall.hold, lambda slurm: slurm.hold(job))

    def release(self, job: str) -> None:
        self._do(SlurmCall.release, lambda slurm: slurm.release(job))

    def exclude(self, job: str, nodes: Sequence[str]) -> None:
        self._do(SlurmCall.exclude, lambda slurm: slurm.exclude(job, nodes))

    def signal(self, job: str, name: str) -> None:
        self._do(SlurmCall.signal, lambda slurm: slurm.signal(job, name))

    def notify(self, job: str, text: str) -> None:
        self._do(SlurmCall.notify, lambda slurm: slurm.notify(job, text))

    def remark(self, job: str, text: str) -> None:
        self._do(SlurmCall.remark, lambda slurm: slurm.remark(job, text))

    def submit(self, submission: Submission) -> str:
        return self._do(SlurmCall.submit, lambda slurm: slurm.submit(submission))

    def cancel(self, job: str) -> None:
        self._do(SlurmCall.cancel, lambda slurm: slurm.cancel(job))

    # --- inside

    def _ask(self, call: SlurmCall, ask: Callable[[Scheduler], T]) -> T:
        return self._first(call, ask)[1]

    def _do(self, call: SlurmCall, do: Callable[[Scheduler], T]) -> T:
        with process.within(WRITE_S):
            return self._first(call, do, write=True)[1]

    def _first(
        self, call: SlurmCall, ask: Callable[[Scheduler], T], *, write: bool = False
    ) -> tuple[int, T, dict[int, SchedulerError]]:
        """The first adapter that can, its answer, and the errors of those asked before it."""
        begun = self._stopwatch()
        errors: dict[int, SchedulerError] = {}
        for number in self._order():
            if write and self._stopwatch() - begun > self._hand_on_s:
                errors[number] = SchedulerUnavailable("no time was left to ask", sent=False)
                break
            try:
                self._reach(number)
                answer = ask(self.adapters[number])
            except NotAvailable as error:
                errors[number] = error
            except SchedulerUnavailable as error:
                self._rest(number, str(error))
                if write and error.sent:
                    raise
                errors[number] = error
            except SchedulerRefused as error:
                self._wake(number)
                if not error.no_right:
                    raise  # an account lacks a right, and the next adapter may come as another one
                errors[number] = error
            else:
                self._wake(number)
                return number, answer, errors
        raise self._none(call, errors)

    def _none(self, call: SlurmCall, errors: Mapping[int, SchedulerError]) -> SchedulerError:
        """One error for all. While one does not answer it is unknown what it would have said."""
        if len(self.adapters) == 1:
            return errors[0]
        text = "; ".join(self._named(number, str(error)) for number, error in sorted(errors.items()))
        silent = [error for error in errors.values() if isinstance(error, SchedulerUnavailable)]
        if silent:
            return SchedulerUnavailable(text, sent=any(error.sent for error in silent))
        for error in errors.values():
            if isinstance(error, SchedulerRefused):
                return SchedulerRefused(text, error.code)
        lacks = sorted((number, error) for number, error in errors.items() if isinstance(error, NotAvailable))
        return NotAvailable(call, "; ".join(self._named(number, error.why) for number, error in lacks))

    def _order(self) -> list[int]:
        """The site's order, those that rest last. Whose rest is over is tried by this caller alone."""
        now = self._stopwatch()
        with self._lock:
            resting = {number for number, rest in self._rests.items() if now < rest.until}
            for number in self._rests.keys() - resting:
                self._rests[number] = self._rests[number]._replace(until=now + REST_S)
        return sorted(range(len(self.adapters)), key=resting.__contains__)

    def _rest(self, number: int, why: str) -> None:
        with self._lock:
            self._rests[number] = _Rest(self._stopwatch() + REST_S, why)

    def _wake(self, number: int) -> None:
        with self._lock:
            self._rests.pop(number, None)

    def _reach(self, number: int) -> None:
        """Before its first use an adapter tells its cluster. Silence then means that nothing was sent."""
        if number in self._reached:
            return
        adapter = self.adapters[number]
        try:
            cluster = adapter.cluster_name()
        except SchedulerUnavailable as error:
            raise SchedulerUnavailable(str(error), sent=False) from error
        if self._meant not in (None, cluster):
            raise OtherCluster(
                f"Slurm on this machine is the cluster {cluster}, not {self._meant}: mend SLURM_CONF or "
                f"HEALER_CLUSTER, or the table [clusters.{self._meant}]."
            )
        with self._lock:
            if self._cluster is None:
                self._cluster = cluster
            if cluster != self._cluster:
                raise OtherCluster(
                    f"{adapter.name} reaches the cluster {cluster}, the other adapters {self._cluster}: "
                    "HEALER_SLURM_ADAPTERS may only list ways to one cluster."
                )
            self._reached.add(number)

    def _named(self, number: int, why: str) -> str:
        return f"{self.adapters[number].name}: {why.rstrip('.')}"
