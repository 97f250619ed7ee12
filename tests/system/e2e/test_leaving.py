"""From a line of the kernel to the next step of a training job without the bad node: follower, healer, a real
Slurm, and torch's own launcher under it. healer touches no process of the job: its owner said `healer:keep`.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import slurm as slurm_support
from tests.support.elastic import StepLog, step_of_agents
from tests.support.follower import XID_79, following
from tests.support.site import CLUSTER, Site
from tests.support.stack import scratch_folder
from tests.support.wait import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(420)]


@pytest.fixture
def folder(site: Site) -> Iterator[Path]:
    with scratch_folder() as made:
        yield made
        # They write here. Workers that end by themselves leave no semaphores in /dev/shm, unlike killed ones.
        (made / "asked.new").write_text(json.dumps({"last_step": 1}))
        (made / "asked.new").rename(made / "asked.json")
        for job in site.jobs:
            wait_until(lambda job=job: not site.job(job).unfinished, 60, what=f"job {job} has ended")


def submit(site: Site, folder: Path) -> str:
    """A job on three nodes that goes on with two. Its file of the verdict is each node's own."""
    script = step_of_agents(folder, 2, 3, f"--output={folder}/%t.txt")
    job = slurm_support.sbatch(
        site.slurm, "--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--comment=healer:keep healer:swap=2",
        script=script, name="elastic",
    )  # fmt: skip
    site.jobs.append(job)
    wait_until(lambda: site.job(job).state == "RUNNING", 30, what=f"job {job} runs", every_s=0.1)
    return job


def test_a_fault_line_makes_the_agent_of_its_node_leave_and_the_others_go_on(
    site: Site, folder: Path
) -> None:
    job = submit(site, folder)
    nodes = site.job(job).nodes
    bad, others, log = nodes[2], nodes[:2], StepLog(folder)
    settings = {"HEALER_CLUSTER": CLUSTER, "HEALER_VERDICT_FILE": str(folder / f"{bad}.verdict")}
    with following(folder / "follower", site.stack.url, HEALER_NODE=bad, **settings) as follower:
        follower.token.write_text(site.token("signals", node=bad, cluster=CLUSTER))
        follower.start()
        log.work(3, nodes)
        follower.say(XID_79)
        said = time.time()
        wait_until(lambda: site.drained_by_us(bad), 30, what=f"{bad} is drained", every_s=0.05)
        drained = time.time()
        wait_until(
            lambda: '"leave"' in (folder / f"{bad}.verdict").read_text(),
            30,
            what="the node knows it",
            every_s=0.05,
        )
        knows = time.time()
        log.work(2, others)
    first = min(log.steps(name, 2)[0]["at"] for name in others)
    print(
        f"line → drained {drained - said:.1f}, on the node {knows - said:.1f}, next step {first - said:.1f} s"
    )
    for name in others:
        again = [one for one in log.of(name) if "from_step" in one and one["world"] == 2]
        assert len(again) == 1 and again[0]["from_step"] > 0 and again[0]["restart"] == 0
    shown = site.job(job)
    assert (shown.state, shown.restarts) == ("RUNNING", 0)
    assert log.of(bad)[-1]["world"] == 3
    assert "this agent leaves" in (folder / "2.txt").read_text()
