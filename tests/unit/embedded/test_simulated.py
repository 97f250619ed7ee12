"""The simulated Slurm beside the parts: they ask it for its name, so they begin after it."""

import socket
from pathlib import Path

from healer.bootstrap.simulated import with_slurm
from healer.embedded.tree import Part


def nothing() -> None: ...


def test_a_part_begins_when_the_simulated_slurm_listens(scratch: Path) -> None:
    path = scratch / "slurm.sock"
    asked: list[bool] = [False, True]
    slurm, api, scraper = with_slurm(
        [Part("api", nothing), Part("scraper", nothing, wanted=lambda: asked.pop(0))], path, 4
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
