"""kill -9 of each part and server while a GPU is lost: one drain, one restart, nothing stuck or lost."""

import random
from collections.abc import Iterator

import pytest

from healer.embedded.embedded_slurm import RealSlurm
from tests.support.killing import VICTIMS, end, moments, play
from tests.support.site import Site, real_slurm, site_on  # noqa: F401 - a fixture

pytestmark = [pytest.mark.slurm, pytest.mark.crash]

SEED = 79
ROUNDS = {blow.victim: (number, blow) for number, blow in enumerate(moments(random.Random(SEED), 5), 1)}


@pytest.fixture(scope="module")
def site(real_slurm: RealSlurm) -> Iterator[Site]:  # noqa: F811
    # Five roots in five minutes are a storm; here they are five stories.
    with site_on(real_slurm, HEALER_BREAKER_SHARE="1.0") as one:
        yield one


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_process_changes_nothing_of_the_story(site: Site, victim: str) -> None:
    number, blow = ROUNDS[victim]
    node = f"gpu{number:04d}"
    played = play(site, [blow], node)
    assert played.good, played
    end(site, node)
    site.audit_holds()
