"""A site whose nodes have simulated BMCs: power that comes back boots the node in Slurm too."""

from collections.abc import Callable
from typing import Any

import msgspec

from healer.model import LogEntry, Mode, RunState, StepEvent
from tests.support.loop import Crash, equip
from tests.support.sim_bmc import SimBmc
from tests.support.under_test import TestSite


class PowerSite(TestSite):
    def __init__(self, *, by: str = "ann", mode: Mode = Mode.auto, **fields: Any) -> None:
        super().__init__(mode=mode, **fields)
        self.by = by
        self.bmc_boots: Callable[[str], Any] = self.slurm.boot
        self.bmc = SimBmc(self.clock, boots=self._boots)
        equip(self.driver, bmc=self.bmc)

    def ask(
        self,
        playbook: str,
        node: int,
        *,
        by: str = "",
        inputs: dict[str, Any] | None = None,
        shadow: bool = False,
    ) -> str:
        run = super().ask(playbook, node, by=by or self.by)
        known = self.ledger.tables.runs[run]
        given = {**known.input, "inputs": inputs or {}}
        self.ledger.tables.runs[run] = msgspec.structs.replace(known, input=given, shadow=shadow)
        return run

    def _boots(self, node: str) -> None:
        self.bmc_boots(node)

    def kinds(self) -> list[str]:
        """The resets that BMCs took."""
        return [str(kind) for _, kind in self.bmc.resets]

    def agree(self, run: str, step: str, *, by: str) -> None:
        """A person approves at a step that waits for it, as the API writes it down."""
        entry = LogEntry(
            run=run,
            at=self.now,
            epoch=0,
            step=step,
            event=StepEvent.done,
            text=f"{by} approved",
            data={"by": by},
        )
        self.ledger.tables.log[run].append(entry)
        with self.ledger.transaction() as tx:
            tx.set_run_state(run, RunState.running, why=f"{by} approved", at=self.now)

    def finish(self, seconds: int = 120) -> None:
        """Each test job of ours passes as soon as it runs."""
        for _ in range(seconds):
            self.run_for(1)
            self._pass_tests()

    def survive(self, seconds: int, step_s: float = 1.0) -> None:
        """The same, where workers may die."""
        for _ in range(int(seconds / step_s)):
            self.clock.advance(step_s)
            try:
                self.drive()
            except Crash:
                self.ledger._claimed.clear()
            self._pass_tests()
            self.walk()

    def _pass_tests(self) -> None:
        for job in self.test_jobs():
            if job.state == "RUNNING":
                self.slurm.complete(job.id)
