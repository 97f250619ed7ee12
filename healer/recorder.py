"""Taps what the detector sees and writes it as a recording that `healer replay` reads.

Times are those of the walk, or of the moment the samples were read: so a replay walks at the same moments
over the same signals.
"""

import itertools
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from healer.model import Observation, ObservationKind, Reference, SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.samples import Report, StepBatch
from healer.ports import ColumnBook
from healer.recorded_samples import Layouts, steps_body

#: An entry of its own where entries are missing.
LOST = "lost"
_LINES = frozenset(
    {
        ObservationKind.xid,
        ObservationKind.sxid,
        ObservationKind.gpu_lost,
        ObservationKind.gpu_identity,
        ObservationKind.kernel_line,
    }
)


#: What proves somebody who they are: it may stand in a job's comment, a label or an address.
_SECRETS = re.compile(
    rb"heal_[A-Za-z0-9_-]{8,}"
    rb"|(?<=://)[^/@\s\"]{1,200}(?=@)"
    rb"|(?i:\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}"
    rb"|(?i:(?<=password=)|(?<=passwd=)|(?<=token=)|(?<=secret=)|(?<=api_key=))[^\s&\"\\]{1,200}"
)


class File(Protocol):
    """Where a recording goes."""

    def write(self, line: bytes, at: datetime, route: str, *, samples: bool = False) -> None:
        """One line of JSON without its end. `samples`: it was measured, and may be kept less long."""
        ...

    def begun(self) -> bool:
        """True when a new file has begun since this was last asked: what comes next has to stand alone."""
        ...


class Recorder:
    """Slurm's picture is written whole at the begin of each file, and after that what changed in it. Threads
    may share one."""

    def __init__(self, file: File, book: ColumnBook) -> None:
        self._file, self._layouts = file, Layouts(book)
        self._lock = threading.Lock()
        self._snapshot: SlurmSnapshot | None = None
        #: As written in this file; None: nothing is.
        self._nodes: Mapping[str, SlurmNode] | None = None
        self._jobs: Mapping[str, SlurmJob] | None = None
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

    def note_samples(self, reports: Sequence[Report], batches: Sequence[StepBatch], now: datetime) -> None:
        """Samples that the senses are about to take."""
        with self._lock:
            self._show(now)
            if reports:
                self._put(now, "signals/metrics", self._layouts.bodies(reports), samples=True)
            if batches:
                self._put(now, "signals/step-times", [steps_body(one) for one in batches], samples=True)

    def note_lost(self, count: int, now: datetime) -> None:
        """So many entries were not written just now. A change of the picture may be among them, so it is told
        anew."""
        with self._lock:
            self._put(now, LOST, {"entries": count})
            self._nodes = self._jobs = self._references = None

    def _show(self, now: datetime) -> None:
        if self._file.begun():
            self._nodes = self._jobs = self._references = None
        snapshot = self._snapshot
        if snapshot is None:
            return
        if snapshot.nodes is not self._nodes:
            told = _changed("nodes", self._nodes, snapshot.nodes, _node)
            self._nodes = snapshot.nodes
            if told:
                self._put(now, "slurm/nodes", {"cluster": snapshot.cluster} | told)
        if snapshot.jobs is not self._jobs:
            told = _changed("jobs", self._jobs, snapshot.jobs, _job)
            self._jobs = snapshot.jobs
            if told:
                self._put(now, "slurm/jobs", {"cluster": snapshot.cluster} | told)

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

    def _put(self, now: datetime, route: str, body: Any, *, samples: bool = False) -> None:
        # Two threads tell their own time: a recording never goes back.
        self._last = now if self._last is None else max(now, self._last)
        line = msgspec.json.encode({"at": self._last, "route": route, "body": body})
        self._file.write(line if samples else without_secrets(line), self._last, route, samples=samples)


def without_secrets(line: bytes) -> bytes:
    """Tokens, and passwords in addresses, are no part of what happened."""
    return _SECRETS.sub(_hidden, line)


def _hidden(found: re.Match[bytes]) -> bytes:
    kind, blank, _ = found.group().partition(b" ")
    return kind + b" ***" if blank else b"***"


def _changed(name: str, before: Mapping[str, Any] | None, now: Mapping[str, Any], row: Any) -> dict[str, Any]:
    """The whole picture where a file begins, marked as told again: it says no more than the rows before it.
    Later what changed; empty: nothing."""
    if before is None:
        return {name: [row(one) for one in now.values()], "again": True}
    changed = [row(one) for key, one in now.items() if before.get(key) != one]
    gone = [key for key in before if key not in now]
    told = {"changed": changed, "gone": gone}
    return {key: rows for key, rows in told.items() if rows}


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
