"""Records without ever delaying the walk and the ticks: a full queue loses entries and counts them."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

import structlog

from healer.model import Loss, LossReason, Observation, Reference, SlurmSnapshot
from healer.model.detection import is_due
from healer.model.telemetry import Report, StepBatch
from healer.ports.clock import Clock
from healer.ports.signal_stores import LossBook
from healer.recordings.recorder import Recorder
from healer.text import say

log = structlog.get_logger()

SOURCE = "recorder"
#: Observations, reports and batches that may wait: a minute and more of 1,250 nodes, some 60 MB of reports.
ROOM = 20_000
#: How often the writer looks for frames that are due, and how often losses are reported.
REST_S, TELL_EVERY = 1.0, timedelta(minutes=1)


class Folder(Protocol):
    """`rest` writes frames that are due, and returns how many lines the disk has refused since."""

    def rest(self) -> int: ...
    def close(self) -> None: ...


class Recording:
    """A queue between the detector's threads and one writer's thread, which feeds the recorder."""

    def __init__(
        self,
        recorder: Recorder,
        folder: Folder,
        *,
        book: LossBook,
        cluster: str,
        clock: Clock,
        room: int = ROOM,
    ) -> None:
        self._recorder, self._folder = recorder, folder
        self._book, self._cluster, self._clock, self._room = book, cluster, clock, room
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._size = 0
        self._woken = threading.Condition()
        self._lost = 0  # since the writer last heard
        self._unreported = 0  # since people last heard
        self._reported_at = clock.now()

    # --- from the detector's threads

    def note(
        self,
        batch: Sequence[Observation],
        snapshot: SlurmSnapshot | None,
        now: datetime,
        *,
        facts: Mapping[str, Mapping[str, str]],
        references: Mapping[str, Reference],
    ) -> None:
        """As `Recorder.note`."""
        # The picture's own dictionaries keep changing while these wait.
        kept_facts = {node: dict(values) for node, values in facts.items() if values}
        job = partial(
            self._recorder.note, batch, snapshot, now, facts=kept_facts, references=dict(references)
        )
        self._put(len(batch), job)

    def note_samples(self, reports: Sequence[Report], batches: Sequence[StepBatch], now: datetime) -> None:
        """As `Recorder.note_samples`."""
        self._put(len(reports) + len(batches), partial(self._recorder.note_samples, reports, batches, now))

    def _put(self, count: int, job: Callable[[], None]) -> None:
        with self._woken:
            if self._size and self._size + count > self._room:
                self._lost += count
                return
            self._waiting.append((count, job))
            self._size += max(1, count)
            self._woken.notify()

    # --- the writer's thread

    def run(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            self.once(REST_S)
        while self._waiting:
            self.once(0)
        self._folder.close()

    def once(self, wait_s: float) -> None:
        """Writes what waits; then, or after `wait_s` of nothing, frames that are due."""
        with self._woken:
            if not self._waiting:
                self._woken.wait(wait_s)
            jobs, self._waiting = self._waiting, deque()
            self._size, lost, self._lost = 0, self._lost, 0
        for count, job in jobs:
            try:
                job()
            except Exception:  # nothing that cannot be written may stop what follows
                log.exception("entry cannot be recorded", entries=count)
                lost += count
        lost += self._folder.rest()
        if lost:
            self._unreported += lost
            self._recorder.note_lost(lost, self._clock.now())
        self._report_lost()

    def _report_lost(self) -> None:
        now = self._clock.now()
        if not self._unreported or not is_due(self._reported_at, TELL_EVERY, now):
            return
        loss = Loss(
            cluster=self._cluster,
            source=SOURCE,
            reason=LossReason.not_recorded,
            count=self._unreported,
            first_seen=now,
            last_seen=now,
            example=say("processes.not_recorded"),
        )
        try:
            self._book.add([loss])
        except Exception as error:  # the database is away: it is reported the next time
            log.warning("count of unrecorded entries not stored", error=str(error)[:200])
            return
        self._unreported, self._reported_at = 0, now
