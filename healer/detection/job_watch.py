"""The pace of one life of a job, and how long it may go without a step before it counts as stuck."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from healer.detection.protocol import AGAIN_AFTER
from healer.detection.standstill import Standstill
from healer.model import NodeReport
from healer.model.faults import Trait, fault_is
from healer.observations.steps import JobSteps

#: Gaps between ends of steps that are needed before a job can be called stuck. With fewer, its pace is the
#: longest of them, which only suffices together with a loss on a node, and after this time.
GAPS_LEAST, YOUNG_S = 8, 60.0


class Patience(NamedTuple):
    """How long a job may make no step: this many of its median gaps, at least `least_s`, and this many of its
    longest pauses, which add at most `pause_s`: one long outage must not make healer blind for the job's
    life."""

    gaps: float
    least_s: float
    pauses: float
    pause_s: float


#: Ranks wait in a collective. Shorter than NCCL's ten minutes, but long enough for a rank that compiles or
#: collects garbage.
SURE = Patience(5.0, 60.0, 2.0, 150.0)
#: No rank reports that it waits; a checkpoint or an evaluation looks the same.
UNSURE = Patience(10.0, 180.0, 3.0, 400.0)
#: One of its nodes has lost something: the node is taken out, and the job requeued.
STOPPED = Patience(3.0, 20.0, 1.5, 150.0)
#: One of its nodes has lost a link, and the job made at most this many steps since: as soon as a step is half
#: a gap overdue, and at least this. With a flapping link a job continues.
AT_ONCE_S, AT_ONCE_STEPS, LINK_GAPS = 2.0, 1, 1.5
#: The job made more steps: only when its ranks would have reported a checkpoint or an evaluation, and only
#: for a link lost shortly before the last step arrived.
LINK_S, LINK_BEFORE = 12.0, timedelta(seconds=60)
#: A gap above this quantile of the job's reporting gaps is overdue; with fewer gaps, `SENDS_S` is assumed.
IN_TURN, NEWS_LEAST = 0.9, 8
#: The senders' interval.
SENDS_S = 5.0
#: Reported sooner than `AGAIN_AFTER` if other ranks are missing; and twice if the GPUs are quiet too, because
#: two such looks prove a hang.
CHANGED_AFTER, LOOKS, LOOKS_APART = timedelta(seconds=30), 2, timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class _Reported:
    """The step at which the job was reported as stuck, the ranks missing then, and when. `quiet`: when its
    GPUs were reported as quiet too."""

    step: int
    missing: tuple[int, ...]
    at: datetime
    quiet: tuple[datetime, ...] = ()


@dataclass(slots=True, eq=False)
class JobWatch:
    """The state followed for one life of a job."""

    job: JobSteps
    rewound: int
    newest: int = -1
    #: When the newest step was received.
    moved_at: datetime | None = None
    usual_s: float = float("nan")
    longest_s: float = 0.0
    #: `usual_s` is from fewer than `GAPS_LEAST` steps, and not from an earlier life.
    is_young: bool = False
    #: The last steps before reported hangs.
    hung_at: deque[int] = field(default_factory=lambda: deque(maxlen=16))
    reported: _Reported | None = None
    #: When a node was last reported as the cause of this standstill.
    blamed_at: datetime | None = None

    def follow(self, now: datetime) -> None:
        job = self.job
        if job.newest == self.newest:
            return
        if self.reported is not None:
            self.hung_at.append(self.reported.step)
        self.newest, self.moved_at, self.reported = job.newest, min(job.news_at or now, now), None
        gaps = self._gaps()
        if len(gaps) >= GAPS_LEAST:
            self.usual_s, self.is_young = float(np.median(gaps)), False
            self.longest_s = max(self.longest_s, float(gaps.max()))
        elif len(gaps) and (self.is_young or not self.usual_s > 0):
            self.usual_s, self.is_young = float(gaps.max()), True

    def _gaps(self) -> NDArray[np.float64]:
        """(k,) s between the ends of steps, without hangs, which are not the job's own pauses."""
        rows = np.flatnonzero((self.job.number >= 0) & np.isfinite(self.job.at))
        rows = rows[np.argsort(self.job.number[rows])]
        return np.diff(self.job.at[rows])[~np.isin(self.job.number[rows[:-1]], self.hung_at)]

    def limit_s(self, stand: Standstill) -> float | None:
        """Seconds after which it counts as stuck; None: its ranks' reports do not show that."""
        if not stand.is_reported:
            return self.after_s(UNSURE)
        if stand.all_between:
            return None
        waits = bool(stand.waits.any()) and not stand.only_between
        return self.after_s(SURE if waits else UNSURE)

    def after_s(self, patience: Patience) -> float:
        """Seconds without a step that this patience allows the job."""
        gaps, least_s, pauses, pause_s = patience
        return max(least_s, gaps * self.usual_s, min(pauses * self.longest_s, least_s + pause_s))

    def reports_to_blame(
        self, reports: Mapping[str, NodeReport], begun: datetime, stalled_s: float
    ) -> dict[str, NodeReport]:
        """Those losses that may explain why it has made no step for so long."""
        news = self.job.news_s
        news_s = float(np.quantile(news, IN_TURN, method="higher")) if len(news) >= NEWS_LEAST else SENDS_S
        overdue_s = LINK_GAPS * max(self.usual_s, news_s)
        if stalled_s <= overdue_s:
            return {}
        stopped = stalled_s > self.after_s(STOPPED)
        return {
            node: report
            for node, report in reports.items()
            if (stopped or not fault_is(report.fault, Trait.may_stop_work))
            and (
                (stalled_s > LINK_S and report.at >= begun - LINK_BEFORE)
                or self._stopped_by(report, begun + timedelta(seconds=overdue_s))
            )
        }

    def _stopped_by(self, report: NodeReport, overdue_at: datetime) -> bool:
        """The job was not stuck yet when the loss was reported, and made hardly a step since."""
        ended_at = self.job.at[self.job.number >= 0]
        steps = np.count_nonzero(ended_at > report.at.timestamp())
        return report.at <= overdue_at and bool(steps <= AT_ONCE_STEPS)

    def is_due(self, stand: Standstill, now: datetime) -> bool:
        """Whether to report it now; True counts as reported."""
        missing, last = tuple(stand.named.tolist()), self.reported
        if last is not None:
            after = CHANGED_AFTER if missing and missing != last.missing else AGAIN_AFTER
            if now - last.at < after:
                return False
        self.reported = _Reported(self.newest, missing, now, last.quiet if last is not None else ())
        return True

    def look_is_due(self, now: datetime) -> bool:
        """Whether GPUs that are quiet now count as one more look."""
        seen = self.reported.quiet if self.reported is not None else ()
        return self.reported is not None and len(seen) < LOOKS and (not seen or now - seen[-1] >= LOOKS_APART)

    def note_quiet(self, now: datetime) -> None:
        if self.reported is not None:
            self.reported = replace(self.reported, quiet=(*self.reported.quiet, now))

    def inherit(self, before: "JobWatch") -> None:
        """A restarted job keeps the pace of its earlier life until it has shown its own."""
        self.usual_s, self.longest_s, self.is_young = before.usual_s, before.longest_s, before.is_young
