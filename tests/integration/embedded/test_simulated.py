"""The simulated Slurm beside the parts: they ask it for its name, so they begin after it."""

import socket
from multiprocessing import get_context
from pathlib import Path

import pytest

from healer.bootstrap.tree_parts import with_slurm
from healer.embedded.tree import Part
from healer.sim.sim_slurm import SimClient
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy


def nothing() -> None: ...


@pytest.mark.parametrize(
    ("cluster", "several", "part", "named"),
    [(None, False, "sim-slurm", "pod1"), ("x", False, "sim-slurm", "x"), ("-x", True, "sim-slurm--x", "-x")],
)
def test_it_has_the_name_of_the_cluster(
    cluster: str | None, several: bool, part: str, named: str, scratch: Path
) -> None:
    path = scratch / "slurm.sock"
    slurm, _ = with_slurm([Part("api", nothing, None)], path, 4, cluster, several=several)
    assert slurm.name == part
    process = get_context("fork").Process(target=slurm.run)
    process.start()
    try:
        wait_until(path.exists, what="it listens")
        client = SimClient(path)
        assert (client.cluster_name(), client.snapshot().cluster) == (named, named)
        client.close()
    finally:
        process.terminate()
        process.join()


def test_a_part_begins_when_the_simulated_slurm_listens(scratch: Path) -> None:
    path = scratch / "slurm.sock"
    asked: list[bool] = [False, True]
    slurm, api, scraper = with_slurm(
        [Part("api", nothing, None), Part("scraper", nothing, None, wanted=lambda: asked.pop(0))], path, 4
    )
    assert slurm.name == "sim-slurm" and slurm.wanted() and not api.wanted()
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    assert path.exists() and not api.wanted(), "left behind by one that was killed"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        assert api.wanted()
        assert [scraper.wanted(), scraper.wanted()] == [False, True], "its own wish counts too"
