"""A relay's lies and truths about nodes that can be asked: a real Slurm, a real sshd and healer-node.

The look is given more time than the rules that ship give it: tests share the machine. `benchmarks/look.py`
measures it.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from healer.embedded.embedded_slurm import RealSlurm
from healer.incidents.second_look import SECOND_LOOK
from tests.support.looking import GPU, asking, relay_of
from tests.support.node_ssh import SshSite
from tests.support.right_act import rules_with
from tests.support.site import XID_48, XID_79, Site, stays
from tests.support.slurm import real_slurm  # noqa: F401 - a fixture
from tests.support.stack import scratch_folder
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

WELL, BROKEN, ALSO_BROKEN, SILENT = "gpu0011", "gpu0012", "gpu0013", "gpu0014"
PATIENT = [("playbooks/second-look.yaml", "timeout_s: 6", "timeout_s: 60")]


class Place:
    """A site, and its nodes behind sshd."""

    def __init__(self, site: Site, ssh: SshSite, relay: httpx.Client) -> None:
        self.site, self.relay = site, relay
        self.nodes = {node.name: node for node in ssh.nodes}

    def claim(self, node: str, line: str) -> str:
        """A relay says so; the line as the kernel would have it."""
        said = line.format(pci=GPU)
        body = self.site.kernel_body(node, said)
        assert self.relay.post("/signals/kernel-log", json=body).status_code == 202
        return said

    def looked(self, node: str) -> str:
        """What the first look at the node came to."""

        def ended() -> list[dict[str, object]]:
            runs = [run for run in self.site.runs(node) if run["playbook"] == SECOND_LOOK]
            return [run for run in runs if run["state"] == "done"]

        (run,) = wait_until(ended, 60, what=f"the look at {node} ends", every_s=0.1) or ()
        return str(self.site.steps(str(run["id"]))["look"]["text"])


@pytest.fixture(scope="module")
def place(real_slurm: RealSlurm) -> Iterator[Place]:  # noqa: F811 - the fixture
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        rules = str(rules_with(folder, PATIENT))
        nodes = (WELL, BROKEN, ALSO_BROKEN)
        site, ssh = stack.enter_context(asking(real_slurm, folder, nodes, HEALER_RULES_DIR=rules))
        yield Place(site, ssh, stack.enter_context(relay_of(site)))


def test_a_true_claim_drains_at_once_and_requeues_also_past_the_caps(place: Place) -> None:
    site = place.site
    jobs = {node: site.sbatch("-w", node) for node in (BROKEN, ALSO_BROKEN)}
    for node in jobs:
        place.nodes[node].programs.kmsg(XID_79.format(pci=GPU))
        place.claim(node, XID_79)
    for node, job in jobs.items():
        assert "confirms it" in place.looked(node)
        wait_until(lambda node=node: site.drained_by_us(node), 30, what=f"{node} is drained")
        wait_until(lambda job=job: site.job(job).restarts == 1, 30, what=f"job {job} is requeued")


@pytest.mark.parametrize("line", [XID_79, XID_48])
def test_a_forged_claim_about_a_healthy_node_drains_nothing_and_names_its_sender(
    place: Place, line: str
) -> None:
    site = place.site
    job = site.sbatch("-w", WELL)
    place.nodes[WELL].programs.has_gpu(f"{GPU}.0")
    place.nodes[WELL].programs.kmsg("usb 1-1: new device")
    place.claim(WELL, line)
    assert "denies" in place.looked(WELL)

    def page() -> list[tuple[object, ...]]:
        return site.sql("SELECT doc FROM messages WHERE id LIKE 'sender:%%'")

    wait_until(page, 10, what="a page names the relay")
    stays(lambda: not site.node(WELL).drain, 4.0, what="nothing is drained")
    assert (site.job(job).state, site.job(job).restarts) == ("RUNNING", 0)
    incident = site.incident(WELL)
    assert incident["held_by"] == "approval" and incident["severity"] != "P0", incident
    site.clean()


def test_unreachable_node_is_drained_within_the_caps_without_a_requeue(place: Place) -> None:
    """A node that does not answer denies nothing."""
    site = place.site
    job = site.sbatch("-w", SILENT)
    with relay_of(site, "rack 4 relay") as other:
        body = site.kernel_body(SILENT, XID_79.format(pci=GPU))
        assert other.post("/signals/kernel-log", json=body).status_code == 202
    assert "gives no clear answer" in place.looked(SILENT)
    wait_until(lambda: site.drained_by_us(SILENT), 30, what="within the caps it is drained")
    assert (site.job(job).state, site.job(job).restarts) == ("RUNNING", 0)
