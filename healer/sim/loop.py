"""Walk and driver of production over a ledger in memory, at the moments that the owner chooses."""

from collections.abc import Callable, Sequence
from typing import Any

from healer.actions import Toolbox
from healer.engine.drive import Driver
from healer.engine.permission import free_slots_of
from healer.engine.walk import walk
from healer.model import Detections, Observation, Ruleset, SlurmSnapshot
from healer.observations import Picture
from healer.ports.scheduling import Scheduler
from healer.sim.memory_ledger import MemoryLedger
from healer.sim.nodes import SimNodes
from healer.sim.sim_clock import SimClock


class Loop:
    """`snapshot` returns Slurm's picture, None while Slurm does not answer; `ports` are further ports of the
    driver."""

    def __init__(
        self,
        cluster: str,
        clock: SimClock,
        scheduler: Scheduler,
        rules: Callable[[], Ruleset],
        nodes: SimNodes,
        snapshot: Callable[[], SlurmSnapshot | None],
        **ports: Any,
    ) -> None:
        self._clock, self._rules, self._snapshot = clock, rules, snapshot
        self.ledger = MemoryLedger(cluster, clock)
        self.checkpoints = self.ledger.checkpoints
        self.picture = Picture(cluster, watching_since=clock.now())
        tools = Toolbox(
            now=clock.now, scheduler=scheduler, nodes=nodes, checkpoints=self.checkpoints, **ports
        )
        self._driver = Driver(self.ledger, rules, tools)

    def look(self) -> None:
        """Adopts Slurm's current snapshot."""
        snapshot = self._snapshot()
        if snapshot is not None:
            self.picture.show(snapshot)
            self.ledger.snapshot = snapshot

    def walk(self, batch: Sequence[Observation], sensed: Detections | None = None) -> int:
        """Walks and drives until nothing more is due at this moment. Returns the number of walks."""
        now, walks = self._clock.now(), 0
        while True:
            self.look()
            free_slots_of(self.ledger, now)
            observations = [*batch, *self.ledger.take_commands()]
            walk(self.ledger, self._rules(), self.picture, observations, now, sensed)
            batch, sensed, walks = (), None, walks + 1
            written = self.ledger.tables.logged
            for run in sorted(self.ledger.due_runs(now)):
                self._driver.drive(run)
            # A run that only checked whether it may continue leaves nothing to walk for.
            if self.ledger.tables.logged == written and not self.ledger.tables.commands:
                return walks
