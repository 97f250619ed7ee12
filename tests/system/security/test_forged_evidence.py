"""Lies about the fleet, by one relay's token, on a real Slurm: what they may do, and what they may not.

With the default guards on 32 nodes one slot is given, and the breaker opens at the fifth root.
"""

from collections.abc import Iterator

import httpx
import pytest

from healer.embedded.embedded_slurm import RealSlurm
from tests.support.site import XID_48, XID_79, Site, site_on, stays
from tests.support.slurm import real_slurm  # noqa: F401 - a fixture
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

#: What an exporter says of a GPU with rows that could not be remapped is found by this rule.
REMAP_FAILED = "gpu-row-remap-failed"
NODES = [f"gpu{number:04d}" for number in range(1, 9)]


@pytest.fixture
def site(real_slurm: RealSlurm) -> Iterator[Site]:  # noqa: F811 - the fixture
    with site_on(real_slurm) as made:
        yield made


@pytest.fixture
def relay(site: Site) -> Iterator[httpx.Client]:
    """A client with a token that vouches for nothing."""
    token = site.token("signals", "rack 3 relay", vouches="")
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"{site.stack.url}/api/v1", headers=headers, timeout=20) as client:
        yield client


def forge(site: Site, relay: httpx.Client, line: str, *nodes: str) -> None:
    for node in nodes:
        body = site.kernel_body(node, line.format(pci="0000:18:00"))
        assert relay.post("/signals/kernel-log", json=body).status_code == 202


def drained(site: Site) -> list[str]:
    return [node for node in NODES if site.node(node).drain]


@pytest.mark.parametrize("line", [XID_79, XID_48])
def test_one_line_each_drains_no_more_than_a_slot_and_restarts_no_job(
    site: Site, relay: httpx.Client, line: str
) -> None:
    job = site.sbatch("-w", NODES[0])
    forge(site, relay, line, NODES[0])
    wait_until(lambda: drained(site) == NODES[:1], 20, what="within the caps it may drain")
    forge(site, relay, line, *NODES[1:7])
    wait_until(lambda: all(site.incidents(node) for node in NODES[:7]), 15, what="seven incidents")
    stays(lambda: drained(site) == NODES[:1], 5.0, what="no cap is passed")
    shown = site.job(job)
    assert (shown.state, shown.restarts) == ("RUNNING", 0)
    forge(site, relay, line, NODES[7])
    wait_until(lambda: site.incidents(NODES[7]), 10, what="the eighth")
    stays(lambda: site.get("/breaker")["state"] == "closed", 3.0, what="it opens no breaker")
    (page,) = [name for (name,) in site.sql("SELECT id FROM messages WHERE id LIKE 'sender:%%'")]
    assert "rack 3 relay" in page
    # Healing goes on: the node's own word is believed as ever.
    site.kernel("gpu0020", XID_79)
    wait_until(lambda: site.drained_by_us("gpu0020"), 20, what="the truth is acted on")


def test_figures_of_ten_nodes_open_no_breaker_and_pass_no_cap(site: Site, relay: httpx.Client) -> None:
    """Rows that could not be remapped, as an exporter would say it: a fatal fault."""
    nodes = [*NODES, "gpu0009", "gpu0010"]
    text = "".join(f'DCGM_FI_DEV_ROW_REMAP_FAILURE{{Hostname="{node}",gpu="0"}} 1\n' for node in nodes)

    def all_reported() -> bool:
        answer = relay.post("/signals/openmetrics", content=text, headers={"Content-Type": "text/plain"})
        assert answer.status_code == 202
        return all(site.incidents(node) for node in nodes)

    wait_until(all_reported, 90, what="ten incidents", every_s=2)
    stays(lambda: site.get("/breaker")["state"] == "closed", 8.0, what="it opens no breaker")
    assert len([node for node in nodes if site.node(node).drain]) <= 1
    held = [one["held_by"] for node in nodes for one in site.incidents(node) if one["rule"] == REMAP_FAILED]
    assert len(held) == len(nodes) and held.count("approval") >= len(nodes) - 1
    (page,) = [name for (name,) in site.sql("SELECT id FROM messages WHERE id LIKE 'sender:%%'")]
    assert "rack 3 relay" in page
    site.kernel("gpu0020", XID_79)
    wait_until(lambda: site.drained_by_us("gpu0020"), 20, what="the truth is acted on")


def test_a_token_made_for_a_node_accuses_no_other(site: Site) -> None:
    token = site.token("signals", node="gpu0009")
    with httpx.Client(base_url=f"{site.stack.url}/api/v1", timeout=20) as client:
        headers = {"Authorization": f"Bearer {token}"}
        body = site.kernel_body("gpu0010", XID_79.format(pci="0000:18:00"))
        assert client.post("/signals/kernel-log", json=body, headers=headers).status_code == 403
    stays(lambda: not site.node("gpu0010").drain, 1.0, what="nothing is taken for a refused line")
