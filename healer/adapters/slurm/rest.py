"""Slurm through slurmrestd (`rest`): Slurm 23.02 (v0.0.39) to 26.05 (v0.0.45), found out and not configured.

Writes are a POST or a DELETE of one address, sent once; a GET never changes anything. What a release has no
address for is NotAvailable.
"""

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from healer.adapters.slurm import (
    parse_diag,
    parse_json,
    parse_reservations,
    rest_answers,
    rest_bodies,
    rest_limits,
)
from healer.adapters.slurm import (
    slurm_words as words,
)
from healer.adapters.slurm.commands import looking_first, understanding
from healer.adapters.slurm.rest_answers import Answer
from healer.adapters.slurm.rest_link import RestLink, Token, in_path
from healer.adapters.slurm.rest_lists import KeptList
from healer.model import Controller, Reservation, SlurmCall, SlurmJob, SlurmNode, SlurmSnapshot, Submission
from healer.ports.scheduling import Nodes, NotAvailable, SchedulerRefused, SchedulerUnavailable, UnknownNode

_JOB = "It takes the job's owner, a coordinator of its account, or AdminLevel=Operator in accounting."
_RESERVATION = "Reservations take AdminLevel=Operator in accounting, SlurmUser or root."
#: Nothing has changed since then (2096): the answer is always short.
_NEVER = "4000000000"
#: The job has ended or is about to: what was asked for is so.
_ENDED = 2021
#: What may be run again: healer never restarts a job that ended well.
_REVIVABLE = frozenset({"FAILED", "NODE_FAIL", "PENDING"})


# Wide: implements `ports.Scheduler`.
class RestScheduler:
    """`ports.Scheduler` over HTTP. `url`: `http://host:port`, `https://host/prefix` or `unix:///path`.

    `user` acts in X-SLURM-USER-NAME (None: the token's own). `timeout_s` bounds one request; a list of all
    nodes or jobs may take six times as long. `cluster`: the one that is meant (`RestLink`).
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
        self._nodes = KeptList(self._link, "/nodes", parse_json.nodes)
        self._reservations = KeptList(self._link, "/reservations", parse_reservations.from_json)
        self._jobs = KeptList(self._link, "/jobs", parse_json.jobs)

    def close(self) -> None:
        self._link.close()

    # --- what it is

    def describe(self) -> str:
        found = self._link.found()
        return f"rest, Slurm {found.slurm.release}, {found.shape}"

    def unavailable(self) -> Mapping[SlurmCall, str]:
        return rest_limits.lacking(self._link.found().number)

    def cluster_name(self) -> str:
        """As slurmrestd tells it; before Slurm 23.11 (v0.0.40) it tells none, and the setting is believed."""
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
        # slurmctld counts a node's CPUs in use when it is asked for all nodes, and not for one: without this
        # a node stays ALLOCATED or MIXED after its last job (seen on 24.11).
        self._link.ask("GET", "/nodes", query={"update_time": _NEVER})
        return self._node(name)

    def _node(self, name: str) -> SlurmNode:
        try:
            answer = self._link.call("GET", f"/node/{in_path(name)}", f"show node {name}")
        except SchedulerRefused as error:
            # An error that has no number is how slurmrestd says it (d.8, 24), and may be any other trouble
            # too: the list of all nodes tells.
            if error.code is not None:
                raise
            known = self._nodes.read(time.monotonic())
            if name in known or not known:
                raise SchedulerUnavailable(str(error)) from error
            raise UnknownNode(f"Slurm has no node {name}.", words.NODE_UNKNOWN) from error
        with understanding():
            found = parse_json.nodes(answer.body)
        # Slurm also finds a node by its host name; only the node of this very name is meant.
        if name not in found:
            raise UnknownNode(f"Slurm has no node {name}.", words.NODE_UNKNOWN)
        return found[name]

    def job(self, job: str) -> SlurmJob | None:
        """For a task of an array or a part of a het job slurmrestd tells the whole of it."""
        words.checked_job(job)
        whole = re.split(r"[_+]", job)[0]
        try:
            answer = self._link.call("GET", f"/job/{whole}", f"show job {job}")
        except SchedulerRefused as error:
            if error.code == words.JOB_UNKNOWN:
                return None
            raise
        with understanding():
            found = parse_json.jobs(answer.body)
        parts = {f"{each.het_job}+{each.het_offset}": each for each in found.values()}
        tasks = {_command_id(each): each for each in found.values()}
        return found.get(job) or tasks.get(job) or parts.get(job)

    def jobs_on(self, node: str) -> list[SlurmJob]:
        self._node(words.checked_node(node))
        return [job for job in self._jobs.read(time.monotonic()).values() if job.active and node in job.nodes]

    def controller(self) -> Controller:
        """`answer_s`: how long one read of slurmctld's own figures took."""
        at, start = datetime.now(UTC), time.monotonic()
        # First, because /ping calls slurmctld down also where it only refused the token.
        figures = self._link.call("GET", "/diag", "tell its figures")
        answer_s = time.monotonic() - start
        pings = self._link.call("GET", "/ping", "tell who answers")
        with understanding():
            queues = parse_diag.queues_from_json(figures.body)
            server = parse_diag.answering(parse_diag.servers_from_json(pings.body))
        return Controller(
            cluster=self.cluster_name(),
            at=at,
            adapter=self.name,
            host=server.host if server else "",
            role=server.role if server else "",
            version=self._link.found().slurm.release,
            answer_s=answer_s,
            threads=queues.threads,
            agent_queue=queues.agent,
            dbd_queue=queues.dbd,
        )

    def topology(self) -> Mapping[str, tuple[str, ...]]:
        raise self._lacking(SlurmCall.topology)

    # --- nodes

    def drain(self, nodes: Nodes, reason: str) -> None:
        """Slurm takes a drain without a reason from REST, and keeps the old one (d.8, 1): never sent."""
        self._change_nodes(
            "drain", nodes, {"state": ["DRAIN"], "reason": words.checked_line("a reason", reason)}
        )

    def undrain(self, nodes: Nodes) -> None:
        self._change_nodes("undrain", nodes, {"state": ["UNDRAIN"]})

    def resume(self, nodes: Nodes) -> None:
        self._change_nodes("resume", nodes, {"state": ["RESUME"]})

    def down(self, nodes: Nodes, reason: str) -> None:
        self._change_nodes(
            "set down", nodes, {"state": ["DOWN"], "reason": words.checked_line("a reason", reason)}
        )

    def reboot(self, nodes: Nodes, reason: str) -> None:
        raise self._lacking(SlurmCall.reboot)

    def cancel_reboot(self, nodes: Nodes) -> None:
        raise self._lacking(SlurmCall.cancel_reboot)

    def annotate(self, node: str, *, comment: str | None = None, extra: str | None = None) -> None:
        texts = {"comment": comment, "extra": extra}
        body = {
            field: words.checked_line("a note", text, empty=True)
            for field, text in texts.items()
            if text is not None
        }
        if body:
            self._change_nodes("annotate", node, body)

    def _change_nodes(self, verb: str, nodes: Nodes, body: Mapping[str, Any]) -> None:
        """One call where slurmrestd takes many nodes in one, else one by one in their order."""
        names = words.checked_nodes(nodes)
        if len(names) == 1 or self._link.found().number < rest_limits.MANY_NODES:
            for name in names:
                self._write(f"/node/{in_path(name)}", f"{verb} {name}", body, words.NODE_RIGHT)
            return
        try:
            self._write("/nodes", f"{verb} {', '.join(names)}", {"name": names, **body}, words.NODE_RIGHT)
        except UnknownNode as error:
            known = self._nodes.read(time.monotonic())
            unknown = ", ".join(name for name in names if name not in known)
            raise UnknownNode(f"{error} Unknown: {unknown}; read the others back.", error.code) from error
        except SchedulerRefused as error:
            text = f"{error} It may have been done to some of them: read each back."
            raise SchedulerRefused(text, error.code) from error

    # --- reservations

    def reserve(self, reservation: Reservation) -> None:
        self._must_have(SlurmCall.reserve)
        body = rest_bodies.reservation(reservation, datetime.now(UTC))
        # The address makes and changes: without this look it would change one of the same name.
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
        self._link.call("DELETE", path, f"end the reservation {name}", right=_RESERVATION)

    # --- jobs

    def requeue(self, job: str) -> None:
        self._must_have(SlurmCall.requeue)
        found = self._known(job)
        if not _waits_in_an_array(found):
            self._requeue(found, ["Incomplete"])

    def revive(self, job: str) -> None:
        """Slurm's plain requeue takes any job that is not pending; here only one that failed is sent."""
        self._must_have(SlurmCall.revive)
        found = self._single(job)
        if found.state not in _REVIVABLE:
            raise SchedulerRefused(f"Job {job} is {found.state}: it did not fail.")
        self._requeue(found, [])

    def start_now(self, job: str) -> None:
        """Two seconds from now: see `CliScheduler.start_now`."""
        found = self._known(job)
        if not _waits_in_an_array(found):
            for part in self._led(found):
                self._change_job(
                    part, "set the start of", {"begin_time": rest_bodies.number(time.time() + 2)}
                )

    def hold(self, job: str) -> None:
        self._change_job(self._single(job), "hold", {"hold": True})

    def release(self, job: str) -> None:
        self._change_job(self._single(job), "release", {"hold": False})

    def exclude(self, job: str, nodes: Sequence[str]) -> None:
        # An empty list changes nothing; one empty name takes the exclusions away (seen on 24.11).
        names = [words.checked_node(node) for node in nodes] or [""]
        self._change_job(self._single(job), "set the excluded nodes of", {"excluded_nodes": names})

    def signal(self, job: str, name: str) -> None:
        body = {"signal": words.checked_signal(name), "flags": ["FULL_JOB"]}
        self._end(SlurmCall.signal, job, f"send {name} to", body)

    def notify(self, job: str, text: str) -> None:
        raise self._lacking(SlurmCall.notify)

    def remark(self, job: str, text: str) -> None:
        body = {"admin_comment": words.checked_line("a remark", text, empty=True)}
        self._change_job(self._single(job), "remark on", body)

    def submit(self, submission: Submission) -> str:
        body = rest_bodies.submission(submission, self._link.found().number)
        answer = self._write("/job/submit", f"take the job {submission.name}", body, _JOB)
        return rest_answers.submitted(answer)

    def cancel(self, job: str) -> None:
        try:
            self._end(SlurmCall.cancel, job, "cancel", {})
        except SchedulerRefused as error:
            if error.code != _ENDED:
                raise

    # --- inside

    def _known(self, job: str) -> SlurmJob:
        with looking_first():
            found = self.job(job)
        if found is None:
            raise SchedulerRefused(f"Slurm no longer knows job {job}.", words.JOB_UNKNOWN)
        return found

    def _led(self, job: SlurmJob) -> list[SlurmJob]:
        """All components where it leads a heterogeneous job: slurmrestd changes one alone (seen on 24.11)."""
        if not job.het_job or job.het_offset:
            return [job]
        with looking_first():
            every = self._jobs.read(time.monotonic())
        return [part for part in every.values() if part.het_job == job.het_job]

    def _single(self, job: str) -> SlurmJob:
        """As `_known`, for what would change jobs that wait."""
        found = self._known(job)
        if _waits_in_an_array(found):
            raise SchedulerRefused(f"{job} stands for array tasks that wait together: name one of them.")
        return found

    def _change_job(self, job: SlurmJob, verb: str, body: Mapping[str, Any]) -> None:
        """By the record's own id: slurmrestd refuses `5_1` in this address, and takes 5 for one record."""
        self._write(f"/job/{job.id}", f"{verb} job {job.id}", body, _JOB)

    def _requeue(self, job: SlurmJob, flags: list[str]) -> None:
        name = _command_id(job)
        answer = self._write("/jobs/requeue", f"requeue job {name}", {"jobs": [name], "flags": flags}, _JOB)
        rest_answers.check_requeued(answer, f"Slurm did not requeue job {name}", _JOB)

    def _end(self, call: SlurmCall, job: str, verb: str, body: Mapping[str, Any]) -> None:
        self._must_have(call)
        action, jobs = f"{verb} job {job}", [_command_id(self._single(job))]
        answer = self._link.call("DELETE", "/jobs", action, body={"jobs": jobs, **body}, right=_JOB)
        rest_answers.check_ended(answer, f"Slurm did not {action}", _JOB)

    def _has_reservation(self, name: str) -> bool:
        with looking_first():
            return name in self._reservations.read(time.monotonic())

    def _write(self, path: str, action: str, body: Mapping[str, Any], right: str) -> Answer:
        return self._link.call("POST", path, action, body=body, right=right)

    def _must_have(self, call: SlurmCall) -> None:
        if call in self.unavailable():
            raise self._lacking(call)

    def _lacking(self, call: SlurmCall) -> NotAvailable:
        return NotAvailable(call, self.unavailable()[call])


def _command_id(job: SlurmJob) -> str:
    """What a body must say for it: `5_1` for a task of an array, its own id for all else."""
    return job.id if job.array_task is None else f"{job.array_job}_{job.array_task}"


def _waits_in_an_array(job: SlurmJob) -> bool:
    """A record that stands for tasks that wait together: no single job to requeue or to start."""
    return bool(job.array_job) and job.array_task is None
