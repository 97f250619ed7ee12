"""The simulated Slurm and the simulated nodes as parts of `healer up` and `healer demo`."""

from healer.sim.nodes import main as run_nodes
from healer.sim.slurm import main as run_slurm

__all__ = ["run_nodes", "run_slurm"]
