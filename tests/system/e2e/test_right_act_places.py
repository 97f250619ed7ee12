"""A leaf that goes away and planned work, on a real Slurm: nothing healthy is drained, what is dead is.

Both at the same time, with the breaker as it ships. Only the detector's waits are shorter
(`tests.support.hurried`).
"""

from collections.abc import Iterator
from typing import Any

import pytest

from healer.embedded.embedded_slurm import RealSlurm
from tests.support.right_act import Leaf, maintenance, rules_with
from tests.support.site import XID_79, Site, site_on
from tests.support.stack import scratch_folder
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

NAMES = [f"gpu{number:04d}" for number in range(1, 33)]
LEAF, OTHERS, WORKED_ON = NAMES[:8], NAMES[8:20], NAMES[20:26]
LAST_BACK, DIED = LEAF[2], LEAF[5]
STILL_LOST, LOST_AFTER = WORKED_ON[0], NAMES[27]
PLACES = {"gpu[0001-0008]": {"switch": "leaf1"}, "gpu[0009-0032]": {"switch": "leaf2"}}


@pytest.fixture(scope="module")
def site(real_slurm: RealSlurm) -> Iterator[Site]:
    with scratch_folder() as folder:
        rules = rules_with(folder, (), PLACES)
        with site_on(
            real_slurm,
            program=("-m", "tests.support.hurried", "silence", "proof"),
            HEALER_RULES_DIR=str(rules),
            # The leaf alone is a quarter of the fleet.
            HEALER_GUARD_MIN_SERVICE_SHARE="0.5",
        ) as one:
            yield one


@pytest.fixture(scope="module")
def leaf(site: Site) -> Iterator[Leaf]:
    """It went away, and came back but for two nodes."""
    one = Leaf(site, LEAF + OTHERS)
    with one.beating():
        for node in LEAF:
            one.silence(node)
        wait_until(lambda: of_leaf(site), 40, what="the outage is an incident", every_s=0.2)
        for node in LEAF:
            if node not in {LAST_BACK, DIED}:
                one.answer(node)
        try:
            yield one
        finally:
            for node in LEAF:
                site.slurm.start_node(node)


def of_leaf(site: Site) -> dict[str, Any] | None:
    found = (one for one in site.get("/incidents", limit=500)["items"] if one["rule"] == "switch-silent")
    return next(found, None)


def drained(site: Site, nodes: list[str]) -> list[str]:
    """Those that healer ever drained."""
    return [node for node in nodes if site.drains(node)]


def test_faults_under_planned_work_are_not_due_at_its_end_and_a_gpu_lost_after_it_is(
    site: Site, leaf: Leaf
) -> None:
    with maintenance(site, WORKED_ON):
        for node in WORKED_ON:
            site.kernel(node, XID_79)
        held = [site.incident(node) for node in WORKED_ON]
        assert {(one["severity"], one["cause"]) for one in held} == {("P3", "maintenance")}
    site.kernel(LOST_AFTER, XID_79)
    wait_until(lambda: site.drained_by_us(LOST_AFTER), 20, what=f"{LOST_AFTER} is drained", every_s=0.1)
    site.kernel(STILL_LOST, XID_79)
    wait_until(lambda: site.drained_by_us(STILL_LOST), 20, what=f"{STILL_LOST} is drained", every_s=0.1)
    rest = [node for node in WORKED_ON if node != STILL_LOST]
    assert drained(site, rest) == []
    assert site.get("/breaker")["state"] == "closed"
    for node in rest:
        wait_until(lambda node=node: site.incident(node)["state"] == "resolved", 40, every_s=0.2)
        assert "was not seen again" in site.incident(node)["closed_why"]
    assert drained(site, rest) == []


def test_of_a_leaf_that_was_away_only_the_node_that_died_is_drained(site: Site, leaf: Leaf) -> None:
    assert drained(site, LEAF) == [], "its last two nodes are part of its outage"
    leaf.answer(LAST_BACK)
    wait_until(lambda: site.drained_by_us(DIED), 40, what=f"{DIED} is drained", every_s=0.2)
    wait_until(lambda: (of_leaf(site) or {})["state"] == "resolved", 30, what="the outage is over")
    assert drained(site, LEAF + OTHERS) == [DIED]
    assert site.incident(DIED)["rule"] == "node-silent"
