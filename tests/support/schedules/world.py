"""The site of a schedule: 16 nodes, jobs, faults, people; two detectors, two beats, three workers."""

import contextlib
import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from healer.actions import Toolbox
from healer.engine.command import Commands, Site
from healer.engine.controls import Controls, IncidentCommands
from healer.engine.drive import Driver
from healer.engine.permission import free_slots_of
from healer.model import (
    GuardSettings,
    Mode,
    Pause,
    Run,
    RunState,
    SlurmJob,
    SweepSettings,
)
from healer.ports.commanding import RunRequest
from healer.ports.node_exec import NodeUnavailable
from healer.ports.request_errors import Conflict, Forbidden, GuardRefused, Invalid, NotFound
from healer.ports.scheduling import SchedulerError, SchedulerUnavailable
from healer.ports.transactions import LedgerAway
from healer.processes.detector_loop import Detector, DetectorParts
from healer.processes.worker import leftover_jobs
from healer.sim.memory_ledger import MemoryLedger
from healer.sim.nodes import SimNodes
from healer.sim.sim_slurm import SimScheduler, SlurmTimes, sim_nodes
from tests.support.loop import CLUSTER, DEGRADED, FATAL, LOST, REMAP, START, TEARDOWN, lines, name, rules_in
from tests.support.schedules.processes import IDLE, Chances, HostClock, Hub, Process, TrueClock
from tests.support.schedules.store import ProcessLedger, Store

NODES, RACK = 16, 4
#: Nodes in sweep at once.
SWEEPS = 3
#: A call that changes something is given up after so long (`preferred.WRITE_S`).
WRITE_S = 7.0
WRITES = frozenset(
    {
        "drain", "undrain", "resume", "down", "reboot", "cancel_reboot", "annotate", "reserve",
        "change_reservation", "unreserve", "shrink", "requeue", "revive", "start_now", "hold", "release",
        "exclude", "signal", "notify", "remark", "submit", "cancel",
    }
)  # fmt: skip
NODE_WRITES = frozenset({"restart_service", "start_diagnosis", "start_reset"})


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One call that changed something: by whom, for which run, and what Slurm showed before it."""

    at: datetime
    process: str
    verb: str
    target: str
    args: tuple[Any, ...]
    run: str
    epoch: int
    #: The node as it was just before; the job as it was when the call began: nothing fences Slurm itself.
    before: Any = None


class Hands:
    """What a worker does things with: a point before and after each effect, calls that time out."""

    def __init__(self, world: "World", process: Process, real: Any, writes: frozenset[str]) -> None:
        self._world, self._process, self._real, self._writes = world, process, real, writes

    def of_run(self, run: str) -> "Hands":
        """The same, for the calls of one run: no call by itself."""
        return self

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._real, verb)
        if verb not in self._writes:
            return call if not callable(call) else self._reading(verb, call)
        return self._writing(verb, call)

    def _away(self, text: str, *, sent: bool) -> Exception:
        if self._real is self._world.slurm:
            return SchedulerUnavailable(text, sent=sent)
        return NodeUnavailable(text)

    def _reading(self, verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def read(*args: Any, **kwargs: Any) -> Any:
            if self._world.unlucky(0.01):
                raise self._away(f"{verb} was not answered", sent=False)
            return call(*args, **kwargs)

        return read

    def _writing(self, verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any, **kwargs: Any) -> Any:
            world, process = self._world, self._process
            asked, job = world.true.now(), world.job_of(verb, args)
            process.point(f"before:{verb}")
            if (world.true.now() - asked).total_seconds() > WRITE_S:
                raise self._away(f"no time was left for {verb}", sent=False)
            world.effect(process, verb, args, job)
            answer = call(*args, **kwargs)
            process.point(f"after:{verb}")
            if world.unlucky(0.02):
                raise self._away(f"{verb} was not answered in time", sent=True)
            return answer

        return write


class World:
    """One schedule. `run` plays it; `breaches` is what was seen that may never be seen."""

    def __init__(self, seed: int, *, chances: Chances | None = None) -> None:
        self.seed, self.chance = seed, random.Random(seed)
        chance = self.chance
        # By a chance of its own: the other seeds' stories stay what they were.
        sweeps = random.Random(f"sweeps {seed}").random() < 0.5
        self.true = TrueClock(START)
        self.hosts = [
            HostClock(self.true),
            HostClock(self.true, timedelta(seconds=chance.uniform(-1.5, 1.5))),
        ]
        self.guards = GuardSettings(
            max_nodes=chance.choice((1, 2, 3, 4)),
            max_share=0.25,
            share_per_hour=chance.choice((0.2, 1.0)),
            rack_share=chance.choice((0.25, 0.5)),
            partition_share=1.0,
            min_service_share=chance.choice((0.5, 0.75)),
            breaker_share=chance.choice((0.2, 1.0)),
            sweep=SweepSettings(scheduled=sweeps, max_share=1.0, max_nodes=SWEEPS),
        )
        self.rules = rules_in(Mode.approve if chance.random() < 0.2 else Mode.auto, guards=self.guards)
        racked = [
            msgspec.structs.replace(node, rack=f"r{number // RACK}")
            for number, node in enumerate(sim_nodes(NODES))
        ]
        self.slurm = SimScheduler(
            CLUSTER,
            self.true,
            racked,
            times=SlurmTimes(cred_expire_s=5, boot_s=10),
            test_s=40 if sweeps else 8,
        )
        self.nodes = SimNodes(self.true)
        self.store = Store(CLUSTER)
        self.effects: list[Effect] = []
        self.on_effect: Callable[[Effect], None] = lambda _: None
        #: Process -> the claim it holds; run -> the newest epoch that a worker took it under.
        self.claims: dict[str, Any] = {}
        self.claimed: dict[str, int] = {}
        self.people_did: list[str] = []
        self.leapt = False
        processes = [
            *(self._process(f"worker{n + 1}", n % 2, self._work) for n in range(3)),
            *(self._process(f"detector{n + 1}", n, self._detect) for n in range(2)),
            *(self._process(f"beat{n + 1}", n, self._beat) for n in range(2)),
        ]
        self.hub = Hub(self.true, chance, processes, chances or Chances())
        self._requests = 0

    def _process(self, name: str, host: int, main: Callable[[Process], None]) -> Process:
        return Process(name, self.hosts[host], main, self.store.cut)

    def unlucky(self, share: float) -> bool:
        return not self.hub.calm and self.chance.random() < share

    # --- what the processes do

    def _work(self, process: Process) -> None:
        ledger = ProcessLedger(self.store, process)
        tools = Toolbox(
            now=process.clock.now,
            scheduler=Hands(self, process, self.slurm, WRITES),  # type: ignore[arg-type]
            nodes=Hands(self, process, self.nodes, NODE_WRITES),  # type: ignore[arg-type]
            checkpoints=self.store.checkpoints,
            picture=lambda: self.store.snapshot,
        )
        driver = Driver(
            _Watched(ledger, self, process),  # type: ignore[arg-type]
            lambda: self.rules,
            tools,
            checkpoint=lambda where: process.point(where.partition(":")[0]),
        )
        while True:
            if self.store.queue:
                at = self.chance.randrange(len(self.store.queue))
                run = self.store.queue.pop(at) if not self.unlucky(0.05) else self.store.queue[at]
                driver.drive(run)
            else:
                with contextlib.suppress(LedgerAway):
                    free_slots_of(ledger, process.clock.now())
                process.point(IDLE)

    def _detect(self, process: Process) -> None:
        while self.store.leader is not None:
            process.point(IDLE)
        self.store.leader = process.session
        ledger = ProcessLedger(self.store, process, leads=True)
        parts = DetectorParts(
            cluster=CLUSTER,
            ledger=ledger,
            inbox=ledger,  # type: ignore[arg-type]
            snapshots=self.store,  # type: ignore[arg-type]
            rules=lambda: self.rules,
            clock=process.clock,
            wait=lambda _: None,
            poke=self._poke,
            cleared=list(self.store.returned.items()),
        )
        with contextlib.suppress(LedgerAway):  # it ends the process, as it starts too
            detector = Detector(parts)
            while True:
                detector.once()
                process.point(IDLE)

    def _beat(self, process: Process) -> None:
        ledger = ProcessLedger(self.store, process)
        left = leftover_jobs(self.slurm, ledger, self.store, lambda: ("root",))  # type: ignore[arg-type]
        while True:
            taken_at = process.clock.now()
            snapshot = msgspec.structs.replace(self.slurm.snapshot(), taken_at=taken_at)
            process.point("polled")
            if not self.unlucky(0.05):
                self.store.snapshot = snapshot
            process.point("swept")
            with contextlib.suppress(LedgerAway):
                self._poke(ledger.due_runs(process.clock.now()))
                left()
            process.point(IDLE)

    def _poke(self, runs: Sequence[str]) -> None:
        """A message may be lost (Redis died), or come twice."""
        for run in runs:
            if not self.unlucky(0.1):
                self.store.queue.append(run)

    def job_of(self, verb: str, args: tuple[Any, ...]) -> SlurmJob | None:
        return self.slurm.job(str(args[0])) if verb in {"requeue", "revive"} else None

    def effect(self, process: Process, verb: str, args: tuple[Any, ...], called_for: SlurmJob | None) -> None:
        claim = self.claims.get(process.name)
        target = str(args[0]) if args else ""
        before = None
        if target.startswith("gpu"):
            before = self.slurm.node(target)
        elif called_for is not None:
            before = called_for
        run, epoch = (claim.run.id, claim.run.epoch) if claim is not None else ("", 0)
        one = Effect(
            at=self.true.now(), process=process.name, verb=verb, target=target, args=args, run=run,
            epoch=epoch, before=before,
        )  # fmt: skip
        self.effects.append(one)
        self.on_effect(one)
        if verb != "annotate":
            self.hub.log(f"{process.name} {verb} {target} for {run[:12]}")

    # --- what befalls the site

    def run(
        self, chaos_s: int = 120, calm_s: int = 420, check: Callable[["World"], None] = lambda _: None
    ) -> None:
        for _ in range(self.chance.randint(4, 9)):
            self.slurm.add_job(
                nodes=self.chance.choice((1, 1, 2, 3)), comment=self.chance.choice(("", "healer:requeue"))
            )
        for _ in range(chaos_s):
            self.true.advance(1)
            self._events()
            self.hub.tick()
            check(self)
        self.calm_down()
        for second in range(calm_s // 3):
            self.go_on(3 if second > 20 else 1)
            check(self)

    def go_on(self, seconds: float) -> None:
        """All processes work, that much later."""
        self.true.advance(seconds)
        self.hub.tick()

    def calm_down(self) -> None:
        """No more deaths; the clocks are right again, Slurm answers, every pause is ended."""
        self.hub.log("calm")
        self.hub.calm = True
        for host in self.hosts:
            host.offset = timedelta()
        self.store.tables.pauses.clear()
        over = msgspec.structs.replace(self.guards, sweep=SweepSettings())
        self.rules = msgspec.structs.replace(self.rules, guards=over)
        for number in range(1, NODES + 1):
            self.slurm.answer(name(number))

    def _events(self) -> None:
        chance = self.chance
        if self.store.tables.pauses and chance.random() < 0.06:
            self.store.tables.pauses.clear()
            self.hub.log("ann: the pause is ended")
        if chance.random() < 0.08:
            self._fault()
        if chance.random() < 0.10:
            self._person()
        if chance.random() < 0.01:
            host = chance.choice(self.hosts)
            leap = chance.choice((-300, -40, -8, 8, 40, 300))
            host.offset += timedelta(seconds=leap)
            self.leapt = True
            self.hub.log(f"the clock of host {self.hosts.index(host) + 1} leaps by {leap} s")
        if chance.random() < 0.01:
            for host in self.hosts:
                host.offset = timedelta()

    def _fault(self) -> None:
        chance = self.chance
        node = name(chance.randint(1, NODES))
        kind = chance.choice(
            ("lost", "lost", "fatal", "remap", "degraded", "slurm", "down", "person", "new job")
        )
        self.hub.log(f"{kind} at {node}")
        now = self.true.now()
        match kind:
            case "lost" | "fatal" | "remap" | "degraded":
                text = {"lost": LOST, "fatal": FATAL, "remap": REMAP, "degraded": DEGRADED}[kind]
                also = (TEARDOWN,) if chance.random() < 0.3 else ()
                self.store.add(lines(node, text, *also, at=now))
            case "slurm":
                if self.slurm.node(node).in_service:
                    self.slurm.person_drain(node, "Kill task failed", "root")
            case "down":
                self.slurm.set_node_down(node)
            case "person":
                if self.slurm.node(node).in_service:
                    self.slurm.person_drain(node, "ann: looking at it", "ann")
            case _:
                self.slurm.add_job(nodes=chance.choice((1, 2)), comment="healer:requeue")

    # --- people, by the API's own commands

    def _person(self) -> None:
        chance = self.chance
        act = chance.choice(
            ("answer", "answer", "cancel", "undo", "ask", "ask", "pause", "resume", "resolve", "reset")
        )
        people = MemoryLedger(CLUSTER, self.hosts[0])
        people.tables, people.snapshot = self.store.tables, self.store.snapshot
        self._requests += 1
        with contextlib.suppress(Conflict, Forbidden, GuardRefused, Invalid, NotFound, SchedulerError):
            did = getattr(self, f"_person_{act}")(people)
            if did:
                self.hub.log(f"person: {act} {did}")
        self.store.tables = people.tables

    def _commands(self, people: MemoryLedger) -> Commands:
        site = Site(people, self.slurm, self._poke)
        return Commands({CLUSTER: site}, lambda: self.rules, people.clock)

    def _order(self, by: str = "ann") -> dict[str, str]:
        return {"by": by, "reason": "because", "request": f"q{self._requests}"}

    def _pick(self, *states: RunState) -> Run | None:
        found = [one for one in self.store.tables.runs.values() if one.state in states]
        return self.chance.choice(found) if found else None

    def _person_answer(self, people: MemoryLedger) -> str:
        """Approves, rejects, retries: what the state of the run allows."""
        run = self._pick(RunState.proposed, RunState.waiting_approval, RunState.stuck, RunState.held)
        if run is None:
            return ""
        commands = self._commands(people)
        if run.state is RunState.stuck:
            commands.retry(run.id, **self._order())
            return f"retry {run.id}"
        if self.chance.random() < 0.3:
            commands.reject(run.id, **self._order())
            self.people_did.append(run.id)
            return f"reject {run.id}"
        commands.approve(run.id, **self._order("bob"))
        return f"approve {run.id}"

    def _person_cancel(self, people: MemoryLedger) -> str:
        run = self._pick(RunState.running, RunState.waiting, RunState.stuck, RunState.held)
        if run is None:
            return ""
        self._commands(people).cancel(run.id, **self._order())
        self.people_did.append(run.id)
        return run.id

    def _person_undo(self, people: MemoryLedger) -> str:
        run = self._pick(RunState.running, RunState.waiting, RunState.stuck)
        if run is None or run.shadow:
            return ""
        self._commands(people).undo(run.id, **self._order())
        self.people_did.append(run.id)
        return run.id

    def _person_ask(self, people: MemoryLedger) -> str:
        playbook = self.chance.choice(("resume", "validate", "drain", "resume"))
        node = name(self.chance.randint(1, NODES))
        if playbook == "resume":
            out = [one.node for one in people.tables.slots.values()]
            node = self.chance.choice(sorted(out)) if out else node
        incident = next(
            (one for one in people.tables.incidents.values() if one.is_open and one.root.node == node), None
        )
        run = f"r-ann-{playbook}-{self._requests}"
        self._commands(people).start(
            RunRequest(
                id=run, playbook=playbook, cluster=CLUSTER, by="ann", reason="because", node=node,
                incident=incident.id if incident else None,
            )
        )  # fmt: skip
        return f"{playbook} {node}"

    def _person_pause(self, people: MemoryLedger) -> str:
        if people.tables.pauses:
            return ""
        scope = self.chance.choice(("all", "node"))
        node = name(self.chance.randint(1, NODES)) if scope == "node" else ""
        now, order = people.clock.now(), self._order()
        pause = Pause(
            id=f"p{self._requests}", scope=scope, name=node, by="ann", reason="hands off", since=now
        )
        Controls(people, lambda: self.rules, people.clock).pause(pause, request=order["request"])
        return f"{scope} {node}"

    def _person_resume(self, people: MemoryLedger) -> str:
        """By hand, in Slurm."""
        held = [one for one in self.slurm.snapshot().nodes.values() if one.held]
        if not held or self.chance.random() < 0.5:
            return ""
        node = self.chance.choice(held).name
        self.slurm.resume(node)
        return f"{node} by scontrol"

    def _person_resolve(self, people: MemoryLedger) -> str:
        found = [one for one in people.tables.incidents.values() if one.is_open]
        if not found or self.chance.random() < 0.5:
            return ""
        one = self.chance.choice(found)
        IncidentCommands(people, lambda: self.rules, people.clock).resolve(one.id, **self._order())
        if one.run is not None:
            self.people_did.append(one.run)
        return one.id[:8]

    def _person_reset(self, people: MemoryLedger) -> str:
        self._commands(people).reset_breaker(CLUSTER, **self._order())
        return "breaker"


class _Watched:
    """The worker's ledger; the world knows by it for which run an effect is."""

    def __init__(self, ledger: ProcessLedger, world: World, process: Process) -> None:
        self._ledger, self._world, self._process = ledger, world, process

    def __getattr__(self, what: str) -> Any:
        return getattr(self._ledger, what)

    def claim(self, run: str) -> Any:
        return _WatchedClaim(self._ledger.claim(run), self._world, self._process)


class _WatchedClaim:
    def __init__(self, claim: Any, world: World, process: Process) -> None:
        self._claim, self._world, self._process = claim, world, process

    def __enter__(self) -> Any:
        held = self._claim.__enter__()
        self._world.claims[self._process.name] = held
        if held is not None:
            self._world.claimed[held.run.id] = held.run.epoch
        return held

    def __exit__(self, *error: Any) -> Any:
        self._world.claims.pop(self._process.name, None)
        return self._claim.__exit__(*error)


__all__ = ["Effect", "World"]
