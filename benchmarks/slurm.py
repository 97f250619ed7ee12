"""What Slurm costs: drain, requeue and poll on real Slurms, beside the bare command or request.

    python benchmarks/slurm.py [--adapter cli|rest|sim] [--nodes 32 256 1250] [--count 200] [--jobs 1000]

`cli` runs on Debian's Slurm 22.05, `rest` on 24.11 with slurmrestd (`make test` installs both; root), `sim`
on the simulated one. slurmctld knows `--jobs` while it is polled. Prints p50 and p99 of each call, how much
of it the same command or request takes without healer, and healer's own CPU.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks._load import quantile
from healer.adapters.slurm.cli_client import CliScheduler
from healer.adapters.slurm.rest import RestScheduler
from healer.adapters.slurm.rest_token import FileToken
from healer.adapters.system_clock import SystemClock
from healer.embedded.embedded_slurm import RealSlurm
from healer.model import SlurmCall
from healer.ports.scheduling import Scheduler
from healer.sim.sim_slurm import SimScheduler, SlurmTimes
from tests.support.slurm import sbatch
from tests.support.trixie import TrixieSlurm
from tests.support.wait import wait_until

REASON = "healer:benchmark inc:00000000"
#: Jobs that run while it is measured, one GPU each: so many processes fit on one machine.
RUNNING = 30
POLLS = 20
#: Goal of issue 4: healer's own share of a poll of 1,250 nodes and 1,000 jobs.
POLL_GOAL_MS = 250


class Bench:
    """A cluster to measure. What begins with `bare` does a call without healer."""

    def __init__(self, scheduler: Scheduler, nodes: Sequence[str]) -> None:
        self.scheduler, self.nodes = scheduler, nodes

    def submit(self, *, held: bool) -> str:
        raise SystemExit("no jobs here")

    def bare_drain(self, node: str, state: str) -> None: ...
    def bare_poll(self) -> None: ...


class CliBench(Bench):
    def __init__(self, cluster: RealSlurm) -> None:
        super().__init__(CliScheduler(str(cluster.slurm_conf)), cluster.node_names)
        self.cluster = cluster

    def submit(self, *, held: bool) -> str:
        return sbatch(self.cluster, *(["--hold"] if held else []), script="exec sleep 3600")

    def bare_drain(self, node: str, state: str) -> None:
        self._run("scontrol", "update", f"NodeName={node}", f"State={state}", f"Reason={REASON}")

    def bare_requeue(self, job: str) -> None:
        self._run("scontrol", "requeue", "Incomplete", job)

    def bare_poll(self) -> None:
        for command in ("scontrol show node", "scontrol show reservation", "squeue --json"):
            self._run(*command.split())

    def _run(self, *command: str) -> None:
        subprocess.run(command, env=self.cluster.env, capture_output=True, check=True)


class RestBench(CliBench):
    def __init__(self, cluster: TrixieSlurm, folder: Path) -> None:
        super().__init__(cluster)
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(cluster.token())
        self.scheduler = RestScheduler(cluster.rest_url, user=None, token=FileToken(token), timeout_s=30)
        headers = {"X-SLURM-USER-TOKEN": cluster.token()}
        base = f"{cluster.rest_url}/slurm/v0.0.42"
        self._http = httpx.Client(base_url=base, headers=headers, timeout=60)

    def bare_drain(self, node: str, state: str) -> None:
        self._http.post(f"/node/{node}", json={"state": [state], "reason": REASON}).raise_for_status()

    def bare_poll(self) -> None:
        for path in ("/nodes", "/reservations", "/jobs"):
            self._http.get(path).raise_for_status()


class SimBench(Bench):
    def __init__(self, count: int) -> None:
        self.sim = SimScheduler("pod1", SystemClock(), count, times=SlurmTimes(completing_s=0))
        super().__init__(self.sim, [f"gpu{number:04d}" for number in range(1, count + 1)])

    def submit(self, *, held: bool) -> str:
        return self.sim.add_job(gpus=1, held=held)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds: on the clock, and of this process's CPU."""
    begun, cpu = time.perf_counter(), time.process_time()
    call()
    return (time.perf_counter() - begun) * 1000, (time.process_time() - cpu) * 1000


def show(what: str, times: Sequence[tuple[float, float]], bare: Sequence[float]) -> None:
    clock, cpu = [each[0] for each in times], statistics.median(each[1] for each in times)
    line = f"  {what:<24} p50 {statistics.median(clock):8.1f} ms  p99 {quantile(clock, 0.99):8.1f} ms"
    if bare:
        share = min(1.0, statistics.median(bare) / statistics.median(clock))
        line += f"  without healer {statistics.median(bare):8.1f} ms ({share:.0%})"
    print(f"{line}  own CPU {cpu:7.1f} ms  n={len(times)}", flush=True)


def drains(bench: Bench, count: int) -> None:
    times: list[tuple[float, float]] = []
    bare: list[float] = []
    for number in range(count):
        node = bench.nodes[number % len(bench.nodes)]
        times.append(timed(lambda: bench.scheduler.drain(node, REASON)))  # noqa: B023 - called at once
        bench.scheduler.undrain(node)
        if not isinstance(bench, SimBench):
            bare.append(timed(lambda: bench.bare_drain(node, "DRAIN"))[0])  # noqa: B023 - called at once
            bench.scheduler.undrain(node)
    show("drain", times, bare)
    together = list(bench.nodes[:32])
    times = []
    for _ in range(10):
        times.append(timed(lambda: bench.scheduler.drain(together, REASON)))
        bench.scheduler.undrain(together)
    show(f"drain {len(together)} in one call", times, [])


def requeues(bench: Bench, running: Sequence[str]) -> None:
    why = bench.scheduler.unavailable().get(SlurmCall.requeue)
    if why:
        print(f"  {'requeue':<24} not available here: {why}")
        return
    bare: list[float] = []
    if isinstance(bench, CliBench):
        by_hand = bench.bare_requeue
        bare = [timed(lambda job=job: by_hand(job))[0] for job in running[1::2]]
        running = running[::2]
    show("requeue", [timed(lambda job=job: bench.scheduler.requeue(job)) for job in running], bare)


def polls(bench: Bench, jobs: int, waiting: str) -> None:
    times: list[tuple[float, float]] = []
    bare: list[float] = []
    for number in range(POLLS):
        # Something is new in each picture: nothing is saved by its being the same.
        bench.scheduler.drain(bench.nodes[number % len(bench.nodes)], REASON)
        bench.scheduler.remark(waiting, f"{number}")
        times.append(timed(bench.scheduler.snapshot))
        if not isinstance(bench, SimBench):
            bare.append(timed(bench.bare_poll)[0])
        bench.scheduler.undrain(bench.nodes[number % len(bench.nodes)])
    picture = bench.scheduler.snapshot()
    show(f"poll, {len(picture.jobs)} jobs", times, bare)
    cpu = statistics.median(each[1] for each in times)
    if len(bench.nodes) >= 1250 and jobs >= 1000:
        print(f"  healer's own share of a poll: {cpu:.0f} ms (goal: below {POLL_GOAL_MS} ms)")
    unchanged = [timed(bench.scheduler.snapshot) for _ in range(POLLS)]
    show("poll, nothing new", unchanged, [])
    show("slurmctld itself", [timed(bench.scheduler.controller) for _ in range(POLLS)], [])


def measure(bench: Bench, count: int, jobs: int) -> None:
    drains(bench, count)
    running = [bench.submit(held=False) for _ in range(RUNNING)]

    def all_run() -> bool:
        known = bench.scheduler.snapshot().jobs
        return all(known[job].state == "RUNNING" for job in running)

    wait_until(all_run, 120, what=f"{RUNNING} jobs run", every_s=0.5)
    requeues(bench, running)
    waiting = [bench.submit(held=True) for _ in range(max(1, jobs - RUNNING))]
    polls(bench, jobs, waiting[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--adapter", choices=["cli", "rest", "sim"], nargs="+", default=["cli", "rest"])
    parser.add_argument("--nodes", type=int, nargs="+", default=[32, 256, 1250])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1000)
    options = parser.parse_args()
    for adapter in options.adapter:
        for nodes in options.nodes:
            with tempfile.TemporaryDirectory(prefix="hb-") as name:
                folder = Path(name)
                print(f"{adapter}, {nodes} nodes, load {os.getloadavg()[0]:.1f}", flush=True)
                if adapter == "sim":
                    measure(SimBench(nodes), options.count, options.jobs)
                elif adapter == "cli":
                    with RealSlurm(folder / "s", nodes, conf={"SlurmdTimeout": "300"}) as cluster:
                        measure(CliBench(cluster), options.count, options.jobs)
                else:
                    newest = TrixieSlurm(folder / "s", nodes)
                    with newest:
                        measure(RestBench(newest, folder), options.count, options.jobs)


if __name__ == "__main__":
    main()
