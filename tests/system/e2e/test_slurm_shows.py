"""What a real Slurm shows of itself reaches pages and readyz; nothing is done to a node because of it."""

from typing import Any

from healer.embedded.embedded_slurm import RealSlurm
from tests.support.site import Site, site_on
from tests.support.wait import wait_until

NODE = "gpu0031"


def slurm_check(site: Site) -> dict[str, Any]:
    return site.stack.http.get(f"{site.stack.url}/readyz").json()["checks"]["slurm"]


def troubles(site: Site) -> list[str]:
    return [one["what"] for one in slurm_check(site).get("troubles", ())]


def test_a_node_that_slurm_loses_and_a_controller_that_stops(real_slurm: RealSlurm) -> None:
    with site_on(real_slurm) as site:
        wait_until(lambda: site.get("/nodes", limit=1)["items"], 20, what="the first picture")
        assert troubles(site) == []
        a_node_is_lost_and_comes_back(site, real_slurm)
        a_controller_stops_and_comes_back(site, real_slurm)
        assert site.get("/runs")["items"] == []
        assert not any(node.held for node in site.scheduler.snapshot().nodes.values())


def a_node_is_lost_and_comes_back(site: Site, cluster: RealSlurm) -> None:
    cluster.kill_node(NODE)
    try:
        wait_until(lambda: site.incidents(NODE), 60, what="the lost node is an incident", every_s=0.2)
        (one,) = site.incidents(NODE)
        assert (one["rule"], one["root"]["node"]) == ("node-offline", NODE)
        shown = site.get(f"/nodes/pod1/{NODE}")
        assert shown["status"] in ("silent", "down")
        assert (shown["out_by"], shown["owner"]) == ("slurm", "Slurm")
    finally:
        cluster.start_node(NODE)
    wait_until(lambda: site.node(NODE).in_service, 60, what="the node is back", every_s=0.2)


def a_controller_stops_and_comes_back(site: Site, cluster: RealSlurm) -> None:
    before = {one["id"] for one in site.get("/incidents", limit=500)["items"]}
    cluster.kill_controller()
    try:
        wait_until(
            lambda: "away" in troubles(site), 40, what="the controller is seen to be away", every_s=0.2
        )
        (trouble,) = [one for one in slurm_check(site)["troubles"] if one["what"] == "away"]
        assert trouble["since"] and "cannot be read" in trouble["text"]
    finally:
        cluster.start_controller()
    wait_until(lambda: troubles(site) == [], 40, what="the controller is back", every_s=0.2)
    assert {one["id"] for one in site.get("/incidents", limit=500)["items"]} == before
