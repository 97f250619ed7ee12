"""healer: the self-healing control plane for GPU clusters under Slurm."""

__version__ = "0.1.0"
