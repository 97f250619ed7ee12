"""Taps the walk's input and writes it as a recording that `healer replay` reads.

Times are those of the walk: so a replay walks at the same moments over the same signals.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from healer.model import Observation, ObservationKind, SlurmJob, SlurmNode, SlurmSnapshot

_LINES = frozenset(
    {ObservationKind.xid, ObservationKind.sxid, ObservationKind.gpu_lost, ObservationKind.gpu_identity}
)


class Recorder:
    """`write` takes one line of JSON without its end. Slurm's picture is written when it changed."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._nodes: object = None
        self._jobs: object = None

    def note(self, batch: Sequence[Observation], snapshot: SlurmSnapshot | None, now: datetime) -> None:
        """What one walk is about to see."""
        if snapshot is not None and snapshot.nodes != self._nodes:
            self._nodes = snapshot.nodes
            rows = [_node(node) for node in snapshot.nodes.values()]
            self._put(now, "slurm/nodes", {"cluster": snapshot.cluster, "nodes": rows})
        if snapshot is not None and snapshot.jobs != self._jobs:
            self._jobs = snapshot.jobs
            rows = [_job(job) for job in snapshot.jobs.values()]
            self._put(now, "slurm/jobs", {"cluster": snapshot.cluster, "jobs": rows})
        for route, body in _bodies(batch):
            self._put(now, route, body)

    def _put(self, now: datetime, route: str, body: dict[str, Any]) -> None:
        self._write(msgspec.json.encode({"at": now, "route": route, "body": body}))


def _bodies(batch: Sequence[Observation]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Observations back in the form in which senders tell them. Commands of people are not signals."""
    for place, group in itertools.groupby(batch, key=_place):
        kind, cluster, node, boot_id = place
        told = list(group)
        if kind == "kernel-log":
            entries = [_entry(one) for one in told]
            body = {"cluster": cluster, "node": node, "boot_id": boot_id, "entries": entries}
            yield "signals/kernel-log", {name: value for name, value in body.items() if value is not None}
        elif kind == "heartbeat":
            for one in told:
                body = {"cluster": cluster, "node": node, "boot_id": boot_id, "gpus": one.data.get("gpus")}
                yield "signals/heartbeat", {name: value for name, value in body.items() if value is not None}


def _place(one: Observation) -> tuple[str, str, str | None, str | None]:
    kind = "kernel-log" if one.kind in _LINES else str(one.kind)
    return kind, one.component.cluster, one.component.node, one.boot_id


def _entry(one: Observation) -> dict[str, Any]:
    entry: dict[str, Any] = {"time": one.event_at, "line": one.line}
    if "job" in one.data:
        entry["job"] = one.data["job"]
    return entry


def _node(node: SlurmNode) -> dict[str, Any]:
    return msgspec.to_builtins(node)


def _job(job: SlurmJob) -> dict[str, Any]:
    row = msgspec.to_builtins(job)
    row["state"] = [job.state, *job.flags]
    row.pop("flags", None)
    return row
