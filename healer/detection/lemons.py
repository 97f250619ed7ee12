"""Lemons: nodes that fail again and again, though each repair and test in between found nothing that lasted.

A sum of points that anybody can check. Its base is the node's own faults, each worth 1 on its day and 1/e
after two weeks; what jobs and tickets say comes on top, and never reaches the limit alone. Such a node is put
before a person and never taken out for it (rule `lemon-node`, playbook `lemon`). The signals are those that
Meta names for its lemon nodes (arXiv 2410.21680, section on lemon detection); the weights are ours, and what
the base is worth was measured on StepFun's trace: `docs/detection.md`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from hashlib import sha256

from healer.detection.protocol import Detector, Look, unreadable
from healer.model import (
    Component,
    Detections,
    Evidence,
    FaultClass,
    Finding,
    LemonPart,
    LemonScore,
    NodeRecord,
    Sense,
    SlurmSnapshot,
)
from healer.observations.job_marks import JobMarks, Marks, faded
from healer.observations.telemetry_windows import Telemetry
from healer.ports.transactions import LedgerAway

LEMON_NODE = "lemon-node"
#: Under this name what jobs say of nodes is kept.
MARKS = "job-marks"
#: From here on a node is told; below `OVER` it is over.
LIMIT, OVER = 3.0, 2.0
#: All that is not a fault of the node itself is worth so much at most: less than the limit.
BESIDE_MOST = 2.0
#: Scores are reckoned so often, from this much of the past: what is older has faded to 5 %.
EVERY = timedelta(hours=1)
LOOK_BACK = timedelta(days=42)
#: While the database is away it is asked so often.
AWAY = timedelta(minutes=1)
#: Points for one, and at most, by signal.
_KINDS, _TICKETS, _OUT = (0.25, 1.0), (0.25, 1.0), (1.0, 1.0)
_EXCLUDED, _NODE_FAILED, _FAILED, _FAILED_OF_MANY = (0.5, 1.0), (0.5, 1.0), (0.5, 1.0), (0.5, 0.5)
#: Below this nothing is kept of a node.
LEAST = 0.1


def scores(
    cluster: str, pasts: Iterable[NodeRecord], marks: Mapping[str, Marks], now: datetime
) -> list[LemonScore]:
    """Of all nodes that have any, the highest first."""
    by_node = {one.node: one for one in pasts}
    usual = _usual(marks.values(), now)
    found = []
    for node in sorted(by_node.keys() | marks.keys()):
        parts = _parts(by_node.get(node, NodeRecord(node=node)), marks.get(node), usual, now)
        base = sum(one.points for one in parts if one.signal == "faults")
        beside = min(BESIDE_MOST, sum(one.points for one in parts if one.signal != "faults"))
        if base + beside >= LEAST:
            found.append(LemonScore(cluster=cluster, node=node, score=round(base + beside, 2), parts=parts))
    return sorted(found, key=lambda one: (-one.score, one.node))


def _usual(marks: Collection[Marks], now: datetime) -> tuple[float, float]:
    """The share of people's days on one node, and of those on many, that fail anywhere."""
    left = [(one, faded(one.at, now)) for one in marks]
    alone, many = sum(one.ended * w for one, w in left), sum(one.ended_of_many * w for one, w in left)
    failed, of_many = sum(one.failed * w for one, w in left), sum(one.failed_of_many * w for one, w in left)
    return failed / alone if alone else 0.0, of_many / many if many else 0.0


def _parts(
    past: NodeRecord, marks: Marks | None, usual: tuple[float, float], now: datetime
) -> tuple[LemonPart, ...]:
    found = []

    def add(signal: str, count: float, points: tuple[float, float], text: str) -> None:
        each, most = points
        worth = round(min(most, each * count), 2)
        if worth > 0:
            found.append(LemonPart(signal=signal, count=round(count, 2), points=worth, text=text))

    faults = sum(faded(at, now) for at, _ in past.faults)
    kinds = len({name for _, name in past.faults})
    add("faults", faults, (1.0, float("inf")), f"{len(past.faults)} faults")
    add("kinds", kinds - 1, _KINDS, f"of {kinds} kinds")
    tickets = sum(faded(at, now) for at in past.tickets)
    add("tickets", tickets, _TICKETS, f"{len(past.tickets)} repair tickets")
    add("out", past.out, _OUT, f"{past.out:.0%} of two weeks out of service".replace("%", " %"))
    if marks is not None:
        people = sum(faded(at, now) for at in marks.excluded_by.values())
        add("excluded", people, _EXCLUDED, f"{len(marks.excluded_by)} people keep their jobs off it")
        w = faded(marks.at, now)
        blamed, alone, many = w * marks.node_failed, w * marks.failed, w * marks.failed_of_many
        add("node_failed", blamed, _NODE_FAILED, f"{blamed:.1f} jobs ended by its failure")
        more = alone - w * marks.ended * usual[0]
        add("failed", more, _FAILED, f"{more:.1f} more failures of jobs on it alone than usual")
        more = many - w * marks.ended_of_many * usual[1]
        text = f"its share in {more:.1f} more failures of jobs on many nodes than usual"
        add("failed_of_many", more, _FAILED_OF_MANY, text)
    return tuple(found)


class Lemons(Detector):
    """Reckons each hour. `pasts(since, now)` gives what is held of the nodes since then, `keep(scores, now)`
    takes the scores for pages; either may raise LedgerAway."""

    def __init__(
        self,
        cluster: str,
        marks: JobMarks,
        pasts: Callable[[datetime, datetime], list[NodeRecord]],
        keep: Callable[[list[LemonScore], datetime], None],
    ) -> None:
        self.cluster, self.marks = cluster, marks
        self._pasts, self._keep = pasts, keep
        self._reckoned: datetime | None = None
        #: When the scores of now were first known: an incident of before a restart waits for them.
        self._known_since: datetime | None = None
        #: Node -> since when it is told.
        self._told: dict[str, datetime] = {}
        self._scores: dict[str, LemonScore] = {}

    @property
    def needs_samples(self) -> bool:
        return False

    def pack(self, telemetry: Telemetry) -> dict[str, bytes]:
        # What has not looked yet knows nothing, and must not take the place of what was kept.
        return {MARKS: self.marks.pack()} if self.marks.has_looked else {}

    def load(self, packed: Mapping[str, bytes]) -> list[str]:
        return unreadable(packed, MARKS, self.marks.load)

    def tick(self, look: Look) -> Detections:
        slurm, now = look.slurm, look.now
        self.marks.look(slurm, now)
        findings: list[Finding] = []
        if self._reckoned is None or abs(now - self._reckoned) >= EVERY:
            findings = self._reckon(slurm, now)
        clear = {
            (fault, where): self._known_since
            for fault, where in look.watched
            if fault == LEMON_NODE
            and self._known_since is not None
            and where.node is not None
            and self._score(where.node) < OVER
        }
        return Detections(at=now, findings=tuple(findings), clear_since=clear)

    def _reckon(self, slurm: SlurmSnapshot | None, now: datetime) -> list[Finding]:
        try:
            found = scores(self.cluster, self._pasts(now - LOOK_BACK, now), self.marks.marks, now)
            self._keep(found, now)
        except LedgerAway:
            self._reckoned = now - EVERY + AWAY  # nothing waits for it
            return []
        self._reckoned = self._known_since = now
        self._scores = {one.node: one for one in found}
        return self._judge(slurm, now)

    def _score(self, node: str) -> float:
        known = self._scores.get(node)
        return known.score if known is not None else 0.0

    def _judge(self, slurm: SlurmSnapshot | None, now: datetime) -> list[Finding]:
        for node in [node for node in self._told if self._score(node) < OVER]:
            del self._told[node]
        shown = slurm.nodes if slurm is not None else {}
        for node, one in self._scores.items():
            if one.score >= LIMIT and node in shown:
                self._told.setdefault(node, now)
        return [_finding(self._scores[node], since, now) for node, since in sorted(self._told.items())]


def sentence(one: LemonScore) -> str:
    """`score 3.4 (limit 3): 3 faults 2.6, of 2 kinds 0.25, 2 repair tickets 0.4`"""
    told = ", ".join(f"{part.text} {part.points:g}" for part in one.parts)
    return f"score {one.score:g} (limit {LIMIT:g}): {told}"


def _finding(one: LemonScore, since: datetime, now: datetime) -> Finding:
    where = Component(cluster=one.cluster, node=one.node)
    text = f"{where} fails again and again: {sentence(one)}"
    evidence = Evidence(
        digest=sha256(f"{LEMON_NODE}|{where}|{since.isoformat()}".encode()).hexdigest(),
        at=since,
        arrived_at=now,
        component=where,
        text=text,
        sense=Sense.history,
    )
    return Finding.from_evidence(
        evidence,
        fault=LEMON_NODE,
        fault_class=FaultClass.informational,
        title=f"Fails again and again: score {one.score:g}",
        confidence=0.7,
    )
