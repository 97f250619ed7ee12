"""A small site for tests of the loop's middle: the shipped rules, a simulated Slurm, the ledger in memory.

Time moves only when a test says so. `Site.say` gives kernel lines as the API would take them.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from healer.actions import Toolbox
from healer.decisions import runs_alongside
from healer.engine.drive import Driver
from healer.engine.permission import free_slots_of
from healer.engine.walk import walk
from healer.model import (
    Column,
    Command,
    CommandKind,
    Component,
    Detections,
    Incident,
    LogEntry,
    Mode,
    Observation,
    ObservationKind,
    Pause,
    Ruleset,
    Run,
    RunState,
    SlurmNode,
    StepEvent,
)
from healer.observations import Picture
from healer.rulebook.ruleset import load
from healer.signals.identity import digest_of
from healer.signals.wire import kernel_log_observations
from healer.sim.memory_ledger import MemoryLedger
from healer.sim.nodes import SimNodes
from healer.sim.sim_clock import SimClock
from healer.sim.sim_slurm import SimScheduler, SlurmTimes, sim_nodes
from healer.sim.stores import MemoryCheckpoints, MemoryEvidence, SimCommands

START = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
CLUSTER = "pod1"
SHIPPED = Path(__file__).parents[2] / "rules"

#: Two lines of the driver: the GPU is gone; a channel was torn down.
LOST = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
TEARDOWN = "NVRM: Xid (PCI:0000:9b:00): 45, pid=1234, name=python, Ch 00000008"
FATAL = "NVRM: Xid (PCI:0000:9b:00): 95, pid=1234, name=python, Uncontained ECC error"
REMAP = "NVRM: Xid (PCI:0000:9b:00): 64, pid=1234, name=python, Row remapper error"
APPLICATION = "NVRM: Xid (PCI:0000:9b:00): 31, pid=1234, name=python, MMU Fault"
DEGRADED = "NVRM: Xid (PCI:0000:9b:00): 63, pid=1234, name=python, Row remapper event"


@lru_cache
def shipped() -> Ruleset:
    return load(SHIPPED, default_mode=Mode.auto, prove=False)


def rules_in(mode: Mode = Mode.auto, **fields: Any) -> Ruleset:
    """The rules that ship, in this mode, with other values where a test needs them."""
    return msgspec.structs.replace(shipped(), default_mode=mode, **fields)


def later(seconds: float = 0, **span: float) -> datetime:
    return START + timedelta(seconds=seconds, **span)


def name(number: int) -> str:
    return f"gpu{number:04d}"


def lines(
    node: str,
    *texts: str,
    at: datetime,
    event_at: datetime | None = None,
    boot_id: str | None = None,
    job: str | None = None,
    first_seq: int | None = None,
) -> list[Observation]:
    """Kernel lines as `POST /signals/kernel-log` takes them, arriving at `at`."""
    entries: list[dict[str, Any]] = []
    for index, text in enumerate(texts):
        entry: dict[str, Any] = {"line": text, "time": (event_at or at).isoformat()}
        if job is not None:
            entry["job"] = job
        if first_seq is not None:
            entry["seq"] = first_seq + index
        entries.append(entry)
    body = {"cluster": CLUSTER, "node": node, "boot_id": boot_id, "entries": entries}
    taken = kernel_log_observations(body, lambda _c, _n: True, at, cluster=CLUSTER)
    assert not taken.rejected, taken.rejected
    return list(taken.observations)


def beat(
    node: str, at: datetime, *, boot_id: str | None = None, event_at: datetime | None = None, **data: Any
) -> Observation:
    """One heartbeat that arrives at `at`."""
    return Observation(
        digest=digest_of("beat", node, at.isoformat()),
        kind=ObservationKind.heartbeat,
        component=Component(cluster=CLUSTER, node=node),
        event_at=event_at or at,
        arrived_at=at,
        boot_id=boot_id,
        data=data,
    )


class SimReadings:
    """`healer.ports.measurements.Readings`."""

    def __init__(self) -> None:
        self._points: dict[str, dict[Column, list[tuple[datetime, float]]]] = {}

    def add(self, subject: str, column: Column, at: datetime, value: float) -> None:
        self._points.setdefault(subject, {}).setdefault(column, []).append((at, value))

    def counters(self, subject: str, since: datetime) -> dict[Column, list[tuple[datetime, float]]]:
        known = self._points.get(subject, {})
        newer = {column: [one for one in points if one[0] > since] for column, points in known.items()}
        return {column: points for column, points in newer.items() if points}


class Crash(BaseException):
    """The process died at a checkpoint."""


class Site:
    """One cluster with everything that the loop needs. `run_for` walks and drives second by second."""

    def __init__(
        self,
        nodes: int | Sequence[SlurmNode] = 32,
        *,
        mode: Mode = Mode.auto,
        rules: Ruleset | None = None,
        scheduler: Callable[[SimScheduler], Any] | None = None,
        test_s: float | None = None,
        **slurm: Any,
    ) -> None:
        self.rules = rules or rules_in(mode)
        self.clock = SimClock(START)
        fleet = sim_nodes(nodes) if isinstance(nodes, int) else nodes
        self.slurm = SimScheduler(CLUSTER, self.clock, fleet, times=SlurmTimes(**slurm), test_s=test_s)
        #: What runs talk to; a test may put itself between.
        self.scheduler: Any = scheduler(self.slurm) if scheduler else self.slurm
        self.ledger = MemoryLedger(CLUSTER, self.clock)
        self.picture = Picture(CLUSTER, watching_since=START)
        self.checkpoints: list[str] = []
        self.on_checkpoint: Callable[[str], None] = self.checkpoints.append
        self.nodes = SimNodes(self.clock)
        self.evidence = MemoryEvidence()
        self.commands = SimCommands(self.clock)
        self.readings = SimReadings()
        self.saved = self.ledger.checkpoints = MemoryCheckpoints()
        tools = Toolbox(
            now=self.clock.now,
            scheduler=self.scheduler,
            nodes=self.nodes,
            checkpoints=self.saved,
            evidence=self.evidence,
            commands=self.commands,
            readings=self.readings,
            picture=lambda: self.ledger.snapshot,
        )
        self.driver = Driver(self.ledger, lambda: self.rules, tools, self._at_checkpoint)

    def _at_checkpoint(self, where: str) -> None:
        self.on_checkpoint(where)

    # --- moving it ---

    @property
    def now(self) -> datetime:
        return self.clock.now()

    def look(self) -> None:
        """The poller's duty."""
        snapshot = self.slurm.snapshot()
        self.picture.show(snapshot)
        self.ledger.snapshot = snapshot

    def walk(self, *batch: Observation, sensed: Detections | None = None) -> list[str]:
        self.look()
        commands = self.ledger.take_commands()
        return walk(self.ledger, self.rules, self.picture, [*batch, *commands], self.now, sensed)

    def drive(self) -> None:
        """The workers' part."""
        self.look()
        free_slots_of(self.ledger, self.now)
        for run in self.ledger.due_runs(self.now):
            self.driver.drive(run)

    def run_for(self, seconds: float, *batch: Observation, step_s: float = 1.0) -> None:
        """Walks and drives now, then after each step."""
        end = self.now + timedelta(seconds=seconds)
        self.walk(*batch)
        while True:
            self.drive()
            self.walk()
            if self.now >= end:
                return
            self.clock.advance(min(step_s, (end - self.now).total_seconds()))

    def drive_to(self, where: str) -> None:
        """Drives, and dies at this checkpoint."""

        def die(at: str) -> None:
            if at == where:
                raise Crash(at)

        before, self.on_checkpoint = self.on_checkpoint, die
        try:
            self.drive()
        except Crash:
            return
        finally:
            self.on_checkpoint = before
        raise AssertionError(f"the run never came to {where}")

    def die_once(self, where: str, rounds: int, step_s: float = 1) -> list[str]:
        """Drives and walks so many times, and dies once, at this checkpoint; the next worker comes when it
        may. Where it died."""
        died: list[str] = []

        def dies(at: str) -> None:
            if at == where and not died:
                died.append(at)
                raise Crash(at)

        self.on_checkpoint = dies
        for _ in range(rounds):
            self.clock.advance(step_s)
            try:
                self.drive()
            except Crash:
                self.clock.advance(15)
            self.walk()
        return died

    def say(self, node: int | str, *texts: str, **fields: Any) -> list[Observation]:
        where = name(node) if isinstance(node, int) else node
        when: dict[str, Any] = {"at": self.now}
        return lines(where, *texts, **(when | fields))

    def send_command(
        self, kind: CommandKind, *, by: str = "ann", incident: str | None = None, **data: Any
    ) -> None:
        """A person's word, as the API puts it into the inbox."""
        reason = data.pop("reason", "because")
        self.ledger.tables.commands.append(
            Command(
                kind=kind,
                cluster=CLUSTER,
                at=self.now,
                by=by,
                incident=incident,
                reason=reason,
                data=data,
            )
        )

    # --- what people do ---

    def ask(
        self, playbook: str, node: int, *, by: str = "ann", go: bool = True, incident: str | None = None
    ) -> str:
        """A person starts a playbook on a node; the next walk lets it `go`. The run's id."""
        run = Run(
            id=f"r-{by}-{playbook}-{len(self.runs)}",
            cluster=CLUSTER,
            playbook=playbook,
            state=RunState.held,
            by=by,
            reason="because",
            created_at=self.now,
            node=name(node),
            rule=playbook,
            incident=incident,
            alongside=runs_alongside(self.rules.playbooks[playbook]),
            input={"reason_text": f"{by}: because"},
        )
        with self.ledger.transaction() as tx:
            tx.create_run(run)
        if go:
            self.walk()
        return run.id

    def pause(self, scope: str = "all", target: str = "") -> None:
        self.ledger.tables.pauses.append(
            Pause(id="p1", scope=scope, name=target, by="ann", reason="hands off", since=self.now)
        )

    def end_pause(self) -> None:
        self.ledger.tables.pauses.clear()

    def retry(self, run: str, *steps: str) -> None:
        """A person lets a stuck run go on."""
        for step in steps:
            entry = LogEntry(run=run, at=self.now, epoch=0, step=step, event=StepEvent.retry, text="ann")
            self.ledger.tables.log[run].append(entry)
        with self.ledger.transaction() as tx:
            tx.set_run_state(run, RunState.running, why="ann retries", at=self.now)

    def cancel(self, run: str, state: RunState = RunState.cancelled) -> None:
        known = self.ledger.tables.runs[run]
        with self.ledger.transaction() as tx:
            tx.set_run_state(run, state, why="ann", at=self.now)
        data = {"run": run, "playbook": known.playbook, "state": str(state)}
        self.send_command(CommandKind.run_changed, incident=known.incident, **data)

    def approve(self, run: str, by: str = "ann") -> None:
        """As the API does it where the gate still holds: the walk then lets it go."""
        known = self.ledger.tables.runs[run]
        self.ledger.tables.runs[run] = msgspec.structs.replace(
            known, approved_by=by, state=RunState.held, epoch=known.epoch + 1
        )

    # --- looking at it ---

    @property
    def incidents(self) -> list[Incident]:
        return list(self.ledger.tables.incidents.values())

    @property
    def open_incidents(self) -> list[Incident]:
        return [one for one in self.incidents if one.is_open]

    @property
    def incident(self) -> Incident:
        (one,) = self.open_incidents
        return one

    @property
    def runs(self) -> list[Run]:
        return list(self.ledger.tables.runs.values())

    @property
    def pages(self) -> list[Any]:
        return [one for one in self.ledger.tables.messages.values() if getattr(one, "page", False)]

    def log(self, run: str, step: str | None = None) -> list[LogEntry]:
        return [one for one in self.ledger.tables.log.get(run, []) if step is None or one.step == step]

    def node(self, number: int) -> SlurmNode:
        return self.slurm.node(name(number))

    def audited(self, verb: str) -> int:
        return sum(1 for one in self.ledger.tables.audit if one.verb == verb)


def equip(driver: Driver, **tools: Any) -> None:
    """Gives the driver other tools."""
    driver.tools = msgspec.structs.replace(driver.tools, **tools)
