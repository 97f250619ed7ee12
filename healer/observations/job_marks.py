"""Marks that jobs leave on nodes: who excludes a node, and whose jobs failed there. They fade over two weeks.

A person counts once per day and node, however many jobs they submit: a failing array of a thousand is one
mark, and so is its `--exclude`.
"""

import math
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from healer.model import SlurmJob, SlurmSnapshot
from healer.model.detection import EARLIEST, is_due

#: A mark fades to 1/e of its value in this many days.
FADES_DAYS = 14.0
#: How often the Slurm snapshot is examined; it shows a job for five minutes after its end (MinJobAge).
LOOK = timedelta(minutes=1)
#: A mark that has faded to this is forgotten.
LEAST = 0.02
_ENDED = frozenset({"COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY"})
_FAILED = frozenset({"FAILED", "NODE_FAIL"})


class Marks(msgspec.Struct, kw_only=True):
    """The marks of one node, as of `at`. `excluded_by`: person -> when they last excluded it from a job.
    Person-days with jobs on this node alone that `ended`, and that `failed`; the same for jobs on several
    nodes, with an equal share for each; and failures that Slurm blames on a node (NODE_FAIL): this one, or
    one of several."""

    at: datetime
    excluded_by: dict[str, datetime] = {}
    ended: float = 0.0
    failed: float = 0.0
    ended_of_many: float = 0.0
    failed_of_many: float = 0.0
    node_failed: float = 0.0

    def fade(self, now: datetime) -> None:
        left = faded(self.at, now)
        for name in ("ended", "failed", "ended_of_many", "failed_of_many", "node_failed"):
            setattr(self, name, getattr(self, name) * left)
        self.at = max(self.at, now)

    @property
    def is_blank(self) -> bool:
        return not self.excluded_by and max(self.ended, self.ended_of_many, self.node_failed) < LEAST


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """`since` to `today`: as in `JobMarks`; an earlier version stored no more than `since`."""

    since: datetime
    marks: dict[str, Marks]
    counted: set[tuple[str, int]] = set()
    day: int = 0
    today: set[tuple[str, str, str]] = set()


def faded(at: datetime, now: datetime, days: float = FADES_DAYS) -> float:
    """The present value, 0..1, of a mark from `at`: 1/e after this many days."""
    return math.exp(-max(timedelta(0), now - at) / timedelta(days=days))


@dataclass(slots=True)
class JobMarks:
    """The marks of one cluster. `own_exclusions`: the nodes of a job's exclusions that healer itself
    added."""

    own_exclusions: Callable[[SlurmJob], Collection[str]] = lambda _: ()
    marks: dict[str, Marks] = field(default_factory=dict)
    _looked_at: datetime | None = None
    #: Counted ended lives, as long as Slurm shows them; those that ended before `_since` are counted too.
    _counted: set[tuple[str, int]] = field(default_factory=set)
    _since: datetime = EARLIEST
    #: Who was counted today, by node and kind of mark.
    _today: set[tuple[str, str, str]] = field(default_factory=set)
    _day: int = 0

    def look(self, slurm: SlurmSnapshot | None, now: datetime) -> None:
        """Processes a Slurm snapshot. Cheap, except once per `LOOK`."""
        if slurm is None or not is_due(self._looked_at, LOOK, now):
            return
        self._looked_at = now
        if (day := int(now.timestamp() // 86400)) != self._day:
            self._day = day
            self._today.clear()
            self._forget(now)
        shown: set[tuple[str, int]] = set()
        for job in slurm.jobs.values():
            if job.excluded:
                self._exclusions(job, slurm, now)
            if job.state in _ENDED and "COMPLETING" not in job.flags and job.nodes:
                key = (job.id, job.restarts)
                shown.add(key)
                if key not in self._counted and (job.end_at is None or job.end_at > self._since):
                    self._end(job, now)
        self._counted = shown

    def _exclusions(self, job: SlurmJob, slurm: SlurmSnapshot, now: datetime) -> None:
        if job.state not in ("PENDING", "RUNNING"):
            return
        for node in set(job.excluded) - set(self.own_exclusions(job)):
            if node in slurm.nodes:
                self._of(node, now).excluded_by[job.user or job.id] = now

    def _end(self, job: SlurmJob, now: datetime) -> None:
        share = 1 / len(job.nodes)
        kind = "" if len(job.nodes) == 1 else "_of_many"
        for node in job.nodes:
            if self._first(node, job, f"ended{kind}"):
                marks = self._of(node, now)
                setattr(marks, f"ended{kind}", getattr(marks, f"ended{kind}") + share)
            if job.state in _FAILED and self._first(node, job, f"failed{kind}"):
                marks = self._of(node, now)
                setattr(marks, f"failed{kind}", getattr(marks, f"failed{kind}") + share)
        if job.state == "NODE_FAIL":
            blamed = (job.failed_node,) if job.failed_node in job.nodes else job.nodes
            for node in blamed:
                if self._first(node, job, "node_failed"):
                    self._of(node, now).node_failed += 1 / len(blamed)

    def _first(self, node: str, job: SlurmJob, what: str) -> bool:
        """Whether this person counts for the first time today, for that node and kind."""
        key = (node, job.user or job.id, what)
        if key in self._today:
            return False
        self._today.add(key)
        return True

    def _of(self, node: str, now: datetime) -> Marks:
        marks = self.marks.setdefault(node, Marks(at=now))
        marks.fade(now)
        return marks

    def _forget(self, now: datetime) -> None:
        for node, marks in list(self.marks.items()):
            marks.fade(now)
            marks.excluded_by = {who: at for who, at in marks.excluded_by.items() if faded(at, now) >= LEAST}
            if marks.is_blank:
                del self.marks[node]

    @property
    def has_looked(self) -> bool:
        return self._looked_at is not None

    # --- keeping ----------------------------------------------------------------------------------------

    def pack(self) -> bytes:
        kept = _Kept(
            since=self._looked_at or self._since,
            marks=self.marks,
            counted=self._counted,
            day=self._day,
            today=self._today,
        )
        return zlib.compress(msgspec.msgpack.encode(kept), 1)

    def load(self, packed: bytes) -> None:
        """Raises ValueError if the data was not made by `pack`."""
        try:
            kept = msgspec.msgpack.decode(zlib.decompress(packed), type=_Kept)
        except (zlib.error, msgspec.DecodeError) as error:
            raise ValueError(f"no marks: {error}") from None
        self.marks, self._since = kept.marks, kept.since
        self._counted, self._day, self._today = kept.counted, kept.day, kept.today
