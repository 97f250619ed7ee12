"""What healer is compared with: nobody, threshold checks, and whoever drains at the first sign.

Simple policies of our own over the same faults, Slurm, jobs and people. None of them tests a node before it
returns; people bring nodes back in their working hours.
"""

from datetime import datetime, timedelta

import numpy as np

from healer.model import SlurmNode
from healer.ports.slurm import SchedulerRefused
from healer.sim.fleet.schedule import DAY_S, Fault
from healer.sim.fleet.site import Site

WHO = "operator"
SATURDAY = 5
#: Xids and their kin reach whoever acts at the first sign after so long.
SIGN_S = 1.0


class Nobody:
    """No automation: Slurm's own (a node that does not answer goes DOWN, its job is requeued), and people."""

    name = "nobody"

    def __init__(self, site: Site) -> None:
        self.site = site
        self.did: dict[str, int] = {}

    def near(self, fault: Fault) -> None:
        return None

    def told(self, fault: Fault) -> None:
        self._people_find(fault)

    def said(self, node: str, line: str) -> None:
        return None

    def due(self) -> datetime | None:
        return None

    def turn(self) -> None:
        return None

    def owns(self, node: SlurmNode) -> bool:
        return node.reason_user == WHO

    # --- people ---

    def _people_find(self, fault: Fault) -> None:
        """What stops the job is looked for at once, anything else when somebody happens to see it."""
        if not (fault.way.hardware or fault.way.slower > 1) or fault.way_name == "unplanned-work":
            return
        seconds = fault.find_s if self.site.records[fault.id].stopped_job else fault.notice_s

        def found() -> None:
            if fault in self.site.active.get(fault.node, ()) and not self.site.slurm.node(fault.node).drain:
                self._count("found by hand")
                self._take_out(fault.node, "found by hand", retry_s=0)

        self.site.agenda.at(self.site.later(seconds), found)

    def _take_out(self, node: str, why: str, *, retry_s: float | None, start: bool = False) -> None:
        """Drains; the large job on it is requeued after `retry_s`, None: it is left alone."""
        self.site.slurm.person_drain(node, why, WHO)
        record = [one for one in self.site.records.values() if one.fault.node == node][-1:]
        for one in record:
            one.told_at = one.told_at or self.site.now
        job = self.site.snapshot().jobs[self.site.job]
        if retry_s is not None and job.state == "RUNNING" and node in job.nodes:
            life = job.restarts
            self.site.agenda.at(self.site.later(retry_s), lambda: self._restart(life, start))
        faults = self.site.active.get(node, ())
        repair_s = max(
            (one.repair_s for one in faults if one.way.hardware or one.way.slower > 1), default=0.0
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
        self._count("nodes brought back")
        self.site.mend(node)
        try:
            self.site.slurm.resume(node)
        except SchedulerRefused:
            return  # somebody else did

    def _count(self, what: str) -> None:
        self.did[what] = self.did.get(what, 0) + 1


class Thresholds(Nobody):
    """Checks on each node each few minutes, as NHC makes them: any that fails drains. Nothing is requeued;
    the job's owner tries again every few minutes."""

    name = "thresholds"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        spec, scenario = site.scenario.checks, site.scenario
        rng = np.random.default_rng([site.seed, 9])
        count = rng.poisson(spec.false_per_1000_node_days * scenario.nodes * scenario.days / 1000)
        for second in sorted(rng.uniform(0, scenario.days * DAY_S, count).tolist()):
            node = site.names[int(rng.integers(scenario.nodes))]
            site.agenda.at(scenario.start + timedelta(seconds=second), self._fails(node))

    def told(self, fault: Fault) -> None:
        super().told(fault)
        if fault.way.checked and not fault.way.silent:
            each = self.site.scenario.checks.every_s
            gone = (self.site.now - self.site.scenario.start).total_seconds()
            self.site.agenda.at(self.site.later(each - gone % each), self._fails(fault.node, fault))

    def _fails(self, node: str, fault: Fault | None = None):
        def drain() -> None:
            stands = fault is None or fault in self.site.active.get(node, ())
            if stands and not self.site.slurm.node(node).held:
                real = bool(self.site.active.get(node))
                retry_s = self.site.scenario.checks.retry_min * 60 if real else None
                self._take_out(node, "check: failed", retry_s=retry_s)

        return drain


class FirstSign(Nobody):
    """Any line of the kernel or the driver, any sensor, any silence: drained and requeued at once."""

    name = "first sign"

    def told(self, fault: Fault) -> None:
        super().told(fault)
        way = fault.way
        if way.lines or way.sensors or way.port_down:
            self.site.agenda.at(self.site.later(SIGN_S), lambda: self._sign(fault.node))

    def said(self, node: str, line: str) -> None:
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
