"""Slurm read through slurmrestd (`rest`): Slurm 23.02 (v0.0.39) to 26.05 (v0.0.45), detected automatically.

Calls that a release does not offer raise NotAvailable.
"""

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from healer.adapters.slurm import parse_json, rest_answers
from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.commands import parse_errors
from healer.adapters.slurm.rest_answers import Answer
from healer.adapters.slurm.rest_link import Found, ReadLink, Request, Token, in_path
from healer.adapters.slurm.slurm_reader import SlurmReader
from healer.model import Controller, Reservation, SlurmCall, SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.slurm import job_named
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable, UnknownNode
from healer.text import Said, said_by, say

#: An `update_time` in the future (2096), for which the answer is always short.
_NEVER = "4000000000"


#: The first Slurm release of each REST version (v0.0.N).
RELEASES = {39: "23.02", 40: "23.11", 41: "24.05", 42: "24.11", 43: "25.05", 44: "25.11", 45: "26.05"}

_RESERVATIONS, _REQUEUE, _KILL = 43, 45, 40
_SINCE = {
    SlurmCall.reserve: ("reserve", _RESERVATIONS),
    SlurmCall.change_reservation: ("reserve", _RESERVATIONS),
    SlurmCall.unreserve: ("reserve", _RESERVATIONS),
    SlurmCall.requeue: ("requeue", _REQUEUE),
    SlurmCall.revive: ("requeue", _REQUEUE),
    # Older versions would signal the whole array for one of its tasks.
    SlurmCall.signal: ("signal", _KILL),
    SlurmCall.cancel: ("cancel", _KILL),
}
_NEVER_OFFERED = {
    SlurmCall.reboot: "reboot",
    SlurmCall.cancel_reboot: "cancel_reboot",
    SlurmCall.notify: "notify",
    SlurmCall.topology: "topology",
}
#: How long "unchanged" is trusted: a controller whose clock was set back would repeat it.
_BELIEVED_S = 60.0
#: The time-out of a complete list, in time-outs of one request.
_PATIENCE = 6

T = TypeVar("T")


class RestReads(SlurmReader):
    """`ports.SlurmReads` over HTTP. `url`: `http://host:port`, `https://host/prefix` or `unix:///path`.

    `user` is sent as X-SLURM-USER-NAME (None: the token's user). `timeout_s` bounds one request; a list of
    all nodes or jobs may take six times as long. `cluster`: the expected cluster (`ReadLink`).
    """

    name = "rest"
    _Link = ReadLink

    def __init__(
        self, url: str, *, user: str | None, token: Token, timeout_s: float = 4.0, cluster: str | None = None
    ) -> None:
        self._cluster = cluster
        self._link = self._Link(url, user=user, token=token, timeout_s=timeout_s, cluster=cluster)
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
            raise SchedulerUnavailable(say("slurm.rest_no_cluster"), sent=False)
        return cluster

    # --- reading

    def snapshot(self) -> SlurmSnapshot:
        cluster, taken_at, now = self.cluster_name(), datetime.now(UTC), time.monotonic()
        nodes = self._nodes.read(now)
        if not nodes:
            raise SchedulerUnavailable(say("slurm.no_nodes"))
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
            action = say("slurm.to_show_node", node=name)
            answer = self._link.call(Request("GET", f"/node/{in_path(name)}"), action)
        except SchedulerRefused as error:
            # slurmrestd reports an unknown node as an error without a number, which may also mean something
            # else (d.8, 24): the list of all nodes decides.
            if error.code is not None:
                raise
            listed = self._nodes.read(time.monotonic())
            if name in listed or not listed:
                raise SchedulerUnavailable(said_by(error)) from error
            raise UnknownNode(say("slurm.no_node", node=name), words.NODE_UNKNOWN) from error
        with parse_errors():
            found = parse_json.nodes(answer.body)
        return words.node_named(name, found)

    def job(self, job: str) -> SlurmJob | None:
        words.checked_job(job)
        # slurmrestd only knows the whole of an array or heterogeneous job.
        whole = re.split(r"[_+]", job)[0]
        try:
            answer = self._link.call(Request("GET", f"/job/{whole}"), say("slurm.to_show_job", job=job))
        except SchedulerRefused as error:
            if error.code == words.JOB_UNKNOWN:
                return None
            raise
        with parse_errors():
            return job_named(job, parse_json.jobs(answer.body))

    def jobs_on(self, node: str) -> list[SlurmJob]:
        self._node(words.checked_node(node))
        return [job for job in self._all_jobs().values() if job.active and node in job.nodes]

    def controller(self) -> Controller:
        """`answer_s` is the duration of one read of slurmctld's statistics."""
        at, start = datetime.now(UTC), time.monotonic()
        # First: /ping reports slurmctld as down even if it only refused the token.
        figures = self._link.call(Request("GET", "/diag"), say("slurm.to_tell_figures"))
        answer_s = time.monotonic() - start
        pings = self._link.call(Request("GET", "/ping"), say("slurm.to_tell_who_answers"))
        with parse_errors():
            queues = parse_json.queues(figures.body)
            server = parse_json.answering(parse_json.servers(pings.body))
        return self._controller(at, self._link.found().slurm.release, answer_s, server, queues)

    # --- helpers

    def _all_jobs(self) -> Mapping[str, SlurmJob]:
        return self._jobs.read(time.monotonic())


def lacking(number: int) -> Mapping[SlurmCall, str]:
    """The calls that v0.0.`number` does not offer, and why."""
    spoken = f"v0.0.{number}"
    found = {
        call: say(f"slurm.since_{what}", release=RELEASES[since], version=f"v0.0.{since}", spoken=spoken)
        for call, (what, since) in _SINCE.items()
        if number < since
    }
    found |= {call: say("slurm.rest_never", call=what) for call, what in _NEVER_OFFERED.items()}
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

    def __init__(self, link: ReadLink, path: str, parse: Callable[[bytes], Mapping[str, T]]) -> None:
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
                raise rest_answers.error_of(answer.problems[0], words.not_done(self._to_list()), "")
        # Also after an error: 24.11 answers 500 if nodes have changed and partitions have not.
        if answer is None or not answer.good:
            answer = self._link.call(Request("GET", self._path, patience=_PATIENCE), self._to_list())
        with parse_errors():
            rows = self._parse(answer.body)
        if kept and kept.rows == rows:
            rows = kept.rows
        self._kept = _Cached(found, answer.updated, now, rows)
        return rows

    def _to_list(self) -> Said:
        return say("slurm.to_list", what=self._path[1:])


def _unchanged(answer: Answer) -> bool:
    """Whether an answer to `update_time` reports no change. An empty list has the time of its last change."""
    return answer.status == 304 or (answer.good and bool(answer.warnings) and not answer.updated)
