"""Records what the detector sees, for `healer replay`.

Times are those of the walk, or of the read of samples, so that a replay walks at the same moments over the
same signals.
"""

import itertools
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import isinf, isnan
from typing import Any, Protocol

import msgspec

from healer.model import Column, Observation, ObservationKind, Reference, SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.telemetry import DOING, Report, StepBatch
from healer.ports.measurements import ColumnBook

#: Most heartbeats of one entry: within the limit of a request.
BEATS_MOST = 10_000
#: Route of an entry that counts lost entries.
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


#: Credentials, which may occur in a job's comment, a label or an address.
_SECRETS = re.compile(
    rb"heal(?:er_sa)?_[A-Za-z0-9_-]{8,}"
    rb"|(?<=://)[^/@\s\"]+(?=@)"
    rb"|(?P<kind>(?i:\b(?:bearer|basic)\s+))[A-Za-z0-9._~+/=-]{8,}"
    rb"|(?i:(?<=password=)|(?<=passwd=)|(?<=token=)|(?<=secret=)|(?<=api_key=))"
    # As JSON writes it: a text in quotes, or the next word.
    rb"(?:\\\"(?:[^\"\\]|\\\\)+|'(?:[^'\"\\]|\\\\)+'|(?:[^\s&\"\\]|\\\\)+)"
)


class File(Protocol):
    """Target of a recording."""

    def write(self, line: bytes, at: datetime, route: str, *, samples: bool = False) -> None:
        """Writes one line of JSON without its end. `samples`: it holds measurements, which may be deleted
        sooner."""

    def begun(self) -> bool:
        """Whether a new file has begun since the last call, so that the whole picture has to be written."""
        ...


class Recorder:
    """Writes Slurm's whole picture at the start of each file, and then its changes. Thread-safe."""

    def __init__(self, file: File, book: ColumnBook) -> None:
        self._file, self._layouts = file, Layouts(book)
        self._lock = threading.Lock()
        self._snapshot: SlurmSnapshot | None = None
        #: As last written; None: not yet in this file.
        self._nodes: Mapping[str, SlurmNode] | None = None
        self._jobs: Mapping[str, SlurmJob] | None = None
        #: By kind, as last written; None: not yet in this file.
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
        """Records what one walk is about to see. `facts`: known facts by node; `references`: reference facts
        by kind of node."""
        with self._lock:
            self._snapshot = snapshot or self._snapshot
            self._show(now)
            self._show_drift(now, facts or {}, references or {})
            for route, body, known_as in _bodies(batch):
                self._put(now, route, body, known_as=known_as)

    def note_moment(self, now: datetime) -> None:
        """Records a walk without signals, so that a replay walks at this moment too."""
        with self._lock:
            self._put(now, "clock", {})

    def note_samples(self, reports: Sequence[Report], batches: Sequence[StepBatch], now: datetime) -> None:
        """Records samples that the senses are about to take."""
        with self._lock:
            self._show(now)
            if reports:
                self._put(now, "signals/metrics", self._layouts.bodies(reports), samples=True)
            if batches:
                self._put(now, "signals/step-times", [steps_body(batch) for batch in batches], samples=True)

    def note_lost(self, count: int, now: datetime) -> None:
        """Records that `count` entries were lost. The whole picture follows, as its changes may be among
        them."""
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
            rows = _changed("nodes", self._nodes, snapshot.nodes, msgspec.to_builtins)
            self._nodes = snapshot.nodes
            if rows:
                self._put(now, "slurm/nodes", {"cluster": snapshot.cluster} | rows)
        if snapshot.jobs is not self._jobs:
            rows = _changed("jobs", self._jobs, snapshot.jobs, _job)
            self._jobs = snapshot.jobs
            if rows:
                self._put(now, "slurm/jobs", {"cluster": snapshot.cluster} | rows)

    def _show_drift(
        self, now: datetime, facts: Mapping[str, Mapping[str, str]], references: Mapping[str, Reference]
    ) -> None:
        """Writes facts at the start of a file, as nodes send only changes, and references when they change. A
        forgotten reference is written without facts."""
        cluster = self._snapshot.cluster if self._snapshot is not None else None
        if self._references is None:
            self._references = {}
            entries = [
                _without_unset({"cluster": cluster, "node": node, "inventory": dict(inventory)})
                for node, inventory in sorted(facts.items())
                if inventory
            ]
            if entries:
                self._put(now, "signals/metrics", entries)
        for kind in sorted(self._references.keys() - references.keys()):
            self._put(now, "reference", {"kind": kind, "facts": {}})
        for kind, reference in sorted(references.items()):
            if self._references.get(kind) != reference:
                self._put(now, "reference", {"kind": kind, "node": reference.node, "facts": reference.facts})
        self._references = dict(references)

    def _put(
        self, now: datetime, route: str, body: Any, *, samples: bool = False, known_as: Sequence[str] = ()
    ) -> None:
        # Threads have their own times; a recording never goes back in time.
        self._last = now if self._last is None else max(now, self._last)
        entry: dict[str, Any] = {"at": self._last, "route": route, "body": body}
        line = msgspec.json.encode(entry | {"known_as": known_as} if known_as else entry)
        self._file.write(line if samples else without_secrets(line), self._last, route, samples=samples)


def without_secrets(line: bytes) -> bytes:
    """The line with tokens and passwords masked."""
    return _SECRETS.sub(_hidden, line)


def _hidden(found: re.Match[bytes]) -> bytes:
    return (found["kind"] or b"") + b"***"


def _changed(name: str, before: Mapping[str, Any] | None, now: Mapping[str, Any], row: Any) -> dict[str, Any]:
    """At the start of a file the whole picture, marked as repeated; later its changes, empty if there are
    none."""
    if before is None:
        return {name: [row(item) for item in now.values()], "again": True}
    changed = [row(item) for key, item in now.items() if before.get(key) != item]
    gone = [key for key in before if key not in now]
    picture = {"changed": changed, "gone": gone}
    return {key: rows for key, rows in picture.items() if rows}


#: Kinds that may open an incident. Its id derives from the digest of the observation, which may depend on the
#: route it came by, so the digest is recorded.
_NAMED = _LINES | {ObservationKind.alert, ObservationKind.hook}


def _bodies(batch: Sequence[Observation]) -> Iterator[tuple[str, Any, Sequence[str]]]:
    """Yields (route, body, digests): observations in the form of the API. People's commands are left out.
    Heartbeats share entries."""
    beats = [_beat(observation) for observation in batch if observation.kind is ObservationKind.heartbeat]
    for first in range(0, len(beats), BEATS_MOST):
        yield "signals/heartbeat", beats[first : first + BEATS_MOST], ()
    for place, group in itertools.groupby(batch, key=_place):
        kind, cluster, node, boot_id = place
        observations = list(group)
        if kind == "kernel-log":
            entries = [_entry(observation) for observation in observations]
            body = {"cluster": cluster, "node": node, "boot_id": boot_id, "entries": entries}
            yield "signals/kernel-log", _without_unset(body), _names(observations)
        elif kind == ObservationKind.alert:
            yield "signals/alertmanager", _alerts(observations), _names(observations)
        else:
            for observation in observations:
                found = _body(observation)
                if found is not None:
                    yield *found, _names([observation])


def _body(observation: Observation) -> tuple[str, dict[str, Any]] | None:
    where = observation.component
    cluster, node = where.cluster, where.node
    if observation.kind is ObservationKind.checkpoint:
        return "signals/checkpoints", _without_unset(
            {"cluster": cluster, "job": where.job, "time": observation.event_at} | observation.data
        )
    if observation.kind is ObservationKind.hook:
        return f"signals/hooks/{observation.data['hook']}", _without_unset(_hook(observation))
    if observation.kind is ObservationKind.inventory and node is not None:
        facts = observation.data.get("facts") or {}
        return "signals/metrics", {"cluster": cluster, "node": node, "inventory": facts}
    if observation.kind is ObservationKind.gpu_inventory and node is not None:
        return "signals/metrics", _inventory(cluster, node, observation)
    return None


def _beat(observation: Observation) -> dict[str, Any]:
    where = observation.component
    fields = {
        "cluster": where.cluster,
        "node": where.node,
        "boot_id": observation.boot_id,
        "gpus": observation.data.get("gpus"),
    }
    return _without_unset(fields)


def _names(observations: Sequence[Observation]) -> list[str]:
    return [observation.digest for observation in observations if observation.kind in _NAMED]


def _without_unset(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _hook(observation: Observation) -> dict[str, Any]:
    checks = [{"name": name} for name in observation.data.get("passed", ())]
    checks += [{"name": name, "text": text} for name, text in observation.data.get("failed", {}).items()]
    where = observation.component
    named = {"cluster": where.cluster, "node": where.node, "job": where.job, "boot_id": observation.boot_id}
    return {**named, "id": observation.data.get("id"), "time": observation.event_at, "checks": checks}


def _alerts(observations: Sequence[Observation]) -> dict[str, Any]:
    alerts = [
        {
            "status": observation.data["status"],
            "labels": observation.data["labels"],
            "annotations": {"summary": observation.data["summary"]},
            "startsAt": observation.data["starts_at"],
            "endsAt": observation.data.get("ends_at"),
            "fingerprint": observation.data["fingerprint"],
            "generatorURL": observation.data["url"],
        }
        for observation in observations
    ]
    return {"version": "4", "externalURL": observations[0].data["source"], "alerts": alerts}


def _inventory(cluster: str, node: str, observation: Observation) -> dict[str, Any]:
    return {
        "cluster": cluster,
        "node": node,
        "time": observation.event_at,
        "gpus": observation.data.get("gpus"),
    }


def _place(observation: Observation) -> tuple[str, str, str | None, str | None]:
    kind = "kernel-log" if observation.kind in _LINES else str(observation.kind)
    return kind, observation.component.cluster, observation.component.node, observation.boot_id


def _entry(observation: Observation) -> dict[str, Any]:
    entry: dict[str, Any] = {"time": observation.event_at, "line": observation.line}
    if "job" in observation.data:
        entry["job"] = observation.data["job"]
    return entry


def _job(job: SlurmJob) -> dict[str, Any]:
    row = msgspec.to_builtins(job)
    row["state"] = [job.state, *job.flags]
    row.pop("flags", None)
    return row


# --- samples in the form of the API: columnar metrics and step times

#: Most layouts kept: there are about as many as kinds of nodes.
LAYOUTS = 10_000

#: Where one value goes: ("gpu", signal, gpu, 0), ("links", signal, gpu, link), ("ports", port, signal, 0) or
#: ("host", signal, 0, 0).
_Spot = tuple[str, str, Any, Any]


class Layouts:
    """Turns reports into columnar bodies. Keeps the layout of each kind of report."""

    def __init__(self, book: ColumnBook) -> None:
        self._book = book
        self._known: dict[bytes, list[_Spot | None]] = {}

    def bodies(self, reports: Sequence[Report]) -> list[dict[str, Any]]:
        return [self._body(report) for report in reports]

    def _body(self, report: Report) -> dict[str, Any]:
        gpu: dict[str, list[float | None]] = {}
        host: dict[str, float] = {}
        ports: dict[str, dict[str, float]] = {}
        links: dict[str, list[list[float | None]]] = {}
        for spot, value in zip(self._layout(report), report.values.tolist(), strict=True):
            if spot is None or isnan(value):
                continue
            if value.is_integer():
                value = int(value)  # noqa: PLW2901 - `61` for `61.0`: a third of the file
            kind, name, at, link = spot
            if kind == "gpu":
                _set(gpu.setdefault(name, []), at, value)
            elif kind == "host":
                host[name] = value
            elif kind == "ports":
                ports.setdefault(name, {})[at] = value
            else:
                per_gpu = links.setdefault(name, [])
                per_gpu.extend([] for _ in range(at + 1 - len(per_gpu)))
                _set(per_gpu[at], link, value)
        parts = {"gpu": gpu, "host": host, "ports": ports, "links": links}
        head = {"cluster": report.cluster, "node": report.node, "time": report.at}
        return head | {name: part for name, part in parts.items() if part}

    def _layout(self, report: Report) -> list[_Spot | None]:
        key = report.columns.tobytes()
        layout = self._known.get(key)
        if layout is None:
            if len(self._known) >= LAYOUTS:
                self._known.clear()
            ids = report.columns.tolist()
            columns = self._book.columns(ids)
            layout = self._known[key] = [_spot(columns.get(number)) for number in ids]
        return layout


def _spot(column: Column | None) -> _Spot | None:
    if column is None:
        return None
    part = column.part
    if part.port is not None:
        return ("ports", part.port, column.signal, 0)
    if part.link is not None and part.gpu is not None:
        return ("links", column.signal, part.gpu, part.link)
    if part.gpu is not None:
        return ("gpu", column.signal, part.gpu, 0)
    return ("host", column.signal, 0, 0)


def _set(values: list[float | None], index: int, value: float) -> None:
    values.extend([None] * (index + 1 - len(values)))
    values[index] = value


_FIGURES = ("step_s", "compute_s", "comm_s", "data_s", "work", "loss", "grad_norm")


def steps_body(batch: StepBatch) -> dict[str, Any]:
    """The body of a request with these samples; unset values are left out."""
    rows: list[dict[str, Any]] = [
        {"time": datetime.fromtimestamp(at, UTC), "step": step, "rank": rank}
        for at, step, rank in zip(batch.at.tolist(), batch.step.tolist(), batch.rank.tolist(), strict=True)
    ]
    for row, node in zip(rows, batch.node.tolist(), strict=True):
        if node >= 0:
            row["node"] = batch.nodes[node]
    for name in ("gpu", "stage"):
        for row, value in zip(rows, getattr(batch, name).tolist(), strict=True):
            if value >= 0:
                row[name] = value
    for name in _FIGURES:
        for row, value in zip(rows, getattr(batch, name).tolist(), strict=True):
            if not isnan(value):
                row[name] = "NaN" if isinf(value) else value
    if batch.doing is not None:
        for row, doing in zip(rows, batch.doing.tolist(), strict=True):
            row["open_s"], row["doing"] = row.pop("step_s"), DOING[doing]
    return {"cluster": batch.cluster, "job": batch.job, "restart": batch.restart, "samples": rows}
