"""The Ansible collection: clean by its own lint, and on a machine of Debian 12 by local connection, without a
network. Applied twice: the second time nothing changes."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from healer import __version__
from tests.packages.builds import FIRST, KEPT_WHEELS, Builds
from tests.packages.distro_machine import DistroMachine, distro_machine
from tests.packages.shared import CACHE, shared
from tests.support.stack import scratch_folder
from tests.support.up import ROOT
from tests.support.wait import wait_until

COLLECTION = ROOT / "deploy/ansible"
WANTED = Path(__file__).with_name("ansible.txt")
SECRET = "ab" * 32
ONE = "[healer_server]\nmachine\n[healer_nodes]\nmachine\n"
RECAP = re.compile(r"^machine .* changed=(\d+) +unreachable=0 +failed=(\d+)", re.MULTILINE)


@pytest.fixture(scope="module")
def tools() -> Path:
    """A folder with ansible-core and ansible-lint, for this Python and Debian 12's."""
    place = CACHE / "ansible"
    stamp = place / "wanted.txt"
    with shared(place):
        if not stamp.exists() or stamp.read_bytes() != WANTED.read_bytes():
            shutil.rmtree(place, ignore_errors=True)
            uv = Path(sys.executable).with_name("uv")
            into = ("pip", "install", "--quiet", "--python", sys.executable, "--target", place)
            subprocess.run([uv, *into, "-r", WANTED], check=True, env=os.environ | KEPT_WHEELS)
            shutil.copy(WANTED, stamp)
    return place


def lay_collection(folder: Path) -> Path:
    """Where Ansible looks for collections."""
    shutil.copytree(COLLECTION, folder / "ansible_collections/healer/healer")
    return folder


def test_the_collection_is_clean_by_ansible_lint(tools: Path, tmp_path: Path) -> None:
    found = lay_collection(tmp_path) / "ansible_collections/healer/healer"
    environ = {
        "PATH": f"{tools}/bin:/usr/bin:/bin", "PYTHONPATH": str(tools), "HOME": str(tmp_path),
        "ANSIBLE_COLLECTIONS_PATH": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "ansiblelint", "--offline", "--nocolor"],
        cwd=found, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert yaml.safe_load((found / "galaxy.yml").read_text())["version"] == __version__


class Site:
    """A machine with Ansible and the packages of a signed release on it."""

    def __init__(self, machine: DistroMachine, builds: Builds, tools: Path) -> None:
        self.machine = machine
        folder = machine.folder
        shutil.copytree(tools, folder / "tools", symlinks=True)
        lay_collection(folder / "collections")
        (folder / "rules").mkdir()
        (folder / "rules/scrape.yaml").write_text(
            (ROOT / "rules/scrape.yaml").read_text() + "# of the site\n"
        )
        release = folder / "release"
        release.mkdir()
        for name in ("debian12", "node-deb"):
            shutil.copy(builds.made(name, FIRST), release)
        sums = subprocess.run(
            ["sh", "-c", "sha256sum *.deb"], cwd=release, capture_output=True, check=True
        ).stdout
        (release / "SHA256SUMS").write_bytes(sums)
        for words in (
            "ecparam -name prime256v1 -genkey -noout -out ../package.key",
            "ec -in ../package.key -pubout -out ../package.pub",
            "dgst -sha256 -sign ../package.key -out SHA256SUMS.sig SHA256SUMS",
        ):
            subprocess.run(["openssl", *words.split()], cwd=release, capture_output=True, check=True)
        self.packages = {
            each.name.partition("_")[0]: f"release/{each.name}" for each in release.glob("*.deb")
        }
        self.inventory(ONE)

    def inventory(self, groups: str) -> None:
        of_all = "[all:vars]\nansible_connection=local\nansible_python_interpreter=/usr/bin/python3\n"
        (self.machine.folder / "inventory").write_text(groups + of_all)

    def play(self, *options: str, **given: object) -> tuple[int, int, str]:
        """How many tasks changed something, how many failed, and what was printed. A value of None is not
        given; files are named from the folder where it is called, as in README.md."""
        values = {
            "healer_release_key": "package.pub",
            "healer_server_package": self.packages["healer"],
            "healer_server_rules": "rules",
            "healer_server_settings": {"HEALER_GUARD_MAX_NODES": 4, "HEALER_MODE": "shadow"},
            "healer_server_credentials": {"api/token-key": SECRET},
            "healer_node_package": self.packages["healer-node"],
            "healer_node_settings": {"HEALER_URL": "http://127.0.0.1:8080"},
            "healer_node_token": "hl_0123456789abcdef",
        }
        said_values = {name: value for name, value in (values | given).items() if value is not None}
        (self.machine.folder / "values.json").write_text(json.dumps(said_values))
        done = self.machine.execute(
            "env", "--chdir=/srv/site", "PYTHONPATH=/srv/site/tools",
            "ANSIBLE_COLLECTIONS_PATH=/srv/site/collections", "LC_ALL=C.UTF-8",
            "python3.11", "-m", "ansible", "playbook", "-i", "inventory", "healer.healer.site",
            "-e", "@values.json", *options,
        )  # fmt: skip
        said = done.stdout + done.stderr
        recap = RECAP.search(said)
        assert recap is not None, said
        return int(recap[1]), int(recap[2]), said


@pytest.fixture(scope="module")
def site(builds: Builds, tools: Path) -> Iterator[Site]:
    with scratch_folder() as folder, distro_machine("debian12-tools", folder) as machine:
        yield Site(machine, builds, tools)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a machine")
def test_a_package_that_was_not_released_is_installed_nowhere(site: Site) -> None:
    other = site.machine.folder / "release/other_1_all.deb"
    other.write_bytes(b"!<arch>\n")
    changed, failed, said = site.play(healer_server_package=f"release/{other.name}")
    assert (changed, failed) == (0, 1) and "has the sum of the release" in said
    # A second node with a package of its own, beside one whose package is the release's.
    of_release = site.packages["healer-node"]
    site.inventory(
        f"[healer_nodes]\nfirst healer_node_package={of_release}\n"
        f"machine healer_node_package=release/{other.name}\n"
    )
    changed, failed, said = site.play("--check", healer_node_package=None)
    site.inventory(ONE)
    other.unlink()
    assert (changed, failed) == (0, 1), said
    assert site.machine.execute("test", "-e", "/var/cache/healer-packages").returncode == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a machine")
def test_check_mode_passes_on_a_new_machine_and_changes_nothing(site: Site) -> None:
    changed, failed, said = site.play("--check")
    assert changed > 0 and failed == 0, said
    for path in ("/var/cache/healer-packages", "/etc/healer"):
        assert site.machine.execute("test", "-e", path).returncode == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a machine")
def test_server_and_node_are_installed_and_a_second_play_changes_nothing(site: Site) -> None:
    machine = site.machine
    changed, failed, said = site.play()
    assert changed > 0 and failed == 0, said
    for unit in ("healer.service", "healer-follow.service"):
        wait_until(
            lambda unit=unit: machine.run("systemctl", "is-active", unit, check=False).strip() == "active",
            60, what=f"{unit} runs: {said}",
        )  # fmt: skip
        assert machine.run("systemctl", "is-enabled", unit).strip() == "enabled"
    modes = machine.run(
        "stat", "-c", "%n %a %U", "/etc/healer/healer.toml", "/etc/healer/credentials/api",
        "/etc/healer/credentials/api/token-key", "/etc/healer/token", "/etc/healer/hook.conf",
    )  # fmt: skip
    assert [line.split()[1] for line in modes.splitlines()] == ["644", "700", "600", "600", "644"]
    assert "HEALER_GUARD_MAX_NODES = 4" in machine.run("cat", "/etc/healer/healer.toml")
    assert machine.run("cat", "/etc/healer/rules/scrape.yaml").endswith("# of the site\n")
    assert machine.run("healer", "rules", "check").startswith("/etc/healer/rules: "), "healer reads them"
    assert machine.run("cat", "/etc/healer/hook.conf").endswith("HEALER_URL=http://127.0.0.1:8080\n")
    assert SECRET not in said and "hl_0123456789abcdef" not in said

    changed, failed, said = site.play()
    assert (changed, failed) == (0, 0), said


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a machine")
def test_a_changed_setting_restarts_and_a_wrong_rule_fails_the_play(site: Site) -> None:
    show = ("systemctl", "show", "--property=MainPID", "--value", "healer.service")
    before = site.machine.run(*show)
    _, failed, said = site.play(healer_server_settings={"HEALER_MODE": "off"})
    assert failed == 0 and site.machine.run(*show) != before, said
    assert "MAX_NODES" not in site.machine.run("cat", "/etc/healer/healer.toml"), "whole files are written"
    rule = site.machine.folder / "rules/scrape.yaml"
    well = rule.read_text()
    rule.write_text("targets: 1\n")
    before = site.machine.run(*show)
    for _ in ("copied", "there already"):
        _, failed, said = site.play(healer_server_settings={"HEALER_MODE": "shadow"})
        assert failed == 1 and "Check the rules" in said
    rule.write_text(well)
    _, failed, said = site.play(healer_server_settings={"HEALER_MODE": "shadow"})
    assert failed == 0 and site.machine.run(*show) != before, f"the settings count now: {said}"


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a machine")
def test_the_other_form_starts_after_the_first_has_stopped_and_a_failed_upgrade_loses_no_restart(
    site: Site,
) -> None:
    def since(name: str, unit: str) -> int:
        return int(site.machine.run("systemctl", "show", f"--property={name}Monotonic", "--value", unit))

    target = {"healer_server_unit": "healer.target"}
    _, failed, said = site.play(**target)
    assert failed == 0, said
    started = since("ActiveEnterTimestamp", "healer.target")
    assert since("InactiveEnterTimestamp", "healer.service") < started, "never two workers at once"
    # Its database does not answer.
    owner = {"upgrade/database-url": "postgresql://healer@127.0.0.1:9/healer"}
    secrets = {"healer_server_credentials": {"api/token-key": SECRET} | owner}
    for _ in ("the secret is new", "nothing is"):
        _, failed, said = site.play(**target, **secrets)
        assert failed == 1 and "Upgrade the database" in said, said
    assert since("ActiveEnterTimestamp", "healer.target") > started, "the new secrets count"
