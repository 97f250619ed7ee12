"""The large job of a simulated site as healer would see it: its steps, checkpoints, and Slurm's states."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from msgspec.structs import replace

from healer.incidents.goodput_partition import harms_of, partition
from healer.model import Incident, Ruleset
from healer.model.goodput import Harm, Held, JobLife, SavedStep, Spent, Stretch
from healer.model.telemetry import StepBatch
from healer.observations.step_stretches import stretches
from healer.sim.fleet.menders import Healer, Nobody, with_rules
from healer.sim.fleet.people import People
from healer.sim.fleet.playing import Happenings, play
from healer.sim.fleet.scenario import JobSpec, Scenario
from healer.sim.fleet.score import finds
from healer.sim.fleet.site import CLUSTER, NOBODY, Site, Work
from healer.sim.fleet.windows import Windows

#: Of a step at full speed.
STEP_S = 6.0
#: Steps of one report.
_REPORTED = 500
#: Time that some cause took from the job.
_COSTS = frozenset({Spent.lost, Spent.slowed, Spent.hung, Spent.queued, Spent.starting})
#: What the simulator books without a fault: the first start, planned stops, a person's work on a host.
_NO_FAULTS = frozenset({NOBODY, "start", "planned", "taken off"})


class WatchedWork(Work):
    """The account of the simulator, which also writes down what a training loop reports: a step time at the
    end of each step, and each durable checkpoint. A step that is cut short is never reported."""

    def __init__(self, spec: JobSpec, start: datetime) -> None:
        super().__init__(spec, start)
        self.steps: dict[int, list[tuple[int, float, float]]] = {}
        self.saves: dict[int, list[SavedStep]] = {}
        self.harms: dict[int, list[Harm]] = {}
        self.life = 0
        self._step, self._done_s, self._saved_step = 0, 0.0, 0
        self._slowed: tuple[str, datetime] | None = None

    def be(
        self, doing: Spent, cause: str, now: datetime, *, slower: float = 1.0, slow_cause: str = NOBODY
    ) -> None:
        before = self.doing
        super().be(doing, cause, now, slower=slower, slow_cause=slow_cause)
        if before is Spent.productive and doing is not Spent.productive:
            self._step, self._done_s = self._saved_step, 0.0
        if before is Spent.hung and doing is not Spent.hung:
            self._end_harm(now)
        elif before is not doing and (doing is Spent.hung or before is Spent.productive):
            self._harm(cause, now, None, stopped=True)
        slowed = (slow_cause, now) if doing is Spent.productive and slow_cause != NOBODY else None
        if self._slowed is not None and (slowed is None or slowed[0] != self._slowed[0]):
            self._harm(self._slowed[0], self._slowed[1], now, stopped=False)
            self._slowed = None
        self._slowed = self._slowed or slowed

    def _harm(self, cause: str, since: datetime, until: datetime | None, *, stopped: bool) -> None:
        harm = Harm(
            incident=cause, cause=cause, since=since, until=until, stopped_at=since if stopped else None
        )
        self.harms.setdefault(self.life, []).append(harm)

    def _end_harm(self, now: datetime) -> None:
        harm = self.harms[self.life].pop()
        self._harm(harm.cause, harm.since, now, stopped=True)

    def _work(self, begin: float, end: float) -> None:
        super()._work(begin, end)
        left = max(0.0, min(end, self._spec.checkpoint_s) - begin)
        at, whole_s = self._at.timestamp(), STEP_S * self._slower
        while left >= whole_s - self._done_s - 1e-9:
            took = whole_s - self._done_s
            at, left, self._done_s = at + took, left - took, 0.0
            self._step += 1
            self.steps.setdefault(self.life, []).append((self._step, at, whole_s))
        self._done_s += left

    def _save(self) -> None:
        super()._save()
        self._saved_step = self._step
        self.saves.setdefault(self.life, []).append(SavedStep(self._at, self._step))

    def close(self, now: datetime) -> None:
        super().close(now)
        if self._slowed is not None:
            self._harm(*self._slowed, None, stopped=False)

    def stretches(self, life: int) -> tuple[Stretch, ...]:
        """Condensed as the scheduler does it: report by report."""
        steps, found = self.steps.get(life, []), []
        for at in range(0, len(steps), _REPORTED):
            last = found.pop() if found else None
            new = stretches(last, [_batch(steps[at : at + _REPORTED])])
            found += new if last is None or (new and new[0].begin == last.begin) else [last, *new]
        return tuple(found)


def _batch(steps: list[tuple[int, float, float]]) -> StepBatch:
    numbers, ends, spans = (np.array(column) for column in zip(*steps, strict=True))
    none, unset = np.full(len(steps), -1, np.int32), np.full(len(steps), np.nan)
    sent = datetime.fromtimestamp(ends[-1], UTC)
    return StepBatch(
        CLUSTER, "1", 0, sent, (), none, numbers, ends, none, none, none, spans, *(unset,) * 6
    )  # fmt: skip


class Watched:
    """A site played to its end, with what Slurm showed of the large job. True faults are its incidents."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.site = site = Site(scenario, seed)
        self.work = site.work = WatchedWork(scenario.job, scenario.start)
        self._lives: dict[int, JobLife] = {}
        looks = self._mend()
        Happenings(site)
        site.begin()
        play(site, (*looks, self._look))
        self._look()

    def _mend(self) -> Sequence[Callable[[], None]]:
        """Sets who repairs the site; returns what looks at it after each moment."""
        self.site.mender = Nobody(self.site)
        return ()

    def _harms(self, life: int) -> tuple[Harm, ...]:
        return tuple(self.work.harms.get(life, ()))

    def _look(self) -> None:
        job, now = self.site.snapshot().jobs[self.site.job], self.site.now
        runs = job.state == "RUNNING" and "COMPLETING" not in job.flags
        life = self._lives.get(job.restarts)
        if life is None:
            life = JobLife(restart=job.restarts, queued_at=now)
            before = self._lives.get(self.work.life)
            if before is not None and before.ended_at is None:
                self._lives[self.work.life] = replace(before, ended_at=now, state="REQUEUED")
            self.work.life = job.restarts
        spec, per_node = self.site.scenario.job, self.site.scenario.gpus
        if runs and life.started_at is None:
            started = max(job.start_at or now, life.queued_at)
            held = Held(started, spec.asks * per_node, spec.spares * per_node)
            life = replace(life, started_at=started, held=(held,), state="RUNNING")
        if not runs and life.started_at is not None and life.ended_at is None:
            life = replace(life, ended_at=now, state="NODE_FAIL")
        self._lives[job.restarts] = life

    def lives(self) -> list[JobLife]:
        lives = []
        for number, life in sorted(self._lives.items()):
            saved = tuple(self.work.saves.get(number, ()))
            steps = self.work.stretches(number)
            lives.append(replace(life, stretches=steps, saved=saved, harms=self._harms(number)))
        return lives

    def shares(self) -> tuple[dict[Spent, float], dict[Spent, float]]:
        """Of the job's GPU-time by class: by the ledger, and in truth. It waits for all nodes that it asks
        for."""
        wall_s = timedelta(days=self.site.scenario.days).total_seconds()
        spec, per_node = self.site.scenario.job, self.site.scenario.gpus
        found = dict.fromkeys(Spent, 0.0)
        for each in partition(self.lives(), self.site.end):
            found[each.spent] += each.gpu_s / (spec.asks * per_node) / wall_s
        works = spec.nodes / spec.asks
        truth = {
            kind: self.work.total(kind) / wall_s * (1.0 if kind is Spent.queued else works) for kind in Spent
        }
        return found, truth | {Spent.spare: self.site.launcher.idle_s / spec.asks / wall_s}


class HealedWatched(Watched):
    """The same with healer: the incidents are its own."""

    def __init__(self, scenario: Scenario, rules: Ruleset, seed: int) -> None:
        self._rules = rules
        self.incidents: dict[str, Incident] = {}
        #: Incident -> the cause of the fault that it found.
        self._found: dict[str, str] = {}
        super().__init__(scenario, seed)

    def _mend(self) -> Sequence[Callable[[], None]]:
        site = self.site
        site.mender = self._healer = Healer(site, with_rules(self._rules, site.scenario.rules))
        return Windows(site, self._healer).look, People(site, self._healer).look, self._note

    def _note(self) -> None:
        self.incidents |= self._healer.incidents
        for name, incident in self._healer.incidents.items():
            if name not in self._found:
                faults = (record.fault for record in self.site.records.values())
                causes = [fault.cause for fault in faults if finds(incident, fault)]
                self._found |= {name: causes[-1]} if causes else {}

    def _harms(self, life: int) -> tuple[Harm, ...]:
        return harms_of(self.site.job, life, self.incidents.values())

    def by_cause(self) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds that each cause of faults cost: by the ledger ("": without an incident), and in truth."""
        spec, per_node = self.site.scenario.job, self.site.scenario.gpus
        found: dict[str, float] = defaultdict(float)
        for each in partition(self.lives(), self.site.end):
            if each.spent in _COSTS:
                cause = self._found.get(each.incident, "") if each.incident else ""
                found[cause] += each.gpu_s / (spec.asks * per_node)
        return found, {cause: cost for cause, cost in self.work.by_cause().items() if cause not in _NO_FAULTS}

    def attributed(self) -> float:
        """The share of the time that faults cost which the ledger counts to the right cause."""
        found, truth = self.by_cause()
        return sum(min(cost, found.get(cause, 0.0)) for cause, cost in truth.items()) / sum(truth.values())
