"""Packages of the checked-out commit, and of one after it with another version and two changed rules.

They are built once for a commit, outside of the repository: `python -m tests.packages.builds` makes them all,
with the roots of the distributions, before the tests.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.packages.distro_machine import DISTROS, root_of
from tests.packages.shared import CACHE, shared
from tests.support.stack import scratch_folder
from tests.support.up import ROOT

FIRST, SECOND = "0.1.0", "0.1.1"
#: Changed by the second: the site has changed one of them too.
OURS, BOTH = "gpu_models.yaml", "scrape.yaml"
ADDED = "# said by the second version\n"
_TWICE = ("node-deb", "node-rpm", "debian12", "debian13", "ubuntu22.04", "ubuntu24.04", "el9")
#: Each session of tests has a home of its own, and would fetch every wheel again.
KEPT_WHEELS = {"UV_CACHE_DIR": str(CACHE / "uv")}
#: What the tests ask for: names, version, kind of machine.
ALL = (
    ((*_TWICE, "el8"), FIRST, "x86_64"),
    (_TWICE, SECOND, "x86_64"),
    (("debian12",), FIRST, "aarch64"),
)


class Builds:
    """Of the commit that is checked out: packages of others are removed. All of them take 1.5 GB."""

    def __init__(self) -> None:
        commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
        self._folder = CACHE / "packages" / commit
        with shared(CACHE / "packages"):
            for other in self._folder.parent.glob("*"):
                if other != self._folder:
                    shutil.rmtree(other)
            self._folder.mkdir(parents=True, exist_ok=True)

    def made(self, name: str, version: str, arch: str = "x86_64") -> Path:
        """The file of `name` as tools/packages names it, built at its first use."""
        self.make((name,), version, arch)
        [made] = self._place(name, version, arch).iterdir()
        return made

    def make(self, names: Sequence[str], version: str, arch: str) -> None:
        """Those that are not there, by one build."""
        with shared(self._folder / f"{version}-{arch}"), scratch_folder(str(CACHE)) as work:
            wanted = [name for name in names if not self._place(name, version, arch).exists()]
            if wanted:
                self._build(wanted, version, arch, work)

    def _place(self, name: str, version: str, arch: str) -> Path:
        return self._folder / f"{name}-{version}-{arch}"

    def _build(self, names: Sequence[str], version: str, arch: str, work: Path) -> None:
        clone, out = _clone(work), work / "out"
        commit = "HEAD~1" if version == FIRST else "HEAD"
        done = subprocess.run(
            [
                sys.executable, clone / "deploy/packages/build.py", *names, "--quick", "--arch", arch,
                "--work", work, "--commit", commit, "--version", version, "--out", out,
            ],
            capture_output=True, text=True, check=False, env=os.environ | KEPT_WHEELS,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        # It prints one line for each, those of nodes first.
        in_order = sorted(names, key=lambda name: not name.startswith("node-"))
        for name, line in zip(in_order, done.stdout.splitlines(), strict=True):
            (work / name).mkdir()
            shutil.move(line.split()[-1], work / name)
            (work / name).replace(self._place(name, version, arch))


def _clone(folder: Path) -> Path:
    """With a second commit, which is of these tests alone."""
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, clone], check=True)
    for name in (OURS, BOTH):
        with (clone / "rules" / name).open("a") as file:
            file.write(ADDED)
    author = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    subprocess.run(["git", *author, "commit", "--quiet", "-am", "second"], cwd=clone, check=True)
    return clone


def main() -> None:
    """Roots come over the network, packages from this machine's processor: one of each at a time."""
    builds = Builds()
    with ThreadPoolExecutor(1) as pool:
        roots = pool.map(root_of, DISTROS)
        for names, version, arch in ALL:
            builds.make(names, version, arch)
            print(f"built: {', '.join(names)} {version} {arch}", flush=True)
        for root in roots:
            print(f"made: {root}", flush=True)


if __name__ == "__main__":
    main()
