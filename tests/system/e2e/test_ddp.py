"""A real torch job of four processes under the real Slurm reports its steps, and healer names the slow node.

The job has no token: it gets its own by munge. The TaskProlog of the page passes it healer's address.
"""

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from healer.embedded.embedded_slurm import RealSlurm
from tests.support import frameworks
from tests.support import slurm as slurm_support
from tests.support.processes import free_port
from tests.support.site import CLUSTER, Site, site_on
from tests.support.snippets import placed, snippet
from tests.support.stack import scratch_folder
from tests.support.wait import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(420)]

RANKS, SLOW = 4, 2
PROGRAM = Path(__file__).parents[2] / "support" / "ddp_job.py"


@pytest.fixture
def trained(real_slurm: RealSlurm) -> Iterator[Site]:
    """healer beside Slurm, by whose munge jobs prove whose they are."""
    socket = real_slurm.directory / "run" / "munge.sock"
    with site_on(real_slurm, HEALER_MUNGE_SOCKET=str(socket)) as site:
        yield site


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch_folder() as made:
        yield made


def submit(site: Site, folder: Path, *, slow_from: int = 20) -> str:
    """The job: one rank on each of four nodes. One of them is slow from that step on."""
    socket = site.slurm.directory / "run" / "munge.sock"
    environ = frameworks.QUIET | {
        "HEALER_MUNGE_SOCKET": str(socket),
        "TMPDIR": str(folder),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "SLOW_RANK": str(SLOW),
        "SLOW_FROM": str(slow_from),
        "CHECKPOINT": str(folder / "last.pt"),
    }
    prolog = folder / "task-prolog"
    prolog.write_text(placed(snippet("jobs.md", "TaskProlog"), {"https://healer.example": site.stack.url}))
    prolog.chmod(0o755)
    settings = " ".join(f"{name}={value}" for name, value in environ.items())
    script = (
        f"env {settings} srun --task-prolog={prolog} --output={folder}/%t.txt {frameworks.python()} {PROGRAM}"
    )
    job = slurm_support.sbatch(
        site.slurm, f"--nodes={RANKS}", f"--ntasks={RANKS}", "--ntasks-per-node=1", script=script, name="ddp"
    )
    site.jobs.append(job)
    wait_until(lambda: site.job(job).state == "RUNNING", 30, what=f"job {job} runs", every_s=0.1)
    return job


def said(folder: Path) -> str:
    return "\n".join(f"{file.name}: {file.read_text()[-2000:]}" for file in sorted(folder.glob("*.txt")))


def test_four_ranks_report_their_steps_and_the_slow_node_is_named(trained: Site, folder: Path) -> None:
    job = submit(trained, folder)
    nodes = trained.job(job).nodes

    def shown(what: str) -> Any:
        answer = trained.api("viewer").get(f"/jobs/{CLUSTER}/{job}")
        return answer.json().get(what) if answer.status_code == 200 else None  # not in the picture yet

    def all_ranks() -> Any:
        times = shown("step_times")
        return times if times and times["ranks"] == RANKS and not times["whole_only"] else None

    def all_nodes() -> bool:
        times = all_ranks()
        return bool(times) and {one["node"] for one in times["slowest"]} == set(nodes)

    try:
        wait_until(all_nodes, 120, what="step times of four ranks on four nodes", every_s=0.5)
    except AssertionError:
        print(said(folder))
        raise
    (mark,) = wait_until(lambda: shown("checkpoints"), 60, what="the checkpoint is reported", every_s=0.5)
    assert (mark["path"], mark["durable"], mark["step"]) == (str(folder / "last.pt"), True, 10)
    assert mark["sha256"] == hashlib.sha256((folder / "last.pt").read_bytes()).hexdigest()

    def found() -> Any:
        return next((one for one in trained.incidents(nodes[SLOW]) if one["rule"] == "straggler"), None)

    one = wait_until(found, 120, what="a straggler on the slow rank's node", every_s=0.5)
    whole = trained.get(f"/incidents/{one['id']}")
    assert whole["root"]["node"] == nodes[SLOW] and job in whole["jobs_hit"]
    others = {
        incident["root"]["node"] for incident in trained.open_incidents() if incident["rule"] == "straggler"
    }
    assert others == {nodes[SLOW]}
    assert trained.node(nodes[SLOW]).in_service  # step times alone drain no node

    rows = trained.sql("SELECT name, count(*) FROM tokens WHERE job = %s GROUP BY name", job)
    assert rows == [(f"job {CLUSTER}/{job}", 1)]  # the ranks of one machine share it


def test_stopped_rank_is_reported_as_the_one_all_others_wait_for(trained: Site, folder: Path) -> None:
    """SIGSTOP: its process is there and does nothing, as one in a driver's call that never ends."""
    job = submit(trained, folder, slow_from=1 << 30)
    nodes = trained.job(job).nodes

    def steps() -> int:
        answer = trained.api("viewer").get(f"/jobs/{CLUSTER}/{job}")
        times = answer.json().get("step_times") if answer.status_code == 200 else None
        return times["steps"][-1]["step"] if times and times["ranks"] == RANKS else 0

    try:
        wait_until(lambda: steps() >= 30, 120, what="thirty steps of four ranks", every_s=0.5)
    except AssertionError:
        print(said(folder))
        raise
    stopped = int((folder / f"pid-{SLOW}").read_text())
    os.kill(stopped, signal.SIGSTOP)
    try:

        def found() -> Any:
            return next((one for one in trained.open_incidents() if one["rule"] == "hang"), None)

        one = wait_until(found, 150, what="a hang of the job", every_s=0.5)
        whole = trained.get(f"/incidents/{one['id']}")
        assert whole["root"]["job"] == job and whole["jobs_hit"] == [job] and whole["severity"] == "P2"
        assert [part["node"] for part in whole["affected"]] == [nodes[SLOW]]
        text = whole["evidence"][0]["text"]
        assert "3 of 4 ranks wait in its collective" in text
        assert f"rank {SLOW} ({nodes[SLOW]}, GPU 0) no longer reports" in text
        run = wait_until(
            lambda: next((run for run in trained.get("/runs")["items"] if run["playbook"] == "hang"), None),
            30,
            what="its playbook is proposed",
            every_s=0.5,
        )
        assert (run["job"], run["state"]) == (job, "proposed")
        assert trained.job(job).state == "RUNNING" and trained.node(nodes[SLOW]).in_service
        trained.post(f"/runs/{run['id']}/approve", {"reason": "nobody makes a step"})

        def looked() -> bool:
            now = trained.get(f"/runs/{run['id']}")
            return now["state"] == "waiting" and now["question"].startswith("Waiting for approval")

        wait_until(looked, 60, what="it has looked, and asks before the restart", every_s=0.5)
        assert trained.job(job).restarts == 0
    finally:
        os.kill(stopped, signal.SIGCONT)
