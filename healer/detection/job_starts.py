"""Jobs that start: how long that usually takes, and the node whose own fault keeps a job from its first step.

A life without a step has no pace of its own. It is compared with how long this job's earlier starts took, or
judged by the node's processes: if they wait in the kernel for a minute while none of the job's other nodes
has such processes, they wait for what the node has lost. A start in which a node lost something is no
reference for the next one.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from healer.detection.blame import BLAMED_AGAIN, Stop, blamed_node, reported_losses
from healer.detection.hang_evidence import AtRest, are_blocked, ports_down
from healer.detection.protocol import TickInput
from healer.model import Component, Finding, NodeReport, SlurmJob, SlurmSnapshot
from healer.model.faults import Trait, fault_is
from healer.observations.steps import JobSteps, is_of_life
from healer.text import Said, joined, say

#: The name under which it is stored for healer's next start.
STARTS = "job-starts"
#: A start is too long after this many times this job's last starts (their median; of two, the longer), and at
#: least this. With processes that wait in the kernel, after the latter alone.
TIMES, LEAST_S, STARTS_KEPT = 1.5, 60.0, 5
#: Slurm may not show a job while it waits to start again. Its data is kept for this long.
UNSHOWN = timedelta(days=1)
#: If no sender at all was heard for longer than this, healer may be cut off and miss steps.
HEARD = timedelta(seconds=30)


@dataclass(slots=True)
class _Start:
    """One start of a job. `losses`: node -> its last loss; the picture keeps that only for minutes."""

    at: datetime
    losses: dict[str, NodeReport] = field(default_factory=dict)
    blamed_at: datetime | None = None


class Starts:
    """Follows the starts of jobs that report steps. Memory grows with the jobs that Slurm shows."""

    def __init__(self, rests: AtRest) -> None:
        self._rests = rests
        #: Job -> its last starts, s; and the last start whose end was seen.
        self._took_s: dict[str, list[float]] = {}
        self._ended: dict[str, datetime] = {}
        self._now: dict[str, _Start] = {}
        self._unshown_since: dict[str, datetime] = {}
        #: Node -> when it was last repaired or booted: earlier losses no longer explain anything.
        self._renewed: dict[str, datetime] = {}

    def note(self, life: JobSteps, shown: SlurmJob, listening_since: datetime | None) -> None:
        """Records that the life makes steps. Its start counts if senders were heard all the time; otherwise
        its first step may have been missed."""
        started, name = shown.start_at, shown.id
        if started is None or self._ended.get(name) == started:
            return
        self._ended[name] = started
        if listening_since is None or listening_since > started:
            return
        followed = self._now.get(name)
        if followed is not None and followed.at == started and followed.losses:
            return
        ended = life.at[(life.number >= 0) & (life.at > started.timestamp())]
        took_s = float(ended.min()) - started.timestamp()
        self._took_s[name] = [*self._took_s.get(name, ()), took_s][-STARTS_KEPT:]

    def stuck(self, given: TickInput, slurm: SlurmSnapshot) -> Iterator[Finding]:
        """Nodes that keep a job from its first step. `slurm`: the present snapshot."""
        self._forget(slurm.jobs, given.now)
        lives = {life.job: life for life in given.steps.jobs()}
        judged = (slurm.whole(name) for name in self._took_s)
        starting = [shown for shown in judged if shown is not None and _starts(shown, lives.get(shown.id))]
        self._now = {shown.id: self._followed(shown, given) for shown in starting}
        for shown in starting:
            start = self._now[shown.id]
            if start.blamed_at is not None and given.now - start.blamed_at < BLAMED_AGAIN:
                continue
            if (found := self._blame(shown, start, given)) is not None:
                start.blamed_at = given.now
                yield found

    def forget(self, node: str, since: datetime) -> None:
        self._renewed[node] = since

    def pack(self) -> dict[str, bytes]:
        # Before the first start there is no data, and nothing must replace the stored data.
        return {STARTS: msgspec.json.encode(self._took_s)} if self._took_s else {}

    def load(self, packed: bytes) -> None:
        """Raises ValueError."""
        took_s = msgspec.json.decode(packed, type=dict[str, float | list[float]])
        # An earlier version stored only the longest.
        self._took_s = {job: last if isinstance(last, list) else [last] for job, last in took_s.items()}

    def _forget(self, jobs: Collection[str], now: datetime) -> None:
        unshown = [name for name in self._took_s | self._ended if name not in jobs]
        self._unshown_since = {name: self._unshown_since.get(name, now) for name in unshown}
        for name, since in self._unshown_since.items():
            if now - since > UNSHOWN:
                self._took_s.pop(name, None)
                self._ended.pop(name, None)

    def _followed(self, shown: SlurmJob, given: TickInput) -> _Start:
        """The start, with what its nodes have lost so far."""
        start, at = self._now.get(shown.id), shown.start_at or given.now
        if start is None or start.at != at:
            start = _Start(at)
        losses = start.losses | reported_losses(given, shown.nodes)
        start.losses = {
            node: report
            for node, report in losses.items()
            if node not in self._renewed or report.at > self._renewed[node]
        }
        return start

    def _blame(self, shown: SlurmJob, start: _Start, given: TickInput) -> Finding | None:
        begun = max(start.at, given.listening_since or given.now)
        lasts_s = (given.now - begun).total_seconds()
        if lasts_s <= LEAST_S or given.heard_at is None or given.now - given.heard_at > HEARD:
            return None
        ports = ports_down(given.telemetry, shown.nodes, given.now, begun)
        lost = ports | start.losses
        reports = {
            node: report
            for node, report in lost.items()
            if node in ports or fault_is(report.fault, Trait.may_stop_work)
        }
        if len(reports) != 1:
            return None
        (node,) = reports
        blocked = are_blocked(given.telemetry, node, shown.nodes, given.now)
        if not blocked and lasts_s <= TIMES * self._usual_s(shown.id):
            return None
        # A start that computes is not stuck.
        if self._rests(given.telemetry, shown, given.now) is False:
            return None
        stop = Stop(
            job=Component(cluster=given.steps.cluster, job=shown.id),
            key=f"{shown.restarts}|start",
            begun=begun,
            text=self._text(shown, begun, lasts_s, blocked=blocked),
            reports=reports,
            lost=lost,
            confidence=0.8,
        )
        return blamed_node(stop, given)

    def _usual_s(self, job: str) -> float:
        took_s = sorted(self._took_s[job])
        return took_s[len(took_s) // 2]

    def _text(self, shown: SlurmJob, begun: datetime, lasts_s: float, *, blocked: bool) -> Said:
        usual_s = self._usual_s(shown.id)
        words = say(
            "detection.no_first_step", job=shown.id, time=f"{begun:%H:%M:%S}", lasts=lasts_s, usual=usual_s
        )
        return joined((words, say("detection.processes_blocked")), "semicolon") if blocked else words


def _starts(shown: SlurmJob, life: JobSteps | None) -> bool:
    """Whether Slurm shows the job running while this life has made no step."""
    if shown.state != "RUNNING" or "COMPLETING" in shown.flags or shown.start_at is None:
        return False
    return life is None or not is_of_life(life, shown)
