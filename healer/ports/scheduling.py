"""Slurm, as healer uses it. Each adapter implements all of it, and reports what it cannot do here."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from healer.model import Controller, Reservation, SlurmCall, SlurmJob, SlurmNode, SlurmSnapshot, Submission
from healer.text import Said, SaidError, say


class SchedulerError(SaidError):
    """Slurm refused or could not be asked. The text is one sentence for people, with Slurm's own words."""


class SchedulerUnavailable(SchedulerError):
    """No answer, or none in time: it is unknown whether anything happened. Read back before any retry.

    `sent` is False if it is certain that nothing left this machine or that Slurm turned it away immediately
    (no connection, no valid token): another adapter may then be asked for the same thing.
    """

    def __init__(self, text: Said, *, sent: bool = True) -> None:
        super().__init__(text)
        self.sent = sent


#: ESLURM_ACCESS_DENIED, ESLURM_USER_ID_MISSING (slurm_errno.h).
_NO_RIGHT = frozenset({2002, 2010})


class SchedulerRefused(SchedulerError):
    """Slurm understood and refused. `code` is Slurm's error number if known (d.4 of the facts)."""

    def __init__(self, text: Said, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code

    @property
    def no_right(self) -> bool:
        """Access denied, invalid user id: Slurm's verdict on the account. A retry is of no use."""
        return self.code in _NO_RIGHT


class UnknownNode(SchedulerRefused):
    """Slurm has no node of that name."""


class NotAvailable(SchedulerError):
    """This adapter cannot do it with this Slurm. Nothing was sent; another adapter may be able to.

    Its text begins "not available here: " and ends with the reason.
    """

    def __init__(self, call: SlurmCall, why: str) -> None:
        super().__init__(say("slurm.not_available", why=why))
        self.call, self.why = call, why


#: One node, or several that are named in one call if Slurm can (else in one call each, in this order).
Nodes = str | Sequence[str]


class SlurmReads(Protocol):
    """Slurm, for every part except the worker: nothing here changes anything.

    Every call is bounded in time. Names are checked before they reach Slurm: host lists, ALL, options and the
    like raise UnknownNode (or SchedulerRefused with 2017 for a job), and nothing is sent. Every method may
    raise SchedulerUnavailable, SchedulerRefused and NotAvailable.
    """

    name: str

    def describe(self) -> str:
        """One line: adapter and version, e.g. `cli, Slurm 22.05.8`. Raises SchedulerUnavailable."""
        ...

    def unavailable(self) -> Mapping[SlurmCall, str]:
        """Calls, including changes, that the adapter of this name cannot make with this Slurm, and why, in
        words that name the release and a way out."""
        ...

    def cluster_name(self) -> str: ...

    def snapshot(self) -> SlurmSnapshot:
        """All nodes, reservations and jobs that slurmctld still knows. One call each, whatever the size."""
        ...

    def reserved(self) -> Mapping[str, Reservation]:
        """All reservations by name, read now. One call."""
        ...

    def node(self, name: str) -> SlurmNode:
        """One node, read now. Raises UnknownNode."""
        ...

    def job(self, job: str) -> SlurmJob | None:
        """One job, read now, with GPU indices by node; None when slurmctld no longer knows it."""
        ...

    def jobs_on(self, node: str) -> list[SlurmJob]:
        """Jobs that hold the node now (running, suspended, completing), with GPU indices."""
        ...

    def controller(self) -> Controller:
        """Which slurmctld answers, how fast, and the length of its queues."""
        ...

    def topology(self) -> Mapping[str, tuple[str, ...]]:
        """Node -> its switches, leaf first; empty if Slurm has no tree."""
        ...


# Wide: one method per change that healer makes in Slurm; four adapters implement all of them.
class Scheduler(SlurmReads, Protocol):
    """Slurm with the calls that change it: only the worker has one.

    The adapter itself does nothing twice. Changes return when Slurm has answered; that is never proof:
    callers read back. Texts are one printable line; anything else, and an empty reason, raises ValueError.
    """

    # --- nodes

    def drain(self, nodes: Nodes, reason: str) -> None: ...

    def undrain(self, nodes: Nodes) -> None:
        """Clears only DRAIN."""

    def resume(self, nodes: Nodes) -> None:
        """Clears DRAIN, FAIL and DOWN. Refused (2180) on a node in service."""

    def down(self, nodes: Nodes, reason: str) -> None:
        """Sets DOWN: jobs on the node are requeued or failed immediately (d.8, 6)."""

    def reboot(self, nodes: Nodes, reason: str) -> None:
        """`reboot ASAP nextstate=DOWN`: boots when idle and stays out until it is resumed (d.8, 7). Raises
        SchedulerRefused with the nodes that Slurm skipped, even if Slurm reported success (d.8, 8).
        """

    def cancel_reboot(self, nodes: Nodes) -> None: ...

    def annotate(self, node: str, *, comment: str | None = None, extra: str | None = None) -> None:
        """Sets the node's comment and extra text; None leaves one unchanged, "" clears it."""

    # --- reservations

    def reserve(self, reservation: Reservation) -> None:
        """Creates it, from now on, over running jobs if `maintenance`. An existing name is refused."""

    def change_reservation(self, name: str, nodes: Sequence[str]) -> None:
        """Sets exactly these nodes. Raises ValueError for none at all: unreserve it."""

    def unreserve(self, name: str) -> None:
        """Ends it. A missing one raises SchedulerRefused with 2053 (invalid reservation)."""

    # --- jobs

    def shrink(self, job: str, node: str) -> None:
        """Removes the node from a running job. Slurm kills what the job still runs there; with `srun
        --kill-on-bad-exit` that ends the whole step. Refused for the batch host, the last node, a job that
        does not run, and parts of a heterogeneous job. No effect if the job does not have the node.
        """

    def requeue(self, job: str) -> None:
        """`requeue Incomplete`: no effect on a job that is not running or suspended."""

    def revive(self, job: str) -> None:
        """Plain `requeue`, for a job that has ended: it runs again from its beginning or its checkpoint.
        Refused unless it ended FAILED or NODE_FAIL: Slurm itself would also rerun a completed one.
        """

    def start_now(self, job: str) -> None:
        """Removes the begin time that a requeue sets; has an effect only after COMPLETING."""

    def hold(self, job: str) -> None: ...

    def release(self, job: str) -> None:
        """Ends a hold, including the one that Slurm puts on a job whose launch failed."""

    def exclude(self, job: str, nodes: Sequence[str]) -> None:
        """Sets the nodes that a pending job must not use; none: it may use all (d.8, 14)."""

    def signal(self, job: str, name: str) -> None:
        """Sends `USR1` or the like to the batch script and all steps of a running job; otherwise refused. A
        job runs before its program does: a signal in its first second ends a script that has no trap yet.
        """

    def notify(self, job: str, text: str) -> None:
        """Writes one line to the terminal of a job that has one (srun, salloc), or to a batch job's output.
        Slurm accepts a line that comes before the program runs, and loses it.
        """

    def remark(self, job: str, text: str) -> None:
        """Sets the job's admin comment, which its owner sees in squeue and sacct."""

    def submit(self, submission: Submission) -> str: ...

    def cancel(self, job: str) -> None:
        """Ends it. No effect on one that has ended; a job that Slurm never knew is refused (2017)."""


class Snapshots(Protocol):
    """The latest Slurm snapshots, written by the poller, read by the detector, the API and the gate."""

    def put(self, snapshot: SlurmSnapshot) -> None: ...
    def latest(self, cluster: str) -> SlurmSnapshot | None: ...
    def failed(self, cluster: str, error: str) -> None: ...

    def put_controller(self, controller: Controller) -> None:
        """The state of slurmctld: separate from the snapshot, because its figures change with every poll."""

    def controller(self, cluster: str) -> Controller | None: ...
