"""One real Slurm of 32 nodes for the whole test session, and jobs to run on it."""

import atexit
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from healer.adapters.slurm.cli_client import CliScheduler
from healer.embedded import embedded_slurm as slurm
from healer.embedded.embedded_slurm import RealSlurm
from tests.support.breakable_slurm import BreakableSlurm
from tests.support.wait import wait_until

NODES = 32
#: A requeued job waits this and one second more, unless its begin time is taken away.
CRED_EXPIRE_S = 15
#: After a third of this a silent node is seen, after all of it the node is DOWN.
SLURMD_TIMEOUT_S = 12


class Hooks:
    """Prolog, Epilog and RebootProgram that do what files in the folder above the Slurm's own one say."""

    def __init__(self, above: Path) -> None:
        self.folder = above / "hooks"

    def write(self) -> dict[str, str]:
        """The programs; their settings of slurm.conf."""
        self.folder.mkdir()
        # Slurm runs RebootProgram in a shell that slurmd started, and passes it no node.
        bodies = {
            "Prolog": f"[ ! -e {self.folder}/prolog-$SLURMD_NODENAME ]",
            "Epilog": f"while [ -e {self.folder}/epilog-$SLURMD_NODENAME ]; do sleep 0.1; done",
            "RebootProgram": "read -r _ _ _ slurmd _ </proc/$PPID/stat\n"
            "node=$(tr '\\0' '\\n' </proc/$slurmd/cmdline | grep ^gpu)\n"
            f"touch {self.folder}/reboot-$node",
        }
        for name, body in bodies.items():
            program = self.folder / name
            program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n")
            program.chmod(0o755)
        return {name: str(self.folder / name) for name in bodies}

    def prolog_fails(self, node: str) -> None:
        (self.folder / f"prolog-{node}").touch()

    def epilog_sticks(self, node: str) -> None:
        (self.folder / f"epilog-{node}").touch()

    def asked_to_boot(self, node: str) -> bool:
        """RebootProgram was run there."""
        return (self.folder / f"reboot-{node}").exists()

    def clear(self, node: str) -> None:
        for kind in ("prolog", "epilog", "reboot"):
            (self.folder / f"{kind}-{node}").unlink(missing_ok=True)


@pytest.fixture(scope="session")
def real_slurm() -> BreakableSlurm:
    """Started once for all tests; fails with one sentence where Slurm is missing."""
    why_not = slurm.available()
    if why_not:
        pytest.fail(
            f"These tests need a real Slurm. {why_not} `make test` installs it where it may.", pytrace=False
        )
    return started()


@functools.cache
def started() -> BreakableSlurm:
    """The Slurm of this process, up to its end."""
    # Cached here, not by pytest: a fixture imported into several conftest files is several fixtures.
    directory = Path(tempfile.mkdtemp(prefix="hs-"))
    directory.chmod(0o711)  # slurmctld runs as a user of its own
    cluster = cluster_in(directory)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(cluster.stop)
    cluster.start()
    return cluster


def cluster_in(directory: Path, **conf: str) -> BreakableSlurm:
    """Not started yet. Its files lie in `directory`, which has a short name. `conf`: more of slurm.conf."""
    settings = {"ReturnToService": "1", "SlurmdTimeout": str(SLURMD_TIMEOUT_S)} | Hooks(directory).write()
    return BreakableSlurm(directory / "s", NODES, cred_expire_s=CRED_EXPIRE_S, conf=settings | conf)


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


def hands(cluster: RealSlurm) -> CliScheduler:
    """What arranges and takes back on a real cluster, whatever adapter is under test."""
    return CliScheduler(str(cluster.slurm_conf), bin_dir=getattr(cluster, "bin_dir", None))


def clean(cluster: RealSlurm, jobs: Iterable[str] = ()) -> None:
    """Ends these jobs, brings every node back and waits until all of that is true."""
    scheduler = hands(cluster)
    ids = list(jobs)
    if ids:
        subprocess.run(["scancel", *ids], env=cluster.env, capture_output=True, timeout=20, check=True)
    for node in scheduler.snapshot().nodes.values():
        if node.drain or node.base == "DOWN":
            scheduler.resume(node.name)
    for reservation in scheduler.reserved():  # of tests of a node that ended in their middle
        scheduler.unreserve(reservation)

    def busy() -> dict[str, tuple[str, ...]]:
        """States of the nodes that are not idle, and of the jobs that have not ended."""
        picture = scheduler.snapshot()
        nodes = {node.name: node.state for node in picture.nodes.values() if node.state != ("IDLE",)}
        return nodes | {f"job {job.id}": (job.state,) for job in picture.jobs.values() if job.active}

    try:
        wait_until(lambda: not busy(), 30, what="all nodes idle again", every_s=0.1)
    except AssertionError as error:
        raise AssertionError(f"{error}; {busy()}") from None
