"""A person's drain is theirs: its reason, user and time stay to the byte, and healer never lifts it."""

from collections.abc import Iterator
from typing import Any

import pytest

from healer.embedded.embedded_slurm import RealSlurm
from tests.support.site import XID_79, Site, site_on, stays
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

BOB = "bob: PSU 2"


@pytest.fixture(scope="module")
def shared(real_slurm: RealSlurm) -> Iterator[Site]:
    with site_on(real_slurm) as one:
        yield one


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    shared.sent.clear()
    yield shared
    shared.clean()


def bob_drains(site: Site, node: str) -> list[str]:
    """What Slurm shows of it from now on."""
    site.scontrol(f"NodeName={node}", "State=DRAIN", f"Reason={BOB}")
    shown = site.shown(node)
    assert any(f"Reason={BOB} [root@" in line for line in shown)
    return shown


def incident_of_rule(site: Site, node: str, rule: str) -> dict[str, Any]:
    found = [one for one in site.incidents(node) if one["rule"] == rule]
    return found[0] if found else {}


def assert_return_is_refused(site: Site, node: str) -> None:
    answer = site.resume(node)
    assert answer.status_code == 409, answer.text
    assert answer.headers["content-type"].startswith("application/problem+json")
    body = answer.json()
    assert (body["code"], body["guard"]) == ("guard_refused", "ownership")
    assert BOB in body["detail"]


def test_a_drain_before_the_fault_stays_to_the_byte(site: Site) -> None:
    node = "gpu0005"
    site.snapshot()
    shown = bob_drains(site, node)
    wait_until(lambda: incident_of_rule(site, node, "person-drain"), 15, what="the drain is an incident")
    assert incident_of_rule(site, node, "person-drain")["owner"] == "root"
    site.snapshot()

    site.kernel(node, XID_79)
    held = wait_until(
        lambda: incident_of_rule(site, node, "gpu-lost").get("held_by"), 10, what="ownership holds the drain"
    )
    assert held == "ownership"
    assert incident_of_rule(site, node, "gpu-lost")["owner"] == "root"
    assert_return_is_refused(site, node)
    stays(lambda: site.shown(node) == shown, 3.0, what="Slurm shows what bob wrote")
    assert site.drains(node) == 1, "bob's own"
    site.keep("person-first")
    site.audit_holds()


def test_a_drain_that_replaces_ours_stays_to_the_byte(site: Site) -> None:
    node = "gpu0006"
    site.kernel(node, XID_79)
    wait_until(lambda: site.drained_by_us(node), 10, what="healer drains it", every_s=0.05)
    site.run_in(node, "waiting")
    shown = bob_drains(site, node)
    wait_until(lambda: incident_of_rule(site, node, "person-drain"), 15, what="the drain is an incident")
    assert incident_of_rule(site, node, "person-drain")["owner"] == "root"

    site.kernel(node, XID_79, gpu=3)
    assert_return_is_refused(site, node)
    stays(lambda: site.shown(node) == shown, 3.0, what="Slurm shows what bob wrote")


def test_a_drain_between_the_fault_and_our_own_stays_to_the_byte(site: Site) -> None:
    node = "gpu0007"
    pause = site.post(
        "/pauses", {"reason": "so that bob is faster", "scope": "node", "name": node}, status=201
    )
    site.kernel(node, XID_79)
    site.run_in(node, "held")
    shown = bob_drains(site, node)
    # Slurm's picture in the database may still be the one before bob's drain.
    answer = site.api("operator").delete(f"/pauses/{pause['id']}", params={"reason": "bob is done"})
    assert answer.status_code == 200, answer.text
    wait_until(lambda: incident_of_rule(site, node, "person-drain"), 15, what="the drain is an incident")
    stays(lambda: site.shown(node) == shown, 3.0, what="Slurm shows what bob wrote")
    assert site.drains(node) == 1, "bob's own"
    assert_return_is_refused(site, node)
    site.audit_holds()
