"""What a recording itself shows of the past: who held nodes out and why, jobs that died, when anything was
heard."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

from healer.model.site_past import Death, Hold
from healer.model.slurm import OwnerKind, original_reason, owner_of
from healer.recordings.recording import BadRecording, Entry, of_entry
from healer.sim.replay_signals import HEARTBEAT, HOOKS_ROUTE, SAMPLES
from healer.sim.replay_slurm import node_of, shown
from healer.text import said_by

#: States of a job that ended without its owner's will.
DIED = frozenset({"FAILED", "NODE_FAIL", "BOOT_FAIL", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE"})
#: A job of the same person and name that starts within this is the dead one, started again.
AGAIN = timedelta(hours=24)
#: Slurm drains for a check of the node's own within this.
CHECKED = timedelta(minutes=1)
_KERNEL_LOG = "signals/kernel-log"


class _Sender(msgspec.Struct):
    node: str | None = None


_senders = msgspec.json.Decoder(list[_Sender] | _Sender).decode


class PastFacts:
    """Watches the entries of one recording on their way into the replay."""

    def __init__(self) -> None:
        self.first: datetime | None = None
        self.last: datetime | None = None
        self.gpus: dict[str, int] = {}
        self.holds: list[Hold] = []
        self.deaths: list[Death] = []
        #: Nodes of a job -> jobs that started on so many.
        self.sizes: Counter[int] = Counter()
        #: Node -> days on which it was heard.
        self.heard: dict[str, set[date]] = {}
        self.routes: dict[str, int] = {}
        #: The import's own report, if it was one.
        self.imported: dict[str, Any] = {}
        self._open: dict[str, Hold] = {}
        #: Node -> when a check of its own failed last, and what it printed.
        self._checks: dict[str, tuple[datetime, str]] = {}
        self._jobs: dict[str, dict[str, Any]] = {}
        self._waiting: dict[tuple[str, str], list[Death]] = {}

    def over(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        for entry in entries:
            self.first, self.last = self.first or entry.at, entry.at
            self.routes[entry.route] = self.routes.get(entry.route, 0) + 1
            if entry.route == "slurm/nodes":
                self._nodes(entry)
            elif entry.route == "slurm/jobs":
                self._slurm_jobs(entry)
            elif entry.route in {_KERNEL_LOG, HEARTBEAT} or entry.route in SAMPLES:
                self._hear(entry)
            elif entry.route.startswith(HOOKS_ROUTE):
                self._note_check(entry)
            elif entry.route == "clock" and isinstance(body := entry.body, dict) and "imported" in body:
                self._know_import(body["imported"])
            yield entry

    def _nodes(self, entry: Entry) -> None:
        for row in _rows(entry, "nodes"):
            node = node_of(row)
            if node.gpus:
                self.gpus[node.name] = node.gpus
            else:
                self.gpus.setdefault(node.name, 0)
            held, before = node.held, self._open.get(node.name)
            owner = owner_of(node.reason, node.reason_user)
            kind = OwnerKind.slurm if not node.drain and not node.reason else owner.kind
            if before is not None and not (held and _goes_on(before, str(kind), node.reason)):
                before.until = entry.at
                del self._open[node.name]
            if held and node.name not in self._open:
                hold = Hold(
                    node=node.name, at=entry.at, reason=node.reason, owner=str(kind), by=owner.name,
                    number=len(self.holds) + 1,
                )  # fmt: skip
                at, text = self._checks.get(node.name, (entry.at, ""))
                if entry.at - at <= CHECKED and kind is OwnerKind.slurm:
                    hold.check = text
                self._open[node.name] = hold
                self.holds.append(hold)

    def _note_check(self, entry: Entry) -> None:
        body = entry.body
        for report in body if isinstance(body, list) else [body]:
            texts = [check["text"] for check in report.get("checks", ()) if check.get("text")]
            if texts:
                self._checks[report["node"]] = entry.at, "; ".join(texts)

    def _slurm_jobs(self, entry: Entry) -> None:
        for row in _rows(entry, "jobs"):
            job, before = str(row["id"]), self._jobs.get(str(row["id"]))
            words = row["state"] if isinstance(row["state"], list) else [row["state"]]
            row = dict(row) | {"state": str(words[0]).upper()}  # noqa: PLW2901 - the same job, in one form
            if row["state"] == "RUNNING" and (before is None or before["state"] != "RUNNING"):
                self._start(job, row, entry.at)
            died = row["state"] in DIED or (row["state"] == "PENDING" and before is not None)
            if before is not None and before["state"] == "RUNNING" and died:
                self._die(before | {"end_state": row["state"]}, entry.at)
            if row["state"] in {"RUNNING", "PENDING"}:
                self._jobs[job] = row
            else:
                self._jobs.pop(job, None)

    def _start(self, job: str, row: dict[str, Any], at: datetime) -> None:
        self.sizes[len(row.get("nodes") or ())] += 1
        # Another job of its name, such as a task of its array, may have started before.
        for death in self._waiting.pop(("", job), []):
            if at - death.end <= AGAIN:
                death.again_at = at
        key = row.get("user") or "", row.get("name") or ""
        for death in self._waiting.pop(key, []) if key[1] else []:
            if death.again_at is None and at - death.end <= AGAIN:
                death.again_at = at

    def _die(self, row: dict[str, Any], at: datetime) -> None:
        state = "REQUEUED" if row["end_state"] == "PENDING" else row["end_state"]
        nodes = [str(node) for node in row.get("nodes") or []]
        start = row.get("start_at")
        death = Death(
            job=str(row["id"]), state=state, nodes=nodes, gpus=self._gpus_of(row, nodes),
            start=datetime.fromisoformat(start).astimezone(UTC) if isinstance(start, str) else None,
            end=at, user=row.get("user") or "", name=row.get("name") or "",
            requeue=row.get("requeue", True) and row.get("batch", True), number=len(self.deaths) + 1,
        )  # fmt: skip
        self.deaths.append(death)
        for key in {("", death.job), (death.user, death.name)}:
            if key[1]:
                self._waiting.setdefault(key, []).append(death)

    def _gpus_of(self, row: dict[str, Any], nodes: list[str]) -> int:
        held = row.get("gpus") or {}
        return sum(len(held[node]) for node in nodes if node in held)

    def _hear(self, entry: Entry) -> None:
        day = entry.at.date()
        with suppress(msgspec.DecodeError):  # a text, which names its node elsewhere
            senders = _senders(entry.raw)
            for sender in senders if isinstance(senders, list) else [senders]:
                if sender.node is not None:
                    self.heard.setdefault(sender.node, set()).add(day)

    def _know_import(self, document: Any) -> None:
        self.imported = document if isinstance(document, dict) else {}
        for node, spans in self.imported.get("heard", {}).items():
            days = self.heard.setdefault(node, set())
            for first, last in spans:
                begin, end = date.fromisoformat(first), date.fromisoformat(last)
                days.update(begin + timedelta(days=number) for number in range((end - begin).days + 1))


def _goes_on(hold: Hold, owner: str, reason: str) -> bool:
    """Whether it is still the same drain: Slurm appends to a reason when the node is rebooted."""
    return (hold.owner, original_reason(hold.reason)) == (owner, original_reason(reason))


def _rows(entry: Entry, name: str) -> list[Any]:
    try:
        return list(shown(entry.body, name).rows)
    except ValueError as error:
        raise BadRecording(of_entry(entry, said_by(error))) from error
