"""An image of Debian 11: the script of `healer node-package` and the deb below a root where nothing runs."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.builds import FIRST, Builds
from tests.packages.distro_machine import root_of
from tests.support.stack import scratch_folder

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="makes a root"),
]


@pytest.fixture
def image() -> Iterator[Path]:
    with scratch_folder("/var/tmp") as folder:
        root = folder / "root"
        subprocess.run(["cp", "-a", root_of("debian11"), root], check=True)
        yield root


def within(image: Path, *command: str) -> str:
    words = ["chroot", image, "/usr/bin/env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *command]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_the_script_installs_into_an_image_and_nothing_twice(image: Path) -> None:
    package = image.parent / "healer-node.sh"
    words = [sys.executable, "-m", "healer", "node-package", "--url", "https://healer.example"]
    subprocess.run([*words, "--output", package], check=True, capture_output=True)

    def run(*options: str) -> str:
        done = subprocess.run(
            ["sh", package, *options, "--root", image], capture_output=True, text=True, check=True
        )
        return done.stdout

    assert "healer-node: 9 changed" in run("install")
    assert "healer-node: 0 changed" in run("install")
    assert within(image, "systemctl", "is-enabled", "healer-follow").strip() == "enabled"
    for name in ("prolog", "epilog", "health-check"):
        within(image, f"/usr/local/lib/healer/{name}")  # it must not fail where healer is away
    assert not (image / "etc/healer/token").exists()
    run("uninstall", "--purge")
    assert not list((image / "etc/systemd/system").rglob("healer*"))


def test_the_deb_installs_into_an_image(image: Path, builds: Builds) -> None:
    made = builds.made("node-deb", FIRST)
    shutil.copy(made, image / "root")
    within(image, "dpkg", "--install", f"/root/{made.name}")
    assert within(image, "systemctl", "is-enabled", "healer-follow").strip() == "enabled"
    for name in ("prolog", "epilog", "health-check"):
        within(image, f"/usr/lib/healer/{name}")
