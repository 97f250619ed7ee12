"""healer: the self-healing control plane for GPU clusters under Slurm."""

from pathlib import Path

__version__ = "0.1.0"

_PACKAGE = Path(__file__).parent


def data_folder(name: str) -> Path:
    """`rules`, `web`, `migrations`, `docs/runbooks`: the copy in an installed package, or the checkout's."""
    packed = _PACKAGE / "_data" / name
    return packed if packed.is_dir() else _PACKAGE.parent / name
