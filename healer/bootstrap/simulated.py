"""The simulated Slurm and the simulated nodes as parts of `healer up` and `healer demo`."""

from collections.abc import Sequence

from healer.sim import nodes, slurm


def run_slurm(arguments: Sequence[str]) -> None:
    slurm.main(arguments)


def run_nodes(arguments: Sequence[str]) -> None:
    nodes.main(arguments)
