"""healer as an account with no rights of its own in Slurm, on a site that hides partitions."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from healer.embedded.embedded_slurm import RealSlurm
from tests.support.slurm import hands, sbatch
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

#: `nobody`, as which the rest runs once all is imported.
LOOK = """
import json, os, sys
from healer.adapters.slurm.cli_client import CliScheduler
from healer.text import say
say("slurm.not_available", why="")  # this Python may lie where only root may read: all is loaded before
slurm = CliScheduler(sys.argv[1])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
picture = slurm.snapshot()
print(json.dumps({
    "nodes": sorted(picture.nodes), "jobs": sorted(picture.jobs),
    "node": slurm.node("gpu0001").name, "job": slurm.job(sys.argv[2]) is not None,
    "on": {name: [job.id for job in slurm.jobs_on(name)] for name in picture.nodes},
}))
"""


@pytest.fixture
def hidden() -> Iterator[RealSlurm]:
    """Two nodes in a folder that every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="hp-"))
    folder.chmod(0o755)
    try:
        with RealSlurm(folder / "s", 2) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("change", ["Hidden=YES", "AllowGroups=root"])
def test_an_account_without_rights_sees_the_jobs_of_partitions_that_are_not_its_own(
    hidden: RealSlurm, change: str
) -> None:
    """A node that looks empty would be set DOWN or rebooted under a running job."""
    job = sbatch(hidden, "--nodelist=gpu0001")
    wait_until(lambda: [one.id for one in hands(hidden).jobs_on("gpu0001")] == [job], 15, what="it runs")
    partition = hands(hidden).node("gpu0001").partitions[0]
    hidden.run("scontrol", "update", f"PartitionName={partition}", change)
    program = [sys.executable, "-c", LOOK, str(hidden.slurm_conf), job]
    seen = json.loads(subprocess.run(program, capture_output=True, text=True, check=True, timeout=60).stdout)
    names = ["gpu0001", "gpu0002"]
    assert (seen["nodes"], seen["jobs"], seen["node"], seen["job"]) == (names, [job], "gpu0001", True)
    assert seen["on"] == {"gpu0001": [job], "gpu0002": []}
