"""On a shared node only the job on the faulty GPU is hit; where that is unknown, none is requeued."""

from collections.abc import Iterator
from typing import Any

import pytest

from healer.embedded.embedded_slurm import RealSlurm
from tests.support.site import GPU_AT, PCI, XID_79, Site, site_on, stays
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def shared(real_slurm: RealSlurm) -> Iterator[Site]:
    with site_on(real_slurm) as one:
        yield one


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    shared.sent.clear()
    yield shared
    shared.clean()


def two_jobs(site: Site, node: str) -> tuple[str, str, int]:
    """Two jobs of one GPU each on the node; (the first, the second, the second's GPU)."""
    site.snapshot()
    jobs = [site.sbatch("--requeue", f"--nodelist={node}", gpus=1) for _ in range(2)]
    taken = [site.job(job).gpus[node] for job in jobs]
    assert [len(gpus) for gpus in taken] == [1, 1] and taken[0] != taken[1]
    return jobs[0], jobs[1], taken[1][0]


def lose_gpu(site: Site, node: str, gpu: int) -> dict[str, Any]:
    """The run, once it has done all it can without a repair."""
    site.snapshot()
    site.kernel(node, XID_79, gpu=gpu)
    return site.run_in(node, "waiting", timeout_s=30)


def assert_only_the_owner(site: Site, node: str, other: str, owner: str, run: dict[str, Any]) -> None:
    assert site.steps(run["id"])["jobs"]["evidence"]["jobs"] == {owner: 0}
    assert site.incident(node)["jobs_hit"] == [owner]
    # It asks for this very node, which is out of service: it waits there, or runs when the node returns.
    wait_until(lambda: site.job(owner).restarts == 1, 20, what=f"job {owner} is restarted", every_s=0.1)
    shown = site.job(other)
    assert (shown.state, shown.restarts) == ("RUNNING", 0)
    assert site.drains(node) == 1


def test_inventory_identifies_the_owner_of_a_gpu(site: Site) -> None:
    node = "gpu0010"
    other, owner, gpu = two_jobs(site, node)
    site.inventory(node)
    run = lose_gpu(site, node, gpu)
    assert_only_the_owner(site, node, other, owner, run)
    site.keep("shared-node")

    site.kernel(node, XID_79, gpu=site.job(other).gpus[node][0])
    wait_until(lambda: site.job(other).restarts == 1, 20, what="the next GPU hits its own job", every_s=0.1)
    site.kernel(node, XID_79, gpu=gpu)
    stays(lambda: site.job(owner).restarts == site.job(other).restarts == 1, 2.0, what="each once")
    assert sorted(site.incident(node)["jobs_hit"]) == sorted([owner, other])
    assert len(site.incidents(node)) == site.drains(node) == 1


def test_driver_lines_identify_the_owner_of_a_gpu(site: Site) -> None:
    node = "gpu0011"
    other, owner, gpu = two_jobs(site, node)
    for index, pci in enumerate(PCI):
        uuid = f"5ff5a2f4-0000-4000-8000-{index:012d}"
        site.signal("kernel-log", site.kernel_body(node, GPU_AT.format(pci=pci, uuid=uuid)))
    run = lose_gpu(site, node, gpu)
    assert_only_the_owner(site, node, other, owner, run)


def test_unknown_address_requeues_no_job_and_says_so(site: Site) -> None:
    node = "gpu0012"
    one, another, gpu = two_jobs(site, node)
    run = lose_gpu(site, node, gpu)
    said = site.steps(run["id"])["jobs"]["text"]
    assert "none is requeued" in said and one in said and another in said
    stays(lambda: site.job(one).restarts == site.job(another).restarts == 0, 2.0, what="no job is requeued")
    assert site.drained_by_us(node)
    site.audit_holds()
