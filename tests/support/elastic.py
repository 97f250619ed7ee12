"""Agents of `healer_steps.torchrun` on this machine, each in the place of a node with a verdict file."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support import forked, frameworks
from tests.support.processes import descendants, free_port, living, name_of
from tests.support.wait import wait_until

JOB = Path(__file__).parent / "elastic_job.py"
DESCRIBED, LEAVING_LATE = JOB.with_name("described.py"), JOB.with_name("leaving_late.py")


class StepLog:
    """What workers of the job have written of their steps, by node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, name: str) -> list[dict[str, Any]]:
        """Steps and starts of the node's worker."""
        file = self.folder / f"{name}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def pid(self, name: str) -> int:
        """Of the node's newest worker; 0 before it has begun."""
        return next((one["pid"] for one in reversed(self.of(name)) if "pid" in one), 0)

    def steps(self, name: str, world: int) -> list[dict[str, Any]]:
        return [one for one in self.of(name) if "step" in one and one["world"] == world]

    def work(self, world: int, names: Sequence[str], *, more: int = 10, timeout_s: float = 120) -> None:
        """Waits until each of these nodes has made further steps with as many nodes as `world`."""
        before = {name: len(self.steps(name, world)) for name in names}
        try:
            wait_until(
                lambda: all(len(self.steps(name, world)) >= before[name] + more for name in names),
                timeout_s, what=f"{more} steps of {names} at {world} nodes", every_s=0.1,
            )  # fmt: skip
        except AssertionError:
            for file in sorted(self.folder.glob("*.txt")):
                print(f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}")
            raise


def step_of_agents(folder: Path, least: int, most: int, *srun: str) -> str:
    """The line of a job's script that starts an agent on each of its nodes, with options of srun. Each node
    has a verdict file of its own; the agent of the first task keeps the rendezvous."""
    environ = frameworks.QUIET | {"TMPDIR": str(folder)}
    settings = " ".join(f"{name}={value}" for name, value in environ.items())
    agent = (
        f"HEALER_VERDICT_FILE={folder}/$SLURMD_NODENAME.verdict exec {frameworks.python()}"
        f" -m healer_steps.torchrun --nnodes={least}:{most} --nproc-per-node=1 --max-restarts=3"
        " --start-method=forkserver"
        f" --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=127.0.0.1:{free_port()}"
        f" --rdzv-conf=is_host=$((SLURM_PROCID == 0)) {JOB} ddp {folder} $SLURMD_NODENAME 0"
    )
    return f"env {settings} srun {' '.join(srun)} --kill-on-bad-exit=1 sh -c '{agent}'"


class Agents:
    """The first of `names` keeps the rendezvous."""

    def __init__(
        self, folder: Path, names: Sequence[str], least: int, *, trainer: str = "plain", steps: int = 0
    ) -> None:
        self.folder, self.names, self.log = folder, names, StepLog(folder)
        self._least, self._trainer, self._steps = least, trainer, steps
        self._port = free_port()
        self._processes: dict[str, forked.Forked] = {}

    def start(self, name: str, *options: str, **environ: str) -> None:
        """Of equal options the last one counts."""
        job = [str(JOB), self._trainer, str(self.folder), name, str(self._steps)]
        self.run(name, *options, *job, **environ)

    def run(self, name: str, *script: str, **environ: str) -> None:
        """An agent of this script, with options before it."""
        keeps = int(name == self.names[0])
        words = [
            "--nproc-per-node=1", f"--nnodes={self._least}:{len(self.names)}", "--rdzv-backend=c10d",
            "--rdzv-id=job", f"--rdzv-endpoint=127.0.0.1:{self._port}", f"--rdzv-conf=is_host={keeps}",
            *script,
        ]  # fmt: skip
        base = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "TMPDIR": str(self.folder)}
        base |= {"HEALER_NODE": name, "HEALER_VERDICT_FILE": str(self.verdict(name)), "HEALER_SWAP": "1"}
        with (self.folder / f"{name}.txt").open("ab") as said:
            self._processes[name] = forked.fork(
                frameworks.agent(), words, base | frameworks.QUIET | environ, said, folder=self.folder
            )

    def verdict(self, name: str) -> Path:
        return self.folder / f"{name}.verdict"

    def decide(self, name: str, **more: Any) -> float:
        """healer takes the node out; when that was."""
        verdict = {
            "node": name,
            "state": "leave",
            "reason": "Xid 79: GPU fell off the bus",
            "incident": "0a1b2c3d",
        }
        verdict |= {"heard_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())} | more
        fresh = self.folder / "fresh"
        fresh.write_text(json.dumps(verdict))
        fresh.rename(self.verdict(name))
        return time.time()

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.txt").read_text(errors="replace")

    def work(self, world: int, names: Sequence[str] = (), *, more: int = 10) -> None:
        self.log.work(world, names or self.names, more=more)

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def ended(self, name: str, timeout_s: float = 90) -> int:
        """Its exit status; nothing that it started is left."""
        process = self._processes[name]
        started = descendants(process.pid)
        status = process.wait(timeout_s)
        wait_until(lambda: not living(started), 10, what=f"nothing of {name} is left")
        return status

    def runs(self, name: str) -> bool:
        return self._processes[name].poll() is None

    def close(self) -> None:
        started = {pid for process in self._processes.values() for pid in descendants(process.pid)}
        # What multiprocessing left in /dev/shm its tracker removes, which ends by itself.
        trackers = {pid for pid in started if "multiprocessing.resource_tracker" in name_of(pid)}
        for process in self._processes.values():
            process.kill()
            process.wait()
        for pid in living(started - trackers):
            with suppress(ProcessLookupError):  # ended meanwhile
                os.kill(pid, 9)
        wait_until(lambda: not living(started), 10, what="nothing of the agents is left")


@contextmanager
def agents(folder: Path, names: Sequence[str], least: int, **more: Any) -> Iterator[Agents]:
    """None is started yet."""
    one = Agents(folder, names, least, **more)
    try:
        yield one
    finally:
        one.close()
