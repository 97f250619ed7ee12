"""A worker that dies at a moment of a story: after a commit, or around an effect."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from healer.sim.memory_ledger import MemoryLedger, MemoryTx
from healer.sim.sim_slurm import SimScheduler
from tests.support.loop import CLUSTER, Crash, Site

#: A dead worker's lease lasts 15 s; until then no worker drives its runs.
DEAD_S = 15

S = TypeVar("S", bound=Site)


class MortalLedger(MemoryLedger):
    """Counts the commits of the worker that wrote something, and dies right after one of them."""

    dies_after: int | None = None
    commits = 0
    driving = False

    @contextmanager
    def transaction(self) -> Iterator[MemoryTx]:
        with super().transaction() as tx:
            yield tx
            wrote = bool(tx.undo)
        if self.driving and wrote:
            self.commits += 1
            if self.commits == self.dies_after:
                raise Crash(f"commit {self.commits}")


class CountingSlurm:
    """The simulated Slurm, with a count of what healer changed in it."""

    def __init__(self, slurm: SimScheduler) -> None:
        self.slurm = slurm
        self.writes: list[str] = []

    def __getattr__(self, verb: str) -> object:
        if verb in {"drain", "resume", "requeue"}:
            self.writes.append(verb)
        return getattr(self.slurm, verb)


class MortalWorker(Generic[S]):
    """Drives the runs of `site`. It dies at most once: after the commit `ledger.dies_after`, or at the
    checkpoint `dies_at` where the story gives `checkpoint` to its site."""

    dead_s = DEAD_S

    def __init__(self, site: S) -> None:
        self.site = site
        self.ledger = MortalLedger(CLUSTER, site.clock)
        site.ledger = site.driver.ledger = self.ledger
        self.deaths = self.checkpoints = 0
        self.dies_at: int | None = None
        self._dead = 0

    def checkpoint(self, where: str) -> None:
        self.checkpoints += 1
        if self.checkpoints == self.dies_at:
            raise Crash(where)

    def drive(self) -> None:
        """One second: nothing while it is dead."""
        if self._dead:
            self._dead -= 1
            return
        self.ledger.driving = True
        try:
            self.site.drive()
        except Crash:
            self.deaths, self._dead = self.deaths + 1, self.dead_s
        finally:
            self.ledger.driving = False
