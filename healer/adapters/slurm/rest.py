"""Slurm through slurmrestd (`rest`): Slurm 23.02 (v0.0.39) to 26.05 (v0.0.45), detected automatically.

A write is one POST or DELETE, sent once. Calls that a release does not offer raise NotAvailable.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from healer.adapters.slurm import parse_json, rest_answers
from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.commands import only_reading, parse_errors
from healer.adapters.slurm.rest_answers import Answer
from healer.adapters.slurm.rest_link import Found, Request, RestLink, Token, in_path
from healer.adapters.slurm.slurm_adapter import SlurmAdapter
from healer.model import Controller, Reservation, SlurmCall, SlurmJob, SlurmNode, SlurmSnapshot, Submission
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable, UnknownNode

_JOB = "It takes the job's owner, a coordinator of its account, or AdminLevel=Operator in accounting."
_RESERVATION = "Reservations take AdminLevel=Operator in accounting, SlurmUser or root."
#: An `update_time` in the future (2096), for which the answer is always short.
_NEVER = "4000000000"
#: The job has ended or is about to end.
_ENDED = 2021
#: States of jobs that may be restarted; healer never restarts a completed job.
_REVIVABLE = frozenset({"FAILED", "NODE_FAIL", "PENDING"})


#: The first Slurm release of each REST version (v0.0.N).
RELEASES = {39: "23.02", 40: "23.11", 41: "24.05", 42: "24.11", 43: "25.05", 44: "25.11", 45: "26.05"}

#: The first version that changes many nodes in one call.
MANY_NODES = 42

_RESERVATIONS, _REQUEUE, _KILL = 43, 45, 40
_SINCE = {
    SlurmCall.reserve: ("reservations", _RESERVATIONS),
    SlurmCall.change_reservation: ("reservations", _RESERVATIONS),
    SlurmCall.unreserve: ("reservations", _RESERVATIONS),
    SlurmCall.requeue: ("requeue", _REQUEUE),
    SlurmCall.revive: ("requeue", _REQUEUE),
    # Older versions would signal the whole array for one of its tasks.
    SlurmCall.signal: ("signals to one task of an array", _KILL),
    SlurmCall.cancel: ("ending one task of an array", _KILL),
}
_NEVER_OFFERED = {
    SlurmCall.reboot: "reboot",
    SlurmCall.cancel_reboot: "cancel_reboot",
    SlurmCall.notify: "notify",
    SlurmCall.topology: "topology",
}
#: The environment of healer's jobs: slurmrestd requires one.
_ENVIRONMENT = ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"]
_ENDLESS = {"set": True, "infinite": True, "number": 0}
#: How long "unchanged" is trusted: a controller whose clock was set back would repeat it.
_BELIEVED_S = 60.0
#: The time-out of a complete list, in time-outs of one request.
_PATIENCE = 6

T = TypeVar("T")


# Wide: implements `ports.Scheduler`.
class RestScheduler(SlurmAdapter):
    """`ports.Scheduler` over HTTP. `url`: `http://host:port`, `https://host/prefix` or `unix:///path`.

    `user` is sent as X-SLURM-USER-NAME (None: the token's user). `timeout_s` bounds one request; a list of
    all nodes or jobs may take six times as long. `cluster`: the expected cluster (`RestLink`).
    """

    name = "rest"

    def __init__(
        self,
        url: str,
        *,
        user: str | None,
        token: Token,
        timeout_s: float = 4.0,
        cluster: str | None = None,
    ) -> None:
        self._cluster = cluster
        self._link = RestLink(url, user=user, token=token, timeout_s=timeout_s, cluster=cluster)
        self._nodes = CachedList(self._link, "/nodes", parse_json.nodes)
        self._reservations = CachedList(self._link, "/reservations", parse_json.reservations)
        self._jobs = CachedList(self._link, "/jobs", parse_json.jobs)

    def close(self) -> None:
        self._link.close()

    # --- about the adapter

    def describe(self) -> str:
        found = self._link.found()
        return f"rest, Slurm {found.slurm.release}, {found.shape}"

    def unavailable(self) -> Mapping[SlurmCall, str]:
        return lacking(self._link.found().number)

    def cluster_name(self) -> str:
        """As reported by slurmrestd; before Slurm 23.11 (v0.0.40), which reports none, the setting."""
        cluster = self._link.found().slurm.cluster or self._cluster
        if not cluster:
            raise SchedulerUnavailable(
                "slurmrestd does not tell its cluster's name before Slurm 23.11 (v0.0.40): "
                "set HEALER_CLUSTER.",
                sent=False,
            )
        return cluster

    # --- reading

    def snapshot(self) -> SlurmSnapshot:
        cluster, taken_at, now = self.cluster_name(), datetime.now(UTC), time.monotonic()
        nodes = self._nodes.read(now)
        if not nodes:
            raise SchedulerUnavailable("Slurm answered with no nodes at all.")
        return SlurmSnapshot(
            cluster=cluster,
            taken_at=taken_at,
            nodes=nodes,
            jobs=self._jobs.read(now),
            reservations=self._reservations.read(now),
        )

    def reserved(self) -> Mapping[str, Reservation]:
        return self._reservations.read(time.monotonic())

    def node(self, name: str) -> SlurmNode:
        words.checked_node(name)
        # slurmctld updates the CPUs in use only for a list of all nodes. Without this request a node remains
        # ALLOCATED or MIXED after its last job (seen on 24.11).
        self._link.ask(Request("GET", "/nodes", query={"update_time": _NEVER}))
        return self._node(name)

    def _node(self, name: str) -> SlurmNode:
        try:
            answer = self._link.call(Request("GET", f"/node/{in_path(name)}"), f"show node {name}")
        except SchedulerRefused as error:
            # slurmrestd reports an unknown node as an error without a number, which may also mean something
            # else (d.8, 24): the list of all nodes decides.
            if error.code is not None:
                raise
            listed = self._nodes.read(time.monotonic())
            if name in listed or not listed:
                raise SchedulerUnavailable(str(error)) from error
            raise UnknownNode(f"Slurm has no node {name}.", words.NODE_UNKNOWN) from error
        with parse_errors():
            found = parse_json.nodes(answer.body)
        # Slurm also finds a node by its host name.
        if name not in found:
            raise UnknownNode(f"Slurm has no node {name}.", words.NODE_UNKNOWN)
        return found[name]

    def job(self, job: str) -> SlurmJob | None:
        words.checked_job(job)
        # slurmrestd only knows the whole of an array or heterogeneous job.
        whole = re.split(r"[_+]", job)[0]
        try:
            answer = self._link.call(Request("GET", f"/job/{whole}"), f"show job {job}")
        except SchedulerRefused as error:
            if error.code == words.JOB_UNKNOWN:
                return None
            raise
        with parse_errors():
            return words.job_named(job, parse_json.jobs(answer.body))

    def jobs_on(self, node: str) -> list[SlurmJob]:
        self._node(words.checked_node(node))
        return [job for job in self._all_jobs().values() if job.active and node in job.nodes]

    def controller(self) -> Controller:
        """`answer_s` is the duration of one read of slurmctld's statistics."""
        at, start = datetime.now(UTC), time.monotonic()
        # First: /ping reports slurmctld as down even if it only refused the token.
        figures = self._link.call(Request("GET", "/diag"), "tell its figures")
        answer_s = time.monotonic() - start
        pings = self._link.call(Request("GET", "/ping"), "tell who answers")
        with parse_errors():
            queues = parse_json.queues(figures.body)
            server = parse_json.answering(parse_json.servers(pings.body))
        return self._controller(at, self._link.found().slurm.release, answer_s, server, queues)

    # --- nodes

    def _change_nodes(self, verb: str, names: list[str], changes: Mapping[str, str]) -> None:
        """One call if slurmrestd takes several nodes at once, else one call for each node in order."""
        body = {field: [text] if field == "state" else text for field, text in changes.items()}
        if len(names) == 1 or self._link.found().number < MANY_NODES:
            for name in names:
                self._write(f"/node/{in_path(name)}", f"{verb} {name}", body, words.NODE_RIGHT)
            return
        try:
            self._write("/nodes", f"{verb} {', '.join(names)}", {"name": names, **body}, words.NODE_RIGHT)
        except UnknownNode as error:
            listed = self._nodes.read(time.monotonic())
            unknown = ", ".join(name for name in names if name not in listed)
            raise UnknownNode(f"{error} Unknown: {unknown}; read the others back.", error.code) from error
        except SchedulerRefused as error:
            text = f"{error} It may have been done to some of them: read each back."
            raise SchedulerRefused(text, error.code) from error

    # --- reservations

    def reserve(self, reservation: Reservation) -> None:
        self._must_have(SlurmCall.reserve)
        body = _reservation_body(reservation)
        # The same address would change an existing reservation of this name.
        if self._has_reservation(reservation.name):
            raise SchedulerRefused(f"Slurm has a reservation {reservation.name} already.")
        self._write("/reservation", f"make the reservation {reservation.name}", body, _RESERVATION)

    def change_reservation(self, name: str, nodes: Sequence[str]) -> None:
        self._must_have(SlurmCall.change_reservation)
        body = {"name": words.checked_reservation(name), "node_list": words.checked_nodes(nodes)}
        if not self._has_reservation(name):
            raise SchedulerRefused(f"Slurm has no reservation {name}.", words.RESERVATION_UNKNOWN)
        self._write("/reservation", f"change the reservation {name}", body, _RESERVATION)

    def unreserve(self, name: str) -> None:
        self._must_have(SlurmCall.unreserve)
        path = f"/reservation/{in_path(words.checked_reservation(name))}"
        self._link.call(Request("DELETE", path), f"end the reservation {name}", _RESERVATION)

    # --- jobs

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
            raise SchedulerRefused(f"Job {job} is {found.state}: it did not fail.")
        self._requeue(found, [])

    def start_now(self, job: str) -> None:
        """Two seconds from now: see `CliScheduler.start_now`."""
        found = self._existing_job(job)
        if not self._is_untouchable(found):
            for part in self._components(found):
                self._change_job(part, "set the start of", {"begin_time": _number(time.time() + 2)})

    def hold(self, job: str) -> None:
        self._change_job(self._single(job), "hold", {"hold": True})

    def release(self, job: str) -> None:
        self._change_job(self._single(job), "release", {"hold": False})

    def exclude(self, job: str, nodes: Sequence[str]) -> None:
        # An empty list changes nothing; one empty name removes the exclusions (seen on 24.11).
        names = [words.checked_node(node) for node in nodes] or [""]
        self._change_job(self._single(job), "set the excluded nodes of", {"excluded_nodes": names})

    def signal(self, job: str, name: str) -> None:
        body = {"signal": words.checked_signal(name), "flags": ["FULL_JOB"]}
        self._end(SlurmCall.signal, job, f"send {name} to", body)

    def remark(self, job: str, text: str) -> None:
        body = {"admin_comment": words.checked_line("a remark", text, empty=True)}
        self._change_job(self._single(job), "remark on", body)

    def _submit(self, submission: Submission, nodes: list[str]) -> str:
        body = _submission_body(submission, nodes, self._link.found().number)
        answer = self._write("/job/submit", f"take the job {submission.name}", body, _JOB)
        return rest_answers.submitted(answer)

    def cancel(self, job: str) -> None:
        try:
            self._end(SlurmCall.cancel, job, "cancel", {})
        except SchedulerRefused as error:
            if error.code != _ENDED:
                raise

    # --- helpers

    def _all_jobs(self) -> Mapping[str, SlurmJob]:
        return self._jobs.read(time.monotonic())

    def _change_job(self, job: SlurmJob, verb: str, body: Mapping[str, Any]) -> None:
        """By the raw id: slurmrestd refuses `5_1` in this address, and takes 5 for a single record."""
        self._write(f"/job/{job.id}", f"{verb} job {job.id}", body, _JOB)

    def _requeue(self, job: SlurmJob, flags: list[str]) -> None:
        name = words.command_id(job)
        answer = self._write("/jobs/requeue", f"requeue job {name}", {"jobs": [name], "flags": flags}, _JOB)
        rest_answers.check_jobs(answer, f"Slurm did not requeue job {name}", _JOB)

    def _end(self, call: SlurmCall, job: str, verb: str, body: Mapping[str, Any]) -> None:
        self._must_have(call)
        action, jobs = f"{verb} job {job}", [words.command_id(self._single(job))]
        answer = self._link.call(Request("DELETE", "/jobs", {"jobs": jobs, **body}), action, _JOB)
        rest_answers.check_jobs(answer, f"Slurm did not {action}", _JOB)

    def _has_reservation(self, name: str) -> bool:
        with only_reading():
            return name in self._reservations.read(time.monotonic())

    def _write(self, path: str, action: str, body: Mapping[str, Any], right: str) -> Answer:
        return self._link.call(Request("POST", path, body), action, right)


def lacking(number: int) -> Mapping[SlurmCall, str]:
    """The calls that v0.0.`number` does not offer, and why."""
    speaks = f"this slurmrestd speaks v0.0.{number}"
    found = {
        call: f"{what} by REST begin{'s' if not what.endswith('s') else ''} with Slurm {RELEASES[since]} "
        f"(v0.0.{since}); {speaks}"
        for call, (what, since) in _SINCE.items()
        if number < since
    }
    found |= {
        call: f"slurmrestd has no {what} in any release; the command line (cli) has"
        for call, what in _NEVER_OFFERED.items()
    }
    return MappingProxyType(found)


class _Cached(NamedTuple, Generic[T]):
    """`updated`: Unix seconds on Slurm's clock; `fetched_at`: our stopwatch; `found`: its server."""

    found: Found
    updated: int
    fetched_at: float
    rows: Mapping[str, T]


class CachedList(Generic[T]):
    """A parsed list that is fetched again only if it changed (d.8, 21).

    `GET /jobs` takes slurmctld's locks and 5 kB a job. With `update_time` Slurm answers at once if nothing
    has changed: `/nodes` and `/reservations` with 304, `/jobs` with 200, a warning and no jobs at all. Safe
    for threads: a reader never gets a state from before its call.
    """

    def __init__(self, link: RestLink, path: str, parse: Callable[[bytes], Mapping[str, T]]) -> None:
        self._link, self._path, self._parse = link, path, parse
        self._kept: _Cached[T] | None = None

    def read(self, now: float) -> Mapping[str, T]:
        """All rows; the same mapping object as before if nothing has changed."""
        found, kept = self._link.found(), self._kept
        answer = None
        if kept and kept.found == found and kept.updated and now - kept.fetched_at < _BELIEVED_S:
            query = {"update_time": str(kept.updated)}
            answer = self._link.ask(Request("GET", self._path, query=query, patience=_PATIENCE))
            if _unchanged(answer):
                return kept.rows
            if answer.no_contact:
                raise rest_answers.error_of(answer.problems[0], f"Slurm did not list {self._path[1:]}", "")
        # Also after an error: 24.11 answers 500 if nodes have changed and partitions have not.
        if answer is None or not answer.good:
            answer = self._link.call(Request("GET", self._path, patience=_PATIENCE), f"list {self._path[1:]}")
        with parse_errors():
            rows = self._parse(answer.body)
        if kept and kept.rows == rows:
            rows = kept.rows
        self._kept = _Cached(found, answer.updated, now, rows)
        return rows


def _unchanged(answer: Answer) -> bool:
    """Whether an answer to `update_time` reports no change. An empty list has the time of its last change."""
    return answer.status == 304 or (answer.good and bool(answer.warnings) and not answer.updated)


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
