"""Which jobs a fault hits: only those on the faulty GPU, without guesses."""

import pytest

from healer.incidents.impact import hit_among, jobs_of
from healer.model import Component, RunState, SlurmJob, SlurmNode, SlurmSnapshot
from tests.support.loop import CLUSTER, LOST, START, Site, beat, name

NODE = name(1)
UNKNOWN = Component(cluster=CLUSTER, node=NODE, pci="0000:9b:00")
GPU_5 = Component(cluster=CLUSTER, node=NODE, pci="0000:9b:00", gpu=5)
WHOLE = Component(cluster=CLUSTER, node=NODE)
ALL = tuple(range(8))
#: The driver reports a loss over several lines; alone, the line that says it has no address.
LOST_SOMEWHERE = "NVRM: fallen off the bus and is not responding to commands."
INVENTORY = [{"index": 5, "pci": "0000:9b:00", "uuid": "GPU-x"}]


def job(number: int, gpus: tuple[int, ...] | None) -> SlurmJob:
    """`gpus` None: unknown."""
    return SlurmJob(id=str(number), state="RUNNING", nodes=(NODE,), gpus={} if gpus is None else {NODE: gpus})


@pytest.mark.parametrize(
    ("held", "where", "hit", "certain"),
    [
        # A job without a GPU is never hit, and hides no other job.
        ([()], UNKNOWN, [], True),
        ([()], GPU_5, [], True),
        ([(), ALL], UNKNOWN, [2], True),
        ([(), (4, 5)], GPU_5, [2], True),
        ([(), (0, 1)], GPU_5, [], True),
        # A lone job is hit for certain by a GPU of unknown index only if it holds them all.
        ([ALL], UNKNOWN, [1], True),
        ([(0,)], UNKNOWN, [1], False),
        ([(), (0,)], UNKNOWN, [2], False),
        ([(0, 1, 2, 3), (4, 5, 6, 7)], UNKNOWN, [1, 2], False),
        # A known index finds its job whatever the others hold or hide.
        ([(4, 5), None], GPU_5, [1], True),
        ([(0,), None], GPU_5, [2], False),
        # Recordings need not list GPUs: one job on the node is hit then.
        ([None], UNKNOWN, [1], True),
        ([None], GPU_5, [1], True),
        ([None, None], UNKNOWN, [1, 2], False),
        ([None, ()], UNKNOWN, [1], False),
        # The whole node hits all.
        ([(), (0,), None], WHOLE, [1, 2, 3], True),
        ([], UNKNOWN, [], True),
    ],
)
def test_jobs_hit_follow_from_the_gpus_that_they_hold(
    held: list[tuple[int, ...] | None], where: Component, hit: list[int], certain: bool
) -> None:
    jobs = [job(number, gpus) for number, gpus in enumerate(held, 1)]
    found, sure = hit_among(jobs, where, node_gpus=8)
    assert ([int(one.id) for one in found], sure) == (hit, certain)
    nodes = {NODE: SlurmNode(name=NODE, gpus=8)}
    picture = SlurmSnapshot(cluster=CLUSTER, taken_at=START, nodes=nodes, jobs={one.id: one for one in jobs})
    assert jobs_of(picture, where) == (found, sure)


def test_without_a_gpu_count_no_job_holds_them_all() -> None:
    assert hit_among([job(1, ALL)], UNKNOWN) == ([job(1, ALL)], False)


def test_a_line_that_names_no_gpu_still_speaks_of_one() -> None:
    jobs = [job(1, (0, 1, 2, 3)), job(2, (4, 5, 6, 7))]
    assert hit_among(jobs, WHOLE, node_gpus=8, one_gpu=True) == (jobs, False)
    assert hit_among([job(1, ())], WHOLE, node_gpus=8, one_gpu=True) == ([], True)


# --- the loop ---------------------------------------------------------------------------------------------


def lost(site: Site, *jobs: str, line: str = LOST, known: bool = False) -> dict[str, int]:
    """A GPU of the first node falls off the bus; the restart counts after its run did all it can."""
    first = [beat(NODE, site.now, gpus=INVENTORY)] if known else []
    site.run_for(20, *first, *site.say(1, line))
    (run,) = site.runs
    assert run.state is RunState.waiting, run.question
    found = {one: site.slurm.job(one) for one in jobs}
    return {name: shown.restarts for name, shown in found.items() if shown}


def submit(site: Site, gpus: int) -> str:
    return site.slurm.add_job(nodes=1, gpus=gpus, required=[NODE])


@pytest.mark.parametrize("known", [False, True])
def test_a_job_without_gpus_is_left_alone_when_an_idle_gpu_is_lost(known: bool) -> None:
    site = Site(4)
    cpu_only = submit(site, 0)
    assert lost(site, cpu_only, known=known) == {cpu_only: 0}
    assert site.incident.jobs_hit == ()


def test_a_job_on_one_gpu_is_left_alone_when_some_gpu_is_lost() -> None:
    site = Site(4)
    small = submit(site, 1)
    assert lost(site, small) == {small: 0}
    (run,) = site.runs
    assert "none is requeued" in site.log(run.id, "jobs")[-1].text


def test_job_without_gpus_hides_no_other() -> None:
    site = Site(4)
    cpu_only, whole = submit(site, 0), submit(site, 8)
    assert lost(site, cpu_only, whole) == {cpu_only: 0, whole: 1}
    assert site.incident.jobs_hit == (whole,)


def test_loss_without_an_address_hits_no_job_on_a_shared_node() -> None:
    site = Site(4)
    jobs = submit(site, 4), submit(site, 4)
    assert lost(site, *jobs, line=LOST_SOMEWHERE) == dict.fromkeys(jobs, 0)
