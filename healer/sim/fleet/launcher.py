"""The elastic launcher of the simulated large job, which holds spare nodes inside its allocation.

It works on the first nodes of its allocation that it has not left; the others idle. Once healer has drained a
node for a fault and enough others remain, it leaves that node, and its workers start again from the last
checkpoint (docs/jobs.md, "Launchers"). The first node runs the batch script and hosts the rendezvous: it
never leaves.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from healer.model import GpuActivity, JobOnNode, SlurmJob
from healer.model.goodput import Spent
from healer.sim.fleet.scenario import JobSpec
from healer.sim.nodes import SimNodes
from healer.sim.planted_faults import PCI


class Launcher:
    """Which nodes the large job works on. Without spares: on all nodes that Slurm gave it."""

    def __init__(self, spec: JobSpec, start: datetime) -> None:
        self._spec = spec
        self._life = 0
        #: Nodes that the job has left in this life and that Slurm still counts to it.
        self.left: frozenset[str] = frozenset()
        #: When the workers start on the nodes that remain.
        self.meets_at = start
        self._at, self._idle = start, 0
        #: Workers and spares, and the nodes and those left that they were chosen from.
        self._chosen_from: tuple[tuple[str, ...], frozenset[str]] = (), frozenset()
        self._chosen: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()
        #: Nodes that Slurm took out of the running job.
        self.swaps = 0
        #: Node-seconds of the nodes that the running job held beyond those it works on.
        self.idle_s = 0.0

    def look(self, job: SlurmJob, now: datetime) -> None:
        """Books the time since the last look, and notes what Slurm shows now."""
        self.idle_s += self._idle * (now - self._at).total_seconds()
        self._at = now
        running = job.state == "RUNNING" and not job.flags
        self._idle = max(0, len(job.nodes) - self._spec.nodes) if running else 0
        if job.restarts != self._life:
            self._life, self.left = job.restarts, frozenset()
        elif running and (gone := self.left.difference(job.nodes)):
            self.swaps += len(gone)
            self.left -= gone

    def workers(self, job: SlurmJob) -> frozenset[str]:
        """Nodes of its allocation on which the job works."""
        return self._choose(job)[0]

    def _choose(self, job: SlurmJob) -> tuple[frozenset[str], frozenset[str]]:
        """Workers and spares among the nodes that it has not left; cached: they change seldom."""
        left = self.left if job.restarts == self._life else frozenset[str]()
        nodes, before = self._chosen_from
        if nodes is not job.nodes or before is not left:
            staying = [node for node in job.nodes if node not in left]
            most = self._spec.nodes if self._spec.spares else len(staying)
            self._chosen = frozenset(staying[:most]), frozenset(staying[most:])
            self._chosen_from = job.nodes, left
        return self._chosen

    def leave(self, job: SlurmJob, bad: Iterable[str], now: datetime) -> list[str]:
        """Leaves these nodes while spares remain. Returns those on which the job worked."""
        worked: list[str] = []
        for node in bad:
            workers, spares = self._choose(job)
            if spares and node != job.nodes[0] and (node in workers or node in spares):
                worked += [node] if node in workers else []
                self.left |= {node}
        if worked:
            self.meets_at = now + timedelta(seconds=self._spec.meets_s)
        return worked

    def seen_on(self, node: str, job: SlurmJob, doing: Spent, now: datetime) -> JobOnNode:
        """What the node shows of the job: the launcher's agent, and a worker on each GPU where it works. One
        that it leaves has them until the others have met."""
        meets = now < self.meets_at
        if node not in job.nodes or (node in self.left and not meets):
            return JobOnNode(processes=0, counted=True)
        gpus = len(job.gpus[node])
        works = node in self.workers(job) and not meets
        busy = works and doing in {Spent.productive, Spent.starting}
        activity: dict[str, Any] = (
            {"util_percent": 99.0, "power_w": 650.0} if busy else {"util_percent": 0.0, "power_w": 70.0}
        )
        shown = tuple(GpuActivity(pci=pci, power_limit_w=700.0, **activity) for pci in PCI[:gpus])
        return JobOnNode(processes=1 + gpus * works, counted=True, gpus=shown)


class JobNodes(SimNodes):
    """Simulated nodes that show the large job as it is when they are asked; None: nothing is known of the
    job."""

    def __init__(self, seen: Callable[[str, str], JobOnNode | None], **of_nodes: Any) -> None:
        super().__init__(**of_nodes)
        self._seen = seen

    def job_on_node(self, node: str, job: str) -> JobOnNode:
        shown = super().job_on_node(node, job)
        return self._seen(node, job) or shown
