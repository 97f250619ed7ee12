"""The simulated site: nodes that fail and are repaired, one large job, small ones, and Slurm between them.

The site knows the true faults; its `Mender` gets only what nodes log and measure. `Work` books each second of
the large job by the classes of `healer.model.goodput`, from what truly happened: the truth that the goodput
ledger is checked against.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from healer.model import JobOnNode, Reservation, SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.goodput import Spent
from healer.sim.fleet.launcher import JobNodes, Launcher
from healer.sim.fleet.scenario import SPARES, JobSpec, Scenario
from healer.sim.fleet.schedule import Chance, Fault, base_faults
from healer.sim.sim_clock import SimClock
from healer.sim.sim_slurm import SimScheduler

#: The cause of time that no fault costs.
NOBODY = "none"


class Work:
    """The job's account. `be` sets what it does from now on and books the time before."""

    def __init__(self, spec: JobSpec, start: datetime) -> None:
        self._spec = spec
        self._at = start
        self._doing = Spent.queued
        self._cause = "start"
        self._slower, self._slow_cause = 1.0, NOBODY
        #: Seconds since the last checkpoint, and what they were spent on.
        self._in_cycle = 0.0
        self._unsaved: dict[tuple[Spent, str], float] = defaultdict(float)
        self.spent: dict[tuple[Spent, str], float] = defaultdict(float)
        self.saved = 0
        self.saved_at: datetime | None = None

    @property
    def doing(self) -> Spent:
        return self._doing

    def be(
        self, doing: Spent, cause: str, now: datetime, *, slower: float = 1.0, slow_cause: str = NOBODY
    ) -> None:
        """`doing`: `productive` for work, else `hung`, `queued` or `starting`, because of `cause`."""
        self.pass_to(now)
        if self._doing is Spent.productive and doing is not Spent.productive:
            self._lose(cause)
        self._doing, self._cause = doing, cause
        self._slower, self._slow_cause = slower, slow_cause

    def pass_to(self, now: datetime) -> None:
        left = (now - self._at).total_seconds()
        if self._doing is not Spent.productive:
            self.spent[self._doing, self._cause] += left
            self._at = now
            return
        cycle = self._spec.checkpoint_s + self._spec.checkpoint_stall_s
        while left > 0:
            step = min(left, cycle - self._in_cycle)
            self._work(self._in_cycle, self._in_cycle + step)
            self._in_cycle += step
            self._at += timedelta(seconds=step)
            left -= step
            if self._in_cycle >= cycle - 1e-6:
                self._save()
        self._at = now

    def save(self, now: datetime) -> None:
        """Saves a checkpoint now, as before a planned stop."""
        self.pass_to(now)
        if self._doing is Spent.productive:
            self._save()

    def close(self, now: datetime) -> None:
        """Ends the simulation: work that no checkpoint holds is neither lost nor kept."""
        self.pass_to(now)
        for seconds in self._unsaved.values():
            self.spent[Spent.unsaved, NOBODY] += seconds
        self._unsaved.clear()

    def total(self, kind: Spent) -> float:
        """Seconds spent on this kind, for any cause."""
        return sum(seconds for (spent_on, _), seconds in self.spent.items() if spent_on is kind)

    def by_cause(self) -> dict[str, float]:
        """Seconds that each cause took, of any kind."""
        found: dict[str, float] = defaultdict(float)
        for (kind, cause), seconds in self.spent.items():
            if seconds and kind not in {Spent.productive, Spent.unsaved}:
                found[cause] += seconds
        return dict(found)

    def _work(self, begin: float, end: float) -> None:
        worked = max(0.0, min(end, self._spec.checkpoint_s) - begin)
        stalled = (end - begin) - worked
        self._unsaved[Spent.productive, NOBODY] += worked / self._slower
        self._unsaved[Spent.slowed, self._slow_cause] += worked - worked / self._slower
        self._unsaved[Spent.checkpointing, NOBODY] += stalled

    def _save(self) -> None:
        for key, seconds in self._unsaved.items():
            self.spent[key] += seconds
        self._unsaved.clear()
        self._in_cycle = 0.0
        self.saved += 1
        self.saved_at = self._at

    def _lose(self, cause: str) -> None:
        self.spent[Spent.lost, cause] += sum(self._unsaved.values())
        self._unsaved.clear()
        self._in_cycle = 0.0


class Agenda:
    """Callbacks by time; those of the same moment run in the order in which they were added."""

    def __init__(self) -> None:
        self._heap: list[tuple[datetime, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, moment: datetime, do: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (moment, self._count, do))

    def next(self) -> datetime | None:
        return self._heap[0][0] if self._heap else None

    def do_due(self, now: datetime) -> None:
        while self._heap and self._heap[0][0] <= now:
            _, _, do = heapq.heappop(self._heap)
            do()


CLUSTER = "pod1"
#: NCCL's watchdog ends a job that hangs (its default, 10 min).
WATCHDOG_S = 600.0
#: State of a node in a reservation of healer's: its drain is lifted, but it is under test and not back yet.
_KEPT = "MAINTENANCE"
#: Seconds that unplanned work on a host takes.
UNPLANNED_WORK_S = 7200.0


class Mender(Protocol):
    """Heals the site: healer, or a policy that it is compared with."""

    name: str

    def expect_fault(self, fault: Fault) -> None:
        """The fault comes in a few minutes: starts detailed simulation of its node. Must not act on it."""

    def notice_fault(self, fault: Fault) -> None:
        """The fault has come and shows its signs."""

    def read_line(self, node: str, line: str) -> None:
        """Takes a kernel line that means no fault."""

    def due(self) -> datetime | None:
        """When `turn` is to be called next; None: no time is set."""
        ...

    def turn(self) -> None:
        """Does what is due at this moment."""

    def owns(self, node: SlurmNode) -> bool:
        """Whether it took this node out of service."""
        ...

    def to_leave(self) -> Collection[str]:
        """Nodes whose verdict for launchers is `leave`."""
        ...


@dataclass(slots=True)
class Record:
    """What became of one fault."""

    fault: Fault
    found_at: datetime | None = None
    out_at: datetime | None = None
    running_at: datetime | None = None
    stopped_job: bool = False
    by_hand: bool = False
    repaired_at: datetime | None = None
    returned_at: datetime | None = None


# Wide: nodes, faults and jobs of one site settle together at each moment.
class Site:
    """One cluster through its whole simulated time. Its owner sets `mender` before `begin`."""

    mender: Mender

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.clock = SimClock(scenario.start)
        self.agenda = Agenda()
        self.names = [f"gpu{number:04d}" for number in range(1, scenario.nodes + 1)]
        self.slurm = SimScheduler(
            CLUSTER,
            self.clock,
            list(_specs(scenario, self.names)),
            times=scenario.slurm,
            test_s=scenario.tests.takes_s,
        )
        if scenario.spares:
            kept = tuple(self.names[-scenario.spares :])
            self.slurm.reserve(Reservation(name=SPARES, nodes=kept, users=("root",)))
        self.nodes = JobNodes(
            self._job_on_node, clock=self.clock, diagnosis_s=scenario.tests.takes_s, gpus=scenario.gpus
        )
        self.chance = Chance(scenario, seed)
        self.seed = seed
        #: Node -> its present faults.
        self.active: dict[str, list[Fault]] = {}
        self.records: dict[str, Record] = {}
        self.skipped = 0
        self.work = Work(scenario.job, scenario.start)
        self.launcher = Launcher(scenario.job, scenario.start)
        asks, agreed = scenario.job.asks, scenario.job.agreed
        self.job = self.slurm.add_job(name="pretrain", nodes=asks, comment=agreed, exclusive=True)
        self._fillers = [
            (filler, self._submit(filler.nodes, filler.runtime_s))
            for filler in scenario.fillers
            for _ in range(filler.count)
        ]
        #: Restart count of the job that is running, and when its startup ends.
        self._life: int | None = None
        self._ready_at: datetime | None = None
        #: Since when it has worked; None while its life has made no step.
        self.works_since: datetime | None = None
        self._stop: tuple[str, Record | None] = "start", None
        #: Factor and cause that slow the whole job (storage).
        self.shared_slow: tuple[float, str] = 1.0, NOBODY
        self.planned_until: datetime | None = None
        self._shown: object = None
        self.out_before: frozenset[str] = frozenset()
        #: When, node and reason of each drain of a healthy node by the mender.
        self.wrong: list[tuple[datetime, str, str]] = []
        self.taken_out = 0
        self.node_hours_out = 0.0
        self._out_since = self.now

    @property
    def now(self) -> datetime:
        return self.clock.now()

    @property
    def end(self) -> datetime:
        return self.scenario.start + timedelta(days=self.scenario.days)

    def later(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)

    def snapshot(self) -> SlurmSnapshot:
        return self.slurm.snapshot()

    # --- faults ---

    def begin(self) -> None:
        for fault in base_faults(self.scenario, self.chance, self.names, self.seed):
            self.expect(fault)

    def expect(self, fault: Fault) -> None:
        """Schedules the fault."""
        early = timedelta(minutes=self.scenario.telemetry.before_min)
        self.agenda.at(max(self.now, fault.at - early), lambda: self.mender.expect_fault(fault))
        self.agenda.at(fault.at, lambda: self.strike(fault))

    def strike(self, fault: Fault) -> None:
        """The fault begins. One on a node out of service, or with another fault, is skipped."""
        if self.slurm.node(fault.node).held or self.active.get(fault.node):
            self.skipped += 1
            return
        way = fault.way
        self.active.setdefault(fault.node, []).append(fault)
        record = self.records[fault.id] = Record(fault)
        job = self.snapshot().jobs[self.job]
        record.stopped_job = way.stops and job.state == "RUNNING" and fault.node in self.workers(job)
        if way.hardware:
            self.nodes.plant(fault.node, way.planted)
        if way.silent:
            self.nodes.plant(fault.node, "unreachable")
            self.slurm.silence(fault.node)
        if way.stops_after_s:
            self.agenda.at(self.stops_at(fault), lambda: None)
        if fault.way_name == "unplanned-work":
            self._work_unplanned(fault)
        elif not way.hardware:
            lasts = WATCHDOG_S if fault.way.hangs else self.scenario.job.fails_s
            self.agenda.at(self.later(lasts), lambda: self.over(fault))
        self.mender.notice_fault(fault)

    def over(self, fault: Fault) -> None:
        left = [other for other in self.active.pop(fault.node, ()) if other.id != fault.id]
        if left:
            self.active[fault.node] = left

    def mend(self, node: str) -> list[Fault]:
        """A technician repairs the node. Returns its faults; where the repair did not take, tests may find
        it."""
        done = self.active.pop(node, [])
        self.nodes.mend(node)
        self.slurm.answer(node)
        for fault in done:
            self.records[fault.id].repaired_at = self.now
            if not fault.took and fault.found:
                self.nodes.plant(node, "did not take")
        return done

    def mend_found(self, node: str) -> None:
        """Repairs the node again after failed tests; this time the repair takes."""
        self.nodes.mend(node)
        for record in self._last_of(node):
            record.fault = replace(record.fault, took=True, again_s=None)

    def stop_planned(self, until: datetime) -> None:
        """Stops the job until then, with a checkpoint first, as its owners planned."""
        self.work.save(self.now)
        self.planned_until = until
        self.agenda.at(until, lambda: None)

    def returned(self, node: str) -> None:
        """The node is back in service: schedules the relapse of its last repair, if any."""
        for record in self._last_of(node):
            if record.returned_at is None and record.repaired_at is not None:
                record.returned_at = self.now
                again = self.chance.again(record.fault, self.now)
                if again is not None and again.at < self.end:
                    self.expect(again)

    def _last_of(self, node: str) -> list[Record]:
        repaired = [
            record
            for record in self.records.values()
            if record.fault.node == node and record.repaired_at is not None
        ]
        return repaired[-1:]

    def _work_unplanned(self, fault: Fault) -> None:
        self.slurm.person_drain(fault.node, "work on the host, ticket 1", "hall")
        self.slurm.set_node_down(fault.node, "work on the host, ticket 1", "hall")

        def done() -> None:
            self.over(fault)
            self.slurm.resume(fault.node)

        self.agenda.at(self.later(UNPLANNED_WORK_S), done)

    # --- the jobs ---

    def _submit(self, nodes: int, runtime_s: float) -> str:
        return self.slurm.add_job(name="small", nodes=nodes, runtime_s=runtime_s, exclusive=True)

    def blocking(self) -> Fault | None:
        """The fault on one of its nodes that stops the large job; None if none does."""
        job = self.snapshot().jobs[self.job]
        if job.state != "RUNNING" or not self.active:
            return None
        job_nodes = self.workers(job)
        found = (fault for node, faults in self.active.items() if node in job_nodes for fault in faults)
        return next((fault for fault in found if fault.way.stops and self.now >= self.stops_at(fault)), None)

    def workers(self, job: SlurmJob) -> Collection[str]:
        """Nodes on which the job works: of the large one all but its spares and those that it has left."""
        return self.launcher.workers(job) if job.id == self.job else job.nodes

    def _job_on_node(self, node: str, job: str) -> JobOnNode | None:
        """What the node shows of the large job, if that has a launcher."""
        shown = self.snapshot().jobs.get(job)
        if shown is None or job != self.job or not self.scenario.job.spares:
            return None
        return self.launcher.seen_on(node, shown, self.work.doing, self.now)

    def _leave(self, job: SlurmJob) -> None:
        """The launcher leaves nodes with a bad verdict, which it reads on the node itself. Where the job
        worked on one, its workers end, and start on the others."""
        if not self.scenario.job.spares:
            return
        bad = [node for node in self.mender.to_leave() if "unreachable" not in self.nodes.faults(node)]
        left = self.launcher.leave(job, bad, self.now)
        if not left:
            return
        if self.work.doing is Spent.productive:
            causes = [fault.cause for node in left for fault in self.active.get(node, ())]
            self._stop = (causes[0] if causes else "taken off", None)
        self._end_programs()
        starts = self.launcher.meets_at + timedelta(seconds=self.scenario.job.startup_s)
        self._life, self._ready_at = job.restarts, starts
        self.work.be(Spent.starting, self._stop[0], self.now)

    def stops_at(self, fault: Fault) -> datetime:
        """When it stops the large job. Wrong numbers are found only in steps that the job has made."""
        if not fault.way.stops_after_s:
            return fault.at
        if self.works_since is None:
            return self.end
        return max(fault.at, self.works_since) + timedelta(seconds=fault.way.stops_after_s)

    def settle(self) -> None:
        """Books what the jobs did until now, and sets what they do from now on."""
        snapshot = self.snapshot()
        self._note_out(snapshot)
        self._fillers = [
            (
                filler,
                name
                if _is_queued_or_running(snapshot, name)
                else self._submit(filler.nodes, filler.runtime_s),
            )
            for filler, name in self._fillers
        ]
        job, now = snapshot.jobs[self.job], self.now
        self.launcher.look(job, now)
        if job.state != "RUNNING" or "COMPLETING" in job.flags:
            self._end_programs()
            # Notes why the job was taken off its nodes while it worked: a slow node, or a lost one.
            if self.work.doing is Spent.productive:
                slow = self._slow()[1]
                self._stop = (slow if slow != NOBODY else "taken off", None)
            self.work.be(Spent.queued, self._stop[0], now)
            self._life = self.works_since = None
            return
        self._leave(job)
        fault = self.blocking()
        if fault is not None:
            if self.work.doing is not Spent.hung:
                self._stop = fault.cause, self.records[fault.id]
            self.work.be(Spent.hung, fault.cause, now)
            self._life, self._ready_at = job.restarts, None
            return
        if self.planned_until is not None and now < self.planned_until:
            self._stop = "planned", None
            self.work.be(Spent.hung, "planned", now)
            self._ready_at = None
            return
        self._start(job.restarts, job.start_at or now)

    def _end_programs(self) -> None:
        """What is wrong with the program alone is over with its life."""
        for fault in [fault for faults in self.active.values() for fault in faults]:
            if fault.way.stops and not fault.way.hardware:
                self.over(fault)

    def _start(self, restarts: int, start_at: datetime) -> None:
        spec, now = self.scenario.job, self.now
        if self._life != restarts:
            self._life, self._ready_at = restarts, start_at + timedelta(seconds=spec.startup_s)
        elif self._ready_at is None:
            self._ready_at = now + timedelta(seconds=spec.restarts_s + spec.startup_s)
        if now < self._ready_at:
            self.work.be(Spent.starting, self._stop[0], now)
            return
        if self.works_since is None or self.work.doing is not Spent.productive:
            self.works_since = now
            for fault in (fault for faults in self.active.values() for fault in faults):
                if fault.way.stops_after_s:
                    self.agenda.at(self.stops_at(fault), lambda: None)
        slower, cause = self._slow()
        record = self._stop[1]
        if record is not None and record.running_at is None:
            record.running_at = self._ready_at
        self.work.be(Spent.productive, NOBODY, now, slower=slower, slow_cause=cause)

    def _slow(self) -> tuple[float, str]:
        job_nodes = self.workers(self.snapshot().jobs[self.job])
        found = [
            (fault.way.slower, fault.cause)
            for node, faults in self.active.items()
            if node in job_nodes
            for fault in faults
            if fault.way.slower > 1
        ]
        return max([*found, self.shared_slow])

    def ready_at(self) -> datetime | None:
        """End of the job's startup; None if it is not starting."""
        return self._ready_at if self.work.doing is Spent.starting else None

    # --- nodes that leave and come back ---

    def _note_out(self, snapshot: SlurmSnapshot) -> None:
        self.node_hours_out += len(self.out_before) * (self.now - self._out_since).total_seconds() / 3600
        self._out_since = self.now
        if snapshot.nodes is self._shown:
            return
        self._shown = snapshot.nodes
        out = {node.name: node for node in snapshot.odd_nodes if node.held or _KEPT in node.state}
        for name in sorted(out.keys() - self.out_before):
            self._left(out[name])
        for name in sorted(self.out_before - out.keys()):
            self.returned(name)
        self.out_before = frozenset(out)

    def _left(self, node: SlurmNode) -> None:
        faults = self.active.get(node.name, ())
        for fault in faults:
            record = self.records[fault.id]
            record.out_at = record.out_at or self.now
        if self.mender.owns(node):
            self.taken_out += 1
            if not any(fault.way.hardware or fault.way.slower > 1 for fault in faults):
                self.wrong.append((self.now, node.name, node.reason))


def _is_queued_or_running(snapshot: SlurmSnapshot, job: str) -> bool:
    found = snapshot.jobs.get(job)
    return found is not None and found.end_at is None


def _specs(scenario: Scenario, names: list[str]) -> Iterator[SlurmNode]:
    for number, name in enumerate(names):
        rack = number // scenario.nodes_per_rack
        yield SlurmNode(
            name=name, gpus=scenario.gpus, gpu_model="h100", partitions=("train",), features=("h100",),
            rack=f"r{rack:03d}", switch=f"leaf{rack // scenario.racks_per_switch:03d}", driver="580.65.06",
        )  # fmt: skip
