"""People's commands at a ledger of either kind, with a simulated Slurm and a worker."""

from collections.abc import Callable, Sequence
from typing import Any

from healer.actions import Toolbox
from healer.engine.command import Commands, Site
from healer.engine.drive import Driver
from healer.engine.reconciler import Reconciler
from healer.model import AuditRecord, Decision, Ruleset, Run, RunState
from healer.ports.commanding import RunRequest
from healer.sim.sim_slurm import SimScheduler
from tests.support.ledgers import CLUSTER, Bench
from tests.support.loop import name, rules_in


class Desk:
    def __init__(self, bench: Bench, rules: Callable[[], Ruleset] = rules_in) -> None:
        self.bench, self.clock, self.ledger, self.rules = bench, bench.clock, bench.ledger, rules
        self.slurm = SimScheduler(CLUSTER, self.clock, 20)
        #: Runs of which workers heard, and how many were in each message.
        self.poked: list[str] = []
        self.pokes: list[int] = []
        self.people = self.people_with(self.slurm)
        self.driver = Driver(self.ledger, rules, Toolbox(now=self.clock.now, scheduler=self.slurm))
        self.poll()

    def people_with(self, scheduler: Any) -> Commands:
        """Commands that reach Slurm through this scheduler."""
        site = Site(self.ledger, scheduler, self._poke)
        return Commands({CLUSTER: site}, self.rules, self.clock)

    def _poke(self, runs: Sequence[str]) -> None:
        self.poked += runs
        self.pokes.append(len(runs))

    def reconciler(self, scheduler: Any = None) -> Reconciler:
        people = self.people if scheduler is None else self.people_with(scheduler)
        return Reconciler(people, self.clock)

    def poll(self) -> None:
        self.bench.show(self.slurm.snapshot())

    def ask(self, playbook: str = "drain", number: int = 1, **fields: Any) -> RunRequest:
        given = {"id": f"r-{playbook}-{number}", "playbook": playbook, "by": "ann", "reason": "noisy fan"}
        where = {} if "job" in fields else {"node": name(number)}
        return RunRequest(**(given | {"cluster": CLUSTER} | where | fields))

    def work(self, run: str, seconds: int = 20) -> RunState:
        for _ in range(seconds):
            self.driver.drive(run)
            self.clock.advance(1)
            self.poll()
        return self.state(run)

    def run(self, run: str) -> Run:
        with self.ledger.command() as tx:
            known = tx.lock_run(run)
        assert known is not None
        return known

    def state(self, run: str) -> RunState:
        return self.run(run).state

    def log(self, run: str) -> list[tuple[str, str]]:
        with self.ledger.command() as tx:
            return [(entry.step, str(entry.event)) for entry in tx.log(run)]

    def decisions(self) -> list[Decision]:
        return self.bench.decisions()

    def records(self) -> list[AuditRecord]:
        return self.bench.records()

    def audited(self) -> list[str]:
        return self.bench.audited()
