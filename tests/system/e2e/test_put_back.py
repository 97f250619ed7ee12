"""A node goes down under a job of a real Slurm, which requeues the job itself: healer starts it at once, and
leaves alone what a user holds."""

import pytest

from tests.support import slurm as slurm_support
from tests.support.site import CLUSTER, Site
from tests.support.slurm import CRED_EXPIRE_S
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm


def is_seen(site: Site, job: str) -> bool:
    """healer's own picture has it at work."""
    answer = site.api("viewer").get(f"/jobs/{CLUSTER}/{job}")
    return answer.status_code == 200 and answer.json()["job"]["state"] == "RUNNING"


def take_down(site: Site, node: str) -> None:
    site.slurm.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=work on the host")


def waited_s(site: Site, job: str) -> float:
    """From the requeue to its new start, by Slurm's own clock; both are whole seconds."""
    wait_until(lambda: site.job(job).restarts == 1, 60, what=f"Slurm requeues job {job}", every_s=0.1)
    wait_until(lambda: site.job(job).state == "RUNNING", 60, what=f"job {job} runs again", every_s=0.1)
    again = site.job(job)
    assert again.start_at is not None and again.submit_at is not None
    return (again.start_at - again.submit_at).total_seconds()


def test_a_job_that_slurm_requeued_starts_before_its_begin_time_and_a_held_one_does_not(site: Site) -> None:
    taken, dead, held = (slurm_support.sbatch(site.slurm, "--nodes=1", gpus=8) for _ in range(3))
    site.jobs += (taken, dead, held)
    for job in (taken, dead, held):
        wait_until(lambda job=job: is_seen(site, job), 60, what=f"healer sees job {job}", every_s=0.1)
    node_of = {job: site.job(job).nodes[0] for job in (taken, dead, held)}
    site.slurm.kill_node(node_of[dead])  # Slurm itself sets it DOWN
    take_down(site, node_of[held])
    wait_until(lambda: site.job(held).restarts == 1, 30, what="Slurm requeues it", every_s=0.05)
    site.slurm.run("scontrol", "hold", held)
    take_down(site, node_of[taken])
    assert waited_s(site, taken) < CRED_EXPIRE_S
    assert waited_s(site, dead) < CRED_EXPIRE_S
    shown = site.job(held)
    assert (shown.state, bool(shown.held_by)) == ("PENDING", True)
    site.slurm.start_node(node_of[dead])
