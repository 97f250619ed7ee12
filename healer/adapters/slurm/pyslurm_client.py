"""Slurm through pyslurm 23.11 to 25.11, which lives in a process of its own (`pyslurm_child`).

One call costs 1 to 3 ms. Nothing is repeated here: who asked reads back. Errors come as Slurm's numbers.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from healer.adapters.slurm import pyslurm_nouns, pyslurm_words
from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.commands import looking_first
from healer.adapters.slurm.pyslurm_link import PyslurmLink
from healer.model import Controller, Reservation, SlurmCall, SlurmJob, SlurmNode, SlurmSnapshot, Submission
from healer.ports.scheduling import Nodes, NotAvailable, SchedulerRefused, SchedulerUnavailable, UnknownNode

_CHILD = Path(__file__).with_name("pyslurm_child.py")
#: What the process needs of healer's environment; healer's own settings and secrets are not among it.
_ENV = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "SLURM_CONF")
_NEVER = {
    SlurmCall.topology: "pyslurm shows no topology",
    SlurmCall.reboot: "pyslurm cannot reboot a node",
    SlurmCall.cancel_reboot: "pyslurm's CANCEL_REBOOT raises an error before it asks Slurm",
    SlurmCall.reserve: "pyslurm cannot tell for sure whether a reservation was made",
    SlurmCall.change_reservation: "healer makes reservations by rest or cli, and changes them there",
    SlurmCall.unreserve: "healer makes reservations by rest or cli, and ends them there",
}
_CLEAR = "pyslurm sends no empty text or list, so nothing can be cleared by it"


# Wide: implements `ports.Scheduler`.
class PyslurmScheduler:
    """`ports.Scheduler` over pyslurm. `timeout_s` bounds one call; a snapshot may take six times as long.

    `command` and `env` start its process: by default this Python, with SLURM_CONF as it is set here.
    """

    name = "pyslurm"

    def __init__(
        self,
        timeout_s: float = 10,
        *,
        command: Sequence[str] = (sys.executable, "-P", str(_CHILD)),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        own = {name: os.environ[name] for name in _ENV if name in os.environ}
        self._link = PyslurmLink(command, own | {"LC_ALL": "C.UTF-8"} | dict(env or {}))
        self._cluster: str | None = None

    def close(self) -> None:
        """Ends its process; the next call would start another one."""
        self._link.close()

    # --- what it is

    def describe(self) -> str:
        first = self._loaded()
        return f"pyslurm {first['pyslurm']}, Slurm {first['libslurm']}"

    def unavailable(self) -> Mapping[SlurmCall, str]:
        first = self._loaded()
        if "slurm_requeue" in first["has"]:
            return _NEVER
        why = f"pyslurm {first['pyslurm']} cannot say Incomplete: a job that has ended well would run again"
        return _NEVER | {SlurmCall.requeue: why}

    def cluster_name(self) -> str:
        if self._cluster is None:
            self._cluster = str(self._ask("tell its cluster", "cluster"))
        return self._cluster

    # --- reading

    def snapshot(self) -> SlurmSnapshot:
        cluster, taken_at, long_s = self.cluster_name(), datetime.now(UTC), self._timeout_s * 6
        nodes = [_noun(pyslurm_nouns.node, one) for one in self._ask("show nodes", "nodes", timeout_s=long_s)]
        if not nodes:
            raise SchedulerUnavailable("Slurm answered with no nodes at all.")
        jobs = [_noun(pyslurm_nouns.job, one) for one in self._ask("show jobs", "jobs", timeout_s=long_s)]
        return SlurmSnapshot(
            cluster=cluster,
            taken_at=taken_at,
            nodes={node.name: node for node in nodes},
            jobs={job.id: job for job in jobs},
            reservations=self.reserved(),
        )

    def reserved(self) -> dict[str, Reservation]:
        told = self._ask("show reservations", "reservations")
        kept = [_noun(pyslurm_nouns.reservation, one) for one in told]
        return {reservation.name: reservation for reservation in kept}

    def node(self, name: str) -> SlurmNode:
        record = self._ask(f"show node {name}", "node", name=words.checked_node(name))
        if record is None:
            raise UnknownNode(f"Slurm has no node {name}.", words.NODE_UNKNOWN)
        return _noun(pyslurm_nouns.node, record)

    def job(self, job: str) -> SlurmJob | None:
        record = self._record(job)
        return _noun(pyslurm_nouns.job, record) if record else None

    def jobs_on(self, node: str) -> list[SlurmJob]:
        self.node(node)
        records = self._ask("show jobs", "jobs", timeout_s=self._timeout_s * 6)
        found = [_noun(pyslurm_nouns.job, record) for record in records]
        return [job for job in found if job.active and node in job.nodes]

    def controller(self) -> Controller:
        cluster, begun = self.cluster_name(), time.monotonic()
        told = self._ask("tell how its controller does", "controller")
        return Controller(
            cluster=cluster,
            at=datetime.now(UTC),
            adapter=self.name,
            version=self._loaded()["libslurm"],
            answer_s=time.monotonic() - begun,
            **told,
        )

    def topology(self) -> Mapping[str, tuple[str, ...]]:
        raise self._lacks(SlurmCall.topology)

    # --- nodes

    def drain(self, nodes: Nodes, reason: str) -> None:
        self._change_nodes(nodes, state="DRAIN", reason=words.checked_line("a reason", reason))

    def undrain(self, nodes: Nodes) -> None:
        self._change_nodes(nodes, state="UNDRAIN")

    def resume(self, nodes: Nodes) -> None:
        self._change_nodes(nodes, state="RESUME")

    def down(self, nodes: Nodes, reason: str) -> None:
        self._change_nodes(nodes, state="DOWN", reason=words.checked_line("a reason", reason))

    def reboot(self, nodes: Nodes, reason: str) -> None:
        raise self._lacks(SlurmCall.reboot)

    def cancel_reboot(self, nodes: Nodes) -> None:
        raise self._lacks(SlurmCall.cancel_reboot)

    def annotate(self, node: str, *, comment: str | None = None, extra: str | None = None) -> None:
        changes = {name: text for name, text in (("comment", comment), ("extra", extra)) if text is not None}
        if "" in changes.values():
            raise NotAvailable(SlurmCall.annotate, _CLEAR)
        if changes:
            self._change_nodes(
                node, **{name: words.checked_line("a note", text) for name, text in changes.items()}
            )

    # --- reservations

    def reserve(self, reservation: Reservation) -> None:
        raise self._lacks(SlurmCall.reserve)

    def change_reservation(self, name: str, nodes: Sequence[str]) -> None:
        raise self._lacks(SlurmCall.change_reservation)

    def unreserve(self, name: str) -> None:
        raise self._lacks(SlurmCall.unreserve)

    # --- jobs

    def requeue(self, job: str) -> None:
        record = self._known(job)
        if SlurmCall.requeue in self.unavailable():
            raise self._lacks(SlurmCall.requeue)
        if not pyslurm_nouns.waits_together(record):
            self._ask(f"requeue job {job}", "requeue_incomplete", job=record["id"])

    def revive(self, job: str) -> None:
        """Slurm's plain requeue takes any job that is not pending; here only one that failed is sent."""
        record = self._known(job)
        if record["state"] not in {"FAILED", "NODE_FAIL", "PENDING"}:
            raise SchedulerRefused(f"Job {job} is {record['state']}: it did not fail.")
        self._ask(f"revive job {job}", "requeue", job=record["id"])

    def start_now(self, job: str) -> None:
        """Two seconds from now: see docs/slurm.md, "Requeue and start"."""
        record = self._known(job)
        if not pyslurm_nouns.waits_together(record):
            for part in self._parts(record):
                self._ask(f"set the start of job {job}", "begin_in", job=part, seconds=2)

    def hold(self, job: str) -> None:
        for part in self._parts(self._single(job)):
            self._ask(f"hold job {job}", "hold", job=part)

    def release(self, job: str) -> None:
        for part in self._parts(self._single(job)):
            self._ask(f"release job {job}", "release", job=part)

    def exclude(self, job: str, nodes: Sequence[str]) -> None:
        names = [words.checked_node(name) for name in nodes]
        target = self._own(job)
        if not names:
            raise NotAvailable(SlurmCall.exclude, _CLEAR)
        changes = {"excluded_nodes": names}
        self._ask(f"exclude nodes from job {job}", "change_job", job=target, changes=changes)

    def signal(self, job: str, name: str) -> None:
        self._to_processes(SlurmCall.signal, job, "signal", name=f"SIG{words.checked_signal(name)}")

    def notify(self, job: str, text: str) -> None:
        line = words.checked_line("a notice", text)
        self._ask(f"notify job {job}", "notify", job=self._own(job), text=line)

    def remark(self, job: str, text: str) -> None:
        line = words.checked_line("a remark", text, empty=True)
        target = self._own(job)
        if not line:
            raise NotAvailable(SlurmCall.remark, _CLEAR)
        self._ask(f"remark on job {job}", "change_job", job=target, changes={"admin_comment": line})

    def submit(self, submission: Submission) -> str:
        if not submission.script.startswith("#!"):
            raise ValueError("a script begins with #!")
        names = words.checked_nodes(submission.nodes)
        minutes, seconds = divmod(submission.time_limit_s, 60)
        fields = {
            "name": words.checked_line("a job name", submission.name),
            "nodes": len(names),
            "required_nodes": names,
            "time_limit": f"{minutes}:{seconds:02}",
            "is_requeueable": False,
            "working_directory": "/",
            "standard_output": "/dev/null",
            "environment": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
        }
        if submission.gpus_per_node:
            fields["gres_per_node"] = {"gpu": submission.gpus_per_node}
        if submission.exclusive:
            fields["resource_sharing"] = "no"
        if submission.reservation:
            fields["reservations"] = [words.checked_reservation(submission.reservation)]
        if submission.partition:
            fields["partitions"] = [words.checked_names("a partition", [submission.partition])]
        if submission.qos:
            fields["qos"] = words.checked_names("a QOS", [submission.qos])
        if submission.nice:
            fields["nice"] = submission.nice
        if submission.comment:
            fields["comment"] = words.checked_line("a comment", submission.comment)
        return str(self._ask("take the job", "submit", script=submission.script, fields=fields))

    def cancel(self, job: str) -> None:
        self._to_processes(SlurmCall.cancel, job, "cancel")

    # --- inside

    def _loaded(self) -> dict[str, Any]:
        """The process's first line. SchedulerUnavailable, one sentence, where pyslurm cannot be used."""
        return pyslurm_words.usable(self._link.first(self._timeout_s))

    def _ask(self, action: str, call: str, *, timeout_s: float | None = None, **given: Any) -> Any:
        self._loaded()
        told = self._link.call(call, given, timeout_s or self._timeout_s)
        if "error" in told:
            raise pyslurm_words.error(f"Slurm did not {action}", told["error"])
        return told["answer"]

    def _lacks(self, call: SlurmCall) -> NotAvailable:
        return NotAvailable(call, self.unavailable()[call])

    def _change_nodes(self, nodes: Nodes, **changes: str) -> None:
        """Slurm goes through a list, stops at a node that it does not know, and names nobody."""
        names = words.checked_nodes(nodes)
        try:
            self._ask(
                f"change {', '.join(names)[:80]}", "change_nodes", names=",".join(names), changes=changes
            )
        except SchedulerRefused as error:
            if len(names) > 1:
                raise type(error)(f"{error} (some of them may have been changed)", error.code) from error
            raise

    def _record(self, job: str) -> dict[str, Any] | None:
        """The record of a raw id, of a task (`5_1`) or of a part (`5+1`)."""
        words.checked_job(job)
        if job.isdigit():
            try:
                record = self._ask(f"show job {job}", "job", job=int(job))
            except SchedulerRefused as error:
                if error.code == words.JOB_UNKNOWN:
                    return None
                raise
            # The id of an array or of a het job may show another record of it first.
            if record["id"] == int(job):
                return record
        records = self._ask("show jobs", "jobs", timeout_s=self._timeout_s * 6)
        return next((record for record in records if job in _names(record)), None)

    def _known(self, job: str) -> dict[str, Any]:
        with looking_first():
            record = self._record(job)
        if record is None:
            raise SchedulerRefused(f"Slurm no longer knows job {job}.", words.JOB_UNKNOWN)
        return record

    def _single(self, job: str) -> dict[str, Any]:
        """As `_known`, for what would change tasks that wait together."""
        record = self._known(job)
        if pyslurm_nouns.waits_together(record):
            raise SchedulerRefused(f"{job} stands for array tasks that wait together: name one of them.")
        return record

    def _own(self, job: str) -> int:
        """The raw id: this one record to libslurm, also where scontrol takes it for a whole array."""
        return self._single(job)["id"]

    def _parts(self, record: Mapping[str, Any]) -> list[int]:
        """A leader with all parts of its het job, which scontrol reaches by itself; any other job alone."""
        if record["heterogeneous_id"] != record["id"]:
            return [record["id"]]
        with looking_first():
            records = self._ask("show jobs", "jobs", timeout_s=self._timeout_s * 6)
        return [one["id"] for one in records if one["heterogeneous_id"] == record["id"]]

    def _to_processes(self, call: SlurmCall, job: str, verb: str, **given: Any) -> None:
        """Signals take a job's id as scontrol does: an array's own id means all of its tasks."""
        record = self._known(job)
        if record["id"] == record["array_id"]:
            raise NotAvailable(
                call, f"job {job} is also the id of its whole array, and pyslurm would reach all"
            )
        if call is SlurmCall.signal and not pyslurm_nouns.job(record).active:
            raise SchedulerRefused(f"Job {job} does not run.", pyslurm_words.NOT_RUNNING)
        try:
            self._ask(f"{verb} job {job}", verb, job=record["id"], **given)
        except SchedulerRefused as error:
            if error.code is None or error.code in pyslurm_words.OF_A_SIGNAL:
                raise
            raise SchedulerUnavailable(f"{error} (or it did: pyslurm cannot tell)") from error


def _noun(make: Any, record: Mapping[str, Any]) -> Any:
    try:
        return make(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SchedulerUnavailable(f"pyslurm's answer could not be read: {error!r}.") from error


def _names(record: Mapping[str, Any]) -> tuple[str, ...]:
    names = [str(record["id"])]
    if record["array_id"] and not pyslurm_nouns.waits_together(record):
        names.append(f"{record['array_id']}_{record['array_task_id'] or 0}")
    if record["heterogeneous_id"]:
        names.append(f"{record['heterogeneous_id']}+{record['heterogeneous_offset'] or 0}")
    return tuple(names)
