"""One real Slurm of 32 nodes for the whole test session, and jobs to run on it."""

import atexit
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from healer.adapters.slurm.cli import CliScheduler
from healer.embedded import slurm
from healer.embedded.slurm import RealSlurm
from tests.support.wait import wait_until

NODES = 32
#: A requeued job waits this and one second more, unless its begin time is taken away.
CRED_EXPIRE_S = 15
#: After a third of this a silent node is seen, after all of it the node is DOWN.
SLURMD_TIMEOUT_S = 12


@pytest.fixture(scope="session")
def real_slurm() -> RealSlurm:
    """Started once, whoever asks; fails with one sentence where Slurm is missing."""
    why_not = slurm.available()
    if why_not:
        pytest.fail(
            f"These tests need a real Slurm. {why_not} `make test` installs it where it may.", pytrace=False
        )
    return started()


@functools.cache
def started() -> RealSlurm:
    """The Slurm of this process, up to its end."""
    # Cached here, not by pytest: a fixture imported into several conftest files is several fixtures.
    directory = Path(tempfile.mkdtemp(prefix="hs-"))
    cluster = RealSlurm(
        directory / "s",
        NODES,
        cred_expire_s=CRED_EXPIRE_S,
        slurmd_timeout_s=SLURMD_TIMEOUT_S,
        conf={"ReturnToService": "1"},
    )
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(cluster.stop)
    cluster.start()
    return cluster


def sbatch(
    cluster: RealSlurm, *options: str, gpus: int = 1, script: str = "exec sleep 600", name: str = "train"
) -> str:
    """Submits a batch job of `gpus` GPUs on each of its nodes; its id."""
    command = ["sbatch", "--parsable", "--chdir=/", "--output=/dev/null", f"--job-name={name}", *options]
    if gpus:
        command.append(f"--gres=gpu:{gpus}")
    return cluster.run(*command, "--wrap", script).strip()


def interactive(cluster: RealSlurm, *options: str) -> str:
    """An allocation that is no batch job (salloc); its id."""
    done = subprocess.run(
        ["salloc", "--no-shell", "--gres=gpu:1", *options],
        env=cluster.env, cwd="/", capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    return done.stderr.split("Granted job allocation ")[1].split()[0]


def clean(cluster: RealSlurm, jobs: Iterable[str] = ()) -> None:
    """Ends these jobs, brings every node back and waits until all of that is true."""
    scheduler = CliScheduler(str(cluster.slurm_conf))
    ids = list(jobs)
    if ids:
        subprocess.run(["scancel", *ids], env=cluster.env, capture_output=True, timeout=20, check=True)
    for node in scheduler.snapshot().nodes.values():
        if node.drain or node.base == "DOWN":
            scheduler.resume(node.name)

    def idle() -> bool:
        picture = scheduler.snapshot()
        return all(node.state == ("IDLE",) for node in picture.nodes.values()) and not any(
            job.active for job in picture.jobs.values()
        )

    wait_until(idle, 30, what="all nodes idle again", every_s=0.1)
