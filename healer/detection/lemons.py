"""Lemons: nodes that fail repeatedly, although each repair and test in between found nothing that lasted.

The score is a sum of points that can be checked by hand. Its base is the node's own faults, each worth 1 on
its day and 1/e after 30 days. Points for jobs and tickets are added, and never reach the limit alone. Time
out of service is shown but worth nothing, because a node cannot fail meanwhile. Such a node is presented to a
person and never taken out for it (rule `lemon-node`, playbook `lemon`). The signals are those that Meta names
for its lemon nodes (arXiv 2410.21680, section on lemon detection). The weights are our own; their value was
measured on StepFun's trace: `docs/detection.md`."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta

from healer.detection.protocol import Detector, TickInput, new_evidence, unreadable
from healer.model import (
    Component,
    Detections,
    FaultClass,
    Finding,
    LemonPart,
    LemonScore,
    NodeRecord,
    Sense,
    SlurmSnapshot,
)
from healer.model.detection import is_due
from healer.observations.job_marks import JobMarks, Marks, faded
from healer.observations.telemetry_windows import Telemetry
from healer.ports.transactions import LedgerAway
from healer.text import Said, joined, say

LEMON_NODE = "lemon-node"
#: The name under which the marks of jobs are stored.
MARKS = "job-marks"
#: A node is reported with this score or more; below `OVER` it is no longer a lemon.
LIMIT, OVER = 3.0, 2.0
#: All signals except the node's own faults are together worth at most this: less than the limit.
OTHERS_MOST = 2.0
#: A node's fault or ticket is worth 1/e after this many days.
FADES_DAYS = 30.0
#: How often scores are computed, and from how long a past: older faults have faded to 5 %.
EVERY = timedelta(hours=1)
LOOK_BACK = timedelta(days=90)
#: Retry interval while the database is away.
AWAY = timedelta(minutes=1)
#: Points for one, and the maximum, by signal.
_KINDS, _TICKETS, _SHOWN = (0.25, 1.0), (0.25, 1.0), (0.0, 0.0)
_EXCLUDED, _NODE_FAILED, _FAILED, _FAILED_OF_MANY = (0.5, 1.0), (0.5, 1.0), (0.5, 1.0), (0.5, 0.5)
#: Lower scores are not stored.
LEAST = 0.1


def scores(
    cluster: str, pasts: Iterable[NodeRecord], marks: Mapping[str, Marks], now: datetime
) -> list[LemonScore]:
    """The scores of all nodes that have any, highest first."""
    by_node = {past.node: past for past in pasts}
    usual = _usual(marks.values(), now)
    found = []
    for node in sorted(by_node.keys() | marks.keys()):
        parts = _parts(by_node.get(node, NodeRecord(node=node)), marks.get(node), usual, now)
        base = sum(part.points for part in parts if part.signal == "faults")
        others = min(OTHERS_MOST, sum(part.points for part in parts if part.signal != "faults"))
        if base + others >= LEAST:
            found.append(LemonScore(cluster=cluster, node=node, score=round(base + others, 2), parts=parts))
    return sorted(found, key=lambda lemon: (-lemon.score, lemon.node))


def _usual(marks: Collection[Marks], now: datetime) -> tuple[float, float]:
    """The failing share of people's days on one node, and of those on many, over the whole fleet."""
    weighed = [(mark, faded(mark.at, now)) for mark in marks]

    def total(name: str) -> float:
        return sum(getattr(mark, name) * weight for mark, weight in weighed)

    alone, many = total("ended"), total("ended_of_many")
    return total("failed") / alone if alone else 0.0, total("failed_of_many") / many if many else 0.0


#: Signals whose number chooses between singular and plural.
_COUNTED = ("faults", "tickets", "excluded")


def _parts(
    past: NodeRecord, marks: Marks | None, usual: tuple[float, float], now: datetime
) -> tuple[LemonPart, ...]:
    found = []

    def add(signal: str, count: float, points: tuple[float, float], n: float) -> None:
        each, most = points
        worth = round(min(most, each * count), 2)
        if worth > 0 or (count > 0 and not each):
            text = say(f"detection.lemon_part_{signal}", **{"count" if signal in _COUNTED else "n": n})
            found.append(LemonPart(signal=signal, count=round(count, 2), points=worth, text=text))

    faults = sum(faded(at, now, FADES_DAYS) for at, _ in past.faults)
    kinds = len({name for _, name in past.faults})
    add("faults", faults, (1.0, float("inf")), len(past.faults))
    add("kinds", kinds - 1, _KINDS, kinds)
    tickets = sum(faded(at, now, FADES_DAYS) for at in past.tickets)
    add("tickets", tickets, _TICKETS, len(past.tickets))
    add("out", past.out, _SHOWN, 100 * past.out)
    if marks is not None:
        people = sum(faded(at, now) for at in marks.excluded_by.values())
        add("excluded", people, _EXCLUDED, len(marks.excluded_by))
        w = faded(marks.at, now)
        blamed, alone, many = w * marks.node_failed, w * marks.failed, w * marks.failed_of_many
        add("node_failed", blamed, _NODE_FAILED, blamed)
        more = alone - w * marks.ended * usual[0]
        add("failed", more, _FAILED, more)
        more = many - w * marks.ended_of_many * usual[1]
        add("failed_of_many", more, _FAILED_OF_MANY, more)
    return tuple(found)


class Lemons(Detector):
    """Computes scores every hour. `pasts(since, now)` returns the record of the nodes since then,
    `keep(scores, now)` takes the scores for pages; either may raise LedgerAway."""

    needs_samples = False

    def __init__(
        self,
        cluster: str,
        marks: JobMarks,
        pasts: Callable[[datetime, datetime], list[NodeRecord]],
        keep: Callable[[list[LemonScore], datetime], None],
    ) -> None:
        self.cluster, self.marks = cluster, marks
        self._pasts, self._keep = pasts, keep
        self._computed: datetime | None = None
        #: When the scores were last read: an incident from before a restart waits for them.
        self._scored_at: datetime | None = None
        #: Node -> since when it is a lemon.
        self._lemons: dict[str, datetime] = {}
        self._scores: dict[str, LemonScore] = {}

    def pack(self, telemetry: Telemetry) -> dict[str, bytes]:
        # Before the first look there is no data, and nothing must replace the stored data.
        return {MARKS: self.marks.pack()} if self.marks.has_looked else {}

    def load(self, packed: Mapping[str, bytes]) -> list[str]:
        return unreadable(packed, MARKS, self.marks.load)

    def tick(self, given: TickInput) -> Detections:
        slurm, now = given.slurm, given.now
        self.marks.look(slurm, now)
        findings: list[Finding] = []
        if is_due(self._computed, EVERY, now):
            findings = self._compute(slurm, now)
        since = self._scored_at
        clear = {
            (fault, where): since
            for fault, where in given.watched
            if fault == LEMON_NODE and since is not None and where.node and self._score(where.node) < OVER
        }
        return Detections(at=now, findings=tuple(findings), clear_since=clear)

    def _compute(self, slurm: SlurmSnapshot | None, now: datetime) -> list[Finding]:
        try:
            found = scores(self.cluster, self._pasts(now - LOOK_BACK, now), self.marks.marks, now)
            self._keep(found, now)
        except LedgerAway:
            self._computed = now - EVERY + AWAY
            return []
        self._computed = self._scored_at = now
        self._scores = {lemon.node: lemon for lemon in found}
        for node in [node for node in self._lemons if self._score(node) < OVER]:
            del self._lemons[node]
        shown = slurm.nodes if slurm is not None else {}
        for node, lemon in self._scores.items():
            if lemon.score >= LIMIT and node in shown:
                self._lemons.setdefault(node, now)
        return [_finding(self._scores[node], since, now) for node, since in sorted(self._lemons.items())]

    def _score(self, node: str) -> float:
        lemon = self._scores.get(node)
        return lemon.score if lemon is not None else 0.0


def sentence(lemon: LemonScore) -> Said:
    """`score 3.4 (limit 3): 3 faults 2.6, of 2 kinds 0.25, 2 repair tickets 0.4`"""
    parts = (say("detection.lemon_points", text=part.text, points=part.points) for part in lemon.parts)
    return say("detection.lemon_score", score=lemon.score, limit=LIMIT, parts=joined(parts, "comma"))


def _finding(lemon: LemonScore, since: datetime, now: datetime) -> Finding:
    where = Component(cluster=lemon.cluster, node=lemon.node)
    text = say("detection.lemon_text", where=str(where), score=sentence(lemon))
    identity = f"{LEMON_NODE}|{where}|{since.isoformat()}"
    return Finding.from_evidence(
        new_evidence(identity, where, since, text, now, Sense.history),
        fault=LEMON_NODE,
        fault_class=FaultClass.informational,
        title=say("detection.lemon", score=lemon.score),
        confidence=0.7,
    )
