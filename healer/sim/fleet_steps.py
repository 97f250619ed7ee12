"""Training jobs of a simulated cluster: step times of every rank, checkpoints, and the pauses between.

A step takes as long as its slowest rank and the collective after it: all ranks report the same `step_s`, and
only `compute_s` shows the slow one. Noise is that of published figures (published_figures 4).
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from healer.model import SlurmJob
from healer.sim.planted_faults import Floats


def trains(job: SlurmJob) -> bool:
    """Whether the job reports its steps: one on at least two nodes."""
    return len(job.nodes) >= 2


def rfc3339(at: float) -> str:
    """Unix seconds as the API takes a time, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Wide: parameters of the simulated steps, each with a default.
@dataclass(frozen=True, slots=True)
class Pace:
    """How jobs step. `whole_only`: names of jobs that report only `step_s`.

    `noise` is relative, from step to step; `bias` is the constant difference of a GPU.
    """

    compute_s: float = 4.1
    collective_s: float = 0.6
    data_s: float = 0.05
    noise: float = 0.004
    bias: float = 0.003
    work: float = 8192
    #: Steps that jobs had done before.
    done: int = 0
    checkpoint_every: int = 60
    checkpoint_s: float = 8.0
    evaluate_every: int = 250
    evaluate_s: float = 15.0
    #: Garbage is collected in one of this many steps of a rank.
    garbage_one_in: float = 2000
    garbage_s: float = 0.25
    warm_up_steps: int = 3
    warm_up: float = 2.5
    stages: int = 1
    last_stage: float = 1.06
    whole_only: frozenset[str] = frozenset()
    #: A rank reports an open step after this long, and again at this interval; None: never.
    says_after_s: float | None = 10.0
    reports: Callable[[SlurmJob], bool] = trains


#: Load of a GPU that waits in a collective: its kernel spins.
SPINS = 0.6


# Wide: the state of one life of a job, used by `Training` only.
@dataclass(slots=True)
class _Life:
    """One life of one job: from a start or requeue to the next."""

    job: SlurmJob
    rows: NDArray[np.int64]  # (ranks,) the node's row
    gpus: NDArray[np.int64]  # (ranks,)
    stages: NDArray[np.int64]
    longer: Floats  # (ranks,) of the stage
    chance: np.random.Generator
    first: int
    step: int
    begun: float
    ends: float = 0.0
    compute: Floats | None = None
    took_s: float = 0.0
    #: From here to `ends` the GPUs idle: a checkpoint or an evaluation ends the step.
    rests_from: float = 0.0
    hung: bool = False
    #: Ranks that never reach the collective of this step; `stopped`: they report nothing either.
    missing: tuple[int, ...] = ()
    stopped: bool = False
    reported_at: float = 0.0


class Training:
    """All jobs that report. `rows` maps a node to its row."""

    def __init__(self, rows: Mapping[str, int], gpus: int, seed: int, pace: Pace) -> None:
        self._rows, self._gpus, self._seed, self._pace = rows, gpus, seed, pace
        self._names = list(rows)
        self._bias = np.random.default_rng([seed, 3]).normal(0, pace.bias, (len(rows), gpus))
        self._bias = self._bias.clip(-3 * pace.bias, 3 * pace.bias)
        self._lives: dict[str, _Life] = {}
        #: Job -> the step of its last durable checkpoint.
        self._saved: dict[str, int] = {}
        self._jobs: Mapping[str, SlurmJob] | None = None
        self._held: list[tuple[NDArray[np.int64], NDArray[np.int64], str]] = []
        self._at = 0.0

    def show(self, jobs: Mapping[str, SlurmJob]) -> None:
        if jobs is self._jobs:
            return
        self._jobs = jobs
        running = {job.id: job for job in jobs.values() if job.state == "RUNNING" and job.nodes}
        self._held = [(*self._place(job), job.id) for job in running.values()]
        lives = {}
        for job in running.values():
            life = self._lives.get(job.id)
            if life is not None and life.job.restarts == job.restarts:
                lives[job.id] = life
            elif self._pace.reports(job):
                lives[job.id] = self._life(job)
        self._lives = lives
        self._saved = {job: step for job, step in self._saved.items() if job in jobs}

    def hang(self, job: str, ranks: Sequence[int] = (), *, stopped: bool = False) -> None:
        """The job's current step never ends; `ranks` do not reach its collective."""
        if job in self._lives:
            life = self._lives[job]
            life.hung, life.missing, life.stopped = True, tuple(ranks), stopped

    def go_on(self, job: str) -> None:
        """Ends the hang; the job restarts its step."""
        if job in self._lives:
            self._lives[job].hung, self._lives[job].compute = False, None

    def work(self, at: float) -> Floats:
        """(nodes, GPUs): NaN without a job, 1 at work, 0.1 while the job rests, `SPINS` while it hangs."""
        work = np.full((len(self._names), self._gpus), np.nan)
        for rows, gpus, job in self._held:
            life = self._lives.get(job)
            resting = life is not None and not life.hung and life.compute is not None
            resting = resting and life is not None and life.rests_from <= at < life.ends
            hangs = life is not None and life.hung
            work[rows, gpus] = 0.1 if resting else SPINS if hangs else 1.0
        return work

    def advance(
        self, at: float, slower: Floats, cluster: str
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Bodies of steps that ended and of checkpoints that became durable by `at`."""
        steps: list[dict[str, Any]] = []
        saved: list[dict[str, Any]] = []
        for life in self._lives.values():
            if life.hung:
                steps += self._open_steps(life, at, cluster)
                continue
            if life.compute is None:
                life.begun = at
                self._begin(life, slower)
            rows: list[dict[str, Any]] = []
            while life.ends <= at:
                rows += self._samples(life)
                if life.step % self._pace.checkpoint_every == 0:
                    saved.append(self._checkpoint(life, cluster))
                life.step, life.begun = life.step + 1, life.ends
                self._begin(life, slower)
            steps += self._open_steps(life, at, cluster)
            if rows:
                body = {"cluster": cluster, "job": life.job.id, "restart": life.job.restarts}
                steps.append({**body, "samples": rows})
        return steps, saved

    def _place(self, job: SlurmJob) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        pairs = [
            (self._rows[node], gpu)
            for node in job.nodes
            if node in self._rows
            for gpu in job.gpus.get(node, tuple(range(self._gpus)))
        ]
        held = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return held[:, 0], held[:, 1]

    def _life(self, job: SlurmJob) -> _Life:
        rows, gpus = self._place(job)
        ranks, stages = len(rows), self._pace.stages
        stage = np.arange(ranks) * stages // max(1, ranks)
        longer = np.where((stage == stages - 1) & (stages > 1), self._pace.last_stage, 1.0)
        name = zlib.crc32(f"{job.id}/{job.restarts}".encode())
        first = self._saved.get(job.id, self._pace.done) + 1
        return _Life(
            job=job, rows=rows, gpus=gpus, stages=stage, longer=longer, first=first, step=first, begun=0.0,
            chance=np.random.default_rng([self._seed, 4, name]),
        )  # fmt: skip

    def _begin(self, life: _Life, slower: Floats) -> None:
        pace, chance, ranks = self._pace, life.chance, len(life.rows)
        factor = 1 + self._bias[life.rows, life.gpus] + chance.normal(0, pace.noise, ranks)
        compute = pace.compute_s * life.longer * factor * slower[life.rows, life.gpus]
        if life.step - life.first < pace.warm_up_steps:
            compute = compute * pace.warm_up
        compute = compute + (chance.random(ranks) * pace.garbage_one_in < 1) * pace.garbage_s
        rest = pace.checkpoint_s if life.step % pace.checkpoint_every == 0 else 0.0
        rest += pace.evaluate_s if life.step % pace.evaluate_every == 0 else 0.0
        worked = float(compute.max(initial=0)) + pace.collective_s + pace.data_s
        life.compute, life.took_s = compute, worked + rest
        life.rests_from = life.begun + worked
        life.ends = life.begun + life.took_s

    def _samples(self, life: _Life) -> list[dict[str, Any]]:
        pace = self._pace
        assert life.compute is not None
        time, step_s = rfc3339(life.ends), round(life.took_s, 4)
        common: dict[str, Any] = {"time": time, "step": life.step}
        if life.job.name in pace.whole_only:
            return [{**common, "rank": rank, "step_s": step_s} for rank in range(len(life.rows))]
        comm = (life.rests_from - life.begun - pace.data_s - life.compute).round(4).tolist()
        return [
            {
                **common, "rank": rank, "node": self._names[row], "gpu": gpu, "step_s": step_s,
                "compute_s": compute, "comm_s": comm_s, "data_s": pace.data_s, "work": pace.work,
                "stage": stage,
            }
            for rank, (row, gpu, compute, comm_s, stage) in enumerate(
                zip(
                    life.rows.tolist(), life.gpus.tolist(), life.compute.round(4).tolist(), comm,
                    life.stages.tolist(), strict=True,
                )
            )
        ]  # fmt: skip

    def _open_steps(self, life: _Life, at: float, cluster: str) -> list[dict[str, Any]]:
        """What ranks report of a step that has been open for long."""
        pace = self._pace
        after_s = pace.says_after_s
        if after_s is None or life.compute is None or at - max(life.begun, life.reported_at) < after_s:
            return []
        life.reported_at = at
        came = life.begun + pace.data_s + life.compute
        rests = not life.hung and life.rests_from <= at
        rest = "checkpoint" if life.step % pace.checkpoint_every == 0 else "evaluation"
        rows = []
        for rank, (row, gpu) in enumerate(zip(life.rows.tolist(), life.gpus.tolist(), strict=True)):
            late = life.hung and rank in life.missing
            if late and life.stopped:
                continue
            waits = not late and at >= came[rank] and life.job.name not in pace.whole_only
            doing = rest if rests else "collective" if waits else "compute"
            since = life.rests_from if rests else float(came[rank]) if waits else life.begun
            rows.append(
                {
                    "time": rfc3339(at), "step": life.step - rests, "rank": rank, "node": self._names[row],
                    "gpu": gpu, "open_s": round(at - since, 3), "doing": doing,
                }
            )  # fmt: skip
        return [{"cluster": cluster, "job": life.job.id, "restart": life.job.restarts, "samples": rows}]

    def _checkpoint(self, life: _Life, cluster: str) -> dict[str, Any]:
        self._saved[life.job.id] = life.step
        return {
            "cluster": cluster, "job": life.job.id, "restart": life.job.restarts, "step": life.step,
            "path": f"/scratch/{life.job.name or 'job'}/{life.job.id}/step-{life.step}", "durable": True,
            "time": rfc3339(life.ends),
        }  # fmt: skip
