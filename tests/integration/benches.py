"""The same drive for every Slurm that the contract suite judges: the simulated one and the real ones.

Each test takes nodes of its own (`Bench.free`), so none waits until what the last one left behind is gone.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from healer.adapters.slurm.preferred import PreferredScheduler
from healer.model import SlurmJob, SlurmNode, Submission
from healer.ports.scheduling import Scheduler
from healer.sim.sim_slurm import SimClient, SimScheduler
from tests.support import slurm
from tests.support.breakable_slurm import BreakableSlurm
from tests.support.slurm import Hooks, hands
from tests.support.wait import wait_until

#: Long enough for a real Slurm under the load of four test processes.
PATIENCE_S = 30


class Bench(Protocol):
    """A cluster of 32 nodes under test, and hands to move it.

    `scheduler` is what the suite calls: an adapter, or a chain where the adapter lacks calls. `bare` is the
    adapter alone. `untold` are fields that it has no way to see.
    """

    scheduler: Scheduler
    bare: Scheduler
    hidden: frozenset[str]

    def free(self, count: int = 1) -> list[str]:
        """So many idle nodes that no other test step uses."""
        ...

    def submit(
        self,
        *nodes: str,
        gpus: int = 1,
        requeue: bool = True,
        batch: bool = True,
        held: bool = False,
        no_kill: bool = False,
        excluded: Sequence[str] = (),
        name: str = "train",
        comment: str = "",
        reservation: str = "",
        dependency: str = "",
        array: int = 0,
    ) -> str:
        """A job that runs until stopped or until USR1, on exactly these nodes (or on any one)."""
        ...

    def submit_het(self, *nodes: str) -> str:
        """A heterogeneous job with one component on each of these nodes; its leader's id."""
        ...

    def wait_for_program(self, job: str) -> None:
        """Slurm calls a job RUNNING before its program runs: a signal then kills it, a notice is lost."""
        ...

    def finish(self, job: str) -> None:
        """The job's program ends well."""
        ...

    def fail(self, job: str) -> None:
        """The job's program ends with 3."""
        ...

    def ends(self, job: str, status: int) -> None:
        """A job whose script ends by itself with `status` does so; the simulated Slurm runs no script."""
        ...

    def heard(self, job: str, text: str) -> bool:
        """A notice with this text has reached the job."""
        ...

    def person_drain(self, node: str, reason: str) -> None: ...
    def down(self, node: str) -> None: ...
    def silence(self, node: str) -> None: ...
    def answer(self, node: str) -> None: ...

    def prolog_fails(self, node: str) -> None:
        """Every job that starts there fails to."""
        ...

    def epilog_sticks(self, node: str) -> None:
        """No job that ends there gets to its end."""
        ...

    def let_boot(self, node: str) -> None:
        """The reboot that was asked for is done."""
        ...


class SimBench:
    """A fresh simulated cluster for each test. `bare`: an adapter to it that is under test in its place."""

    def __init__(
        self,
        scheduler: SimScheduler | SimClient,
        bare: Scheduler | None = None,
        hidden: frozenset[str] = frozenset(),
    ) -> None:
        self.sim: Any = scheduler
        self.scheduler: Scheduler = PreferredScheduler([bare, scheduler]) if bare else scheduler
        self.bare: Scheduler = bare or scheduler
        self.hidden = hidden
        self._taken = 0

    def free(self, count: int = 1) -> list[str]:
        first = self._taken + 1
        self._taken += count
        return [f"gpu{number:04d}" for number in range(first, first + count)]

    def submit(self, *nodes: str, gpus: int = 1, **job: Any) -> str:
        wanted = max(1, len(nodes))
        return self.sim.add_job(
            nodes=wanted, gpus=gpus, required=list(nodes), user="root", ends_on="USR1", **job
        )

    def submit_het(self, *nodes: str) -> str:
        return self.sim.add_job(gpus=1, het=[[node] for node in nodes])

    def wait_for_program(self, job: str) -> None:
        """It runs no program."""

    def finish(self, job: str) -> None:
        self.sim.complete(job)

    def fail(self, job: str) -> None:
        self.sim.fail_job(job, "3")

    def ends(self, job: str, status: int) -> None:
        wait_until(lambda: self.sim.job(job).state == "RUNNING", PATIENCE_S, what=f"job {job} runs")
        if status:
            self.sim.fail_job(job, str(status))
        else:
            self.finish(job)

    def heard(self, job: str, text: str) -> bool:
        return f"notify {text}" in self.sim.heard(job)

    def person_drain(self, node: str, reason: str) -> None:
        self.sim.person_drain(node, reason, "root")

    def down(self, node: str) -> None:
        self.sim.set_node_down(node, "a person's DOWN", "root")

    def silence(self, node: str) -> None:
        self.sim.silence(node)

    def answer(self, node: str) -> None:
        self.sim.answer(node)

    def prolog_fails(self, node: str) -> None:
        self.sim.fail_launches(node)

    def epilog_sticks(self, node: str) -> None:
        self.sim.stick(node)

    def let_boot(self, node: str) -> None:
        """It boots by itself, within `boot_s`."""


#: Where the search for free nodes of a real cluster goes on: what was used last gets the longest rest.
_NEXT: dict[Path, int] = {}


class RealBench:
    """A real cluster that lives as long as the test process. `scheduler` is the adapter, or its chain."""

    hidden: frozenset[str] = frozenset()

    def __init__(self, cluster: BreakableSlurm, bare: Scheduler, scheduler: Scheduler | None = None) -> None:
        self.cluster = cluster
        self.bare, self.scheduler = bare, scheduler or bare
        self.hooks = Hooks(cluster.directory.parent)
        self._hands = hands(cluster)
        self.jobs: list[str] = []
        self.taken: list[str] = []
        self.silent: set[str] = set()

    def free(self, count: int = 1) -> list[str]:
        found: list[str] = []

        def there() -> bool:
            picture = self._hands.snapshot()
            reserved = {name for each in picture.reservations.values() for name in each.nodes}
            names = self.cluster.node_names
            first = _NEXT.get(self.cluster.directory, 0)
            ring = names[first:] + names[:first]
            idle = [name for name in ring if picture.nodes[name].state == ("IDLE",) and name not in reserved]
            found[:] = [name for name in idle if name not in self.taken][:count]
            return len(found) == count

        wait_until(there, PATIENCE_S, what=f"{count} free nodes", every_s=0.1)
        _NEXT[self.cluster.directory] = self.cluster.node_names.index(found[-1]) + 1
        self.taken += found
        return found

    def submit(
        self,
        *nodes: str,
        gpus: int = 1,
        requeue: bool = True,
        batch: bool = True,
        held: bool = False,
        no_kill: bool = False,
        excluded: Sequence[str] = (),
        name: str = "train",
        comment: str = "",
        reservation: str = "",
        dependency: str = "",
        array: int = 0,
    ) -> str:
        options = [f"--nodes={max(1, len(nodes))}"]
        options += [f"--nodelist={','.join(nodes)}"] if nodes else []
        options += [f"--exclude={','.join(excluded)}"] if excluded else []
        options += [f"--comment={comment}"] if comment else []
        options += [f"--reservation={reservation}"] if reservation else []
        options += [f"--dependency={dependency}"] if dependency else []
        options += [f"--array=0-{array - 1}"] if array else []
        options += ["--hold"] if held else []
        options += ["--no-kill"] if no_kill else []
        if not batch:
            job = slurm.interactive(self.cluster, *options)
        else:
            options += ["--requeue" if requeue else "--no-requeue"]
            options.append(f"--output={self.cluster.directory}/out-%j")
            job = slurm.sbatch(self.cluster, *options, gpus=gpus, name=name, script=self._script())
        self.jobs.append(job)
        return job

    def submit_het(self, *nodes: str) -> str:
        parts: list[str] = []
        for node in nodes:
            parts += [":"] if parts else []
            parts += [f"--nodelist={node}", "--gres=gpu:1", "--chdir=/", "--output=/dev/null"]
        job = self.cluster.run("sbatch", "--parsable", *parts, "--wrap", self._script()).strip()
        self.jobs.append(job)
        return job

    def _script(self) -> str:
        """Each life of a job says that it began, and runs until a file says how to end, or until USR1."""
        life = "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"
        began, end = f"{self.cluster.directory}/began-{life}", f"{self.cluster.directory}/end-{life}"
        return (
            f"trap 'exit 0' USR1; touch {began}; while [ ! -e {end} ]; do sleep 0.05; done; exit $(cat {end})"
        )

    def wait_for_program(self, job: str) -> None:
        began = self.cluster.directory / f"began-{self._life(job)}"
        wait_until(began.exists, PATIENCE_S, what=f"the program of job {job}")

    def finish(self, job: str) -> None:
        self._end(job, "0")

    def fail(self, job: str) -> None:
        self._end(job, "3")

    def _end(self, job: str, status: str) -> None:
        end = self.cluster.directory / f"end-{self._life(job)}"
        new = end.with_suffix(".new")
        new.write_text(status)
        new.rename(end)

    def _life(self, job: str) -> str:
        found = self._hands.job(job)
        assert found is not None
        return f"{found.id}-{found.restarts}"

    def ends(self, job: str, status: int) -> None:
        """Its own script does it."""

    def heard(self, job: str, text: str) -> bool:
        output = self.cluster.directory / f"out-{job}"
        return output.exists() and text in output.read_text()

    def person_drain(self, node: str, reason: str) -> None:
        self.cluster.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def down(self, node: str) -> None:
        self.cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=a person's DOWN")

    def silence(self, node: str) -> None:
        self.silent.add(node)
        self.cluster.kill_node(node)

    def answer(self, node: str) -> None:
        self.silent.discard(node)
        self.cluster.start_node(node)

    def prolog_fails(self, node: str) -> None:
        self.hooks.prolog_fails(node)

    def epilog_sticks(self, node: str) -> None:
        self.hooks.epilog_sticks(node)

    def let_boot(self, node: str) -> None:
        wait_until(lambda: self.hooks.asked_to_boot(node), PATIENCE_S, what=f"{node} is asked to boot")
        self.cluster.boot_node(node)

    def clean(self) -> None:
        """Takes back what the test did, and waits for nothing: the next test has other nodes."""
        if self.jobs:
            subprocess.run(
                ["scancel", *self.jobs], env=self.cluster.env, capture_output=True, timeout=20, check=True
            )
        picture = self._hands.snapshot()
        for name in picture.reservations:
            self._hands.unreserve(name)
        for node in list(self.silent):
            self.answer(node)
        for name, node in picture.nodes.items():
            self.hooks.clear(name)
            if node.held or node.after_reboot:
                self._hands.resume(name)
            if node.comment or node.extra:
                self._hands.annotate(name, comment="", extra="")
        self.jobs, self.taken = [], []


def job_of(bench: Bench, job: str) -> SlurmJob:
    found = bench.scheduler.job(job)
    assert found is not None
    return found


def wait_for(bench: Bench, job: str, *states: str, timeout_s: float = PATIENCE_S) -> SlurmJob:
    """One of these states and nothing besides: not configuring, in its prolog or completing."""

    def there() -> SlurmJob | None:
        found = bench.scheduler.job(job)
        if found is None or found.flags or found.reason == "Prolog":
            return None
        return found if found.state in states else None

    found = wait_until(there, timeout_s, what=f"job {job} {states}")
    assert found is not None
    return found


def running(bench: Bench, *nodes: str, **job: Any) -> str:
    """A job that runs; its id."""
    number = bench.submit(*nodes, **job)
    wait_for(bench, number, "RUNNING")
    return number


def as_shown(bench: Bench, field: str, value: Any, unseen: Any) -> Any:
    """The value that the bench's adapter shows for a field: `unseen` where it has no way to see it."""
    return unseen if field in bench.hidden else value


def mark(node: SlurmNode) -> tuple[object, ...]:
    """What a drain leaves on a node. (A node's boot time may move by a second when it registers again.)"""
    return node.state, node.reason, node.reason_user, node.reason_at


def submission(node: str, *, script: str = "#!/bin/sh\nexit 5\n", reservation: str = "") -> Submission:
    return Submission(
        name="healer-test-1a2b3c4d", script=script, nodes=(node,), time_limit_s=90, reservation=reservation,
        comment="healer test", gpus_per_node=8,
    )  # fmt: skip
