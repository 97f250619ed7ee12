"""The package of a node on old and new Pythons: it needs nothing else, keeps what Slurm calls, and goes."""

import json
import shutil
from collections.abc import Iterator

import pytest

from tests.packages.builds import FIRST, SECOND, Builds
from tests.packages.distro_machine import DistroMachine, distro_machine
from tests.support.stack import scratch_folder
from tests.support.wait import wait_until

LIB, CONF = "/usr/lib/healer", "/etc/healer/hook.conf"
PYTHONS = {"ubuntu18.04": "3.6", "debian11": "3.9", "ubuntu22.04": "3.10"}
CALLED = ("prolog", "epilog", "health-check")


class Node:
    def __init__(self, machine: DistroMachine, builds: Builds) -> None:
        self.machine, self._builds = machine, builds
        self.before = machine.listing()

    def install(self, version: str) -> str:
        made = self._builds.made("node-deb", version)
        shutil.copy(made, self.machine.folder / made.name)
        return self.machine.run("dpkg", "--install", f"/srv/site/{made.name}")

    def follower(self) -> tuple[str, str]:
        """Its state, and how often it was started again."""
        words = ("systemctl", "show", "--property=ActiveState", "--property=NRestarts", "healer-follow")
        shown = dict(line.split("=", 1) for line in self.machine.run(*words).splitlines())
        return shown["ActiveState"], shown.get("NRestarts", "0")

    def left(self) -> set[str]:
        itself = ("/var/log", "/var/cache", "/var/lib/systemd", "/var/lib/dpkg", "/root")
        return {path for path in self.machine.listing() - self.before if not path.startswith(itself)}


@pytest.fixture(scope="module", params=PYTHONS)
def node(request: pytest.FixtureRequest, builds: Builds) -> Iterator[Node]:
    with scratch_folder() as folder, distro_machine(request.param, folder) as machine:
        said = machine.run("/usr/bin/python3", "--version")
        assert said.startswith(f"Python {PYTHONS[request.param]}.")
        yield Node(machine, builds)


def test_a_node_s_life_with_the_package(node: Node) -> None:
    machine = node.machine
    assert f"set HEALER_URL in {CONF}" in node.install(FIRST)
    assert node.follower()[0] == "inactive", "it does not know where healer is"
    assert machine.run("systemctl", "is-enabled", "healer-follow").strip() == "enabled"
    assert machine.execute(f"{LIB}/prolog").returncode == 0

    machine.run("sed", "-i", "s,^HEALER_URL=.*,HEALER_URL=http://127.0.0.1:9,", CONF)
    machine.write("/etc/healer/token", "hl_0123456789abcdef", mode=0o600)
    machine.run("systemctl", "start", "healer-follow")
    journal = lambda: machine.run("journalctl", "--no-pager", "-u", "healer-follow", check=False)  # noqa: E731
    wait_until(
        lambda: "healer at http://127.0.0.1:9 does not answer" in journal(),
        60,
        what="it tries to reach healer",
    )
    assert node.follower() == ("active", "0")
    for name in CALLED[:2]:
        done = machine.execute(f"{LIB}/{name}")
        assert done.returncode == 0, f"{name} must not fail where healer is away: {done.stdout}{done.stderr}"
    assert machine.run("ls", "/var/spool/healer").split(), "what was not delivered waits"
    answer = json.loads(machine.execute(f"{LIB}/healer-node", "identify").stdout)
    assert answer["code"] == "missing", "there is no nvidia-smi, and it says so in its own form"

    machine.run("sh", "-c", f"echo '# of the site' >>{LIB}/prolog")
    node.install(SECOND)
    wait_until(lambda: node.follower() == ("active", "0"), 20, what="it runs again")
    assert "HEALER_URL=http://127.0.0.1:9" in machine.run("cat", CONF)
    assert machine.run("cat", f"{LIB}/prolog").endswith("# of the site\n")

    machine.run("mkdir", "-p", "/etc/slurm")
    machine.write("/etc/slurm/slurm.conf", f"Prolog={LIB}/prolog\n")
    machine.run("dpkg", "--remove", "healer-node")
    assert machine.execute(f"{LIB}/prolog").returncode == 0, "Slurm calls it still, and a missing one drains"
    assert "kept /usr/lib/healer" in machine.run("dpkg", "--purge", "healer-node")
    kept = {path for path in node.left() if not path.startswith("/etc/slurm")}
    assert kept == {LIB, *(f"{LIB}/{name}" for name in CALLED)}


def test_without_slurm_s_word_for_it_a_purge_leaves_nothing(node: Node) -> None:
    node.install(SECOND)
    node.machine.run("rm", "-r", "/etc/slurm")
    node.machine.run("dpkg", "--purge", "healer-node")
    assert node.left() == set()


def test_a_purge_keeps_what_a_slurm_of_another_folder_may_call(node: Node) -> None:
    """Built from source, Slurm lies in /opt or on a shared disk: only its unit says that it is here."""
    machine = node.machine
    node.install(SECOND)
    machine.run("mkdir", "-p", "/etc/slurm", "/etc/systemd/system")
    machine.write("/etc/slurm/cgroup.conf", "ConstrainDevices=yes\n")
    machine.write("/etc/systemd/system/slurmd.service", "[Service]\nExecStart=/opt/slurm/sbin/slurmd -D\n")
    machine.run("dpkg", "--purge", "healer-node")
    assert machine.execute(f"{LIB}/prolog").returncode == 0, "a missing one drains each node of the fleet"
