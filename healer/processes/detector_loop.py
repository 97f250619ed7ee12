"""The detector's loop: wake, walk, poke. One per cluster; it commits on the connection with its lock."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
import structlog

from healer.detection.protocol import WalkInput
from healer.detection.readings import read_all
from healer.detection.reported import note_reports, recall_links
from healer.engine.walk import walk
from healer.incidents.shared import outage_of
from healer.model import AuditRecord, Detections, Observation, ObservationKind, Ruleset, Trial
from healer.model.detection import ALERT_STAYS_MAX, is_due
from healer.model.faults import OUTAGES
from healer.model.gate import CLOCKS_DIFFER
from healer.observations import Picture
from healer.observations.fault_history import KEPT
from healer.observations.node_picture import DELAY_MAX
from healer.ports.clock import Clock
from healer.ports.scheduling import Snapshots
from healer.ports.signal_stores import Inbox
from healer.ports.transactions import Ledger, LedgerAway, Poke
from healer.processes.recording_queue import Recording
from healer.telling.news import blind_page

log = structlog.get_logger()

#: How much of the inbox rebuilds the picture after a restart.
REBUILD = timedelta(minutes=15)
BATCH = 5000
#: The backstop when no notification came, and the pace of what depends on time alone.
TICK_S = 1.0
#: A walk that comes this long after the previous one was delayed.
HELD_UP = timedelta(seconds=10)
#: How slurmctld does matters after a minute: it is asked for this often.
CONTROLLER_EVERY = timedelta(seconds=5)
#: The first runs of new or changed rules are counted this often.
TRIALS_EVERY = timedelta(seconds=5)


@dataclass(frozen=True, kw_only=True)
class DetectorParts:
    """What a detector works with. `wait(seconds)` returns early when the inbox or Slurm's picture changed;
    `beat` is called after each walk that went through; `cleared` are nodes that were returned, and when."""

    cluster: str
    ledger: Ledger
    inbox: Inbox
    snapshots: Snapshots
    rules: Callable[[], Ruleset]
    clock: Clock
    wait: Callable[[float], None]
    poke: Poke
    cleared: Iterable[tuple[str, datetime]] = ()
    recorder: Recording | None = None
    beat: Callable[[], None] = lambda: None


class Detector:
    """One detector. `heard` returns what the ticks found since the last call, `blind` why they see nothing
    (empty: they do)."""

    def __init__(self, parts: DetectorParts) -> None:
        self.heard: Callable[[], Detections | None] = lambda: None
        self.blind: Callable[[], str] = lambda: ""
        self._parts = parts
        self.cluster, self.ledger, self.clock = parts.cluster, parts.ledger, parts.clock
        now = self.clock.now()
        self._reported_problem = ""
        self._noted, self._noted_at = "", now
        self._walked_at = now
        self._trials: list[Trial] = []
        self.picture = Picture(self.cluster, watching_since=now)
        self._controller_at = now - CONTROLLER_EVERY
        self._show()
        for node, at in parts.cleared:
            self.picture.clear(node, at)
        self.picture.history.load(self.ledger.bursts(now - KEPT))
        self.picture.load_inventories(self.ledger.inventories())
        with self.ledger.transaction() as tx:
            # Before the first walk looks for drifts: without them it would end those that are open.
            self.picture.references = {reference.kind: reference for reference in tx.references()}
            # It must blame no node for what an outage explains.
            outages = (incident for incident in tx.open_incidents() if incident.is_open)
            self.picture.silence.outages = tuple(
                outage_of(incident) for incident in outages if incident.fault in OUTAGES
            )
        self._rebuild(now)

    def _rebuild(self, now: datetime) -> None:
        """Observations that were already walked only refresh the picture; heartbeats older than the restart
        do not count."""
        inbox = self._parts.inbox
        stored = (*inbox.alerts(now - ALERT_STAYS_MAX), *inbox.since(now - REBUILD, lines=now - DELAY_MAX))
        heard = [_as_read(seen, now) for seen in stored]
        rules = self._parts.rules()
        self.picture.update(heard, rules.topology, rebuild=True)
        # A job that is stuck by what its node lost before the restart may be found only after it.
        lines = [seen for seen in heard if seen.line and not self._is_history(seen)]
        lines.sort(key=lambda seen: (seen.arrived_at, seen.event_at, seen.digest))
        nodes = self.picture.slurm.nodes if self.picture.slurm is not None else None
        look = WalkInput(rules, self.picture, now, read_all(rules, lines, nodes))
        note_reports(look)
        recall_links(look)
        log.info("fleet state rebuilt", cluster=self.cluster, signals=len(heard))

    def _is_history(self, seen: Observation) -> bool:
        node = seen.component.node
        return node is None or self.picture.node(node).is_history(seen)

    def _show(self) -> None:
        snapshot, now = self._parts.snapshots.latest(self.cluster), self.clock.now()
        if snapshot is not None:
            self.picture.show(snapshot, now)
        if is_due(self._controller_at, CONTROLLER_EVERY, now):
            self.picture.controller, self._controller_at = self._parts.snapshots.controller(self.cluster), now

    def run(self, stopped: Callable[[], bool]) -> None:
        while not stopped():
            more = self.once()
            if not more:
                self._parts.wait(self._rest_s())

    def _rest_s(self) -> float:
        settles_at = self.picture.settles_at
        if settles_at is None:
            return TICK_S
        return min(TICK_S, max(0.0, (settles_at - self.clock.now()).total_seconds()))

    def once(self) -> bool:
        """One walk. True when the inbox holds more than one batch."""
        batch: list[Observation] = self._parts.inbox.unconsumed(BATCH)
        self._show()
        now = self.clock.now()
        batch = [_as_read(seen, now) for seen in batch]
        self._note_hearing(batch, now)
        rules = self._rules(now)
        if (recorder := self._parts.recorder) is not None:
            facts = {node.name: node.facts for node in self.picture.nodes.values()}
            references = self.picture.references
            recorder.note(batch, self.picture.slurm, now, facts=facts, references=references)
        self._walk(rules, batch, now, self.heard())
        problem = self.blind()
        if problem and problem != self._reported_problem:
            with self.ledger.transaction() as tx:
                tx.queue_message(blind_page(self.cluster, problem, now))
        self._reported_problem = problem
        self._parts.beat()
        return len(batch) == BATCH

    def _note_hearing(self, batch: Sequence[Observation], now: datetime) -> None:
        """No node is silent while healer itself does not hear: where a walk has waited for the database, who
        sent meanwhile was perhaps refused, and comes again; or our clock was set."""
        if abs(now - self._walked_at) > HELD_UP:
            self.picture.watching_since = now
        self._walked_at = now
        for seen in batch:
            if seen.kind is ObservationKind.heartbeat and now - seen.arrived_at > CLOCKS_DIFFER:
                self.picture.silence.late[seen.component.node or ""] = now

    def _rules(self, now: datetime) -> Ruleset:
        """Those of now. What changed in them is on record before anything is decided by it."""
        rules = self._parts.rules()
        due = self._trials and is_due(self._noted_at, TRIALS_EVERY, now)
        if due or rules.version != self._noted:
            if rules.version != self._noted:  # an older version may have stored any text that comes back
                self.ledger.rename_texts(rules.digests)
            self._trials = self.ledger.note_texts(rules.texts, rules.guards.trial_runs, now)
            self._noted, self._noted_at = rules.version, now
        return rules

    def _walk(
        self, rules: Ruleset, batch: Sequence[Observation], now: datetime, sensed: Detections | None = None
    ) -> None:
        try:
            started = walk(self.ledger, rules, self.picture, batch, now, sensed)
        except LedgerAway:
            raise
        except Exception:
            if not batch and sensed is None:
                raise
            if sensed is not None:
                # A fault that persists is found again; this must not stop the signals.
                log.exception("batch failed, skipping the tick's findings", findings=len(sensed.findings))
                self._walk(rules, batch, now)
                return
            log.exception("batch failed, processing its signals one by one", signals=len(batch))
            # What fails without any signal is no signal's fault, and ends the process.
            self._walk(rules, [], now)
            for signal in batch:
                self._walk_alone(rules, signal, now)
            return
        if started:
            self._parts.poke(started)

    def _walk_alone(self, rules: Ruleset, signal: Observation, now: datetime) -> None:
        """One bad signal must not stop the others forever: it is consumed and audited."""
        try:
            started = walk(self.ledger, rules, self.picture, [signal], now)
        except LedgerAway:
            raise
        except Exception as error:
            log.exception("signal cannot be processed", digest=signal.digest, kind=signal.kind)
            with self.ledger.transaction() as tx:
                tx.consume([signal])
                tx.audit(
                    AuditRecord(
                        cluster=self.cluster,
                        at=now,
                        actor="healer",
                        verb="signal.set_aside",
                        subject=f"node/{signal.component.node}",
                        data={
                            "digest": signal.digest,
                            "line": signal.line,
                            "why": f"{type(error).__name__}: {error}",
                        },
                    )
                )
        else:
            if started:
                self._parts.poke(started)


def _as_read(seen: Observation, now: datetime) -> Observation:
    """A heartbeat that arrived after it was read has come by an API whose clock is ahead: its node would be
    heard until then."""
    ahead = seen.kind is ObservationKind.heartbeat and seen.arrived_at > now
    return msgspec.structs.replace(seen, arrived_at=now) if ahead else seen
