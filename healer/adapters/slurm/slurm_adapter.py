"""The common part of the three Slurm adapters that change it: checks, and lookup of jobs."""

import abc
from collections.abc import Mapping, Sequence

from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.commands import only_reading
from healer.adapters.slurm.parse_json import UNREAD
from healer.adapters.slurm.slurm_reader import SlurmReader
from healer.model import Reservation, SlurmCall, SlurmJob, Submission
from healer.ports.scheduling import Nodes, SchedulerRefused
from healer.text import say

#: Slurm's own number for a job that may not be changed now.
_NOT_NOW = 2020


# Wide: implements half of `ports.Scheduler`.
class SlurmAdapter(SlurmReader):
    """The changes. Calls that an adapter does not define raise NotAvailable."""

    # --- nodes

    def drain(self, nodes: Nodes, reason: str) -> None:
        """Always with a reason: REST accepts a drain without one and keeps the old reason (d.8, 1)."""
        self._set_nodes("drain", nodes, state="DRAIN", reason=words.checked_line("a reason", reason))

    def undrain(self, nodes: Nodes) -> None:
        self._set_nodes("undrain", nodes, state="UNDRAIN")

    def resume(self, nodes: Nodes) -> None:
        self._set_nodes("resume", nodes, state="RESUME")

    def down(self, nodes: Nodes, reason: str) -> None:
        self._set_nodes("down", nodes, state="DOWN", reason=words.checked_line("a reason", reason))

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
        """`changes`: values of `state`, `reason`, `comment` and `extra`. Slurm changes the nodes one by one
        and does not name those that it did not change; the error says what is known."""

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

    def shrink(self, job: str, node: str) -> None:
        raise self._lacking(SlurmCall.shrink)

    def _rest_without(self, job: str, node: str) -> tuple[SlurmJob, list[str]]:
        """The job and the nodes that a shrink leaves it; none where the job has not the node.

        Only of a running job: for a pending one Slurm takes the same change as the list of nodes that it
        needs (seen on 22.05).
        """
        words.checked_node(node)
        found = self._single(job)
        if found.state != "RUNNING" or found.flags or found.het_job:
            raise SchedulerRefused(say("slurm.shrink_not_running", job=job, state=found.state), _NOT_NOW)
        if node not in found.nodes:
            return found, []
        # Slurm starts the batch script on the first node of the allocation, and refuses to take that one.
        if node == found.nodes[0] or len(found.nodes) < 2:
            raise SchedulerRefused(say("slurm.shrink_batch_host", job=job, node=node), words.NODE_UNKNOWN)
        return found, [words.checked_node(name) for name in found.nodes if name != node]

    def notify(self, job: str, text: str) -> None:
        raise self._lacking(SlurmCall.notify)

    def submit(self, submission: Submission) -> str:
        """Checks the script like sbatch: slurmrestd would accept any, and the job would fail on its node."""
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

    def _existing_job(self, job: str) -> SlurmJob:
        with only_reading():
            found = self.job(job)
        if found is None:
            raise SchedulerRefused(say("slurm.no_job", job=job), words.JOB_UNKNOWN)
        return found

    def _single(self, job: str) -> SlurmJob:
        """A job that is no pending array: a change would affect all of its tasks."""
        found = self._existing_job(job)
        if self._is_untouchable(found):
            raise SchedulerRefused(say("slurm.pending_array", job=job))
        return found

    def _is_untouchable(self, job: SlurmJob) -> bool:
        """Whether no command may change it: a pending array, or an unreadable job, which may be one."""
        return words.is_pending_array(job) or job.why.startswith(UNREAD)

    def _components(self, job: SlurmJob) -> list[SlurmJob]:
        """All components if the job leads a heterogeneous job, else the job itself. scontrol changes all of
        them at once; slurmrestd and pyslurm change only one (seen on 24.11)."""
        if not job.het_job or job.het_offset:
            return [job]
        with only_reading():
            jobs = self._all_jobs()
        return [part for part in jobs.values() if part.het_job == job.het_job]

    def _exclusions(self, job: SlurmJob, nodes: Sequence[str]) -> list[tuple[SlurmJob, list[str]]]:
        """What each component of the job is to exclude, the job itself last: its list shows whether this was
        done. Each has a list of its own: Slurm keeps a component off the nodes that another one requires."""
        gone = set(job.excluded) - set(nodes)
        more = [node for node in nodes if node not in job.excluded]
        lists = [
            (part, [node for node in dict.fromkeys((*part.excluded, *more)) if node not in gone])
            for part in self._components(job)
            if part.id != job.id
        ]
        return [*lists, (job, list(nodes))]

    def _must_have(self, call: SlurmCall) -> None:
        if call in self.unavailable():
            raise self._lacking(call)
