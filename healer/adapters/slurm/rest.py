"""Slurm through slurmrestd, with the requests that change it.

A write is one POST or DELETE, sent once. Calls that a release does not offer raise NotAvailable.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from healer.adapters.slurm import rest_answers
from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.commands import only_reading
from healer.adapters.slurm.rest_answers import Answer
from healer.adapters.slurm.rest_link import Request, RestLink, in_path
from healer.adapters.slurm.rest_reads import RestReads
from healer.adapters.slurm.slurm_adapter import SlurmAdapter
from healer.model import Reservation, SlurmCall, SlurmJob, Submission
from healer.ports.scheduling import SchedulerRefused, UnknownNode
from healer.text import Said, said_by, say

_JOB, _RESERVATION = words.JOB_RIGHT, words.RESERVATION_RIGHT
#: The job has ended or is about to end.
_ENDED = 2021
#: States of jobs that may be restarted; healer never restarts a completed job.
_REVIVABLE = frozenset({"FAILED", "NODE_FAIL", "PENDING"})

#: The first version that changes many nodes in one call.
MANY_NODES = 42
#: The environment of healer's jobs: slurmrestd requires one.
_ENVIRONMENT = ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"]
_ENDLESS = {"set": True, "infinite": True, "number": 0}


# Wide: implements `ports.Scheduler`.
class RestScheduler(RestReads, SlurmAdapter):
    """`ports.Scheduler` over HTTP."""

    _Link = RestLink

    # --- nodes

    def _change_nodes(self, verb: str, names: list[str], changes: Mapping[str, str]) -> None:
        """One call if slurmrestd takes several nodes at once, else one call for each node in order."""
        body = {field: [text] if field == "state" else text for field, text in changes.items()}
        if len(names) == 1 or self._link.found().number < MANY_NODES:
            for name in names:
                action = say(f"slurm.nodes_{verb}", nodes=name)
                self._write(f"/node/{in_path(name)}", action, body, words.NODE_RIGHT)
            return
        try:
            action = say(f"slurm.nodes_{verb}", nodes=", ".join(names))
            self._write("/nodes", action, {"name": names, **body}, words.NODE_RIGHT)
        except UnknownNode as error:
            listed = self._nodes.read(time.monotonic())
            unknown = ", ".join(name for name in names if name not in listed)
            text = say("slurm.some_unknown", error=said_by(error), nodes=unknown)
            raise UnknownNode(text, error.code) from error
        except SchedulerRefused as error:
            text = say("slurm.some_done", error=said_by(error))
            raise SchedulerRefused(text, error.code) from error

    # --- reservations

    def reserve(self, reservation: Reservation) -> None:
        self._must_have(SlurmCall.reserve)
        body = _reservation_body(reservation)
        # The same address would change an existing reservation of this name.
        if self._has_reservation(reservation.name):
            raise SchedulerRefused(say("slurm.has_reservation", name=reservation.name))
        action = say("slurm.to_make_reservation", name=reservation.name)
        self._write("/reservation", action, body, _RESERVATION)

    def change_reservation(self, name: str, nodes: Sequence[str]) -> None:
        self._must_have(SlurmCall.change_reservation)
        body = {"name": words.checked_reservation(name), "node_list": words.checked_nodes(nodes)}
        if not self._has_reservation(name):
            raise SchedulerRefused(say("slurm.no_reservation", name=name), words.RESERVATION_UNKNOWN)
        self._write("/reservation", say("slurm.to_change_reservation", name=name), body, _RESERVATION)

    def unreserve(self, name: str) -> None:
        self._must_have(SlurmCall.unreserve)
        path = f"/reservation/{in_path(words.checked_reservation(name))}"
        self._link.call(Request("DELETE", path), say("slurm.to_end_reservation", name=name), _RESERVATION)

    # --- jobs

    def shrink(self, job: str, node: str) -> None:
        found, rest = self._rest_without(job, node)
        if rest:
            self._change_job(found, "shrink", {"required_nodes": rest})

    def requeue(self, job: str) -> None:
        self._must_have(SlurmCall.requeue)
        found = self._existing_job(job)
        if not self._is_untouchable(found):
            self._requeue(found, ["Incomplete"])

    def revive(self, job: str) -> None:
        """Only for a failed job: Slurm's plain requeue accepts any job that is not pending."""
        self._must_have(SlurmCall.revive)
        found = self._single(job)
        if found.state not in _REVIVABLE:
            raise SchedulerRefused(say("slurm.did_not_fail", job=job, state=found.state))
        self._requeue(found, [])

    def start_now(self, job: str) -> None:
        """Two seconds from now: see `CliScheduler.start_now`."""
        found = self._existing_job(job)
        if not self._is_untouchable(found):
            for part in self._components(found):
                self._change_job(part, "start", {"begin_time": _number(time.time() + 2)})

    def hold(self, job: str) -> None:
        self._change_job(self._single(job), "hold", {"hold": True})

    def release(self, job: str) -> None:
        self._change_job(self._single(job), "release", {"hold": False})

    def exclude(self, job: str, nodes: Sequence[str]) -> None:
        # An empty list changes nothing; one empty name removes the exclusions (seen on 24.11).
        names = [words.checked_node(node) for node in nodes]
        for part, off in self._exclusions(self._single(job), names):
            self._change_job(part, "excluded", {"excluded_nodes": off or [""]})

    def signal(self, job: str, name: str) -> None:
        body = {"signal": words.checked_signal(name), "flags": ["FULL_JOB"]}
        self._end(SlurmCall.signal, job, say("slurm.to_send_signal", signal=name, job=job), body)

    def remark(self, job: str, text: str) -> None:
        body = {"admin_comment": words.checked_line("a remark", text, empty=True)}
        self._change_job(self._single(job), "remark", body)

    def _submit(self, submission: Submission, nodes: list[str]) -> str:
        body = _submission_body(submission, nodes, self._link.found().number)
        answer = self._write("/job/submit", say("slurm.to_take_job", name=submission.name), body, _JOB)
        return rest_answers.submitted(answer)

    def cancel(self, job: str) -> None:
        try:
            self._end(SlurmCall.cancel, job, say("slurm.job_cancel", job=job), {})
        except SchedulerRefused as error:
            if error.code != _ENDED:
                raise

    # --- helpers

    def _change_job(self, job: SlurmJob, verb: str, body: Mapping[str, Any]) -> None:
        """By the raw id: slurmrestd refuses `5_1` in this address, and takes 5 for a single record."""
        self._write(f"/job/{job.id}", say(f"slurm.job_{verb}", job=job.id), body, _JOB)

    def _requeue(self, job: SlurmJob, flags: list[str]) -> None:
        name = words.command_id(job)
        action = say("slurm.job_requeue", job=name)
        answer = self._write("/jobs/requeue", action, {"jobs": [name], "flags": flags}, _JOB)
        rest_answers.check_jobs(answer, action)

    def _end(self, call: SlurmCall, job: str, action: Said, body: Mapping[str, Any]) -> None:
        self._must_have(call)
        jobs = [words.command_id(self._single(job))]
        answer = self._link.call(Request("DELETE", "/jobs", {"jobs": jobs, **body}), action, _JOB)
        rest_answers.check_jobs(answer, action)

    def _has_reservation(self, name: str) -> bool:
        with only_reading():
            return name in self._reservations.read(time.monotonic())

    def _write(self, path: str, action: Said, body: Mapping[str, Any], right: str) -> Answer:
        return self._link.call(Request("POST", path, body), action, right)


def _number(value: float) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": int(value)}


def _reservation_body(wanted: Reservation) -> dict[str, Any]:
    """The body of POST /reservation, from v0.0.43 on."""
    body: dict[str, Any] = {
        "name": words.checked_reservation(wanted.name),
        "node_list": words.checked_nodes(wanted.nodes),
        "start_time": _number((wanted.since or datetime.now(UTC)).timestamp()),
        "flags": words.reservation_flags(wanted),
    }
    if wanted.until is None:
        body["duration"] = _ENDLESS
    else:
        body["end_time"] = _number(wanted.until.timestamp())
    if wanted.users:
        body["users"] = words.checked_names("a user", wanted.users).split(",")
    if wanted.accounts:
        body["accounts"] = words.checked_names("an account", wanted.accounts).split(",")
    return body


def _submission_body(wanted: Submission, nodes: list[str], version: int) -> dict[str, Any]:
    """The body of POST /job/submit of v0.0.`version`. Output goes to /dev/null: a directory may not exist."""
    job: dict[str, Any] = {
        "name": wanted.name,
        "environment": _ENVIRONMENT,
        "current_working_directory": "/",
        "standard_output": "/dev/null",
        "requeue": False,
        "nodes": str(len(nodes)),
        "required_nodes": nodes,
        # Minutes, rounded up.
        "time_limit": _number(-(-wanted.time_limit_s // 60)),
    }
    if wanted.exclusive:
        job["shared"] = ["none"]
    if wanted.gpus_per_node:
        # Up to 23.02 TRES were written as GRES.
        job["tres_per_node"] = f"gres{':' if version < 40 else '/'}gpu:{wanted.gpus_per_node}"
    given = {
        "reservation": wanted.reservation,
        "partition": wanted.partition,
        "qos": wanted.qos,
        "nice": wanted.nice,
        "comment": wanted.comment,
    }
    job |= {field: value for field, value in given.items() if value}
    return {"script": wanted.script, "job": job}
