"""The same drive for the real and the simulated Slurm, so that one suite can judge both."""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from healer.adapters.slurm.cli import CliScheduler
from healer.embedded.slurm import RealSlurm
from healer.ports import Scheduler
from healer.sim.clock import WallClock
from healer.sim.slurm import SimClient, SimScheduler, SimServer
from tests.support import slurm
from tests.support.slurm import real_slurm  # noqa: F401 - a fixture
from tests.support.wait import wait_until


class Bench(Protocol):
    """A cluster of 32 nodes under test, and hands to move it."""

    scheduler: Scheduler

    def submit(
        self,
        *nodes: str,
        gpus: int = 1,
        requeue: bool = True,
        batch: bool = True,
        excluded: Sequence[str] = (),
        name: str = "train",
        comment: str = "",
    ) -> str:
        """A job that runs until told, on exactly these nodes (or on any one)."""
        ...

    def finish(self, job: str) -> None:
        """The job's program ends well."""
        ...

    def person_drain(self, node: str, reason: str) -> None: ...
    def down(self, node: str) -> None: ...
    def silence(self, node: str) -> None: ...
    def revive(self, node: str) -> None: ...


class SimBench:
    def __init__(self, scheduler: SimScheduler | SimClient) -> None:
        self.scheduler: Any = scheduler

    def submit(self, *nodes: str, gpus: int = 1, **job: Any) -> str:
        return self.scheduler.submit(nodes=max(1, len(nodes)), gpus=gpus, required=list(nodes), **job)

    def finish(self, job: str) -> None:
        self.scheduler.complete(job)

    def person_drain(self, node: str, reason: str) -> None:
        self.scheduler.person_drain(node, reason, "root")

    def down(self, node: str) -> None:
        self.scheduler.set_node_down(node, "a person's DOWN", "root")

    def silence(self, node: str) -> None:
        self.scheduler.silence(node)

    def revive(self, node: str) -> None:
        self.scheduler.revive(node)


class RealBench:
    def __init__(self, cluster: RealSlurm) -> None:
        self.cluster = cluster
        self.scheduler = CliScheduler(str(cluster.slurm_conf))
        self.jobs: list[str] = []
        self.silent: set[str] = set()

    def submit(
        self,
        *nodes: str,
        gpus: int = 1,
        requeue: bool = True,
        batch: bool = True,
        excluded: Sequence[str] = (),
        name: str = "train",
        comment: str = "",
    ) -> str:
        options = [f"--nodes={max(1, len(nodes))}"]
        options += [f"--nodelist={','.join(nodes)}"] if nodes else []
        options += [f"--exclude={','.join(excluded)}"] if excluded else []
        options += [f"--comment={comment}"] if comment else []
        if not batch:
            job = slurm.interactive(self.cluster, *options)
        else:
            options += [] if requeue else ["--no-requeue"]
            script = f"while [ ! -e {self.cluster.directory}/end-$SLURM_JOB_ID ]; do sleep 0.05; done"
            job = slurm.sbatch(self.cluster, *options, gpus=gpus, name=name, script=script)
        self.jobs.append(job)
        return job

    def finish(self, job: str) -> None:
        (self.cluster.directory / f"end-{job}").touch()

    def person_drain(self, node: str, reason: str) -> None:
        self.cluster.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def down(self, node: str) -> None:
        self.cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=a person's DOWN")

    def silence(self, node: str) -> None:
        self.silent.add(node)
        self.cluster.kill_node(node)

    def revive(self, node: str) -> None:
        self.silent.discard(node)
        self.cluster.start_node(node)

    def clean(self) -> None:
        for node in list(self.silent):
            self.revive(node)
        slurm.clean(self.cluster, self.jobs)


@pytest.fixture
def real_bench(real_slurm: RealSlurm) -> Iterator[RealBench]:  # noqa: F811
    bench = RealBench(real_slurm)
    yield bench
    bench.clean()


@pytest.fixture(params=["sim", "sim-socket", pytest.param("cli", marks=pytest.mark.slurm)])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "cli":
        yield request.getfixturevalue("real_bench")
        return
    scheduler = SimScheduler(
        "pod1", WallClock(), 32, cred_expire_s=slurm.CRED_EXPIRE_S, slurmd_timeout_s=slurm.SLURMD_TIMEOUT_S
    )
    if request.param == "sim":
        yield SimBench(scheduler)
        return
    server = SimServer(scheduler, tmp_path / "sim.sock")
    server.start()
    client = SimClient(server.path)
    yield SimBench(client)
    client.close()
    server.stop()


@pytest.fixture
def sim_process(tmp_path: Path) -> Iterator[SimClient]:
    """A simulated Slurm in a process of its own, as `healer up` starts it."""
    import sys

    path = tmp_path / "s.sock"
    child = subprocess.Popen(
        [sys.executable, "-m", "healer.sim.slurm", "--socket", str(path), "--nodes", "4"]
    )
    try:
        wait_until(path.exists, 20, what="the simulated Slurm's socket")
        client = SimClient(path)
        yield client
        client.close()
    finally:
        child.terminate()
        child.wait(10)
