"""What goes on at a node of a real Slurm is seen, and what its faults are worth meanwhile."""

from collections.abc import Iterator
from typing import Any

import pytest

from healer.embedded.embedded_slurm import RealSlurm
from tests.support.site import CLUSTER, XID_79, Site, site_on, stays
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def shared(real_slurm: RealSlurm) -> Iterator[Site]:
    with site_on(real_slurm) as one:
        wait_until(lambda: one.get("/nodes", limit=1)["items"], 20, what="the first picture")
        yield one


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    yield shared
    shared.clean()


def going_on(site: Site, node: str) -> dict[str, dict[str, Any]]:
    """By kind, as the node's own answer and the list of nodes show it."""

    def both() -> list[dict[str, Any]] | None:
        one = site.get(f"/nodes/{CLUSTER}/{node}")["context"]
        (listed,) = site.get("/nodes", q=node)["items"]
        apart = {going["kind"] for going in listed["context"]} ^ {going["kind"] for going in one}
        return [*one, {}] if apart <= {"booted"} else None

    # Two answers are of two moments: what changed between them is not yet in the first.
    agreed = wait_until(both, 10, what="both show the same", every_s=0.1)
    return {going["kind"]: going for going in agreed if going}


def test_in_a_maintenance_reservation_a_dead_gpu_waits_for_its_end(site: Site, real_slurm: RealSlurm) -> None:
    node, name = "gpu0012", "new-switches"
    real_slurm.run(
        "scontrol", "create", "reservation", f"ReservationName={name}", "StartTime=now", "Duration=60",
        f"Nodes={node}", "Flags=MAINT,IGNORE_JOBS", "Users=root",
    )  # fmt: skip
    try:
        planned = wait_until(
            lambda: going_on(site, node).get("maintenance"), 20, what="planned work is seen", every_s=0.2
        )
        assert planned["text"].startswith("planned maintenance: ") and planned["until"]
        site.kernel(node, XID_79)
        found = site.incident(node)
        wait_until(
            lambda: site.incidents(node)[0]["severity"] == "P3", 10, what="no one is paged", every_s=0.1
        )
        found = site.incidents(node)[0]
        assert (found["rule"], found["cause"], found["plan"]) == ("gpu-lost", "maintenance", "planned-work")
        stays(lambda: not site.node(node).drain, 3.0, what="nothing is done in planned work")
    finally:
        real_slurm.run("scontrol", "delete", f"ReservationName={name}")
    wait_until(lambda: "maintenance" not in going_on(site, node), 20, what="the work is over", every_s=0.1)
    stays(lambda: not site.node(node).drain, 3.0, what="nothing is done before it is seen again")
    site.kernel(node, XID_79.replace("79, pid=", "79, pid=9"))
    wait_until(lambda: site.drained_by_us(node), 20, what="it is drained when seen again", every_s=0.1)
    after = site.incidents(node)[0]
    assert (after["id"], after["severity"], after["plan"]) == (found["id"], "P1", "")
    assert after["cause"] != "maintenance"
    assert "maintenance" not in going_on(site, node)


def test_rebooted_node_is_not_lost_and_its_first_minutes_are_reported(
    site: Site, real_slurm: RealSlurm
) -> None:
    node = "gpu0013"
    real_slurm.run("scontrol", "reboot", "ASAP", "nextstate=RESUME", "reason=new kernel", node)
    try:
        entry = wait_until(
            lambda: going_on(site, node).get("rebooting"), 30, what="the reboot is seen", every_s=0.1
        )
        assert "REBOOT_ISSUED" in entry["text"]
        real_slurm.kill_node(node)
        stays(lambda: faults(site, node) == [], 8.0, what="a restarting node is not lost")
    finally:
        real_slurm.boot_node(node)
    booted = wait_until(
        lambda: going_on(site, node).get("booted"), 60, what="its first minutes are reported", every_s=0.2
    )
    assert booted["text"].startswith("within minutes of a boot until ") and booted["until"]
    wait_until(lambda: site.node(node).in_service, 60, what="Slurm has it back", every_s=0.2)
    for one in (node, "gpu0014"):
        a_check_fails(site, one)
    wait_until(lambda: faults(site, "gpu0014"), 10, what="a mount is lost on a node that did not boot")
    wait_until(lambda: passed_over(site, node), 10, what="the same is passed over here, and written down")
    assert faults(site, node) == []
    assert site.runs(node) == []


def a_check_fails(site: Site, node: str) -> None:
    """As the node's own health check reports it."""
    check = {"name": "fs-scratch", "text": "/scratch is not mounted"}
    answer = site.api("signals").post("/signals/hooks/health-check", json={"node": node, "checks": [check]})
    assert answer.status_code == 202, answer.text


def passed_over(site: Site, node: str) -> list[str]:
    records = site.get("/audit", verb="finding.passed_over", limit=100)["items"]
    return [one["data"]["why"] for one in records if one["subject"] == f"node/{node}"]


def faults(site: Site, node: str) -> list[str]:
    """Findings on the node, without its holder."""
    return [one["rule"] for one in site.incidents(node) if not one["rule"].endswith("-drain")]
