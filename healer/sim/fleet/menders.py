"""The menders of the simulated site: healer itself, and three policies that it is compared with.

`Healer` runs the walk and the driver of production. Signals go through the decoders of the API. Between walks
time leaps: while nothing new happens the pause grows, from a second to a quarter of an hour; what is known to
be due (settling, a run's wait, Slurm's next event) is walked at its moment.

The others are simple policies over the same faults, Slurm, jobs and people: no automation, threshold checks,
and draining at the first sign. None of them tests a node before it returns; people bring nodes back in their
working hours.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec
import numpy as np

from healer.model import (
    HARDWARE,
    Detections,
    Incident,
    Observation,
    ObservationKind,
    Rule,
    Ruleset,
    Run,
    RunState,
    SlurmNode,
    SlurmSnapshot,
)
from healer.model.slurm import is_ours
from healer.playbooks.advance import moves_jobs_at_once
from healer.ports.scheduling import Scheduler, SchedulerRefused, SchedulerUnavailable
from healer.recordings.recorder import Recorder
from healer.signals.wire import heartbeat_observations, kernel_log_observations
from healer.sim.fleet.schedule import DAY_S, Fault
from healer.sim.fleet.site import CLUSTER, Site
from healer.sim.loop import Loop
from healer.sim.planted_faults import PCI, TEARDOWN
from healer.sim.sim_slurm import SimScheduler
from healer.sim.stores import MemoryEvidence, SimCommands
from healer.text import say


class Controller:
    """`ports.Scheduler`: the simulated Slurm, which can be made to stop answering."""

    def __init__(self, slurm: SimScheduler) -> None:
        self._slurm = slurm
        self.away = False

    def __getattr__(self, call: str) -> Any:
        if self.away:
            return _unanswered
        return getattr(self._slurm, call)


def _unanswered(*_args: object, **_fields: object) -> Any:
    raise SchedulerUnavailable(say("simulation.slurmctld_silent"), sent=False)


#: Pause between two walks while nothing happens, in seconds: the first, the longest with and without runs.
FIRST_S, LONGEST_AT_WORK_S, LONGEST_S = 1.0, 240.0, 900.0
#: Factor from one pause to the next.
GROWTH = 3.0
#: A waiting run may write its log at each walk: after this many such walks in a row pauses grow anyway.
LONGEST_STREAK = 20
#: Seconds from a kernel line to its arrival: a follower sends at once, over a network.
ON_THE_WAY_S = 0.2
#: Seconds between heartbeats; how many are sent after a leap.
BEAT_S, BEATS_AFTER_LEAP = 10.0, 5
#: Heartbeats of a node begin this long before it falls silent.
NEAR_BEATS_S = 300.0
#: Silence is detected after three missed beats and at least 30 s: walks are due then.
SILENCE_DUE_S = (31.0, 36.0, 41.0)
#: Nodes of a job that log Xid 45 at its end.
TEARDOWN_NODES = 3


def _is_node(_cluster: str, node: str) -> bool:
    return node.startswith("gpu")


def _beat_of(node: str, at: datetime) -> Sequence[Observation]:
    body = {"cluster": CLUSTER, "node": node, "time": at.isoformat()}
    return heartbeat_observations(body, _is_node, at, cluster=CLUSTER).observations


class RecordedBeats:
    """For the recorder, where all nodes send heartbeats: each of them, and each state of Slurm, at its own
    time. The simulation leaps over quiet time without them; a replay would take that for silence, and a node
    that has come back for one that is still away."""

    def __init__(
        self,
        site: Site,
        recorder: Recorder | None,
        senders: Callable[[], list[str]],
        snapshot: Callable[[], SlurmSnapshot | None],
    ) -> None:
        self._recorder = recorder if site.scenario.telemetry.beats == "all" else None
        self._senders, self._snapshot = senders, snapshot
        self._to = site.now
        #: Nodes that send until the next moment at which something happens.
        self._nodes: list[str] = []

    def until(self, now: datetime) -> None:
        """Before anything else of this moment is recorded."""
        if self._recorder is None:
            return
        while self._to + timedelta(seconds=BEAT_S) <= now:
            self._to += timedelta(seconds=BEAT_S)
            beats = [beat for node in self._nodes for beat in _beat_of(node, self._to)]
            self._recorder.note(beats, None, self._to)
        self._recorder.note([], self._snapshot(), now)
        self._nodes = self._senders()


class Healer:
    """`Mender`: healer. Its owner moves the site's clock and calls `turn`."""

    name = "healer"

    def __init__(self, site: Site, rules: Ruleset, recorder: Recorder | None = None) -> None:
        self.site, self.rules, self._recorder = site, rules, recorder
        self.controller = Controller(site.slurm)
        self.loop = Loop(
            CLUSTER,
            site.clock,
            cast(Scheduler, self.controller),
            lambda: self.rules,
            site.nodes,
            self._snapshot,
            evidence=MemoryEvidence(),
            commands=SimCommands(site.clock),
            picture=lambda: self.ledger.snapshot,
        )
        self.ledger, self.picture = self.loop.ledger, self.loop.picture
        self._batch: list[Observation] = []
        #: Findings of the telemetry windows; each is walked by itself.
        self.sensed: list[Detections] = []
        self._beating: set[str] = set(site.names) if site.scenario.telemetry.beats == "all" else set()
        #: No signal arrives. Nodes keep their kernel lines for later; beats and measurements are lost.
        self.deaf = False
        self.recorded_beats = RecordedBeats(site, recorder, self._senders, self._snapshot)
        self._spooled: list[tuple[str, Sequence[str], datetime]] = []
        self._pause_s = FIRST_S
        self._walked_at = self._next_beat = site.now
        self._due = site.now
        self._marks: tuple[object, ...] = ()
        #: Walks in a row that changed something.
        self._streak = 0
        self.walks = self.beats = self.lines = 0
        #: Callbacks of the telemetry windows and of people.
        self.on_fault_near: Callable[[Fault], None] = lambda fault: None
        self.on_fault: Callable[[Fault], None] = lambda fault: None

    def _snapshot(self) -> SlurmSnapshot | None:
        return None if self.controller.away else self.site.snapshot()

    # --- signals of nodes ---

    def expect_fault(self, fault: Fault) -> None:
        self.on_fault_near(fault)
        if fault.way.silent:
            early = max(self.site.now, fault.at - timedelta(seconds=NEAR_BEATS_S))
            self.site.agenda.at(early, lambda: self._listen(fault.node))

    def notice_fault(self, fault: Fault) -> None:
        self._streak = 0
        self.on_fault_near(fault)  # its node may have come back since the fault was expected
        self.on_fault(fault)
        at = self.site.later(ON_THE_WAY_S)
        if fault.way.lines:
            lines = [line.format(pci=PCI[fault.gpu]) for line in fault.way.lines]
            self.site.agenda.at(at, lambda: self._lines(fault.node, lines))
            if fault.way.stops:
                ends = self.site.later(self.site.scenario.job.fails_s)
                self.site.agenda.at(ends, lambda: self._teardown(fault))
        for seconds, line in fault.way.later:
            self.site.agenda.at(self.site.later(ON_THE_WAY_S + seconds), self._line_if_there(fault, line))
        if fault.way.silent:
            self._send_last_beats(fault.node)
            for seconds in SILENCE_DUE_S:
                self.site.agenda.at(self.site.later(seconds), self.wake)
        self.wake()

    def read_line(self, node: str, line: str) -> None:
        self._lines(node, [line])

    def _line_if_there(self, fault: Fault, line: str) -> Callable[[], None]:
        def log() -> None:
            if fault in self.site.active.get(fault.node, ()):
                self._lines(fault.node, [line])

        return log

    def wake(self) -> None:
        """Makes a walk due now."""
        self._due = self.site.now

    def hear(self, observations: Iterable[Observation]) -> None:
        self._batch += observations

    def _lines(self, node: str, lines: Sequence[str]) -> None:
        if not self._reaches(node) and not lines[0].startswith("Kernel panic"):
            return
        if self.deaf:
            self._spooled.append((node, lines, self.site.now))
        else:
            self._hear_lines(node, lines, self.site.now)

    def _hear_lines(self, node: str, lines: Sequence[str], logged: datetime) -> None:
        now = self.site.now
        entries = [{"line": line, "time": logged.isoformat()} for line in lines]
        body: dict[str, Any] = {"cluster": CLUSTER, "node": node, "entries": entries}
        accepted = kernel_log_observations(body, _is_node, now, cluster=CLUSTER, book=self.rules.kernel_lines)
        self.lines += len(lines)
        self.hear(accepted.observations)
        self.wake()

    def _teardown(self, fault: Fault) -> None:
        """Xid 45 on other nodes of the job, as its program ends."""
        job = self.site.snapshot().jobs[self.site.job]
        workers = self.site.workers(job)
        if job.state != "RUNNING" or fault.node not in workers:
            return
        others = [name for name in job.nodes if name in workers and name != fault.node][
            :: max(1, len(workers) // TEARDOWN_NODES)
        ]
        for name in others[:TEARDOWN_NODES]:
            self._lines(name, [TEARDOWN.format(pci=PCI[0])])

    def _listen(self, node: str) -> None:
        self._beating.add(node)
        now = self.site.now
        for number in range(9, 0, -1):
            self._beat(node, now - timedelta(seconds=BEAT_S * number))

    def hush(self, node: str) -> None:
        """Stops heartbeats of the node without making it look silent."""
        if self.site.scenario.telemetry.beats == "near" and node in self._beating:
            self._beating.discard(node)
            self.picture.node(node).beats.clear()

    def _beat(self, node: str, at: datetime) -> None:
        self.hear(_beat_of(node, at))
        self.beats += 1

    def _reaches(self, node: str) -> bool:
        return "unreachable" not in self.site.nodes.faults(node)

    def _senders(self) -> list[str]:
        """Nodes whose heartbeats arrive now."""
        return [] if self.deaf else [node for node in sorted(self._beating) if self._reaches(node)]

    def _send_spooled(self) -> None:
        """What nodes kept while nothing arrived; one that cannot be reached has lost it."""
        spooled, self._spooled = self._spooled, []
        for node, lines, logged in spooled:
            if self._reaches(node):
                self._hear_lines(node, lines, logged)

    def _send_beats(self, now: datetime) -> None:
        if self.deaf or not self._beating:
            return
        gone_s = (now - self._walked_at).total_seconds()
        count = min(BEATS_AFTER_LEAP, int(gone_s // BEAT_S) + (1 if gone_s >= BEAT_S else 0))
        if self._next_beat > now:
            return
        self._next_beat = now + timedelta(seconds=BEAT_S)
        for name in sorted(self._beating):
            if self._reaches(name):
                for number in reversed(range(max(1, count))):
                    self._beat(name, now - timedelta(seconds=BEAT_S * number))

    def _send_last_beats(self, node: str) -> None:
        """It sent to the end, also where no walk took that in."""
        if node in self._beating and not self.deaf:
            for number in reversed(range(BEATS_AFTER_LEAP)):
                self._beat(node, self.site.later(-BEAT_S * number))

    # --- time ---

    def due(self) -> datetime | None:
        return self._due

    def turn(self) -> None:
        """Walks and drives until nothing more is due at this moment."""
        now = self.site.now
        self.recorded_beats.until(now)
        if now < self._due and not self._batch and not self.sensed:
            return
        if not self.deaf:
            self._send_spooled()
        self._send_beats(now)
        batch, self._batch = self._batch, []
        looks, self.sensed = self.sensed or [None], []
        self.loop.look()
        if self._recorder is not None:
            self._record(self._recorder, batch, now)
        self.loop.checkpoints.hear(batch)
        for sensed in looks:
            self.walks += self.loop.walk(batch, sensed)
            batch = []
        self._walked_at = now
        self._plan(now)

    def _record(self, recorder: Recorder, batch: Sequence[Observation], now: datetime) -> None:
        """What this walk sees. Where all nodes send heartbeats, `recorded_beats` has them."""
        if self.site.scenario.telemetry.beats == "all":
            batch = [seen for seen in batch if seen.kind is not ObservationKind.heartbeat]
        recorder.note(batch, self.ledger.snapshot, now, references=self.ledger.tables.references)
        if not batch:
            recorder.note_moment(now)

    def _plan(self, now: datetime) -> None:
        tables = self.ledger.tables
        marks = (len(tables.incidents), len(tables.decisions), sum(map(len, tables.log.values())))
        self._streak = self._streak + 1 if marks != self._marks else 0
        fresh = 0 < self._streak <= LONGEST_STREAK
        self._marks = marks
        self._pause_s = FIRST_S if fresh else self._pause_s * GROWTH
        at_work = any(run.state is RunState.running for run in tables.runs.values())
        self._pause_s = min(self._pause_s, LONGEST_AT_WORK_S if at_work else LONGEST_S)
        due = now + timedelta(seconds=self._pause_s)
        settles = self.picture.settles_at
        self._due = min(due, settles) if settles is not None and settles > now else due

    def owns(self, node: SlurmNode) -> bool:
        return is_ours(node.reason)

    def to_leave(self) -> list[str]:
        """As `api/node_verdicts.py` has it: drained for a fault of the node, by a run that moves jobs."""
        found = []
        for slot in self.ledger.tables.slots.values():
            cause, run = self.incidents.get(slot.incident or ""), self.runs.get(slot.run)
            if slot.drained_at is None or cause is None or run is None or cause.fault_class not in HARDWARE:
                continue
            if moves_jobs_at_once(self.rules.playbooks[run.playbook], run.input):
                found.append(slot.node)
        return found

    # --- for people and the score card ---

    @property
    def incidents(self) -> dict[str, Incident]:
        return self.ledger.tables.incidents

    @property
    def runs(self) -> dict[str, Run]:
        return self.ledger.tables.runs


def with_rules(rules: Ruleset, changed: Mapping[str, Mapping[str, Any]]) -> Ruleset:
    """The rules with other fields in some of them. ValueError: there is no such rule."""
    if unknown := sorted(changed.keys() - rules.by_name.keys()):
        raise ValueError(f"no rule {unknown[0]!r}")
    rows = [msgspec.to_builtins(rule) | dict(changed.get(rule.name, {})) for rule in rules.rules]
    return msgspec.structs.replace(rules, rules=msgspec.convert(rows, tuple[Rule, ...]))


WHO = "operator"
SATURDAY = 5
#: Seconds until `FirstSign` learns of a kernel line or a sensor.
SIGN_S = 1.0


class Nobody:
    """No automation but Slurm's own (a node that does not respond goes DOWN, its job is requeued), and
    people."""

    name = "nobody"

    def __init__(self, site: Site) -> None:
        self.site = site
        self.did = Counter[str]()

    def expect_fault(self, fault: Fault) -> None:
        return None

    def notice_fault(self, fault: Fault) -> None:
        self._people_find(fault)

    def read_line(self, node: str, line: str) -> None:
        return None

    def due(self) -> datetime | None:
        return None

    def turn(self) -> None:
        return None

    def owns(self, node: SlurmNode) -> bool:
        return node.reason_user == WHO

    def to_leave(self) -> list[str]:
        return []

    # --- people ---

    def _people_find(self, fault: Fault) -> None:
        """People look for what stops the job at once; they notice anything else by chance."""
        if not (fault.way.hardware or fault.way.slower > 1) or fault.way_name == "unplanned-work":
            return
        seconds = fault.find_s if self.site.records[fault.id].stopped_job else fault.notice_s

        def found() -> None:
            if fault in self.site.active.get(fault.node, ()) and not self.site.slurm.node(fault.node).drain:
                self.did["found by hand"] += 1
                self._take_out(fault.node, "found by hand", retry_s=0)

        self.site.agenda.at(self.site.later(seconds), found)

    def _take_out(self, node: str, why: str, *, retry_s: float | None, start: bool = False) -> None:
        """Drains the node. The large job on it is requeued after `retry_s`; None: it is left alone."""
        self.site.slurm.person_drain(node, why, WHO)
        records = [record for record in self.site.records.values() if record.fault.node == node]
        for record in records[-1:]:
            record.found_at = record.found_at or self.site.now
        job = self.site.snapshot().jobs[self.site.job]
        if retry_s is not None and job.state == "RUNNING" and node in job.nodes:
            life = job.restarts
            self.site.agenda.at(self.site.later(retry_s), lambda: self._restart(life, start))
        faults = self.site.active.get(node, ())
        repair_s = max(
            (fault.repair_s for fault in faults if fault.way.hardware or fault.way.slower > 1), default=0.0
        )
        answer_s = self.site.scenario.people.answer_min * 60
        moment = working(self.site.later(repair_s + answer_s), self.site.scenario.people.works)
        self.site.agenda.at(moment, lambda: self._bring_back(node))

    def _restart(self, life: int, start: bool) -> None:
        job = self.site.snapshot().jobs[self.site.job]
        if job.state == "RUNNING" and job.restarts == life:
            self.site.slurm.requeue(job.id)
            if start:
                self.site.slurm.start_now(job.id)

    def _bring_back(self, node: str) -> None:
        self.did["nodes brought back"] += 1
        self.site.mend(node)
        try:
            self.site.slurm.resume(node)
        except SchedulerRefused:
            return  # someone else did


class Thresholds(Nobody):
    """Periodic checks as of NHC on each node: any that fails drains. Nothing is requeued; the job's owner
    retries every few minutes."""

    name = "thresholds"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        spec, scenario = site.scenario.checks, site.scenario
        rng = np.random.default_rng([site.seed, 9])
        count = rng.poisson(spec.false_per_1000_node_days * scenario.nodes * scenario.days / 1000)
        for second in sorted(rng.uniform(0, scenario.days * DAY_S, count).tolist()):
            node = site.names[int(rng.integers(scenario.nodes))]
            site.agenda.at(scenario.start + timedelta(seconds=second), self._fails(node))

    def notice_fault(self, fault: Fault) -> None:
        super().notice_fault(fault)
        if fault.way.checked and not fault.way.silent:
            each = self.site.scenario.checks.every_s
            gone = (self.site.now - self.site.scenario.start).total_seconds()
            self.site.agenda.at(self.site.later(each - gone % each), self._fails(fault.node, fault))

    def _fails(self, node: str, fault: Fault | None = None):
        def drain() -> None:
            is_present = fault is None or fault in self.site.active.get(node, ())
            if is_present and not self.site.slurm.node(node).held:
                real = bool(self.site.active.get(node))
                retry_s = self.site.scenario.checks.retry_min * 60 if real else None
                self._take_out(node, "check: failed", retry_s=retry_s)

        return drain


class FirstSign(Nobody):
    """Drains and requeues at once on any kernel or driver line, sensor or silence."""

    name = "first sign"

    def notice_fault(self, fault: Fault) -> None:
        super().notice_fault(fault)
        way = fault.way
        if way.lines or way.sensors or way.port_down:
            self.site.agenda.at(self.site.later(SIGN_S), lambda: self._sign(fault.node))

    def read_line(self, node: str, line: str) -> None:
        self._sign(node)

    def _sign(self, node: str) -> None:
        if not self.site.slurm.node(node).held:
            self._take_out(node, "check: first sign", retry_s=0, start=True)


def working(moment: datetime, hours: tuple[int, int]) -> datetime:
    """The moment itself, or the beginning of the next working day's hours."""
    begin, end = hours
    while moment.weekday() >= SATURDAY or moment.hour >= end:
        moment = (moment + timedelta(days=1)).replace(hour=begin, minute=0, second=0, microsecond=0)
    return moment if moment.hour >= begin else moment.replace(hour=begin, minute=0, second=0, microsecond=0)
