"""What the three ways to Slurm share: checks before anything is sent, and which record a name means."""

import abc
from collections.abc import Mapping, Sequence
from datetime import datetime

from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.commands import looking_first
from healer.adapters.slurm.parse_json import UNREAD, Queues, Server
from healer.model import Controller, Reservation, SlurmCall, SlurmJob, Submission
from healer.ports.scheduling import Nodes, NotAvailable, SchedulerRefused


# Wide: implements half of `ports.Scheduler`.
class SlurmAdapter(abc.ABC):
    """What an adapter has no way for raises NotAvailable until the adapter defines it."""

    name: str

    @abc.abstractmethod
    def unavailable(self) -> Mapping[SlurmCall, str]: ...

    @abc.abstractmethod
    def cluster_name(self) -> str: ...

    @abc.abstractmethod
    def job(self, job: str) -> SlurmJob | None: ...

    def topology(self) -> Mapping[str, tuple[str, ...]]:
        raise self._lacking(SlurmCall.topology)

    # --- nodes

    def drain(self, nodes: Nodes, reason: str) -> None:
        """Slurm takes a drain without a reason from REST, and keeps the old one (d.8, 1): never sent."""
        self._set_nodes("drain", nodes, state="DRAIN", reason=words.checked_line("a reason", reason))

    def undrain(self, nodes: Nodes) -> None:
        self._set_nodes("undrain", nodes, state="UNDRAIN")

    def resume(self, nodes: Nodes) -> None:
        self._set_nodes("resume", nodes, state="RESUME")

    def down(self, nodes: Nodes, reason: str) -> None:
        self._set_nodes("set down", nodes, state="DOWN", reason=words.checked_line("a reason", reason))

    def annotate(self, node: str, *, comment: str | None = None, extra: str | None = None) -> None:
        texts = {"comment": comment, "extra": extra}
        changes = {
            field: words.checked_line("a note", text, empty=True)
            for field, text in texts.items()
            if text is not None
        }
        if changes:
            self._set_nodes("annotate", node, **changes)

    def _set_nodes(self, verb: str, nodes: Nodes, **changes: str) -> None:
        self._change_nodes(verb, words.checked_nodes(nodes), changes)

    @abc.abstractmethod
    def _change_nodes(self, verb: str, names: list[str], changes: Mapping[str, str]) -> None:
        """`changes` by `state`, `reason`, `comment` and `extra`. Slurm goes through a list, does what it can,
        and does not name the node that it did not change: the error tells what is known."""

    def reboot(self, nodes: Nodes, reason: str) -> None:
        raise self._lacking(SlurmCall.reboot)

    def cancel_reboot(self, nodes: Nodes) -> None:
        raise self._lacking(SlurmCall.cancel_reboot)

    # --- reservations

    def reserve(self, reservation: Reservation) -> None:
        raise self._lacking(SlurmCall.reserve)

    def change_reservation(self, name: str, nodes: Sequence[str]) -> None:
        raise self._lacking(SlurmCall.change_reservation)

    def unreserve(self, name: str) -> None:
        raise self._lacking(SlurmCall.unreserve)

    # --- jobs

    def notify(self, job: str, text: str) -> None:
        raise self._lacking(SlurmCall.notify)

    def submit(self, submission: Submission) -> str:
        """slurmrestd takes a script that sbatch would refuse, and the job then fails on its node."""
        self._must_have(SlurmCall.submit)
        if not submission.script.startswith("#!"):
            raise ValueError("a script begins with #!")
        words.checked_line("a job name", submission.name)
        if submission.reservation:
            words.checked_reservation(submission.reservation)
        if submission.comment:
            words.checked_line("a comment", submission.comment)
        for what, name in (("a partition", submission.partition), ("a QOS", submission.qos)):
            words.checked_names(what, [name] if name else [])
        return self._submit(submission, words.checked_nodes(submission.nodes))

    @abc.abstractmethod
    def _submit(self, submission: Submission, nodes: list[str]) -> str: ...

    def _known(self, job: str) -> SlurmJob:
        with looking_first():
            found = self.job(job)
        if found is None:
            raise SchedulerRefused(f"Slurm no longer knows job {job}.", words.JOB_UNKNOWN)
        return found

    def _single(self, job: str) -> SlurmJob:
        """As `_known`, for what would change jobs that wait."""
        found = self._known(job)
        if self._waits_together(found):
            raise SchedulerRefused(f"{job} stands for array tasks that wait together: name one of them.")
        return found

    def _waits_together(self, job: SlurmJob) -> bool:
        """No command may touch it. Whether a job that cannot be read is a task of an array is not known."""
        return words.waits_together(job) or job.why.startswith(UNREAD)

    def _led(self, job: SlurmJob) -> list[SlurmJob]:
        """All components where it leads a heterogeneous job: scontrol reaches them by itself, slurmrestd and
        pyslurm change one alone (seen on 24.11)."""
        if not job.het_job or job.het_offset:
            return [job]
        with looking_first():
            every = self._all_jobs()
        return [part for part in every.values() if part.het_job == job.het_job]

    @abc.abstractmethod
    def _all_jobs(self) -> Mapping[str, SlurmJob]: ...

    # --- inside

    def _must_have(self, call: SlurmCall) -> None:
        if call in self.unavailable():
            raise self._lacking(call)

    def _lacking(self, call: SlurmCall) -> NotAvailable:
        return NotAvailable(call, self.unavailable()[call])

    def _controller(
        self, at: datetime, version: str, answer_s: float, server: Server | None, queues: Queues
    ) -> Controller:
        return Controller(
            cluster=self.cluster_name(),
            at=at,
            adapter=self.name,
            host=server.host if server else "",
            role=server.role if server else "",
            version=version,
            answer_s=answer_s,
            threads=queues.threads,
            agent_queue=queues.agent,
            dbd_queue=queues.dbd,
        )
