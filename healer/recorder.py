"""Taps what the detector sees and writes it as a recording that `healer replay` reads.

Times are those of the walk, or of the moment the samples were read: so a replay walks at the same moments
over the same signals.
"""

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from healer.model import Observation, ObservationKind, Reference, SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.samples import Report, StepBatch
from healer.ports import ColumnBook
from healer.recorded_samples import Layouts, steps_body

_LINES = frozenset(
    {
        ObservationKind.xid,
        ObservationKind.sxid,
        ObservationKind.gpu_lost,
        ObservationKind.gpu_identity,
        ObservationKind.kernel_line,
    }
)


class File(Protocol):
    """Where a recording goes."""

    def write(self, line: bytes) -> None:
        """One line of JSON without its end."""
        ...

    def begun(self) -> bool:
        """True when a new file has begun since this was last asked: what comes next has to stand alone."""
        ...


class Recorder:
    """Slurm's picture is written when it changed, and at the begin of each file. Threads may share one."""

    def __init__(self, file: File, book: ColumnBook) -> None:
        self._file, self._layouts = file, Layouts(book)
        self._lock = threading.Lock()
        self._snapshot: SlurmSnapshot | None = None
        self._nodes: object = None
        self._jobs: object = None
        #: By kind, as written; None: nothing is written in this file yet.
        self._references: dict[str, Reference] | None = None
        self._last: datetime | None = None

    def note(
        self,
        batch: Sequence[Observation],
        snapshot: SlurmSnapshot | None,
        now: datetime,
        *,
        facts: Mapping[str, Mapping[str, str]] | None = None,
        references: Mapping[str, Reference] | None = None,
    ) -> None:
        """What one walk is about to see. `facts`: what nodes told of themselves before, by node;
        `references`: what nodes should be, by kind."""
        with self._lock:
            self._snapshot = snapshot or self._snapshot
            self._show(now)
            self._show_drift(now, facts or {}, references or {})
            for route, body in _bodies(batch):
                self._put(now, route, body)

    def note_moment(self, now: datetime) -> None:
        """A walk for which nothing came: a replay walks at this moment too, before it sees its effects."""
        with self._lock:
            self._put(now, "clock", {})

    def note_samples(self, reports: Sequence[Report], batches: Sequence[StepBatch], now: datetime) -> None:
        """Samples that the senses are about to take."""
        with self._lock:
            self._show(now)
            if reports:
                self._put(now, "signals/metrics", self._layouts.bodies(reports))
            if batches:
                self._put(now, "signals/step-times", [steps_body(one) for one in batches])

    def _show(self, now: datetime) -> None:
        if self._file.begun():
            self._nodes = self._jobs = self._references = None
        snapshot = self._snapshot
        if snapshot is not None and snapshot.nodes != self._nodes:
            self._nodes = snapshot.nodes
            rows = [_node(node) for node in snapshot.nodes.values()]
            self._put(now, "slurm/nodes", {"cluster": snapshot.cluster, "nodes": rows})
        if snapshot is not None and snapshot.jobs != self._jobs:
            self._jobs = snapshot.jobs
            rows = [_job(job) for job in snapshot.jobs.values()]
            self._put(now, "slurm/jobs", {"cluster": snapshot.cluster, "jobs": rows})

    def _show_drift(
        self, now: datetime, facts: Mapping[str, Mapping[str, str]], references: Mapping[str, Reference]
    ) -> None:
        """Facts at the begin of a file, for they are told on a change alone; references when they change. One
        that was forgotten is one that holds nothing."""
        cluster = self._snapshot.cluster if self._snapshot is not None else None
        if self._references is None:
            self._references = {}
            told = [
                _told({"cluster": cluster, "node": node, "inventory": dict(known)})
                for node, known in sorted(facts.items())
                if known
            ]
            if told:
                self._put(now, "signals/metrics", told)
        for kind in sorted(self._references.keys() - references.keys()):
            self._put(now, "reference", {"kind": kind, "facts": {}})
        for kind, one in sorted(references.items()):
            if self._references.get(kind) != one:
                self._put(now, "reference", {"kind": kind, "node": one.node, "facts": one.facts})
        self._references = dict(references)

    def _put(self, now: datetime, route: str, body: Any) -> None:
        # Two threads tell their own time: a recording never goes back.
        self._last = now if self._last is None else max(now, self._last)
        self._file.write(msgspec.json.encode({"at": self._last, "route": route, "body": body}))


def _bodies(batch: Sequence[Observation]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Observations back in the form in which senders tell them. Commands of people are not signals."""
    for place, group in itertools.groupby(batch, key=_place):
        kind, cluster, node, boot_id = place
        told = list(group)
        if kind == "kernel-log":
            entries = [_entry(one) for one in told]
            body = {"cluster": cluster, "node": node, "boot_id": boot_id, "entries": entries}
            yield "signals/kernel-log", _told(body)
        elif kind == ObservationKind.heartbeat:
            for one in told:
                body = {"cluster": cluster, "node": node, "boot_id": boot_id, "gpus": one.data.get("gpus")}
                yield "signals/heartbeat", _told(body)
        elif kind == ObservationKind.checkpoint:
            for one in told:
                body = {"cluster": cluster, "job": one.component.job, "time": one.event_at, **one.data}
                yield (
                    "signals/checkpoints",
                    {name: value for name, value in body.items() if value is not None},
                )
        elif kind == ObservationKind.alert:
            yield "signals/alertmanager", _alerts(told)
        elif kind == ObservationKind.hook:
            for one in told:
                yield f"signals/hooks/{one.data['hook']}", _told(_hook(one))
        elif kind == ObservationKind.inventory and node is not None:
            for one in told:
                body = {"cluster": cluster, "node": node, "inventory": one.data.get("facts") or {}}
                yield "signals/metrics", body
        elif kind == ObservationKind.gpu_inventory and node is not None:
            for one in told:
                yield "signals/metrics", _inventory(cluster, node, one)


def _told(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _hook(one: Observation) -> dict[str, Any]:
    checks = [{"name": name} for name in one.data.get("passed", ())]
    checks += [{"name": name, "text": text} for name, text in one.data.get("failed", {}).items()]
    where = one.component
    named = {"cluster": where.cluster, "node": where.node, "job": where.job, "boot_id": one.boot_id}
    return {**named, "id": one.data.get("id"), "time": one.event_at, "checks": checks}


def _alerts(told: Sequence[Observation]) -> dict[str, Any]:
    alerts = [
        {
            "status": one.data["status"],
            "labels": one.data["labels"],
            "annotations": {"summary": one.data["summary"]},
            "startsAt": one.data["starts_at"],
            "endsAt": one.data.get("ends_at"),
            "fingerprint": one.data["fingerprint"],
            "generatorURL": one.data["url"],
        }
        for one in told
    ]
    return {"version": "4", "externalURL": told[0].data["source"], "alerts": alerts}


def _inventory(cluster: str, node: str, one: Observation) -> dict[str, Any]:
    return {"cluster": cluster, "node": node, "time": one.event_at, "gpus": one.data.get("gpus")}


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
