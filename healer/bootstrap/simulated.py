"""The simulated Slurm and the simulated nodes as parts of `healer up` and `healer demo`."""

import socket
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from healer.embedded.tree import Part
from healer.sim.nodes import main as run_nodes
from healer.sim.slurm import main as run_slurm

__all__ = ["run_nodes", "with_slurm"]


def with_slurm(
    parts: Sequence[Part], path: Path, nodes: int, cluster: str | None = None, *, several: bool = False
) -> list[Part]:
    """These parts after a simulated Slurm of so many `nodes` that listens at `path`. They begin when it does:
    where HEALER_CLUSTER is not set they ask it for its name, and one that hears nothing ends the start.
    `cluster`: its ClusterName, its own (pod1) where nothing is set. `several`: the part is named after it."""
    called = ["--socket", str(path), "--nodes", str(nodes)] + ([f"--cluster={cluster}"] if cluster else [])
    name = f"sim-slurm-{cluster}" if several else "sim-slurm"
    return [Part(name, partial(run_slurm, called)), *(_after(part, path) for part in parts)]


def _after(part: Part, path: Path) -> Part:
    return replace(part, wanted=lambda: _listens(path) and part.wanted())


def _listens(path: Path) -> bool:
    """A socket that a killed one left behind does not count."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(1)
        try:
            asked.connect(str(path))
        except OSError:
            return False
    return True
