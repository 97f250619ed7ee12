"""Two nodes with addresses of their own, a follower on one: from no token at all to a drained node."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from healer.embedded.embedded_slurm import RealSlurm
from tests.support.breakable_slurm import BreakableSlurm
from tests.support.follower import XID_79, following
from tests.support.munge import Realm, realm
from tests.support.site import Site, site_on
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def slurm(folder: Path) -> Iterator[RealSlurm]:
    with BreakableSlurm(folder / "s", 2, own_addresses=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def site(slurm: RealSlurm) -> Iterator[Site]:
    with site_on(slurm, HEALER_MUNGE_SOCKET=str(slurm.directory / "run/munge.sock")) as one:
        yield one


@pytest.fixture(scope="module")
def munge(folder: Path, slurm: RealSlurm) -> Iterator[Realm]:
    at = folder / "m"
    at.mkdir(mode=0o755)
    with realm(at) as one:
        yield one


def test_a_node_that_calls_itself_another_gets_no_token(
    site: Site, slurm: RealSlurm, munge: Realm, folder: Path
) -> None:
    socket = munge.machine("127.0.1.1", key=slurm.directory / "run/munge.key")
    settings = {"HEALER_MUNGE_SOCKET": str(socket), "HEALER_NODE": "gpu0002"}
    with following(folder / "impostor", site.stack.url, **settings) as node:
        node.token.unlink()
        node.start("--enroll")
        assert node.process is not None and node.process.wait(20) == 1
        assert "healer rejected the enrollment (403)" in node.printed() and "127.0.1.1" in node.printed()
        assert not node.token.exists()


def test_a_node_enrols_itself_and_its_kernels_line_drains_it_while_the_api_was_away(
    site: Site, slurm: RealSlurm, munge: Realm, folder: Path
) -> None:
    socket = munge.machine("127.0.1.1", key=slurm.directory / "run/munge.key")
    settings = {"HEALER_MUNGE_SOCKET": str(socket), "HEALER_NODE": "gpu0001"}
    with following(folder / "node", site.stack.url, **settings) as node:
        node.token.unlink()
        node.start()
        wait_until(node.token.exists, 20, what="the node has a token")
        assert node.token.stat().st_mode & 0o777 == 0o600
        wait_until(lambda: "heartbeat_at" in site.get("/nodes/pod1/gpu0001")["heard"], 20, what="it is heard")
        assert "enrolled as node gpu0001 of cluster pod1" in node.printed()

        os.kill(site.stack.pids()["api"], signal.SIGKILL)
        node.say("NVRM: an ordinary line", XID_79)
        wait_until(lambda: site.drained_by_us("gpu0001"), 30, what="gpu0001 is drained", every_s=0.1)
        incident = site.incident("gpu0001")
        assert "79" in incident["fault"] and incident["root"]["pci"] == "0000:9b:00"
        assert not site.node("gpu0002").drain

        node.say(XID_79.replace("79", "48"), priority=1 * 8 + 4)  # a user's `echo >/dev/kmsg`
        assert node.stop() < 2
        assert [one["fault"] for one in site.incidents("gpu0001")] == [incident["fault"]]
