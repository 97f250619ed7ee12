"""healer's pyslurm adapter on the stand-in `tests/support/pyslurm_fake`, in a process of its own."""

from pathlib import Path

from healer.adapters.slurm.pyslurm_client import PyslurmScheduler

FOLDER = Path(__file__).with_name("pyslurm_fake")
_REPOSITORY = Path(__file__).parents[2]


def environment(socket: Path, release: str, libslurm: str = "") -> dict[str, str]:
    """What the stand-in needs. `release` is pyslurm's; `libslurm` is the same where it is not named."""
    return {
        "PYTHONPATH": f"{FOLDER}:{_REPOSITORY}",
        "PYSLURM_FAKE_SOCKET": str(socket),
        "PYSLURM_FAKE_RELEASE": release,
        "PYSLURM_FAKE_LIBSLURM": libslurm or release,
    }


def fake_pyslurm(
    socket: Path, release: str = "24.11.0", *, libslurm: str = "", timeout_s: float = 20
) -> PyslurmScheduler:
    return PyslurmScheduler(timeout_s, env=environment(socket, release, libslurm))
