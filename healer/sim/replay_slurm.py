"""Slurm as a recording shows it: every action succeeds at once, and a later snapshot overrides."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from healer.model import SlurmJob, SlurmNode, SlurmSnapshot
from healer.ports import Clock, SchedulerRefused, UnknownNode
from healer.signals.wire import normal_boot_id


class ReplaySlurm:
    """`healer.ports.Scheduler` over recorded snapshots. Between them the picture holds: it is never stale."""

    name = "replay"

    def __init__(self, cluster: str, clock: Clock) -> None:
        self._cluster, self._clock = cluster, clock
        self.nodes: dict[str, SlurmNode] = {}
        self.jobs: dict[str, SlurmJob] = {}

    def show_nodes(self, rows: Sequence[Mapping[str, Any]]) -> None:
        shown = [_node(row) for row in rows]
        self.nodes = {node.name: self._dated(node, self.nodes.get(node.name)) for node in shown}

    def _dated(self, node: SlurmNode, before: SlurmNode | None) -> SlurmNode:
        """A reason stands since the recording first shows it: its words a week later are another drain."""
        if not node.reason or node.reason_at is not None:
            return node
        stands = before is not None and before.reason == node.reason
        at = before.reason_at if before is not None and stands else self._clock.now()
        return msgspec.structs.replace(node, reason_at=at)

    def show_jobs(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.jobs = {str(row["id"]): _job(row) for row in rows}

    def describe(self) -> str:
        return "replay of a recording"

    def cluster_name(self) -> str:
        return self._cluster

    def snapshot(self) -> SlurmSnapshot:
        return SlurmSnapshot(
            cluster=self._cluster, taken_at=self._clock.now(), nodes=dict(self.nodes), jobs=dict(self.jobs)
        )

    def node(self, name: str) -> SlurmNode:
        if name not in self.nodes:
            raise UnknownNode(f"the recording shows no node {name}", 2018)
        return self.nodes[name]

    def job(self, job: str) -> SlurmJob | None:
        return self.jobs.get(job)

    def jobs_on(self, node: str) -> list[SlurmJob]:
        return self.snapshot().jobs_on(node)

    def drain(self, node: str, reason: str) -> None:
        known = self.node(node)
        flags = tuple(dict.fromkeys((*known.state, "DRAIN")))
        self.nodes[node] = msgspec.structs.replace(
            known, state=flags, reason=reason, reason_user="healer", reason_at=self._clock.now()
        )

    def resume(self, node: str) -> None:
        known = self.node(node)
        base = "IDLE" if known.base == "DOWN" else known.base
        flags = tuple(flag for flag in known.state[1:] if flag not in {"DRAIN", "FAIL", "NOT_RESPONDING"})
        self.nodes[node] = msgspec.structs.replace(
            known, state=(base, *flags), reason="", reason_user="", reason_at=None
        )

    def requeue(self, job: str) -> None:
        known = self.jobs.get(job)
        if known is None:
            raise SchedulerRefused(f"the recording shows no job {job}", 2017)
        if not known.requeue:
            raise SchedulerRefused(f"job {job} forbids requeue", 2037)
        if not known.batch:
            raise SchedulerRefused(f"job {job} is no batch job", 2039)
        if known.active:
            self.jobs[job] = msgspec.structs.replace(
                known, state="PENDING", flags=(), nodes=(), gpus={}, restarts=known.restarts + 1
            )

    def start_now(self, job: str) -> None:
        """A requeued job has no begin time here."""


def _node(row: Mapping[str, Any]) -> SlurmNode:
    """A row of `slurm/nodes`; all but the name may be missing."""
    state = row.get("state") or ["IDLE"]
    words = state.upper().split("+") if isinstance(state, str) else [str(word).upper() for word in state]
    known = {name: value for name, value in row.items() if value is not None}
    if "boot_id" in known:
        known["boot_id"] = normal_boot_id(str(known["boot_id"]))
    return msgspec.convert(
        {**known, "state": words},
        SlurmNode,
        strict=False,
    )


def _job(row: Mapping[str, Any]) -> SlurmJob:
    """A row of `slurm/jobs`: id, state and nodes, the rest optional."""
    state = row["state"]
    words = [state] if isinstance(state, str) else list(state)
    words = [str(word).upper() for word in words]
    known = {name: value for name, value in row.items() if value is not None}
    return msgspec.convert(
        {**known, "id": str(row["id"]), "state": words[0], "flags": words[1:]}, SlurmJob, strict=False
    )
