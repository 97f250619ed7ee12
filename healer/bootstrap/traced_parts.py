"""Traces of a signal from its request to the drain, where the site asks for them: HEALER_TRACES_URL.

Without that setting nothing here runs: each part has the plain object in place of the traced one. Spans of
runs are made of their log.
"""

import atexit
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
import structlog

from healer import __version__
from healer.adapters.postgres.engine import reading
from healer.adapters.postgres.inbox import PostgresInbox
from healer.adapters.postgres.run_rows import logs_of, run_of
from healer.adapters.postgres.tables import incidents, runs
from healer.model import Incident, LogEntry, Run, SlurmCall, StepEvent
from healer.model.detection import KERNEL_LINES, Observation, ObservationKind
from healer.model.vocabulary import Sense
from healer.ports.signal_stores import Arrival, SignalStore
from healer.ports.traces import Span, Traces
from healer.settings import Settings, SettingsError
from healer.text import from_stored, say

log = structlog.get_logger()

#: Keys of spans, in the trace of each signal.
REQUEST, _DECISION = "request", "decision"
#: Signals that may open an incident by themselves. Samples are far too many.
_TRACED = KERNEL_LINES | {ObservationKind.hook, ObservationKind.alert}
_HEARD = frozenset({Sense.kernel, Sense.hook, Sense.alert})
_ENDS = frozenset({StepEvent.done, StepEvent.failed, StepEvent.skipped, StepEvent.undone, StepEvent.held})


def traces_of(settings: Settings, part: str, cluster: str) -> Traces | None:
    """None where the site wants none. SettingsError: the extra is not installed."""
    if settings.traces_url is None:
        return None
    try:
        from healer.adapters.tracing import OtlpTraces
    except ImportError as error:
        raise SettingsError(say("setup.traces_url_extra", error=str(error))) from None
    made = OtlpTraces(settings.traces_url, part, cluster, __version__)
    atexit.register(made.close)
    return made


class TracedSignals:
    """`ports.SignalStore`: from the arrival of a signal to its commit."""

    def __init__(self, store: SignalStore, traces: Traces) -> None:
        self._store, self._traces = store, traces

    def store(self, arrivals: Sequence[Arrival]) -> list[bool]:
        begun, put = time.time_ns(), self._traces.put
        new = self._store.store(arrivals)
        ended = time.time_ns()
        for arrival, is_new in zip(arrivals, new, strict=True):
            seen = arrival.observation
            if is_new and seen.kind in _TRACED:
                trace, arrived = seen.digest, _ns(seen.arrived_at)
                about = {"node": seen.component.node or "", "signal": str(seen.kind)}
                put(Span(trace, REQUEST, "api request", arrived, ended, kind="SERVER", about=about))
                put(Span(trace, "inbox", "inbox commit", begun, ended, REQUEST))
        return new


class TracedInbox(PostgresInbox):
    """The walk of each batch: from its reading to `walked`, which follows the commit."""

    def __init__(self, db: sa.Engine, cluster: str, traces: Traces) -> None:
        super().__init__(db, cluster)
        self._traces = traces
        self._begun, self._batch = 0, list[Observation]()

    def unconsumed(self, limit: int) -> list[Observation]:
        self._begun = time.time_ns()
        self._batch = super().unconsumed(limit)
        return self._batch

    def walked(self) -> None:
        ended, batch = time.time_ns(), self._batch
        self._batch = []
        for seen in batch:
            if seen.kind in _TRACED:
                self._traces.put(Span(seen.digest, "walk", "walk", self._begun, ended, REQUEST))


class _Call(NamedTuple):
    """A call of Slurm; times in nanoseconds since 1970."""

    name: SlurmCall
    begun: int
    ended: int
    failed: str


class TracedRuns:
    """What a worker does for runs, each time it takes one up. `note` is called for each call of Slurm."""

    def __init__(self, db: sa.Engine, traces: Traces) -> None:
        self._db, self._traces = db, traces
        self._own = threading.local()

    def note(self, call: SlurmCall, begun: int, ended: int, failed: str) -> None:
        """Calls outside of a run are not its."""
        calls: list[_Call] | None = getattr(self._own, "calls", None)
        if calls is not None:
            calls.append(_Call(call, begun, ended, failed))

    def driving(self, drive: Callable[[str], None]) -> Callable[[str], None]:
        def traced(run: str) -> None:
            self._own.calls = calls = list[_Call]()
            begun = time.time_ns()
            try:
                drive(run)
            finally:
                self._own.calls = None
                self._show(run, _Drive(begun, time.time_ns(), calls))

        return traced

    def _show(self, name: str, drive: "_Drive") -> None:
        try:
            with reading(self._db) as conn:
                row = conn.execute(sa.select(runs).where(runs.c.id == name)).first()
                if row is None:
                    return
                run, entries = run_of(row), logs_of(conn, [name])[name]
                doc = conn.execute(sa.select(incidents.c.doc).where(incidents.c.id == run.incident)).scalar()
            for span in drive.spans(run, from_stored(doc, Incident) if doc else None, entries):
                self._traces.put(span)
        except Exception:  # a trace that is missing must not fail the run
            log.exception("trace skipped", run=name)


class _Drive(NamedTuple):
    """One time that a worker took up a run, with its calls of Slurm."""

    begun: int
    ended: int
    calls: Sequence[_Call]

    def spans(self, run: Run, incident: Incident | None, entries: Sequence[LogEntry]) -> Iterator[Span]:
        """None where another worker has the run."""
        new = [entry for entry in entries if _ns(entry.at) >= self.begun]
        if not new and not self.calls:
            return
        evidence = incident.evidence if incident is not None else ()
        trace, drive = evidence[0].digest if evidence else run.incident or run.id, f"{run.id}:{self.begun}"
        about = {"run": run.id, "incident": run.incident or "", "node": run.node or "", "rule": run.rule}
        if incident is not None and len(new) == len(entries):
            request = REQUEST if evidence and evidence[0].sense in _HEARD else ""
            opened, decided = _ns(incident.opened), _ns(run.created_at)
            yield Span(trace, _DECISION, _DECISION, opened, decided, request, about=about)
        above = _DECISION if incident is not None else ""
        yield Span(trace, drive, f"run {run.playbook}", self.begun, self.ended, above, about=about)
        steps = list(self._steps(trace, drive, new))
        yield from steps
        for number, call in enumerate(self.calls):
            within = (step.key for step in steps if step.begun <= call.begun <= step.ended)
            name, parent = f"slurm {call.name}", next(within, drive)
            yield Span(
                trace, f"{drive}:{number}", name, call.begun, call.ended, parent, "CLIENT", call.failed
            )

    def _steps(self, trace: str, drive: str, entries: Sequence[LogEntry]) -> Iterator[Span]:
        """Each from the end of the one before it, so with the gate's answer."""
        begun = self.begun
        for entry in entries:
            if entry.event in _ENDS:
                ended, about = _ns(entry.at), {"state": str(entry.event), "attempt": entry.attempt}
                key = f"{entry.run}:{entry.seq}"
                yield Span(trace, key, f"step {entry.step}", begun, ended, drive, about=about)
                begun = ended


def _ns(at: datetime) -> int:
    return int(at.timestamp() * 1e6) * 1000
