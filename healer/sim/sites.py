"""The demo's Slurm as its users have it: they submit jobs, and an administrator drains a node."""

import shlex
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from healer.model import SlurmSnapshot

#: The jobs of the demo agree to be requeued for a slow node too (law of consent).
COMMENT = "healer:requeue"


class Site(Protocol):
    """What the story needs of a Slurm."""

    def submit(self, name: str, nodes: int, gpus: int) -> None: ...
    def snapshot(self) -> SlurmSnapshot: ...
    def person_drain(self, node: str, reason: str) -> None: ...


class RealSite:
    """Users of a real Slurm: sbatch, and an administrator's scontrol."""

    def __init__(self, snapshot: Callable[[], SlurmSnapshot]) -> None:
        self.snapshot = snapshot

    def submit(self, name: str, nodes: int, gpus: int) -> None:
        command = f"sbatch --parsable --requeue -J {name} -N{nodes} --gres=gpu:{gpus} -o /dev/null"
        _run([*shlex.split(command), f"--comment={COMMENT}", "--wrap", "sleep 86400"])

    def person_drain(self, node: str, reason: str) -> None:
        _run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"])


class SimSite:
    """Users of the simulated Slurm."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def submit(self, name: str, nodes: int, gpus: int) -> None:
        self._client.add_job(name=name, nodes=nodes, gpus=gpus, comment=COMMENT)

    def snapshot(self) -> SlurmSnapshot:
        return self._client.snapshot()

    def person_drain(self, node: str, reason: str) -> None:
        self._client.person_drain(node, reason, "bob")


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr.strip()}")
