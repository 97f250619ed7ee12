"""Slurm as recorded: every action succeeds at once, and later recorded snapshots override."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from healer.model import (
    Controller,
    Reservation,
    SlurmCall,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Submission,
    Topology,
)
from healer.model.slurm_spelling import job_state, signed_reason, state_words
from healer.observations.slurm_poll import placed
from healer.ports.clock import Clock
from healer.ports.scheduling import Nodes, SchedulerRefused, UnknownNode
from healer.signals.wire import normal_boot_id
from healer.text import quoted, say

T = TypeVar("T")
Row = Mapping[str, Any]


class Shown(msgspec.Struct, frozen=True):
    """A body of `slurm/nodes` or `slurm/jobs`. `whole`: what it does not list is gone. `again`: the recorder
    repeats known rows at the start of a file, so that each file is complete."""

    rows: Sequence[Row]
    gone: Sequence[str] = ()
    whole: bool = True
    again: bool = False


def shown(body: Any, name: str) -> Shown:
    """Raises ValueError for a body that is neither `{name: [...]}` nor `{"changed": [...], "gone":
    [...]}`."""
    fields = body if isinstance(body, dict) else {}
    if name in fields or not fields.keys() & {"changed", "gone"}:
        return Shown(_rows(fields.get(name), name), again=fields.get("again") is True)
    gone = fields.get("gone", [])
    if not isinstance(gone, list):
        raise ValueError(say("simulation.list_of_names", field="gone"))
    return Shown(_rows(fields.get("changed", []), "changed"), [str(name) for name in gone], whole=False)


def _rows(rows: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(say("simulation.list_of_objects", field=name))
    return rows


class RecordedRows:
    """The last recorded row of each node or job, without the replay's own changes."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._rows: dict[str, Row] = {}
        #: Names gone by the last picture, and whether that picture was complete.
        self._gone: frozenset[str] = frozenset()
        self._all = False

    def take(self, shown: Shown) -> list[Row]:
        """Returns the rows that override the replay's state: all rows of a picture, but of a repeated picture
        only those that differ from the one before."""
        fresh = {str(row[self._key]): row for row in shown.rows}
        self._all = shown.whole and not (shown.again and self._rows)
        if not shown.whole:
            self._gone = frozenset(shown.gone)
            self._rows = {name: row for name, row in self._rows.items() if name not in self._gone} | fresh
            return list(fresh.values())
        counted = list(fresh.values())
        if not self._all:
            counted = [row for name, row in fresh.items() if self._rows.get(name) != row]
        self._gone = frozenset(self._rows.keys() - fresh.keys())
        self._rows = fresh
        return counted

    def merged(self, before: dict[str, T], fresh: dict[str, T]) -> dict[str, T]:
        """`before` updated by the last picture; the same object where nothing changed."""
        if self._all:
            return fresh
        if not fresh and not self._gone:
            return before
        return {name: value for name, value in before.items() if name not in self._gone} | fresh


# Wide: implements `ports.Scheduler`.
class ReplaySlurm:
    """`healer.ports.scheduling.Scheduler` over recorded snapshots. Between them the picture is never
    stale."""

    name = "replay"

    def __init__(self, cluster: str, clock: Clock) -> None:
        self._cluster, self._clock = cluster, clock
        #: Never changed in place: a walk skips what is the same object as before.
        self.nodes: dict[str, SlurmNode] = {}
        self.jobs: dict[str, SlurmJob] = {}
        self.reservations: dict[str, Reservation] = {}
        self._jobs_shown_at: datetime | None = None
        self._recorded_nodes, self._recorded_jobs = RecordedRows("name"), RecordedRows("id")

    def show_nodes(self, shown: Shown, topology: Topology | None = None) -> list[SlurmNode]:
        """Takes over the recorded rows and returns those nodes. Their places come from the recording, else
        from the site's topology file."""
        file = topology or Topology()
        rows = self._recorded_nodes.take(shown)
        placed_nodes = [placed(node, file.place(self._cluster, node.name)) for node in map(node_of, rows)]
        fresh = {node.name: self._dated(node, self.nodes.get(node.name)) for node in placed_nodes}
        self.nodes = self._recorded_nodes.merged(self.nodes, fresh)
        return list(fresh.values())

    def _dated(self, node: SlurmNode, before: SlurmNode | None) -> SlurmNode:
        """Fills in missing times: a reason begins when the recording first shows it, so that the same words a
        week later are another drain; an unknown boot was the day before."""
        if node.boot_at is None:
            boot_at = before.boot_at if before is not None else None
            node = msgspec.structs.replace(node, boot_at=boot_at or self._clock.now() - timedelta(days=1))
        if not node.reason or node.reason_at is not None:
            return node
        is_same = before is not None and before.reason == node.reason
        at = before.reason_at if before is not None and is_same else self._clock.now()
        return msgspec.structs.replace(node, reason_at=at)

    def show_jobs(self, shown: Shown) -> None:
        """A row without a restart count is about the current life of its job."""
        before = self.jobs
        rows = ((str(row["id"]), row) for row in self._recorded_jobs.take(shown))
        fresh = {
            name: _job({"restarts": before[name].restarts} | dict(row) if name in before else row)
            for name, row in rows
        }
        fresh = {name: self._dated_life(job, before.get(name)) for name, job in fresh.items()}
        self._jobs_shown_at = self._clock.now()
        self.jobs = self._recorded_jobs.merged(self.jobs, fresh)

    def _dated_life(self, job: SlurmJob, before: SlurmJob | None) -> SlurmJob:
        """With its start and end, where the recording has none. It began at the earliest after the picture
        before, which did not show it at work, and ended when it was first shown so. None: it may have begun,
        or ended, before the recording."""
        same = before is not None and before.state == job.state and before.restarts == job.restarts
        if job.state == "RUNNING" and job.start_at is None:
            start_at = before.start_at if before is not None and same else self._jobs_shown_at
            return msgspec.structs.replace(job, start_at=start_at)
        if job.crashed and job.end_at is None and self._jobs_shown_at is not None:
            end_at = before.end_at if before is not None and same else self._clock.now()
            return msgspec.structs.replace(job, end_at=end_at)
        return job

    def describe(self) -> str:
        return "replay of a recording"

    def unavailable(self) -> Mapping[SlurmCall, str]:
        return {}

    def cluster_name(self) -> str:
        return self._cluster

    # --- reading

    def snapshot(self) -> SlurmSnapshot:
        return SlurmSnapshot(
            cluster=self._cluster,
            taken_at=self._clock.now(),
            nodes=self.nodes,
            jobs=self.jobs,
            reservations=dict(self.reservations),
        )

    def reserved(self) -> dict[str, Reservation]:
        return dict(self.reservations)

    def node(self, name: str) -> SlurmNode:
        if name not in self.nodes:
            raise UnknownNode(quoted(f"the recording shows no node {name}"), 2018)
        return self.nodes[name]

    def job(self, job: str) -> SlurmJob | None:
        return self.jobs.get(job)

    def jobs_on(self, node: str) -> list[SlurmJob]:
        return self.snapshot().jobs_on(node)

    def controller(self) -> Controller:
        return Controller(cluster=self._cluster, at=self._clock.now(), adapter=self.name, role="primary")

    def topology(self) -> Mapping[str, tuple[str, ...]]:
        """Empty: nodes of the recording name their switches themselves."""
        return {}

    # --- nodes and reservations

    def drain(self, nodes: Nodes, reason: str) -> None:
        for node in self._each(nodes):
            self._flag(node, "DRAIN")
            self._set(node.name, reason=reason, reason_user="healer", reason_at=self._clock.now())

    def undrain(self, nodes: Nodes) -> None:
        for node in self._each(nodes):
            self._unflag(node, {"DRAIN"})

    def resume(self, nodes: Nodes) -> None:
        for node in self._each(nodes):
            flags = [flag for flag in node.state[1:] if flag not in {"DRAIN", "FAIL", "NOT_RESPONDING"}]
            base = "IDLE" if node.base == "DOWN" else node.base
            self._set(node.name, state=(base, *flags), reason="", reason_user="", reason_at=None)

    def down(self, nodes: Nodes, reason: str) -> None:
        for node in self._each(nodes):
            self._set(node.name, state=("DOWN", *node.state[1:]), reason=reason, reason_user="healer")

    def reboot(self, nodes: Nodes, reason: str) -> None:
        """The node has booted when the call returns and is DOWN until it is resumed. Its boot id is unset, so
        that recorded lines of the old boot id are not taken for an earlier boot."""
        now = self._clock.now()
        for node in self._each(nodes):
            flags = tuple(dict.fromkeys((*node.state[1:], "DRAIN")))
            self._set(
                node.name,
                state=("DOWN", *flags),
                reason=reason,
                reason_user="healer",
                boot_at=now,
                boot_id="",
            )

    def cancel_reboot(self, nodes: Nodes) -> None:
        """Nothing to do: reboots happen at once."""

    def annotate(self, node: str, *, comment: str | None = None, extra: str | None = None) -> None:
        texts = {"comment": comment, "extra": extra}
        self._set(self.node(node).name, **{name: text for name, text in texts.items() if text is not None})

    def reserve(self, reservation: Reservation) -> None:
        if reservation.name in self.reservations:
            raise SchedulerRefused(quoted(f"the recording has a reservation {reservation.name}"))
        self.reservations[reservation.name] = reservation
        for node in self._each(reservation.nodes) if reservation.maintenance else ():
            self._flag(node, "MAINTENANCE")

    def change_reservation(self, name: str, nodes: Sequence[str]) -> None:
        before = self._reservation(name)
        self.unreserve(name)
        self.reserve(msgspec.structs.replace(before, nodes=tuple(nodes)))

    def unreserve(self, name: str) -> None:
        for node in self._each(self._reservation(name).nodes):
            self._unflag(node, {"MAINTENANCE"})
        del self.reservations[name]

    # --- jobs

    def shrink(self, job: str, node: str) -> None:
        self._set_job(job, nodes=tuple(name for name in self._job(job).nodes if name != node))

    def requeue(self, job: str) -> None:
        found = self._job(job)
        if found.active:
            self._put_back(found)

    def revive(self, job: str) -> None:
        self._put_back(self._job(job))

    def start_now(self, job: str) -> None:
        """Nothing to do: a requeued job has no begin time here."""

    def hold(self, job: str) -> None:
        self._set_job(job, held_by="admin", reason="JobHeldAdmin")

    def release(self, job: str) -> None:
        self._set_job(job, held_by="", reason="")

    def exclude(self, job: str, nodes: Sequence[str]) -> None:
        self._set_job(job, excluded=tuple(nodes))

    def signal(self, job: str, name: str) -> None:
        self._job(job)

    def notify(self, job: str, text: str) -> None:
        self._job(job)

    def remark(self, job: str, text: str) -> None:
        self._set_job(job, admin_comment=text)

    def submit(self, submission: Submission) -> str:
        """The job completes at once: a recording has no node on which a test could fail."""
        number = str(max((int(job) for job in self.jobs if job.isdecimal()), default=0) + 1)
        now = self._clock.now()
        done = SlurmJob(
            id=number, state="COMPLETED", nodes=submission.nodes, name=submission.name, exit_code="0",
            comment=submission.comment, reservation=submission.reservation, start_at=now, end_at=now,
        )  # fmt: skip
        self.jobs = {**self.jobs, number: done}
        return number

    def cancel(self, job: str) -> None:
        self._set_job(job, state="CANCELLED", flags=())

    # --- inside

    def _each(self, nodes: Nodes) -> list[SlurmNode]:
        return [self.node(name) for name in ([nodes] if isinstance(nodes, str) else nodes)]

    def _set(self, name: str, **fields: Any) -> None:
        self.nodes = {**self.nodes, name: msgspec.structs.replace(self.nodes[name], **fields)}

    def _flag(self, node: SlurmNode, flag: str) -> None:
        self._set(node.name, state=tuple(dict.fromkeys((*node.state, flag))))

    def _unflag(self, node: SlurmNode, flags: Collection[str]) -> None:
        self._set(node.name, state=tuple(flag for flag in node.state if flag not in flags))

    def _reservation(self, name: str) -> Reservation:
        if name not in self.reservations:
            raise SchedulerRefused(quoted(f"the recording has no reservation {name}"), 2053)
        return self.reservations[name]

    def _job(self, job: str) -> SlurmJob:
        if job not in self.jobs:
            raise SchedulerRefused(quoted(f"the recording shows no job {job}"), 2017)
        return self.jobs[job]

    def _set_job(self, job: str, **fields: Any) -> None:
        self.jobs = {**self.jobs, job: msgspec.structs.replace(self._job(job), **fields)}

    def _put_back(self, job: SlurmJob) -> None:
        if not job.requeue:
            raise SchedulerRefused(quoted(f"job {job.id} forbids requeue"), 2037)
        if not job.batch:
            raise SchedulerRefused(quoted(f"job {job.id} is no batch job"), 2039)
        # As in Slurm, a requeued job waits from now on, not since its first submission.
        now = self._clock.now()
        self._set_job(
            job.id, state="PENDING", flags=(), nodes=(), gpus={}, restarts=job.restarts + 1,
            submit_at=now, eligible_at=now,
        )  # fmt: skip


def node_of(row: Mapping[str, Any]) -> SlurmNode:
    """A row of `slurm/nodes`; only the name is required."""
    state = row.get("state") or ["IDLE"]
    words = (
        state.split("+")
        if isinstance(state, str)
        else [part for word in state for part in str(word).split("+")]
    )
    fields = {name: value for name, value in row.items() if value is not None}
    if isinstance(fields.get("reason"), str):
        reason, user, at = signed_reason(fields["reason"])
        signature = {"reason": reason, "reason_user": user, "reason_at": at}
        fields = {name: value for name, value in signature.items() if value} | fields | {"reason": reason}
    if "boot_id" in fields:
        fields["boot_id"] = normal_boot_id(str(fields["boot_id"]))
    return msgspec.convert({**fields, "state": state_words(words)}, SlurmNode, strict=False)


def _job(row: Mapping[str, Any]) -> SlurmJob:
    """A row of `slurm/jobs`: id, state and nodes are required."""
    given = row["state"]
    state, flags = job_state(
        given.upper() if isinstance(given, str) else [str(word).upper() for word in given]
    )
    fields = {name: value for name, value in row.items() if value is not None}
    return msgspec.convert(
        {**fields, "id": str(row["id"]), "state": state, "flags": flags}, SlurmJob, strict=False
    )
