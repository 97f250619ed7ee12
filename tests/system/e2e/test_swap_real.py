"""A training job goes on without its bad node, from the line of its kernel to four nodes in Slurm: follower,
healer, a real Slurm, torch's own launcher, and healer-node over SSH.
"""

import random
from collections.abc import Iterator

import pytest

from healer.embedded.embedded_slurm import RealSlurm
from tests.support.stack import scratch_folder
from tests.support.swapping import LEAST, NODES, SAVE_EVERY, SWAP, Swaps, Training, swapping
from tests.support.wait import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(420)]


@pytest.fixture
def swaps(real_slurm: RealSlurm) -> Iterator[Swaps]:
    with scratch_folder() as folder, swapping(real_slurm, folder) as made:
        yield made


def shrunk(one: Training) -> None:
    """Slurm has taken the bad node out, and healer's run has come to that."""
    site = one.site
    try:
        wait_until(one.has_shrunk, 60, what="Slurm shrinks it", every_s=0.1)
    except AssertionError:
        print(one.said(), [site.steps(run["id"]) for run in site.runs(one.bad)])
        raise
    (run,) = site.runs(one.bad)
    assert run["playbook"] == "swap"

    def states() -> dict[str, str]:
        return {key.split(":")[0]: step["state"] for key, step in site.steps(run["id"]).items()}

    wait_until(lambda: states().get("shrink") == "done", 20, what="it was read back", every_s=0.1)
    assert {key: states()[key] for key in ("drain", "spare", "left")} == dict.fromkeys(
        ("drain", "spare", "left"), "done"
    )
    assert states().get("requeue") in {None, "skipped"}


def test_a_job_goes_on_without_its_node_and_slurm_takes_the_node_out(swaps: Swaps) -> None:
    with swaps.training(SWAP) as one:
        assert len(one.nodes) == NODES
        one.fault(random.choice(one.nodes[1:]))
        first = one.goes_on(LEAST)
        shrunk(one)
        one.log.work(LEAST, one.others)
        assert one.has_shrunk(), one.shown()
        assert [name for name in one.nodes if one.site.drained_by_us(name)] == [one.bad]
        for name in one.others:
            (start,) = [was for was in one.log.of(name) if "from_step" in was and was["world"] == LEAST]
            before = one.log.steps(name, NODES)[-1]["step"]
            assert start["from_step"] % SAVE_EVERY == 0 and start["restart"] == 0
            assert before - 2 * SAVE_EVERY <= start["from_step"] <= before
        one.check_losses()
        last = max(one.log.steps(name, NODES)[-1]["at"] for name in one.others)
        begun = [was["at"] for was in one.log.of(one.others[0]) if was["world"] == LEAST]
        parts = [f"{at - one.said_at:.1f}" for at in (last, begun[0], first["at"])]
        print(f"{one.bad}: line → last step of five, workers of four, next step: {', '.join(parts)} s")
