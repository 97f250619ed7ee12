"""Changes of nodes and jobs, by time -> rows of `slurm/nodes` and `slurm/jobs`.

A node's row follows what keeps it in or out of service. Whether jobs run on it is said by the jobs: a row for
each start of a job would undo, in the replay, what healer did there.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from healer.importing.happenings import JobChange, NodeChange
from healer.importing.local_stamps import rfc3339

#: So long Slurm shows a job that has ended.
SHOWN_US = 300_000_000
#: A reason of `sinfo -R` and one of the log are the same within this.
_SAME_US = 2_000_000
_REASON_LETTERS = 18
#: Jobs whose earlier lives are counted.
_LIVES_MOST = 200_000

Row = dict[str, Any]


class NodeRows:
    """`fixed`: fields by node that do not change."""

    def __init__(self, fixed: Mapping[str, Row]) -> None:
        self._fixed = fixed
        self._states: dict[str, tuple[str, ...]] = {}
        #: (reason, user, since when in µs)
        self._reasons: dict[str, tuple[str, str, int]] = {}

    def row(self, node: str) -> Row:
        row: Row = {"name": node, "state": list(self._states.get(node, ("IDLE",)))} | self._fixed[node]
        reason, user, at_us = self._reasons.get(node, ("", "", 0))
        if reason:
            row |= {"reason": reason, "reason_at": rfc3339(at_us)} | ({"reason_user": user} if user else {})
        return row

    def take(self, node: str, change: NodeChange, at_us: int) -> Row | None:
        """The new row; None if nothing changed."""
        before = self._states.get(node, ("IDLE",)), self._reasons.get(node)
        _CHANGES[change.word](self, node, change, at_us)
        after = self._states.get(node, ("IDLE",)), self._reasons.get(node)
        is_out = not {"DRAIN", "FAIL", "DOWN", "REBOOT_REQUESTED"}.isdisjoint(after[0])
        return self.row(node) if before[0] != after[0] or (before[1] != after[1] and is_out) else None

    def _explain(self, node: str, change: NodeChange, at_us: int) -> None:
        reason, user, since_us = self._reasons.get(node, ("", "", 0))
        letters = _REASON_LETTERS
        if reason[:letters].strip() == change.reason[:letters].strip() and abs(at_us - since_us) <= _SAME_US:
            user, since_us = change.user or user, since_us or at_us
            self._reasons[node] = max(reason, change.reason, key=len), user, since_us
        elif change.reason:
            self._reasons[node] = change.reason, change.user, at_us

    def _state(self, node: str, change: NodeChange, _at_us: int) -> None:
        state = tuple(change.state)
        base = state[0] if state else ""
        if base in {"IDLE", "RESUME", "UNDRAIN", "ALLOCATED", "MIXED"} and "DRAIN" not in state:
            self._free(node)
        elif base in {"DRAIN", "DRAINED", "DRAINING"} or "DRAIN" in state:
            self._flag(node, "DRAIN")
        else:
            kept = [flag for flag in self._states.get(node, ("IDLE",))[1:] if flag == "DRAIN"]
            self._states[node] = (base, *kept, *state[1:])

    def _shown(self, node: str, change: NodeChange, at_us: int) -> None:
        self._explain(node, change, at_us)
        self._state(node, change, at_us)

    def _down(self, node: str, change: NodeChange, at_us: int) -> None:
        if "DRAIN" not in self._states.get(node, ()):
            self._explain(node, change, at_us)
        kept = [flag for flag in self._states.get(node, ("IDLE",))[1:] if flag != "NOT_RESPONDING"]
        self._states[node] = ("DOWN", "NOT_RESPONDING", *kept)

    def _silent(self, node: str, _change: NodeChange, _at_us: int) -> None:
        self._flag(node, "NOT_RESPONDING")

    def _heard(self, node: str, _change: NodeChange, _at_us: int) -> None:
        self._unflag(node, {"NOT_RESPONDING"})

    def _back(self, node: str, _change: NodeChange, _at_us: int) -> None:
        """Slurm took it back into service; a drain stays."""
        self._unflag(node, {"NOT_RESPONDING", "REBOOT_REQUESTED"})
        if self._states.get(node, ("IDLE",))[0] == "DOWN":
            self._states[node] = ("IDLE", *self._states[node][1:])
            if "DRAIN" not in self._states[node]:
                self._reasons.pop(node, None)

    def _rebooted(self, node: str, change: NodeChange, at_us: int) -> None:
        self._fixed[node]["boot_at"] = rfc3339(change.at_us or at_us)
        kept = self._states.get(node, ("IDLE",))[1:]
        if "DRAIN" not in kept:
            self._explain(node, change, at_us)
        self._states[node] = ("DOWN", *(flag for flag in kept if flag not in {"NOT_RESPONDING"}))

    def _booted(self, node: str, change: NodeChange, _at_us: int) -> None:
        """Shown with the node's next row: a row of its own would undo in the replay what healer did there."""
        self._fixed[node]["boot_at"] = rfc3339(change.at_us)

    def _reboot(self, node: str, _change: NodeChange, _at_us: int) -> None:
        self._flag(node, "REBOOT_REQUESTED")

    def _free(self, node: str) -> None:
        self._states[node] = ("IDLE",)
        self._reasons.pop(node, None)

    def _flag(self, node: str, flag: str) -> None:
        state = self._states.get(node, ("IDLE",))
        self._states[node] = tuple(dict.fromkeys((*state, flag)))

    def _unflag(self, node: str, flags: set[str]) -> None:
        state = self._states.get(node, ("IDLE",))
        self._states[node] = tuple(word for word in state if word not in flags)


_CHANGES: Mapping[str, Callable[[NodeRows, str, NodeChange, int], None]] = {
    "state": NodeRows._state, "reason": NodeRows._explain, "shown": NodeRows._shown,
    "down": NodeRows._down, "silent": NodeRows._silent, "heard": NodeRows._heard,
    "back": NodeRows._back, "rebooted": NodeRows._rebooted, "reboot": NodeRows._reboot,
    "booted": NodeRows._booted,
}  # fmt: skip


class JobRows:
    """`gpus`: by node. `book`: the span of the accounting in µs; within it a log's words on jobs are left
    out, as both would say the same at slightly different times. `counts_gpus`: the accounting names GPUs;
    otherwise a job without one has an unknown number of them."""

    def __init__(self, gpus: Mapping[str, int], book: tuple[int, int] | None, *, counts_gpus: bool) -> None:
        self._gpus, self._book, self._counts_gpus = gpus, book, counts_gpus
        self._rows: dict[str, Row] = {}
        self._lives: dict[str, int] = {}
        #: Job -> how its node knows that it will have ended.
        self._why: dict[str, str] = {}
        self._ended: deque[tuple[int, str]] = deque()

    def gone(self, now_us: int) -> list[str]:
        """Jobs that Slurm shows no longer."""
        found: list[str] = []
        while self._ended and self._ended[0][0] <= now_us - SHOWN_US:
            _, job = self._ended.popleft()
            if self._rows.get(job, {}).get("state") not in {"RUNNING", "PENDING", None}:
                del self._rows[job]
                found.append(job)
        return found

    def take(self, change: JobChange, nodes: Sequence[str], row: Row, at_us: int) -> Row | None:
        """The new row; None if it says nothing new. `row`: its further fields."""
        if self._book is not None and not change.book and self._book[0] <= at_us <= self._book[1]:
            return None
        before = self._rows.get(change.id)
        if change.word == "start":
            found = self._started(change, nodes, row)
        elif before is None or before["state"] != "RUNNING":
            return None
        elif change.word == "why":
            self._why[change.id] = change.state
            return None
        elif change.word == "requeue":
            self._lives[change.id] = before["restarts"] + 1
            found = before | {"state": "PENDING", "nodes": [], "gpus": {}, "restarts": before["restarts"] + 1}
        else:
            why = self._why.pop(change.id, change.state)
            state = why if change.state == "FAILED" else change.state
            found = before | row | {"state": state, "end_at": rfc3339(at_us)}
            found["restarts"] = before["restarts"]
            self._ended.append((at_us, change.id))
            if change.state == "NODE_FAIL":
                self._lives[change.id] = before["restarts"] + 1
        self._rows[change.id] = found
        return found if found != before else None

    def requeued_after_its_end(self, change: JobChange) -> Row | None:
        """The log says the end first: `requeue job … due to failure of node`."""
        before = self._rows.get(change.id)
        if change.word != "requeue" or before is None or before["state"] != "NODE_FAIL" or change.book:
            return None
        restarts = before["restarts"] + 1
        found = before | {"state": "PENDING", "nodes": [], "gpus": {}, "restarts": restarts}
        del found["end_at"]
        self._rows[change.id] = found
        return found

    def _started(self, change: JobChange, nodes: Sequence[str], row: Row) -> Row:
        restarts = row.get("restarts", self._lives.get(change.id, 0))
        if len(self._lives) > _LIVES_MOST:
            self._lives.clear()
        held = change.gpus if self._counts_gpus else None
        each = None if held is None or not nodes or held % len(nodes) else held // len(nodes)
        gpus = {
            node: list(range(each))
            for node in nodes
            if each is not None and (each == 0 or each == self._gpus.get(node))
        }
        found = {"id": change.id, "state": "RUNNING", "nodes": list(nodes), "restarts": restarts}
        return found | {"gpus": gpus} | {name: value for name, value in row.items() if name != "restarts"}
