"""A fleet that measures: metrics, step times and checkpoints of simulated nodes, with faults planted in it.

From a seed alone: the same calls give the same bodies. All nodes are computed together, so a thousand nodes
cost about as little as thirty. Time passes by `advance`, which gives what the nodes send at that moment, in
the form of the API: `metrics` columnar per node, `step_times` and `checkpoints` per job.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from healer.model import SlurmSnapshot
from healer.sim.faults import Fault, Planted, checked, effects_of
from healer.sim.fleet_metrics import FleetMetrics
from healer.sim.fleet_steps import Pace, Training, rfc3339

#: Of a thousand scrapes, so many are lost and so many come one round late.
LOST_SHARE = 0.0005
LATE_SHARE = 0.0005
#: So long a node that boots sends nothing.
BOOT_S = 30.0


@dataclass(slots=True)
class Sent:
    """What a fleet sends at one moment: bodies of the three routes."""

    at: datetime
    metrics: list[dict[str, Any]] = field(default_factory=list)
    step_times: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)


class SimTelemetry:
    """The senders of one simulated cluster. Not safe to call from several threads.

    `racks` maps a node to where it stands (inlet temperatures differ by rack); without, eight nodes a rack.
    `quiet`: no scrape is ever lost or late.
    """

    def __init__(
        self,
        cluster: str,
        nodes: Iterable[str],
        *,
        start: datetime,
        seed: int = 0,
        gpus: int = 8,
        ports: int = 2,
        racks: Mapping[str, str] | None = None,
        pace: Pace | None = None,
        quiet: bool = False,
    ) -> None:
        self.cluster = cluster
        self.names = list(nodes)
        self._rows = {name: row for row, name in enumerate(self.names)}
        self._gpus, self._ports, self._quiet = gpus, ports, quiet
        self._chance = np.random.default_rng([seed, 1])
        rack_of = [racks.get(name, "") if racks else str(row // 8) for row, name in enumerate(self.names)]
        self._fleet = FleetMetrics(
            rack_of, gpus=gpus, ports=ports, start=start.timestamp(), chance=np.random.default_rng([seed, 2])
        )
        self._training = Training(self._rows, gpus, seed, pace or Pace())
        self._planted: list[Planted] = []
        self._effects = effects_of((), self._rows, gpus, ports)
        self._late: list[dict[str, Any]] = []
        #: Row -> until when (s since 1970) nothing comes from that node.
        self._dark: dict[int, float] = {}
        self._now = start.timestamp()

    # --- what is wrong

    @property
    def planted(self) -> Sequence[Planted]:
        return tuple(self._planted)

    def plant(self, fault: str, node: str | None = None, gpu: int | None = None) -> None:
        """ValueError for a fault, node or GPU that does not exist."""
        one = checked(fault, node, gpu, self._rows, self._gpus)
        if one not in self._planted:
            self._change([*self._planted, one])

    def mend(self, node: str | None = None, fault: str | None = None) -> None:
        """Takes away what is planted on the node (None: everything), or only that fault."""

        which = None if fault is None else Fault(fault)

        def stays(one: Planted) -> bool:
            return node not in {None, one.node} or which not in {None, one.fault}

        self._change([one for one in self._planted if stays(one)])

    def _change(self, planted: list[Planted]) -> None:
        self._planted = planted
        self._effects = effects_of(planted, self._rows, self._gpus, self._ports)

    def reboot(self, node: str) -> None:
        """Counters begin at 0 and nothing comes for a while."""
        row = self._rows[node]
        self._fleet.reset(row, boot_at=self._now)
        self._dark[row] = self._now + BOOT_S

    def restart_exporter(self, node: str) -> None:
        """One scrape is missing; the exporter's own counters begin at 0."""
        row = self._rows[node]
        self._fleet.reset(row, boot_at=None)
        self._dark[row] = self._now + 8.0

    # --- what the cluster does

    def show(self, snapshot: SlurmSnapshot) -> None:
        """Who works where from now on. Cheap when the jobs are the same as before."""
        self._training.show(snapshot.jobs)

    def hang(self, job: str, ranks: Sequence[int] = (), *, stopped: bool = False) -> None:
        """This life of the job makes no step any more: `ranks` never come to its collective; `stopped`: and
        say nothing."""
        self._training.hang(job, ranks, stopped=stopped)

    def go_on(self, job: str) -> None:
        """It hangs no more."""
        self._training.go_on(job)

    def advance(self, now: datetime) -> Sent:
        """What the fleet sends at `now`; later calls need later times."""
        at = now.timestamp()
        if at < self._now:
            raise ValueError(f"time cannot go back to {now}")
        sent = Sent(now)
        work = self._training.work(at)
        self._fleet.advance(at, work, self._effects)
        slower = self._fleet.slower(self._effects)
        sent.step_times, sent.checkpoints = self._training.advance(at, slower, self.cluster)
        self._now = at
        self._collect(sent, at)
        return sent

    def _collect(self, sent: Sent, at: float) -> None:
        stamp = rfc3339(at)
        bodies = self._fleet.bodies(self._effects)
        lost, late = self._harm()
        sent.metrics, self._late = self._late, []
        for row, body in enumerate(bodies):
            if row in lost or self._effects.silent[row] or self._is_dark(row, at):
                continue
            whole = {"cluster": self.cluster, "node": self.names[row], "time": stamp, **body}
            (self._late if row in late else sent.metrics).append(whole)

    def _harm(self) -> tuple[set[int], set[int]]:
        """Rows whose scrape is lost, and rows whose scrape comes with the next: nothing to worry about."""
        drawn = self._chance.random(len(self.names))
        if self._quiet:
            return set(), set()
        lost = np.flatnonzero(drawn < LOST_SHARE).tolist()
        late = np.flatnonzero((drawn >= LOST_SHARE) & (drawn < LOST_SHARE + LATE_SHARE)).tolist()
        return set(lost), set(late)

    def _is_dark(self, row: int, at: float) -> bool:
        until = self._dark.get(row)
        if until is None:
            return False
        if at >= until:
            del self._dark[row]
        return at < until
