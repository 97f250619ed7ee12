"""The rpms by Debian's rpm: the server in a root of Debian 12, whose systemd is of EL 9's age, and a node's
package also with rpm and Python of EL 8's and of EL 9's age.

The repositories of EL and openSUSE are out of reach here: names of packages that an rpm needs are not tried.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.builds import ADDED, BOTH, FIRST, OURS, SECOND, Builds
from tests.packages.distro_machine import DistroMachine, distro_machine
from tests.packages.site import Site, nodes_of
from tests.support.stack import scratch_folder
from tests.support.wait import wait_until

RULES = "/etc/healer/rules"


@pytest.fixture(scope="module")
def site(builds: Builds) -> Iterator[Site]:
    with scratch_folder() as folder, distro_machine("debian12-tools", folder) as machine:
        yield Site("el9", machine, builds)


def rpm(machine: DistroMachine, *words: str) -> str:
    """Debian's own packages are none of rpm's, so it asks for none."""
    return machine.run("rpm", "--nodeps", *words)


def test_the_server_is_installed_upgraded_and_erased_and_keeps_what_is_the_site_s(site: Site) -> None:
    machine = site.machine
    rpm(machine, "--install", site.bring(FIRST))
    assert (
        len(
            machine.run("getent", "passwd", "healer", "healer-db", "healer-api", "healer-worker").splitlines()
        )
        == 4
    )
    assert site.modes("/var/lib/healer/audit", "/etc/healer/credentials") == {
        "/var/lib/healer/audit": "2751 healer-worker healer", "/etc/healer/credentials": "700 root root",
    }  # fmt: skip
    machine.run("systemctl", "enable", "--now", "healer.service")
    site.wait_until_ready()
    token = machine.run("healer", "token", "create", "--role", "viewer").split()[-1]
    wait_until(lambda: site.get("/api/v1/nodes", token)[0] == 200, 30, what="the token counts")
    site.edit_settings()

    rpm(machine, "--upgrade", site.bring(SECOND))
    assert f"healer {SECOND} " in machine.run("healer", "--version")
    assert site.active("healer") == ["active"]
    site.wait_until_ready()
    status, text = site.get("/api/v1/nodes", token)
    assert status == 200 and nodes_of(text) == 32
    assert "HEALER_GUARD_MAX_NODES = 4" in site.read("/etc/healer/healer.toml")
    assert site.read(f"{RULES}/{OURS}").endswith(ADDED)
    assert site.read(f"{RULES}/{BOTH}").endswith("# of the site\n")
    assert site.read(f"{RULES}/{BOTH}.rpmnew").endswith(ADDED)
    differ = machine.execute("rpm", "--verify", "--nodeps", "healer").stdout.splitlines()
    assert {line.split()[-1] for line in differ} == {"/etc/healer/healer.toml", f"{RULES}/{BOTH}"}

    rpm(machine, "--erase", "healer")
    assert site.active("healer") == ["inactive"]
    left = site.left() - {path for path in site.left() if path.startswith("/var/lib/rpm")}
    assert not [path for path in left if path.startswith(("/opt", "/usr"))]
    settings = {
        path for path in left if path.startswith("/etc/") and not path.startswith(("/etc/passwd", "/etc/g"))
    }
    assert {"/etc/healer/healer.toml.rpmsave", f"{RULES}/{BOTH}.rpmsave"} <= settings
    assert "/var/lib/healer/postgres/data/PG_VERSION" in left


@pytest.mark.parametrize(
    ("root", "python"), [("debian12-tools", "3.11"), ("ubuntu18.04", "3.6"), ("debian11", "3.9")]
)
def test_a_node_s_rpm_runs_and_leaves_what_slurm_may_call(root: str, python: str, builds: Builds) -> None:
    with scratch_folder() as folder, distro_machine(root, folder) as machine:
        for version in (FIRST, SECOND):
            shutil.copy(builds.made("node-rpm", version), folder / f"{version}.rpm")
        machine.run("sh", "-c", f"[ -e /usr/bin/python3 ] || ln -s python{python} /usr/bin/python3")
        assert machine.run("python3", "--version").startswith(f"Python {python}.")
        rpm(machine, "--install", f"/srv/site/{FIRST}.rpm")
        assert machine.run("systemctl", "is-enabled", "healer-follow").strip() == "enabled"
        answer = json.loads(machine.execute("/usr/lib/healer/healer-node", "identify").stdout)
        assert answer["code"] == "missing", "there is no nvidia-smi, and it says so in its own form"
        machine.run("systemctl", "disable", "healer-follow")
        rpm(machine, "--upgrade", f"/srv/site/{SECOND}.rpm")
        enabled = machine.run("systemctl", "is-enabled", "healer-follow", check=False).strip()
        assert enabled == "disabled", "the site's word stays"
        assert machine.execute("/usr/lib/healer/prolog").returncode == 0
        rpm(machine, "--erase", "healer-node")
        assert machine.run("ls", "/usr/lib/healer").split() == ["epilog", "health-check", "prolog"]
        assert machine.execute("/usr/lib/healer/prolog").returncode == 0


def test_old_systemd_without_credentials_gets_only_the_common_unit(builds: Builds, tmp_path: Path) -> None:
    """EL 8 has systemd 239."""
    listed = subprocess.check_output(["rpm", "-qpl", builds.made("el8", FIRST)], text=True).splitlines()
    units = [path for path in listed if path.startswith("/usr/lib/systemd/system/")]
    assert units == ["/usr/lib/systemd/system/healer.service"]
