"""Slurm through pyslurm, with the calls that change it, which a child process of its own makes.

Nothing is retried here: the caller reads back.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.pyslurm_reads import PyslurmReads
from healer.adapters.slurm.slurm_adapter import SlurmAdapter
from healer.model import SlurmCall, Submission
from healer.ports.scheduling import NotAvailable, SchedulerRefused, SchedulerUnavailable
from healer.text import said_by, say

_NOT_RUNNING = 2021
#: Errors that a signal causes; any other number may be left over from an earlier call.
_OF_A_SIGNAL = frozenset({2002, 2010, 2017})


# Wide: implements `ports.Scheduler`.
class PyslurmScheduler(PyslurmReads, SlurmAdapter):
    """`ports.Scheduler` over pyslurm."""

    _CHILD_OPTIONS = ()

    # --- jobs

    def requeue(self, job: str) -> None:
        found = self._existing_job(job)
        self._must_have(SlurmCall.requeue)
        if not self._is_untouchable(found):
            self._ask(say("slurm.job_requeue", job=job), "requeue_incomplete", job=int(found.id))

    def revive(self, job: str) -> None:
        """Only for a failed job: Slurm's plain requeue accepts any job that is not pending."""
        found = self._existing_job(job)
        if found.state not in {"FAILED", "NODE_FAIL", "PENDING"}:
            raise SchedulerRefused(say("slurm.did_not_fail", job=job, state=found.state))
        self._ask(say("slurm.job_revive", job=job), "requeue", job=int(found.id))

    def start_now(self, job: str) -> None:
        """Two seconds from now: see docs/slurm.md, "Requeue and start"."""
        found = self._existing_job(job)
        if not self._is_untouchable(found):
            for part in self._components(found):
                self._ask(say("slurm.job_start", job=job), "begin_in", job=int(part.id), seconds=2)

    def hold(self, job: str) -> None:
        for part in self._components(self._single(job)):
            self._ask(say("slurm.job_hold", job=job), "hold", job=int(part.id))

    def release(self, job: str) -> None:
        for part in self._components(self._single(job)):
            self._ask(say("slurm.job_release", job=job), "release", job=int(part.id))

    def exclude(self, job: str, nodes: Sequence[str]) -> None:
        names = [words.checked_node(name) for name in nodes]
        parts = self._exclusions(self._single(job), names)
        if not all(off for _, off in parts):
            raise _clears_nothing(SlurmCall.exclude)
        for part, off in parts:
            changes = {"excluded_nodes": off}
            self._ask(say("slurm.job_exclude", job=job), "change_job", job=int(part.id), changes=changes)

    def signal(self, job: str, name: str) -> None:
        self._to_processes(SlurmCall.signal, job, "signal", name=f"SIG{words.checked_signal(name)}")

    def notify(self, job: str, text: str) -> None:
        line = words.checked_line("a notice", text)
        self._ask(say("slurm.job_notify", job=job), "notify", job=self._raw_id(job), text=line)

    def remark(self, job: str, text: str) -> None:
        line = words.checked_line("a remark", text, empty=True)
        target = self._raw_id(job)
        if not line:
            raise _clears_nothing(SlurmCall.remark)
        self._ask(say("slurm.job_remark", job=job), "change_job", job=target, changes={"admin_comment": line})

    def _submit(self, submission: Submission, nodes: list[str]) -> str:
        minutes, seconds = divmod(submission.time_limit_s, 60)
        fields = {
            "name": submission.name,
            "nodes": len(nodes),
            "required_nodes": nodes,
            "time_limit": f"{minutes}:{seconds:02}",
            "is_requeueable": False,
            "working_directory": "/",
            "standard_output": "/dev/null",
            "environment": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
        }
        given = {
            "gres_per_node": {"gpu": submission.gpus_per_node} if submission.gpus_per_node else None,
            "resource_sharing": "no" if submission.exclusive else None,
            "reservations": [submission.reservation] if submission.reservation else None,
            "partitions": [submission.partition] if submission.partition else None,
            "qos": submission.qos,
            "nice": submission.nice,
            "comment": submission.comment,
        }
        fields |= {field: value for field, value in given.items() if value}
        return str(self._ask(say("slurm.to_take_a_job"), "submit", script=submission.script, fields=fields))

    def cancel(self, job: str) -> None:
        self._to_processes(SlurmCall.cancel, job, "cancel")

    # --- helpers

    def _change_nodes(self, verb: str, names: list[str], changes: Mapping[str, str]) -> None:
        if "" in changes.values():
            raise _clears_nothing(SlurmCall.annotate)
        try:
            action = say("slurm.to_change", nodes=", ".join(names)[:80])
            self._ask(action, "change_nodes", names=",".join(names), changes=changes)
        except SchedulerRefused as error:
            if len(names) > 1:
                whole = say("slurm.some_changed", error=said_by(error))
                raise type(error)(whole, error.code) from error
            raise

    def _raw_id(self, job: str) -> int:
        """libslurm takes the raw id for this record only, scontrol for a whole array."""
        return int(self._single(job).id)

    def _to_processes(self, call: SlurmCall, job: str, verb: str, **arguments: Any) -> None:
        """Signals take an id as scontrol does: an array's id means all of its tasks."""
        found = self._existing_job(job)
        if found.id == found.array_job:
            raise NotAvailable(call, say("slurm.id_of_array", job=job))
        if call is SlurmCall.signal and not found.active:
            raise SchedulerRefused(say("slurm.does_not_run", job=job), _NOT_RUNNING)
        try:
            self._ask(say(f"slurm.job_{verb}", job=job), verb, job=int(found.id), **arguments)
        except SchedulerRefused as error:
            if error.code is None or error.code in _OF_A_SIGNAL:
                raise
            raise SchedulerUnavailable(say("slurm.or_it_did", error=said_by(error))) from error


def _clears_nothing(call: SlurmCall) -> NotAvailable:
    return NotAvailable(call, say("slurm.pyslurm_clears_nothing"))
