"""Happenings by time -> the entries of a recording."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from healer.importing.happenings import (
    Happening,
    JobChange,
    Lines,
    NodeChange,
    NodeCheck,
    Sampled,
    SmiLog,
    ToolEvent,
    decode,
)
from healer.importing.local_stamps import rfc3339
from healer.importing.measured_text import TEXT_BYTES
from healer.importing.node_names import NodeNames, Pseudonyms, is_name
from healer.importing.slurm_rows import JobRows, NodeRows
from healer.importing.sorted_runs import KEY
from healer.recordings.recorder import without_secrets

_encode = msgspec.json.Encoder().encode
_MINUTE_US = 60_000_000
#: Text of one minute of samples in one entry.
_ENTRY_BYTES = 16 * TEXT_BYTES
#: Hosts that are no nodes, counted by name.
_HOSTS_MOST, _HOST_LETTERS = 1000, 253


class Fold:
    """`start_us`: nothing is before it; what is older is as of then. `left_out` counts lines of hosts that
    are no nodes."""

    def __init__(
        self, cluster: str, names: NodeNames, nodes: NodeRows, jobs: JobRows, people: Pseudonyms | None
    ) -> None:
        self._cluster, self._names, self._nodes, self._jobs = cluster, names, nodes, jobs
        self._people = people
        self.left_out: dict[str, int] = {}
        self._changed: dict[str, dict[str, dict[str, Any]]] = {"nodes": {}, "jobs": {}}
        self._at_us = 0
        self._text: list[str] = []
        self._text_at_us = self._text_bytes = 0
        self.entries = 0

    def entries_of(self, lines: Iterable[bytes], start_us: int, all_nodes: Iterable[str]) -> Iterator[bytes]:
        self._at_us = start_us
        rows = [self._nodes.row(node) for node in all_nodes]
        if rows:
            yield self._entry(start_us, "slurm/nodes", {"cluster": self._cluster, "nodes": rows})
            yield self._entry(start_us, "slurm/jobs", {"cluster": self._cluster, "jobs": []})
        for line in lines:
            at_us = max(int(line[:18]), start_us)
            happening = decode(line[KEY:-1])
            if at_us > self._at_us:
                yield from self._flush()
                self._at_us = at_us
            yield from self._take(happening, at_us)
        yield from self._flush()
        yield from self._flush_text()

    def _take(self, happening: Happening, at_us: int) -> Iterator[bytes]:
        if isinstance(happening, Lines):
            yield from self._lines(happening, at_us)
        elif isinstance(happening, NodeChange):
            self._node(happening, at_us)
        elif isinstance(happening, JobChange):
            yield from self._job(happening, at_us)
        elif isinstance(happening, NodeCheck):
            yield from self._check(happening, at_us)
        elif isinstance(happening, ToolEvent | SmiLog):
            yield from self._report(happening, at_us)
        else:
            yield from self._samples(happening, at_us)

    def _lines(self, lines: Lines, at_us: int) -> Iterator[bytes]:
        node = self._node_of(lines.host, len(lines.entries))
        if node is None:
            return
        yield from self._flush()
        body: dict[str, Any] = {"cluster": self._cluster, "node": node, "entries": lines.entries}
        if lines.boot_id:
            body["boot_id"] = lines.boot_id
        yield self._entry(at_us, "signals/kernel-log", body)

    def _node_of(self, host: str, lines: int = 1) -> str | None:
        """The node; None, and counted, if the host is not one."""
        node = self._names.node(host)
        if node is not None and is_name(node):
            return node
        host = host[:_HOST_LETTERS]
        count = self.left_out.get(host, 0)
        if count or len(self.left_out) < _HOSTS_MOST:
            self.left_out[host] = count + lines
        return None

    def _report(self, report: ToolEvent | SmiLog, at_us: int) -> Iterator[bytes]:
        node = self._node_of(report.host)
        if node is None:
            return
        yield from self._flush()
        if isinstance(report, SmiLog):
            query = urlencode({"cluster": self._cluster, "node": node})
            yield self._entry(at_us, f"signals/nvidia-smi?{query}", report.xml)
            return
        named = "labels" if "labels" in report.data else "healthEvent"
        key = "node" if named == "labels" else "nodeName"
        data = report.data | {named: report.data[named] | {key: node}}
        event = {
            "specversion": "1.0", "type": report.kind, "source": "import", "id": f"{at_us}-{self.entries}",
            "time": rfc3339(at_us), "subject": node, "data": data,
        }  # fmt: skip
        yield self._entry(at_us, f"signals/cloudevents?{urlencode({'cluster': self._cluster})}", event)

    def _check(self, check: NodeCheck, at_us: int) -> Iterator[bytes]:
        node = self._node_of(check.host)
        if node is None:
            return
        yield from self._flush()
        text = check.text if self._people is None else self._people.text(check.text)
        checks = [{"name": check.name, "text": text}]
        body = {"cluster": self._cluster, "node": node, "time": rfc3339(at_us), "checks": checks}
        yield self._entry(at_us, f"signals/hooks/{check.hook}", body)

    def _node(self, change: NodeChange, at_us: int) -> None:
        if self._people is not None:
            reason, user = self._people.text(change.reason), self._people.user(change.user)
            change = msgspec.structs.replace(change, reason=reason, user=user)
        for name in change.nodes:
            node = self._names.node(name)
            row = None if node is None else self._nodes.take(node, change, at_us)
            if row is not None:
                self._changed["nodes"][row["name"]] = row

    def _job(self, change: JobChange, at_us: int) -> Iterator[bytes]:
        nodes = [node for name in change.nodes if (node := self._names.node(name)) is not None]
        fields = change.row if self._people is None else self._people.job(change.row)
        row = self._jobs.take(change, nodes, fields, at_us) or self._jobs.requeued_after_its_end(change)
        if row is None:
            return
        if change.id in self._changed["jobs"]:  # a job that ends and is requeued at once is shown twice
            yield from self._flush()
            self._at_us += 1
        self._changed["jobs"][change.id] = row

    def _samples(self, samples: Sampled, at_us: int) -> Iterator[bytes]:
        if at_us // _MINUTE_US != self._text_at_us // _MINUTE_US or self._text_bytes > _ENTRY_BYTES:
            yield from self._flush_text()
        self._text.append(samples.text)
        self._text_bytes += len(samples.text)
        self._text_at_us = max(self._text_at_us, at_us)

    def _flush(self) -> Iterator[bytes]:
        if self._text and self._text_at_us // _MINUTE_US < self._at_us // _MINUTE_US:
            yield from self._flush_text()
        nodes, jobs = self._changed["nodes"], self._changed["jobs"]
        if nodes:
            body = {"cluster": self._cluster, "changed": list(nodes.values())}
            yield self._entry(self._at_us, "slurm/nodes", body)
        if jobs:
            gone = [job for job in self._jobs.gone(self._at_us) if job not in jobs]
            body = {"cluster": self._cluster, "changed": list(jobs.values())} | (
                {"gone": gone} if gone else {}
            )
            yield self._entry(self._at_us, "slurm/jobs", body)
        self._changed = {"nodes": {}, "jobs": {}}

    def _flush_text(self) -> Iterator[bytes]:
        if self._text:
            route = f"signals/openmetrics?{urlencode({'cluster': self._cluster})}"
            yield self._entry(self._text_at_us, route, "".join(self._text))
        self._text, self._text_bytes = [], 0

    def last(self, document: Mapping[str, Any]) -> bytes:
        """The last entry: time passes, and how the recording came about."""
        return self._entry(self._at_us, "clock", {"imported": document})

    def _entry(self, at_us: int, route: str, body: Any) -> bytes:
        self.entries += 1
        self._at_us = max(self._at_us, at_us)
        line = _encode({"at": rfc3339(self._at_us), "route": route, "body": body})
        return (line if route.startswith("signals/openmetrics") else without_secrets(line)) + b"\n"
