"""The tick's thread of the detector: samples in, findings out, without ever delaying the walk."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from healer.detection.tick import TICK_S, Senses
from healer.model import Detections, Loss, LossReason, Ruleset, SlurmSnapshot
from healer.model.detection import is_due
from healer.model.telemetry import Report, StepBatch
from healer.observations import NodePicture, Picture
from healer.observations.report_order import BACK_S, ClockStepped
from healer.observations.telemetry_windows import Counts
from healer.ports.clock import Clock
from healer.ports.measurements import Samples, TrendBook
from healer.ports.signal_stores import LossBook
from healer.ports.transactions import LedgerAway
from healer.text import NO_WORDS, say

log = structlog.get_logger()

WINDOWS = "windows"
_DROP_WORDS = {
    LossReason.late: say("processes.drops_late"),
    LossReason.out_of_order: say("processes.drops_order"),
    LossReason.series_limit: say("processes.drops_room"),
}


class Drops:
    """Drops of one cluster. `report` never raises, because the windows matter more."""

    def __init__(self, book: LossBook, cluster: str) -> None:
        self._book, self._cluster = book, cluster
        self._reported: dict[LossReason, int] = {}

    def begin(self, counts: Counts) -> None:
        """`counts` of windows rebuilt from the store: what those passed over was counted when it arrived, or
        is from before a repair and no loss."""
        self._reported = self._by_reason(counts)

    @staticmethod
    def _by_reason(counts: Counts) -> dict[LossReason, int]:
        return {
            LossReason.late: counts.late,
            LossReason.out_of_order: counts.out_of_order,
            LossReason.series_limit: counts.dropped,
        }

    def report(self, counts: Counts, now: datetime) -> None:
        """`counts` grow while the windows live, and begin at 0 with new ones."""
        found = self._by_reason(counts)
        if any(count < self._reported.get(reason, 0) for reason, count in found.items()):
            self._reported = {}
        losses = [
            Loss(
                cluster=self._cluster,
                source=WINDOWS,
                reason=reason,
                count=count - self._reported.get(reason, 0),
                first_seen=now,
                last_seen=now,
                example=_DROP_WORDS[reason],
            )
            for reason, count in found.items()
            if count > self._reported.get(reason, 0)
        ]
        if not losses:
            return
        try:
            self._book.add(losses)
        except Exception as error:  # the database is away: it is reported the next time
            log.warning("count of dropped samples not stored", error=str(error)[:200])
            return
        self._reported = found


#: Samples are read more often than they are evaluated: reading them all at once would delay the tick.
READ_S = 1.0
#: If a reading has fewer rows than this, there is nothing more to read.
FEW = 1000
#: How long one reading, and a rebuild, may last: a sender that sends more than can be read must not stop
#: both.
READ_ON_S = 2.0
REBUILD_S = 300.0
#: Called with the data read, before it is evaluated: the recorder.
Note = Callable[[Sequence[Report], Sequence[StepBatch], datetime], None]

Chunk = tuple[list[Report], list[StepBatch]]
#: (rules, Slurm snapshot, the store's rows, now) -> those rows, with the data that they lack in between.
Warmed = Callable[[Ruleset, SlurmSnapshot | None, Iterator[Chunk], datetime], Iterator[Chunk]]


def as_stored(
    _rules: Ruleset, _slurm: SlurmSnapshot | None, stored: Iterator[Chunk], _now: datetime
) -> Iterator[Chunk]:
    """Without a Prometheus-compatible server: only the store's rows."""
    return stored


#: How long to wait after an error (the database does not answer, one of our rules fails).
PAUSE_S = 5.0
#: One failed tick is a hiccup of the database; this many in a row are shown to people.
FAILURES = 2

#: How often the data of forecasts is stored, besides at the end.
KEEP_TRENDS = timedelta(hours=1)
#: How often the parts of GPUs are looked up.
KNOW_PARTS = timedelta(minutes=5)

#: Ticks are logged this often.
LOG_S = 60.0


class TickPace:
    """What the ticks of the last minute were like."""

    def __init__(self, begun: datetime) -> None:
        self._begun = begun
        self._ticks = self._reports = 0
        self._oldest: datetime | None = None
        self._lag_s = self._took_s = 0.0

    def read(self, reports: Sequence[Report]) -> None:
        self._reports += len(reports)
        if reports:
            oldest = min(report.arrived_at for report in reports)
            self._oldest = oldest if self._oldest is None else min(oldest, self._oldest)

    def ticked(self, begun: datetime, done: datetime) -> dict[str, float] | None:
        """What to log, once a minute: the longest time from arrival to the end of the tick that looked at it,
        and the longest tick."""
        self._ticks += 1
        self._took_s = max(self._took_s, (done - begun).total_seconds())
        if self._oldest is not None:
            self._lag_s = max(self._lag_s, (done - self._oldest).total_seconds())
        self._oldest = None
        if (done - self._begun).total_seconds() < LOG_S:
            return None
        figures = {"ticks": self._ticks, "reports": self._reports, "lag_s": round(self._lag_s, 3)}
        figures["took_s"] = round(self._took_s, 3)
        self._begun, self._ticks, self._reports, self._lag_s, self._took_s = done, 0, 0, 0.0, 0.0
        return figures


@dataclass(frozen=True, kw_only=True)
class SensesParts:
    """What the ticks work with.

    `make` gives fresh senses and a reader that begins with the last 15 minutes: at the start and after an
    error. `prove` says why the rules do not do what their cases say, nothing when they do.
    """

    rules: Callable[[], Ruleset]
    prove: Callable[[], str]
    make: Callable[[Ruleset], tuple[Senses, Samples]]
    picture: Picture
    clock: Clock
    note: Note | None = None
    warmed: Warmed = as_stored
    drops: Drops | None = None
    trends: TrendBook | None = None


class SensesLoop:
    """Reads samples, ticks, and keeps what was found until the walk fetches it with `heard`."""

    def __init__(self, parts: SensesParts) -> None:
        self._parts, self._picture, self._clock = parts, parts.picture, parts.clock
        now = self._clock.now()
        self._proven = False
        self._refused: str | None = None
        self._trends_at, self._parts_at = now, now - KNOW_PARTS
        #: Why nothing is looked for, for people; empty while all is well.
        self.problem = NO_WORDS
        self._failed = 0
        self._found: list[Detections] = []
        self._lock = threading.Lock()
        self._senses: Senses | None = None
        self._samples: Samples | None = None
        self._ticked: datetime | None = None
        self._pace = TickPace(now)

    def heard(self) -> Detections | None:
        """All that was found since the last call, as one. Called by the walk's thread."""
        with self._lock:
            found, self._found = self._found, []
        if not found:
            return None
        findings = tuple(finding for sensed in found for finding in sensed.findings)
        return Detections(at=found[-1].at, findings=findings, clear_since=found[-1].clear_since)

    def run(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            try:
                self.once()
            except Exception as error:
                # Whatever the error was: windows are rebuilt from the store, and the walk continues
                # meanwhile.
                log.exception("tick failed, rebuilding metric windows")
                self._failed += 1
                if self._failed >= FAILURES:
                    why = f"{type(error).__name__}: {str(error)[:300]}"
                    self.problem = say("processes.tick_fails", why=why)
                self._senses = None
                stopped.wait(PAUSE_S)
            stopped.wait(READ_S)
        self._keep_trends(self._clock.now())

    def once(self) -> None:
        """Reads new data, and ticks when it is time."""
        rules = self._parts.rules()
        if not self._may_look(rules):
            return
        if self._senses is None or self._samples is None or not self._senses.follow(rules):
            self._senses, self._samples = self._rebuild(rules)
        try:
            self._look(self._senses, self._samples)
        except ClockStepped as error:
            # No window, hold or age of a time that has not come yet says anything.
            log.warning("clock went backwards, rebuilding metric windows", error=str(error))
            self._senses = self._ticked = None

    def _look(self, senses: Senses, samples: Samples) -> None:
        slurm = self._picture.slurm
        now = self._read(senses, samples, slurm)
        if self._ticked is not None and (now - self._ticked).total_seconds() < TICK_S:
            self._glance(senses, slurm, now)
            return
        self._ticked = now
        if is_due(self._parts_at, KNOW_PARTS, now):
            self._parts_at = now
            senses.know_parts(self._picture)
        if is_due(self._trends_at, KEEP_TRENDS, now):
            self._keep_trends(now)
        if not senses.has_samples:
            self._well()
            return
        sensed = senses.tick(
            slurm, now, self._picture.watched, dict(self._picture.node_reports), self._picture.faults
        )
        self._well()
        with self._lock:
            self._found.append(sensed)
        figures = self._pace.ticked(now, self._clock.now())
        if figures is not None:
            log.info("ticks", **figures, slow_clocks=senses.telemetry.slow_clocks)
            if self._parts.drops is not None:
                self._parts.drops.report(senses.telemetry.counts, now)

    def _glance(self, senses: Senses, slurm: SlurmSnapshot | None, now: datetime) -> None:
        """Between two ticks: a link that was lost waits for none."""
        node_reports = dict(self._picture.node_reports)
        sensed = senses.tick_early(slurm, now, node_reports) if node_reports else None
        if sensed is not None:
            with self._lock:
                self._found.append(sensed)

    def _read(self, senses: Senses, samples: Samples, slurm: SlurmSnapshot | None) -> datetime:
        """Processes new data, up to now; returns the time of the last reading."""
        begun = self._clock.now()
        while True:
            reports, batches = samples.new()
            now = self._clock.now()
            if self._ticked is not None and (self._ticked - now).total_seconds() > BACK_S:
                raise ClockStepped(f"it is {now:%H:%M:%S} UTC, and the last look was {self._ticked:%H:%M:%S}")
            if self._parts.note is not None and (reports or batches):
                self._parts.note(reports, batches, now)
            self._pace.read(reports)
            senses.renew(self._nodes(), now)
            senses.take(reports, batches, slurm, now)
            if len(reports) + len(batches) < FEW or (now - begun).total_seconds() >= READ_ON_S:
                return now

    def _keep_trends(self, now: datetime) -> None:
        """The data of forecasts takes days to learn again. A database that does not answer only delays it."""
        if self._parts.trends is None or self._senses is None:
            return
        self._trends_at = now
        try:
            self._parts.trends.write(self._senses.pack(), now)
        except LedgerAway as error:
            log.warning("trends not saved", why=str(error))

    def _well(self) -> None:
        self.problem, self._failed = NO_WORDS, 0

    def _nodes(self) -> list[NodePicture]:
        """In one step: the walk's thread adds nodes meanwhile."""
        return list(self._picture.nodes.values())

    def _may_look(self, rules: Ruleset) -> bool:
        """Rules are proven before anything is looked for with them; kernel lines are walked meanwhile.

        Later sets come proven: changed files are taken in no other way.
        """
        if not self._proven and rules.version != self._refused:
            why = self._parts.prove()
            self._proven = not why
            self._refused = rules.version if why else None
            self.problem = say("processes.rules_unproven", why=why) if why else NO_WORDS
        return self._proven

    def _rebuild(self, rules: Ruleset) -> tuple[Senses, Samples]:
        """New senses with full windows: from the store, and what that lacks from other sources."""
        begun, rows = self._clock.now(), 0
        senses, samples = self._parts.make(rules)
        if self._parts.trends is not None and (lost := senses.load(self._parts.trends.read())):
            log.warning("trends reset, saved state unreadable", rules=lost)
        stored = self._stored(samples, begun)
        for reports, batches in self._parts.warmed(rules, self._picture.slurm, stored, begun):
            now = self._clock.now()
            senses.renew(self._nodes(), now)
            senses.rebuild(reports, batches, self._picture.slurm, now)
            rows += len(reports) + len(batches)
        if self._parts.drops is not None:
            self._parts.drops.begin(senses.telemetry.counts)
        took_s = (self._clock.now() - begun).total_seconds()
        log.info("metric windows rebuilt", rows=rows, took_s=round(took_s, 3))
        return senses, samples

    def _stored(self, samples: Samples, begun: datetime) -> Iterator[Chunk]:
        """The store's rows. While one part is processed, the database fetches the next."""
        with ThreadPoolExecutor(1, thread_name_prefix="samples") as reader:
            coming = reader.submit(samples.new)
            while True:
                reports, batches = coming.result()
                late = (self._clock.now() - begun).total_seconds() >= REBUILD_S
                last = late or len(reports) + len(batches) < FEW
                if not last:
                    coming = reader.submit(samples.new)
                yield reports, batches
                if last:
                    return
